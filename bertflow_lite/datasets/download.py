"""The archive of the STS and SICK files: unpack it, and keep only what proves to be right.

The SimCSE authors host SentEval's files as one archive on the hub; their evaluation and most later
papers read it.
"""

from __future__ import annotations

import hashlib
import logging
import tarfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from bertflow_lite.datasets.source import HubFile
from bertflow_lite.files import cache_dir, data_file, replacing, tidy_path

__all__ = ["ARCHIVE", "unpack_sts"]

ARCHIVE = HubFile("princeton-nlp/datasets-for-simcse", "senteval.tar")
_LARGEST = 1 << 24  # bytes; the largest file we want has under 1 MB
_log = logging.getLogger(__name__)


def unpack_sts(archive: Path, needed: Collection[str]) -> Path:
    """Put the archive's STS and SICK files into the cache.

    Every file must have its known SHA-256, or hold the known text spaced or cased otherwise:
    copies of SentEval's data differ in how they tokenize (``isn't``, ``isn ' t``), which an
    uncased BERT does not see. A file that is neither stays out of the cache.

    Returns
    -------
    Path
        The folder that now holds ``STS`` and ``SICK``.
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
