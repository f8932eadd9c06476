"""Run a chapter's cells again in this process, and compare what they show with what is stored.

nbval does the same in a kernel of its own.  Here, the names that the cells made are at hand
afterwards: the tests try wrong answers to the exercises in copies of them, so that a chapter runs
once for both.  Each cell is run by IPython, as in a notebook.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pandas as pd
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from near_numbers import BAR, settle_outputs, without_bars
from traitlets import Type
from traitlets.config import Config

__all__ = ["Shown", "differences", "patterns", "shell"]

FIGURE = "application/vnd.plotly.v1+json"
# A figure counts by being there; an explorer's id is random.
NOT_COMPARED = {FIGURE, "application/vnd.jupyter.widget-view+json", "image/png", "image/jpeg"}


@dataclass
class Shown:
    """What one cell has shown.

    Attributes
    ----------
    outputs : list of dict
        As a notebook stores them: what was printed comes first, then the figures and tables.
    error : BaseException or None
        What stopped the cell.
    """

    outputs: list[dict[str, Any]]
    error: BaseException | None


class _Results(DisplayHook):
    """Keeps the value of a cell's last line, as a notebook shows it, instead of printing it."""

    shell: _Shell

    def write_output_prompt(self) -> None:
        """Print no ``Out[1]:``."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
        """Keep the value in all its forms."""
        self.shell.results.append({"output_type": "execute_result", "data": format_dict})


class _Shell(InteractiveShell):
    """IPython without a terminal and without a history."""

    displayhook_class = Type(_Results)
    results: list[dict[str, Any]]

    def show(self, code: str) -> Shown:
        """Run a cell."""
        self.results = []
        with capture_output() as captured:
            ran = self.run_cell(code, store_history=True)
        outputs: list[dict[str, Any]] = []
        for name, text in (("stdout", captured.stdout), ("stderr", captured.stderr)):
            if text:
                outputs.append({"output_type": "stream", "name": name, "text": text})
        outputs += [{"output_type": "display_data", "data": one.data} for one in captured.outputs]
        return Shown(outputs + self.results, ran.error_before_exec or ran.error_in_exec)


class _Unhandled(logging.Handler):
    """Prints what nobody else takes, as logging does where nothing is set up."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print it to where stderr goes now."""
        print(self.format(record), file=sys.stderr)


@contextlib.contextmanager
def shell() -> Iterator[_Shell]:
    """Give an IPython to run cells in; its ``user_ns`` holds the names that they make.

    Warnings and log records are printed as in a notebook, whatever else listens to them.
    """
    main, handler = sys.modules["__main__"], _Unhandled(logging.WARNING)
    config = Config()
    config.HistoryManager.enabled = False
    _Shell.clear_instance()
    logging.root.addHandler(handler)
    try:
        # What pandas chooses for itself where it is imported in a notebook.
        with pd.option_context("display.max_columns", 20), warnings.catch_warnings():
            warnings.resetwarnings()
            for unseen in (PendingDeprecationWarning, ImportWarning, ResourceWarning):
                warnings.simplefilter("ignore", unseen)
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
            warnings.showwarning = _print_warning
            made = _Shell.instance(config=config, user_ns={})
            yield made
            # Widgets are remembered until they are closed, and with them the encoders they ask;
            # IPython until the process ends, and with it all models and vectors.
            if "ipywidgets" in sys.modules:
                sys.modules["ipywidgets"].Widget.close_all()
            atexit.unregister(made.atexit_operations)
            made.reset(new_session=False)
            made.last_execution_result = None
    finally:
        logging.root.removeHandler(handler)
        _Shell.clear_instance()
        sys.modules["__main__"] = main  # IPython has put its own there


def _print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    text = warnings.formatwarning(message, category, filename, lineno, line)
    print(text, file=file or sys.stderr, end="")


def patterns(path: Path) -> dict[re.Pattern[str], str]:
    """Read what nbval blanks out before it compares: a pattern, and what it becomes."""
    found = re.findall(r"^regex: (.*)\nreplace: (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {re.compile(pattern): becomes for pattern, becomes in found}


def differences(
    got: list[Any], stored: list[Any], blanks: dict[re.Pattern[str], str]
) -> Iterator[str]:
    """Yield in words how a cell's outputs differ from the stored ones.

    Outputs of one kind are compared in their order, as nbval does it; numbers may differ by one
    unit of their last place, and progress bars are left out (see `near_numbers`).

    Parameters
    ----------
    got, stored : list
        Outputs as nbformat has them.
    blanks : dict
        Of `patterns`.
    """

    def plain(outputs: list[Any]) -> list[Any]:
        kept = [*_streams(outputs), *_shown(outputs)]
        return [_blanked(output, blanks) for output in without_bars(kept)]

    reference = plain(stored)
    new, old = _by_kind(settle_outputs(plain(got), reference)), _by_kind(reference)
    for kind in sorted(new.keys() | old.keys()):
        if new.get(kind) != old.get(kind):
            yield f"{kind}: stored is {old.get(kind, 'nothing')!r}, now it shows {new.get(kind)!r}"


def _streams(outputs: list[Any]) -> Iterator[dict[str, Any]]:
    for name in ("stdout", "stderr"):
        text = "".join(one["text"] for one in outputs if one.get("name") == name)
        if name == "stderr":  # without a notebook, bars are drawn there
            lines = re.split(r"[\r\n]+", text)
            text = "\n".join(line for line in lines if line.strip() and not BAR.search(line))
        if text:
            yield {name: text}


def _shown(outputs: list[Any]) -> Iterator[dict[str, Any]]:
    for output in outputs:
        data = {k: v for k, v in output.get("data", {}).items() if k not in NOT_COMPARED}
        if data:
            yield {"data": data}


def _blanked(value: Any, blanks: dict[re.Pattern[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _blanked(inner, blanks) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    for pattern, becomes in blanks.items():
        value = pattern.sub(becomes, value)
    return value


def _by_kind(outputs: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for output in outputs:
        for kind, value in output.get("data", output).items():
            found.setdefault(kind, []).append(value)
    return found
