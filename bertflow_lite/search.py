"""Nearest sentences by cosine, exactly and in little memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    queries : array, shape (m, dim)
        Embeddings.
    candidates : array, shape (n, dim)
        Embeddings; may be a memory map, which is read in parts.
    top : int, default 10
        How many, at most n.

    Returns
    -------
    indices : ndarray of int, shape (m, top)
        Rows of ``candidates``, the best first; equal cosines in the order of the rows.
    cosines : ndarray of float32, shape (m, top)
        Their cosines; a zero vector has cosine 0 with everything.

    Raises
    ------
    ValueError
        If the widths differ, a value is not finite, or ``top`` is below 1.

    Examples
    --------
    >>> nearest([[1.0, 0.0]], [[0.0, 1.0], [2.0, 0.1], [1.0, 1.0]], top=2)[0]
    array([[1, 2]])
    """
    if top < 1:
        raise ValueError(f"top is {top}; ask for at least 1.")
    asked: Any = np.asarray(queries)
    pool: Any = candidates if isinstance(candidates, np.ndarray) else np.asarray(candidates)
    if asked.ndim != 2 or pool.ndim != 2 or asked.shape[1] != pool.shape[1]:
        raise ValueError(
            f"queries and candidates need shapes (m, dim) and (n, dim); they have {asked.shape} "
            f"and {pool.shape}."
        )
    if len(asked) > _QUERIES:
        starts = range(0, len(asked), _QUERIES)
        found = [nearest(asked[i : i + _QUERIES], pool, top=top) for i in starts]
        each_rows, each_best = zip(*found, strict=True)
        return np.concatenate(each_rows), np.concatenate(each_best)
    unit = _unit(asked)
    best_rows = np.empty((len(unit), 0), dtype=np.intp)
    best = np.empty((len(unit), 0), dtype=np.float32)
    for start in range(0, len(pool), _ROWS):
        cosines = unit @ _unit(pool[start : start + _ROWS]).T
        rows = np.broadcast_to(np.arange(start, start + cosines.shape[1]), cosines.shape)
        best_rows = np.concatenate([best_rows, rows], axis=1)
        best = np.concatenate([best, cosines], axis=1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :top]
        best_rows = np.take_along_axis(best_rows, order, axis=1)
        best = np.take_along_axis(best, order, axis=1)
    return best_rows, best


def _unit(x: Any) -> NDArray[np.float32]:
    rows = np.array(x, dtype=np.float32)
    if not np.isfinite(rows).all():
        raise ValueError("an embedding holds NaN or infinity.")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
