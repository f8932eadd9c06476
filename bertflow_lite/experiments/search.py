"""How well a search finds: recall, MRR and nDCG; hubs; BM25 beside it; when to answer nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata, skew

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.measures.scores import interval_ends, resample
from bertflow_lite.measures.similarity import Floats, unit_rows

TOP = 10
MEASURES = ("recall@1", "recall@10", "mrr@10", "ndcg@10")
_DISCOUNTS = 1 / np.log2(np.arange(2, TOP + 2))
# What the first n places earn in all, n from 0: recall@1, recall@10, DCG@10.
_EARNED = np.zeros((3, TOP + 1))
_EARNED[:, 1:] = np.cumsum([np.arange(TOP) < 1, np.ones(TOP), _DISCOUNTS], axis=1)


@dataclass(frozen=True)
class Search:
    """Questions, sentences, and the rows of the sentences that answer each question."""

    questions: list[str]
    sentences: list[str]
    answers: list[list[int]]

    @property
    def texts(self) -> list[str]:
        """Sentences, then questions: what is to be encoded."""
        return [*self.sentences, *self.questions]

    def scores(self, vectors: NDArray[Any]) -> Floats:
        """Give `search_scores` of the cosines of `texts`; no question finds its own text."""
        n = len(self.sentences)
        table = cosines(vectors[n:], vectors[:n])
        row_of = {text: row for row, text in enumerate(self.sentences)}
        for question, (asked, good) in enumerate(zip(self.questions, self.answers, strict=True)):
            if (own := row_of.get(asked)) is not None and own not in good:
                table[question, own] = -np.inf
        return search_scores(table, self.answers)


def search_of(pairs: SentencePairs, least: float = 1.0, more: Sequence[str] = ()) -> Search:
    """Read rated pairs as a search: first sentences ask, second ones that are rated high answer.

    Pairs rated ``least`` or more are answers.  All different second sentences are searched, and
    ``more``.  A question without an answer among them is left out, as it could find none.
    """
    row_of = {text: row for row, text in enumerate(dict.fromkeys([*pairs.sentences2, *more]))}
    answers: dict[str, list[int]] = {}
    for one, two, gold in zip(pairs.sentences1, pairs.sentences2, pairs.gold, strict=True):
        if gold >= least and row_of[two] not in answers.setdefault(one, []):
            answers[one].append(row_of[two])
    if not answers:
        raise ValueError(
            f"no pair is rated {least:g} or more (the highest rating is {max(pairs.gold):g}): "
            "there is nothing to find. Name a lower rating."
        )
    return Search(list(answers), list(row_of), list(answers.values()))


def search_scores(similarities: ArrayLike, answers: Sequence[Sequence[int]]) -> Floats:
    """Score a search, question by question: recall@1, recall@10, MRR@10 and nDCG@10.

    Where similarities are equal, as those of short codes often are, the score is the mean over all
    orders of the equal ones.

    Parameters
    ----------
    similarities : array-like, shape (n_questions, n_sentences)
        The larger, the earlier a sentence is found; minus infinity for what is not searched.
    answers : sequence of sequences of int
        For each question the rows of the sentences that answer it, at least one.

    Returns
    -------
    ndarray of float64, shape (n_questions, 4)
        From 0 to 1; the columns are ``MEASURES``.

    Examples
    --------
    >>> search_scores([[0.9, 0.5, 0.1]], [[1]]).round(2)
    array([[0.  , 1.  , 0.5 , 0.63]])
    """
    table = np.asarray(similarities)
    if table.ndim != 2 or len(table) != len(answers):
        raise ValueError(
            f"similarities have the shape {table.shape}, but there are {len(answers)} questions."
        )
    if np.isnan(table).any():
        raise ValueError("a similarity is not a number: look at how the texts were encoded.")
    found = np.empty((len(table), len(MEASURES)))
    for row, (values, good) in enumerate(zip(table, answers, strict=True)):
        if not len(good):
            raise ValueError(f"question {row} has no answer to be found; leave it out.")
        own = values[list(good)][:, None]
        above, tied = (values > own).sum(axis=1), (values == own).sum(axis=1)
        places = [np.minimum(ends, TOP) for ends in (above + tied, above)]
        earned = ((_EARNED[:, places[0]] - _EARNED[:, places[1]]) / tied).sum(axis=1)
        best = int(np.argmin(above))
        reciprocal, left = 0.0, 1.0  # the first of those that are equal and right; and none so far
        for place in range(min(tied[best], TOP - above[best])):
            first = left * min(1.0, (own == own[best]).sum() / (tied[best] - place))
            reciprocal += first / (above[best] + place + 1)
            left -= first
        ideal = _EARNED[2, min(len(good), TOP)]
        found[row] = *(earned[:2] / len(good)), reciprocal, earned[2] / ideal
    return found


def difference(new: Floats, old: Floats) -> dict[str, list[float]]:
    """Give what a search gains on another, times 100: estimate, and a paired 95 % interval.

    Both are `search_scores` of the same questions; the questions are drawn anew 1,000 times.
    """
    gain = 100 * (new - old)
    drawn = np.empty((1000, len(MEASURES)))
    for part, rows in resample(np.arange(len(gain)), 1000, np.random.default_rng(0)):
        drawn[part] = gain[rows].mean(axis=1)
    return {
        name: [float(gain[:, column].mean()), *interval_ends(drawn[:, column])]
        for column, name in enumerate(MEASURES)
        if name in ("recall@10", "ndcg@10")
    }


def means(found: Floats) -> dict[str, float]:
    """Average `search_scores` over the questions, times 100, by measure."""
    return dict(zip(MEASURES, (100 * found.mean(axis=0)).tolist(), strict=True))


def show_gain(gain: Sequence[float]) -> str:
    """Write an estimate and its interval."""
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*gain)


def fuse(*tables: Floats) -> Floats:
    """Join searches by their ranks alone (reciprocal rank fusion): the sum of 1 / (60 + rank)."""
    return np.sum([1 / (60 + rankdata(-table, axis=1)) for table in tables], axis=0)


def cosines(asked: NDArray[Any], searched: NDArray[Any]) -> Floats:
    """Cosine of every question with every sentence."""
    return np.asarray(unit_rows(asked.astype(float)) @ unit_rows(searched.astype(float)).T)


def bm25(questions: Sequence[str], sentences: Sequence[str]) -> Floats:
    """Score sentences by BM25 (package bm25s): rare words that both have; no English stop words."""
    try:
        import bm25s
    except ImportError as error:
        raise ImportError("BM25 needs its package: pip install 'bertflow-lite[search]'") from error
    words = [
        bm25s.tokenize(list(texts), stopwords="en", return_ids=False, show_progress=False)
        for texts in (sentences, questions)
    ]
    index = bm25s.BM25()
    index.index(words[0], show_progress=False)
    nothing = np.zeros(len(sentences), np.float32)
    return np.array([index.get_scores(asked) if asked else nothing for asked in words[1]])


def hubness(similarities: Floats) -> dict[str, float]:
    """Say how unevenly sentences are found: skewness of the k-occurrence, k = 10; share never."""
    first = np.argpartition(-similarities, TOP, axis=1)[:, :TOP]
    counts = np.bincount(first.ravel(), minlength=similarities.shape[1])
    return {"hubness": float(skew(counts)), "never": float((counts == 0).mean())}


def no_answer(
    similarities: Floats, answers: Sequence[Sequence[int]], threshold: float | None = None
) -> dict[str, float]:
    """Answer only above a threshold; by default the one that gives 5 % false answers.

    Every question is asked twice: with its answers there, and with them taken out, when any answer
    is false.  Even questions choose the threshold, odd ones are counted.
    """
    without = similarities.copy()
    for row, good in enumerate(answers):
        without[row, good] = -np.inf
    best, lone = similarities.max(axis=1), without.max(axis=1)
    if threshold is None:
        threshold = float(np.quantile(lone[::2], 0.95))
    return {
        "threshold": threshold,
        "false": float((lone > threshold)[1::2].mean()),
        "right": float(((best > threshold) & (best > lone))[1::2].mean()),
    }
