"""Many small parameters as one vector, which is clipped and updated in one go.

A flow has dozens of small parameters, and to treat them one by one costs more than the arithmetic.
"""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["FlatParameters"]


class FlatParameters:
    """The trained parameters as one vector, for as long as training lasts.

    A context: inside it each parameter is a view of its stretch of ``vector``, which is what the
    optimizer sees; afterwards each has memory of its own again.

    Parameters
    ----------
    parameters : list of Parameter
        What is trained, of one dtype and on one device.

    Attributes
    ----------
    vector : Parameter, shape (total number of values,)
        All of them, one after the other.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.vector = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))

    def __enter__(self) -> None:
        stretches = self.vector.detach().split([p.numel() for p in self.parameters])
        for parameter, stretch in zip(self.parameters, stretches, strict=True):
            parameter.grad = None
            parameter.data = stretch.view_as(parameter)

    def __exit__(self, *_: object) -> None:
        for parameter in self.parameters:  # memory of their own again
            parameter.data = parameter.data.clone()

    def take_gradients(self) -> None:
        """Move the gradients of the parts into that of the vector."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.vector.grad = torch.cat([part.flatten() for part in parts])
        for parameter in self.parameters:
            parameter.grad = None
