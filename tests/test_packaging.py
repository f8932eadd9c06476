"""The wheel: it carries the data, and nothing that belongs to the repository only."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_carries_data_and_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "bertflow_lite/data/mini_sts.tsv" in names
    assert any(n.startswith("bertflow_lite/data/results/sts/") for n in names)
    modules = {p.name for p in (ROOT / "bertflow_lite").glob("*.py")}
    assert {n.removeprefix("bertflow_lite/") for n in names} >= modules
    assert not [n for n in names if n.startswith(("tests/", "book/", "benchmarks/"))]


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
