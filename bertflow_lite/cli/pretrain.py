"""The command that trains a small BERT from scratch: pretrain."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from tabulate import tabulate

from bertflow_lite.cli.common import app, check_place, clear_errors


@app.command()
def pretrain(
    corpus: Annotated[
        Path,
        typer.Option(help="Text, one paragraph a line: .txt, .gz or .xz; or wikipedia, the hub's."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to make, with final and snapshots.")],
    config: Annotated[str, typer.Option(help="mini (4 blocks, 256-d) or tiny (seconds).")] = "mini",
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Train so long; or give --tokens.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(min=1, help="Train on so many word pieces.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and masks.")] = 0,
    learning_rate: Annotated[
        float | None, typer.Option(help="Highest rate of AdamW; default: the config's.")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(min=0, help="Of AdamW; default: the config's.")
    ] = None,
    masked: Annotated[
        float | None,
        typer.Option(help="Share of pieces to predict, all the time; default: the config's."),
    ] = None,
    tied: Annotated[bool, typer.Option(help="Output weights are the word embeddings.")] = True,
    bias: Annotated[
        str, typer.Option(help="Of the output: 'log p' or 'zero' (the start), or 'none'.")
    ] = "log p",
    bf16: Annotated[
        bool | None,
        typer.Option(
            "--bf16/--no-bf16", help="Compute in bfloat16; default: where the hardware does."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    download: Annotated[bool, typer.Option(help="Fetch Wikipedia from the hub.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace what is in the folder.")] = False,
    progress: Annotated[
        bool, typer.Option(help="Progress on stderr: a bar; lines where that is no terminal.")
    ] = True,
) -> None:
    """Train a small BERT from scratch with the masked-language-model objective.

    Keeps the model at steps 0, 1, 2, 3, 5, 7, 10, 20 and so on. Stopped by Ctrl-C or SIGTERM, it
    writes a checkpoint; the same command then goes on from there. After the end, it shows what the
    run left. The tokenizer is that of minilm, BERT's own uncased word pieces.
    """
    with clear_errors():
        import torch

        from bertflow_lite.models import find_device, load_model
        from bertflow_lite.pretraining.corpus import pack_corpus
        from bertflow_lite.pretraining.recipe import RECIPES
        from bertflow_lite.pretraining.train import pretrain as train
        from bertflow_lite.pretraining.wikipedia import find_corpus

        if threads is not None:
            torch.set_num_threads(threads)
        if config not in RECIPES:
            raise ValueError(f"there is no config {config!r}; there are {', '.join(RECIPES)}.")
        default = RECIPES[config]
        recipe = dataclasses.replace(
            default,
            tied=tied,
            bias=bias,
            learning_rate=default.learning_rate if learning_rate is None else learning_rate,
            weight_decay=default.weight_decay if weight_decay is None else weight_decay,
            masked=default.masked if masked is None else masked,
            masked_last=default.masked_last if masked is None else masked,
        )
        check_place(out)
        show = progress and sys.stderr.isatty()
        tokenizer = load_model("minilm", device="cpu").tokenizer
        text = find_corpus(corpus, download=download, progress=show)
        packed = pack_corpus(text, tokenizer, length=recipe.length, progress=show)
        if os.environ.get("RANK", "0") == "0":  # one of several processes speaks
            typer.echo(f"{packed.n_tokens:,} word pieces in {len(packed.rows):,} rows", err=True)

        def say(line: str) -> None:
            typer.echo(line, err=True)

        try:
            done = train(
                packed,
                tokenizer,
                out,
                recipe=recipe,
                tokens=tokens,
                minutes=minutes,
                seed=seed,
                device=find_device(device),
                bf16=bf16,
                overwrite=overwrite,
                progress=show,
                say=say if progress and not show else None,
            )
        except KeyboardInterrupt as stop:
            typer.echo(f"{stop or 'stopped'}; the same command goes on from there", err=True)
            raise typer.Exit(130) from None
        if not done.first:
            return
        if not done.trained:
            typer.echo(
                f"{out.name} holds this run already, trained to its end: here is what it left. "
                "--overwrite trains it again.",
                err=True,
            )
        head = ["step", "tokens", "training loss", "held-out loss"]
        typer.echo(tabulate(done.loss, head, floatfmt=".3f"))
        rate = done.tokens / max(done.seconds, 1e-9)
        typer.echo(f"{done.seconds:.0f} s, {rate:,.0f} tokens a second; models in {out.name}")
