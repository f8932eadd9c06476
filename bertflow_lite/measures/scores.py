"""Score similarities against gold scores: cosine, Spearman, bootstrap intervals, AUC.

STS is scored by Spearman's rank correlation between the cosine of two embeddings and the gold
score (the paper's section 4.1, Tables 2 and 3). A set with subsets can be summed up in three
ways, and they differ by far more than most methods do, so a score here always says which:

``all``    one correlation over all pairs together (SBERT, SimCSE, MTEB);
``mean``   the plain mean of the subsets' correlations;
``wmean``  their mean weighted by the number of pairs (the paper; BERT-whitening).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.devices import to_numpy
from bertflow_lite.measures.similarity import (
    Floats,
    as_rows,
    as_values,
    cosine,
    rank_correlation,
    spearman,
)

__all__ = [
    "Aggregation",
    "Interval",
    "StsScore",
    "bootstrap_difference",
    "bootstrap_interval",
    "pair_cosines",
    "pair_scorer",
    "score_similarities",
    "score_sts",
]

Aggregation = Literal["all", "mean", "wmean"]
_CELLS = 2_000_000  # values ranked at a time by a bootstrap: some 16 MB an array


@dataclass(frozen=True)
class StsScore:
    """Spearman x 100 on one set, in the three aggregations.

    Parameters
    ----------
    all, mean, wmean : float
        See the module's first lines. They are the same where there is one subset.
    by_subset : dict of str to float
        Spearman x 100 within each subset.
    n_pairs : int
        Number of scored pairs.
    """

    all: float
    mean: float
    wmean: float
    by_subset: dict[str, float]
    n_pairs: int

    def __str__(self) -> str:
        if len(self.by_subset) == 1:
            return f"all = mean = wmean {self.all:.2f} (Spearman x 100; {self.n_pairs} pairs)"
        return (
            f"all {self.all:.2f} · mean {self.mean:.2f} · wmean {self.wmean:.2f} "
            f"(Spearman x 100; {self.n_pairs} pairs, {len(self.by_subset)} subsets)"
        )


@dataclass(frozen=True)
class Interval:
    """A score with its percentile-bootstrap interval; all in Spearman x 100.

    Parameters
    ----------
    low, high : float
        The ends.
    estimate : float
        The score (or difference) on the pairs as they are.
    confidence : float
        Share of resamples inside the interval.
    n_resamples : int
        Resamples drawn.
    aggregation : {"all", "mean", "wmean"}
        Which score.
    """

    low: float
    high: float
    estimate: float
    confidence: float
    n_resamples: int
    aggregation: Aggregation

    def __str__(self) -> str:
        return (
            f"{self.aggregation} {self.estimate:.2f} [{self.low:.2f}, {self.high:.2f}] "
            f"(Spearman x 100; {self.confidence:.0%} bootstrap interval)"
        )


def pair_cosines(pairs: SentencePairs, embeddings: ArrayLike) -> Floats:
    """Cosine of each pair's two embeddings.

    Parameters
    ----------
    pairs : SentencePairs
        The pairs.
    embeddings : array-like or torch tensor, shape (2 * n_pairs, dim)
        One row for each of ``pairs.sentences``, in that order.

    Returns
    -------
    ndarray of float64, shape (n_pairs,)

    Examples
    --------
    >>> from bertflow_lite import load_sts
    >>> two = load_sts("mini-sts").select([0, 1])
    >>> pair_cosines(two, [[1, 0], [1, 1], [1, 0], [-1, 1]]).round(4)
    array([1., 0.])
    """
    rows = as_rows(embeddings, "the embeddings")
    n = len(pairs)
    if len(rows) != 2 * n:
        raise ValueError(
            f"There are {len(rows)} embeddings, but {n} pairs have {2 * n} sentences. Encode "
            "pairs.sentences, which lists all first sentences and then all second ones."
        )
    return cosine(rows[:n], rows[n:])


def score_sts(pairs: SentencePairs, embeddings: ArrayLike) -> StsScore:
    """Score embeddings on a set: Spearman of their cosines with the gold scores.

    Parameters
    ----------
    pairs : SentencePairs
        The pairs.
    embeddings : array-like or torch tensor, shape (2 * n_pairs, dim)
        One row for each of ``pairs.sentences``, in that order.

    Returns
    -------
    StsScore

    Examples
    --------
    >>> from bertflow_lite import load_sts
    >>> pairs = load_sts("mini-sts")
    >>> angle = (1 - pairs.gold / 5) * np.pi / 2  # the better the gold, the smaller the angle
    >>> first = np.tile([1.0, 0.0], (len(pairs), 1))
    >>> second = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    >>> print(score_sts(pairs, np.vstack([first, second])))
    all = mean = wmean 100.00 (Spearman x 100; 420 pairs)
    """
    return score_similarities(pairs, pair_cosines(pairs, embeddings))


def score_similarities(pairs: SentencePairs, similarities: ArrayLike) -> StsScore:
    """Score any similarity (not only a cosine) on a set.

    Parameters
    ----------
    pairs : SentencePairs
        The pairs.
    similarities : array-like, shape (n_pairs,)
        Higher means more alike. Pass a distance with its sign turned.

    Returns
    -------
    StsScore

    Examples
    --------
    >>> from bertflow_lite import load_sts
    >>> pairs = load_sts("mini-sts")
    >>> longer = [-abs(len(a) - len(b)) for a, b in zip(pairs.sentences1, pairs.sentences2)]
    >>> round(score_similarities(pairs, longer).all, 1)  # how much a difference of length tells
    -1.8
    """
    values = _check_similarities(pairs, similarities)
    by_subset, sizes = {}, []
    for subset, rows in _subsets(pairs):
        try:
            by_subset[subset] = 100 * spearman(values[rows], pairs.gold[rows])
        except ValueError as error:
            raise ValueError(f"{pairs.name}, subset {subset}: {error}") from error
        sizes.append(len(rows))
    scores = list(by_subset.values())
    return StsScore(
        all=100 * spearman(values, pairs.gold),
        mean=float(np.mean(scores)),
        wmean=float(np.average(scores, weights=sizes)),
        by_subset=by_subset,
        n_pairs=len(pairs),
    )


def bootstrap_interval(
    pairs: SentencePairs,
    similarities_or_embeddings: ArrayLike,
    *,
    aggregation: Aggregation = "all",
    n_resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = 0,
) -> Interval:
    """Say how far a score would move had other pairs of the same kind been rated.

    Pairs are drawn anew with replacement, as many as there are (within each subset for ``mean``
    and ``wmean``), and ranked anew each time. A resample in which all values happen to be alike,
    as in a tiny set, has no correlation and is left out.

    Parameters
    ----------
    pairs : SentencePairs
        The pairs.
    similarities_or_embeddings : array-like
        Similarities, shape (n_pairs,), or embeddings, shape (2 * n_pairs, dim).
    aggregation : {"all", "mean", "wmean"}, default "all"
        The score to look at.
    n_resamples : int, default 1000
        How many resamples to draw.
    confidence : float, default 0.95
        Between 0 and 1.
    random_state : int, numpy Generator or None, default 0
        Seed of the draws.

    Returns
    -------
    Interval

    Examples
    --------
    >>> from bertflow_lite import load_sts
    >>> pairs = load_sts("mini-sts")
    >>> found = bootstrap_interval(pairs, pairs.gold + np.arange(len(pairs)) % 7, n_resamples=200)
    >>> found.low < found.estimate < found.high
    True
    """
    return _bootstrap(
        pairs, [similarities_or_embeddings], aggregation, n_resamples, confidence, random_state
    )


def bootstrap_difference(
    pairs: SentencePairs,
    a: ArrayLike,
    b: ArrayLike,
    *,
    aggregation: Aggregation = "all",
    n_resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = 0,
) -> Interval:
    """Interval of the score of `a` minus that of `b`, both on the same resampled pairs.

    Two methods err on the same hard pairs, so this is much narrower than their own intervals
    suggest. An interval without 0 says that they differ on pairs like these.

    Parameters
    ----------
    pairs : SentencePairs
        The pairs.
    a, b : array-like
        Each similarities, shape (n_pairs,), or embeddings, shape (2 * n_pairs, dim).
    aggregation, n_resamples, confidence, random_state
        As in `bootstrap_interval`.

    Returns
    -------
    Interval
        Of the difference.

    Examples
    --------
    >>> from bertflow_lite import load_sts
    >>> pairs = load_sts("mini-sts")
    >>> noisy = pairs.gold + np.arange(len(pairs)) % 7
    >>> bootstrap_difference(pairs, pairs.gold, noisy, n_resamples=200).low > 0
    True
    """
    return _bootstrap(pairs, [a, b], aggregation, n_resamples, confidence, random_state)


def pair_scorer(
    pairs: SentencePairs, embeddings: Any, aggregation: Aggregation = "all"
) -> Callable[..., float]:
    """Make a scikit-learn scorer out of labeled pairs, to choose a calibrator and its settings.

    Calibrators are fitted on sentences *without* labels, and all are scored on the same labeled
    pairs, as the paper chooses its settings on the development set of STS-B.

    Parameters
    ----------
    pairs : SentencePairs
        The pairs, such as the development set of STS-B.
    embeddings : array or Tensor, shape (2 * n_pairs, dim)
        One row for each of ``pairs.sentences``, not calibrated.
    aggregation : {"all", "mean", "wmean"}, default "all"
        Which score (see `score_sts`).

    Returns
    -------
    callable
        For ``scoring=`` of `GridSearchCV` and its like; any fitted transformer or pipeline can be
        scored.  It can be pickled, so that ``n_jobs`` works.

    Examples
    --------
    The search fits on sentences without labels; ``cv=[(rows, rows)]`` means: on all of them.

    >>> from sklearn.model_selection import GridSearchCV
    >>> from bertflow_lite.datasets.sts import load_sts
    >>> from bertflow_lite.calibrators.linear import Whitener
    >>> pairs = load_sts("mini-sts")
    >>> embeddings = np.random.default_rng(0).normal(size=(2 * len(pairs), 8))
    >>> rows = np.arange(len(embeddings))
    >>> search = GridSearchCV(
    ...     Whitener(),
    ...     {"n_components": [2, 4, 8]},
    ...     scoring=pair_scorer(pairs, embeddings),
    ...     cv=[(rows, rows)],
    ... ).fit(embeddings)
    >>> len(search.cv_results_["mean_test_score"])
    3
    """
    if len(embeddings) != 2 * len(pairs):
        raise ValueError(
            f"there are {len(embeddings)} embeddings, but {len(pairs)} pairs have "
            f"{2 * len(pairs)} sentences. Encode pairs.sentences."
        )
    _check_aggregation(aggregation)
    return partial(_score_estimator, pairs=pairs, embeddings=embeddings, aggregation=aggregation)


def _score_estimator(
    estimator: Any,
    X: Any = None,
    y: Any = None,
    *,
    pairs: SentencePairs,
    embeddings: Any,
    aggregation: Aggregation,
) -> float:
    """Score a fitted transformer on the pairs; what a search passes beside it is of no use."""
    scores = score_sts(pairs, np.asarray(estimator.transform(embeddings)))
    return float(getattr(scores, aggregation))


def _check_aggregation(aggregation: str) -> None:
    if aggregation not in ("all", "mean", "wmean"):
        raise ValueError(f"aggregation is {aggregation!r}; it must be 'all', 'mean' or 'wmean'.")


def _bootstrap(
    pairs: SentencePairs,
    systems: Sequence[ArrayLike],
    aggregation: Aggregation,
    n_resamples: int,
    confidence: float,
    random_state: int | np.random.Generator | None,
) -> Interval:
    _check_aggregation(aggregation)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must lie between 0 and 1, as in 0.95.")
    if n_resamples < 1:
        raise ValueError(f"n_resamples is {n_resamples}; draw at least one (1000 is usual).")
    rng = np.random.default_rng(random_state)
    values = [_as_similarities(pairs, one) for one in systems]
    estimates = [getattr(score_similarities(pairs, one), aggregation) for one in values]
    groups, weights = group_pairs(pairs, aggregation)
    drawn = np.empty((len(values), len(groups), n_resamples))
    for g, rows in enumerate(groups):
        for part, chosen in resample(rows, n_resamples, rng):
            gold = pairs.gold[chosen]
            for s, one in enumerate(values):
                drawn[s, g, part] = 100 * rank_correlation(one[chosen], gold)
    scores = np.average(drawn, axis=1, weights=weights)
    # The second system, where there is one, is taken away from the first.
    wanted = scores[0] - scores[1] if len(scores) > 1 else scores[0]
    estimate = estimates[0] - estimates[1] if len(scores) > 1 else estimates[0]
    if not np.isfinite(wanted).any():
        raise ValueError(f"No resample of {len(pairs)} pairs has a defined correlation.")
    low, high = interval_ends(wanted, ((1 - confidence) / 2, (1 + confidence) / 2))
    return Interval(low, high, float(estimate), confidence, n_resamples, aggregation)


def resample(
    rows: NDArray[np.intp], n_resamples: int, rng: np.random.Generator
) -> Iterator[tuple[slice, NDArray[np.intp]]]:
    """Draw rows anew with replacement, as many as there are, some resamples at a time.

    Every bootstrap here draws by it, so that memory has a bound and a seed means the same draws.
    Gives which of the resamples these are, and their rows, shape (some, n).
    """
    step = max(1, _CELLS // len(rows))
    for start in range(0, n_resamples, step):
        stop = min(start + step, n_resamples)
        yield slice(start, stop), rows[rng.integers(len(rows), size=(stop - start, len(rows)))]


def interval_ends(
    drawn: Floats, levels: tuple[float, float] = (0.025, 0.975)
) -> tuple[float, float]:
    """Give the quantiles of resampled scores at two levels: the ends of a percentile interval.

    A score that is not finite is left out: in a resample of a tiny set all values may happen to be
    alike.
    """
    low, high = np.quantile(drawn[np.isfinite(drawn)], levels)
    return float(low), float(high)


def group_pairs(
    pairs: SentencePairs, aggregation: Aggregation
) -> tuple[list[NDArray[np.intp]], list[float]]:
    """Give the pairs that are ranked together, and the weight of each group's score."""
    groups = [np.arange(len(pairs))]
    if aggregation != "all":
        groups = [rows for _, rows in _subsets(pairs)]
    return groups, [1.0 if aggregation == "mean" else float(len(rows)) for rows in groups]


def _subsets(pairs: SentencePairs) -> list[tuple[str, NDArray[np.intp]]]:
    """List the subsets, in the order of their first pair, with their pairs' positions."""
    names = dict.fromkeys(pairs.subsets.tolist())
    return [(name, np.flatnonzero(pairs.subsets == name)) for name in names]


def _as_similarities(pairs: SentencePairs, values: ArrayLike) -> Floats:
    if not hasattr(values, "ndim"):  # a list; a tensor and an array say their shape themselves
        values = to_numpy(values, "the values")
    if getattr(values, "ndim", None) == 2:
        return pair_cosines(pairs, values)
    return _check_similarities(pairs, values)


def _check_similarities(pairs: SentencePairs, values: ArrayLike) -> Floats:
    similarities = as_values(values, "the similarities")
    if len(similarities) != len(pairs):
        raise ValueError(f"There are {len(similarities)} similarities, but {len(pairs)} pairs.")
    return similarities
