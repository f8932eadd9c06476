"""The wheel: it carries the data, nothing of the repository only, and runs in a clean place."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from bertflow_lite.encoders.models import PACKAGED_MODELS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build as `python -m build` does: a source archive, and the wheel out of that archive."""
    pytest.importorskip("build", reason="build is not installed")
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), "."]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment, with no index, and give its folder of programs.

    The packages it needs are those of this environment, reached by a path file (in which a path
    file of an editable install is not followed); pip says whether they are what it asks for.
    """
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=False)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python")]
    install = [*pip, "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    ask = [programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip()
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(packages) / "borrowed.pth").write_text("\n".join(here))
    found = subprocess.run([*pip, "check"], capture_output=True, text=True).stdout
    assert not re.findall(r"^bertflow-lite .*", found, re.M)
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


def test_package_works_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, it finds its data inside itself (Colab installs only the package)."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import bertflow_lite as bf; print(bf.__file__); print(len(bf.load_sts('mini-sts'))); "
        "print(bf.load_run('sts', 'glove')['how']['model'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)},
    )
    place, count, model = done.stdout.split()
    assert Path(place).is_relative_to(tmp_path)
    assert (int(count), model) == (420, "glove")


def test_the_program_runs_in_a_clean_environment(elsewhere: Path, tmp_path: Path) -> None:
    said = run([elsewhere / "bertflow-lite", "info"], tmp_path)
    assert "mini-sts" in said and "minilm" in said
    code = "import bertflow_lite as bf; print(bf.__file__, bf.__version__)"
    place, version = run([elsewhere / "python", "-c", code], tmp_path).split()
    assert Path(place).is_relative_to(elsewhere.parent) and version == PROJECT["version"]


@pytest.mark.slow
@pytest.mark.skipif(PACKAGED_MODELS["smollm2"].path() is None, reason="smollm2 is not installed")
def test_the_quick_start_runs_in_a_clean_environment(elsewhere: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", readme, re.S)
    shown = re.search(r"```\n(raw .*?)```", readme, re.S)
    assert code and shown
    printed = run([elsewhere / "python", "-c", code.group(1)], tmp_path)
    numbers = r"(\d+\.\d+) \(Spearman"
    met = [float(n) for n in re.findall(numbers, printed)]
    assert met == pytest.approx([float(n) for n in re.findall(numbers, shown.group(1))], abs=0.1)
