"""The word space of a model: Table 1 and what surrounds it, and the rating of word pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from bertflow_lite.calibrate import FlowCalibrator
from bertflow_lite.encode import Encoder
from bertflow_lite.geometry import (
    effective_rank,
    frequency_shares,
    iso_score,
    mean_cosine,
    partition_score,
    singular_values,
)
from bertflow_lite.linear import (
    Standardizer,
    TopDirectionRemover,
    principal_directions,
)
from bertflow_lite.similarity import _unit_rows, spearman
from bertflow_lite.word_frequency import (
    WordCounts,
    wordfreq_words,
)
from bertflow_lite.word_similarity import (
    WORD_SETS,
    WeightedWhitening,
    embed_words,
    load_word_pairs,
    remove_frequency,
    score_word_pairs,
)
from bertflow_lite.word_table import BINS, WordEmbeddings, find_neighbors, make_table1

__all__ = ["measure_words", "score_words"]

N_SHOWN_WORDS = 1000
N_SPECTRUM = 80


def measure_words(words: WordEmbeddings, counts: WordCounts) -> dict[str, Any]:
    """Measure Table 1, in three readings of "rank", and the word space around it.

    Parameters
    ----------
    words : WordEmbeddings
        Words of one token, by falling frequency.
    counts : WordCounts
        Their frequencies.
    """
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
            "partition_score_unit": partition_score(_unit_rows(own.astype(np.float64))),
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
