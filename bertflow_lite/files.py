"""Where things lie on this machine, writing them whole, and reading large arrays row by row."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MappedRows", "map_rows", "put_folder", "replacing", "write_json", "write_rows"]

_PACKAGE = Path(__file__).resolve().parent


def cache_dir() -> Path:
    """Return the folder for all that is fetched or computed once and kept; it need not exist yet.

    It is what ``BERTFLOW_CACHE`` names, else ``bertflow-lite`` in the platform's cache folder.
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
    """Put the home folder in place of ``~``; leave a ``~`` that stands for nobody as it is."""
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
    """Find a file of the project's own ``data/`` folder, by its path in there.

    A checkout (and an editable install of it) has ``data/`` beside the package; a wheel carries
    it inside the package. The checkout is asked first, so that an edit there shows at once.
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
    """Write JSON so that a reader sees the old file or the new one, never a part."""
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

    After an error or an interruption nothing new is left, and what was there before still is.  A
    process that is killed outright can leave a hidden file beside the place, which nobody reads.
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


def put_folder(scratch: Path, folder: Path) -> None:
    """Rename a complete folder to its name; what was there goes only when that has worked."""
    old = folder.with_name(f".{folder.name}-{os.getpid()}-old")
    with contextlib.suppress(FileNotFoundError):  # there is none
        folder.rename(old)
    try:
        scratch.rename(folder)
    except BaseException:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


# Up to this many bytes a mapped array is read whole, and is then an array like any other.
READ_WHOLE = 256 * 2**20
# Rows read at a time of one that is larger.
BLOCK_ROWS = 4096
# Mapped pages count as memory of the process: they are given back after this many single rows,
# each of which brings along up to 2 MB of the file.
ROWS_AT_HAND = 256


class MappedRows:
    """Rows of a memory-mapped array, read as copies, so that memory stays bounded."""

    def __init__(self, array: np.memmap[Any, Any]) -> None:
        self.array = array
        # Single rows are read from the file itself: mapped, each would bring much else along.
        # Not where the array is a view of a part, or has changes of its own (mode "c").
        direct = array.mode == "r" and isinstance(array.base, mmap.mmap)
        self._file = array.filename if direct and array.flags.c_contiguous else None

    def __len__(self) -> int:
        return len(self.array)

    def blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Give all rows in order, in blocks, each with the number of its first row."""
        for start in range(0, len(self.array), BLOCK_ROWS):
            block = np.array(self.array[start : start + BLOCK_ROWS])
            self._release()
            yield start, block

    def take(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Give the rows with these numbers."""
        array = self.array
        found = np.empty((len(rows), array.shape[1]), array.dtype)
        if self._file is not None:
            with open(self._file, "rb", buffering=0) as file:
                for row, place in zip(found, rows.tolist(), strict=True):
                    file.seek(array.offset + place * row.nbytes)
                    if file.readinto(row.data) != row.nbytes:
                        raise ValueError(f"{self._file!r} was cut while it was read.")
            return found
        for start in range(0, len(rows), ROWS_AT_HAND):
            part = slice(start, start + ROWS_AT_HAND)
            found[part] = array[rows[part]]
            self._release()
        return found

    def _release(self) -> None:
        """Give the mapped pages back to the system, which keeps them in its own cache.

        Not those of a copy-on-write map (mode "c"), whose changes live only in these pages; nor
        on Windows, which has no such call.
        """
        base: Any = self.array
        mode = None
        while isinstance(base, np.ndarray):
            mode = getattr(base, "mode", None) or mode
            base = base.base
        if isinstance(base, mmap.mmap) and mode in ("r", "r+", "w+") and hasattr(base, "madvise"):
            base.madvise(mmap.MADV_DONTNEED)


def map_rows(x: Any) -> MappedRows | NDArray[Any] | None:
    """Open embeddings that lie on disk: a path, or an array that is memory-mapped.

    Gives an array where it is small (`READ_WHOLE`), and None for what is not on disk.
    """
    if isinstance(x, MappedRows):
        return x
    if isinstance(x, str | os.PathLike):
        path = Path(x)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {os.fspath(path)!r} with embeddings.")
        if path.suffix != ".npy":
            raise ValueError(
                f"{path.name!r}: embeddings are read from a .npy file, which numpy.save writes."
            )
        try:
            x = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(
                f"{path.name!r} was cut, or is no .npy file of numbers: write it again."
            ) from error
    elif not isinstance(x, np.memmap):
        return None
    if x.ndim != 2 or x.nbytes <= READ_WHOLE:
        return np.array(x)
    return MappedRows(x)


def write_rows(path: str | os.PathLike[str], n_rows: int, blocks: Iterator[NDArray[Any]]) -> Path:
    """Write blocks of rows as one ``.npy`` file, which appears when it is complete."""
    path = Path(path)
    if path.suffix != ".npy":
        raise ValueError(f"{path.name!r} must end in .npy, the format that is written.")
    with replacing(path) as file:
        for number, block in enumerate(blocks):
            block = np.ascontiguousarray(block)
            if not number:
                header = np.lib.format.header_data_from_array_1_0(block)
                shape = (n_rows, *block.shape[1:])
                np.lib.format.write_array_header_1_0(file, {**header, "shape": shape})
            file.write(block.data)
    return path
