"""Where data sets may lie: a folder that the caller names, the environment's, the cache."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertflow_lite.paths import expand, tidy_path

__all__ = ["check_data_dir", "find_files"]


def check_data_dir(data_dir: str | os.PathLike[str] | None) -> None:
    """Raise FileNotFoundError where a caller named a folder that is none."""
    if data_dir is not None and not expand(data_dir).is_dir():
        raise FileNotFoundError(f"data_dir is {tidy_path(data_dir)}, which is no folder.")


def find_files(
    files: Sequence[str],
    data_dir: str | os.PathLike[str] | None,
    *,
    inside: Sequence[str],
    then: Mapping[str, Path],
) -> tuple[str, Path | None, list[str]]:
    """Return the first place that has all `files`.

    Parameters
    ----------
    files : sequence of str
        Paths relative to the wanted folder.
    data_dir : path, optional
        The folder that the caller names. Default: the one that ``BERTFLOW_DATA`` names.
    inside : sequence of str
        Where in that folder the files may lie, in the order to try: ``""`` is the folder itself,
        ``".."`` the one above it.
    then : mapping of str to Path
        Further places, label to folder, looked into in the same way.

    Returns
    -------
    place : str
        ``"data_dir"``, ``"$BERTFLOW_DATA"`` or a key of `then`; empty where nothing was found.
    folder : Path or None
        The folder that has the files.
    reasons : list of str
        Why each earlier place was passed over.
    """
    named = os.environ.get("BERTFLOW_DATA")
    reasons = []
    places = dict(then)
    if data_dir is not None:
        places = {"data_dir": Path(data_dir)} | places
    elif named:
        places = {"$BERTFLOW_DATA": Path(named)} | places
    else:
        reasons.append("BERTFLOW_DATA is not set")
    for label, root in places.items():
        root = expand(root)
        missing: Sequence[str] = files
        for step in inside:
            # Not `root / ".."`, which follows a symbolic link to somewhere else.
            folder = root.absolute().parent if step == ".." else root / step
            absent = [file for file in files if not (folder / file).is_file()]
            if not absent:
                return label, folder, reasons
            missing = min(missing, absent, key=len)  # the layout that comes nearest
        reasons.append(f"{label} ({tidy_path(root)}) has no {missing[0]}")
    return "", None, reasons
