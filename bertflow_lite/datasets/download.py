"""Fetch the STS and SICK files from their public home, and keep only what proves to be right.

The home is the SentEval archive that the SimCSE authors host; their evaluation and most later
papers read it. Nothing here runs unless a caller says ``download=True``.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import logging
import os
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, cast

from filelock import FileLock
from tqdm import tqdm

from bertflow_lite.files import cache_dir, data_file, expand, tidy_path

__all__ = ["STS_URL", "Verify", "check_data_dir", "download_sts", "fetch", "find_files", "sts_url"]

STS_URL = (
    "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main/senteval.tar"
)
Verify = Literal["sha256", "counts"]
_CHUNK = 1 << 18  # bytes read at a time: the archive never lies in memory as a whole
_LARGEST = 1 << 24  # bytes; the largest file we want has under 1 MB
_TIMEOUT = 30.0  # seconds without a byte
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # HTTP answers worth another try
# Errors that trying again does not mend.
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EISDIR}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Known:
    """What we know of one file: two checksums and how many of its lines are not blank."""

    sha256: str
    text_sha256: str
    lines: int


def sts_url() -> str:
    """Return the archive's address: ``BERTFLOW_STS_URL`` where that is set, else `STS_URL`."""
    return os.environ.get("BERTFLOW_STS_URL") or STS_URL


def download_sts(
    needed: Collection[str], *, verify: Verify | None = None, progress: bool = True
) -> Path:
    """Fetch the SentEval archive and put its STS and SICK files into the cache.

    Every file must have its known SHA-256, or hold the known text spaced or cased otherwise:
    copies of SentEval's data differ in how they tokenize (``isn't``, ``isn ' t``), which an
    uncased BERT does not see. A file that is neither stays out of the cache.

    Parameters
    ----------
    needed : collection of str
        Files that must be there afterwards, such as ``"SICK/SICK_train.txt"``.
    verify : {"sha256", "counts"}, optional
        ``"counts"`` also accepts a file with another text, if it has the right number of lines,
        and logs a warning. Default: ``BERTFLOW_VERIFY`` where that is set, else ``"sha256"``.
    progress : bool, default True
        Show a progress bar.

    Returns
    -------
    Path
        The folder that now holds ``STS`` and ``SICK``.

    Raises
    ------
    ValueError
        If a needed file is not in the archive or not as it should be, if the archive is damaged
        or unsafe, or if `verify` is none of the two.
    FileNotFoundError
        If the address does not exist.
    ConnectionError
        If the transfer keeps failing; what has come is kept, and the next call goes on from it.
    """
    verify = verify or cast(Verify, os.environ.get("BERTFLOW_VERIFY") or "sha256")
    if verify not in ("sha256", "counts"):
        raise ValueError(f"verify is {verify!r}; it must be 'sha256' or 'counts'.")
    folder = cache_dir() / "senteval" / "downstream"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_dir()):
            pass
    except OSError as error:
        raise OSError(
            error.errno,
            f"the cache cannot be written ({error.strerror}): set BERTFLOW_CACHE to another folder",
            tidy_path(cache_dir()),
        ) from error
    archive = cache_dir() / "senteval.tar"
    # The lock goes with its process, so a killed download blocks nobody.
    with FileLock(cache_dir() / "senteval.lock"):
        if all((folder / name).is_file() for name in needed):
            return folder  # another process was here first
        fetch(sts_url(), archive, progress=progress)
        try:
            problems = _install(archive, folder, verify)
        finally:
            archive.unlink(missing_ok=True)  # a damaged archive must not be met again
    if wrong := [problems[name] for name in needed if name in problems]:
        raise ValueError(
            f"The archive from {sts_url()} was not accepted: {' '.join(wrong)} Set verify='counts' "
            "(or BERTFLOW_VERIFY=counts) to accept another text with the right number of lines, "
            "or point BERTFLOW_DATA to a copy you trust."
        )
    for problem in problems.values():
        _log.warning("Left out of the cache: %s", problem)
    return folder


def fetch(
    url: str, target: Path, *, progress: bool = True, attempts: int = 4, pause: float = 1.0
) -> None:
    """Stream `url` into `target`, going on where an earlier transfer stopped.

    The bytes go to ``<target>.part``, which takes the target's name only once it is complete.

    Parameters
    ----------
    url : str
        The address.
    target : Path
        The file to write; its folder must exist.
    progress : bool, default True
        Show a progress bar.
    attempts : int, default 4
        How often to try.
    pause : float, default 1.0
        Seconds before the second try; doubled before each further one.

    Raises
    ------
    FileNotFoundError
        If the server says that there is no such file.
    ConnectionError
        If the server refuses, or every try fails.
    """
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url!r} is no address on the web: it must start with https://.")
    part = target.with_name(target.name + ".part")
    failure = ""
    for attempt in range(attempts):
        if attempt:
            _log.info("%s; trying again (%d of %d)", failure, attempt + 1, attempts)
            time.sleep(pause * 2 ** (attempt - 1))
        try:
            if (failure := _transfer(url, part, progress)) == "":
                os.replace(part, target)
                return
        except urllib.error.HTTPError as error:
            reason = " ".join(str(error.reason).split())
            failure = f"the server answered {error.code} {reason}"
            if error.code == 416:  # nothing left from there on: our part is of another file
                part.unlink(missing_ok=True)
            elif error.code in (404, 410):
                raise FileNotFoundError(
                    f"There is no file at {url} (the server answered {error.code}). If it has "
                    "moved, set BERTFLOW_STS_URL to its new address."
                ) from error
            elif error.code not in _PASSING:
                raise ConnectionError(f"{url} could not be fetched: {failure}.") from error
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "errno", None) in _OF_THE_DISK:
                raise OSError(
                    error.errno,  # type: ignore[union-attr]
                    f"{error.strerror}: free some space or set BERTFLOW_CACHE to another place, "  # type: ignore[union-attr]
                    "and call again, which goes on from what has come",
                    tidy_path(part),
                ) from error
            failure = f"the transfer failed ({error or type(error).__name__})"
    raise ConnectionError(
        f"{url} could not be fetched in {attempts} tries; at the last, {failure}. Check the "
        f"network and call again: what has come is kept in {tidy_path(part)}."
    )


def _transfer(url: str, part: Path, progress: bool) -> str:
    """Read one answer into `part`; return what is wrong with it, or nothing."""
    start = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "bertflow-lite"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        # A server without ranges answers 200 with the whole file: begin again.
        resumed = answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        start = start if answer.status == 206 and resumed else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        with (
            part.open("ab" if start else "wb") as file,
            tqdm(
                total=total, initial=start, unit="B", unit_scale=True,
                desc=Path(url).name, disable=not progress,
            ) as bar,
        ):  # fmt: skip
            while block := answer.read(_CHUNK):
                file.write(block)
                bar.update(len(block))
    size = part.stat().st_size
    if total is None or size == total:
        return ""
    if size > total:  # cannot be mended by reading on
        part.unlink()
    return f"{size:,} of {total:,} bytes had come when the connection closed"


def _install(archive: Path, folder: Path, verify: Verify) -> dict[str, str]:
    """Unpack the wanted files that pass the check; return what is wrong with the others."""
    known = _known_files()
    problems = {name: f"{name} is missing." for name in known}
    try:
        with tarfile.open(archive, "r:") as tar:  # not packed, so it cannot swell
            for member in tar:
                name = _wanted(member.name, known)
                if name is None or not problems.get(name, "").endswith("missing."):
                    continue
                _refuse_unsafe(member)
                content = cast(tarfile.ExFileObject, tar.extractfile(member)).read()
                if problem := _check(name, content, known[name], verify):
                    problems[name] = problem
                    continue
                del problems[name]
                # We choose the path, not the archive. The rename keeps readers in other
                # processes from meeting half a file.
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                fresh = target.with_name(target.name + ".part")
                fresh.write_bytes(content)
                os.replace(fresh, target)
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(
            f"The file from {sts_url()} is damaged or no tar archive ({error}). It has been "
            "removed; call again to fetch it anew."
        ) from error
    return problems


def _wanted(path: str, known: Collection[str]) -> str | None:
    """Return the known file that an archive path ends with, whatever folders lie above it."""
    parts = PurePosixPath(path).parts
    tails = ("/".join(parts[-depth:]) for depth in (2, 3) if len(parts) >= depth)
    return next((tail for tail in tails if tail in known), None)


def _refuse_unsafe(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not member.isreg() or member.size > _LARGEST:
        raise ValueError(
            f"The archive from {sts_url()} holds {member.name!r}, which leaves its folder, is a "
            "link, or is far too large. Nothing more was unpacked; do not use this archive."
        )


def _check(name: str, content: bytes, known: _Known, verify: Verify) -> str:
    """Say what is wrong with a file's content, or nothing."""
    met = hashlib.sha256(content).hexdigest()
    if met == known.sha256:
        return ""
    text = content.decode("utf-8", errors="replace")
    letters = "".join(text.lower().split())
    if hashlib.sha256(letters.encode("utf-8")).hexdigest() == known.text_sha256:
        _log.info("%s has the known text, spaced or cased otherwise.", name)
        return ""
    lines = sum(bool(line.strip()) for line in text.split("\n"))
    if lines != known.lines:
        return f"{name} has {lines} lines that are not blank, where {known.lines} are expected."
    if verify == "counts":
        _log.warning("%s was accepted by its number of lines; its text is not the known one.", name)
        return ""
    return f"{name} has SHA-256 {met}, where {known.sha256} is expected."


def _known_files() -> dict[str, _Known]:
    table = data_file("sts_sha256.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in table if line and not line.startswith("#")]
    return {path: _Known(sha, text, int(lines)) for sha, text, lines, path in rows}


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
