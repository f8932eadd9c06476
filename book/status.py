"""Make book/status.md: when each chapter was run, with which versions, and for how long.

It is read from the committed notebooks and from what book/colab_check.py wrote down of its last
runs; `book/notebooks.py` calls this after a run.

    python book/status.py          write the page
    python book/status.py check    exit status 1 if it is out of step
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import word_count
import yaml

BOOK = Path(__file__).resolve().parent
PAGE = BOOK / "status.md"
COLAB = BOOK / "colab_check.json"  # written by book/colab_check.py --record
RUN = "bertflow_run"  # where a notebook's metadata say how it was run (book/notebooks.py)
FIGURE = "application/vnd.plotly.v1+json"
# What in a figure answers to the reader without a kernel, beside hover text.
CONTROLS = {"sliders": "slider", "updatemenus": "buttons"}

HEAD = """\
# Status

Every number and figure of this book comes from a notebook that was run from top to bottom, or from
a stored run that the notebook reads. This page says when that was, and with what. It is made from
the notebooks themselves by `book/status.py`.

"Figures" counts the interactive ones. The next column counts those that have a slider or buttons,
which work without a kernel; in all of them, hover text does. The seconds are those of one run on
{cores}, with the models unpacked and the sentences already in the cache. No GPU was at hand for
this edition, so nothing is said here of the time that a chapter takes on one.
"""

LENGTH_HEAD = """\
## How long the chapters are

Words before the exercises, without code, as `book/word_count.py` counts them, and the time to read
them: 200 words a minute, and a minute for each figure. A chapter of the main line has at most
{limit:,} words ({others}).
"""

COLAB_HEAD = """\
## As on Colab

Colab has versions of its own, and a reader there may choose another model and other data. So
`book/colab_check.py` runs each notebook in another environment that looks like Colab: after the
setup cell, without a network, and without the book's files beside it. It does this twice, with the
notebooks as they stand and with other choices in the setup cell:

{choices}

It is no run on Colab itself, and there was no GPU. The seconds include unpacking models and
encoding; the machine may have had other work, so they are no measurement.
"""


def chapters() -> list[Path]:
    """Return the notebooks of the table of contents, in its order."""
    contents = yaml.safe_load((BOOK.parent / "_toc.yml").read_text(encoding="utf-8"))
    names = [contents["root"]]
    names += [chapter["file"] for part in contents["parts"] for chapter in part["chapters"]]
    paths = [BOOK.parent / f"{name}.ipynb" for name in names]
    return [path for path in paths if path.exists()]


def figures(notebook: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the Plotly figures that a notebook holds."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if FIGURE in output.get("data", {}):
                yield output["data"][FIGURE]


def answers(figure: dict[str, Any]) -> bool:
    """Tell whether a figure has a slider, buttons or frames."""
    layout = figure.get("layout", {})
    return bool(figure.get("frames")) or any(layout.get(control) for control in CONTROLS)


def render() -> str:
    """Return the page."""
    lines: list[str] = []
    versions: dict[str, list[str]] = {}
    cores: set[int | None] = set()
    total, drawn, live = 0.0, 0, 0
    for path in chapters():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        all_figures = list(figures(notebook))
        moving = sum(map(answers, all_figures))
        drawn, live = drawn + len(all_figures), live + moving
        date = seconds = "not known"
        if run := notebook["metadata"].get(RUN):
            date, seconds = run["date"], f"{run['seconds']:.0f}"
            total += run["seconds"]
            cores.add(run["cores"])
            versions.setdefault(json.dumps(run["versions"], sort_keys=True), []).append(path.stem)
        lines.append(
            f"| {{doc}}`{path.stem}` | {date} | {seconds} | {len(all_figures)} | {moving} |"
        )
    lines.append(f"| **in all** | | **{total:.0f}** | **{drawn}** | **{live}** |")
    table = ["| chapter | run on | seconds | figures | with a control |", "|---|---|--:|--:|--:|"]
    parts = [HEAD.format(cores=_count(cores)), "\n".join(table + lines), "", "## Versions", ""]
    for text, names in versions.items():
        shown = json.loads(text)
        where = "All chapters" if len(versions) == 1 else ", ".join(f"{{doc}}`{n}`" for n in names)
        listed = ", ".join(
            f"{name} {shown[name]}"
            for name in sorted(shown, key=lambda n: (n not in ("python", "bertflow-lite"), n))
        )
        parts += [f"{where}: {listed}.", ""]
    parts += ["Stored runs name their own versions, device and date: each is in its file."]
    parts += ["", *_lengths()]
    if COLAB.exists():
        parts += ["", *_colab(json.loads(COLAB.read_text(encoding="utf-8")))]
    return "\n".join(parts) + "\n"


def _lengths() -> Iterator[str]:
    """Yield the lines on words and reading times."""
    lengths = word_count.main_line()
    others = ", ".join(f"{{doc}}`{name}` {n:,}" for name, n in word_count.LIMITS.items())
    yield LENGTH_HEAD.format(limit=word_count.LIMIT, others=others)
    yield "| chapter | words | minutes |"
    yield "|---|--:|--:|"
    for name, length in lengths.items():
        yield f"| {{doc}}`{name}` | {length.words:,} | {length.minutes} |"
    words = sum(length.words for length in lengths.values())
    minutes = sum(length.minutes for length in lengths.values())
    yield f"| **in all** | **{words:,}** | **{minutes}** |"


def _colab(runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the lines on the runs in an environment that looks like Colab."""
    chosen = runs.get("with choices", {})
    choices = [f"- `{k.upper()}`: {chosen[k]}" for k in ("model", "data") if chosen.get(k)]
    yield COLAB_HEAD.format(choices="\n".join(choices or ["- none so far"]))
    yield "| chapter | " + " | ".join(f"{name}: seconds" for name in runs) + " |"
    yield "|---|" + "--:|" * len(runs)
    for path in chapters():
        shown = [_outcome(run["chapters"].get(path.stem)) for run in runs.values()]
        yield f"| {{doc}}`{path.stem}` | {' | '.join(shown)} |"
    for name, run in runs.items():
        dates = sorted({entry["date"] for entry in run["chapters"].values()})
        when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        versions = ", ".join(f"{package} {version}" for package, version in run["versions"].items())
        yield f"\n*{name.capitalize()}*: {versions}; run on {when}."


def _outcome(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "not run"
    return f"{entry['seconds']:.0f}" if entry["passed"] else "failed"


def _count(cores: set[int | None]) -> str:
    known = sorted(c for c in cores if c)
    if not known:
        return "one machine"
    most, least = max(known), min(known)
    number = f"{least} to {most} CPU cores" if most > least else f"{most} CPU cores"
    return number if most > 1 else "one CPU core"


def write() -> None:
    """Write the page, through a temporary file, if it changes."""
    text = render()
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        part = PAGE.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.replace(PAGE)


def check() -> Iterator[str]:
    """Yield what is wrong with the page, in words."""
    for path in chapters():
        if RUN not in json.loads(path.read_text(encoding="utf-8"))["metadata"]:
            yield f"{path.name} does not say how it was run: `make run`"
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != render():
        yield "status.md: out of step with the notebooks"


def main(argv: list[str]) -> int:
    """Run the command line; return the exit status."""
    if argv != ["check"]:
        write()
        return 0
    problems = list(check())
    for problem in problems:
        print(f"{problem}; `python book/status.py` mends it.", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
