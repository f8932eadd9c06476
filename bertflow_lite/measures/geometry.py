"""How a cloud of embeddings lies in its space: mean cosine, spectrum, isotropy.

Every function takes an array of shape (n, dim), one embedding a row, works in float64, and refuses
values that are not finite (ValueError).

*Isotropic* means that no direction is special; *anisotropic* clouds sit in a narrow cone (Section
2.2).  The measures look at different sides of this, and they can disagree: the mean cosine sees
the cone, that is, how far the cloud's center lies from the origin; IsoScore sees only the shape
around that center.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp
from scipy.stats import norm

from bertflow_lite.calibrators.linear import principal_directions
from bertflow_lite.measures.similarity import Floats, as_rows, as_values, unit_rows

__all__ = [
    "MeanCosine",
    "effective_rank",
    "iso_score",
    "mean_cosine",
    "partition_score",
    "sampled_mean_cosine",
    "singular_values",
]


@dataclass(frozen=True)
class MeanCosine:
    """Mean cosine over pairs of different rows, with a 95 % interval.

    Attributes
    ----------
    estimate : float
        From -1 to 1.
    low, high : float
        Ends of the interval; the function that gave it says what it speaks of.
    n_pairs : int
        Pairs that the estimate averages.
    """

    estimate: float
    low: float
    high: float
    n_pairs: int

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}] ({self.n_pairs:,} pairs)"


def mean_cosine(x: ArrayLike) -> MeanCosine:
    """Mean cosine over all n (n - 1) / 2 pairs of different rows, exactly, without forming them.

    With unit rows u_i and their sum s, the sum over ordered pairs i != j of u_i . u_j is
    |s|^2 - n.  No row is paired with itself; equal rows do form a pair, so give each sentence once.

    The interval says how far the mean would move had other sentences of the same kind been taken:
    estimate +- z standard errors, the standard error by the jackknife (leave one row out).  Pairs
    that share a row are not independent, so an interval over pairs would be far too narrow.

    Parameters
    ----------
    x : array-like or torch tensor, shape (n >= 3, dim)
        Embeddings. A zero row has cosine 0 with everything.

    Returns
    -------
    MeanCosine

    Examples
    --------
    >>> mean_cosine([[1.0, 0.0], [0.0, 2.0], [0.0, 3.0]]).estimate       # pairs: 0, 0, 1
    0.3333333333333333
    """
    unit = unit_rows(_rows(x, least=3))
    n, total = len(unit), unit.sum(axis=0)
    squares = np.einsum("ij,ij->i", unit, unit)  # 1, or 0 for a zero row
    ordered = total @ total - squares.sum()
    # Without row i: the sum over ordered pairs loses 2 (u_i . s - u_i . u_i).
    without = (ordered - 2 * (unit @ total - squares)) / ((n - 1) * (n - 2))
    error = np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
    return _with_interval(ordered / (n * (n - 1)), error, n * (n - 1) // 2)


def sampled_mean_cosine(
    x: ArrayLike, *, n_pairs: int = 10_000, random_state: int = 0
) -> MeanCosine:
    """Mean cosine of random pairs, the usual way to measure anisotropy (Ethayarajh 2019).

    Each pair is a row drawn at random and another, different one drawn at random; pairs are drawn
    independently, so one may come twice.  The interval (estimate +- z s / sqrt(n_pairs)) covers
    the mean over all pairs of *these* rows, which `mean_cosine` gives exactly.

    Parameters
    ----------
    x : array-like or torch tensor, shape (n >= 2, dim)
        Embeddings.
    n_pairs : int, default 10,000
        Pairs to draw, at least 2.
    random_state : int, default 0
        Seed of the draws.

    Returns
    -------
    MeanCosine
    """
    unit = unit_rows(_rows(x, least=2))
    if n_pairs < 2:
        raise ValueError(f"n_pairs is {n_pairs}; draw at least 2 (10,000 is usual).")
    rng = np.random.default_rng(random_state)
    first = rng.integers(len(unit), size=n_pairs)
    second = (first + rng.integers(1, len(unit), size=n_pairs)) % len(unit)
    cosines = np.einsum("ij,ij->i", unit[first], unit[second])
    error = cosines.std(ddof=1) / np.sqrt(n_pairs)
    return _with_interval(cosines.mean(), error, n_pairs)


def singular_values(x: ArrayLike) -> Floats:
    """Singular values of the matrix of centered embeddings, shape (dim,), largest first.

    Parameters
    ----------
    x : array-like or torch tensor, shape (n, dim)
        Embeddings.

    Returns
    -------
    ndarray of float64, shape (dim,)

    Examples
    --------
    >>> singular_values([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).round(4)
    array([4.2426, 1.4142])
    """
    variances, _ = _directions(_rows(x, least=1), center=True)
    return np.asarray(np.sqrt(variances * len(np.asarray(x))))


def effective_rank(singular: ArrayLike) -> float:
    """Effective rank (Roy and Vetterli 2007): exp of the entropy of the normalized spectrum.

    The singular values, divided by their sum, are read as a distribution p; the effective rank is
    exp(-sum p log p): 1 when one direction holds everything, dim when all are equally strong.

    Parameters
    ----------
    singular : array-like, shape (dim,)
        From `singular_values`.

    Returns
    -------
    float
        From 1 to dim.

    Examples
    --------
    >>> round(effective_rank([2.0, 2.0, 2.0]), 6), round(effective_rank([5.0, 0.0, 0.0]), 6)
    (3.0, 1.0)
    """
    values = as_values(singular, "singular")
    if not values.size or values.min() < 0 or values.max() == 0:
        raise ValueError("Singular values are at least 0, and one must be above 0.")
    p = values[values > 0] / values.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def iso_score(x: ArrayLike) -> float:
    """IsoScore (Rudman et al. 2022): how evenly variance is spread over the directions.

    1: all dim principal directions have the same variance.  0: one has it all.  When k of them
    share it evenly, the score is (k - 1) / (dim - 1), the share of dimensions in use.

    The paper's steps (principal variances, scaled to norm sqrt(dim); distance to the all-ones
    vector; two rescalings) come to (r - 1) / (dim - 1), where r = (sum v)^2 / sum v^2 is the
    participation ratio of the variances v; the tests check this against the steps.  The mean plays
    no part: moving the whole cloud away from the origin leaves the score as it is.

    Parameters
    ----------
    x : array-like or torch tensor, shape (n >= 2, dim >= 2)
        Embeddings.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> round(iso_score([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), 6)
    1.0
    >>> round(iso_score([[1.0, 0.0], [2.0, 0.0], [5.0, 0.0]]), 6)
    0.0
    """
    rows = _rows(x, least=2)
    if rows.shape[1] < 2:
        raise ValueError("IsoScore compares directions; one column has only one.")
    if (rows == rows[0]).all():
        raise ValueError(f"All {len(rows)} rows are equal: there is no variance to compare.")
    variances, _ = _directions(rows, center=True)
    v = variances / variances.max()
    return float((v.sum() ** 2 / (v**2).sum() - 1) / (rows.shape[1] - 1))


def partition_score(x: ArrayLike) -> float:
    """Isotropy I(W) = min Z(c) / max Z(c), Z(c) = sum_i exp(c . x_i) (Mu and Viswanath 2018).

    c runs over the unit eigenvectors of X^T X.  An eigenvector's sign is arbitrary, and the score
    would hang on it, so both signs are taken.  1: isotropic.  Unlike `iso_score`, this sees the
    mean; and it depends on the scale of the embeddings: tripling all of them makes the score
    smaller.  To compare spaces of different scale, give rows of unit length: the score then lies
    between exp(-2) and 1.

    Parameters
    ----------
    x : array-like or torch tensor, shape (n, dim)
        Embeddings.

    Returns
    -------
    float
        Above 0, at most 1.

    Examples
    --------
    >>> round(partition_score([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), 6)
    1.0
    """
    rows = _rows(x, least=1)
    _, directions = _directions(rows, center=False)
    log_z = []
    for start in range(0, len(directions), 64):  # all directions at once would fill the memory
        along = rows @ directions[start : start + 64].T
        log_z += [logsumexp(along, axis=0), logsumexp(-along, axis=0)]
    values = np.concatenate(log_z)  # logarithms: Z itself can overflow
    return float(np.exp(values.min() - values.max()))


def _rows(x: ArrayLike, *, least: int) -> Floats:
    rows = as_rows(x, "x")
    if len(rows) < least or rows.shape[1] < 1:
        raise ValueError(f"x has shape {rows.shape}; at least {least} rows and a column needed.")
    return rows


def _directions(rows: Floats, center: bool) -> tuple[Floats, Floats]:
    """Variances, shape (dim,), none negative, and unit directions (dim, dim), strongest first."""
    mean = rows.mean(axis=0) if center else np.zeros(rows.shape[1])
    variances, directions = principal_directions(rows, mean)
    return variances.clip(0.0), directions  # rounding can lead just below 0


def _with_interval(mean: float, error: float, n_pairs: int) -> MeanCosine:
    m, half = float(mean), float(norm.ppf(0.975) * error)
    return MeanCosine(m, m - half, m + half, n_pairs)
