"""The setup cell on Colab, and the stand-in for Colab (book/colab_check.py), as far as is quick."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import colab_check
import notebooks
import pytest
import status

ROOT = Path(__file__).resolve().parents[2]
# Of the package's dependencies, those that Colab brings.
ON_COLAB = {
    "accelerate", "filelock", "huggingface-hub", "numpy", "pandas", "plotly", "pyarrow",
    "safetensors", "scikit-learn", "scipy", "tabulate", "torch", "tqdm", "transformers", "typer",
}  # fmt: skip


def name_of(requirement: str) -> str:
    return re.split(r"[\s<>=!~\[;]", requirement, maxsplit=1)[0].lower()


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the setup cell runs where `google.colab` is in sight and the package is not."""
    run: list[list[str]] = []
    real = importlib.util.find_spec
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "bertflow_lite" else real(n, *a)
    )
    monkeypatch.setattr(subprocess, "run", lambda command, **_: run.append(command))
    exec(notebooks.setup_source("# setup:"), {})
    return run


def test_setup_cell_leaves_torch_and_numpy_alone(commands: list[list[str]]) -> None:
    assert commands
    asked = [word for command in commands for word in command[command.index("install") + 1 :]]
    assert not {name_of(word) for word in asked} & set(colab_check.KEPT)
    for command in commands:  # what has dependencies of its own comes without them
        if any(word.startswith("git+") or "==" in word for word in command):
            assert "--no-deps" in command


def test_setup_cell_brings_what_colab_lacks(commands: list[list[str]]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {name_of(requirement) for requirement in project["dependencies"]}
    brought = {name_of(word) for command in commands for word in command}
    assert needed - ON_COLAB - brought == set()


def test_setup_cell_installs_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    run: list[object] = []
    monkeypatch.setattr(subprocess, "run", lambda *command, **_: run.append(command))
    exec(notebooks.setup_source("# setup:"), {})
    assert run == []


def test_choices_are_written_into_the_setup_cell() -> None:
    notebook = notebooks.from_source(notebooks.sources(["01_puzzle"])[0])
    chosen = colab_check.with_choices(notebook, "some/folder", "stsb")
    (cell,) = colab_check.setup_only(chosen).cells
    assert '\nMODEL = "some/folder"\nDATA = "stsb"\n' in cell.source
    assert len(chosen.cells) > 1


@pytest.mark.parametrize(("offline", "words"), [("1", "the stand-in has no network"), ("", "")])
def test_stand_in_is_colab_without_a_network(tmp_path: Path, offline: str, words: str) -> None:
    colab_check.StandIn(Path(sys.executable), tmp_path, tmp_path)
    code = (
        "import sys, socket; assert 'google.colab' in sys.modules\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname())\n"  # kernels need this machine itself
        "try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))\n"
        "except OSError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "STANDIN_OFFLINE": offline}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert words in done.stdout
    assert bool(words) == ("stand-in" in done.stdout)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    runs: dict[str, Any] = json.loads(colab_check.RECORD.read_text(encoding="utf-8"))
    return runs


@pytest.mark.parametrize("run", ["as it stands", "with choices"])
def test_every_notebook_passed_where_it_looks_like_colab(record: dict[str, Any], run: str) -> None:
    chapters = record[run]["chapters"]
    assert set(chapters) == {source.stem for source in notebooks.sources()}
    assert [name for name, entry in chapters.items() if not entry["passed"]] == []
    for entry in chapters.values():
        assert entry["seconds"] > 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry["date"])


def test_recorded_runs_say_what_they_ran_with(record: dict[str, Any]) -> None:
    assert set(record) == {"as it stands", "with choices"}
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in pins if "==" in line)
    for run in record.values():
        assert set(run["versions"]) == {"python", *colab_check.NAMED}
        for package in (*colab_check.KEPT, "transformers"):  # or it would show nothing new
            assert run["versions"][package].partition("+")[0] != pinned[package]
    assert record["as it stands"]["model"] is record["as it stands"]["data"] is None
    assert record["with choices"]["model"] and record["with choices"]["data"]
    assert not notebooks.MACHINE_PATH.search(json.dumps(record))


def entry(*, passed: bool = True) -> dict[str, Any]:
    return {"passed": passed, "seconds": 12.3, "date": "2026-11-28"}


def test_a_run_of_some_chapters_replaces_their_entries_only(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    how = {"versions": {"python": "3.12.1", "torch": "2.9.0"}, "model": None, "data": None}
    colab_check.remember(how, {"01_a": entry(passed=False), "02_b": entry()}, path)
    colab_check.remember(how, {"01_a": entry()}, path)
    chosen = {**how, "data": "stsb"}
    colab_check.remember(chosen, {"01_a": entry(passed=False)}, path)
    runs = json.loads(path.read_text(encoding="utf-8"))
    assert runs["as it stands"] == {**how, "chapters": {"01_a": entry(), "02_b": entry()}}
    assert runs["with choices"] == {**chosen, "chapters": {"01_a": entry(passed=False)}}
    # what was met with other versions is no longer known
    colab_check.remember({**how, "versions": {"python": "3.13.0"}}, {"02_b": entry()}, path)
    runs = json.loads(path.read_text(encoding="utf-8"))
    assert set(runs["as it stands"]["chapters"]) == {"02_b"}
    assert set(runs["with choices"]["chapters"]) == {"01_a"}


def test_folders_are_recorded_without_their_place(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    assert colab_check.shown(str(tmp_path / "my-model")) == "the folder my-model"
    assert colab_check.shown("stsb") == "stsb"
    assert colab_check.shown(None) is None


def test_status_page_shows_what_failed_and_what_was_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"versions": {"torch": "2.9.0"}, "model": "the folder my-model", "data": None}
    monkeypatch.setattr(status, "COLAB", tmp_path / "record.json")
    assert "As on Colab" not in status.render()
    chapters = {"01_puzzle": entry(), "02_sentence_embeddings": entry(passed=False)}
    colab_check.remember(how, chapters, status.COLAB)
    page = status.render()
    assert "| {doc}`01_puzzle` | 12 |" in page
    assert "| {doc}`02_sentence_embeddings` | failed |" in page
    assert "| {doc}`03_pmi` | not run |" in page
    assert "torch 2.9.0; run on 2026-11-28." in page
