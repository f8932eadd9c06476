"""Where things lie on this machine: the cache, and the small files that the package carries."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

__all__ = ["replacing", "write_json"]

_PACKAGE = Path(__file__).resolve().parent


def cache_dir() -> Path:
    """Return the folder for everything that is fetched or computed once and kept.

    Returns
    -------
    Path
        The folder named by ``BERTFLOW_CACHE`` where that is set, else ``bertflow-lite`` in the
        platform's cache folder: ``$XDG_CACHE_HOME`` or ``~/.cache`` (Linux, Colab),
        ``~/Library/Caches`` (macOS), ``%LOCALAPPDATA%`` (Windows). It need not exist yet.
    """
    if named := os.environ.get("BERTFLOW_CACHE"):
        return expand(named)
    if sys.platform == "darwin":
        base = _home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")
    return base / "bertflow-lite"


def expand(path: str | os.PathLike[str]) -> Path:
    """Put the home folder in place of ``~``; leave a ``~`` that stands for nobody as it is.

    Parameters
    ----------
    path : str or path
        Such as ``"~/data"``.

    Examples
    --------
    >>> str(expand("~no-such-user/data")), str(expand("data"))
    ('~no-such-user/data', 'data')
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # as under a user number that has no entry, in some containers
        raise FileNotFoundError(
            "there is no home folder to keep the cache in: set BERTFLOW_CACHE to a folder."
        ) from None


def data_file(name: str) -> Path:
    """Find a file of the project's own ``data/`` folder.

    A checkout (and an editable install of it) has ``data/`` beside the package; a wheel carries
    it inside the package. The checkout is asked first, so that an edit there shows at once.

    Parameters
    ----------
    name : str
        Path relative to ``data/``, with forward slashes, for example ``"mini_sts.tsv"``.

    Returns
    -------
    Path
        The existing file or folder.

    Raises
    ------
    FileNotFoundError
        If neither place has it.
    """
    places = [_PACKAGE / "data"]
    # Without this check an installed package would look into site-packages/data, which may
    # belong to somebody else.
    if (_PACKAGE.parent / "pyproject.toml").is_file():
        places.insert(0, _PACKAGE.parent / "data")
    for place in places:
        if (place / name).exists():
            return place / name
    looked = " and ".join(tidy_path(place) for place in places)
    raise FileNotFoundError(
        f"The project's data file {name!r} is neither in {looked}. Install bertflow-lite again, "
        "or work from a complete checkout."
    )


def tidy_path(path: str | os.PathLike[str]) -> str:
    """Write a path relative to the home folder (``~/...``), where it lies inside it.

    Messages and tables then look alike on every machine and give no user name away.
    """
    path = Path(path)
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):  # not inside it, or there is none
        return str(path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part.

    Parameters
    ----------
    path : Path
        The file; its folder is made if missing.
    content : JSON-able
        A NaN or an infinity is a ValueError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write text atomically: to a file beside it, then rename."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


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
