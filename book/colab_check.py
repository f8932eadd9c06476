"""Run the notebooks as Colab would, in another environment that merely looks like Colab.

    python book/colab_check.py ENV/bin/python [--uncommitted] [--model X] [--data Y] [--record]
                               [NAME ...]

`ENV` is an environment with versions of torch, numpy and the rest that are not the pinned ones. It
needs `ipykernel`, `ipywidgets`, `nbformat`, `typer` and `pyarrow`, as Colab has them, and `gensim`,
which chapter 12 would fetch. Then:

1. the setup cell runs with a module `google.colab` in sight. It installs the package as it does on
   Colab; only git is told to take the repository from this checkout (its last commit), so nothing
   has to be public yet. `--uncommitted` takes the files as they lie here instead.
2. pip must find nothing to change about torch and numpy for the package's ranges.
3. every notebook runs top to bottom, with each connection that leaves the machine refused.

`--model` and `--data` stand in for what a reader writes in the setup cell: a folder takes the place
of a model of the hub, and "stsb" is read from the folder that BERTFLOW_DATA names. The notebooks of
the book are not touched.

`--record` writes what came of it to book/colab_check.json, which the status page shows: versions,
date, and for each chapter whether it passed and in how many seconds. Runs with and without choices
are kept apart. A later run of some chapters replaces their entries; a run with other versions or
choices replaces all.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from notebooks import BOOK, CELL_TIMEOUT, KERNEL_ENV, ROOT, from_source, sources

# Read by every Python of the stand-in: Colab's module, and (once all is installed) no way out.
CUSTOMIZE = """
import os, socket
import google.colab

if os.environ.get("STANDIN_OFFLINE"):
    connect = socket.socket.connect

    def refuse(self, address):
        local = isinstance(address, (str, bytes)) or str(address[0]).startswith(("127.", "::1"))
        if not local:
            raise ConnectionRefusedError(f"the stand-in has no network; asked for {address}")
        return connect(self, address)

    socket.socket.connect = refuse
"""
KEPT = ("torch", "numpy")  # what Colab must not be made to change
NAMED = (*KEPT, "transformers", "scikit-learn", "plotly")  # whose versions the record gives
RECORD = BOOK / "colab_check.json"


class StandIn:
    """An environment dressed up as Colab.

    Parameters
    ----------
    python : Path
        Its interpreter.
    folder : Path
        Where the disguise is kept.
    repository : Path
        What git clones where the setup cell names the public repository.
    cache : Path, optional
        The package's cache; new and empty by default, as on Colab.
    """

    def __init__(
        self, python: Path, folder: Path, repository: Path, cache: Path | None = None
    ) -> None:
        self.python, self.folder, self.repository = python.absolute(), folder, repository
        self.cache = cache or folder / "cache"
        (folder / "sitecustomize.py").write_text(CUSTOMIZE, encoding="utf-8")
        (folder / "google" / "colab").mkdir(parents=True)
        (folder / "google" / "colab" / "__init__.py").touch()
        spec = folder / "kernels" / "standin"
        spec.mkdir(parents=True)
        argv = [str(self.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        content = {"argv": argv, "display_name": "stand-in", "language": "python"}
        (spec / "kernel.json").write_text(json.dumps(content), encoding="utf-8")

    def environment(self, *, offline: bool) -> dict[str, str]:
        """Return the variables of its processes."""
        config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
        disguise = {
            "PYTHONPATH": str(self.folder),
            "BERTFLOW_CACHE": str(self.cache),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{self.repository.as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": config["repository"]["url"],
        }
        if offline:
            disguise |= {"STANDIN_OFFLINE": "1"}
        return {**os.environ, **KERNEL_ENV, **disguise}

    def run(self, *arguments: str) -> str:
        """Run its interpreter and return what it prints."""
        done = subprocess.run(
            [str(self.python), *arguments],
            env=self.environment(offline=False),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments[:4])} failed: {done.stderr[-2000:]}")
        return done.stdout

    def versions(self) -> dict[str, str]:
        """Return the versions of Python and of the packages that the record names."""
        code = (
            "import importlib.metadata as m, platform as p; "
            f"print(p.python_version(), *map(m.version, {NAMED}))"
        )
        return dict(zip(("python", *NAMED), self.run("-c", code).split(), strict=True))

    def would_change(self) -> list[str]:
        """Name what pip would change about torch and numpy to meet the package's ranges."""
        report = self.folder / "report.json"
        pip = ("-m", "pip", "install", "--quiet", "--dry-run", "--report", str(report))
        self.run(*pip, str(ROOT))
        wanted = [item["metadata"] for item in json.loads(report.read_text())["install"]]
        return [f"{m['name']} {m['version']}" for m in wanted if m["name"].lower() in KEPT]

    def execute(self, notebook: NotebookNode, *, offline: bool = True) -> None:
        """Run a notebook top to bottom; a cell that fails raises `CellExecutionError`."""
        client = NotebookClient(
            notebook,
            kernel_name="standin",
            timeout=CELL_TIMEOUT,
            resources={"metadata": {"path": str(self.folder)}},  # Colab has no book beside it
        )
        client.execute(env=self.environment(offline=offline))


def commit_copy(folder: Path) -> Path:
    """Commit the files as they lie here, to a new repository in a folder; return it."""
    copy = folder / "repository"
    listed = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    author = ["-c", "user.name=stand-in", "-c", "user.email=stand-in@localhost"]
    branch = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]
    for command in (
        ["init", "--quiet", "--initial-branch", branch.get("branch", "main")],
        ["add", "--all"],
        [*author, "commit", "--quiet", "--message", "as it lies"],
    ):
        subprocess.run(["git", "-C", str(copy), *command], check=True)
    return copy


def with_choices(notebook: NotebookNode, model: str | None, data: str | None) -> NotebookNode:
    """Write a reader's choices into the setup cell, as the reader would."""
    for cell in notebook.cells:
        if "setup" in cell.metadata.get("tags", []):
            for name, value in {"MODEL": model, "DATA": data}.items():
                if value:
                    pattern = rf'^{name} = ".*"$'
                    cell.source = re.sub(pattern, f'{name} = "{value}"', cell.source, flags=re.M)
    return notebook


def setup_only(notebook: NotebookNode) -> NotebookNode:
    """Return a notebook of the setup cell alone."""
    cells = [cell for cell in notebook.cells if "setup" in cell.metadata.get("tags", [])]
    return type(notebook)({**notebook, "cells": cells})


def printed(notebook: NotebookNode) -> str:
    """Return what the cells of a notebook wrote."""
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    return "".join(o.get("text", "") for o in outputs)


def shown(choice: str | None) -> str | None:
    """Return a choice as the record gives it: a folder by its name, without this machine's path."""
    if choice and Path(choice).is_dir():
        return f"the folder {Path(choice).name}"
    return choice


def remember(
    how: dict[str, Any], chapters: dict[str, dict[str, Any]], record: Path = RECORD
) -> None:
    """Write what came of a run to the record.

    Parameters
    ----------
    how : dict
        Versions and choices. Entries of chapters that were met otherwise are dropped.
    chapters : dict
        For each chapter: date, seconds, and whether it passed.
    record : Path
        The file.
    """
    runs = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    key = "with choices" if how["model"] or how["data"] else "as it stands"
    old = runs.get(key, {})
    same = all(old.get(name) == value for name, value in how.items())
    merged = {**(old["chapters"] if same else {}), **chapters}
    runs[key] = {**how, "chapters": dict(sorted(merged.items()))}
    part = record.with_suffix(".part")
    part.write_text(json.dumps(dict(sorted(runs.items())), indent=1) + "\n", encoding="utf-8")
    part.replace(record)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("python", type=Path, help="the interpreter of the environment")
    parser.add_argument("names", nargs="*", help="chapters, such as 01_puzzle; all when left out")
    parser.add_argument("--uncommitted", action="store_true", help="take files as they lie here")
    parser.add_argument("--cache", type=Path, help="keep the package's cache here")
    parser.add_argument("--model", help="what stands for MODEL, such as a folder")
    parser.add_argument("--data", help='what stands for DATA, such as "stsb"')
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    arguments = parser.parse_intermixed_args(argv)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JUPYTER_PATH"] = folder  # where nbclient finds the stand-in's kernel
        repository = commit_copy(Path(folder)) if arguments.uncommitted else ROOT
        standin = StandIn(arguments.python, Path(folder), repository, arguments.cache)
        before = standin.versions()
        how = {"versions": before} | {k: shown(vars(arguments)[k]) for k in ("model", "data")}
        standin.run("-m", "pip", "uninstall", "--quiet", "--yes", "bertflow-lite")
        chapters = sources(arguments.names)
        first = setup_only(from_source(chapters[0]))
        standin.execute(first, offline=False)
        print(printed(first).strip().splitlines()[-1])
        if wanted := standin.would_change():
            print(f"the package's ranges would change {', '.join(wanted)}", file=sys.stderr)
            failed += 1
        after = standin.versions()
        if changed := [name for name in KEPT if after[name] != before[name]]:
            print(f"the setup cell changed {', '.join(changed)}: {after}", file=sys.stderr)
            failed += 1
        if failed:  # what the chapters did then would say nothing about Colab
            return 1
        for source in chapters:
            start = time.perf_counter()
            notebook = with_choices(from_source(source), arguments.model, arguments.data)
            try:
                standin.execute(notebook)
            except CellExecutionError as error:
                failed += 1
                passed = False
                print(f"{source.stem}: failed\n{str(error)[-3000:]}", file=sys.stderr)
            else:
                passed = True
                print(f"{source.stem}: {time.perf_counter() - start:.0f} s", flush=True)
            if arguments.record:
                today = datetime.datetime.now(datetime.UTC).date().isoformat()
                seconds = round(time.perf_counter() - start, 1)
                entry = {"passed": passed, "seconds": seconds, "date": today}
                remember(how, {source.stem: entry})
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
