"""Choosing a calibrator and its settings by labeled pairs, with scikit-learn's own searches.

There are two ways, and they answer two questions:

* `pair_scorer`: calibrators are fitted on sentences *without* labels, and all are scored on the
  same labeled pairs, as the paper chooses its settings on the development set of STS-B.
* `PairSimilarity`: a calibrator as an estimator over pairs, for cross-validation over them: both
  sentences of a pair are always on the same side of a split.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from bertflow_lite.calibrators.base import FloatArray
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.devices import as_array
from bertflow_lite.measures.scores import Aggregation, score_sts
from bertflow_lite.measures.similarity import cosine, spearman

__all__ = ["PairScorer", "PairSimilarity", "pair_rows", "pair_scorer"]


class PairScorer:
    """What `pair_scorer` gives: a scorer as scikit-learn's searches take it.

    Parameters
    ----------
    pairs : SentencePairs
        The labeled pairs.
    embeddings : array or Tensor, shape (2 * n_pairs, dim)
        One row for each of ``pairs.sentences``, not calibrated.
    aggregation : {"all", "mean", "wmean"}
        Which score (see `score_sts`).
    """

    def __init__(self, pairs: SentencePairs, embeddings: Any, aggregation: Aggregation) -> None:
        self.pairs = pairs
        self.embeddings = embeddings
        self.aggregation = aggregation

    def __repr__(self) -> str:
        return f"pair_scorer({self.pairs!r}, aggregation={self.aggregation!r})"

    def __call__(self, estimator: Any, X: Any = None, y: Any = None) -> float:
        """Score a fitted calibrator on the pairs.

        Parameters
        ----------
        estimator : fitted transformer or Pipeline
            Transforms the embeddings of the pairs.
        X, y : ignored
            What a search hands over.

        Returns
        -------
        float
            Spearman x 100.
        """
        scores = score_sts(self.pairs, np.asarray(estimator.transform(self.embeddings)))
        return float(getattr(scores, self.aggregation))


def pair_scorer(
    pairs: SentencePairs, embeddings: Any, aggregation: Aggregation = "all"
) -> PairScorer:
    """Make a scikit-learn scorer out of labeled pairs.

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
    PairScorer
        For ``scoring=`` of `GridSearchCV` and its like; any fitted transformer or pipeline can be
        scored.  It can be pickled, so that ``n_jobs`` works.

    Raises
    ------
    ValueError
        If the number of rows is not that of the sentences.

    Examples
    --------
    The search fits on sentences without labels; ``cv=[(rows, rows)]`` means: on all of them.

    >>> from sklearn.model_selection import GridSearchCV
    >>> from bertflow_lite.datasets.sts.sts import load_sts
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
    if aggregation not in ("all", "mean", "wmean"):
        raise ValueError(f"aggregation is {aggregation!r}; it must be 'all', 'mean' or 'wmean'.")
    return PairScorer(pairs, embeddings, aggregation)


def pair_rows(pairs: SentencePairs, embeddings: Any) -> tuple[FloatArray, NDArray[np.float64]]:
    """Put the two embeddings of each pair side by side, as `PairSimilarity` takes them.

    Parameters
    ----------
    pairs : SentencePairs
        The pairs.
    embeddings : array or Tensor, shape (2 * n_pairs, dim)
        One row for each of ``pairs.sentences``.

    Returns
    -------
    X : ndarray, shape (n_pairs, 2 * dim)
    y : ndarray, shape (n_pairs,)
        The gold scores.

    Raises
    ------
    ValueError
        If the number of rows is not that of the sentences.

    Examples
    --------
    >>> from bertflow_lite.datasets.sts.sts import load_sts
    >>> pairs = load_sts("mini-sts")
    >>> X, y = pair_rows(pairs, np.ones((2 * len(pairs), 3)))
    >>> X.shape, y.shape
    ((420, 6), (420,))
    """
    rows = np.asarray(as_array(embeddings))
    if len(rows) != 2 * len(pairs):
        raise ValueError(
            f"there are {len(rows)} embeddings, but {len(pairs)} pairs have {2 * len(pairs)} "
            "sentences. Encode pairs.sentences."
        )
    return np.hstack([rows[: len(pairs)], rows[len(pairs) :]]), pairs.gold


class PairSimilarity(BaseEstimator):
    """A calibrator and the cosine, as an estimator over pairs.

    ``fit`` uses no labels: it fits the calibrator to the sentences of the pairs.  ``score`` is
    Spearman's correlation (not times 100) of the cosines with the gold scores, so that
    `GridSearchCV` and `cross_val_score` need no ``scoring``.

    Parameters
    ----------
    calibrator : transformer, optional
        Default: none, that is, the cosine of the embeddings as they are.

    Attributes
    ----------
    calibrator_ : transformer or None
        A fitted clone.

    Examples
    --------
    >>> from sklearn.model_selection import GridSearchCV, KFold
    >>> from bertflow_lite.datasets.sts.sts import load_sts
    >>> from bertflow_lite.calibrators.linear import Standardizer, Whitener
    >>> pairs = load_sts("mini-sts")
    >>> embeddings = np.random.default_rng(0).normal(size=(2 * len(pairs), 8))
    >>> X, y = pair_rows(pairs, embeddings)
    >>> search = GridSearchCV(
    ...     PairSimilarity(),
    ...     {"calibrator": [None, Standardizer(), Whitener()]},
    ...     cv=KFold(5, shuffle=True, random_state=0),
    ... ).fit(X, y)
    >>> search.cv_results_["mean_test_score"].shape
    (3,)
    """

    def __init__(self, calibrator: Any = None) -> None:
        self.calibrator = calibrator

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the calibrator to both sentences of each pair.

        Parameters
        ----------
        X : array or Tensor, shape (n_pairs, 2 * dim)
            The two embeddings of each pair side by side (`pair_rows`).
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the number of columns is odd, a value is not finite, or the calibrator refuses.
        """
        rows = self._check(X, reset=True)
        self.calibrator_ = None
        if self.calibrator is not None:
            self.calibrator_ = clone(self.calibrator).fit(np.vstack(np.hsplit(rows, 2)))
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Cosine of each pair after calibration.

        Parameters
        ----------
        X : array or Tensor, shape (n_pairs, 2 * dim)
            As in `fit`.

        Returns
        -------
        ndarray of float64, shape (n_pairs,)
            From -1 to 1.
        """
        check_is_fitted(self)
        first, second = np.hsplit(self._check(X, reset=False), 2)
        if self.calibrator_ is not None:
            first, second = (np.asarray(self.calibrator_.transform(x)) for x in (first, second))
        return cosine(first, second)

    def score(self, X: Any, y: Any) -> float:
        """Spearman's correlation of the cosines with the gold scores.

        Parameters
        ----------
        X : array or Tensor, shape (n_pairs, 2 * dim)
            As in `fit`.
        y : array, shape (n_pairs,)
            Gold scores.

        Returns
        -------
        float
            From -1 to 1 (not times 100).
        """
        return spearman(self.predict(X), y)

    def _check(self, X: Any, *, reset: bool) -> FloatArray:
        x: FloatArray = validate_data(
            self, as_array(X), reset=reset, dtype=[np.float32, np.float64], ensure_min_features=2
        )
        if x.shape[1] % 2:
            raise ValueError(
                f"X has {x.shape[1]} columns; it needs the two embeddings of a pair side by side, "
                "which is an even number. pair_rows gives it."
            )
        return x
