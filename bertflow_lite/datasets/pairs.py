"""The container that the package passes scored sentence pairs around in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.text import check_sentences

__all__ = ["SentencePairs"]


def fingerprint_of(content: Sequence[Any]) -> str:
    """Digest what JSON can hold to 16 hex digits, the same on every machine."""
    return hashlib.sha256(json.dumps(content).encode("ascii")).hexdigest()[:16]


def _texts(name: str, given: Any) -> tuple[str, ...]:
    try:
        texts = check_sentences(given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return given if isinstance(given, tuple) else tuple(texts)


def _numbers(given: Any) -> NDArray[np.float64]:
    if hasattr(given, "detach"):  # a torch tensor
        given = given.detach().cpu().numpy()
    try:
        gold = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"gold must hold a number for each pair ({error}).") from None
    if gold.ndim != 1:
        raise ValueError(f"gold must be 1-d, a number for each pair; it has shape {gold.shape}.")
    return gold


def _labels(name: str, given: Any) -> NDArray[np.str_]:
    labels = np.asarray(given)
    if labels.ndim != 1 or not all(isinstance(one, str) for one in labels.tolist()):
        raise ValueError(
            f"{name} must hold a name for each pair, such as ['mine'] * n_pairs; it is "
            f"{'a table' if labels.ndim > 1 else repr(given)[:60]}."
        )
    return labels.astype(np.str_, copy=False)


@dataclass(frozen=True, eq=False)
class SentencePairs:
    """Sentence pairs with their gold scores.

    Parameters
    ----------
    name : str
        The set, such as ``"stsb"`` or ``"mini-sts"``.
    split : str
        ``"train"``, ``"dev"``, ``"test"`` or ``"all"``.
    sentences1, sentences2 : tuple of str
        The sentences of the pairs, as they stand in the file.  Lists, arrays and columns of a table
        are taken as well, here and below, and kept as what is named.
    gold : ndarray of float64, shape (n_pairs,)
        How alike people found them: 0 (unrelated) to 5 (the same); SICK-R 1 to 5.
    subsets : ndarray of str, shape (n_pairs,)
        The subset of each pair, such as ``"MSRpar"``. A set without subsets carries its own name.
    kinds, styles : ndarray of str, shape (n_pairs,), optional
        What a pair tries (``"negation"``..., ``"plain"`` for nothing) and how it is written
        (``"news"``...): only in the sets that come with the package.
    source : str, default ""
        Where the set was found.

    Examples
    --------
    >>> pairs = SentencePairs(
    ...     "mine",
    ...     "all",
    ...     ("A cat sat.", "It rained."),
    ...     ("A cat was sitting.", "A dog ran."),
    ...     np.array([4.5, 0.0]),
    ...     np.array(["mine", "mine"]),
    ... )
    >>> pairs
    SentencePairs('mine', split='all': 2 pairs, 1 subset, gold 0.0 to 4.5)
    >>> pairs.sentences
    ['A cat sat.', 'It rained.', 'A cat was sitting.', 'A dog ran.']
    """

    name: str
    split: str
    sentences1: tuple[str, ...]
    sentences2: tuple[str, ...]
    gold: NDArray[np.float64]
    subsets: NDArray[np.str_]
    kinds: NDArray[np.str_] | None = None
    styles: NDArray[np.str_] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        # Lists and columns of tables are taken, too, and become what the fields say.
        for name in ("sentences1", "sentences2"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        object.__setattr__(self, "gold", _numbers(self.gold))
        for name in ("subsets", "kinds", "styles"):
            if (labels := getattr(self, name)) is not None or name == "subsets":
                object.__setattr__(self, name, _labels(name, labels))
        parts = (self.sentences1, self.sentences2, self.gold, self.subsets, self.kinds, self.styles)
        lengths = [len(part) for part in parts if part is not None]
        if len(set(lengths)) > 1:
            raise ValueError(
                "sentences1, sentences2, gold, subsets (kinds, styles) must have one entry for "
                f"each pair, but their lengths are {lengths}."
            )

    def __len__(self) -> int:
        return len(self.gold)

    def __repr__(self) -> str:
        n_subsets = len(set(self.subsets.tolist()))
        span = f", gold {self.gold.min():.1f} to {self.gold.max():.1f}" if len(self) else ""
        return (
            f"SentencePairs({self.name!r}, split={self.split!r}: {len(self)} pairs, "
            f"{n_subsets} subset{'s' if n_subsets != 1 else ''}{span})"
        )

    @property
    def sentences(self) -> list[str]:
        """All first sentences, then all second ones: rows ``i`` and ``n_pairs + i`` form pair i."""
        return [*self.sentences1, *self.sentences2]

    @property
    def fingerprint(self) -> str:
        """16 hex digits over name, split, text and gold scores; the same on every machine."""
        return fingerprint_of(
            [self.name, self.split, self.sentences1, self.sentences2, self.gold.tolist()]
        )

    def select(self, mask: NDArray[Any] | Sequence[bool] | Sequence[int]) -> SentencePairs:
        """Keep some of the pairs.

        Parameters
        ----------
        mask : array-like
            One truth value for each pair, or the positions of the pairs to keep, in order.

        Returns
        -------
        SentencePairs
            The chosen pairs, with the same name and split and another fingerprint.
        """
        given = np.asarray(mask)
        try:
            chosen = np.arange(len(self))[given if given.size else given.astype(np.intp)]
        except IndexError as error:  # another length, a position outside, or no such values
            raise ValueError(
                f"select takes a truth value for each of the {len(self)} pairs, or whole numbers, "
                f"their positions: {error}."
            ) from None
        if chosen.ndim != 1:
            raise ValueError("select takes a 1-d array of truth values or of whole numbers.")
        return SentencePairs(
            self.name,
            self.split,
            tuple(self.sentences1[i] for i in chosen),
            tuple(self.sentences2[i] for i in chosen),
            self.gold[chosen],
            self.subsets[chosen],
            None if self.kinds is None else self.kinds[chosen],
            None if self.styles is None else self.styles[chosen],
            self.source,
        )
