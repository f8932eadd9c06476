"""What the PMI chapter shows of the toy world, computed once and returned as a JSON-able dict."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from bertflow_lite.experiments.pmi.agreement import (
    compare_with_references,
    cosines,
    jensen_shannon_similarity,
    make_variants,
    overlap,
    pmi_cosine,
    ranked,
    upper,
)
from bertflow_lite.experiments.pmi.toy_world import (
    SoftmaxFit,
    ToyWorld,
    decompose,
    fit_softmax,
    make_world,
    needed_width,
    rebalance,
)
from bertflow_lite.experiments.runs import round_numbers
from bertflow_lite.experiments.scoring import calibrated
from bertflow_lite.measures.similarity import spearman

logger = logging.getLogger(__name__)
Floats = NDArray[np.float64]
FLOW_STEPS = 300  # of the flow that is trained for longer than the paper's one epoch


def run_toy(
    *, seed: int = 0, size: tuple[int, int] = (300, 400), widths: bool = True
) -> dict[str, Any]:
    """Run every experiment on the toy world.

    The size is that of the main world, words and contexts; fitting many widths takes most of the
    time.

    Gives ``world``, ``fit``, ``heatmap``, ``gauge``, ``shares_of_spectrum``, ``agreement``,
    ``reliance``, ``uniform``, ``languages``, ``neighbors``, ``widths`` (empty if not asked for);
    see the keys inside. All correlations are Spearman's.
    """
    started = time.perf_counter()
    world = make_world(*size, seed=seed)
    width = needed_width(world.conditional)
    fit = fit_softmax(world, width, seed=seed)
    h, w = rebalance(fit.h, fit.w)
    found = decompose(fit.h @ fit.w.T, world.conditional, world.p_word)
    found_balanced = decompose(h @ w.T, world.conditional, world.p_word)
    result: dict[str, Any] = {
        "world": {
            "n_words": size[0],
            "n_contexts": size[1],
            "n_topics": world.topics.shape[1],
            "needed_width": width,
        },
        "fit": {
            "width": width,
            "kl": fit.kl,
            "iterations": fit.iterations,
            "residual_std": found.residual.std(),
            "shares": found.shares,
            "variances": found.variances,
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
    return dict(round_numbers(result, 6))


def _references(world: ToyWorld) -> dict[str, Floats]:
    return {
        "overlap": upper(overlap(world.conditional)),
        "Jensen-Shannon": upper(jensen_shannon_similarity(world.conditional)),
        "PMI cosine": upper(pmi_cosine(world.conditional, world.p_word)),
        "topics": upper(cosines(world.topics)),
    }


def _toy_agreement(world: ToyWorld, h: Floats, w: Floats, seed: int) -> dict[str, Any]:
    variants = make_variants(h, w, world.p_word, seed)
    x = h.astype(np.float32)
    longer = calibrated("flow", x, x, seed=seed, min_steps=FLOW_STEPS)
    variants["flow, trained longer"] = longer.astype(np.float64)
    return compare_with_references(variants, _references(world))


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
    return calibrated("whiten", h, h)


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
        variants = make_variants(h, w, world.p_word, seed, ["whitened"])
        table = compare_with_references(variants, references)
        rows.append({"spread": spread, **{k: v["cosine"] for k, v in table.items()}})
    return rows


def _languages(seed: int) -> dict[str, Any]:
    """Two languages with the same topics and (almost) no common word: the claim fails across."""
    world = make_world(150, 200, n_languages=2, leak=0.1, reliance_spread=0, seed=seed)
    fit = fit_softmax(world, needed_width(world.conditional), seed=seed)
    h, _ = rebalance(fit.h, fit.w)
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
            ranked(world.contexts[i], world.words, score[i], world.pmi[i]) for i in contexts
        ],
        "words": [
            ranked(world.words[j], world.contexts, score[:, j], world.pmi[:, j]) for j in words
        ],
    }
