"""The small measures that every score is made of: cosine, Spearman's correlation, neighbors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from bertflow_lite.calibrators.base import check_whole
from bertflow_lite.devices import to_numpy

__all__ = ["cosine", "nearest", "spearman"]

Floats = NDArray[np.float64]
ROUNDING = 16 * float(np.finfo(np.float64).eps)


def cosine(a: ArrayLike, b: ArrayLike) -> Floats:
    """Cosine of the angle between each row of `a` and the same row of `b`.

    Parameters
    ----------
    a, b : array-like or torch tensor, shape (n, dim)
        Embeddings of any floating type; the work is done in float64.

    Returns
    -------
    ndarray of float64, shape (n,)
        Values from -1 to 1. A zero vector has no direction; its cosine is 0 by convention.

    Examples
    --------
    >>> cosine([[1.0, 0.0], [3.0, 4.0]], [[0.0, 2.0], [6.0, 8.0]]).round(6)
    array([0., 1.])
    """
    first, second = as_rows(a, "the first array"), as_rows(b, "the second array")
    if first.shape != second.shape:
        raise ValueError(
            f"cosine compares row by row, but the arrays have shapes {first.shape} and "
            f"{second.shape}."
        )
    unit_first, unit_second = unit_rows(first), unit_rows(second)
    cosines: Floats = np.einsum("ij,ij->i", unit_first, unit_second)
    return np.clip(cosines, -1.0, 1.0)  # rounding can lead just past 1


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation: Pearson's correlation of the ranks, ties sharing a mean rank.

    Parameters
    ----------
    x, y : array-like, shape (n,)
        Values to compare; only their order counts.

    Returns
    -------
    float
        From -1 to 1 (not times 100).

    Raises
    ------
    ValueError
        If the lengths differ, a value is not finite, or one side is constant, which has no order.

    Examples
    --------
    >>> round(spearman([0.1, 0.2, 0.9], [1, 4, 9]), 6)  # the same order
    1.0
    """
    first, second = as_values(x, "x"), as_values(y, "y")
    if len(first) != len(second):
        raise ValueError(f"x has {len(first)} values, but y has {len(second)}.")
    for values, side in ((first, "x"), (second, "y")):
        if len(values) == 1:
            raise ValueError(
                "Spearman's correlation is undefined: there is one value only. Give at least two "
                "pairs, and many more for a score that means something."
            )
        # Cosines of equal embeddings differ from 1 by rounding, and rounding has no order.
        if len(values) == 0 or np.ptp(values) <= ROUNDING * np.abs(values).max():
            raise ValueError(
                f"Spearman's correlation is undefined: all {len(values)} values of {side} are the "
                "same, so they have no order. (Embeddings that are all alike give this.)"
            )
    return float(rank_correlation(first, second))


def rank_correlation(x: Floats, y: Floats) -> Floats:
    """Spearman along the last axis, for any number of rows; NaN where one side is constant."""
    ranks_x, ranks_y = rankdata(x, axis=-1), rankdata(y, axis=-1)
    middle = (x.shape[-1] + 1) / 2  # the mean of the ranks 1..n, ties or not
    ranks_x, ranks_y = ranks_x - middle, ranks_y - middle
    norms = np.sqrt((ranks_x**2).sum(axis=-1) * (ranks_y**2).sum(axis=-1))
    products = (ranks_x * ranks_y).sum(axis=-1)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.clip(products / norms, -1.0, 1.0))


def unit_rows(rows: Floats) -> Floats:
    """Scale rows to length 1, shape (n, dim); a row of zeros stays as it is."""
    # Dividing by the largest entry first keeps the squares of huge or tiny entries in range.
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    scaled: Floats = np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0)
    norms: Floats = np.linalg.norm(scaled, axis=1, keepdims=True)
    np.divide(scaled, norms, out=scaled, where=norms > 0)
    return scaled


def as_rows(values: ArrayLike, what: str) -> Floats:
    """Return embeddings, shape (n, dim), in float64; ValueError if a value is not finite."""
    rows = to_numpy(values, what).astype(np.float64)
    if rows.ndim != 2:
        raise ValueError(f"Embeddings are a 2-d array, a row each; {what} has shape {rows.shape}.")
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise ValueError(
            f"Row {bad[0]} of {what} holds NaN or infinity ({bad.size} such rows of {len(rows)}). "
            "Look at how it was encoded or calibrated."
        )
    return rows


def as_values(values: ArrayLike, what: str) -> Floats:
    """Return values, shape (n,), in float64; ValueError if one is not finite."""
    array = to_numpy(values, what).astype(np.float64)
    if array.ndim != 1:
        raise ValueError(f"{what} must be a 1-d array, but has shape {array.shape}.")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise ValueError(f"Value {bad[0]} of {what} is {array[bad[0]]}; all must be finite.")
    return array


def nearest(
    queries: ArrayLike, candidates: ArrayLike, *, top: int = 10
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Find the candidates with the largest cosine to each query.

    Parameters
    ----------
    queries : array-like or torch tensor, shape (m, dim)
        Embeddings.
    candidates : array-like or torch tensor, shape (n, dim)
        Embeddings; may be a memory map.
    top : int, default 10
        How many, at most n.

    Returns
    -------
    indices : ndarray of int, shape (m, top)
        Rows of ``candidates``, the best first.
    cosines : ndarray of float32, shape (m, top)
        Their cosines, from -1 to 1; a zero vector has cosine 0 with everything.

    Examples
    --------
    >>> nearest([[1.0, 0.0]], [[0.0, 1.0], [2.0, 0.1], [1.0, 1.0]], top=2)[0]
    array([[1, 2]])
    """
    from sklearn.neighbors import NearestNeighbors

    top = check_whole("top", top, 1)
    asked, pool = to_numpy(queries, "queries"), to_numpy(candidates, "candidates")
    if asked.ndim != 2 or pool.ndim != 2 or asked.shape[1] != pool.shape[1]:
        raise ValueError(
            f"queries and candidates need shapes (m, dim) and (n, dim); they have {asked.shape} "
            f"and {pool.shape}."
        )
    for name, rows in (("queries", asked), ("candidates", pool)):
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if bad.size:
            raise ValueError(f"row {bad[0]} of {name} holds NaN or infinity.")
    top = min(top, len(pool))
    if not top or not len(asked):
        return np.empty((len(asked), top), np.intp), np.empty((len(asked), top), np.float32)
    search = NearestNeighbors(n_neighbors=top, metric="cosine", algorithm="brute")
    distances, found = search.fit(_directions(pool)).kneighbors(_directions(asked))
    return found.astype(np.intp), np.clip(1 - distances, -1.0, 1.0).astype(np.float32)


def _directions(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Scale rows to length 1; the search works in float32, where huge entries would overflow."""
    # At least float32, at most what they come in: 1e-50 is a direction like any other.
    return unit_rows(rows.astype(np.promote_types(rows.dtype, np.float32))).astype(np.float32)
