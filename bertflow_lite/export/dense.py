"""Fitted calibrators as plain `Dense` modules, which sentence-transformers knows without us.

A linear calibrator is two of them: one centers, one multiplies.  A flow is a longer chain: an
actnorm scales and shifts, a permutation only renames dimensions, a rotation is one `Dense`, and a
coupling ``u2 + g(u1)`` is three, which carry the vector along through their residual connections
while g is computed beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sentence_transformers
import torch
from numpy.typing import NDArray
from sentence_transformers.base.modules import Dense
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.encoders.models import let_record, without_recorders
from bertflow_lite.export.pipeline import calibrators_of
from bertflow_lite.flow import (
    LOG_SCALE_FACTOR,
    ActNorm,
    AdditiveCoupling,
    CouplingNetwork,
    Permutation,
    Rotation,
)

__all__ = ["SentenceTransformer", "dense_modules"]

Matrix = NDArray[np.float64]


def dense_modules(calibrator: Any) -> list[Dense]:
    """Give frozen modules that together map vectors as a fitted calibrator or pipeline, in float32.

    Linear calibrators need two each; a flow needs three for each coupling and two more, each with
    up to 2 (dim + 2 width) dim weights.
    """
    modules: list[Dense] = []
    for step in calibrators_of(calibrator):
        if isinstance(step, FlowCalibrator):
            modules += _flow_modules(step)
            continue
        # In two steps, since float32 loses what is small beside a large mean.
        matrix, center = step._matrix, step.mean_.astype(np.float32)
        modules.append(_dense(np.eye(len(center)), -center))
        modules.append(_dense(matrix, matrix @ (center - step.mean_)))
    return modules


def _flow_modules(step: FlowCalibrator) -> list[Dense]:
    """Unroll a flow.

    The vector itself is touched by couplings only.  What the actnorms do is kept aside as
    ``value = state * scale + shift`` and worked into the weights of what comes next; permutations
    and splits move ``active``, the places of the dimensions that the next layer sees.
    """
    dim = int(step.n_features_in_)
    scale, shift = np.ones(dim), -step.dead_mean_  # the flow's layers move live ones only
    active = np.flatnonzero(step.live_)
    finished: list[NDArray[np.intp]] = []
    modules: list[Dense] = []
    flow = step.flow_
    for level, layers in enumerate(flow.steps):
        for layer in layers:  # type: ignore[attr-defined]
            if isinstance(layer, ActNorm):
                factor = np.exp(LOG_SCALE_FACTOR * _numpy(layer.log_scale))
                shift[active] += _numpy(layer.bias)
                if not modules:  # at once, since float32 loses what is small beside a large mean
                    modules.append(_dense(np.eye(dim), shift))
                    shift = np.zeros(dim)
                shift[active] *= factor
                scale[active] *= factor
            elif isinstance(layer, Permutation):
                active = active[_numpy(layer.order).astype(np.intp)]
            elif isinstance(layer, Rotation):
                matrix, turn = _numpy(layer.matrix), np.eye(dim)
                turn[np.ix_(active, active)] = matrix * scale[active]
                modules.append(_dense(turn, np.zeros(dim)))
                shift[active], scale[active] = matrix @ shift[active], 1.0
            elif isinstance(layer, AdditiveCoupling):
                kept, moved = active[: layer.kept], active[layer.kept :]
                modules += _coupling(layer.network, kept, moved, scale, shift)
            else:
                raise TypeError(f"no Dense modules for the flow layer {type(layer).__name__}.")
        if level < len(flow.splits):
            count = int(flow.splits[level].kept)  # type: ignore[arg-type]
            active, done = active[:count], active[count:]
            finished.append(done)
    places = np.arange(dim)
    places[step.live_] = np.concatenate([*finished, active])
    modules.append(_dense(np.diag(scale)[places], shift[places]))
    return modules


def _coupling(
    network: CouplingNetwork,
    kept: NDArray[np.intp],
    moved: NDArray[np.intp],
    scale: Matrix,
    shift: Matrix,
) -> list[Dense]:
    """Three layers: (x) -> (x, h1, 0) -> (x, h1, h2) -> (x + g); g's constant goes to ``shift``."""
    dim, width = len(scale), len(network.weight1)
    wide = dim + 2 * width
    h1, h2 = slice(dim, dim + width), slice(dim + width, wide)

    weight, bias = _linear_actnorm(network.weight1, network.norm1)
    first, first_bias = np.zeros((wide, dim)), np.zeros(wide)
    first[h1, kept] = weight * scale[kept]
    first_bias[h1] = bias + weight @ shift[kept]

    second, second_bias = np.zeros((wide, wide)), np.zeros(wide)
    second[h2, h1], second_bias[h2] = _linear_actnorm(network.weight2, network.norm2)

    factor = np.exp(LOG_SCALE_FACTOR * _numpy(network.log_scale3))
    third = np.eye(dim, wide)
    third[moved, h2] = _numpy(network.weight3) * (factor / scale[moved])[:, None]
    shift[moved] += _numpy(network.bias3) * factor
    return [
        _dense(first, first_bias, nn.ReLU(), residual=np.eye(wide, dim)),
        _dense(second, second_bias, nn.ReLU(), residual=np.eye(wide)),
        _dense(third, np.zeros(dim)),
    ]


def _linear_actnorm(weight: Tensor, norm: ActNorm) -> tuple[Matrix, Matrix]:
    """Weight and bias of a linear map without bias, followed by an actnorm."""
    factor = np.exp(LOG_SCALE_FACTOR * _numpy(norm.log_scale))
    return _numpy(weight) * factor[:, None], _numpy(norm.bias) * factor


def _dense(
    weight: Matrix,
    bias: Matrix,
    activation: nn.Module | None = None,
    residual: Matrix | None = None,
) -> Dense:
    """Make a frozen float32 `Dense`; a square ``residual`` is the identity."""
    rows, columns = weight.shape
    dense = Dense(
        columns,
        rows,
        activation_function=activation or nn.Identity(),
        init_weight=torch.from_numpy(weight).float(),
        init_bias=torch.from_numpy(bias).float(),
        use_residual=residual is not None,
    )
    if residual is not None and rows != columns:
        dense.residual.weight = nn.Parameter(torch.from_numpy(residual).float())
    return dense.requires_grad_(False)


def _numpy(tensor: Any) -> Matrix:
    return tensor.detach().cpu().double().numpy()


class SentenceTransformer(sentence_transformers.SentenceTransformer):
    """The library's model, but for its way into a worker process; it is saved as the library's."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(without_recorders(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for module in self.modules():
            if isinstance(module, PreTrainedModel):
                let_record(module)
