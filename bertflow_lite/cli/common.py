"""What all commands share: the app, its exit codes, and how tables are written."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
from collections.abc import Iterator
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

# Ending of a file that a table is written to, and the style of the tabulate package for it.
WRITERS = {".json": "", ".csv": "", ".md": "github", ".tex": "latex_booktabs"}


@app.callback()
def main(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what is done.")] = False,
) -> None:
    """BERT-flow: sentence embeddings calibrated by a normalizing flow."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s")


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Turn an error that the user can mend into one line and exit code 1."""
    try:
        yield
    except (ValueError, OSError, FloatingPointError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("stopped; finished sentences are in the cache", err=True)
        raise typer.Exit(130) from None


def split_names(names: str) -> list[str]:
    """Split a list that was typed with commas."""
    return [name.strip() for name in names.split(",") if name.strip()]


def to_csv(rows: list[dict[str, Any]]) -> str:
    """Write rows of equal keys as CSV text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
