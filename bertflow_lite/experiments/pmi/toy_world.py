"""An exact toy world for Section 2.1: what the softmax objective does and does not fix (Eq. 1-3).

A real corpus shows a language model samples of an unknown p*(x|c).  Here p*(x, c) is a table, the
loss is computed over the whole table, and training runs to convergence: what is left over is due
to the argument, not to noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

__all__ = [
    "Decomposition",
    "SoftmaxFit",
    "ToyWorld",
    "decompose",
    "fit_softmax",
    "make_world",
    "needed_width",
    "rebalance",
]

Floats = NDArray[np.float64]
TOPICS = ("music", "food", "sport", "law", "sea", "space", "health", "money")


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
