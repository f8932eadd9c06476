"""A film of a space that changes: a flat picture of each state, turned so that it does not jump.

Principal directions have no sign and, where two of them are about equally strong, no order; the
picture of one state can be the mirror image of the next though little has changed.  So each frame
is turned and mirrored, never stretched, to lie as near as it can to the frame after it (orthogonal
Procrustes).  The last frame stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import orthogonal_procrustes

from bertflow_lite.linear import principal_directions

__all__ = ["Frame", "align_frames", "make_frame", "spread_over"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Frame:
    """A flat picture of a cloud.

    Attributes
    ----------
    points : ndarray, shape (n, 2)
        Coordinates along the two strongest principal directions, the mean at the origin.
    share : ndarray, shape (2,)
        Share of the cloud's variance along each of the two.
    """

    points: Floats
    share: Floats


def make_frame(x: ArrayLike, shown: Sequence[int] | NDArray[np.intp] | None = None) -> Frame:
    """Project a cloud onto its two strongest principal directions.

    Parameters
    ----------
    x : array-like, shape (n >= 2, dim >= 2)
        All points: directions and mean are theirs.
    shown : sequence of int, optional
        Rows whose coordinates are wanted; default: all.

    Returns
    -------
    Frame

    Raises
    ------
    ValueError
        If all points are equal, or there are too few points or dimensions.
    """
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or min(rows.shape) < 2:
        raise ValueError(f"the points have shape {rows.shape}; a picture needs two of each.")
    mean = rows.mean(axis=0)
    variances, directions = principal_directions(rows, mean)
    if not variances[0] > 0:
        raise ValueError("all points are equal: there is nothing to see.")
    chosen = rows if shown is None else rows[np.asarray(shown)]
    share = (variances[:2] / variances.sum()).clip(0)
    return Frame((chosen - mean) @ directions[:2].T, share)


def align_frames(frames: Sequence[ArrayLike]) -> list[Floats]:
    """Turn and mirror each frame towards the next, from the last one backward.

    Parameters
    ----------
    frames : sequence of array-like, each of shape (n, 2)
        Row i of each is the same point.

    Returns
    -------
    list of ndarray, shape (n, 2)
        Distances within a frame, and from the origin, are as before; so is the last frame.

    Examples
    --------
    >>> square = np.array([[1.0, 0.0], [0.0, 2.0]])
    >>> turned = square @ np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> bool(np.allclose(align_frames([turned, square])[0], square))
    True
    """
    out = [np.asarray(frame, dtype=np.float64) for frame in frames]
    for i in range(len(out) - 2, -1, -1):
        turn, _ = orthogonal_procrustes(out[i], out[i + 1])
        out[i] = out[i] @ turn
    return out


def spread_over(n: int, wanted: int) -> NDArray[np.intp]:
    """Choose positions out of ``n``, dense at first and then ever sparser, as on a log scale.

    Parameters
    ----------
    n, wanted : int
        How many there are, and how many to choose at most.

    Returns
    -------
    ndarray of int, shape (min(n, wanted),)
        Rising, with the first and the last position.

    Examples
    --------
    >>> spread_over(100, 8)
    array([ 0,  1,  3,  6, 13, 26, 51, 99])
    >>> spread_over(3, 5)
    array([0, 1, 2])
    """
    if n <= wanted:
        return np.arange(n)
    tries = wanted
    while True:  # near the start several fall on one position: ask for more until enough differ
        found = np.unique(np.geomspace(1, n, tries).round().astype(np.intp)) - 1
        if len(found) >= wanted:
            keep = np.linspace(0, len(found) - 1, wanted).round().astype(np.intp)
            return np.asarray(found[keep])
        tries += max(1, wanted // 20)
