"""Everything the PMI chapter shows, computed once and returned as one JSON-able dict each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from bertflow_lite.calibrate import make_calibrator
from bertflow_lite.context_similarity import (
    cosines,
    frequency_direction,
    jensen_shannon_similarity,
    overlap,
    pmi_cosine,
    remove_direction,
    upper,
)
from bertflow_lite.datasets import load_sts
from bertflow_lite.lm_probe import (
    TERMS,
    Contexts,
    LanguageModel,
    ScoreMoments,
    check_scores,
    collect_contexts,
    load_language_model,
    log_partition,
    moments,
    regress,
    scores,
    word_probabilities,
)
from bertflow_lite.pmi import (
    SoftmaxFit,
    ToyWorld,
    decompose,
    fit_softmax,
    make_world,
    needed_width,
    rebalance,
)
from bertflow_lite.similarity import spearman

__all__ = ["run_probe", "run_toy", "sample_sentences", "word_tokens"]

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]

FLOW_STEPS = 300  # of the flow that is trained for longer than the paper's one epoch

CALIBRATORS = {"standardized": "sn", "whitened": "whiten", "flow": "flow"}

# Nouns, verbs and function words for the neighbor explorer; those that are one token are used.
EXPLORED_WORDS = (
    "the", "of", "and", "not", "is", "was", "he", "two", "dog", "man", "woman", "water", "music",
    "guitar", "car", "street", "red", "playing", "running", "said", "president", "police", "killed",
    "percent", "market", "children", "house", "war",
)  # fmt: skip


def run_toy(
    *, seed: int = 0, size: tuple[int, int] = (300, 400), widths: bool = True
) -> dict[str, Any]:
    """Run every experiment on the toy world.

    Parameters
    ----------
    seed : int, default 0
        Seed of the worlds, the initial vectors and the flow.
    size : tuple of int, default (300, 400)
        Words and contexts of the main world.
    widths : bool, default True
        Also fit many widths, which takes most of the time.

    Returns
    -------
    dict
        ``world``, ``fit``, ``heatmap``, ``gauge``, ``shares_of_spectrum``, ``agreement``,
        ``reliance``, ``uniform``, ``languages``, ``neighbors``, ``widths`` (empty if not asked
        for); see the keys inside.  All correlations are Spearman's.
    """
    started = time.perf_counter()
    world = make_world(*size, seed=seed)
    width = needed_width(world.conditional)
    fit = fit_softmax(world, width, seed=seed)
    h, w = rebalance(fit.h, fit.w)
    found = decompose(fit.h @ fit.w.T, world.conditional, world.p_word)
    found_balanced = decompose(h @ w.T, world.conditional, world.p_word)
    log_z = logsumexp(fit.h @ fit.w.T, axis=1)
    result: dict[str, Any] = {
        "world": {
            "n_words": size[0],
            "n_contexts": size[1],
            "n_topics": world.topics.shape[1],
            "needed_width": width,
            "std_pmi": found.pmi.std(),
            "std_log_p": found.log_p.std(),
            "smallest_probability": world.conditional.min(),
        },
        "fit": {
            "width": width,
            "kl": fit.kl,
            "iterations": fit.iterations,
            "residual_std": found.residual.std(),
            "largest_gap_lambda_log_partition": np.abs(found.lambda_c - log_z).max(),
            "shares": found.shares,
            "variances": found.variances,
            "shares_centered_words": found_balanced.shares,
            "variances_centered_words": found_balanced.variances,
        },
        "heatmap": _heatmap(world, found_balanced.pmi, found_balanced.lambda_c),
        "gauge": _gauge(world, fit, seed),
        "shares_of_spectrum": _spectrum_shares(world, fit, seed),
        "agreement": {
            "varying reliance on frequency": _toy_agreement(world, h, w, seed),
            "same reliance on frequency": _agreement_of(make_world(*size, reliance_spread=0), seed),
            "all words equally frequent": _agreement_of(make_world(*size, zipf=0), seed),
        },
        "reliance": _reliance_curve(size, seed),
        "languages": _languages(seed),
        "neighbors": _toy_neighbors(world, fit),
        "widths": _width_curves(seed) if widths else {},
    }
    logger.info("toy world: %.0f s", time.perf_counter() - started)
    return dict(_plain(result))


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

    Parameters
    ----------
    model : str, default "smollm2"
        See `load_language_model`.
    sentences : sequence of str, optional
        Default: `sample_sentences`.
    n_contexts : int, default 3000
        Contexts to look at.
    n_pairs_of : int, default 800
        Contexts of which all pairs are compared.
    device, download
        See `load_language_model`.
    seed : int, default 0

    Returns
    -------
    dict
        ``model``, ``contexts``, ``scores``, ``lambda_c``, ``regression`` (by weighting),
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
    p_halves = [word_probabilities(lm, _select(contexts, half)) for half in halves]
    p_word = np.average(p_halves, axis=0, weights=[len(half) for half in halves])
    log_z = log_partition(lm, contexts)
    h = contexts.h.double().cpu().numpy()
    # Stored runs quote no benchmark: where the sentences are our own draw, texts are mini-sts's.
    own = set(sentences) if source == "given" else set(load_sts("mini-sts").sentences)
    quotable = [i for i, row in enumerate(contexts.sentences) if sentences[row] in own]
    shown = _select(contexts, np.array(quotable, dtype=np.int_))
    result: dict[str, Any] = {
        "model": {"name": lm.name, "kind": lm.kind, "fingerprint": lm.fingerprint,
                  "n_vocabulary": len(p_word), "dim": h.shape[1]},
        "contexts": {"n": len(contexts), "n_sentences": len(sentences), "source": source,
                     "n_shown": len(shown)},
        "scores": {"largest_gap_to_logits": check_scores(lm, sentences[0]),
                   "largest_bias": float(lm.bias.abs().max())},
        "lambda_c": {
            "mean": log_z.mean(), "std": log_z.std(), "min": log_z.min(), "max": log_z.max(),
            # How much of lambda_c one vector explains: adding it to all w moves only lambda_c.
            "r2_linear_in_h": _r2(h, log_z),
            "correlation_with_norm": spearman(np.linalg.norm(h, axis=1), log_z),
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
    return dict(_plain(result))


def sample_sentences(n: int = 350, *, seed: int = 0) -> tuple[list[str], str]:
    """Draw sentences from mini-sts and, where it is on this machine, the test set of STS-B.

    Returns
    -------
    sentences : list of str
    source : str
        Where they come from.
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


# ---- toy world ----------------------------------------------------------------------------------


def _references(world: ToyWorld) -> dict[str, Floats]:
    return {
        "overlap": upper(overlap(world.conditional)),
        "Jensen-Shannon": upper(jensen_shannon_similarity(world.conditional)),
        "PMI cosine": upper(pmi_cosine(world.conditional, world.p_word)),
        "topics": upper(cosines(world.topics)),
    }


def _variants(
    h: Floats,
    w: Floats,
    p_word: Floats,
    seed: int,
    calibrators: Sequence[str] = tuple(CALIBRATORS),
) -> dict[str, Floats]:
    """Context vectors, raw and after each way to calibrate them."""
    x = h.astype(np.float32)
    variants = {
        "raw": h,
        "frequency removed": remove_direction(h, frequency_direction(w, p_word)),
        "centered": h - h.mean(axis=0),
    }
    for name in calibrators:
        calibrator = make_calibrator(CALIBRATORS[name], random_state=seed)
        variants[name] = calibrator.fit(x).transform(x).astype(np.float64)  # type: ignore[union-attr]
    return variants


def _compare(variants: dict[str, Floats], references: dict[str, Floats]) -> dict[str, Any]:
    table = {}
    for name, h in variants.items():
        cosine, dot = upper(cosines(h)), upper(h @ h.T)
        table[name] = {
            "mean cosine": cosine.mean(),
            "cosine": {key: spearman(cosine, ref) for key, ref in references.items()},
            "dot": {key: spearman(dot, ref) for key, ref in references.items()},
        }
    return table


def _toy_agreement(world: ToyWorld, h: Floats, w: Floats, seed: int) -> dict[str, Any]:
    variants = _variants(h, w, world.p_word, seed)
    x = h.astype(np.float32)
    longer = make_calibrator("flow", random_state=seed).set_params(min_steps=FLOW_STEPS)  # type: ignore[union-attr]
    variants["flow, trained longer"] = longer.fit(x).transform(x).astype(np.float64)
    return _compare(variants, _references(world))


def _agreement_of(world: ToyWorld, seed: int) -> dict[str, Any]:
    fit = fit_softmax(world, needed_width(world.conditional), seed=seed)
    return _toy_agreement(world, *rebalance(fit.h, fit.w), seed)


def _gauge(world: ToyWorld, fit: SoftmaxFit, seed: int) -> dict[str, Any]:
    """Solutions with one softmax and different context cosines."""
    rng = np.random.default_rng(seed + 1)
    other = fit_softmax(world, fit.h.shape[1], seed=seed + 1)
    matrix = rng.normal(size=(fit.h.shape[1],) * 2)
    log_q = log_softmax(fit.h @ fit.w.T, axis=1)
    solutions = {
        "trained": (fit.h, fit.w),
        "trained, another seed": (other.h, other.w),
        "balanced": rebalance(fit.h, fit.w),
        "random A": (fit.h @ matrix.T, np.linalg.solve(matrix.T, fit.w.T).T),
    }
    references = _references(world)
    rows = {}
    raw, white = upper(cosines(fit.h)), upper(cosines(_whiten(fit.h)))
    for name, (h, w) in solutions.items():
        difference = np.abs(log_softmax(h @ w.T, axis=1) - log_q).max()
        cosine, cosine_white = upper(cosines(h)), upper(cosines(_whiten(h)))
        rows[name] = {
            "largest difference in log p": difference,
            "mean cosine": cosine.mean(),
            "correlation with overlap": spearman(cosine, references["overlap"]),
            "correlation with topics": spearman(cosine, references["topics"]),
            "correlation with trained": spearman(cosine, raw),
            "whitened: correlation with trained": spearman(cosine_white, white),
            "whitened: largest difference in cosine": np.abs(cosine_white - white).max(),
            "whitened: correlation with overlap": spearman(cosine_white, references["overlap"]),
            "whitened: correlation with topics": spearman(cosine_white, references["topics"]),
        }
    return rows


def _whiten(h: Floats) -> Floats:
    return np.asarray(make_calibrator("whiten").fit_transform(h))  # type: ignore[union-attr]


def _spectrum_shares(world: ToyWorld, fit: SoftmaxFit, seed: int) -> list[dict[str, Any]]:
    """One softmax, the spread divided between h and w in eleven ways; with a sample of pairs."""
    references = _references(world)
    sample = np.random.default_rng(seed).permutation(len(references["overlap"]))[:250]
    rows = []
    for share in np.linspace(0, 1, 11).round(1):
        h, _ = rebalance(fit.h, fit.w, float(share))
        cosine = upper(cosines(h))
        rows.append({
            "share": share,
            "mean cosine": cosine.mean(),
            "overlap": spearman(cosine, references["overlap"]),
            "topics": spearman(cosine, references["topics"]),
            "x": references["overlap"][sample],
            "y": cosine[sample],
        })  # fmt: skip
    return rows


def _reliance_curve(size: tuple[int, int], seed: int) -> list[dict[str, Any]]:
    """Ask when removing frequency helps: the more, the more contexts differ in leaning on it."""
    rows = []
    for spread in (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5):
        world = make_world(*size, reliance_spread=spread, seed=seed)
        # The softmax optimum in closed form: log p* itself, factorized (`rebalance`).
        h, w = rebalance(np.log(world.conditional), np.eye(size[0]))
        references = {k: v for k, v in _references(world).items() if k in ("overlap", "topics")}
        variants = _variants(h, w, world.p_word, seed, ["whitened"])
        table = _compare(variants, references)
        rows.append({"spread": spread, **{k: v["cosine"] for k, v in table.items()}})
    return rows


def _languages(seed: int) -> dict[str, Any]:
    """Two languages with the same topics and (almost) no common word: the claim fails across."""
    world = make_world(150, 200, n_languages=2, leak=0.1, reliance_spread=0, seed=seed)
    fit = fit_softmax(world, needed_width(world.conditional), seed=seed)
    h, _ = rebalance(fit.h, fit.w)
    foreign = np.arange(150) % 2 != world.languages[:, None]
    same = upper(world.languages[:, None] == world.languages)
    main = world.topics.argmax(axis=1)
    topics, hits = upper(cosines(world.topics)), {}
    sample = np.random.default_rng(seed).permutation(len(topics))[:600]
    cosine = cosines(h)
    for name, wanted in (("within", True), ("across", False)):
        allowed = (world.languages[:, None] == world.languages) == wanted
        allowed &= ~np.eye(len(h), dtype=bool)
        nearest = np.where(allowed, cosine, -np.inf).argmax(axis=1)
        chosen = same == wanted
        alike = main[:, None] == main
        hits[name] = {
            "correlation with topics": spearman(upper(cosine)[chosen], topics[chosen]),
            "nearest shares main topic": float((main[nearest] == main).mean()),
            "chance": float((alike & allowed).sum() / allowed.sum()),
            "mean cosine": float(upper(cosine)[chosen].mean()),
        }
    return {
        **hits,
        "kl": fit.kl,
        "foreign probability": float((world.conditional * foreign).sum(axis=1).mean()),
        "x": topics[sample], "y": upper(cosine)[sample], "same": same[sample].tolist(),
    }  # fmt: skip


def _width_curves(seed: int) -> dict[str, Any]:
    """Residual against width (softmax bottleneck) for a low-rank and a full-rank world."""
    curves = {}
    for kind, widths in (
        ("product", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16)),
        ("mixture", (1, 2, 4, 8, 16, 32, 64, 99)),
    ):
        world = make_world(100, 120, kind=kind, seed=seed)
        log_p = np.log(world.conditional)
        values = np.linalg.svd(log_p - log_p.mean(axis=1, keepdims=True), compute_uv=False)
        rows = []
        for width in widths:
            fit = fit_softmax(world, width, seed=seed, max_iter=4000)
            found = decompose(fit.h @ fit.w.T, world.conditional, world.p_word)
            bound = np.sqrt((values[width:] ** 2).sum() / log_p.size)
            rows.append({
                "width": width, "residual_std": found.residual.std(), "kl": fit.kl,
                "least_residual_std": bound, "iterations": fit.iterations,
            })  # fmt: skip
        needed = needed_width(world.conditional)
        curves[kind] = {"needed_width": needed, "singular_values": values, "rows": rows}
    return curves


def _heatmap(world: ToyWorld, pmi: Floats, lambda_c: Floats) -> dict[str, Any]:
    """Cut a corner from the three terms; contexts and words are sorted by topic."""
    rows = np.argsort(world.topics.argmax(axis=1), kind="stable")[::10][:40]
    words = np.arange(len(world.words))[::5][:60]
    words = words[np.argsort([world.words[i].split("-")[0] for i in words], kind="stable")]
    return {
        "contexts": [world.contexts[i] for i in rows],
        "words": [world.words[i] for i in words],
        "pmi": pmi[np.ix_(rows, words)],
        "log_p": np.log(world.p_word)[words],
        "lambda_c": lambda_c[rows],
    }


def _toy_neighbors(world: ToyWorld, fit: SoftmaxFit) -> dict[str, Any]:
    score = fit.h @ fit.w.T
    contexts = np.argsort(-world.topics.max(axis=1))[:: max(1, len(score) // 12)][:12]
    words = np.argsort(-world.p_word)[:: max(1, score.shape[1] // 12)][:12]
    return {
        "contexts": [
            _ranked(world.contexts[i], world.words, score[i], world.pmi[i]) for i in contexts
        ],
        "words": [
            _ranked(world.words[j], world.contexts, score[:, j], world.pmi[:, j]) for j in words
        ],
    }


# ---- language model -----------------------------------------------------------------------------


def _select(contexts: Contexts, rows: NDArray[np.int_]) -> Contexts:
    index = torch.from_numpy(rows).to(contexts.h.device)
    texts = [contexts.texts[i] for i in rows]
    return Contexts(contexts.h[index], texts, contexts.targets[rows], contexts.sentences[rows])


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
    block = scores(lm, _select(contexts, rows).h).double().cpu().numpy()
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
            columns["context"] += [_shorten(contexts.texts[row])] * len(ids)
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
    common = slice(0, 5000)
    rows = np.unique(np.geomspace(1, len(known), 500).astype(int) - 1)
    return {
        "n_words": len(known),
        "spearman_wordfreq": spearman(log_p, others),
        "spearman_wordfreq_5000_most_frequent": spearman(log_p[common], others[common]),
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
    log_q = torch.log_softmax(scores(lm, _select(contexts, rows).h), dim=1)
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
    variants = {name: x[rows] for name, x in _variants(h, w, p_word, seed).items()}
    sample = np.random.default_rng(seed).permutation(len(same))[:400]
    return {
        "n_contexts": len(rows),
        "table": _compare(variants, references),
        "overlap_with_pmi_cosine": spearman(same, references["PMI cosine"]),
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
    block = scores(lm, _select(contexts, rows).h).double().cpu().numpy()
    by_context = []
    for row, score in zip(rows, block, strict=True):
        pmi = score - log_z[row] - np.log(p_word)
        by_context.append(_ranked(contexts.texts[row], words, score[ids], pmi[ids]))
    by_word = []
    names = [_shorten(text) for text in contexts.texts]
    for word in (word for word in EXPLORED_WORDS if word in tokens):
        column = contexts.h @ lm.word_vectors[tokens[word]] + lm.bias[tokens[word]]
        score = column.double().cpu().numpy()
        pmi = score - log_z - np.log(p_word[tokens[word]])
        by_word.append(_ranked(word, names, score, pmi))
    return {"contexts": by_context, "words": by_word}


# ---- both ---------------------------------------------------------------------------------------


def _ranked(
    name: str, names: Sequence[str], score: Floats, pmi: Floats, k: int = 8
) -> dict[str, Any]:
    """Give the k nearest by dot product and by PMI, each once, best first."""

    def top(values: Floats) -> list[list[Any]]:
        best: dict[str, float] = {}
        for i in np.argsort(-values):
            best.setdefault(names[i], float(values[i]))
            if len(best) == k:
                break
        return [[n, v] for n, v in best.items()]

    return {"name": name, "dot": top(score), "pmi": top(pmi)}


def _shorten(text: str, length: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else "..." + text[-length:]


def _plain(value: Any) -> Any:
    """Turn arrays and NumPy numbers into lists and floats of 6 significant digits."""
    convert: Callable[[Any], Any] = _plain
    if isinstance(value, dict):
        return {str(key): convert(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [convert(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}")
    return int(value) if isinstance(value, np.integer) else value
