"""Where things lie on this machine: the cache, and the small files that the package carries."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
