"""Eq. 1-3 in a real language model: scores, log-partition, word probabilities, PMI.

A model's head is ``score(c, x) = h_c . w_x + b_x`` (`language_model`, whose names are handed on
here).  This module collects context vectors h_c of real text, and takes their scores apart.

The vocabulary is large (SmolLM2: 49,152), so nothing of shape (n_contexts, n_vocabulary) is ever
held whole: every function works through blocks of contexts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch import Tensor

from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.language_model import (
    LanguageModel,
    head_inputs,
    load_language_model,
    scores,
    token_batches,
)
from bertflow_lite.experiments.pmi.agreement import (
    compare_with_references,
    cosines,
    frequency_direction,
    make_variants,
    ranked,
    shorten,
    upper,
)
from bertflow_lite.experiments.runs import round_numbers
from bertflow_lite.measures.similarity import spearman

Floats = NDArray[np.float64]
BLOCK = 64  # contexts whose scores are held at once: 13 MB at 49,152 words in float32
TERMS = ("PMI", "log p(x)", "lambda_c")


@dataclass(frozen=True)
class Contexts:
    """Context vectors of real text."""

    h: Tensor  # what is multiplied with the word vectors; shape (n, dim)
    # A causal model's text so far; a masked model's sentence with its mask; length n.
    texts: list[str]
    targets: NDArray[np.int_]  # the token that really stands there; shape (n,)
    # Which of the given sentences each context was found in (first); shape (n,).
    sentences: NDArray[np.int_]

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: NDArray[np.int_]) -> Contexts:
        """Give some of the contexts, in the order of the rows."""
        h = self.h[torch.from_numpy(rows).to(self.h.device)]
        return Contexts(h, [self.texts[i] for i in rows], self.targets[rows], self.sentences[rows])


@dataclass(frozen=True)
class ScoreMoments:
    """Means and covariances of score, PMI, log p(x), lambda_c (in this order) over (c, x) pairs."""

    mean: Floats  # shape (4,)
    covariance: Floats  # shape (4, 4)
    largest_gap: float  # largest ``|score - PMI - log p(x) - lambda_c|`` met: rounding


def collect_contexts(
    lm: LanguageModel,
    sentences: Sequence[str],
    *,
    n_contexts: int = 3000,
    min_left: int = 3,
    batch_tokens: int = 1024,
    seed: int = 0,
) -> Contexts:
    """Run the model on real sentences and keep the context vectors of some positions.

    Every position of every sentence is a candidate (repeated contexts once); `n_contexts` are
    drawn from them.  A causal model needs one pass for a sentence, a masked model one for each
    position, since one token is masked at a time.

    At least ``min_left`` tokens, special ones included, stand left of a predicted one: the first
    positions of a causal model are odd, since it cannot know anything yet. Sentences are cut after
    64 tokens.
    """
    tokenizer = lm.tokenizer
    ids = tokenizer(list(sentences), truncation=True, max_length=64)["input_ids"]
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

    With weights ``"pairs"`` each (c, x) counts once, so nearly all are words that nobody would say
    there; with ``"joint"`` it counts p(x, c) = p(x|c) / n, what the model expects to read.
    ``center_words`` subtracts the mean word vector (and bias) from every word first: no probability
    changes, only lambda_c does.
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

    Gives ``coefficients`` (one for each term), ``constant`` and ``r2``.
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


def check_scores(lm: LanguageModel, sentence: str) -> float:
    """Largest difference between the model's own logits and `scores`, over one sentence."""
    tokens = lm.tokenizer(sentence, return_tensors="pt")["input_ids"].to(lm.word_vectors.device)
    with torch.inference_mode():
        logits = lm.model(input_ids=tokens).logits[0]
        h = head_inputs(lm, [tuple(tokens[0].tolist())])[0]
        return float((logits - scores(lm, h)).abs().max())


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


logger = logging.getLogger(__name__)
# Nouns, verbs and function words for the neighbor explorer; those that are one token are used.
EXPLORED_WORDS = (
    "the", "of", "and", "not", "is", "was", "he", "two", "dog", "man", "woman", "water", "music",
    "guitar", "car", "street", "red", "playing", "running", "said", "president", "police", "killed",
    "percent", "market", "children", "house", "war",
)  # fmt: skip


def run_probe(
    model: str = "smollm2",
    *,
    sentences: Sequence[str] | None = None,
    n_contexts: int = 3000,
    n_pairs_of: int = 800,
    device: str | None = None,
    download: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Probe a language model: Eq. 1-3 on real contexts.

    The default sentences are `sample_sentences`; of ``n_pairs_of`` contexts, all pairs are
    compared.

    Gives ``model``, ``contexts``, ``scores``, ``lambda_c``, ``regression`` (by weighting),
    ``scatter``, ``frequency``, ``similarity``, ``neighbors``.
    """
    lm = load_language_model(model, device=device, download=download)
    source = "given"
    if sentences is None:
        sentences, source = sample_sentences(seed=seed)
    contexts = collect_contexts(lm, sentences, n_contexts=n_contexts, seed=seed)
    if len(contexts) < 4:
        raise ValueError(f"only {len(contexts)} contexts: give more, or longer, sentences.")
    rng = np.random.default_rng(seed)
    halves = np.array_split(rng.permutation(len(contexts)), 2)
    p_halves = [word_probabilities(lm, contexts.take(half)) for half in halves]
    p_word = np.average(p_halves, axis=0, weights=[len(half) for half in halves])
    log_z = log_partition(lm, contexts)
    h = contexts.h.double().cpu().numpy()
    # Stored runs quote no benchmark: where the sentences are our own draw, texts are mini-sts's.
    own = set(sentences) if source == "given" else set(load_sts("mini-sts").sentences)
    quotable = [i for i, row in enumerate(contexts.sentences) if sentences[row] in own]
    shown = contexts.take(np.array(quotable, dtype=np.int_))
    result: dict[str, Any] = {
        "model": {"name": lm.name, "kind": lm.kind, "fingerprint": lm.fingerprint,
                  "n_vocabulary": len(p_word), "dim": h.shape[1]},
        "contexts": {"n": len(contexts), "n_sentences": len(sentences), "source": source},
        "scores": {"largest_gap_to_logits": check_scores(lm, sentences[0])},
        "lambda_c": {
            "mean": log_z.mean(), "std": log_z.std(), "min": log_z.min(), "max": log_z.max(),
        },
        "regression": {
            f"{weights}{', centered words' if centered else ''}": _regressions(
                moments(lm, contexts, p_word, weights=weights, center_words=centered)
            )
            for weights in ("pairs", "joint")
            for centered in (False, True)
        },
        "scatter": _probe_scatter(lm, shown, p_word, rng),
        "frequency": _probe_frequency(lm, p_word, p_halves, h),
        "similarity": _probe_similarity(lm, contexts, p_word, h, n_pairs_of, seed),
        "neighbors": _probe_neighbors(lm, shown, p_word, rng),
    }  # fmt: skip
    return dict(round_numbers(result, 6))


def sample_sentences(n: int = 350, *, seed: int = 0) -> tuple[list[str], str]:
    """Draw sentences from mini-sts and, where it is on this machine, the test set of STS-B.

    Says also where they come from.
    """
    pool, source = set(load_sts("mini-sts").sentences), "mini-sts"
    try:
        pool |= set(load_sts("stsb", "test").sentences)
        source = "mini-sts and STS-B test"
    except FileNotFoundError:
        logger.info("STS-B is not here: contexts come from mini-sts alone")
    ordered = sorted(pool)
    order = np.random.default_rng(seed).permutation(len(ordered))[:n]
    return [ordered[i] for i in order], source


def word_tokens(tokenizer: Any) -> dict[str, int]:
    """Tokens that are whole lower-case words, and their ids.

    Byte-level and SentencePiece vocabularies mark the start of a word; wordpieces mark the inside.
    """
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    mark = next((m for m in ("Ġ", "▁") if any(t and t.startswith(m) for t in tokens)), "")
    words = {t[len(mark) :]: i for i, t in enumerate(tokens) if t and t.startswith(mark)}
    return {t: i for t, i in words.items() if t.isascii() and t.isalpha() and t.islower()}


def _r2(x: Floats, y: Floats) -> float:
    """Share of the variance of y, shape (n,), that is linear in x, shape (n, dim)."""
    centered, target = x - x.mean(axis=0), y - y.mean()
    slopes = np.linalg.lstsq(centered.T @ centered, centered.T @ target)[0]
    return float(1 - ((target - centered @ slopes) ** 2).sum() / (target**2).sum())


def _regressions(found: ScoreMoments) -> dict[str, Any]:
    sets: list[tuple[str, ...]] = [TERMS, *((term,) for term in TERMS), TERMS[:2]]
    total = found.covariance[0, 0]
    return {
        "largest_gap": found.largest_gap,
        "variance_of_score": total,
        "shares": dict(zip(TERMS, found.covariance[0, 1:] / total, strict=True)),
        "variances": dict(zip(TERMS, np.diag(found.covariance)[1:] / total, strict=True)),
        "covariance": found.covariance,
        "fits": {" + ".join(terms): regress(found, terms) for terms in sets},
    }


def _probe_scatter(
    lm: LanguageModel, contexts: Contexts, p_word: Floats, rng: np.random.Generator
) -> dict[str, Any]:
    """Pairs for a scatter: words drawn evenly, and words drawn from p(x|c), in 40 contexts."""
    rows = rng.permutation(len(contexts))[:40]
    columns: dict[str, list[Any]] = {
        key: [] for key in ("score", "pmi", "log_p", "lambda_c", "word", "context", "drawn")
    }
    block = scores(lm, contexts.take(rows).h).double().cpu().numpy()
    for row, score in zip(rows, block, strict=True):
        lambda_c = logsumexp(score)
        p = np.exp(score - lambda_c)
        for drawn, weights in (("evenly", None), ("from p(x|c)", p / p.sum())):
            ids = rng.choice(len(p), size=15, p=weights)
            log_p = np.log(p_word[ids])
            columns["score"] += score[ids].tolist()
            columns["pmi"] += (score[ids] - lambda_c - log_p).tolist()
            columns["log_p"] += log_p.tolist()
            columns["lambda_c"] += [float(lambda_c)] * len(ids)
            columns["word"] += [lm.tokenizer.decode([int(i)]) for i in ids]
            columns["context"] += [shorten(contexts.texts[row])] * len(ids)
            columns["drawn"] += [drawn] * len(ids)
    return columns


def _probe_frequency(
    lm: LanguageModel, p_word: Floats, p_halves: list[Floats], h: Floats
) -> dict[str, Any]:
    """Compare the model's p(x) with wordfreq's, and find the direction of frequency."""
    try:
        from wordfreq import zipf_frequency
    except ImportError as error:
        raise ImportError("the probe compares with wordfreq: pip install wordfreq") from error
    tokens = word_tokens(lm.tokenizer)
    zipf = {word: zipf_frequency(word, "en") for word in tokens}
    known = sorted((word for word in tokens if zipf[word] > 0), key=lambda word: -zipf[word])
    ids = np.array([tokens[word] for word in known])
    log_p, others = np.log(p_word[ids]), np.array([zipf[word] for word in known])
    w = lm.word_vectors.double().cpu().numpy()
    direction, mean = frequency_direction(w, p_word), h.mean(axis=0)
    rows = np.unique(np.geomspace(1, len(known), 500).astype(int) - 1)
    return {
        "n_words": len(known),
        "spearman_wordfreq": spearman(log_p, others),
        "spearman_halves": spearman(p_halves[0], p_halves[1]),
        "r2_log_p_linear_in_w": _r2(w, np.log(p_word)),
        "r2_wordfreq_linear_in_w": _r2(w[ids], others),
        "cosine_direction_mean_context": float(direction @ mean / np.linalg.norm(mean)),
        "words": [known[i] for i in rows],
        "zipf": others[rows],
        "log_p": log_p[rows],
    }


def _probe_similarity(
    lm: LanguageModel, contexts: Contexts, p_word: Floats, h: Floats, n: int, seed: int
) -> dict[str, Any]:
    """Test the higher-order claim: do context vectors agree with what they predict."""
    rows = np.random.default_rng(seed).permutation(len(contexts))[:n]
    log_q = torch.log_softmax(scores(lm, contexts.take(rows).h), dim=1)
    root = torch.exp(log_q / 2)
    same = upper((root @ root.T).double().cpu().numpy())
    del root
    pmi = (log_q - torch.from_numpy(np.log(p_word)).to(log_q)) * torch.from_numpy(
        np.sqrt(p_word)
    ).to(log_q)
    pmi = pmi / pmi.norm(dim=1, keepdim=True)
    references = {"overlap": same, "PMI cosine": upper((pmi @ pmi.T).double().cpu().numpy())}
    del pmi, log_q
    w = lm.word_vectors.double().cpu().numpy()
    variants = {name: x[rows] for name, x in make_variants(h, w, p_word, seed).items()}
    sample = np.random.default_rng(seed).permutation(len(same))[:400]
    return {
        "n_contexts": len(rows),
        "table": compare_with_references(variants, references),
        "x": same[sample],
        "y": {name: upper(cosines(x))[sample] for name, x in variants.items()},
    }


def _probe_neighbors(
    lm: LanguageModel, contexts: Contexts, p_word: Floats, rng: np.random.Generator
) -> dict[str, Any]:
    tokens = word_tokens(lm.tokenizer)
    words, ids = list(tokens), np.array(list(tokens.values()))
    long_enough = [i for i, text in enumerate(contexts.texts) if 25 <= len(text) <= 70]
    log_z = log_partition(lm, contexts)
    rows = rng.permutation(long_enough or len(contexts))[:16]
    block = scores(lm, contexts.take(rows).h).double().cpu().numpy()
    by_context = []
    for row, score in zip(rows, block, strict=True):
        pmi = score - log_z[row] - np.log(p_word)
        by_context.append(ranked(contexts.texts[row], words, score[ids], pmi[ids]))
    by_word = []
    names = [shorten(text) for text in contexts.texts]
    for word in (word for word in EXPLORED_WORDS if word in tokens):
        column = contexts.h @ lm.word_vectors[tokens[word]] + lm.bias[tokens[word]]
        score = column.double().cpu().numpy()
        pmi = score - log_z - np.log(p_word[tokens[word]])
        by_word.append(ranked(word, names, score, pmi))
    return {"contexts": by_context, "words": by_word}
