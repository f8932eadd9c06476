"""A cache of sentence vectors on disk, so that a sentence is encoded once.

One SQLite file for each model (its fingerprint), maximum length and precision; one row for each
text and *slot*, a slot being one layer under one pooling (``"mean:4"``).  SQLite brings what a
cache needs and a home-made file would have to reinvent: a write happens whole or not at all, also
when the process is killed, and two processes can use it at once.

A cache is a convenience.  Where it cannot be read or written (a read-only or full disk, a damaged
file), a warning says so and the work goes on without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["EmbeddingCache"]

logger = logging.getLogger(__name__)
# Part of the file name: a change of the table's meaning must not read old files.
FORMAT = 1
BUSY_SECONDS = 60.0
LOOKUP_BATCH = 500  # below SQLite's limit on the variables of one statement


class EmbeddingCache:
    """Vectors by (text, slot).

    ``folder`` is where the file lies (None switches the cache off), ``key`` what all vectors in it
    share (model fingerprint, maximum length, precision), ``dim`` their width.
    """

    def __init__(self, folder: Path | None, key: str, dim: int) -> None:
        self.dim = dim
        self.path = None if folder is None else folder / f"{key}-v{FORMAT}.sqlite"

    def read(self, texts: Sequence[str], slot: str, out: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Fill the rows of ``out`` whose text is known (no text twice), and say which they are."""
        found = np.zeros(len(texts), dtype=bool)
        if self.path is None:
            return found
        try:
            if not self.path.exists():
                return found
        except OSError as error:  # a folder above it may not be looked into
            self._give_up(error)
            return found
        row_of = {_text_key(text): row for row, text in enumerate(texts)}
        keys = list(row_of)
        with self._connection() as db:
            if db is None:
                return found
            for start in range(0, len(keys), LOOKUP_BATCH):
                part = keys[start : start + LOOKUP_BATCH]
                marks = ",".join("?" * len(part))
                query = f"SELECT text, vector FROM vectors WHERE slot = ? AND text IN ({marks})"
                for key, blob in db.execute(query, (slot, *part)):
                    if len(blob) == 4 * self.dim:
                        out[row_of[key]] = np.frombuffer(blob, dtype="<f4")
                        found[row_of[key]] = True
        return found

    def write(self, texts: Sequence[str], slot: str, vectors: NDArray[np.float32]) -> None:
        """Keep ``vectors[i]`` for ``texts[i]``; all of them or, if it is interrupted, none."""
        if self.path is None:
            return
        rows = [
            (_text_key(text), slot, np.ascontiguousarray(vector, dtype="<f4").tobytes())
            for text, vector in zip(texts, vectors, strict=True)
        ]
        with self._connection() as db:
            if db is not None:
                db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection | None]:
        """Give an open connection, committed at the end, or None where there can be none."""
        assert self.path is not None
        db: sqlite3.Connection | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, timeout=BUSY_SECONDS)
            db.execute(
                "CREATE TABLE IF NOT EXISTS vectors "
                "(text BLOB, slot TEXT, vector BLOB, PRIMARY KEY (text, slot))"
            )
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)
            if db is not None:
                db.close()
            yield None
            return
        try:
            with db:  # commits at the end, rolls back on an error
                yield db
        except sqlite3.Error as error:
            self._give_up(error)
        finally:
            db.close()

    def _give_up(self, error: Exception) -> None:
        path, self.path = self.path, None
        assert path is not None
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(
            error, sqlite3.OperationalError
        )
        if damaged:
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(".damaged"))
                # An unfinished transaction belongs to the old file; the new one must not replay it.
                path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
                self.path = path  # start a new file with the next call
        logger.warning(
            "the embedding cache %s cannot be used (%s); %s",
            path.name,
            error,
            "it was set aside and a new one is begun" if damaged else "going on without it",
        )


def _text_key(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
