"""Plain settings and tensors back to fitted calibrators, with every part checked.

What `calibrator_state` has taken apart may come from a file of unknown origin.  Whatever does not
fit is refused, so that reading it can run no code and leaves no half-made calibrator behind.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from torch import Tensor

from bertflow_lite.calibrator_state import CALIBRATORS, NOT_SAVED, width_out
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.flow import Glow, kept_dim
from bertflow_lite.train import FlowHistory

__all__ = ["restore_steps"]

# A setting's annotation to what JSON gives for it (an int will do for a float).
JSON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
}


def restore_steps(
    steps: Any, tensors: Mapping[str, Tensor], *, pipeline: bool, device: str | torch.device
) -> Any:
    """Put a calibrator together again; the inverse of `describe_steps`.

    Parameters
    ----------
    steps, tensors
        From `describe_steps`, or from a file that claims to be.
    pipeline : bool
        Whether it was a Pipeline.
    device : str or torch.device
        Where a flow shall run.

    Raises
    ------
    ValueError
        If a class, a setting or a tensor is unknown, missing, too much, or of the wrong type,
        shape or range.
    """
    if not isinstance(steps, list) or not steps or not all(isinstance(s, dict) for s in steps):
        raise ValueError("'steps' is not a list of steps")
    if len(steps) > 1 and not pipeline:
        raise ValueError("there are several steps, but no pipeline")
    left = dict(tensors)
    restored: list[tuple[str, BaseEstimator]] = []
    width: int | None = None
    for number, described in enumerate(steps):
        prefix = f"{number}."
        own = {key.removeprefix(prefix): left.pop(key) for key in list(left)
               if key.startswith(prefix)}  # fmt: skip
        step = _restore(described, own, torch.device(device))
        if width is not None and step.n_features_in_ != width:
            raise ValueError(f"step {number} takes width {step.n_features_in_}, but gets {width}")
        width = width_out(step)
        if described.get("width_out") != width:
            raise ValueError(f"step {number} says it gives another width than {width}")
        restored.append((_typed(described, "name", str), step))
    if left:
        raise ValueError(f"there are tensors that belong to no step: {', '.join(sorted(left)[:5])}")
    if not pipeline:
        return restored[0][1]
    if len({name for name, _ in restored}) < len(restored):
        raise ValueError("two steps have the same name")
    return Pipeline(restored)


def _restore(described: dict[str, Any], parts: dict[str, Tensor], device: torch.device) -> Any:
    """Make one fitted calibrator; takes what it needs out of ``parts``, which must be all."""
    kind = _typed(described, "class", str)
    if kind not in CALIBRATORS:
        raise ValueError(f"there is no calibrator {kind!r}; there are {', '.join(CALIBRATORS)}")
    step = CALIBRATORS[kind](**_checked_settings(kind, _typed(described, "settings", dict)))
    width = _typed(described, "width_in", int)
    step.n_features_in_ = width
    if "feature_names_in" in described:
        names = _typed(described, "feature_names_in", list)
        if len(names) != width or not all(isinstance(name, str) for name in names):
            raise ValueError(f"'feature_names_in' is not a list of {width} names")
        step.feature_names_in_ = np.array(names, dtype=object)
    if kind == "FlowCalibrator":
        step.live_ = _array(parts, "live_", torch.bool, (width,))
        step.dead_mean_ = np.zeros(width)
        if "dead_mean_" in parts:  # not in what older versions wrote
            step.dead_mean_ = _array(parts, "dead_mean_", torch.float64, (width,))
            if step.dead_mean_[step.live_].any():
                raise ValueError("'dead_mean_' holds a mean of a dimension that is not dead")
        step.seed_ = step.random_state
        step.flow_ = _flow(step, parts).to(device)
        loss, epoch_loss = (
            _array(parts, f"history_.{name}", torch.float64, None).tolist()
            for name in ("loss", "epoch_loss")
        )
        seconds = _typed(_typed(described, "training", dict), "seconds", int, float)
        step.history_ = FlowHistory(loss=loss, epoch_loss=epoch_loss, seconds=seconds)
    else:
        step.mean_ = _array(parts, "mean_", torch.float64, (width,))
        if kind == "Standardizer":
            step.scale_ = _array(parts, "scale_", torch.float64, (width,))
            step.live_ = _array(parts, "live_", torch.bool, (width,))
            if (step.scale_ <= 0).any():
                raise ValueError("'scale_' holds a deviation that is not positive")
        else:
            kept = step.k if kind == "TopDirectionRemover" else None
            directions = parts.get("directions_")
            if kept is None:
                kept = len(directions) if directions is not None and directions.ndim else 0
                step.variances_ = _array(parts, "variances_", torch.float64, (kept,))
                if not 1 <= kept <= width or (step.variances_ <= 0).any():
                    raise ValueError("'variances_' holds none, too many, or one not positive")
            step.directions_ = _array(parts, "directions_", torch.float64, (kept, width))
    if parts:
        raise ValueError(f"a {kind} has no tensor {', '.join(sorted(parts)[:5])}")
    step._remember_fit()
    return step


def _flow(step: FlowCalibrator, parts: dict[str, Tensor]) -> Glow:
    """Build the flow that the settings ask for, and fill it from ``parts``."""
    given = {key: parts.pop(key) for key in list(parts) if key.startswith("flow_.")}
    dim, size = int(step.live_.sum()), sum(tensor.numel() for tensor in given.values())
    # Settings that ask for far more than the file holds must not eat the memory first: each step
    # has a permutation, which is two tensors, and each coupling a weight of width x width.
    n_levels, rest = 1, dim
    while n_levels < step.levels and kept_dim(rest) >= 2:
        n_levels, rest = n_levels + 1, kept_dim(rest)
    if dim < 2 or min(step.levels, step.depth, step.width) < 1:
        raise ValueError("a flow needs two live dimensions, a level, a step and a hidden unit")
    if (
        2 * n_levels * step.depth > len(given)
        or (step.coupling and step.width**2 > size)
        or (step.rotation != "none" and dim**2 > size)
    ):
        raise ValueError("the flow's settings ask for more tensors than there are")
    flow = Glow(
        dim,
        step.levels,
        step.depth,
        step.width,
        step.permutation,
        actnorm=step.actnorm,
        coupling=step.coupling,
        rotation=step.rotation,
    )
    floats = {tensor.dtype for tensor in given.values() if tensor.is_floating_point()}
    if floats - {torch.float32, torch.float64} or len(floats) > 1:
        raise ValueError("the flow's tensors are not all float32 or all float64")
    flow = flow.to(floats.pop() if floats else torch.float32)
    state = {
        name: torch.from_numpy(_array(given, f"flow_.{name}", like.dtype, tuple(like.shape)))
        for name, like in flow.state_dict().items()
    }
    if given:
        raise ValueError(f"the flow has no tensor {', '.join(sorted(given)[:5])}")
    for name, order in state.items():
        if name.endswith(".order"):
            restore = state[name.removesuffix("order") + "restore"]
            whole = torch.arange(len(order))
            if not torch.equal(order.sort().values, whole) or not torch.equal(
                restore, torch.argsort(order)
            ):
                raise ValueError(f"'flow_.{name}' is no order of the dimensions")
        elif name.endswith(".matrix"):
            apart = order.double() @ order.double().T - torch.eye(len(order))
            if apart.abs().max() > 1e-3:
                raise ValueError(f"'flow_.{name}' is no rotation: its inverse would be wrong")
    flow.load_state_dict(state)
    return flow.eval().requires_grad_(False)


def _checked_settings(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    known = inspect.signature(CALIBRATORS[kind]).parameters
    for name, value in settings.items():
        if name not in known or name in NOT_SAVED:
            raise ValueError(f"this version's {kind} has no setting {name!r} that can be saved")
        kinds = [JSON_TYPES.get(part, ()) for part in str(known[name].annotation).split(" | ")]
        if type(value) not in {each for group in kinds for each in group}:  # a bool is no int
            raise ValueError(f"the setting {name!r} of {kind} is of the wrong type: {value!r}")
    return settings


def _array(parts: dict[str, Tensor], name: str, dtype: torch.dtype, shape: Any) -> Any:
    """Take a tensor out of ``parts`` as an array; its type, shape and values must be right."""
    if name not in parts:
        raise ValueError(f"the tensor {name!r} is missing")
    tensor = parts.pop(name)
    if tensor.dtype != dtype or (tensor.ndim != 1 if shape is None else tensor.shape != shape):
        raise ValueError(
            f"the tensor {name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}; it must be "
            f"{dtype} of shape {shape or '(n,)'}"
        )
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise ValueError(f"the tensor {name!r} holds a value that is not finite")
    return tensor.clone().numpy()  # its own memory: writable, whatever the file's bytes were


def _typed(content: Mapping[str, Any], key: str, *types: type) -> Any:
    """Give ``content[key]`` if it is of one of the types."""
    value = content.get(key)
    if type(value) not in types:
        wanted = " or ".join(kind.__name__ for kind in types)
        raise ValueError(f"{key!r} is {value!r}; it must be of type {wanted}")
    return value
