"""Embeddings that do not fit in memory: read block by block, mapped lazily, shuffled by windows.

An `EmbeddingStream` reads a file, a folder of shards, a memory-mapped array or an iterator in
blocks that are private copies, so that memory stays bounded whatever the number of rows.  All
calibrators fit on one, and transform one to another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.files import replacing
from bertflow_lite.sources import FloatArray, Mapped, mapping, source_of

__all__ = ["EmbeddingStream", "as_stream"]

# Rows are read in blocks of this many bytes ...
BLOCK_BYTES = 4 * 2**20
# ... and shuffled within windows of this many: at width 768, 64 blocks of 1365 rows.
WINDOW_BYTES = 256 * 2**20


class EmbeddingStream:
    """Embeddings that are read in blocks of rows, in float32 or float64 as they come.

    Parameters
    ----------
    source : path, ndarray, iterable or callable
        * a ``.npy`` file, or a folder of them, read in the order of their names (one that
          `encode_sharded` writes must be complete);
        * a 2-D array, memory-mapped or not;
        * an iterable of 2-D arrays or tensors: a list, a data loader, a generator.  A generator
          can be read once; what has an ``__iter__`` that starts afresh can be read often;
        * a function without arguments that gives such an iterable.
    block_bytes : int, default 4 MiB
        Size of the blocks.
    window_bytes : int, default 256 MiB
        What is held in memory when rows are read in random order (`batches`).

    Attributes
    ----------
    n_rows : int or None
        Number of rows; None for an iterable, where it shows only in the end.
    once : bool
        Whether this is an iterator, which can be read only once.

    Raises
    ------
    FileNotFoundError
        If there is no such file, or no ``.npy`` file in the folder.
    ValueError
        If the source is not made of 2-D arrays of one width; when it is read, if it has no rows.

    Notes
    -----
    Files are mapped, copied and unmapped block by block: mapped pages count as memory of the
    process.  On Windows the pages of an array that *you* mapped cannot be given back.

    Examples
    --------
    >>> stream = EmbeddingStream([np.ones((3, 2)), np.zeros((2, 2))])
    >>> stream.map(lambda block: block + 1).read()
    array([[2., 2.],
           [2., 2.],
           [2., 2.],
           [1., 1.],
           [1., 1.]])
    """

    def __init__(
        self, source: Any, *, block_bytes: int = BLOCK_BYTES, window_bytes: int = WINDOW_BYTES
    ) -> None:
        for name, value in (("block_bytes", block_bytes), ("window_bytes", window_bytes)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more.")
        self.block_bytes = block_bytes
        self.window_bytes = window_bytes
        self._source = source_of(source)
        self.n_rows: int | None = self._source.n_rows
        self.once: bool = self._source.once

    def __repr__(self) -> str:
        return f"EmbeddingStream(n_rows={self.n_rows}, once={self.once})"

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Give the blocks in order; each is a copy."""
        for _, block in self._source.numbered(self.block_bytes, None):
            yield block

    def share(self, first: int, step: int) -> Iterator[NDArray[Any]]:
        """Give some of the blocks, and read only these of a file.

        Parameters
        ----------
        first, step : int
            Every ``step``-th block from number ``first`` on, counted from 0.

        Yields
        ------
        ndarray, shape (rows, dim)
            A copy of each block.
        """
        for _, block in self._source.numbered(self.block_bytes, None, (first, step)):
            yield block

    def map(self, function: Callable[[Any], FloatArray]) -> EmbeddingStream:
        """Give the stream of ``function(block)``, computed when it is read.

        Parameters
        ----------
        function : callable
            Takes a block, shape (rows, dim), and gives an array with as many rows.  A ValueError
            that it raises is raised with the numbers of the rows it is about.

        Returns
        -------
        EmbeddingStream
        """
        mapped = EmbeddingStream(
            Mapped(self._source, function),
            block_bytes=self.block_bytes,
            window_bytes=self.window_bytes,
        )
        return mapped

    def read(self) -> FloatArray:
        """Read everything into memory.

        Returns
        -------
        ndarray, shape (n_rows, dim)
        """
        if self.n_rows is None:
            return np.concatenate(list(self))
        out: FloatArray | None = None
        for row, block in self._source.numbered(self.block_bytes, None):
            if out is None:
                out = np.empty((self.n_rows, block.shape[1]), block.dtype)
            out[row : row + len(block)] = block
        assert out is not None  # an empty source has been refused
        return out

    def peek(self) -> tuple[list[NDArray[Any]], EmbeddingStream | None]:
        """Read about one window.

        Returns
        -------
        head : list of ndarray
            The first blocks.
        whole : EmbeddingStream or None
            A stream of everything, these blocks included (use it in place of this one, if this
            one can be read only once); None if they were everything.
        """
        head: list[NDArray[Any]] = []
        size = 0
        blocks = iter(self)
        for block in blocks:
            head.append(block)
            size += block.nbytes
            if size > self.window_bytes:
                break
        else:
            return head, None
        if not self.once:
            return head, self
        sizes = {"block_bytes": self.block_bytes, "window_bytes": self.window_bytes}
        return head, EmbeddingStream(_first_then(list(head), blocks), **sizes)

    def batches(self, batch_size: int, seed: int | list[int]) -> Iterator[FloatArray]:
        """Give the rows in random order, each once, in batches.

        Blocks come in random order where the source allows it (files and arrays), else in their
        own; rows are shuffled within a window.  The last, incomplete batch is left out.

        Parameters
        ----------
        batch_size : int
            Rows in a batch.
        seed : int or list of int
            Seed of the order.

        Yields
        ------
        ndarray, shape (batch_size, dim)
        """
        rng = np.random.default_rng(seed)
        window: FloatArray | None = None
        filled = 0
        for _, block in self._source.numbered(self.block_bytes, rng):
            if window is None:
                rows = max(2 * batch_size, self.window_bytes // max(1, block[:1].nbytes))
                window = np.empty((rows, block.shape[1]), block.dtype)
            while len(block):
                taken = min(len(block), len(window) - filled)
                window[filled : filled + taken] = block[:taken]
                filled, block = filled + taken, block[taken:]
                if filled == len(window):
                    order = rng.permutation(filled)
                    whole = filled - filled % batch_size
                    for start in range(0, whole, batch_size):
                        yield window[order[start : start + batch_size]]
                    filled -= whole
                    window[:filled] = window[order[whole:]]  # they wait for the next window
        order = rng.permutation(filled)
        for start in range(0, filled - batch_size + 1, batch_size):
            assert window is not None
            yield window[order[start : start + batch_size]]

    def save(self, path: str | os.PathLike[str]) -> np.memmap[Any, Any]:
        """Write all rows to a ``.npy`` file, block by block, and give it memory-mapped.

        The file appears under its name when it is complete; an interrupted run leaves none.

        Parameters
        ----------
        path : str or path
            Ends in ``.npy``; its folder is made if missing, a file that is there is replaced.

        Returns
        -------
        numpy.memmap, shape (n_rows, dim)
            Read-only.

        Raises
        ------
        ValueError
            For another ending, or a source without rows.
        """
        path = Path(path)
        if path.suffix != ".npy":
            raise ValueError(f"{path.name!r} must end in .npy, the format that is written.")
        with replacing(path) as file:
            _write_npy(file, iter(self))
        mapped: np.memmap[Any, Any] = np.load(path, mmap_mode="r")
        return mapped


def as_stream(x: Any) -> EmbeddingStream | None:
    """Give what is read block by block as a stream.

    Parameters
    ----------
    x : anything
        What a caller handed in as embeddings.

    Returns
    -------
    EmbeddingStream or None
        The stream, if ``x`` is one, a path, an iterator or a memory-mapped array; None for
        anything else, such as an array in memory.

    Examples
    --------
    >>> as_stream(np.ones((3, 2))) is None
    True
    >>> as_stream(iter([np.ones((3, 2))]))
    EmbeddingStream(n_rows=None, once=True)
    """
    if isinstance(x, EmbeddingStream):
        return x
    if isinstance(x, (str, os.PathLike, Iterator)):
        return EmbeddingStream(x)
    if isinstance(x, np.ndarray) and x.ndim == 2 and mapping(x) is not None:
        return EmbeddingStream(x)
    return None


def _first_then(head: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    head.reverse()
    while head:
        yield head.pop()  # not kept here while the rest is read
    yield from rest


def _write_npy(file: Any, blocks: Iterator[NDArray[Any]]) -> None:
    first = next(blocks)
    header = np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(first))
    np.lib.format.write_array_header_1_0(file, {**header, "shape": (0, first.shape[1])})
    start, count = file.tell(), len(first)
    file.write(np.ascontiguousarray(first).data)
    for block in blocks:
        file.write(np.ascontiguousarray(block, first.dtype).data)
        count += len(block)
    file.seek(0)  # the header has room for the number of rows
    np.lib.format.write_array_header_1_0(file, {**header, "shape": (count, first.shape[1])})
    if file.tell() != start:
        raise RuntimeError("the header of the .npy file changed its length; please report this.")
