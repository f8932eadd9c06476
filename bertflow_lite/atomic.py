"""Files that a reader meets whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["replacing"]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Write a file beside its place, which it takes only once it is complete.

    Parameters
    ----------
    path : str or path
        The file; its folder is made if missing.

    Yields
    ------
    binary file
        What is written to it is the new content.  After an error or an interruption nothing of it
        is left, and what was there before is still there.  A process that is killed outright can
        leave a hidden file beside the place, which nobody reads.

    Raises
    ------
    OSError
        If the disk is full or the place cannot be written; it names ``path``.

    Examples
    --------
    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "new" / "a.txt") as file:
    ...     _ = file.write(b"all of it")
    >>> [p.name for p in folder.rglob("*.txt")]
    ['a.txt']
    """
    path = Path(path)
    scratch = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(scratch).chmod(0o644)  # mkstemp makes it readable for its owner only
        os.replace(scratch, path)
    except BaseException as error:
        if scratch:
            Path(scratch).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, scratch):
            error.filename, error.filename2 = os.fspath(path), None
        raise
