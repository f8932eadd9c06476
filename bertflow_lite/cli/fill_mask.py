"""The command that guesses masked words: fill-mask."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from tabulate import tabulate

from bertflow_lite.cli.common import app, clear_errors


@app.command("fill-mask")
def fill_mask(
    sentences: Annotated[
        list[str], typer.Argument(help="Sentences, quoted, each with one [MASK] or more.")
    ],
    model: Annotated[
        str, typer.Option(help="A masked language model: mini-bert, a folder, or a hub id.")
    ] = "mini-bert",
    k: Annotated[int, typer.Option("-k", min=1, help="Guesses for each mask.")] = 5,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
    download: Annotated[bool, typer.Option(help="Fetch a missing model.")] = False,
) -> None:
    """Show what a masked language model would write in place of each [MASK]."""
    with clear_errors():
        from bertflow_lite.fill_mask import fill_mask as fill
        from bertflow_lite.language_model import load_language_model

        lm = load_language_model(model, device=device, download=download)
        guesses = iter(fill(lm, sentences, k=k))
        filled = [
            (text, [next(guesses) for _ in range(text.count(lm.tokenizer.mask_token))])
            for text in sentences
        ]
        if as_json:
            rows = [
                {"sentence": text, "masks": [[vars(guess) for guess in mask] for mask in masks]}
                for text, masks in filled
            ]
            content = {"model": model, "fingerprint": lm.fingerprint, "results": rows}
            typer.echo(json.dumps(content, indent=1))
            return
        blocks = []
        for text, masks in filled:
            lines: list[list[Any]] = [
                [part for guess in row for part in (guess.token, guess.probability)]
                for row in zip(*masks, strict=True)
            ]
            heads = [
                head
                for number in range(1, len(masks) + 1)
                for head in (f"mask {number}" if len(masks) > 1 else "mask", "p(x|c)")
            ]
            table = tabulate(
                lines, heads, floatfmt=".3f", disable_numparse=[*range(0, len(heads), 2)]
            )
            blocks.append(f"{text}\n\n{table}")
        typer.echo("\n\n".join(blocks))
