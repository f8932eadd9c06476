"""The container that the package passes scored sentence pairs around in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.text import check_sentences

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SentencePairs", "fingerprint_of"]


def fingerprint_of(content: Sequence[Any]) -> str:
    """Digest text and numbers, the same on every machine.

    Parameters
    ----------
    content : sequence
        What JSON can hold.

    Returns
    -------
    str
        16 hex digits, the start of a SHA-256.

    Examples
    --------
    >>> fingerprint_of(["A cat sat.", 4.5])
    '84b6609199742cd6'
    """
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

    Raises
    ------
    ValueError
        If the parts differ in length, a sentence is no string, or a gold score is no number.

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

        Raises
        ------
        ValueError
            If a truth mask has another length, or a position lies outside.
        """
        chosen = np.asarray(mask)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise ValueError(
                    f"The mask has shape {chosen.shape}; {len(self)} pairs need ({len(self)},)."
                )
            chosen = np.flatnonzero(chosen)
        chosen = chosen.astype(np.intp) if chosen.size == 0 else chosen
        if chosen.ndim != 1 or not np.issubdtype(chosen.dtype, np.integer):
            raise ValueError("select takes a 1-d array of truth values or of whole numbers.")
        if chosen.size and not (-len(self) <= chosen.min() and chosen.max() < len(self)):
            raise ValueError(f"A position to select lies outside the {len(self)} pairs.")
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

    def to_frame(self) -> pd.DataFrame:
        """Give the pairs as a pandas table.

        Returns
        -------
        pandas.DataFrame, shape (n_pairs, 4 or more)
            Columns sentence1, sentence2, gold, subset, and kind and style where there are such.
        """
        import pandas as pd  # slow to import, and only needed here

        columns: dict[str, Any] = {
            "sentence1": self.sentences1,
            "sentence2": self.sentences2,
            "gold": self.gold,
            "subset": self.subsets,
        }
        if self.kinds is not None:
            columns["kind"] = self.kinds
        if self.styles is not None:
            columns["style"] = self.styles
        return pd.DataFrame(columns)
