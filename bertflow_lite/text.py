"""Sentences as the package takes them: well-formed strings, and their words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

__all__ = ["check_sentences", "did_you_mean", "split_words"]

_WORD = re.compile(r"\w+|[^\w\s]")


def check_sentences(sentences: Sequence[str]) -> list[str]:
    """Give the sentences as a list, or say which one is not a well-formed string."""
    if isinstance(sentences, (str, bytes)):
        raise ValueError("sentences is one string; give a list of sentences, such as [sentence].")
    if not isinstance(sentences, Iterable):
        raise ValueError(
            f"sentences is of type {type(sentences).__name__}; give a list of sentences."
        )
    if hasattr(sentences, "columns"):  # iterating over a table gives the names of its columns
        raise ValueError(
            f"sentences is a table ({type(sentences).__name__}); pass the one column that holds "
            "the sentences, such as df['text']."
        )
    if isinstance(sentences, (Set, Mapping)):
        raise ValueError(
            f"sentences is a {type(sentences).__name__}, whose order is none of yours, so rows of "
            "vectors could not be told apart: give a list."
        )
    texts: list[Any] = list(sentences)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(
                f"sentence {row} is of type {type(text).__name__}, not str. Leave it out, or put "
                "'' where a row must stay."
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"sentence {row} holds a lone surrogate and is not valid Unicode ({error}). "
                "Read the file again as UTF-8, with errors='replace' if need be."
            ) from None
    return texts


def split_words(text: str) -> list[str]:
    """Split a sentence into lower-cased words and single punctuation marks."""
    return _WORD.findall(text.lower())


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Offer the known name that comes closest to a misspelled one; empty if none is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
