"""Fitted calibrators as torch modules: the same maps, on any device, next to the encoder.

All numbers are buffers, so nothing here is trained along with an encoder.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertflow_lite.calibrate import FlowCalibrator
from bertflow_lite.calibrator_state import list_steps
from bertflow_lite.linear import Standardizer, TopDirectionRemover, Whitener

__all__ = ["torch_steps"]


def torch_steps(calibrator: Any) -> nn.Sequential:
    """Give a fitted calibrator, or a Pipeline of such, as a chain of torch modules.

    Each takes and gives vectors of shape (batch, width) in the float type of its input.  As in
    NumPy, the linear maps compute in float64 and a flow in the type that it was fitted in.
    """
    kinds: dict[type[Any], type[nn.Module]] = {
        Standardizer: Standardize,
        TopDirectionRemover: RemoveDirections,
        Whitener: Whiten,
        FlowCalibrator: RunFlow,
    }
    return nn.Sequential(*(kinds[type(step)](step) for _, step in list_steps(calibrator)))


class Standardize(nn.Module):
    """`Standardizer.transform`."""

    mean: Tensor
    scale: Tensor

    def __init__(self, step: Standardizer) -> None:
        super().__init__()
        self.register_buffer("mean", _tensor(step.mean_))
        self.register_buffer("scale", _tensor(step.scale_))

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the mean and divide by the deviation."""
        return ((x.to(self.mean) - self.mean) / self.scale).to(x.dtype)


class RemoveDirections(nn.Module):
    """`TopDirectionRemover.transform`."""

    mean: Tensor
    directions: Tensor

    def __init__(self, step: TopDirectionRemover) -> None:
        super().__init__()
        self.register_buffer("mean", _tensor(step.mean_))
        self.register_buffer("directions", _tensor(step.directions_))

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the mean and what lies along the directions."""
        centered = x.to(self.mean) - self.mean
        along = (centered @ self.directions.T) @ self.directions
        return (centered - along).to(x.dtype)


class Whiten(nn.Module):
    """`Whitener.transform`."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, step: Whitener) -> None:
        super().__init__()
        self.register_buffer("mean", _tensor(step.mean_))
        self.register_buffer("matrix", _tensor(step.directions_.T / np.sqrt(step.variances_)))

    def forward(self, x: Tensor) -> Tensor:
        """Turn to the principal directions and divide by their deviations."""
        return ((x.to(self.mean) - self.mean) @ self.matrix).to(x.dtype)


class RunFlow(nn.Module):
    """`FlowCalibrator.transform`."""

    live: Tensor
    type_as: Tensor

    def __init__(self, step: FlowCalibrator) -> None:
        super().__init__()
        self.register_buffer("live", _tensor(np.flatnonzero(step.live_)))
        self.flow = copy.deepcopy(step.flow_).cpu()
        weight = self.flow.weight_like()
        kind = torch.float32 if weight is None else weight.dtype
        self.register_buffer("type_as", torch.empty(0, dtype=kind))
        for module in self.flow.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, parameter.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Map the live dimensions to the latent; the others stay as they are."""
        z, _ = self.flow(x.index_select(1, self.live).to(self.type_as.dtype))
        return x.index_copy(1, self.live, z.to(x.dtype))


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array, order="C"))
