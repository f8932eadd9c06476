"""Embeddings on disk: fitted and transformed block by block, with the result of the whole array."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from bertflow_lite import files
from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.calibrators.base import DeadDimensionWarning
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator

KINDS = ["sn", "natsv:2", "whiten:3", "flow", "flow:recommended"]


def embeddings(n: int = 1000, dim: int = 6, dtype: Any = np.float32) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim)) + 3).astype(dtype)


def make(name: str) -> Any:
    calibrator = make_calibrator(name)
    if isinstance(calibrator, FlowCalibrator):
        calibrator.set_params(device="cpu", epochs=2, width=4)
    return calibrator


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file count as too large to be read whole, and read it in odd pieces."""
    monkeypatch.setattr(files, "READ_WHOLE", 0)
    monkeypatch.setattr(files, "BLOCK_ROWS", 137)
    monkeypatch.setattr(files, "ROWS_AT_HAND", 50)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", KINDS)
def test_the_fit_is_that_of_the_array(tmp_path, no_memory, name, dtype):
    x = embeddings(450, dtype=dtype)
    np.save(tmp_path / "x.npy", x)
    whole = make(name).fit(x)
    want = whole.transform(x)
    for given in (tmp_path / "x.npy", str(tmp_path / "x.npy"), np.load(tmp_path / "x.npy", "r")):
        found = make(name).fit(given)
        # The moments are summed up over other blocks: equal up to rounding.
        np.testing.assert_allclose(found.transform(x), want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(whole.transform(given), want, rtol=1e-5, atol=1e-5)
    if isinstance(whole, FlowCalibrator) and whole.rotation == "none":
        assert found.history_.loss == whole.history_.loss  # not one batch is another


@pytest.mark.parametrize("name", KINDS)
def test_what_is_written_is_what_is_given(tmp_path, no_memory, name):
    x = embeddings()
    np.save(tmp_path / "x.npy", x)
    fitted = make(name).fit(x)
    for given in (x, tmp_path / "x.npy"):
        z = fitted.transform(given, out=tmp_path / "z.npy")
        assert isinstance(z, np.memmap) and z.dtype == x.dtype
        np.testing.assert_allclose(z, fitted.transform(x), rtol=1e-5, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", "z.npy"]
    with pytest.raises(ValueError, match=r"must end in .npy"):
        fitted.transform(x, out=tmp_path / "z.txt")


def test_a_small_file_is_an_array_like_any_other(tmp_path):
    x = embeddings()
    np.save(tmp_path / "x.npy", x)
    assert_array_equal(
        make("whiten").fit_transform(tmp_path / "x.npy"), make("whiten").fit(x).transform(x)
    )


def test_an_interrupted_transform_leaves_no_file(tmp_path, no_memory, monkeypatch):
    x = embeddings()
    np.save(tmp_path / "x.npy", x)
    fitted = make("sn").fit(x)
    (tmp_path / "z.npy").write_bytes(b"old")
    calls = []

    def stop(block: Any) -> Any:
        calls.append(len(block))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return block

    monkeypatch.setattr(fitted, "_transform", stop)
    with pytest.raises(KeyboardInterrupt):
        fitted.transform(tmp_path / "x.npy", out=tmp_path / "z.npy")
    assert (tmp_path / "z.npy").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", "z.npy"]


def test_bad_values_are_named_with_their_rows(tmp_path, no_memory):
    x = embeddings()
    x[777, 2] = np.nan
    np.save(tmp_path / "x.npy", x)
    for name in ("sn", "flow"):
        with pytest.raises(ValueError, match=r"NaN, first in row 777"):
            make(name).fit(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(b""), "was cut, or is no .npy file"),
        (lambda path: path.write_bytes(b"1 2 3\n"), "was cut, or is no .npy file"),
        (lambda path: np.save(path, np.array([{}], dtype=object)), "was cut, or is no .npy"),
        (lambda path: np.save(path, np.ones(5)), r"shape \(5,\)"),
        (lambda path: np.save(path, np.ones((5, 0))), r"0 feature"),
        (lambda path: np.save(path, np.ones((1, 3))), r"minimum of 2|at least two"),
        (lambda path: np.save(path, np.array([["a"]])), r"could not convert|numeric|dtype"),
    ],
)
def test_what_is_no_array_of_embeddings_is_refused(tmp_path, write, message):
    path = tmp_path / "x.npy"
    write(path)
    for name in ("sn", "flow"):
        with pytest.raises(ValueError, match=message):
            make(name).fit(path)


def test_other_files_are_refused_without_being_opened(tmp_path):
    np.savez(tmp_path / "x.npz", x=embeddings())
    for name in ("x.npz", "x.pkl", "x.txt"):
        (tmp_path / name).touch()
        with pytest.raises(ValueError, match=r"read from a .npy file"):
            make("sn").fit(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        make("sn").fit(tmp_path / "nowhere.npy")


def test_changes_to_a_copy_on_write_map_survive(tmp_path, no_memory):
    x = embeddings()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    mapped[3] = 99
    make("flow").fit(mapped)
    assert (mapped[3] == 99).all()


def test_a_dimension_that_hardly_ever_varies_is_only_centered():
    rng = np.random.default_rng(0)
    for rows in ([17], [17, 18_000], [1, 2, 3]):
        x = rng.normal(size=(20_000, 16)).astype(np.float32)
        x[:, 5] = 0
        x[rows, 5] = 30
        with pytest.warns(DeadDimensionWarning, match="so few rows"):
            flow = FlowCalibrator(device="cpu", init_rows=64, batch_size=1000).fit(x)
        assert not flow.live_[5] and np.isfinite(flow.transform(x)).all()
        np.testing.assert_allclose(flow.transform(x)[rows, 5], 30 - x[:, 5].mean(), rtol=1e-4)


MEASURE = """
import resource, sys
import numpy as np
from pathlib import Path
from bertflow_lite import files
from bertflow_lite.calibrators import make_calibrator
files.READ_WHOLE = 0
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(x for x in lines if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6
for kind in ("whiten", "flow"):
    make_calibrator(kind).fit(np.random.default_rng(0).normal(size=(600, 256)).astype(np.float32))
start = peak()
for kind in ("whiten", "flow"):
    calibrator = make_calibrator(kind)
    calibrator.set_params(**({"batch_size": 512} if kind == "flow" else {})).fit(sys.argv[1])
print(peak() - start)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_does_not_grow_with_the_file(tmp_path):
    rng = np.random.default_rng(0)
    out = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (50_000, 256))
    for start in range(0, len(out), 25_000):  # 51 MB; read whole, six times as much is taken
        out[start : start + 25_000] = rng.standard_normal((25_000, 256), dtype=np.float32)
    out.flush()
    del out
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 40
