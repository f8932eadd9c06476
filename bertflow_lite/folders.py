"""Folders that a reader meets whole or not at all, with several writers too.

A file is replaced in one step (`atomic`); a folder that is in use cannot be.  It takes two: the old
one is renamed away, the new one takes its name.  So writers go one after the other, and a reader
that finds the folder changed under its hands reads once more.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

__all__ = ["alone_in", "put_folder", "read_folder"]

Result = TypeVar("Result")
# Ending of the hidden folder that holds, for a moment, one that is being replaced.
_REPLACED = "-old"
# A look between two renames can find nothing at all, so it takes several alike to believe it.
_ALIKE = 4
_PAUSE = 0.005  # seconds
_TRIES = 100  # of a reader, while writers keep replacing; and of a writer where nothing locks


@contextlib.contextmanager
def alone_in(parent: Path) -> Iterator[bool]:
    """Wait until no other process is here for the same folder; gives whether that can be known.

    The lock is on the folder itself: no file is left behind, and the system lifts it when its
    holder is killed.  Windows and some network disks have none; there the answer is False.
    """
    handle = -1
    try:
        try:
            import fcntl

            handle = os.open(parent, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
            locked = True
        except (ImportError, OSError):
            locked = False
        yield locked
    finally:
        if handle >= 0:
            os.close(handle)  # which unlocks


def put_folder(scratch: Path, folder: Path, check: Callable[[], None] | None = None) -> None:
    """Rename a complete folder to its name; what was there goes only when that has worked.

    Parameters
    ----------
    scratch : Path
        The complete folder, on the same disk.
    folder : Path
        The name that it shall have.
    check : callable, optional
        Called when no other writer is at work: raises if the folder may not be replaced.

    Raises
    ------
    OSError
        If it cannot be renamed; then the old folder is in its place again.
    """
    old = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}{_REPLACED}")
    with alone_in(folder.parent) as locked:
        if check is not None:
            check()
        for left in reversed(range(_TRIES)):
            with contextlib.suppress(FileNotFoundError):  # there is none
                folder.rename(old)
            try:
                scratch.rename(folder)
                break
            except BaseException as error:
                taken = isinstance(error, OSError) and (
                    error.errno in (errno.ENOTEMPTY, errno.EEXIST) or folder.is_dir()
                )
                if not locked and taken and left:
                    shutil.rmtree(old, ignore_errors=True)  # another process was quicker
                    continue
                if old.exists():
                    old.rename(folder)
                raise
        _sync(folder.parent)  # the new name too shall outlast a loss of power
        # Ours, and those of a process that was killed; without a lock one may be in use.
        for replaced in _replaced(folder) if locked else [old]:
            shutil.rmtree(replaced, ignore_errors=True)


def read_folder(folder: Path, read: Callable[[Path], Result]) -> Result:
    """Read a folder that `put_folder` fills, again when it was replaced meanwhile.

    Parameters
    ----------
    folder : Path
        The folder.
    read : callable
        Reads from the path that it is given: the folder or, where a writer was killed between its
        two renames, what it was about to replace.

    Returns
    -------
    What ``read`` returns.

    Raises
    ------
    OSError, ValueError
        What ``read`` raises again and again while the folder stays as it is.
    """
    failed_at: set[tuple[int, ...]] | None = None
    alike = 0
    for left in reversed(range(_TRIES)):
        state = _state(folder)
        try:
            return read(folder if folder.is_dir() else _survivor(folder))
        except (OSError, ValueError):
            alike = alike + 1 if state == failed_at else 1
            if alike == _ALIKE or not left:
                raise
            failed_at = state
            time.sleep(_PAUSE)
    raise AssertionError("the last try returns or raises")


def _replaced(folder: Path) -> list[Path]:
    return list(folder.parent.glob(f".{glob.escape(folder.name)}-*{_REPLACED}"))


def _survivor(folder: Path) -> Path:
    """Give the newest folder that was being replaced, or the folder if there is none."""
    times: dict[Path, float] = {}
    for path in _replaced(folder):
        with contextlib.suppress(FileNotFoundError):  # removed since it was listed
            times[path] = path.stat().st_mtime
    return max(times, key=times.__getitem__, default=folder)


def _state(folder: Path) -> set[tuple[int, ...]]:
    """Tell a folder, or what it is replacing, from any that comes to stand in the same place."""
    state: set[tuple[int, ...]] = set()
    for path in [folder] if folder.is_dir() else _replaced(folder):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            state.add((status.st_dev, status.st_ino, status.st_ctime_ns, status.st_mtime_ns))
    return state


def _sync(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Windows has no such handle
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
