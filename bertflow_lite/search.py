"""Nearest sentences by cosine, exactly and in little memory."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertflow_lite.similarity import to_numpy

__all__ = ["nearest"]

# Candidates and queries that are compared at once: some 50 MB.
_ROWS = 16_384
_QUERIES = 256


def nearest(
    queries: ArrayLike, candidates: ArrayLike, *, top: int = 10
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Find the candidates with the largest cosine to each query.

    Parameters
    ----------
    queries : array-like or torch tensor, shape (m, dim)
        Embeddings.
    candidates : array-like or torch tensor, shape (n, dim)
        Embeddings; may be a memory map, which is read in parts.
    top : int, default 10
        How many, at most n.

    Returns
    -------
    indices : ndarray of int, shape (m, top)
        Rows of ``candidates``, the best first; equal cosines in the order of the rows.
    cosines : ndarray of float32, shape (m, top)
        Their cosines, from -1 to 1; a zero vector has cosine 0 with everything.

    Raises
    ------
    ValueError
        If the widths differ, a value is not finite, the input is sparse or no numbers, or ``top``
        is no whole number from 1 up.

    Examples
    --------
    >>> nearest([[1.0, 0.0]], [[0.0, 1.0], [2.0, 0.1], [1.0, 1.0]], top=2)[0]
    array([[1, 2]])
    """
    try:
        top = operator.index(top)
    except TypeError:
        raise ValueError(f"top is {top!r}; give a whole number, such as 10.") from None
    if top < 1:
        raise ValueError(f"top is {top}; ask for at least 1.")
    asked, pool = to_numpy(queries, "queries"), to_numpy(candidates, "candidates")
    if asked.ndim != 2 or pool.ndim != 2 or asked.shape[1] != pool.shape[1]:
        raise ValueError(
            f"queries and candidates need shapes (m, dim) and (n, dim); they have {asked.shape} "
            f"and {pool.shape}."
        )
    parts = [
        _search(_unit(asked[start : start + _QUERIES], "queries", start), pool, top)
        for start in range(0, max(len(asked), 1), _QUERIES)  # no query: one part without rows
    ]
    each_rows, each_best = zip(*parts, strict=True)
    return np.concatenate(each_rows), np.concatenate(each_best)


def _search(
    unit: NDArray[np.float32], pool: NDArray[Any], top: int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Search for some queries, given as unit vectors."""
    best_rows = np.empty((len(unit), 0), dtype=np.intp)
    best = np.empty((len(unit), 0), dtype=np.float32)
    for start in range(0, len(pool), _ROWS):
        part = _unit(pool[start : start + _ROWS], "candidates", start)
        cosines = np.clip(unit @ part.T, -1.0, 1.0)  # rounding can lead just past 1
        rows = np.broadcast_to(np.arange(start, start + cosines.shape[1]), cosines.shape)
        best_rows = np.concatenate([best_rows, rows], axis=1)
        best = np.concatenate([best, cosines], axis=1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :top]
        best_rows = np.take_along_axis(best_rows, order, axis=1)
        best = np.take_along_axis(best, order, axis=1)
    return best_rows, best


def _unit(x: NDArray[Any], what: str, first: int) -> NDArray[np.float32]:
    """Scale rows to length 1; `first` is the number of the first of them."""
    # At least float32, at most what they come in: 1e-50 is a direction like any other.
    rows = x.astype(np.promote_types(x.dtype, np.float32), copy=False)
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise ValueError(f"row {first + bad[0]} of {what} holds NaN or infinity.")
    # Dividing by the largest entry first keeps the squares of huge or tiny entries in range.
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    scaled = np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0)
    unit = scaled.astype(np.float32)
    norms = np.linalg.norm(unit, axis=1, keepdims=True)
    return np.divide(unit, norms, out=unit, where=norms > 0)
