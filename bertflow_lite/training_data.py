"""What a flow is trained on: live dimensions, an initialization sample, batches in random order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertflow_lite.base import check_varied, live_of
from bertflow_lite.moments import RowSample, RunningMoments
from bertflow_lite.sources import FloatArray
from bertflow_lite.streaming import EmbeddingStream

__all__ = ["TrainingData", "from_array", "from_stream"]


@dataclass(frozen=True)
class TrainingData:
    """Embeddings made ready for training.

    Attributes
    ----------
    live : ndarray of bool, shape (dim,)
        Dimensions with some spread; the rest of this holds only these.
    sample : Tensor, shape (at most init_rows, n_live)
        Rows drawn at random, for the data-dependent initialization.
    batches : Tensor, shape (n, n_live), or function of the epoch that gives batches
        What `train_flow` takes.
    steps : int or None
        Steps in an epoch; None for an iterator, where it shows only in the end.
    """

    live: NDArray[np.bool_]
    sample: Tensor
    batches: Tensor | Callable[[int], Iterator[Tensor]]
    steps: int | None


def from_array(
    x: FloatArray, *, init_rows: int, batch_size: int, seed: int, device: torch.device
) -> TrainingData:
    """Prepare embeddings that are in memory, shape (n, dim).

    Raises
    ------
    ValueError
        If all rows are equal, or fewer than two dimensions have any spread.
    """
    moments = RunningMoments()
    moments.update(x)
    live = _live(moments)
    x = np.ascontiguousarray(x[:, live])
    data = torch.from_numpy(x).to(device, _dtype(x, device))
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(data), generator=generator)[:init_rows].to(device)
    return TrainingData(live, data[rows], data, max(1, len(data) // batch_size))


def from_stream(
    stream: EmbeddingStream, *, init_rows: int, batch_size: int, seed: int, device: torch.device
) -> TrainingData:
    """Prepare a stream of checked embeddings.

    What is no larger than one window of the stream is read, and trained on as if it had been an
    array.  More than that is read once for live dimensions and sample, and again in each epoch.
    Of an iterator only the first window is looked at before training, since it can be read once.

    Raises
    ------
    ValueError
        As `from_array`.
    """
    head, whole = stream.peek()
    if whole is None:
        x = np.concatenate(head)
        return from_array(x, init_rows=init_rows, batch_size=batch_size, seed=seed, device=device)
    positive = seed % 2**63  # NumPy takes no negative seeds
    moments, sample = RunningMoments(), RowSample(init_rows, positive)
    for block in head if whole.once else whole:
        moments.update(block)
        sample.update(block)
    live = _live(moments)
    rows = sample.rows()[:, live]
    dtype = _dtype(rows, device)

    def batches(epoch: int) -> Iterator[Tensor]:
        for batch in whole.batches(batch_size, [positive, epoch]):
            yield torch.from_numpy(batch[:, live]).to(device, dtype)

    steps = None if whole.once else max(1, moments.count // batch_size)
    return TrainingData(live, torch.from_numpy(rows).to(device, dtype), batches, steps)


def _live(moments: RunningMoments) -> NDArray[np.bool_]:
    check_varied(moments.count, moments.varied)
    live = live_of(moments.mean, moments.std, moments.count, stacklevel=6)
    if live.sum() < 2:
        raise ValueError(
            f"only {live.sum()} of {len(live)} dimensions has any spread; the flow needs two."
        )
    return live


def _dtype(x: FloatArray, device: torch.device) -> torch.dtype:
    """float64 for float64, but not on Apple's GPUs, which have none."""
    double = x.dtype == np.float64 and device.type != "mps"
    return torch.float64 if double else torch.float32
