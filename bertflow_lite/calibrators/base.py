"""What all calibrators share: checked input, streams, dimensions without spread."""

from __future__ import annotations

import contextlib
import operator
import os
import warnings
from collections.abc import Iterator
from numbers import Real
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from bertflow_lite.sources import to_numpy
from bertflow_lite.streaming import EmbeddingStream, as_stream

FloatArray = NDArray[np.floating[Any]]

__all__ = ["DeadDimensionWarning", "RowSample", "RunningMoments", "find_live"]

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

    Parameters
    ----------
    x : ndarray, shape (n, dim)
        Embeddings.

    Returns
    -------
    ndarray of bool, shape (dim,)
        True for a dimension to calibrate.

    Raises
    ------
    ValueError
        If no dimension has any spread, that is, if all rows are (nearly) equal.
    """
    mean, std = mean_std(x)
    return live_of(mean, std, len(x), stacklevel=4)


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


def mean_std(x: FloatArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and (biased) standard deviation of each column, in float64."""
    mean = x.mean(axis=0, dtype=np.float64)
    # Column blocks keep the float64 copy small.
    std = np.empty_like(mean)
    for start in range(0, x.shape[1], 64):
        part = slice(start, start + 64)
        std[part] = np.sqrt(np.mean((x[:, part] - mean[part]) ** 2, axis=0))
    return mean, std


class _Calibrator(TransformerMixin, BaseEstimator):
    """What all calibrators share: input checks (finite floats, rows that differ), and streams."""

    _least_features = 1
    _fitted_settings: dict[str, Any] | None = None  # those of the fit, for `save` to compare
    _origin: dict[str, Any] | None = None  # of one that was loaded: what it was fitted for and on

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "mean_")

    def transform(self, X: Any) -> Any:
        """Calibrate embeddings.

        Parameters
        ----------
        X : array or Tensor, shape (n, dim); or EmbeddingStream, path or iterator of such arrays
            Embeddings; finite.

        Returns
        -------
        ndarray, shape (n, dim) (of a `Whitener`: (n, n_kept)); or EmbeddingStream
            float64 for float64 input, else float32.  A stream gives a stream, computed when it is
            read: write it with its `~EmbeddingStream.save`.
        """
        check_is_fitted(self)
        stream = as_stream(X)
        if stream is None:
            return self._transform(self._check(X, reset=False))
        mapped = stream.map(lambda block: self._transform(self._check(block, reset=False)))
        if isinstance(X, np.ndarray):
            return mapped.read()
        asked = getattr(self, "_sklearn_output_config", {})
        asked = asked.get("transform", get_config()["transform_output"])
        if asked != "default":
            raise ValueError(
                f"set_output(transform={asked!r}) makes a frame, and a stream cannot be one: "
                "transform an array, or use set_output(transform='default')."
            )
        return mapped

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        encoder: Any = None,
        layers: Any = None,
        data: Any = None,
        overwrite: bool = False,
    ) -> Path:
        """Save to a folder: weights, settings and a model card.

        Parameters
        ----------
        folder : str or path
            Where to; made if missing.
        encoder, layers, data : optional
            What it was fitted for and on; a calibrator that was loaded remembers it (see
            `artifacts.save`).
        overwrite : bool, default False
            Replace a calibrator that is there already.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        ValueError, FileExistsError
            As `artifacts.save`.
        """
        from bertflow_lite.artifacts import save  # it imports this module

        return save(self, folder, encoder=encoder, layers=layers, data=data, overwrite=overwrite)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        encoder: Any = None,
        layers: Any = None,
        device: Any = "cpu",
    ) -> Self:
        """Load what `save` wrote.

        Parameters
        ----------
        folder : str or path
            The folder.
        encoder, layers : optional
            What shall be used with it; refused unless it was fitted for them.  Pass both.
        device : str or torch.device, default "cpu"
            Where a flow shall run.

        Returns
        -------
        calibrator
            Of this class.

        Raises
        ------
        FileNotFoundError, ValueError
            As `artifacts.load`; ValueError also if the folder holds another kind of calibrator.

        Warns
        -----
        UserWarning
            As `artifacts.load`: if the encoder cuts sentences at another length than in the fit,
            or ``layers`` is not given and the fit was for others than the default.
        """
        from bertflow_lite.artifacts import load_checked

        loaded = load_checked(folder, encoder, layers, device)
        if not isinstance(loaded, cls):
            raise ValueError(
                f"{os.fspath(folder)!r} holds a {type(loaded).__name__}, not a {cls.__name__}: "
                "use bertflow_lite.load_calibrator, which takes any."
            )
        return loaded

    def _transform(self, x: FloatArray) -> FloatArray:
        raise NotImplementedError

    def _remember_fit(self) -> None:
        """Note the settings of a fit; what an earlier fit was for is no longer true."""
        self._fitted_settings = self.get_params(deep=False)
        self.__dict__.pop("_origin", None)

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

    def _check(self, x: Any, *, reset: bool, least_rows: int = 1) -> FloatArray:
        x = to_numpy(x)
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
        check_finite(checked)
        return checked

    def _blocks(self, X: Any, *, reset: bool, least_rows: int = 1) -> Iterator[FloatArray]:
        """Give checked embeddings, block by block if they are a stream, else in one piece."""
        stream = as_stream(X)
        if stream is None:
            yield self._check(X, reset=reset, least_rows=least_rows)
        else:
            yield from self._check_stream(stream, reset=reset)

    def _check_stream(self, stream: EmbeddingStream, *, reset: bool) -> EmbeddingStream:
        """Give the stream of checked blocks; the first that is read sets the width if ``reset``."""

        def check(block: Any) -> FloatArray:
            nonlocal reset
            checked = self._check(block, reset=reset)
            reset = False
            return checked

        return stream.map(check)

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


def check_finite(x: FloatArray) -> None:
    """Raise ValueError with the first row of ``x``, shape (n, dim), that is not finite."""
    # The sum of finite numbers is finite, bar overflow: one pass, and no array of truth values.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(x.sum(dtype=np.float64)):
            return
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if bad.size:
        met = "NaN" if np.isnan(x[bad[0]]).any() else "infinity"
        raise ValueError(
            f"Input X contains {met}, first in row {bad[0]} ({bad.size} such rows of {len(x)}). "
            "Encode these sentences again, in float32, or leave them out."
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

    Parameters
    ----------
    full : bool, default False
        Keep the whole scatter matrix, shape (dim, dim), and not only its diagonal.

    Attributes
    ----------
    count : int
        Rows seen.
    mean : ndarray, shape (dim,), float64
    scatter : ndarray, shape (dim, dim) or (dim,), float64
        Sum of the products of deviations from the mean.
    varied : bool
        Whether any row differs from the first.

    Examples
    --------
    >>> x = np.arange(12.0).reshape(6, 2) ** 2
    >>> moments = RunningMoments()
    >>> for block in (x[:1], x[1:5], x[5:]):
    ...     moments.update(block)
    >>> bool(np.allclose(moments.mean, x.mean(axis=0)))
    True
    >>> bool(np.allclose(moments.std, x.std(axis=0)))
    True
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

    def merge(self, other: RunningMoments) -> None:
        """Take in what another process has seen."""
        if other._first is None:
            return
        if self._first is None:
            self._first = other._first
        self.varied = self.varied or other.varied or bool((other._first != self._first).any())
        self._merge(other.count, other.mean, other.scatter)

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


class RowSample:
    """A uniform sample of rows that arrive block by block, without replacement.

    Each row gets a random number, and the rows with the smallest numbers stay.

    Parameters
    ----------
    size : int
        Number of rows to keep (all, while there are fewer).
    seed : int, default 0
        Seed of the numbers.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size = size
        self._rng = np.random.default_rng(seed)
        self._keys: list[NDArray[np.float64]] = []
        self._rows: list[FloatArray] = []
        self._waiting = 0
        self._limit = np.inf

    def update(self, rows: FloatArray) -> None:
        """Take in rows, shape (n, dim)."""
        keys = self._rng.random(len(rows))
        kept = keys < self._limit
        self._keys.append(keys[kept])
        self._rows.append(rows[kept])
        self._waiting += int(kept.sum())
        if self._waiting > 2 * self.size:
            self._thin()

    def rows(self) -> FloatArray:
        """Give the sample, shape (at most size, dim)."""
        self._thin()
        return self._rows[0]

    def _thin(self) -> None:
        keys, rows = np.concatenate(self._keys), np.concatenate(self._rows)
        order = np.argsort(keys)[: self.size]
        self._keys, self._rows, self._waiting = [keys[order]], [rows[order]], len(order)
        if len(order) == self.size:
            self._limit = keys[order[-1]]
