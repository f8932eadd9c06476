"""An exact toy world for Section 2.1: what the softmax objective does and does not fix (Eq. 1-3).

A real corpus shows a language model samples of an unknown p*(x|c).  Here p*(x, c) is a table, the
loss is computed over the whole table, and training runs to convergence: what is left over is due
to the argument, not to noise.  `run_toy` computes what chapter 3 shows of it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
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
from bertflow_lite.experiments.runs import round_numbers
from bertflow_lite.experiments.scoring import calibrated
from bertflow_lite.measures.similarity import spearman

logger = logging.getLogger(__name__)
Floats = NDArray[np.float64]
TOPICS = ("music", "food", "sport", "law", "sea", "space", "health", "money")
FLOW_STEPS = 300  # of the flow that is trained for longer than the paper's one epoch


@dataclass(frozen=True)
class ToyWorld:
    """A joint distribution of words x and contexts c that is known exactly."""

    joint: Floats  # p*(x, c), all positive, summing to 1; shape (n_contexts, n_words)
    # What each context is about: rows sum to 1, and the model never sees it; shape (n_contexts,
    # n_topics).
    topics: Floats
    # Power to which a context raises the word frequencies: above 1 it prefers frequent words.
    reliance: Floats
    languages: NDArray[np.int_]  # of each context; all 0 unless the world has two
    words: tuple[str, ...]  # names for plots
    contexts: tuple[str, ...]

    @property
    def p_word(self) -> Floats:
        """p*(x), shape (n_words,)."""
        return self.joint.sum(axis=0)

    @property
    def p_context(self) -> Floats:
        """p*(c), shape (n_contexts,)."""
        return self.joint.sum(axis=1)

    @property
    def conditional(self) -> Floats:
        """p*(x|c), shape (n_contexts, n_words); rows sum to 1."""
        return self.joint / self.p_context[:, None]

    @property
    def pmi(self) -> Floats:
        """PMI(x, c) = log p*(x|c) / p*(x) in nats, shape (n_contexts, n_words)."""
        return np.log(self.conditional / self.p_word)


@dataclass(frozen=True)
class SoftmaxFit:
    """Vectors trained by Eq. 1 on a `ToyWorld`."""

    h: Floats  # context vectors, shape (n_contexts, width)
    w: Floats  # word vectors, shape (n_words, width)
    kl: float  # KL(p*(x|c) || softmax) averaged over p*(c), in nats
    iterations: int  # of L-BFGS


@dataclass(frozen=True)
class Decomposition:
    """The terms of Eq. 3, ``score = pmi + log_p + lambda_c + residual``, and what each explains."""

    pmi: Floats  # shape (n_contexts, n_words), as the residual
    log_p: Floats  # shape (n_words,)
    # The mean over x of ``score - log p*(x|c)``, shape (n_contexts,); for a perfect fit the
    # log-partition ``log sum_x exp(h_c . w_x)``.
    lambda_c: Floats
    residual: Floats
    # ``Cov(term, score) / Var(score)``, every (c, x) pair counted once.  They sum to 1; terms that
    # covary share the covariance evenly, and a share can be negative.
    shares: dict[str, float]
    variances: dict[str, float]  # ``Var(term) / Var(score)``: sum to 1 if no terms covary


def make_world(
    n_words: int = 300,
    n_contexts: int = 400,
    n_topics: int = 8,
    *,
    zipf: float = 1.0,
    reliance_spread: float = 0.3,
    kind: str = "product",
    n_languages: int = 1,
    leak: float = 1e-3,
    seed: int = 0,
) -> ToyWorld:
    """Make a world of topics with Zipfian word frequencies and equally likely contexts.

    Topic k has a word distribution T_k and context c mixes topics with weights theta_c.  Before
    the margins are set,

        product:  p(x, c) ~ f(x)^r_c  prod_k T_k(x)^theta_ck      (log-linear: low rank in the log)
        mixture:  p(x, c) ~ f(x)^r_c  sum_k theta_ck T_k(x)       (its logarithm has full rank)

    Then rows and columns are rescaled in turn (Sinkhorn) until p(x) is exactly Zipf's f(x) and
    p(c) is uniform; the rescaling changes no interaction between words and contexts.

    Word k has the frequency k^-``zipf``; ``reliance_spread`` is the standard deviation of r_c
    around 1: how much contexts differ in leaning on frequency.  With two languages, the odd words
    and the odd contexts form a second one with the same topics; a word of the other language
    carries no topic and is ``leak`` times as likely: at zero the optimum would lie at infinity.

    Examples
    --------
    >>> world = make_world(20, 30, 2)
    >>> world.joint.shape, round(float(world.joint.sum()), 9)
    ((30, 20), 1.0)
    """
    if kind not in ("product", "mixture"):
        raise ValueError(f"kind is {kind!r}; it must be 'product' or 'mixture'.")
    if not 1 <= n_topics <= len(TOPICS):
        raise ValueError(f"n_topics is {n_topics}; it must be from 1 to {len(TOPICS)}.")
    if n_languages not in (1, 2):
        raise ValueError(f"n_languages is {n_languages}; it must be 1 or 2.")
    if min(n_words, n_contexts) < 2 * n_topics:
        raise ValueError(f"n_words and n_contexts must be at least {2 * n_topics}, twice n_topics.")
    if min(zipf, reliance_spread) < 0 or leak <= 0:
        raise ValueError("zipf and reliance_spread must not be negative, and leak must be above 0.")
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(n_topics, 0.3), size=n_contexts)
    main = np.arange(n_words) // n_languages % n_topics
    affinity = 1.5 * rng.normal(size=(n_words, n_topics)) + 3 * np.eye(n_topics)[main]
    frequency = rng.permutation(1 / np.arange(1, n_words + 1) ** zipf)
    frequency /= frequency.sum()
    reliance = 1 + reliance_spread * rng.normal(size=n_contexts)

    log_topic = log_softmax(affinity, axis=0)  # log T_k(x)
    product = kind == "product"
    log_mix = topics @ log_topic.T if product else np.log(topics @ np.exp(log_topic).T)
    word_language = np.arange(n_words) % n_languages
    languages = np.arange(n_contexts) % n_languages
    foreign = languages[:, None] != word_language
    log_mix = np.where(foreign, np.log(leak) + log_mix.mean(), log_mix)
    interaction = np.exp(log_mix + reliance[:, None] * np.log(frequency))
    joint = _set_margins(interaction, np.full(n_contexts, 1 / n_contexts), frequency)
    words = tuple(f"{TOPICS[k]}-{i}" for i, k in enumerate(main))
    contexts = tuple(_describe(row, i) for i, row in enumerate(topics))
    return ToyWorld(joint, topics, reliance, languages, words, contexts)


def fit_softmax(
    world: ToyWorld, width: int, *, seed: int = 0, scale: float = 0.1, max_iter: int = 5000
) -> SoftmaxFit:
    """Train h and w by the exact expected loss of Eq. 1, full batch, in float64.

    The loss, ``sum_c p*(c) KL(p*(x|c) || softmax_x(h_c . w_x))``, falls by L-BFGS until it stays,
    from entries of standard deviation ``scale``.

    Examples
    --------
    >>> world = make_world(16, 16, 2)
    >>> fit_softmax(world, 16).kl < 1e-6 < fit_softmax(world, 1).kl
    True
    """
    if width < 1 or scale <= 0:
        raise ValueError(f"width is {width} and scale {scale}; both must be positive.")
    joint, p_context = world.joint, world.p_context
    n_contexts, n_words = joint.shape
    entropy = -float((joint * np.log(world.conditional)).sum())

    def loss(flat: Floats) -> tuple[float, Floats]:
        h, w = np.split(flat.reshape(-1, width), [n_contexts])
        scores = h @ w.T
        log_q = log_softmax(scores, axis=1)
        kl = -float((joint * log_q).sum()) - entropy
        error = p_context[:, None] * np.exp(log_q) - joint  # d kl / d scores
        gradient = np.concatenate([(error @ w).ravel(), (error.T @ h).ravel()])
        return n_contexts * kl, n_contexts * gradient  # a scale at which L-BFGS's first step fits

    start = scale * np.random.default_rng(seed).normal(size=(n_contexts + n_words) * width)
    options = {"maxiter": max_iter, "maxfun": 2 * max_iter, "maxcor": 30, "ftol": 0, "gtol": 1e-11}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    h, w = np.split(found.x.reshape(-1, width), [n_contexts])
    return SoftmaxFit(h, w, float(found.fun) / n_contexts, int(found.nit))


def decompose(scores: Floats, conditional: Floats, p_word: Floats) -> Decomposition:
    """Split scores h_c . w_x into the terms of Eq. 3, given p*(x|c), of the same shape, and p*(x).

    Examples
    --------
    Of perfect scores nothing is left over:

    >>> world = make_world(16, 16, 2)
    >>> parts = decompose(np.log(world.conditional), world.conditional, world.p_word)
    >>> bool(abs(parts.residual).max() < 1e-12), round(sum(parts.shares.values()), 9)
    (True, 1.0)
    """
    if scores.shape != conditional.shape or p_word.shape != scores.shape[1:]:
        raise ValueError(
            f"scores {scores.shape}, conditional {conditional.shape} and p_word {p_word.shape} "
            "do not belong together."
        )
    log_conditional, log_p = np.log(conditional), np.log(p_word)
    gap = scores - log_conditional
    lambda_c = gap.mean(axis=1)
    pmi, residual = log_conditional - log_p, gap - lambda_c[:, None]
    terms = {
        "PMI": pmi,
        "log p(x)": np.broadcast_to(log_p, scores.shape),
        "lambda_c": np.broadcast_to(lambda_c[:, None], scores.shape),
        "residual": residual,
    }
    centered, total = scores - scores.mean(), scores.var()
    shares = {name: float((term * centered).mean() / total) for name, term in terms.items()}
    variances = {name: float(term.var() / total) for name, term in terms.items()}
    return Decomposition(pmi, log_p, lambda_c, residual, shares, variances)


def needed_width(conditional: Floats) -> int:
    """Smallest width at which softmax(h . w) can equal p*(x|c) (Yang et al. 2018).

    The lambda_c are free, so it is the rank of ``log p*(x|c)`` with its row means taken off: the
    number of singular values above 1e-8 times the largest.

    Examples
    --------
    Two topics and the frequency, mixed log-linearly, are three directions:

    >>> needed_width(make_world(40, 40, 2).conditional)
    3
    """
    values = np.linalg.svd(_center_rows(np.log(conditional)), compute_uv=False)
    return int((values > 1e-8 * values[0]).sum())


def rebalance(h: Floats, w: Floats, share: float = 0.5) -> tuple[Floats, Floats]:
    """Give another solution with the same softmax: h gets S^share, w gets S^(1 - share).

    ``h_c . w_x = (A h_c) . (A^-T w_x)`` for any invertible A, and adding one vector to all w only
    moves lambda_c.  So the objective fixes the scores with their row means taken off, U S V^T, and
    no more.  ``share=0.5`` is the solution of least ``|h|^2 + |w|^2``, the one an infinitesimal
    weight decay would choose; 0 makes the context vectors white, 1 puts all the spread into them.
    Directions without spread are dropped.

    Examples
    --------
    >>> h, w = rebalance(np.eye(3), 4 * np.eye(3))
    >>> h.shape, bool(np.isclose((h**2).sum(), (w**2).sum()))
    ((3, 2), True)
    """
    left, values, right = np.linalg.svd(_center_rows(h @ w.T), full_matrices=False)
    rank = int((values > 1e-9 * values[0]).sum())
    spread = values[:rank]
    return left[:, :rank] * spread**share, right[:rank].T * spread ** (1 - share)


def _center_rows(matrix: Floats) -> Floats:
    return np.asarray(matrix - matrix.mean(axis=1, keepdims=True))


def _set_margins(matrix: Floats, rows: Floats, columns: Floats) -> Floats:
    """Rescale rows and columns of a positive matrix until it has these sums (Sinkhorn)."""
    right = np.ones(len(columns))
    for _ in range(10_000):
        left = rows / (matrix @ right)
        before, right = right, columns / (left @ matrix)
        if np.abs(right / before - 1).max() < 1e-13:
            break
    return left[:, None] * matrix * right


def _describe(topics: Floats, index: int) -> str:
    parts = [f"{topics[k]:.0%} {TOPICS[k]}" for k in np.argsort(-topics)[:2] if topics[k] >= 0.1]
    return f"context {index}: {', '.join(parts)}"


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
