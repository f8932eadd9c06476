"""Choosing a calibrator and its settings by labeled pairs, with scikit-learn's own searches.

Calibrators are fitted on sentences *without* labels, and all are scored on the same labeled pairs,
as the paper chooses its settings on the development set of STS-B.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.measures.scores import Aggregation, score_sts

__all__ = ["PairScorer", "pair_scorer"]


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
    if aggregation not in ("all", "mean", "wmean"):
        raise ValueError(f"aggregation is {aggregation!r}; it must be 'all', 'mean' or 'wmean'.")
    return PairScorer(pairs, embeddings, aggregation)
