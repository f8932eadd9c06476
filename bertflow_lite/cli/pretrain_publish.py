"""The command that hands on the model of a pre-training run: pretrain-publish."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertflow_lite.cli.common import app, check_place, clear_errors


@app.command()
def pretrain_publish(
    run: Annotated[Path, typer.Option(help="Folder that `pretrain --out` made.")],
    out: Annotated[Path, typer.Option(help="Model folder to make, as data/models/mini-bert.")],
    corpus: Annotated[
        str | None,
        typer.Option(help="What the text was and whose, for the card; the book's is known."),
    ] = None,
    machine: Annotated[
        str | None, typer.Option(help="What it was trained on, for the card.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a published model.")] = False,
) -> None:
    """Make a model folder of a finished pre-training run: weights, tokenizer, model card.

    The weights are stored in float16. An unfinished run is refused.
    """
    with clear_errors():
        from bertflow_lite.pretraining.publish import publish_model
        from bertflow_lite.runs import typed_command

        check_place(out)
        folder = publish_model(
            run,
            out,
            corpus=corpus,
            machine=machine,
            command=typed_command(sys.argv[1:]),
            overwrite=overwrite,
        )
        for path in sorted(folder.iterdir()):
            typer.echo(f"{path.stat().st_size / 1e6:8.2f} MB  {path.name}")
