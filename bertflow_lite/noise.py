"""Noise on what a flow is trained on, so that it does not blow up what hardly varies.

A flow that fits its data perfectly is a whitening, and more: it stretches the directions of least
variance to the size of all others, and with them whatever chance has put there.  Gaussian noise of
deviation ``s`` on the training data puts a floor under the variances: where the data's own is
``v``, the best linear flow then divides by ``sqrt(v + s^2)`` in place of ``sqrt(v)``.  That is
whitening with shrinkage, or soft whitening; ``transform`` adds no noise and stays invertible.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from bertflow_lite.train import _shuffled
from bertflow_lite.training_data import TrainingData

__all__ = ["add_noise", "check_noise"]

# A smaller sample is repeated, each time with other noise, to this many rows or more: what the
# noise alone spans, the directions that few sentences leave empty, is then well measured, too.
SAMPLE_ROWS = 2048


def check_noise(noise: float) -> None:
    """Refuse what is no finite number from 0 up."""
    if not (math.isfinite(noise) and noise >= 0):
        raise ValueError(f"noise is {noise!r}; it must be a number from 0 up.")


def add_noise(data: TrainingData, noise: float, *, batch_size: int, seed: int) -> TrainingData:
    """Add fresh Gaussian noise to the sample and, whenever they are asked for, to the batches.

    Parameters
    ----------
    data : TrainingData
        What a flow is to be trained on.
    noise : float
        Deviation of the noise, the same in all directions, as a multiple of a typical (the median)
        dimension's standard deviation.  The median, since a few dimensions of a language model
        can be a hundred times wider than all others.
    batch_size : int
        Rows in a batch.
    seed : int
        Seed of the noise and of the order of rows.

    Returns
    -------
    TrainingData
        With ``batches`` a function of the epoch; the rows come in the order in which they would
        have come without noise.
    """
    check_noise(noise)
    size = noise * float(data.sample.std(dim=0, correction=0).median())
    batches_of = data.batches
    if isinstance(batches_of, Tensor):
        batches_of = _shuffled(batches_of, min(batch_size, len(batches_of)), seed)

    def batches(epoch: int) -> Iterator[Tensor]:
        generator = _generator(seed, epoch + 1)
        for batch in batches_of(epoch):
            yield _noisy(batch, size, generator)

    sample = data.sample.repeat(-(-SAMPLE_ROWS // len(data.sample)), 1)
    sample = _noisy(sample, size, _generator(seed, 0))
    return dataclasses.replace(data, sample=sample, batches=batches)


def _generator(seed: int, epoch: int) -> torch.Generator:
    # Far from the seeds beside it, and the same on every device: the noise is drawn on the CPU.
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch * 7_919 + 17) % 2**63)


def _noisy(rows: Tensor, size: float, generator: torch.Generator) -> Tensor:
    return rows + size * torch.randn(rows.shape, generator=generator, dtype=rows.dtype).to(rows)
