"""Cross entropy over a large vocabulary, a slice of places at a time.

With 30,522 word pieces the output layer's numbers are larger than all others together: a thousand
places make 125 MB of logits, and as much again for their softmax, its gradient and the copies
between types.  Here a slice of places is taken from hidden state to gradient before the next one
begins, so that the numbers stay near the processor; only the gradient is kept for all places, in
the type of the products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_SLICE = 64
"""Places at once: 8 MB of float32 logits for BERT's vocabulary."""


def vocabulary_loss(hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    r"""Mean of :math:`-\log p` under the softmax of ``hidden @ weight.T + bias``, in nats.

    The same as `torch.nn.functional.cross_entropy` of the logits.  Where autocast is on, both
    products are taken in its type and all else in float32.

    Parameters
    ----------
    hidden : Tensor, shape (n, width)
    weight : Tensor, shape (vocabulary, width)
    bias : Tensor, shape (vocabulary,)
    target : Tensor of int64, shape (n,)
        A negative target marks a place that does not count: it fills up a slice.

    Returns
    -------
    Tensor
        A scalar.

    Examples
    --------
    >>> hidden, weight = torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> vocabulary_loss(hidden, weight, torch.zeros(2), torch.tensor([0, 1]))
    tensor(0.1269)
    """
    kind = hidden.device.type
    low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    return _VocabularyLoss.apply(hidden.float(), weight, bias, target, low)


class _VocabularyLoss(torch.autograd.Function):
    """The gradient is found on the way forward: with softmax minus one-hot it is almost free."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, low: torch.dtype
    ) -> Tensor:
        n = max(int((target >= 0).sum()), 1)
        wanted = any(ctx.needs_input_grad)
        h, words = hidden.detach().to(low), weight.detach().to(low)
        slope = h.new_empty(len(h) if wanted else 0, len(words))
        total = hidden.new_zeros(())
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(h), _SLICE):
                part = slice(start, start + _SLICE)
                at, counts = target[part, None].clamp(min=0), (target[part, None] >= 0).float()
                logits = (h[part] @ words.T).float().add_(bias)
                logits.sub_(logits.amax(1, keepdim=True))
                own = logits.gather(1, at)
                p = logits.exp_()
                sums = p.sum(1, keepdim=True)
                total += ((sums.log() - own) * counts).sum()
                if wanted:  # d loss / d logits = (p - one-hot) / n
                    slope[part] = p.mul_(counts / (sums * n)).scatter_add_(1, at, counts / -n)
            if wanted:
                to_bias = slope.sum(0, dtype=torch.float32)
                ctx.save_for_backward((slope @ words).float(), (slope.T @ h).float(), to_bias)
        return total / n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return (*(slope * one for one in ctx.saved_tensors), None, None)
