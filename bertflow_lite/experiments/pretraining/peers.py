"""Several processes that train one model: each takes its share of a batch, gradients are added.

The processes are those of ``accelerate launch`` or ``torchrun``; started by itself, the same code
runs as one.  On a CPU, two processes of one thread each train this small model nearly twice as fast
as one process; two threads of one process do not, since most of its operations are small.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["Peers"]

T = TypeVar("T")


class Peers:
    """The processes of this run.

    Attributes
    ----------
    rank, size : int
        Number of this process, from 0, and how many there are.
    """

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from bertflow_lite.distributed import start_processes

            state = start_processes()
            self.rank, self.size = state.process_index, state.num_processes

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def only_first(
        self, make: Callable[[], AbstractContextManager[T]], otherwise: T
    ) -> AbstractContextManager[T]:
        """Enter a context in the first process alone; the others wait until it is entered."""
        context = make() if self.first else nullcontext(otherwise)
        return _Entered(context, self)

    def agree(self, find: Callable[[], T]) -> T:
        """Give what the first process finds, or raise its error, in all of them.

        Parameters
        ----------
        find : callable
            Called in the first process alone.
        """
        if self.size == 1:
            return find()
        from accelerate.utils import broadcast_object_list

        found: list[Any] = [None]
        if self.first:
            try:
                found = [find()]
            except (ValueError, OSError) as error:
                found = [error]
        broadcast_object_list(found)
        if isinstance(found[0], Exception):
            raise found[0]
        value: T = found[0]
        return value

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            torch.distributed.barrier()

    def add(self, parameters: Sequence[Tensor], numbers: Sequence[float]) -> list[float]:
        """Add up gradients, in place, and some numbers, over all processes.

        Parameters
        ----------
        parameters : sequence of Tensor
            Their ``grad`` is replaced by the sum; a missing one counts as zero.
        numbers : sequence of float

        Returns
        -------
        list of float
            The sums of the numbers, the same in every process.
        """
        if self.size == 1:
            return list(numbers)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        tail = torch.tensor(numbers, dtype=torch.float32, device=grads[0].device)
        flat = torch.cat([*(g.reshape(-1) for g in grads), tail])
        torch.distributed.all_reduce(flat)
        *sums, tail = flat.split([*(g.numel() for g in grads), len(numbers)])
        for parameter, total in zip(parameters, sums, strict=True):
            parameter.grad = total.view_as(parameter)
        return [float(value) for value in tail]


class _Entered(AbstractContextManager[Any]):
    """A context whose entering all processes wait for."""

    def __init__(self, context: AbstractContextManager[Any], peers: Peers) -> None:
        self.context, self.peers = context, peers

    def __enter__(self) -> Any:
        value = self.context.__enter__()
        self.peers.wait()
        return value

    def __exit__(self, *error: Any) -> bool | None:
        return self.context.__exit__(*error)
