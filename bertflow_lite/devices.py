"""Where and in which precision to compute: device, type, memory; arrays out of tensors."""

from __future__ import annotations

import contextlib
import gc
import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "OutOfMemoryError",
    "computes_in_bfloat16",
    "find_device",
    "is_out_of_memory",
    "to_numpy",
]

logger = logging.getLogger(__name__)


def autocast_type(precision: str, device: torch.device) -> torch.dtype | None:
    """Give the type that a forward pass computes in; None is that of the weights."""
    types = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": None}
    if precision == "auto":
        gains = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if gains else None
    if precision not in types:
        raise ValueError(f"precision is {precision!r}; it must be auto, {', '.join(types)}.")
    if precision == "bfloat16" and device.type == "cpu" and not computes_in_bfloat16(device):
        logger.warning(
            "this CPU has no bfloat16 units: precision='bfloat16' is slower here than 'float32', "
            "about five times for minilm"
        )
    return types[precision]


def find_device(device: str | torch.device | None = None) -> torch.device:
    """Give the device asked for; default, or "auto": CUDA, else Apple's MPS, else the CPU."""
    if device is not None and device != "auto":
        try:
            found = torch.device(device)
            torch.empty(0, device=found)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            here = "cuda" if torch.cuda.is_available() else "cpu"
            raise ValueError(
                f"the device {str(device)!r} cannot be used here ({str(error).splitlines()[0]}). "
                f"Leave the choice to the program, or take {here!r}."
            ) from None
        return found
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def to_numpy(values: ArrayLike, what: str) -> NDArray[Any]:
    """Return numbers as a NumPy array, without a copy where they are one; ``what`` names them."""
    given: Any = values
    if hasattr(given, "toarray") and not isinstance(given, np.ndarray):
        raise ValueError(f"{what} is a sparse matrix; make it dense by its method toarray().")
    try:
        array = np.asarray(as_array(given))
    except ValueError:
        raise ValueError(f"{what} has rows of different lengths; all need the same.") from None
    if array.dtype == object:  # such as a column of a table
        with contextlib.suppress(TypeError, ValueError):
            array = array.astype(np.float64)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{what} must hold numbers, but has the type {array.dtype}. (Sentences become vectors "
            "by encoder.encode.)"
        )
    return array


def as_array(x: Any) -> Any:
    """Turn a torch tensor, on any device and of any float type, into an array; else give x."""
    if not hasattr(x, "detach"):
        return x
    x = x.detach().cpu()
    return (x if x.dtype.itemsize == 8 else x.float()).numpy()  # NumPy has no bfloat16


class OutOfMemoryError(MemoryError):
    """There is not enough memory; the message says what to lower."""


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that memory has run out, on a GPU or off it."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )


def free_memory() -> None:
    """Give back what a failed attempt left behind."""
    gc.collect()
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def computes_in_bfloat16(device: torch.device | str) -> bool:
    """Say whether a device has units that compute in bfloat16.

    A GPU from compute capability 8.0 on has, and a CPU with AMX or AVX512-BF16.  Apple's GPUs were
    not tried: False.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    # Private to torch, so a later one may be without them.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported") if kind == "cpu" else ()
    return any(bool(getattr(torch.cpu, name, bool)()) for name in names)
