"""What a masked model has learned, read off rows that it was never trained on.

Three questions, in the terms of Section 2.1 of the paper, where a model's score is
``h_c . w_x + b_x = PMI(x, c) + log p(x) + lambda_c``:

1. By how many nats does the context help to guess the true piece (`measure_gain`)?  That is the
   mean PMI of the true piece, and the unigram loss minus the model's loss.
2. How do the three terms share the variance of the scores (`measure_terms`), and where does the
   model keep log p(x): in its bias, or in its vectors?
3. Does the model's PMI agree with counts (`compare_neighbors`)?

Contexts come from `collect_at`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertflow_lite.encoders.language_model import LanguageModel, head_inputs, scores
from bertflow_lite.experiments.pmi.probe import BLOCK, TERMS, Contexts, moments, regress
from bertflow_lite.measures.similarity import spearman

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
_BLOCK = 65536
"""Rows counted at once."""
BINS = (0, 100, 500, 5_000, 10_000)
"""First frequency ranks of the bins of true pieces; the last bin is open."""


@dataclass(frozen=True)
class Places:
    """Where to put a mask."""

    # Row, and place in it; shape (n,).
    row: NDArray[np.intp]
    position: NDArray[np.intp]
    # For `neighbor_places`, which of the left pieces stands left of it; else all -1; shape (n,).
    left: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.row)


def draw_places(rows: Rows, marks: NDArray[np.int64], n: int, seed: int = 0) -> Places:
    """Draw places at random, each at most once, never on a mark.

    ``marks`` are ids that are never masked; of ``n`` places, fewer come where there are no more.
    """
    row, position = np.nonzero(~np.isin(rows, marks))
    if not len(row):
        raise ValueError("the rows hold nothing but marks: there is no place for a mask.")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(row))[:n])
    return Places(row[chosen], position[chosen], np.full(len(chosen), -1))


def neighbor_places(
    rows: Rows, left: NDArray[np.int64], marks: NDArray[np.int64], most: int, seed: int = 0
) -> Places:
    """Draw places right of given pieces, at most so many for each."""
    place = np.full(int(max(rows.max(), left.max(), marks.max())) + 1, -1)
    place[left] = np.arange(len(left))
    row, before = np.nonzero((place[rows[:, :-1]] >= 0) & ~np.isin(rows[:, 1:], marks))
    which = place[rows[row, before]]
    order = np.random.default_rng(seed).permutation(len(row))
    kept = [order[which[order] == k][:most] for k in range(len(left))]
    chosen = np.concatenate([*kept, np.empty(0, np.intp)]).astype(np.intp)
    return Places(row[chosen], before[chosen] + 1, which[chosen])


def collect_at(
    lm: LanguageModel, rows: Rows, places: Places, *, batch_tokens: int = 1024
) -> Contexts:
    """Mask each place by itself and keep the context vector there.

    The contexts have no texts: those of a corpus are not to be stored.
    """
    if lm.kind != "masked":
        raise ValueError(f"{lm.name!r} predicts the next token; masks need a masked model.")
    mask = int(lm.tokenizer.mask_token_id)
    lengths = (rows != int(lm.tokenizer.pad_token_id)).sum(axis=1)[places.row]
    order = np.argsort(-lengths, kind="stable")
    h = torch.empty(len(places), lm.word_vectors.shape[1])
    start = 0
    while start < len(order):
        part = order[start : start + max(1, batch_tokens // int(lengths[order[start]]))]
        start += len(part)
        seen = rows[places.row[part]]
        seen[np.arange(len(part)), places.position[part]] = mask
        states = head_inputs(
            lm, [row[:n].tolist() for row, n in zip(seen, lengths[part], strict=True)]
        )
        at = torch.from_numpy(places.position[part].astype(np.int64)).to(states.device)
        h[torch.from_numpy(part)] = states[torch.arange(len(part)), at].float().cpu()
    targets = rows[places.row, places.position].astype(np.int_)
    return Contexts(
        h.to(lm.word_vectors.device), [""] * len(places), targets, places.row.astype(np.int_)
    )


def select_contexts(contexts: Contexts, n: int) -> Contexts:
    """Keep the first ``n`` contexts of an even spread over all."""
    at = np.unique(np.linspace(0, len(contexts) - 1, min(n, len(contexts))).round().astype(int))
    return contexts.take(at)


@dataclass(frozen=True)
class NeighborPairs:
    """Pairs of neighbors that are frequent enough, and their PMI."""

    # Position of the left piece among those that were counted; shape (n_pairs,).
    left: NDArray[np.int64]
    piece: NDArray[np.int64]  # the right piece; shape (n_pairs,)
    pmi: NDArray[np.float64]  # in nats; shape (n_pairs,)


def count_right_neighbors(
    rows: NDArray[Any], left: NDArray[np.int64], vocabulary: int, marks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Count what stands right of some pieces.

    Rows are read block by block, so they may be mapped from disk. The left pieces are none twice
    and none a mark; marks (begin, end, padding and the like) are no neighbors. Shape (n_left,
    vocabulary).

    Examples
    --------
    >>> rows = np.array([[0, 5, 6, 5, 6, 1], [0, 6, 5, 1, 2, 2]])
    >>> count_right_neighbors(rows, np.array([5]), 7, np.array([0, 1, 2]))
    array([[0, 0, 0, 0, 0, 0, 2]])
    """
    if len(np.unique(left)) < len(left) or np.isin(left, marks).any():
        raise ValueError("the left pieces must differ, and none may be a mark.")
    if len(left) and not 0 <= left.min() <= left.max() < vocabulary:
        raise ValueError(f"a left piece lies outside the vocabulary of {vocabulary} pieces.")
    place = np.full(vocabulary, -1)
    place[left] = np.arange(len(left))
    is_piece = np.ones(vocabulary, dtype=bool)
    is_piece[marks] = False
    out = np.zeros(len(left) * vocabulary, np.int64)
    for start in range(0, len(rows), _BLOCK):
        block = np.asarray(rows[start : start + _BLOCK], dtype=np.int64)
        first, second = place[block[:, :-1]], block[:, 1:]
        kept = (first >= 0) & is_piece[second]
        out += np.bincount(first[kept] * vocabulary + second[kept], minlength=len(out))
    return out.reshape(len(left), vocabulary)


def frequent_pairs(
    counts: NDArray[np.int64], log_p: NDArray[np.float64], *, least: int = 20
) -> NeighborPairs:
    """PMI of the pairs that were met often enough, from `count_right_neighbors`.

    ``least`` is the smallest count of a pair: the PMI of a pair that was met n times is known to
    about 1 / sqrt(n) nats. The pairs are ordered by left piece, then by right piece.
    """
    left, piece = np.nonzero(counts >= max(least, 1))
    log_conditional = np.log(counts[left, piece] / counts.sum(axis=1)[left])
    return NeighborPairs(
        left.astype(np.int64), piece.astype(np.int64), log_conditional - log_p[piece]
    )


def measure_gain(
    lm: LanguageModel, contexts: Contexts, log_p: Floats, ranks: NDArray[np.intp]
) -> dict[str, Any]:
    """Mean PMI of the true pieces: what the context tells, in nats, by frequency.

    ``log_p`` and ``ranks`` are those of the corpus: the log frequency of each piece
    (`unigram_log_p`), and its frequency rank.

    Gives ``n``; ``unigram_loss`` and ``loss``, mean of -log p(x) and -log p(x|c); ``pmi``, their
    difference, and ``error``, its standard error over contexts; ``accuracy``, how often the true
    piece comes first; ``by_frequency``: ``bins`` ([first rank, rank after the last], None for no
    end), ``n``, ``pmi`` and ``error`` of each (``error`` None for one context only); bins without a
    context are left out.
    """
    targets = torch.from_numpy(np.asarray(contexts.targets, dtype=np.int64))
    log_conditional = np.empty(len(contexts))
    first = np.zeros(len(contexts), dtype=bool)
    for start in range(0, len(contexts), BLOCK):
        part = slice(start, start + BLOCK)
        with torch.inference_mode():
            score = scores(lm, contexts.h[part])
            own = targets[part].to(score.device)
            found = score.gather(1, own[:, None])[:, 0] - torch.logsumexp(score, dim=1)
            first[part] = (score.argmax(dim=1) == own).cpu().numpy()
        log_conditional[part] = found.cpu().double().numpy()
    unigram = log_p[contexts.targets]
    pmi = log_conditional - unigram
    rank = ranks[contexts.targets]
    by_frequency: dict[str, list[Any]] = {"bins": [], "n": [], "pmi": [], "error": []}
    for low, high in zip(BINS, (*BINS[1:], None), strict=True):
        inside = pmi[(rank >= low) & (rank < (np.inf if high is None else high))]
        if len(inside):
            by_frequency["bins"].append([low, high])
            by_frequency["n"].append(len(inside))
            by_frequency["pmi"].append(float(inside.mean()))
            by_frequency["error"].append(_standard_error(inside))
    return {
        "n": len(contexts),
        "unigram_loss": float(-unigram.mean()),
        "loss": float(-log_conditional.mean()),
        "pmi": float(pmi.mean()),
        "error": _standard_error(pmi),
        "accuracy": float(first.mean()),
        "by_frequency": by_frequency,
    }


def measure_terms(
    lm: LanguageModel,
    contexts: Contexts,
    log_p: Floats,
    counts: NDArray[np.int64],
    *,
    least: int = 20,
) -> dict[str, Any]:
    """How PMI, log p(x) and lambda_c share the scores, and where log p(x) is kept.

    PMI is defined as ``log p(x|c) - log p(x)`` and lambda_c as the log-partition, so the three
    terms add up to the score for any model, trained or not: a regression on all three has R2 = 1,
    and ``largest_gap`` is rounding.  That says nothing about learning.  What does: how much of the
    scores' variance each term carries, and how well log p(x) with a term of the context alone
    explains them (``r2_without_pmi``), which is all that a model without knowledge of contexts
    can do.

    ``log_p`` and ``counts`` are those of the corpus. The sum over ``"pairs"`` takes every piece of
    the vocabulary alike, also those that never occur and have half a count; ``"joint"`` weighs with
    p(x|c). ``log_p_in`` looks at pieces with a count of ``least`` or more.

    Gives ``pairs`` and ``joint`` (the two weightings of `probe.moments`), each with
    ``largest_gap``, ``variance`` of the score, ``shares`` (covariance of each term with the score
    over that variance; they sum to 1), ``variances`` (of each term over it) and ``r2_without_pmi``;
    ``log_p_in``: over frequent pieces, ``bias_slope`` and ``vectors_slope``, by how much the bias
    and ``h . w_x`` of the mean context rise with log p(x) (1 for the part that holds all of it),
    ``r2_of_vectors``, how much of log p(x) is linear in w_x, on a half of the pieces that the fit
    has not seen (below 0 is worse than the mean; None where the pieces are fewer than four times
    the width), and ``n``.
    """
    out: dict[str, Any] = {}
    for weights in ("pairs", "joint"):
        found = moments(lm, contexts, np.exp(log_p), weights=weights)
        total = found.covariance[0, 0]
        out[weights] = {
            "largest_gap": found.largest_gap,
            "variance": total,
            "shares": dict(zip(TERMS, found.covariance[0, 1:] / total, strict=True)),
            "variances": dict(zip(TERMS, np.diag(found.covariance)[1:] / total, strict=True)),
            "r2_without_pmi": regress(found, TERMS[1:])["r2"],
        }
    pieces = np.flatnonzero(counts >= least)
    y = log_p[pieces]
    w = lm.word_vectors.cpu().double().numpy()[pieces]
    mean_h = contexts.h.cpu().double().mean(dim=0).numpy()
    bias = lm.bias.cpu().double().numpy()[pieces]
    out["log_p_in"] = {
        "n": len(pieces),
        "bias_slope": _slope(y, bias),
        "vectors_slope": _slope(y, w @ mean_h),
        "r2_of_vectors": held_out_r2(w, y) if len(y) >= 4 * w.shape[1] else None,
    }
    return out


def compare_neighbors(
    lm: LanguageModel,
    contexts: Contexts,
    left: NDArray[np.intp],
    pairs: NeighborPairs,
    log_p: Floats,
) -> dict[str, Any]:
    """Compare the model's PMI of a piece and its left neighbor with the corpus's.

    The model's is the log of its mean p(x|c) over the contexts with that neighbor, minus log p(x).
    The same log p(x) is taken from both, which alone would make them agree for a model that knows
    nothing but guesses evenly; ``spearman_rarity`` says how far.  A mean over a few contexts is
    noisy: ``spearman_halves`` compares two halves of them, and no model can be expected to agree
    with the corpus better than with itself.

    ``left`` is `Places.left` of the contexts; of the corpus's pairs, those whose left piece has two
    contexts at least are used.

    Gives ``n_pairs``, ``n_left``, ``n_contexts``; ``spearman`` and ``pearson`` of the two PMIs;
    ``slope``, by how much the model's rises with the corpus's; ``spearman_rarity``, of the corpus's
    PMI and -log p(x); ``spearman_halves``.
    """
    n_left = int(max(left.max(initial=-1), pairs.left.max(initial=-1))) + 1
    n_contexts = np.bincount(left, minlength=n_left)
    kept = n_contexts[pairs.left] >= 2
    rows, pieces, corpus = pairs.left[kept], pairs.piece[kept], pairs.pmi[kept]
    if len(rows) < 3:
        raise ValueError(
            f"only {len(rows)} pairs of neighbors are frequent enough to compare: use a larger "
            "corpus, or ask for a lower count."
        )
    # Every other context of a left piece goes to the second half.
    order = np.argsort(left, kind="stable")
    start = np.concatenate([[0], np.cumsum(n_contexts)[:-1]])
    half = np.empty(len(left), dtype=np.intp)
    half[order] = (np.arange(len(left)) - start[left[order]]) % 2
    total = torch.zeros(2, n_left, len(log_p))
    for at in range(0, len(contexts), BLOCK):
        part = slice(at, at + BLOCK)
        with torch.inference_mode():
            p = torch.softmax(scores(lm, contexts.h[part]), dim=1).cpu()
        cell = torch.from_numpy(half[part] * n_left + left[part])
        total.view(2 * n_left, -1).index_add_(0, cell, p)
    sums = total[:, torch.from_numpy(rows), torch.from_numpy(pieces)].double().numpy()
    by_half = np.stack([np.bincount(left[half == k], minlength=n_left)[rows] for k in (0, 1)])
    model = np.log(sums.sum(axis=0) / n_contexts[rows]) - log_p[pieces]
    halves = np.log(sums / by_half) - log_p[pieces]
    return {
        "n_pairs": len(rows),
        "n_left": len(np.unique(rows)),
        "n_contexts": int(n_contexts[np.unique(rows)].sum()),
        "spearman": spearman(corpus, model),
        "pearson": float(np.corrcoef(corpus, model)[0, 1]),
        "slope": _slope(corpus, model),
        "spearman_rarity": spearman(corpus, -log_p[pieces]),
        "spearman_halves": spearman(halves[0], halves[1]),
    }


def held_out_r2(x: Floats, y: Floats) -> float:
    """Share of the variance of y, shape (n,), that is linear in x, shape (n, dim).

    Fitted on one random half, measured on the other.
    """
    fit, test = np.array_split(np.random.default_rng(0).permutation(len(y)), 2)
    mean, middle = x[fit].mean(axis=0), y[fit].mean()
    centered = x[fit] - mean
    slopes = np.linalg.lstsq(centered.T @ centered, centered.T @ (y[fit] - middle))[0]
    missed = y[test] - middle - (x[test] - mean) @ slopes
    return float(1 - (missed**2).sum() / ((y[test] - y[test].mean()) ** 2).sum())


def _slope(x: Floats, y: Floats) -> float:
    centered = x - x.mean()
    return float(centered @ (y - y.mean()) / (centered @ centered))


def _standard_error(values: Floats) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
