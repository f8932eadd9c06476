"""Levenshtein distance between sentences, over words or other units (rapidfuzz computes it)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rapidfuzz.distance import Levenshtein

from bertflow_lite.similarity import Floats
from bertflow_lite.text import check_sentences, split_words

__all__ = ["UNITS", "edit_distances"]

_WORD_LIKE = re.compile(r"\w")

UNITS: dict[str, str] = {
    "words": "what stands between spaces: the paper's, on SentEval's text, which has its "
    "punctuation set apart",
    "words and marks": "words and single punctuation marks: for text as people type it",
    "words only": "what stands between spaces and holds a letter or a digit",
    "characters": "characters, spaces included",
    "wordpieces": "the encoder's own tokens",
}
"""What an edit changes: the names that `edit_distances` takes, and what each means."""


def edit_distances(
    first: Sequence[str],
    second: Sequence[str],
    unit: str = "words",
    *,
    normalize: bool = False,
    tokenizer: Any = None,
) -> Floats:
    """Levenshtein distance of each sentence in `first` to the same one in `second`.

    Parameters
    ----------
    first, second : sequence of str, length n
        The sentences of the pairs. Case does not count (a tokenizer follows its own rule).
    unit : str, default "words"
        What an edit puts in, takes out or replaces: a key of `UNITS`.
    normalize : bool, default False
        Divide by the longer sentence's number of units: 0 (the same) to 1 (nothing in common).
    tokenizer : transformers tokenizer, optional
        For ``unit="wordpieces"``: `Encoder.tokenizer`.

    Returns
    -------
    ndarray of float64, shape (n,)
        In units (whole numbers), or from 0 to 1.

    Raises
    ------
    ValueError
        If the lengths differ, the unit is unknown, or wordpieces lack their tokenizer.

    Examples
    --------
    >>> edit_distances(["I like this restaurant"], ["I dislike this restaurant"]).tolist()
    [1.0]
    >>> edit_distances(["Dog bites man."], ["Man bites dog."], "characters").tolist()
    [6.0]
    """
    one, two = check_sentences(first), check_sentences(second)
    if len(one) != len(two):
        raise ValueError(
            f"There are {len(one)} first sentences, but {len(two)} second ones; a pair needs both."
        )
    split = _splitter(unit, tokenizer)
    measure = Levenshtein.normalized_distance if normalize else Levenshtein.distance
    return np.array(
        [measure(split(a), split(b)) for a, b in zip(one, two, strict=True)], dtype=np.float64
    )


def _splitter(unit: str, tokenizer: Any) -> Callable[[str], Sequence[Any]]:
    if unit not in UNITS:
        raise ValueError(f"unit is {unit!r}; it must be one of: {', '.join(UNITS)}.")
    if unit == "wordpieces":
        if tokenizer is None:
            raise ValueError("wordpieces need a tokenizer: pass tokenizer=encoder.tokenizer.")
        return lambda text: list(tokenizer.tokenize(text))
    splitters: dict[str, Callable[[str], Sequence[Any]]] = {
        "words": lambda text: text.lower().split(),
        "words and marks": split_words,
        "words only": lambda text: [w for w in text.lower().split() if _WORD_LIKE.search(w)],
        "characters": str.lower,
    }
    return splitters[unit]
