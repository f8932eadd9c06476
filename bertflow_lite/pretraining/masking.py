"""Which pieces a masked language model has to predict, and what it sees in their place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["mask_rows"]


def mask_rows(
    rows: Tensor, tokenizer: Any, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Choose pieces at random; show the mask for 80 % of them, a random piece for 10 %.

    Parameters
    ----------
    rows : Tensor of int64, shape (n, length)
        Whole rows; marks and padding are never chosen.
    tokenizer : PreTrainedTokenizerFast
    share : float
        Of the pieces, to choose.
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    seen : Tensor, shape (n, length)
        What the model is shown.
    chosen : Tensor of bool, shape (n, length)
        Where it has to predict.  At least one place in all.
    """
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    can = ~torch.isin(rows, special)
    chosen = can & (torch.rand(rows.shape, generator=generator) < share)
    if not chosen.any() and can.any():
        chosen.view(-1)[int(can.view(-1).nonzero()[0])] = True
    fate = torch.rand(rows.shape, generator=generator)
    seen = torch.where(chosen & (fate < 0.8), tokenizer.mask_token_id, rows)
    other = torch.randint(len(tokenizer), rows.shape, generator=generator)
    return torch.where(chosen & (fate >= 0.9), other, seen), chosen
