"""When memory runs out: to know it, and to say what would have fitted."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable

import torch

__all__ = ["OutOfMemoryError", "is_out_of_memory", "largest_that_fits"]


class OutOfMemoryError(MemoryError):
    """There is not enough memory; the message says what fits."""


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that memory has run out, on a GPU or off it.

    Parameters
    ----------
    error : exception
        Torch raises a RuntimeError for it on the CPU, and one of its own kinds on a GPU.

    Examples
    --------
    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
    (True, False)
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )


def largest_that_fits(size: int, attempt: Callable[[int], object]) -> int:
    """Halve a size until there is memory for it.

    Parameters
    ----------
    size : int
        What did not fit.
    attempt : function of int
        Does the work at a size and throws it away; raises where there is no memory.

    Returns
    -------
    int
        A size that fits; 0 if not even 1 does.

    Examples
    --------
    >>> def attempt(size):
    ...     if size > 50:
    ...         raise MemoryError
    >>> largest_that_fits(300, attempt)
    37
    """
    while size > 1:
        size //= 2
        free_memory()
        try:
            attempt(size)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            return size
    return 0


def free_memory() -> None:
    """Give back what a failed attempt left behind."""
    gc.collect()
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
