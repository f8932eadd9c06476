"""Fitted calibrators taken apart, into plain settings and tensors (`calibrator_restore`: and back).

A saved calibrator is data: names of classes from a fixed table, settings that JSON can hold, and
tensors whose names, types and shapes follow from the class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import Standardizer, TopDirectionRemover, Whitener

__all__ = ["CALIBRATORS", "describe_steps", "keep_origin", "list_steps", "origin_of", "width_out"]

# The only classes that a file can name.
CALIBRATORS: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (Standardizer, TopDirectionRemover, Whitener, FlowCalibrator)
}
# Settings that belong to the machine or the screen, not to the calibrator.
NOT_SAVED = ("device", "progress")
ARRAYS = {
    "Standardizer": ("mean_", "scale_", "live_"),
    "TopDirectionRemover": ("mean_", "directions_"),
    "Whitener": ("mean_", "variances_", "directions_"),
    "FlowCalibrator": ("live_",),
}


def list_steps(calibrator: Any) -> list[tuple[str, Any]]:
    """Give the fitted calibrators of a pipeline, or the one that is given, with their names.

    Steps that pass everything through are left out.

    Raises
    ------
    ValueError
        For anything but a fitted calibrator of this package or a Pipeline of such.
    """
    if isinstance(calibrator, Pipeline):
        steps = [
            (str(name), step)
            for name, step in calibrator.steps
            if step is not None and not (isinstance(step, str) and step == "passthrough")
        ]
    else:
        steps = [("", calibrator)]
    for _, step in steps:
        name = type(step).__name__
        if CALIBRATORS.get(name) is not type(step):
            raise ValueError(
                f"{step if isinstance(step, str) else name!r} is no calibrator that can be saved; "
                f"these can, alone or as the steps of a Pipeline: {', '.join(CALIBRATORS)}."
            )
        check_is_fitted(step)
    if not steps:
        raise ValueError("the pipeline has no steps that calibrate: there is nothing to save.")
    return steps


def keep_origin(calibrator: Any, origin: Mapping[str, Any]) -> None:
    """Let a loaded calibrator remember what it was fitted for and on, until it is fitted anew.

    The steps of a Pipeline remember it each, with their place: a step that is taken out of it
    alone was fitted on something else, and a Pipeline that is fitted anew fits its steps.
    """
    steps = list_steps(calibrator)
    for number, (_, step) in enumerate(steps):
        step._origin = {**origin, "place": (number, len(steps))}


def origin_of(calibrator: Any) -> dict[str, Any] | None:
    """Give what a calibrator remembers by `keep_origin`, ``encoder`` and ``data``, or None."""
    steps = list_steps(calibrator)
    found = [step._origin for _, step in steps]
    first = found[0]
    if first is None:
        return None
    if found != [{**first, "place": (number, len(steps))} for number in range(len(steps))]:
        return None
    return {key: first[key] for key in ("encoder", "data")}


def width_out(step: Any) -> int:
    """Width of what a fitted calibrator gives."""
    return len(step.variances_) if isinstance(step, Whitener) else int(step.n_features_in_)


def describe_steps(calibrator: Any) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Take a fitted calibrator apart.

    Parameters
    ----------
    calibrator : fitted calibrator or Pipeline of such

    Returns
    -------
    steps : list of dict
        For each step its name in the pipeline, class, settings, widths, the names of its input
        features where it was fitted on a DataFrame, and for a flow how its training went.
    tensors : dict of str to Tensor
        ``"<step>.<attribute>"`` to its values, on the CPU and contiguous.
    """
    steps: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for number, (name, step) in enumerate(list_steps(calibrator)):
        kind = type(step).__name__
        described: dict[str, Any] = {
            "name": name,
            "class": kind,
            "settings": _settings(step),
            "width_in": int(step.n_features_in_),
            "width_out": width_out(step),
        }
        if hasattr(step, "feature_names_in_"):
            described["feature_names_in"] = [str(part) for part in step.feature_names_in_]
        parts: dict[str, Any] = {attribute: getattr(step, attribute) for attribute in ARRAYS[kind]}
        if isinstance(step, FlowCalibrator):
            if not step.live_.all():  # left out otherwise, as older versions wrote and read it
                parts["dead_mean_"] = step._dead_mean()
            parts |= {f"flow_.{part}": value for part, value in step.flow_.state_dict().items()}
            history = step.history_
            for part in ("loss", "epoch_loss"):
                parts[f"history_.{part}"] = np.asarray(getattr(history, part), dtype=np.float64)
            described["training"] = {
                "steps": history.steps,
                "epochs": len(history.epoch_loss),
                "first_bits_per_dim": float(history.loss[0]) if history.loss else None,
                "last_bits_per_dim": float(history.epoch_loss[-1]) if history.epoch_loss else None,
                "seconds": float(history.seconds),
            }
        steps.append(described)
        for part, value in parts.items():
            tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(
                np.array(value, order="C")
            )  # fmt: skip
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise ValueError(
                    f"{kind}.{part} holds a value that is not finite: this calibrator is broken. "
                    "Fit it anew."
                )
            tensors[f"{number}.{part}"] = tensor.clone().contiguous()
    return steps, tensors


def _settings(step: Any) -> dict[str, Any]:
    settings = {}
    fitted = step._fitted_settings
    for name, value in step.get_params(deep=False).items():
        if name in NOT_SAVED:
            continue
        if fitted is not None and not (value is fitted[name] or value == fitted[name]):
            raise ValueError(
                f"{name} was {fitted[name]!r} in the fit of this {type(step).__name__} and is "
                f"{value!r} now: settings were changed since the fit. Fit again, or set them back."
            )
        if name == "random_state":  # None or a generator: the seed that was drawn
            value = getattr(step, "seed_", value)
        value = value.item() if isinstance(value, np.generic) else value
        if not isinstance(value, str | int | float | None) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise ValueError(
                f"the setting {name}={value!r} cannot be saved: it must be a finite number, a "
                "truth value, a string or None."
            )
        settings[name] = value
    return settings
