"""Where blocks of rows come from: files, arrays, iterables, and functions of other blocks.

`source_of` finds the right one.  Each gives its blocks with the number of their first row, as
private copies, in order or, where it can, in random order.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

__all__ = ["Items", "Mapped", "Parts", "mapping", "source_of", "to_numpy"]

FloatArray = NDArray[np.floating[Any]]
Numbered = Iterator[tuple[int, NDArray[Any]]]
Share = tuple[int, int]


class Parts:
    """Arrays and files, one below the other: blocks can be read in any order."""

    once = False

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.starts = [0]  # the first row of each part, and the number of rows
        width: int | None = None
        kind: Any = None
        for part in parts:
            array, name = _open(part)
            if array.ndim != 2:
                raise ValueError(f"{name} has shape {array.shape}; it must be 2-D, (rows, dim).")
            if width is not None and array.shape[1] != width:
                raise ValueError(f"{name} has {array.shape[1]} columns, those before it {width}.")
            if kind not in (None, array.dtype):  # one would be rounded to the other, unseen
                raise ValueError(
                    f"{name} holds {array.dtype}, those before it {kind}: write them all as one."
                )
            width, kind = array.shape[1], array.dtype
            self.starts.append(self.starts[-1] + len(array))
        self.n_rows: int | None = self.starts[-1]
        if not self.n_rows:
            raise ValueError("there are no embeddings: the source has no rows.")

    def numbered(self, block_bytes: int, rng: Generator | None, share: Share = (0, 1)) -> Numbered:
        """Give the blocks, in order or as ``rng`` says, each with its first row's number.

        Of ``share`` (r, n), every n-th block from the r-th on.
        """
        spans: list[tuple[int, int, int]] = []
        for number, part in enumerate(self.parts):
            rows = self.starts[number + 1] - self.starts[number]
            step = _rows_in(block_bytes, _open(part)[0])
            spans += [(number, at, min(at + step, rows)) for at in range(0, rows, step)]
        order = range(len(spans)) if rng is None else rng.permutation(len(spans))
        for index in order[share[0] :: share[1]]:
            number, start, stop = spans[index]
            array, _ = _open(self.parts[number])
            block = np.array(array[start:stop])
            _release(array)
            yield self.starts[number] + start, block


class Items:
    """Arrays from an iterable: in their own order, small ones joined and large ones cut."""

    n_rows: int | None = None

    def __init__(self, items: Any) -> None:
        self.items = items
        self.once = isinstance(items, Iterator)
        self.read = False

    def numbered(self, block_bytes: int, rng: Generator | None, share: Share = (0, 1)) -> Numbered:
        """Give the blocks in their own order, each with its first row's number."""
        blocks = self._in_order(block_bytes)
        return itertools.islice(blocks, share[0], None, share[1])

    def _in_order(self, block_bytes: int) -> Numbered:
        if self.once and self.read:
            raise ValueError(
                "this iterator has been read, which can be done only once: give a file, an array, "
                "a list of blocks, or a function that makes the iterator anew."
            )
        self.read = True
        waiting: list[NDArray[Any]] = []
        row = behind = 0  # the first row that waits, and how many do
        for item in self.items if hasattr(self.items, "__iter__") else self.items():
            block = np.asarray(to_numpy(item))
            if block.ndim != 2:
                raise ValueError(
                    f"the block from row {row + behind} on has shape {block.shape}; it must be "
                    "2-D, (rows, dim)."
                )
            if waiting and block.shape[1] != waiting[0].shape[1]:
                raise ValueError(
                    f"the block from row {row + behind} on has {block.shape[1]} columns, those "
                    f"before it {waiting[0].shape[1]}."
                )
            step = _rows_in(block_bytes, block)
            if behind + len(block) < step:
                waiting.append(block.copy())  # its owner may use the array again
                behind += len(block)
                continue
            joined = np.concatenate([*waiting, block]) if behind else block
            whole = len(joined) - len(joined) % step
            for at in range(0, whole, step):
                yield row + at, joined[at : at + step].copy()
            row, behind, waiting = row + whole, len(joined) - whole, [joined[whole:].copy()]
        if behind:
            yield row, np.concatenate(waiting)
        elif not row:
            raise ValueError(
                "there are no embeddings: the iterable has no rows (an iterator can be read only "
                "once)."
            )


class Mapped:
    """A function of the blocks of another source."""

    def __init__(self, source: Any, function: Callable[[Any], FloatArray]) -> None:
        self.source, self.function = source, function
        self.n_rows: int | None = source.n_rows
        self.once: bool = source.once

    def numbered(self, block_bytes: int, rng: Generator | None, share: Share = (0, 1)) -> Numbered:
        """Give the function of each block, as the other source orders them."""
        for row, block in self.source.numbered(block_bytes, rng, share):
            try:
                result = self.function(block)
            except ValueError as error:
                last = row + len(block) - 1
                raise ValueError(f"in rows {row} to {last}: {error}") from error
            if len(result) != len(block):
                raise ValueError(
                    f"the function gave {len(result)} rows for the {len(block)} rows from {row} "
                    "on: it must give one for each."
                )
            yield row, result


def source_of(source: Any) -> Parts | Items | Mapped:
    """Give the source for what a caller handed in, or a ValueError."""
    if isinstance(source, Mapped):
        return source
    if isinstance(source, (str, os.PathLike)):
        return Parts(_files_at(Path(source)))
    if isinstance(source, np.ndarray):
        return Parts([source])
    if callable(source) or hasattr(source, "__iter__"):
        return Items(source)
    raise ValueError(
        f"cannot read embeddings from a {type(source).__name__}; give a path, an array, or an "
        "iterable of 2-D arrays."
    )


def _files_at(path: Path) -> list[Any]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"there is no file or folder {path}.")
    manifest = path / "manifest.json"
    if manifest.exists():
        try:
            content = dict(json.loads(manifest.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{manifest} was cut or changed ({error}). Remove the folder, and encode anew."
            ) from error
        if not content.get("complete", True):
            raise ValueError(
                f"{path} is not complete: encoding into it was stopped. Run it again; it does "
                "what is missing."
            )
    files = sorted(path.glob("*.npy"))
    if not files:
        raise FileNotFoundError(f"there is no .npy file in {path}.")
    return list(files)


def _open(part: Any) -> tuple[NDArray[Any], str]:
    """Map a part if it is a file, and say what to call it."""
    if not isinstance(part, Path):
        return part, "the array"
    try:
        return np.load(part, mmap_mode="r"), part.name
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"{part.name} cannot be read: {error}. It was cut, or is no .npy file of numbers."
        ) from error


def _rows_in(size: int, array: NDArray[Any]) -> int:
    return max(1, size // max(1, array.shape[1] * array.dtype.itemsize))


def mapping(array: NDArray[Any]) -> tuple[mmap.mmap, str | None] | None:
    """Find the mapped file behind an array, through any number of views, and its mode."""
    base: Any = array
    mode: str | None = None
    while isinstance(base, np.ndarray):
        mode = getattr(base, "mode", None) or mode  # of a numpy.memmap
        base = base.base
    return (base, mode) if isinstance(base, mmap.mmap) else None


def _release(array: NDArray[Any]) -> None:
    """Give the pages of a mapped file back: they stay in the system's cache.

    Not those of a copy-on-write map (mode "c"), whose changes live only in these pages.
    """
    found = mapping(array)
    if found is not None and found[1] in ("r", "r+", "w+"):
        advise = getattr(found[0], "madvise", None)  # not on Windows
        if advise is not None:
            advise(mmap.MADV_DONTNEED)


def to_numpy(x: Any) -> Any:
    """Turn a torch tensor, on any device and of any float type, into an array; else give x."""
    if not hasattr(x, "detach"):
        return x
    x = x.detach().cpu()
    return (x if x.dtype.itemsize == 8 else x.float()).numpy()  # NumPy has no bfloat16
