"""Are two contexts alike?  By what they predict, and by their vectors (Section 2.1).

The paper's higher-order claim is that the second follows the first.  The functions here take plain
arrays, from the toy world (`pmi`) or from a language model (`lm_probe`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr

__all__ = [
    "cosines",
    "frequency_direction",
    "jensen_shannon_similarity",
    "overlap",
    "pmi_cosine",
    "remove_direction",
    "upper",
]

Floats = NDArray[np.float64]


def frequency_direction(w: Floats, p_word: Floats) -> Floats:
    """Find the unit vector u in context space whose ``u . w_x`` is most like log p(x).

    Least squares over words with a free constant and scale; shape (width,).
    """
    target = np.log(p_word)
    centered = w - w.mean(axis=0)
    # The normal equations need no second copy of w, which is large in a real model.
    solution = np.linalg.lstsq(centered.T @ centered, centered.T @ (target - target.mean()))[0]
    return np.asarray(solution / np.linalg.norm(solution))


def remove_direction(h: Floats, direction: Floats) -> Floats:
    """Subtract from each row of h, shape (n, width), its part along a unit vector."""
    return h - np.outer(h @ direction, direction)


def upper(matrix: Floats) -> Floats:
    """Take the entries above the diagonal: one for each pair, shape (n (n - 1) / 2,)."""
    return matrix[np.triu_indices(len(matrix), 1)]


def cosines(h: Floats) -> Floats:
    """Cosine between all rows of h, shape (n, width) -> (n, n)."""
    unit = h / np.linalg.norm(h, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


def overlap(conditional: Floats) -> Floats:
    """Bhattacharyya coefficient ``sum_x sqrt(p(x|c) p(x|c'))`` of all rows, shape (n, n).

    Our similarity of two contexts: 1 if they predict the same, 0 if they share no word.  It is 1
    minus the squared Hellinger distance and orders pairs almost as the Jensen-Shannon distance
    does, but is one matrix product, so that it can be had for a vocabulary of 50,000 too.
    """
    root = np.sqrt(conditional)
    return np.asarray(root @ root.T)


def jensen_shannon_similarity(conditional: Floats) -> Floats:
    """1 minus the Jensen-Shannon divergence in bits, of all rows, shape (n, n): from 0 to 1."""
    n = len(conditional)
    result = np.ones((n, n))
    for i, row in enumerate(conditional):
        rest = conditional[i:]
        middle = (row + rest) / 2
        nats = (rel_entr(row, middle) + rel_entr(rest, middle)).sum(axis=1) / 2
        result[i, i:] = result[i:, i] = 1 - nats / np.log(2)
    return result


def pmi_cosine(conditional: Floats, p_word: Floats) -> Floats:
    """Cosine of PMI rows under the inner product ``sum_x p(x) a(x) b(x)``, shape (n, n).

    For small PMI, half the squared distance of this inner product is KL(p(.|c) || p(.|c')).
    """
    return cosines(np.log(conditional / p_word) * np.sqrt(p_word))
