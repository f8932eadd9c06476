"""What all calibrators share: checked input, saving, moments, dimensions without spread."""

from __future__ import annotations

import contextlib
import operator
import os
import warnings
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from tqdm import tqdm

from bertflow_lite.devices import as_array
from bertflow_lite.files import MappedRows, map_rows, write_rows
from bertflow_lite.saving import Arrays, Savable, typed

FloatArray = NDArray[np.floating[Any]]

__all__ = ["DeadDimensionWarning", "RunningMoments", "find_live"]

# A dimension is dead when its spread is this far below the typical one ...
RELATIVE_SPREAD = 1e-6
# ... or is no more than the rounding of float32 around its mean.
ROUNDING = 8 * float(np.finfo(np.float32).eps)
# A principal direction is dropped when its variance is this far below the largest; no dimension
# with a deviation this far below the largest counts as typical.
RELATIVE_VARIANCE = 1e-10


class DeadDimensionWarning(UserWarning):
    """Some dimensions have no spread; the message names them."""


def find_live(x: FloatArray) -> NDArray[np.bool_]:
    """Find the dimensions that have some spread, and warn about the others.

    A dead dimension says nothing about a sentence, but a calibrator that divides by its standard
    deviation blows it up: the last layer of all-MiniLM-L6-v2 has three with a deviation of 1e-32.
    """
    moments = RunningMoments()
    moments.update(x)
    return live_of(moments.mean, moments.std, len(x), stacklevel=4)


def live_of(
    mean: NDArray[np.float64], std: NDArray[np.float64], n_rows: int, *, stacklevel: int = 2
) -> NDArray[np.bool_]:
    """`find_live` of embeddings with this mean and standard deviation, shape (dim,)."""
    # The median stands above a few dimensions of huge spread; what is as good as nothing beside
    # the largest is left out of it, so that it also stands when most dimensions are dead.
    typical = np.median(std[std >= RELATIVE_VARIANCE * std.max()])
    live: NDArray[np.bool_] = std > np.maximum(RELATIVE_SPREAD * typical, ROUNDING * np.abs(mean))
    if not live.any():
        raise ValueError(
            f"all {n_rows} rows are (nearly) equal: there is no spread to calibrate. "
            "Give embeddings of sentences that differ."
        )
    if not live.all():
        dead = np.flatnonzero(~live)
        names = ", ".join(map(str, dead[:10])) + (", ..." if len(dead) > 10 else "")
        warnings.warn(
            f"{len(dead)} of {len(live)} dimensions have (nearly) no spread and are "
            f"centered, their scale left unchanged: {names}.",
            DeadDimensionWarning,
            stacklevel=stacklevel,
        )
    return live


class _Calibrator(Savable, TransformerMixin, BaseEstimator):
    """What all calibrators share: input checks (finite floats, rows that differ), and saving."""

    short: ClassVar[str] = ""
    """Name on the command line (`make_calibrator`)."""
    summary: ClassVar[str] = ""
    """What it does to a vector, for model cards."""
    _arrays: ClassVar[tuple[str, ...]] = ()  # what the fit sets and a file keeps
    _least_features = 1
    _fitted_settings: dict[str, Any] | None = None  # those of the fit, to compare when saving

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "mean_")

    @classmethod
    def _from_short(cls, setting: str, **options: Any) -> Self:
        """Make one from what follows its short name; ``options`` are those of a flow."""
        if setting:
            raise ValueError(
                f"no calibrator '{cls.short}:{setting}': {cls.short} takes no setting."
            )
        return cls()

    def transform(self, X: Any, out: str | os.PathLike[str] | None = None) -> Any:
        """Calibrate embeddings.

        Parameters
        ----------
        X : array or Tensor, shape (n, dim); or path of a ``.npy`` file
            Embeddings; finite.  A file or a memory-mapped array that is large is read block by
            block.
        out : str or path, optional
            Write the result to this ``.npy`` file, block by block, and give it memory-mapped.

        Returns
        -------
        ndarray, shape (n, dim) (of a `Whitener`: (n, n_kept))
            float64 for float64 input, else float32.
        """
        check_is_fitted(self)
        found = map_rows(X)
        if isinstance(found, MappedRows):
            n_rows, dtype = len(found), found.array.dtype
            blocks = (self._transform(block) for block in self._read(found, reset=False))
        else:
            x = self._check(X if found is None else found, reset=False)
            if out is None:
                return self._transform(x)
            n_rows, dtype = len(x), x.dtype
            blocks = (self._transform(x[i : i + ROWS]) for i in range(0, n_rows, ROWS))
        if out is not None:
            return np.load(write_rows(out, n_rows, blocks), mmap_mode="r")
        kind = np.float64 if dtype == np.float64 else np.float32
        whole = np.empty((n_rows, self._fitted_width), kind)
        row = 0
        for block in blocks:
            whole[row : row + len(block)] = block
            row += len(block)
        return whole

    def _transform(self, x: FloatArray) -> FloatArray:
        raise NotImplementedError

    def _remember_fit(self) -> None:
        self._fitted_settings = self.get_params(deep=False)

    @property
    def _fitted_width(self) -> int:
        """Width of what it gives."""
        return int(getattr(self, "_n_features_out", self.n_features_in_))

    def _get_settings(self) -> dict[str, Any]:
        settings = super()._get_settings()
        for name, value in settings.items():
            fitted = value if self._fitted_settings is None else self._fitted_settings[name]
            if not (value is fitted or value == fitted):
                raise ValueError(
                    f"{name} was {fitted!r} in the fit of this {type(self).__name__} and is "
                    f"{value!r} now: settings were changed since the fit. Fit again, or set them "
                    "back."
                )
            if name == "random_state":  # None or a generator: the seed that was drawn
                settings[name] = getattr(self, "seed_", value)
        return settings

    def _get_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        facts: dict[str, Any] = {
            "n_features_in": int(self.n_features_in_),
            "n_features_out": self._fitted_width,
        }
        if hasattr(self, "feature_names_in_"):
            facts["feature_names_in"] = [str(part) for part in self.feature_names_in_]
        return facts, self._get_arrays()

    def _set_state(self, facts: Mapping[str, Any], arrays: Arrays) -> None:
        width = typed(facts, "n_features_in", int)
        self.n_features_in_ = width
        if "feature_names_in" in facts:
            names = typed(facts, "feature_names_in", list)
            if len(names) != width or not all(isinstance(name, str) for name in names):
                raise ValueError(f"'feature_names_in' is not a list of {width} names")
            self.feature_names_in_ = np.array(names, dtype=object)
        self._set_arrays(width, facts, arrays)
        if typed(facts, "n_features_out", int) != self._fitted_width:
            raise ValueError(f"it says that it gives another width than {self._fitted_width}")
        self._remember_fit()

    def _get_arrays(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in self._arrays}

    def _set_arrays(self, width: int, facts: Mapping[str, Any], arrays: Arrays) -> None:
        """Take them back; ValueError for what does not fit."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """After an error, be as before the fit, unless a state that can be used was kept."""
        before = dict(vars(self))
        try:
            yield
        except Exception:
            if vars(self).get("history_") is before.get("history_"):
                self.__dict__.clear()
                self.__dict__.update(before)
            raise

    def _check(self, x: Any, *, reset: bool, least_rows: int = 1, first_row: int = 0) -> FloatArray:
        x = as_array(x)
        if np.ma.is_masked(x):
            raise ValueError("X is a masked array: fill or leave out its masked values first.")
        try:
            checked: FloatArray = validate_data(
                self,
                x,
                reset=reset,
                dtype=[np.float32, np.float64],
                ensure_all_finite=False,
                ensure_min_samples=least_rows,
                ensure_min_features=self._least_features if reset else 1,
            )
        except ValueError as error:
            if "Expected 2D array" not in str(error):
                raise
            raise ValueError(
                f"X has shape {np.shape(x)}, where embeddings are a 2-d array, (sentences, dim). "
                "Reshape your data: x[None] makes one sentence's vector a row."
            ) from None
        check_finite(checked, first_row)
        return checked

    def _read(self, rows: MappedRows, *, reset: bool) -> Iterator[FloatArray]:
        """Give checked blocks of what is on disk, with a progress bar where somebody looks."""
        with tqdm(total=len(rows), unit="row", desc="reading", disable=None) as bar:
            for first_row, block in rows.blocks():
                yield self._check(block, reset=reset and not first_row, first_row=first_row)
                bar.update(len(block))

    def _blocks(self, X: Any, *, reset: bool, least_rows: int = 1) -> Iterator[FloatArray]:
        """Give checked embeddings: block by block if they are a large file, else in one piece."""
        found = map_rows(X)
        if isinstance(found, MappedRows):
            yield from self._read(found, reset=reset)
        else:
            x = X if found is None else found
            yield self._check(x, reset=reset, least_rows=least_rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32", "float64"]
        return tags


def check_whole(name: str, value: Any, least: int | None = None) -> int:
    """Give a setting as an int; raise ValueError if it is no whole number or below ``least``."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)  # NumPy's integers too
    except TypeError:
        raise ValueError(
            f"{name} is {value!r}, of type {type(value).__name__}; it must be a whole number: "
            "give an int."
        ) from None
    if least is not None and number < least:
        raise ValueError(f"{name} is {number}; it must be {least} or more.")
    return number


def check_number(name: str, value: Any) -> None:
    """Raise ValueError if a setting is no real number."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise ValueError(
            f"{name} is {value!r}, of type {type(value).__name__}; it must be a number: give a "
            "float."
        )


def check_truth(name: str, value: Any) -> None:
    """Raise ValueError if a setting is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(
            f"{name} is {value!r}, of type {type(value).__name__}; it must be True or False."
        )


def check_finite(x: FloatArray, first_row: int = 0) -> None:
    """Raise ValueError with the first row of ``x``, shape (n, dim), that is not finite."""
    # The sum of finite numbers is finite, bar overflow: one pass, and no array of truth values.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(x.sum(dtype=np.float64)):
            return
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if bad.size:
        met = "NaN" if np.isnan(x[bad[0]]).any() else "infinity"
        raise ValueError(
            f"Input X contains {met}, first in row {first_row + bad[0]} ({bad.size} such rows of "
            f"{len(x)}). Encode these sentences again, in float32, or leave them out."
        )


def check_varied(count: int, varied: bool) -> None:
    """Raise ValueError if the rows cannot be calibrated: one only, or all the same."""
    if count < 2:
        raise ValueError("there is one row only; give embeddings of at least two sentences.")
    if not varied:
        raise ValueError(
            f"all {count} rows are equal: there is no spread to calibrate. "
            "Give embeddings of at least two different sentences."
        )


# Rows taken at a time, so that the float64 copy of them stays small.
ROWS = 4096


class RunningMoments:
    """Mean and scatter of rows, summed up in float64 as they arrive (Chan et al. 1983).

    Each block is centered at its own mean, and blocks are merged by the exact formula, so that
    nothing is lost when the mean is large beside the deviation: no sum of squares is ever taken
    about 0.  The result does not depend on how the rows were cut into blocks (up to rounding).

    ``scatter`` is the sum of the products of deviations from the mean, shape (dim, dim), or with
    ``full`` False its diagonal; ``varied`` says whether any row differs from the first.
    """

    def __init__(self, *, full: bool = False) -> None:
        self.full = full
        self.count = 0
        self.mean: NDArray[np.float64] = np.zeros(0)
        self.scatter: NDArray[np.float64] = np.zeros(0)
        self.varied = False
        self._first: FloatArray | None = None

    @property
    def std(self) -> NDArray[np.float64]:
        """(Biased) standard deviation of each dimension."""
        diagonal = np.diagonal(self.scatter) if self.full else self.scatter
        return np.sqrt(diagonal / self.count)

    @property
    def covariance(self) -> NDArray[np.float64]:
        """(Biased) covariance matrix, shape (dim, dim); only with ``full``."""
        return self.scatter / self.count

    def update(self, rows: FloatArray) -> None:
        """Take in rows, shape (n, dim)."""
        for start in range(0, len(rows), ROWS):
            block = rows[start : start + ROWS]
            if self._first is None:
                self._first = block[0].copy()
            self.varied = self.varied or bool((block != self._first).any())
            with np.errstate(over="ignore", invalid="ignore"):  # told below
                mean = block.mean(axis=0, dtype=np.float64)
                centered = block - mean
                scatter = (
                    centered.T @ centered
                    if self.full
                    else np.einsum("ij,ij->j", centered, centered)
                )
            if not (np.isfinite(scatter).all() and np.isfinite(mean).all()):
                raise ValueError(
                    f"values up to {np.abs(block).max():.0e} are too large: their squares "
                    "overflow. Divide the embeddings by a constant first."
                )
            self._merge(len(block), mean, scatter)

    def _merge(self, count: int, mean: NDArray[np.float64], scatter: NDArray[np.float64]) -> None:
        if not self.count:
            self.count, self.mean, self.scatter = count, mean, scatter
            return
        total = self.count + count
        apart = mean - self.mean
        between = np.outer(apart, apart) if self.full else apart**2
        self.scatter = self.scatter + scatter + between * (self.count * count / total)
        self.mean = self.mean + apart * (count / total)
        self.count = total
