"""Sums over rows that arrive block by block: exact moments, and a uniform sample."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowSample", "RunningMoments"]

FloatArray = NDArray[np.floating[Any]]

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
