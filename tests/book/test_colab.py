"""The setup cell on Colab, and the stand-in for Colab (book/colab_check.py), as far as is quick."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import colab_check
import notebooks
import pytest

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
