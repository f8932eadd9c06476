"""The wheel: it carries the data, nothing of the repository only, and runs in a clean place."""

import contextlib
import email
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bertflow_lite.encoders.models import PACKAGED_MODELS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build as `python -m build` does: a source archive, and the wheel out of that archive.

    It asks the tool that pyproject.toml names, by these two functions, each in the source's folder.
    """
    backend = pytest.importorskip("hatchling.build", reason="hatchling is not installed")
    folder = tmp_path_factory.mktemp("built")
    with contextlib.chdir(ROOT):
        source = folder / backend.build_sdist(str(folder))
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(source) as archive:
        archive.extractall(unpacked, filter="data")
    (inside,) = unpacked.iterdir()
    with contextlib.chdir(inside):
        backend.build_wheel(str(folder))
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment, with no index, and give its folder of programs.

    The packages it needs are those of this environment, reached by a path file (in which a path
    file of an editable install is not followed).
    """
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=False)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python")]
    install = [*pip, "install", "--no-index", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    ask = [programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(packages) / "borrowed.pth").write_text("\n".join(here))
    return programs


def run(command: list[str | Path], folder: Path) -> str:
    """Run a program in a folder, with nothing of this process's environment that could help."""
    keep = {
        name: os.environ[name] for name in ("BERTFLOW_CACHE", "SYSTEMROOT") if name in os.environ
    }
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": "", "HOME": str(folder), "OMP_NUM_THREADS": "1"} | keep,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_carries_data_and_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"bertflow_lite/data/mini_sts{half}.tsv" for half in ("", "_plain")} <= set(names)
    assert "bertflow_lite/py.typed" in names
    assert any(n.startswith("bertflow_lite/data/results/sts/") for n in names)
    source = ROOT / "bertflow_lite"
    modules = {path.relative_to(source).as_posix() for path in source.rglob("*.py")}
    assert {n.removeprefix("bertflow_lite/") for n in names} >= modules
    tops = {n.split("/")[0] for n in names}
    assert tops == {"bertflow_lite", f"bertflow_lite-{PROJECT['version']}.dist-info"}
    code = [Path(n).name for n in names if not n.endswith((".json", ".tsv"))]
    assert not [n for n in code if "test" in n or n.endswith((".ipynb", ".pyc"))]


def test_source_archive_carries_what_the_makefile_needs(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "requirements.txt", "requirements-book.txt", "_toc.yml"} <= names
    assert {"book/intro.ipynb", "tests/conftest.py", "data/mini_sts.tsv"} <= names
    assert not [name for name in names if name.startswith(("_build", ".venv", ".ci", ".git/"))]


def test_what_the_wheel_asks_for_is_what_it_is_tested_with(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        asked = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist")
    assert asked and len(asked) >= len(PROJECT["dependencies"])
    for requirement in map(Requirement, asked):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found = metadata.version(requirement.name)
            assert requirement.specifier.contains(found, prereleases=True), (requirement, found)


# What is run in the clean environment, in one process, since imports take long: what a user asks
# of the package first, and README's example.
FIRST = """
import contextlib, io, json, sys
import bertflow_lite as bf
from bertflow_lite.cli import app
said = {"place": bf.__file__, "run": bf.load_run("sts", "glove")["how"]["model"]}
said["pairs"] = len(bf.load_sts("mini-sts"))
for name in ("info", "quick start"):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        if name == "info":
            with contextlib.suppress(SystemExit):
                app(["info"])
        else:
            exec(sys.argv[1], {})
    said[name] = out.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def quick_start(thorough: bool) -> str:
    """Give README's example, with the model that the wheel carries in place of a larger one."""
    code = re.search(r"```python\n(.*?)```", README, re.S)
    assert code and '"smollm2"' in code.group(1)
    if thorough and PACKAGED_MODELS["smollm2"].path():
        return code.group(1)
    return code.group(1).replace('"smollm2"', '"mini-bert"', 1)


@pytest.fixture(scope="module")
def said(
    elsewhere: Path, quick_start: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Give what the installed package says, in a folder that is empty."""
    folder = tmp_path_factory.mktemp("empty")
    given = json.loads(run([elsewhere / "python", "-c", FIRST, quick_start], folder))
    assert isinstance(given, dict)
    return given


def test_the_program_runs_in_a_clean_environment(elsewhere: Path, tmp_path: Path) -> None:
    printed = run([elsewhere / "bertflow-lite", "--version"], tmp_path)
    assert printed == f"bertflow-lite {PROJECT['version']}\n"


def test_the_package_finds_its_data_in_a_clean_environment(
    elsewhere: Path, said: dict[str, str]
) -> None:
    """Inside itself (Colab installs only the package)."""
    assert Path(said["place"]).is_relative_to(elsewhere.parent)
    assert (said["pairs"], said["run"]) == (420, "glove")
    assert "mini-sts" in said["info"] and "minilm" in said["info"]


def test_the_quick_start_runs_in_a_clean_environment(
    said: dict[str, str], quick_start: str
) -> None:
    """What README says it prints is looked at in test_readme.py."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(quick_start, {})
    numbers = r"(\d+\.\d+) \(Spearman"
    here, there = (
        [float(n) for n in re.findall(numbers, text)]
        for text in (printed.getvalue(), said["quick start"])
    )
    assert len(here) == 4 and there == pytest.approx(here, abs=0.1)
