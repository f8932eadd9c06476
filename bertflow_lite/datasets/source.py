"""One way to the files of a data set, and to what stands in them.

They are looked for in a folder that is named, then in the cache, then on the hub; nothing is
fetched unless a caller says ``download=True``.  The SimCSE authors host SentEval's files there in
one archive, which their evaluation and most later papers read; of it, only what proves to be right
is kept.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import math
import os
import tarfile
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from bertflow_lite.files import cache_dir, data_file, expand, replacing, tidy_path
from bertflow_lite.hub import hub_file

__all__ = ["ARCHIVE", "Found", "HubFile", "Source", "check_count", "unpack_sts"]

_log = logging.getLogger(__name__)


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


ARCHIVE = HubFile("princeton-nlp/datasets-for-simcse", "senteval.tar")
_LARGEST = 1 << 24  # bytes; the largest file we want has under 1 MB


def unpack_sts(archive: Path, needed: Collection[str]) -> Path:
    """Put the archive's STS and SICK files into the cache, and give the folder that holds them.

    Every file must have its known SHA-256, or hold the known text spaced or cased otherwise:
    copies of SentEval's data differ in how they tokenize (``isn't``, ``isn ' t``), which an
    uncased BERT does not see. A file that is neither stays out of the cache.
    """
    folder = cache_dir() / "senteval" / "downstream"
    where = tidy_path(archive.resolve())  # in the hub's cache the name is a link to the file
    known = _known_files()
    problems = {name: f"{name} is missing." for name in known}
    try:
        with tarfile.open(archive, "r:") as tar:  # not packed, so it cannot swell
            for member in tar:
                name = _wanted(member.name, known)
                if name is None or not problems.get(name, "").endswith("missing."):
                    continue
                path = PurePosixPath(member.name)
                large = member.size > _LARGEST
                if path.is_absolute() or ".." in path.parts or not member.isreg() or large:
                    raise ValueError(
                        f"{where} holds {member.name!r}, which leaves its folder, is "
                        "a link, or is far too large. Nothing more was unpacked; do not use it."
                    )
                content = tar.extractfile(member).read()  # type: ignore[union-attr]
                if problem := _check(name, content, *known[name]):
                    problems[name] = problem
                    continue
                del problems[name]
                with replacing(folder / name) as file:  # we choose the path, not the archive
                    file.write(content)
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(
            f"{where} is damaged or no tar archive ({error}). Delete it, and call "
            "again to fetch it anew."
        ) from error
    if wrong := [problems[name] for name in needed if name in problems]:
        raise ValueError(
            f"The archive {where} was not accepted: {' '.join(wrong)} Delete it to "
            "fetch it anew, or point BERTFLOW_DATA to a copy that you trust."
        )
    for problem in problems.values():
        _log.warning("Left out of the cache: %s", problem)
    return folder


def _wanted(path: str, known: Collection[str]) -> str | None:
    """Return the known file that an archive path ends with, whatever folders lie above it."""
    parts = PurePosixPath(path).parts
    tails = ("/".join(parts[-depth:]) for depth in (2, 3) if len(parts) >= depth)
    return next((tail for tail in tails if tail in known), None)


def _check(name: str, content: bytes, sha256: str, text_sha256: str) -> str:
    """Say what is wrong with a file's content, or nothing."""
    met = hashlib.sha256(content).hexdigest()
    if met == sha256:
        return ""
    letters = "".join(content.decode("utf-8", errors="replace").lower().split())
    if hashlib.sha256(letters.encode("utf-8")).hexdigest() == text_sha256:
        _log.info("%s has the known text, spaced or cased otherwise.", name)
        return ""
    return f"{name} has SHA-256 {met}, where {sha256} is expected."


def _known_files() -> dict[str, tuple[str, str]]:
    """Give each file's SHA-256, and that of its text without case and white space."""
    table = data_file("sts_sha256.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in table if line and not line.startswith("#")]
    return {path: (sha, text) for sha, text, path in rows}


_SMALL = 1 << 24  # bytes: up to this, no unpacked file is too large


def read_table(path: Path, columns: Sequence[int] | Sequence[str]) -> list[list[str]]:
    """Read columns of a tab-separated file without quoting (``.gz``: packed), or of a parquet file.

    They are named by position, for a file without a header line, or by title; a list for each.
    """
    if path.suffix == ".parquet":
        return _read_parquet(path, [str(column) for column in columns])
    lines = read_lines(path)
    first = 1
    positions = [column for column in columns if isinstance(column, int)]
    if not positions:
        header = lines[0].split("\t") if lines else []
        if missing := [str(title) for title in columns if title not in header]:
            raise ValueError(
                f"{_tidy_name(path)} has no column {' or '.join(missing)} in its first line, which "
                f"reads {header}."
            )
        positions = [header.index(str(title)) for title in columns]
        lines, first = lines[1:], 2
    rows = [_pick(line.split("\t"), positions, path, n) for n, line in enumerate(lines, first)]
    return [[row[i] for row in rows] for i in range(len(positions))]


def _tidy_name(path: Path) -> str:
    """Name a file by its last two path parts: enough to find it, the same on every machine."""
    return "/".join(path.parts[-2:])


def _read_parquet(path: Path, titles: list[str]) -> list[list[str]]:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=titles)
        return [[str(value) for value in table[title].to_pylist()] for title in titles]
    except (pyarrow.lib.ArrowException, KeyError, OSError) as error:
        raise ValueError(
            f"{_tidy_name(path)} is damaged or has not the columns {', '.join(titles)} ({error}). "
            f"Delete {tidy_path(path.resolve())} and call again to fetch it anew."
        ) from error


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 text file, packed where its name ends in ``.gz``."""
    try:
        content = _unpack(path) if path.suffix == ".gz" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{_tidy_name(path)} is damaged or cut short ({error}). Take a fresh copy."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{_tidy_name(path)} is not UTF-8 (byte {error.start}). Convert it, or take the copy "
            "that SentEval's script makes."
        ) from error
    # Not str.splitlines: it would also split at U+0085, U+2028 and the like, which occur inside
    # sentences. A trailing carriage return belongs to the line end (SICK's test file has CRLF).
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _unpack(path: Path) -> bytes:
    # Text packs to a third or a tenth; what swells a hundredfold was made to fill the memory.
    limit = max(_SMALL, 100 * path.stat().st_size)
    with gzip.open(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(
            f"{_tidy_name(path)} unpacks to more than a hundred times its size, as no text does: "
            "it is not read. Take a copy from a place that you trust."
        )
    return content


def _pick(fields: list[str], positions: Sequence[int], path: Path, line: int) -> list[str]:
    if len(fields) <= max(positions):
        raise ValueError(
            f"{_tidy_name(path)}, line {line}: {len(fields)} tab-separated columns, where at least "
            f"{max(positions) + 1} are needed."
        )
    return [fields[i] for i in positions]


def read_scores(texts: list[str], path: Path, first_line: int) -> list[float]:
    """Turn gold scores into numbers from 0 to 5; raise ValueError naming file and line if not."""
    scores = []
    for line, text in enumerate(texts, first_line):
        try:
            score = math.nan if "_" in text else float(text)  # Python would read 1_0 as 10
        except ValueError:
            score = math.nan
        if not 0 <= score <= 5:
            raise ValueError(
                f"{_tidy_name(path)}, line {line}: the gold score {text!r} is not "
                "a number from 0 to 5."
            )
        scores.append(score)
    return scores


def read_labels(texts: list[str], path: Path, labels: Sequence[str]) -> list[int]:
    """Turn labels, or their positions written as numbers, into positions in `labels`."""
    known = {label: i for i, label in enumerate(labels)}
    known |= {str(i): i for i in range(len(labels))}
    found = [known.get(text, -1) for text in texts]
    if -1 in found:
        wrong = found.index(-1)
        # A text file has its header above.
        where = f"row {wrong}" if path.suffix == ".parquet" else f"line {2 + wrong}"
        raise ValueError(
            f"{_tidy_name(path)}, {where}: the label {texts[wrong]!r} is none of "
            f"{', '.join(labels)}."
        )
    return found
