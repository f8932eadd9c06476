"""Eq. 1-3 in a real language model: scores, log-partition, word probabilities, PMI.

A model's head is ``score(c, x) = h_c . w_x + b_x`` (`language_model`, whose names are handed on
here).  This module collects context vectors h_c of real text, and takes their scores apart.

The vocabulary is large (SmolLM2: 49,152), so nothing of shape (n_contexts, n_vocabulary) is ever
held whole: every function works through blocks of contexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertflow_lite.language_model import (
    LanguageModel,
    check_scores,
    head_inputs,
    load_language_model,
    scores,
    token_batches,
)

__all__ = [
    "Contexts",
    "LanguageModel",
    "ScoreMoments",
    "check_scores",
    "collect_contexts",
    "load_language_model",
    "log_partition",
    "moments",
    "regress",
    "scores",
    "word_probabilities",
]

Floats = NDArray[np.float64]

BLOCK = 64  # contexts whose scores are held at once: 13 MB at 49,152 words in float32
TERMS = ("PMI", "log p(x)", "lambda_c")


@dataclass(frozen=True)
class Contexts:
    """Context vectors of real text.

    Attributes
    ----------
    h : Tensor, shape (n, dim)
        What is multiplied with the word vectors.
    texts : list of str, length n
        A causal model's text so far; a masked model's sentence with its mask.
    targets : ndarray of int, shape (n,)
        The token that really stands there.
    sentences : ndarray of int, shape (n,)
        Which of the given sentences each context was found in (first).
    """

    h: Tensor
    texts: list[str]
    targets: NDArray[np.int_]
    sentences: NDArray[np.int_]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class ScoreMoments:
    """Means and covariances of score, PMI, log p(x), lambda_c (in this order) over (c, x) pairs.

    Attributes
    ----------
    mean : ndarray, shape (4,)
    covariance : ndarray, shape (4, 4)
    largest_gap : float
        Largest ``|score - PMI - log p(x) - lambda_c|`` met: rounding.
    """

    mean: Floats
    covariance: Floats
    largest_gap: float


def collect_contexts(
    lm: LanguageModel,
    sentences: Sequence[str],
    *,
    n_contexts: int = 3000,
    min_left: int = 3,
    max_length: int = 64,
    batch_tokens: int = 1024,
    seed: int = 0,
) -> Contexts:
    """Run the model on real sentences and keep the context vectors of some positions.

    Every position of every sentence is a candidate (repeated contexts once); `n_contexts` are
    drawn from them.  A causal model needs one pass for a sentence, a masked model one for each
    position, since one token is masked at a time.

    Parameters
    ----------
    lm : LanguageModel
    sentences : sequence of str
    n_contexts : int, default 3000
        Most contexts to keep.
    min_left : int, default 3
        Tokens left of the predicted one, at least (special tokens count).  The first positions of
        a causal model are odd: it cannot know anything yet.
    max_length : int, default 64
        Sentences are cut after this many tokens.
    batch_tokens : int, default 1024
        Padded tokens in a batch.
    seed : int, default 0
        Seed of the draw.

    Raises
    ------
    ValueError
        If no sentence is long enough.
    """
    tokenizer = lm.tokenizer
    ids = tokenizer(list(sentences), truncation=True, max_length=max_length)["input_ids"]
    special = set(tokenizer.all_special_ids)
    places: dict[tuple[int, ...], tuple[int, int]] = {}  # input up to or with the mask -> place
    for row, tokens in enumerate(ids):
        for position in range(max(min_left, 1), len(tokens)):
            if tokens[position] not in special:
                places.setdefault(_model_input(lm, tokens, position), (row, position))
    if not places:
        raise ValueError(f"no sentence has more than {min_left} tokens: there is no context.")
    keys = sorted(places, key=places.__getitem__)
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(keys))[:n_contexts])
    keys = [keys[i] for i in chosen]
    rows = np.array([places[key][0] for key in keys])
    targets = np.array([ids[places[key][0]][places[key][1]] for key in keys])

    # Which inputs to run, and which of their positions to keep for which context.
    runs: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for index, key in enumerate(keys):
        row, position = places[key]
        if lm.kind == "causal":
            runs.setdefault(tuple(ids[row][:-1]), []).append((position - 1, index))
        else:
            runs.setdefault(key, []).append((position, index))
    h = torch.empty(len(keys), lm.word_vectors.shape[1])
    for batch in token_batches(sorted(runs, key=len), batch_tokens):
        states = head_inputs(lm, batch)
        for row, tokens in enumerate(batch):
            for position, index in runs[tokens]:
                h[index] = states[row, position].float().cpu()
    h = h.to(lm.word_vectors.device)
    return Contexts(h, tokenizer.batch_decode(keys), targets, rows)


def log_partition(lm: LanguageModel, contexts: Contexts) -> Floats:
    """Log-partition ``log sum_x exp score(c, x)`` of each context, shape (n,).

    This is lambda_c of Eq. 2, with a plus sign: ``score = log p(x|c) + lambda_c``.
    """
    parts = [torch.logsumexp(block, dim=1) for _, block in _score_blocks(lm, contexts.h)]
    return torch.cat(parts).double().cpu().numpy()


def word_probabilities(lm: LanguageModel, contexts: Contexts) -> Floats:
    """Mean of p(x|c) over the contexts: the model's own p(x), shape (n_vocabulary,)."""
    total = torch.zeros(len(lm.word_vectors), dtype=torch.float64)
    for _, block in _score_blocks(lm, contexts.h):
        total += torch.softmax(block, dim=1).sum(dim=0).double().cpu()
    return (total / len(contexts)).numpy()


def moments(
    lm: LanguageModel,
    contexts: Contexts,
    p_word: Floats,
    *,
    weights: str = "pairs",
    center_words: bool = False,
) -> ScoreMoments:
    """Accumulate means and covariances of the score and the three terms of Eq. 3.

    Parameters
    ----------
    lm, contexts
    p_word : ndarray, shape (n_vocabulary,)
        p(x), all positive.
    weights : {"pairs", "joint"}, default "pairs"
        ``"pairs"``: each (c, x) counts once, so nearly all are words that nobody would say there.
        ``"joint"``: weighted by p(x, c) = p(x|c) / n, what the model expects to read.
    center_words : bool, default False
        Subtract the mean word vector (and bias) from every word first.  No probability changes,
        only lambda_c does.
    """
    if weights not in ("pairs", "joint"):
        raise ValueError(f"weights is {weights!r}; it must be 'pairs' or 'joint'.")
    if p_word.shape != (len(lm.word_vectors),) or p_word.min() <= 0:
        raise ValueError(f"p_word must be positive, of shape ({len(lm.word_vectors)},).")
    log_p = torch.from_numpy(np.log(p_word)).to(contexts.h)
    count, gap = 0.0, 0.0
    first = torch.zeros(4, dtype=torch.float64)
    second = torch.zeros(4, 4, dtype=torch.float64)
    for _, score in _score_blocks(lm, contexts.h):
        if center_words:
            score = score - score.mean(dim=1, keepdim=True)
        lambda_c = torch.logsumexp(score, dim=1, keepdim=True)
        log_conditional = score - lambda_c
        pmi = log_conditional - log_p
        gap = max(gap, float((score - pmi - log_p - lambda_c).abs().max()))
        columns = [score, pmi, log_p.expand_as(score), lambda_c.expand_as(score)]
        # Sums over 150 million pairs: float32 would leave errors of several per cent.
        terms = torch.stack([column.reshape(-1) for column in columns]).to("cpu", torch.float64)
        weighted = terms
        if weights == "joint":
            weighted = terms * torch.exp(log_conditional).reshape(-1).to(terms)
        count += len(score) if weights == "joint" else score.numel()  # p(x|c) sums to 1
        first += weighted.sum(dim=1)
        second += weighted @ terms.T
    mean = (first / count).numpy()
    covariance = (second / count).numpy() - np.outer(mean, mean)
    return ScoreMoments(mean, (covariance + covariance.T) / 2, gap)


def regress(found: ScoreMoments, terms: Sequence[str] = TERMS) -> dict[str, Any]:
    """Least-squares regression of the score on some of the terms, with a constant.

    Returns
    -------
    dict
        ``coefficients`` (one for each term), ``constant`` and ``r2``.
    """
    unknown = set(terms) - set(TERMS)
    if unknown or not terms:
        raise ValueError(f"terms is {tuple(terms)}; choose from {TERMS}.")
    chosen = [1 + TERMS.index(term) for term in terms]
    covariance = found.covariance
    slopes = np.linalg.lstsq(covariance[np.ix_(chosen, chosen)], covariance[chosen, 0], rcond=None)
    coefficients = slopes[0]
    constant = found.mean[0] - coefficients @ found.mean[chosen]
    return {
        "coefficients": {t: float(c) for t, c in zip(terms, coefficients, strict=True)},
        "constant": float(constant),
        "r2": float(coefficients @ covariance[chosen, 0] / covariance[0, 0]),
    }


def _model_input(lm: LanguageModel, tokens: list[int], position: int) -> tuple[int, ...]:
    """Give what the model may see when it predicts the token at a position."""
    if lm.kind == "causal":
        return tuple(tokens[:position])
    return (*tokens[:position], lm.tokenizer.mask_token_id, *tokens[position + 1 :])


def _score_blocks(lm: LanguageModel, h: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, len(h), BLOCK):
        part = slice(start, start + BLOCK)
        with torch.inference_mode():
            yield part, scores(lm, h[part])
