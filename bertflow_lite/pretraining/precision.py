"""Whether to compute in bfloat16: as one says, or as the hardware is."""

from __future__ import annotations

import logging

import torch

__all__ = ["choose_bf16", "computes_in_bfloat16"]

logger = logging.getLogger(__name__)


def computes_in_bfloat16(device: torch.device | str) -> bool:
    """Say whether a device has units that compute in bfloat16.

    Parameters
    ----------
    device : torch.device or str

    Returns
    -------
    bool
        For CUDA, whether the GPU has them itself (compute capability 8.0 or more); for a CPU,
        whether torch finds AMX or AVX512-BF16.  False for everything else, Apple's GPUs among
        it: not tried there.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    # Private to torch, so a later one may be without them.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported") if kind == "cpu" else ()
    return any(bool(getattr(torch.cpu, name, bool)()) for name in names)


def choose_bf16(wanted: bool | None, device: torch.device | str) -> bool:
    """Give what is wanted, or what is best on a device.

    Parameters
    ----------
    wanted : bool, optional
        None chooses by `computes_in_bfloat16`.
    device : torch.device or str

    Returns
    -------
    bool
        True on other hardware is taken as it is said, with a warning: it works and is slow.
    """
    can = computes_in_bfloat16(device)
    if wanted and not can:
        logger.warning(
            "bfloat16 is emulated on this %s, which is slow: say bf16=False (command line: "
            "--no-bf16) for float32",
            torch.device(device).type,
        )
    return can if wanted is None else wanted
