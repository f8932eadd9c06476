"""The command that fine-tunes an encoder on NLI: nli."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from tabulate import tabulate

from bertflow_lite.cli.common import app, clear_errors


@app.command()
def nli(
    model: Annotated[
        str, typer.Option(help="minilm, mini-bert, random-minilm, a folder, or a hub id.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to make: a transformers model.")],
    keep_blocks: Annotated[
        int | None, typer.Option(min=1, help="Cut the encoder to its first blocks before.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random state.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the pairs.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Highest learning rate of AdamW.")] = 2e-5,
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs in a batch.")] = 16,
    warmup: Annotated[float, typer.Option(help="Share of steps with rising rate.")] = 0.1,
    validation: Annotated[int, typer.Option(min=0, help="Pairs held out for accuracy.")] = 2000,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Train on so many pairs only, drawn at random.")
    ] = None,
    sts: Annotated[
        str, typer.Option(help="Set to score before and after: stsb (validation), mini-sts.")
    ] = "stsb",
    classifier_bias: Annotated[
        bool, typer.Option(help="Softmax with a bias (Sentence-BERT and the paper: without).")
    ] = False,
    max_length: Annotated[int, typer.Option(help="Longest sentence, in tokens.")] = 64,
    checkpoint_steps: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 500,
    overwrite: Annotated[bool, typer.Option(help="Replace what is in the folder.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
    store: Annotated[
        str | None, typer.Option(help="Store the run as data/results/nli/STORE.json.")
    ] = None,
    download: Annotated[bool, typer.Option(help="Fetch a missing model or data set.")] = False,
    progress: Annotated[bool, typer.Option(help="Progress bar (on stderr).")] = True,
) -> None:
    """Fine-tune an encoder on NLI pairs as Sentence-BERT does (Table 3).

    Stopped by Ctrl-C or SIGTERM, it keeps a checkpoint; the same command then goes on from there.
    The paper's setting: --model bert-base-uncased --download, with all of SNLI and MNLI.
    """
    with clear_errors():
        import torch

        from bertflow_lite.experiments.nli_runs import run_nli
        from bertflow_lite.models import find_device
        from bertflow_lite.runs import provenance, store_run

        if threads is not None:
            torch.set_num_threads(threads)
        try:
            results = run_nli(
                model,
                out,
                sts=sts,
                keep_blocks=keep_blocks,
                seed=seed,
                epochs=epochs,
                learning_rate=learning_rate,
                batch_size=batch_size,
                warmup=warmup,
                validation=validation,
                limit=limit,
                classifier_bias=classifier_bias,
                max_length=max_length,
                checkpoint_steps=checkpoint_steps,
                overwrite=overwrite,
                device=device,
                download=download,
                progress=progress and sys.stderr.isatty(),
            )
        except KeyboardInterrupt as stop:
            said = str(stop) or "stopped"
            typer.echo(f"{said}; the same command goes on from the last checkpoint", err=True)
            raise typer.Exit(130) from None
        record = results["record"]
        how = provenance(
            model=record["base"],
            fingerprint=record["base_fingerprint"],
            seed=seed,
            device=str(find_device(device)),
            max_length=max_length,
            data=results["data"],
        )
        if store is not None:
            store_run("nli", store, how, results)
        if as_json:
            typer.echo(json.dumps({"how": how, "results": results}, indent=1))
            return
        history = record["history"]
        typer.echo(
            f"{record['base']}: {history['n_train']} pairs, {history['steps']} steps, "
            f"{history['seconds']:.0f} s, {record['device']}"
        )
        if history["accuracy"] is not None:
            typer.echo(
                f"held-out accuracy {history['accuracy']:.3f} on {history['n_validation']} pairs "
                f"(most frequent class: {history['majority']:.3f}; "
                f"premises of other pairs: {history['without_premise']:.3f})\n"
            )
        before, after = results["sts"]["before"], results["sts"]["after"]
        lines = [[name, before[name], after[name]] for name in after]
        scored = next(name for name in results["data"] if name != "nli")
        head = [f"{scored}, Spearman x 100", "before", "after"]
        typer.echo(tabulate(lines, head, floatfmt=".2f"))
