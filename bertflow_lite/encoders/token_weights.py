"""What each token counts in the mean over a sentence: weights by rarity, for use before the mean.

A plain mean gives "the" as much say as "giraffe".  With weights w_t the sentence vector is

    sum_t w_t h_t / sum_t w_t,

h_t being the hidden state of token t.  `KINDS` says how the weights are found from sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bertflow_lite.text import did_you_mean

__all__ = ["KINDS", "TokenWeights"]

SIF_A = 1e-3
# Far beyond any weight of `KINDS`, far below what float32 states times it could not hold.
LARGEST = 1e6


class TokenWeights:
    """A weight for each token of a vocabulary.

    Parameters
    ----------
    values : array-like, shape (n_vocabulary,)
        Weights by token id: finite, from 0 to a million, and not all of them 0.  A token of
        weight 0 is left out of the mean.
    kind : str, default "own"
        How they were found: a key of `KINDS`, or any other name.

    Attributes
    ----------
    fingerprint : str
        16 hex digits over the values.

    Examples
    --------
    >>> weights = TokenWeights([0.0, 1.0, 2.5])
    >>> weights
    TokenWeights('own', n_vocabulary=3)
    """

    def __init__(self, values: ArrayLike, kind: str = "own") -> None:
        try:
            found = np.array(values, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise ValueError("token weights must be numbers, one for each token id.") from error
        if found.ndim != 1 or not len(found):
            raise ValueError(
                f"token weights have the shape {found.shape}; give one for each token id, (n,)."
            )
        if not np.isfinite(found).all() or found.min() < 0 or found.max() > LARGEST:
            raise ValueError(
                f"token weights must be finite and from 0 to {LARGEST:,.0f}; these reach from "
                f"{found.min()} to {found.max()}."
            )
        if not found.any():
            raise ValueError("all token weights are 0: no token would be left to average.")
        found.setflags(write=False)  # the fingerprint stands for them
        self.values: NDArray[np.float32] = found
        self.kind = str(kind)

    def __repr__(self) -> str:
        return f"TokenWeights({self.kind!r}, n_vocabulary={len(self.values)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenWeights) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over the values."""
        return sha256(np.ascontiguousarray(self.values, dtype="<f4").data).hexdigest()[:16]

    def of(self, ids: Tensor) -> Tensor:
        """Look up the weights of token ids.

        Parameters
        ----------
        ids : Tensor of int
            Any shape.

        Returns
        -------
        Tensor of float32, the same shape
        """
        return torch.tensor(self.values, device=ids.device)[ids]


KINDS: dict[str, Callable[..., NDArray[np.float64]]] = {
    "idf": lambda n, holding, _: np.log((1 + n) / (1 + holding)) + 1,
    "idf-1": lambda n, holding, _: np.log((1 + n) / (1 + holding)),
    "sif": lambda _, __, share: SIF_A / (SIF_A + share),
}
"""Weights by name, each a function of n, the number of sentences; n_t, that of the sentences that
hold token t; and p_t, its share of all tokens but the special ones.

- ``"idf"``: ln((1 + n) / (1 + n_t)) + 1, scikit-learn's smoothed inverse document frequency.
  Special tokens stand in every sentence and have the least weight, 1.
- ``"idf-1"``: the same less 1. What stands in every sentence, [CLS] and [SEP] too, counts nothing.
- ``"sif"``: a / (a + p_t) with a = 0.001 (Arora et al. 2017).  Special tokens are no words and are
  left out: weight 0.
"""


def check_kind(kind: object) -> str:
    """Give the kind, a key of `KINDS`; a ValueError offers the closest one."""
    if not isinstance(kind, str) or kind not in KINDS:
        hint = did_you_mean(str(kind), KINDS)
        raise ValueError(f"no token weights {kind!r}; there are {', '.join(KINDS)}.{hint}")
    return kind


def count_weights(
    rows: Iterable[Sequence[int]], n_vocabulary: int, kind: str, special: Sequence[int] = ()
) -> TokenWeights:
    """Find weights by the rarity of tokens in sentences, each given as its token ids.

    ``kind`` is a key of `KINDS`; ``special`` are ids of tokens that are no words, such as [CLS] and
    [SEP].  A token that no sentence holds has the largest weight.

    Examples
    --------
    >>> count_weights([[0, 1], [0, 2], [0, 1]], 4, "idf-1").values.round(2)
    array([0.  , 0.29, 0.69, 1.39], dtype=float32)
    """
    check_kind(kind)
    n = 0
    holding: Counter[int] = Counter()
    occurring: Counter[int] = Counter()
    for row in rows:
        n += 1
        holding.update(set(row))
        occurring.update(row)
    for token in special:
        occurring.pop(token, None)
    held, share = np.zeros(n_vocabulary), np.zeros(n_vocabulary)
    held[list(holding)] = list(holding.values())
    share[list(occurring)] = list(occurring.values())
    share /= max(1, share.sum())
    values = KINDS[kind](n, held, share)
    if kind == "sif":
        values[list(special)] = 0
    return TokenWeights(values, kind)
