"""One way to the files of a data set: a folder that is named, the cache, the hub.

Nothing is fetched unless a caller says ``download=True``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bertflow_lite.files import cache_dir, expand, tidy_path
from bertflow_lite.hub import hub_file

__all__ = ["Found", "HubFile", "Source", "check_count"]


class HubFile(NamedTuple):
    """A file of a data set on the hub, and how many pairs the official one has."""

    repo: str
    file: str
    pairs: int = 0


class Found(NamedTuple):
    """Where a set was found: nowhere if there are no paths.

    ``place`` is for people to read; ``passed`` says why each earlier place would not do.
    """

    place: str
    paths: tuple[Path, ...]
    passed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where the files of a data set may lie."""

    name: str  # what errors call the set
    files: tuple[str, ...]  # as they lie in a folder on this machine
    hub: tuple[HubFile, ...]  # what the hub has in their place
    layout: str  # what a folder must have, in words
    inside: tuple[str, ...] = ("", "..")  # where they may lie in it, in order; ".." is above it
    kept: str = ""  # the place in the cache, a folder
    # Takes the hub's file and `files`, puts these into the cache and gives their folder.
    unpack: Callable[[Path, tuple[str, ...]], Path] | None = None

    def find(self, data_dir: str | os.PathLike[str] | None = None) -> Found:
        """Look without a connection; default of `data_dir`: what ``BERTFLOW_DATA`` names."""
        places: dict[str, Path] = {}
        passed: list[str] = []
        if data_dir is not None:
            places["data_dir"] = expand(data_dir)
        elif named := os.environ.get("BERTFLOW_DATA"):
            places["$BERTFLOW_DATA"] = expand(named)
        else:
            passed.append("BERTFLOW_DATA is not set")
        for place, root in (places | {"the cache": cache_dir() / self.kept}).items():
            missing = self.files
            for step in self.inside:
                # Not `root / ".."`, which follows a symbolic link to somewhere else.
                folder = root.absolute().parent if step == ".." else root / step
                absent = tuple(file for file in self.files if not (folder / file).is_file())
                if not absent:
                    return Found(place, tuple(folder / file for file in self.files))
                missing = min(missing, absent, key=len)  # the layout that comes nearest
            passed.append(f"{place} ({tidy_path(root)}) has no {missing[0]}")
        try:
            paths = () if self.unpack else self._from_hub()
        except FileNotFoundError:
            paths = ()
        return Found("the hub's cache" if paths else "", paths, tuple(passed))

    def get(
        self,
        call: str,
        data_dir: str | os.PathLike[str] | None = None,
        download: bool = False,
        *,
        progress: bool = True,
    ) -> Found:
        """Find the files, or fetch them if that is allowed; the errors are those of `hub_file`.

        ``call`` is what a caller types to fetch them, for the error; the folder in place of
        ``data_dir`` is the one that ``BERTFLOW_DATA`` names.
        """
        if data_dir is not None and not expand(data_dir).is_dir():
            raise FileNotFoundError(f"data_dir is {tidy_path(data_dir)}, which is no folder.")
        found = self.find(data_dir)
        if found.paths:
            return found
        if not download:
            homes = ", ".join(dict.fromkeys(one.repo for one in self.hub))
            raise FileNotFoundError(
                f"{self.name} was not found: {'; '.join(found.passed)}. One of these will help: "
                f"set BERTFLOW_DATA (or data_dir) to a folder with {self.layout}; put the same "
                f"into {tidy_path(cache_dir() / self.kept)}; or call {call} (on the command line: "
                f"--download), which fetches it from the hub ({homes})."
            )
        paths = self._from_hub(download=True, progress=progress)
        if self.unpack is None:
            return Found("the hub", paths)
        folder = self.unpack(paths[0], self.files)
        return Found("the cache", tuple(folder / file for file in self.files))

    def _from_hub(self, **options: bool) -> tuple[Path, ...]:
        return tuple(hub_file(one.repo, one.file, **options) for one in self.hub)


def check_count(what: str, met: int, official: int) -> None:
    """Raise ValueError where a set has not its official number of pairs."""
    if met != official:
        raise ValueError(
            f"{what} here, where the official file has {official}; scores on it would not be "
            "comparable. Take a complete copy, written without quoting, or pass "
            "check_counts=False to use this one as it is."
        )
