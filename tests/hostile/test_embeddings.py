"""Embeddings that are broken, odd or merely unusual, for each kind of calibrator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from refusal import must, refuses
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import bertflow_lite as bf
from bertflow_lite.calibrators.base import DeadDimensionWarning

CALIBRATORS = {
    "sn": bf.Standardizer(),
    "natsv": bf.TopDirectionRemover(1),
    "whiten": bf.Whitener(),
    "flow": bf.FlowCalibrator(),
}
each_calibrator = pytest.mark.parametrize("name", CALIBRATORS)


def each_case(cases: Iterable[str], member: str) -> pytest.MarkDecorator:
    """Try a family on one calibrator, and one member of it on all: `base` checks for them all."""
    tries = [(case, "sn") for case in cases]
    tries += [(member, name) for name in CALIBRATORS if name != "sn"]
    assert (member, "sn") in tries
    return pytest.mark.parametrize(("case", "name"), tries)


def plain(rows: int = 120, dim: int = 6, dtype: Any = np.float32) -> Any:
    return (np.random.default_rng(0).normal(size=(rows, dim)) * 3 + 7).astype(dtype)


def with_value(value: float) -> Any:
    x = plain()
    x[3, 2] = value
    return x


def with_dimension(values: Any) -> Any:
    x = plain(dtype=np.float64)
    x[:, 2] = values
    return x


# --- refused -------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], Any], Any]] = {
    "nan": (lambda: with_value(np.nan), refuses(ValueError, "contains NaN", "row 3", "again")),
    "inf": (lambda: with_value(np.inf), refuses(ValueError, "infinity", "row 3", "leave them out")),
    "minus-inf": (lambda: with_value(-np.inf), refuses(ValueError, "infinity", "row 3")),
    "all-nan": (lambda: plain() * np.nan, refuses(ValueError, "NaN", "120 such rows of 120")),
    "nan-in-float16": (
        lambda: with_value(np.nan).astype(np.float16),
        refuses(ValueError, "NaN", "row 3"),
    ),
    "inf-of-float16": (  # what half precision makes of 70,000
        lambda: torch.tensor(with_value(7e4)).half(),
        refuses(ValueError, "infinity", "row 3", "float32"),
    ),
    "nan-in-a-frame": (lambda: pd.DataFrame(with_value(np.nan)), refuses(ValueError, "NaN", "row")),
    "none-in-a-frame": (
        lambda: pl.DataFrame({"a": [1.0, None, 3.0], "b": [1.0, 2.0, 3.0]}),
        refuses(ValueError, "NaN", "row 1"),
    ),
    "all-equal": (lambda: np.ones((50, 6)), refuses(ValueError, "all 50 rows are equal", "differ")),
    "all-zero": (lambda: np.zeros((20, 6)), refuses(ValueError, "all 20 rows are equal")),
    "one-row": (lambda: plain(1), refuses(ValueError, "1 sample", "minimum of 2")),
    "no-row": (lambda: plain(0), refuses(ValueError, "0 sample", "minimum of 2")),
    "no-column": (lambda: plain(6, 0), refuses(ValueError, "0 feature", "minimum of")),
    "an-empty-list": (lambda: [], refuses(ValueError, "shape (0,)", "2-d")),
    "one-dimension": (lambda: plain()[0], refuses(ValueError, "shape (6,)", "x[None]")),
    "three-dimensions": (lambda: plain()[None], refuses(ValueError, "dim 3", "<= 2")),
    "a-number": (lambda: 3.0, refuses(ValueError, "shape ()", "2-d")),
    "none": (lambda: None, refuses(ValueError, "shape ()", "2-d")),
    "text": (
        lambda: np.array([["a", "b"]] * 5, dtype=object),
        refuses(ValueError, "could not convert string to float", "'a'"),
    ),
    "complex": (lambda: plain().astype(complex), refuses(ValueError, "Complex data not supported")),
    "sparse": (
        lambda: scipy.sparse.csr_matrix(plain()),
        refuses(TypeError, "dense data is required", "toarray"),
    ),
    "masked": (
        lambda: np.ma.masked_less(plain(), 5),
        refuses(ValueError, "masked array", "fill or leave out"),
    ),
    "squares-overflow": (
        lambda: plain(dtype=np.float64) * 1e300,
        refuses(ValueError, "too large", "squares overflow", "Divide"),
    ),
    "rows-of-two-lengths": (
        lambda: [[1.0, 2.0], [3.0]],
        refuses(ValueError, "inhomogeneous", "shape"),
    ),
}


@each_case(REFUSED, "nan")
def test_what_cannot_be_fitted_is_refused(case: str, name: str, tmp_path: Path) -> None:
    make, expected = REFUSED[case]
    must(expected, lambda: clone(CALIBRATORS[name]).fit(make()), tmp_path)


AFTER_THE_FIT: dict[str, tuple[Callable[[], Any], Any]] = {
    "narrower": (lambda: plain(5, 4), refuses(ValueError, "4 features", "expecting 6")),
    "wider": (lambda: plain(5, 7), refuses(ValueError, "7 features", "expecting 6")),
    "nan": (lambda: with_value(np.nan), refuses(ValueError, "NaN", "row 3")),
    "inf": (lambda: with_value(np.inf), refuses(ValueError, "infinity", "row 3")),
    "one-dimension": (lambda: plain()[0], refuses(ValueError, "shape (6,)", "x[None]")),
    "no-row": (lambda: plain(0), refuses(ValueError, "0 sample", "minimum of 1")),
    "none": (lambda: None, refuses(ValueError, "shape ()", "2-d")),
}


@each_case(AFTER_THE_FIT, "narrower")
def test_what_cannot_be_transformed_is_refused(case: str, name: str, tmp_path: Path) -> None:
    make, expected = AFTER_THE_FIT[case]
    fitted = clone(CALIBRATORS[name]).fit(plain())
    must(expected, lambda: fitted.transform(make()), tmp_path)


@each_calibrator
def test_one_row_alone_is_transformed_as_among_others(name: str) -> None:
    fitted = clone(CALIBRATORS[name]).fit(plain())
    together = fitted.transform(plain())
    np.testing.assert_allclose(fitted.transform(plain()[:1]), together[:1], rtol=1e-4, atol=1e-5)


@each_calibrator
@pytest.mark.parametrize("case", ["nan", "all-equal", "squares-overflow", "one-row"])
def test_a_failed_fit_leaves_a_fitted_calibrator_as_it_was(case: str, name: str) -> None:
    fitted = clone(CALIBRATORS[name]).fit(plain())
    before = fitted.transform(plain())
    bad = np.asarray(REFUSED[case][0]())
    with pytest.raises(ValueError, match=r"."):
        fitted.fit(np.hstack([bad, bad]))  # of another width, too
    np.testing.assert_array_equal(fitted.transform(plain()), before)


# --- unusual, and right --------------------------------------------------------------------------


def read_only() -> Any:
    x = plain()
    x.flags.writeable = False
    return x


# Each is the same 120 rows in another guise: the answer must be that for a plain array.
SAME: dict[str, Callable[[], Any]] = {
    "not-contiguous": lambda: np.repeat(plain(), 2, axis=1)[:, ::2],
    "reversed-twice": lambda: np.ascontiguousarray(plain()[::-1])[::-1],
    "fortran-order": lambda: np.asfortranarray(plain()),
    "read-only": read_only,
    "big-endian": lambda: plain().astype(">f4"),
    "list": lambda: plain().tolist(),
    "tuple": lambda: tuple(map(tuple, plain().tolist())),
    "objects": lambda: plain().astype(object),
    "long-double": lambda: plain().astype(np.longdouble),
    "tensor": lambda: torch.tensor(plain()),
    "tensor-with-gradient": lambda: torch.tensor(plain()).requires_grad_(),
    "transposed-tensor": lambda: torch.tensor(plain()).T.contiguous().T,
    "pandas": lambda: pd.DataFrame(plain()),
    "polars": lambda: pl.DataFrame(plain()),
    "masked-nowhere": lambda: np.ma.masked_less(plain(), -1e9),
    "matrix-of-rows": lambda: [row for row in plain()],  # noqa: C416
}


@each_case(SAME, "tensor")
def test_another_container_gives_the_same_answer(case: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        got = np.asarray(clone(CALIBRATORS[name]).fit(SAME[case]()).transform(SAME[case]()))
    want = clone(CALIBRATORS[name]).fit_transform(plain())
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


OTHER_TYPES: dict[str, Callable[[], Any]] = {
    "float64": lambda: plain(dtype=np.float64),
    "float16": lambda: plain(dtype=np.float16),
    "bfloat16": lambda: torch.tensor(plain()).bfloat16(),
    "half-tensor": lambda: torch.tensor(plain()).half(),
    "double-tensor": lambda: torch.tensor(plain()).double(),
    "integers": lambda: np.random.default_rng(0).integers(-100, 100, (120, 6)),
    "bytes": lambda: np.random.default_rng(0).integers(0, 255, (120, 6)).astype(np.uint8),
    "truth-values": lambda: np.random.default_rng(0).integers(0, 2, (120, 6)).astype(bool),
}


@each_case(OTHER_TYPES, "float16")
def test_other_number_types_become_floats(case: str, name: str) -> None:
    x = OTHER_TYPES[case]()
    exact = x.double().numpy() if isinstance(x, torch.Tensor) else x.astype(np.float64)
    got = clone(CALIBRATORS[name]).fit_transform(x)
    assert got.dtype == (np.float64 if case in ("float64", "double-tensor") else np.float32)
    want = clone(CALIBRATORS[name]).fit_transform(exact)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


@each_calibrator
def test_a_read_only_memory_map(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", plain())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    got = clone(CALIBRATORS[name]).fit(mapped).transform(mapped)
    want = clone(CALIBRATORS[name]).fit_transform(plain())
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5)


def low_rank(rank: int) -> Any:
    rng = np.random.default_rng(1)
    return rng.normal(size=(120, rank)) @ rng.normal(size=(rank, 6)) + 2


SHAPES: dict[str, Callable[[], Any]] = {
    "duplicates-only": lambda: np.repeat(plain(3), 40, axis=0),
    "two-different-rows": lambda: np.repeat(plain(2), 40, axis=0),
    "two-rows": lambda: plain(2),
    "three-rows": lambda: plain(3),
    "fewer-rows-than-dimensions": lambda: plain(10, 64),
    "some-zero-vectors": lambda: np.vstack([plain(100), np.zeros((20, 6), np.float32)]),
    "rank-1": lambda: low_rank(1),
    "rank-2": lambda: low_rank(2),
    "large-mean": lambda: plain(dtype=np.float64) + 1e6,
    "small-values": lambda: plain(dtype=np.float64) * 1e-3,
    "large-values": lambda: plain(dtype=np.float64) * 1e30,
    "one-outlier": lambda: np.vstack([plain(), 1e4 * np.ones((1, 6))]).astype(np.float32),
    "negative": lambda: -plain(),
} | {f"width-{dim}": (lambda dim=dim: plain(64, dim)) for dim in (2, 3, 5, 7, 13, 97, 128)}


@each_calibrator
@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.filterwarnings("ignore::bertflow_lite.calibrators.linear.DeadDimensionWarning")
def test_unusual_shapes_give_finite_vectors_that_can_be_mapped_back(case: str, name: str) -> None:
    x = SHAPES[case]()
    fitted = clone(CALIBRATORS[name]).fit(x)
    z = fitted.transform(x)
    assert len(z) == len(x) and z.dtype == x.dtype
    assert np.isfinite(z).all()
    if name != "natsv":  # what it nulls is gone
        size = np.abs(x).max()
        tight = 1e-6 if x.dtype == np.float64 else 1e-4
        np.testing.assert_allclose(fitted.inverse_transform(z) / size, x / size, atol=tight)


@each_calibrator
def test_values_smaller_than_a_step_are_a_warning_for_the_flow(name: str) -> None:
    x = plain(dtype=np.float64) * 1e-30
    if name == "flow":
        with pytest.warns(RuntimeWarning, match=r"deviation is 3e-30.*learning_rate.*multiply"):
            clone(CALIBRATORS[name]).fit(x)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            z = clone(CALIBRATORS[name]).fit_transform(x)
        assert np.isfinite(z).all()


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("sn", lambda z: np.testing.assert_allclose(z.std(axis=0), 1, rtol=1e-5)),
        ("natsv", lambda z: np.testing.assert_allclose(z, 0, atol=1e-5)),
        ("whiten", lambda z: np.testing.assert_allclose(z.std(axis=0), 1, rtol=1e-5)),
        ("flow", refuses(ValueError, "1 feature", "minimum of 2")),
    ],
)
def test_one_dimension_wide(name: str, outcome: Any, tmp_path: Path) -> None:
    must(outcome, lambda: clone(CALIBRATORS[name]).fit_transform(plain(64, 1)), tmp_path)


@pytest.mark.parametrize("name", ["sn", "flow"])
def test_4096_dimensions(name: str) -> None:
    # The other two need all principal directions: the same code, and a quarter of a minute.
    x = plain(64, 4096)
    fitted = clone(CALIBRATORS[name]).fit(x)
    np.testing.assert_allclose(fitted.inverse_transform(fitted.transform(x)), x, atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@each_calibrator
def test_a_tensor_on_a_gpu(name: str) -> None:
    got = clone(CALIBRATORS[name]).fit_transform(torch.tensor(plain(), device="cuda"))
    want = clone(CALIBRATORS[name]).fit_transform(plain())
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)


# --- dimensions of no spread, of little, of a great deal -----------------------------------------

NOISE = np.random.default_rng(2).normal(size=120)


@pytest.mark.parametrize("name", ["sn", "flow"])
@pytest.mark.parametrize("mean", [0.0, 5.0])
@pytest.mark.parametrize("spread", [0.0, 1e-32, 1e-20, 1e-12, 1e-9])
def test_a_dead_dimension_is_named_and_centered(spread: float, mean: float, name: str) -> None:
    x = with_dimension(mean + spread * NOISE)
    with pytest.warns(DeadDimensionWarning, match=r"1 of 6 dimensions.*unchanged: 2"):
        fitted = clone(CALIBRATORS[name]).fit(x)
    z = fitted.transform(x)
    np.testing.assert_allclose(z[:, 2], x[:, 2] - x[:, 2].mean(dtype=np.float64), atol=1e-6)
    others = np.delete(z, 2, axis=1)
    assert np.abs(others).max() < 100


@pytest.mark.parametrize("name", ["sn", "whiten", "flow"])
@pytest.mark.parametrize("mean", [0.0, 5.0])
@pytest.mark.parametrize("spread", [1e-32, 1e-20, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4])
@pytest.mark.filterwarnings("ignore::bertflow_lite.calibrators.linear.DeadDimensionWarning")
def test_a_nearly_dead_dimension_is_never_blown_up(spread: float, mean: float, name: str) -> None:
    x = with_dimension(mean + spread * NOISE)
    fitted = clone(CALIBRATORS[name]).fit(x)
    z = fitted.transform(x)
    assert np.isfinite(z).all() and np.abs(z).max() < 100
    np.testing.assert_allclose(fitted.inverse_transform(z), x, atol=1e-3)


@pytest.mark.parametrize("name", ["sn", "natsv", "flow"])
@pytest.mark.parametrize("size", [1e4, 1e8])
@pytest.mark.filterwarnings("ignore::bertflow_lite.calibrators.linear.DeadDimensionWarning")
def test_one_huge_dimension_leaves_the_others_in_order(size: float, name: str) -> None:
    x = with_dimension(7 + size * NOISE)
    z = clone(CALIBRATORS[name]).fit_transform(x)
    for column in np.delete(x, 2, axis=1).T:  # not lost in rounding; a flow permutes them
        assert max(abs(np.corrcoef(column, each)[0, 1]) for each in z.T) > 0.9


def test_whitening_says_when_a_huge_dimension_drowns_the_others() -> None:
    x = with_dimension(7 + 1e8 * NOISE)
    with pytest.warns(DeadDimensionWarning, match=r"dimension 2 varies .*only 1 of 6.*sn\+whiten"):
        assert bf.Whitener().fit_transform(x).shape == (120, 1)
    z = make_pipeline(bf.Standardizer(), bf.Whitener()).fit_transform(x)  # as it advises
    np.testing.assert_allclose(np.cov(z.T, bias=True), np.eye(6), atol=1e-6)


def test_natsv_says_when_nothing_is_left() -> None:
    with pytest.warns(DeadDimensionWarning, match=r"top 1 directions hold all .*Null fewer"):
        bf.TopDirectionRemover(1).fit(np.repeat(plain(2), 40, axis=0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_of_broken_vectors_name_the_row(bad: float, tmp_path: Path) -> None:
    pairs = bf.load_sts("mini-sts").select(range(10))
    x = plain(20)
    x[4, 1] = bad
    expected = refuses(ValueError, "Row 4", "NaN or infinity", "encoded")
    must(expected, lambda: bf.score_sts(pairs, x), tmp_path)
