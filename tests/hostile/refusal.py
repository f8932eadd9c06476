"""What the tables of hostile cases say: a right answer, or an error that helps and leaves nothing.

A case is an input and what must happen to it.  What must happen is either a function, which looks
at the answer, or `refuses(...)`: an error of this type, whose sentence has these key words.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Refused:
    """An error of one type, whose message has all the key words."""

    kind: type[BaseException] | tuple[type[BaseException], ...]
    words: tuple[str, ...]


def refuses(kind: type[BaseException] | tuple[type[BaseException], ...], *words: str) -> Refused:
    """Say that a case ends in an error: its type, and words that its sentence must hold."""
    assert words, "an error is tested for what it says, too"
    return Refused(kind, words)


def must(expected: Refused | Callable[[Any], Any], action: Callable[[], Any], folder: Path) -> None:
    """Do what a case does, and hold the outcome against what must happen.

    After an error, every file below ``folder`` is as it was, and none is new.
    """
    if not isinstance(expected, Refused):
        expected(action())
        return
    with nothing_left(folder), pytest.raises(expected.kind) as caught:
        action()
    helps(str(caught.value), *expected.words)


def helps(message: str, *words: str) -> None:
    """Check that a message is a sentence to read and holds the key words."""
    assert len(message) > 15, message
    assert "Traceback" not in message
    missing = [word for word in words if word.lower() not in message.lower()]
    assert not missing, f"{missing} not in: {message}"


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Check that nothing below a folder was made, changed or lost, hidden files included."""
    before = contents(folder)
    yield
    after = contents(folder)
    assert sorted(after) == sorted(before)
    assert after == before


def contents(folder: Path) -> dict[str, str]:
    """Give each file below a folder, and a digest of what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or path.is_file():  # an empty folder more is no harm
            link = path.is_symlink()
            content = os.readlink(path).encode() if link else path.read_bytes()
            found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found
