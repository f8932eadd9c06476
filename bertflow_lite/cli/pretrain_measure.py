"""The command that measures the snapshots of a pre-training run: pretrain-measure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate

from bertflow_lite.cli.common import app, check_place, clear_errors


@app.command()
def pretrain_measure(
    run: Annotated[Path, typer.Option(help="Folder that `pretrain --out` made.")],
    corpus: Annotated[
        Path, typer.Option(help="The text that it was trained on; or wikipedia, the hub's.")
    ],
    name: Annotated[
        str, typer.Option(help="Store as data/results/pretraining/NAME.json.")
    ] = "mini-bert",
    data: Annotated[
        str, typer.Option(help="Set whose validation pairs are scored; mini-sts where it is not.")
    ] = "stsb",
    out: Annotated[
        Path | None, typer.Option(help="Write to this JSON file, and not to data/results.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Measure an unfinished run, as far as it is.")
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="Flows at the first and the last snapshot.")
    ] = 3,
    least_pairs: Annotated[
        int, typer.Option(min=1, help="Smallest count of neighbors whose PMI is compared.")
    ] = 20,
    resume: Annotated[bool, typer.Option(help="Use snapshots that were measured before.")] = True,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch a missing data set or text.")] = False,
    progress: Annotated[bool, typer.Option(help="Progress bar (on stderr).")] = True,
) -> None:
    """Measure how words, sentences and STS scores change while a small BERT learns.

    Each snapshot's numbers are kept in the cache: stopped, the same command goes on from there.
    """
    with clear_errors():
        import torch
        from transformers import AutoTokenizer

        from bertflow_lite.experiments.pretraining_runs import load_validation_pairs, measure_run
        from bertflow_lite.models import find_device
        from bertflow_lite.pretraining.corpus import pack_corpus
        from bertflow_lite.pretraining.run_folder import fingerprint_folder, read_training
        from bertflow_lite.pretraining.wikipedia import find_corpus
        from bertflow_lite.runs import provenance, store_run, write_json

        if threads is not None:
            torch.set_num_threads(threads)
        if out is not None and out.suffix != ".json":
            raise ValueError(f"--out {out.name}: the ending must be .json.")
        training = read_training(run, partial=partial)
        pairs = load_validation_pairs(data, download=download)
        if out is not None:
            check_place(out)
        show = progress and sys.stderr.isatty()
        last = list(training.snapshots.values())[-1]
        tokenizer = AutoTokenizer.from_pretrained(last, local_files_only=True)
        length = int(training.settings["recipe"]["length"])
        text = find_corpus(corpus, download=download, progress=show)
        packed = pack_corpus(text, tokenizer, length=length, progress=show)
        place = find_device(device)
        try:
            results = measure_run(
                training,
                packed,
                tokenizer,
                pairs,
                seeds=seeds,
                least_pairs=least_pairs,
                resume=resume,
                device=place,
                progress=show,
            )
        except KeyboardInterrupt:
            typer.echo("stopped; measured snapshots are in the cache", err=True)
            raise typer.Exit(130) from None
        how = provenance(
            model=name,
            fingerprint=results["snapshots"][-1]["fingerprint"],
            seed=list(range(seeds)),
            device=str(place),
            corpus=packed.fingerprint,
            weights=fingerprint_folder(last),
            data={pairs.name: pairs.fingerprint},
            max_length=64,
        )
        if out is None:
            store_run("pretraining", name, how, results)
        else:
            write_json(out, {"table": "pretraining", "how": how, "results": results})
        typer.echo(tabulate(*_summary(results), disable_numparse=True))


def _summary(results: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Lay out some columns of each snapshot."""
    head = ["step", "loss", "norm ~ log p", "words cos", "sentences cos", "PMI", "~ corpus"]
    calibrators = list(results["settings"]["calibrators"])
    rows = []
    for one in results["snapshots"]:
        numbers = [
            one["held_out_loss"],
            one["words"]["norm_log_frequency"]["spearman"],
            one["words"]["mean_cosine"]["estimate"],
            one["sentences"]["last2avg"]["mean_cosine"]["estimate"],
            one["gain"]["pmi"],
            one["neighbors"]["spearman"],
        ]
        scores = [one["sts"]["last2avg"][calibrator][0] for calibrator in calibrators]
        rows.append(
            [str(one["step"]), *(f"{x:.3f}" for x in numbers), *(f"{x:.1f}" for x in scores)]
        )
    return rows, [*head, *calibrators]
