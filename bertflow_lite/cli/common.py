"""What all commands share: the app, its exit codes, every option once, how results are written."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
# The groups of commands in --help, in this order.
SENTENCES = "Your own sentences"
MEASURE = "Measure a model"
BOOK = "Make the book's stored runs"

# Options that several commands have, each said once.
Model = Annotated[
    str, typer.Option(help="minilm, smollm2, mini-bert, glove, a folder, or a hub id.")
]
LayerChoices = Annotated[
    list[str],
    typer.Option(help="Layer choice; may be repeated. Names, an index, or indices as 1,6."),
]
Sets = Annotated[
    str, typer.Option(help="Sets, by commas: stsb, sick-r, sts12 ... mini-sts, mini-sts-plain.")
]
Calibrators = Annotated[
    str, typer.Option(help="none, sn, natsv:K, whiten[:WIDTH], flow[:PRESET], by commas.")
]
Calibrator = Annotated[
    str, typer.Option(help="sn, natsv:K, whiten[:WIDTH], flow[:PRESET], joined by +.")
]
Seeds = Annotated[int, typer.Option(min=1, help="Flows fitted, with seeds 0, 1, ...")]
Seed = Annotated[int, typer.Option(min=0, help="Random state.")]
MaxLength = Annotated[int, typer.Option(help="Longest sentence, in tokens (the paper's: 64).")]
Aggregation = Annotated[str, typer.Option(help="Number shown: all, mean or wmean.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: found.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.")]
Download = Annotated[bool, typer.Option(help="Fetch a missing model or data set.")]
Progress = Annotated[bool, typer.Option(help="Progress bars (on stderr).")]
Resume = Annotated[bool, typer.Option(help="Go on from an interrupted run's finished parts.")]
Overwrite = Annotated[bool, typer.Option(help="Replace what is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
StoreAs = Annotated[
    str | None, typer.Option(help="Store the run in data/results, under this name.")
]

# Ending of a file that a table is written to, and the style of the tabulate package for it.
WRITERS = {".json": "", ".csv": "", ".md": "github", ".tex": "latex_booktabs"}


def _show_version(asked: bool) -> None:
    if asked:
        from bertflow_lite import __version__

        typer.echo(f"bertflow-lite {__version__}")
        raise typer.Exit


@app.callback()
def main(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what is done.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """BERT-flow: sentence embeddings calibrated by a normalizing flow.

    Exit codes: 0 done; 1 the input or the machine would not do (one line on stderr says why);
    2 the command was misspelled; 130 interrupted; 141 the reader of the output closed it, as `head`
    does.  With --json, standard output holds JSON and nothing else.
    """
    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode shows codes, not an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])


class _OneLine(logging.Formatter):
    """A message, marked where it is a warning."""

    def format(self, record: logging.LogRecord) -> str:
        mark = "warning: " if record.levelno >= logging.WARNING else ""
        return mark + super().format(record)


def warn(text: str) -> None:
    """Write a warning as one line on standard error."""
    typer.echo(f"warning: {' '.join(text.split())}", err=True)


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Turn an error that the user can mend into one line and exit code 1; warnings are lines."""
    try:
        with warnings.catch_warnings():
            # The file and line of a warning are nothing to a user of commands.
            warnings.showwarning = lambda message, *_, **__: warn(str(message))
            yield
    except BrokenPipeError:
        # The reader of our output, such as `head`, has seen enough. Nothing more may be written,
        # not even by the interpreter as it ends.
        if sys.__stdout__ is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
        raise typer.Exit(141) from None
    except (ValueError, OSError, FloatingPointError, MemoryError, ImportError) as error:
        typer.echo(f"error: {' '.join(str(error).split())}{_way_out(error)}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("stopped; finished sentences are in the cache", err=True)
        raise typer.Exit(130) from None


def _way_out(error: BaseException) -> str:
    """Say what helps against an error of the operating system."""
    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ". Free some space, or name a place on another disk; no half-written file was left."
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ". Name a place that you may write to."
    if number in (errno.EEXIST, errno.ENOTDIR):
        return ". A file is where a folder is needed: name another place."
    return ""


def check_place(out: Path) -> None:
    """Make the folder that a result is to lie in; an OSError before the work if it cannot be."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out.parent):
        pass


def split_names(names: str) -> list[str]:
    """Split a list that was typed with commas; ValueError if nothing is in it."""
    found = [name.strip() for name in names.split(",") if name.strip()]
    if not found:
        raise ValueError(f"{names!r} names nothing: give one name, or several with commas between.")
    return found


def set_threads(threads: int | None) -> None:
    """Set the number of CPU threads, if one is given."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def open_encoder(
    model: str, max_length: int, device: str | None, threads: int | None, download: bool
) -> Any:
    """Load an encoder, and set the number of CPU threads if one is given."""
    from bertflow_lite.encoders.transformer import load_encoder

    set_threads(threads)
    return load_encoder(model, max_length=max_length, device=device, download=download)


def say_json(content: Any) -> None:
    """Print JSON."""
    typer.echo(json.dumps(content, indent=1))


def deliver(
    table: str, how: Mapping[str, Any], results: Any, store: str | None, as_json: bool
) -> bool:
    """Store a run where a name is given; say whether a table is still to be printed."""
    from bertflow_lite.experiments.runs import store_run

    if store is not None:
        store_run(table, store, how, results)
    if as_json:
        say_json({"how": how, "results": results})
    return not as_json
