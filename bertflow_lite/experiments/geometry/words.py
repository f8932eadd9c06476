"""The word space of a model: Table 1 and what surrounds it, and the rating of word pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertflow_lite.calibrators.base import RELATIVE_VARIANCE
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import Standardizer, TopDirectionRemover, principal_directions
from bertflow_lite.datasets.gensim_sets import WORD_SETS, WordPairs, load_word_pairs
from bertflow_lite.datasets.word_counts import WordCounts, wordfreq_words
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.table1 import (
    BINS,
    HasVocabulary,
    WordEmbeddings,
    find_neighbors,
    make_table1,
)
from bertflow_lite.measures.geometry import (
    effective_rank,
    frequency_shares,
    iso_score,
    mean_cosine,
    partition_score,
    singular_values,
)
from bertflow_lite.measures.similarity import (
    Floats,
    as_rows,
    as_values,
    cosine,
    spearman,
    unit_rows,
)

N_SHOWN_WORDS = 1000
N_SPECTRUM = 80


def measure_words(words: WordEmbeddings, counts: WordCounts) -> dict[str, Any]:
    """Measure Table 1, in three readings of "rank", and the word space around it."""
    measured = words.up_to(BINS[-1][1])
    neighbors = find_neighbors(words.vectors, words.rows)
    n = len(measured.words)
    first = type(neighbors)(*(values[:n] for values in vars(neighbors).values()))
    # Two other readings of "rank": wordfreq's, and the rank among one-token words only.
    other = {word: rank for rank, word in enumerate(wordfreq_words())}
    by_wordfreq = np.array([other.get(word, len(other)) for word in words.words], dtype=np.intp)
    own = words.vectors[words.rows]
    norms = np.linalg.norm(own, axis=1)
    f = counts.log_frequency(words.words)
    mean = own.mean(axis=0, dtype=np.float64)
    _, directions = principal_directions(own, mean)
    plane = (own - mean) @ directions[:2].T
    shown = np.unique(np.geomspace(1, len(words.words), N_SHOWN_WORDS).round().astype(int)) - 1
    singular = singular_values(own)
    at = np.unique(np.geomspace(1, len(singular), N_SPECTRUM).round().astype(int))
    exact = mean_cosine(own)
    return {
        "n_vectors": len(words.vectors),
        "n_left_out": words.n_left_out,
        "n_words": len(words.words),
        "dim": int(own.shape[1]),
        "table1": make_table1(measured, first).to_dict(),
        "table1_wordfreq": make_table1(words, neighbors, ranks=by_wordfreq).to_dict(),
        "table1_one_token_ranks": make_table1(
            words, neighbors, ranks=np.arange(len(words.words))
        ).to_dict(),
        "spearman_with_rank": {  # over the words of Table 1
            "norm": spearman(measured.ranks, norms[:n]),
            "distance": spearman(measured.ranks, first.distance.mean(axis=1)),
            "distance_over_norm": spearman(measured.ranks, first.distance.mean(axis=1) / norms[:n]),
            "dot": spearman(measured.ranks, first.dot.mean(axis=1)),
        },
        "spearman_norm_distance": spearman(norms[:n], first.distance.mean(axis=1)),
        "space": {
            "mean_cosine": {"estimate": exact.estimate, "low": exact.low, "high": exact.high},
            "effective_rank": effective_rank(singular),
            "iso_score": iso_score(own),
            "partition_score": partition_score(own),
            "partition_score_unit": partition_score(unit_rows(own.astype(np.float64))),
            "frequency": frequency_shares(own, f, n_directions=10).to_dict(),
            "spectrum": {
                "index": at.tolist(),
                "value": (singular[at - 1] / singular[0]).tolist(),
            },
        },
        "shown": {
            "word": [words.words[i] for i in shown],
            "rank": words.ranks[shown].tolist(),
            "norm": norms[shown].tolist(),
            "distance": neighbors.distance[shown].mean(axis=1).tolist(),
            "dot": neighbors.dot[shown].mean(axis=1).tolist(),
            "neighbors": [
                " ".join(words.tokens[row] for row in neighbors.by_distance[i, :3]) for i in shown
            ],
            "pca": {"x": plane[shown, 0].tolist(), "y": plane[shown, 1].tolist()},
        },
    }


def score_words(
    model: Encoder, words: WordEmbeddings, counts: WordCounts, random_state: int
) -> dict[str, Any]:
    """Spearman with ratings by calibration; everything is fitted on the words of one token."""
    fit_on = words.vectors[words.rows].astype(np.float64)
    n = np.array([counts.counts[counts.rank[word]] for word in words.words], dtype=np.float64)
    f = counts.log_frequency(words.words)
    uniform, zipf = WeightedWhitening(fit_on), WeightedWhitening(fit_on, n)
    # As many directions as Mu and Viswanath null for word vectors: about dim / 100.
    nulled = TopDirectionRemover(max(1, fit_on.shape[1] // 100)).fit(fit_on)
    standard = Standardizer().fit(fit_on)
    flow = FlowCalibrator.from_preset("paper", random_state=random_state)
    flow.fit(fit_on.astype(np.float32))
    methods: dict[str, Any] = {
        "none": lambda x: x,
        "centered": lambda x: x - uniform.mean,
        "zipf-centered": lambda x: x - zipf.mean,
        "no frequency direction": lambda x: remove_frequency(fit_on, f, x),
        "sn": standard.transform,
        f"natsv:{nulled.k}": nulled.transform,
        "whiten": uniform.transform,
        "zipf-whiten": zipf.transform,
        "flow": lambda x: flow.transform(x.astype(np.float32)),
    }
    out: dict[str, Any] = {
        "fitted_on": len(fit_on),
        "effective_words": {  # 1 / sum p^2: how many words the weighted moments rest on
            "uniform": float(len(n)),
            "zipf": float(n.sum() ** 2 / (n**2).sum()),
        },
        "sets": {},
    }
    for name in WORD_SETS:
        pairs = load_word_pairs(name)
        first, tokens1 = embed_words(model, pairs.words1)
        second, tokens2 = embed_words(model, pairs.words2)
        single = (tokens1 == 1) & (tokens2 == 1)
        scores = {}
        for method, apply in methods.items():
            a, b = apply(first.astype(np.float64)), apply(second.astype(np.float64))
            part = type(pairs)(name, (), (), pairs.ratings[single])
            scores[method] = {
                "all": score_word_pairs(pairs, a, b),
                "one_token": score_word_pairs(part, a[single], b[single]),
            }
        out["sets"][name] = {
            "n_pairs": len(pairs),
            "n_one_token": int(single.sum()),
            "scores": scores,
        }
    return out


def embed_words(
    encoder: HasVocabulary, words: tuple[str, ...] | list[str]
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Input embeddings of words, with a space before them as within a sentence.

    The tokenizer lower-cases them where it does so with sentences; a word without a token is an
    error.

    Returns
    -------
    vectors : ndarray, shape (n, dim), float32
        A word of several tokens gets the mean of their embeddings.
    n_tokens : ndarray of int, shape (n,)
        Tokens of each word.
    """
    matrix = encoder.model.get_input_embeddings().weight.detach().float().cpu().numpy()
    ids = encoder.tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    for word, pieces in zip(words, ids, strict=True):
        if not pieces:
            raise ValueError(f"The tokenizer makes no token of {word!r}.")
    vectors = np.stack([matrix[pieces].mean(axis=0) for pieces in ids])
    return vectors, np.array([len(pieces) for pieces in ids], dtype=np.intp)


def score_word_pairs(pairs: WordPairs, vectors1: ArrayLike, vectors2: ArrayLike) -> float:
    """Spearman x 100 of the cosine of each pair's vectors, shapes (n_pairs, dim), with ratings."""
    return 100 * spearman(cosine(vectors1, vectors2), pairs.ratings)


class WeightedWhitening:
    """Whitening under weights; word frequencies as weights make it Zipfian (Yokoi et al. 2024).

    Subtract the weighted mean, then scale the principal directions of the weighted covariance to
    variance 1.  Uniform weights treat all words alike, so that the tens of thousands of rare ones
    set the mean and the directions; frequencies treat all *occurrences* alike.

    Weights are at least 0, such as word counts; their scale does not matter, and by default they
    are uniform.

    Attributes
    ----------
    mean : ndarray, shape (dim,)
        The weighted mean.
    matrix : ndarray, shape (dim, n_kept)
        What centered vectors are multiplied by.  Directions without variance are dropped.
    """

    def __init__(self, vectors: ArrayLike, weights: ArrayLike | None = None) -> None:
        rows = as_rows(vectors, "the vectors")
        w = np.ones(len(rows)) if weights is None else as_values(weights, "weights")
        if len(w) != len(rows):
            raise ValueError(f"There are {len(rows)} vectors, but {len(w)} weights.")
        if not len(w) or w.min() < 0 or w.sum() == 0:
            raise ValueError("Weights must be at least 0, and one must be above 0.")
        w = w / w.sum()
        self.mean: Floats = w @ rows
        centered = rows - self.mean
        variances, directions = np.linalg.eigh((centered.T * w) @ centered)
        kept = variances > RELATIVE_VARIANCE * variances[-1]
        if variances[-1] <= 0:
            raise ValueError(f"All {len(rows)} vectors are equal: there is no variance to whiten.")
        self.matrix: Floats = directions[:, kept] / np.sqrt(variances[kept])

    def transform(self, vectors: ArrayLike) -> Floats:
        """Whiten vectors, shape (n, dim) -> (n, n_kept)."""
        return np.asarray((as_rows(vectors, "the vectors") - self.mean) @ self.matrix)


def remove_frequency(
    fit_on: NDArray[np.floating[Any]], log_frequency: ArrayLike, vectors: ArrayLike
) -> Floats:
    """Center vectors and null the one direction along which they move with log frequency.

    Mean and direction are those of the words ``fit_on``: the direction of the regression of the
    embedding on log frequency, that is, the covariance of each dimension with it.

    Returns
    -------
    ndarray, shape (m, dim)
    """
    rows, f = as_rows(fit_on, "fit_on"), as_values(log_frequency, "log_frequency")
    mean = rows.mean(axis=0)
    direction = (rows - mean).T @ (f - f.mean())
    length = np.linalg.norm(direction)
    if length == 0:
        raise ValueError("No dimension goes with log frequency: there is no direction to remove.")
    direction /= length
    centered = as_rows(vectors, "the vectors") - mean
    return np.asarray(centered - np.outer(centered @ direction, direction))
