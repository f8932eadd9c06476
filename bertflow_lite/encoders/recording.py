"""A model's way into another process, with its hidden states.

transformers notes for each process which classes can record hidden states, when a model is made
there, and records them by hooks that cannot be pickled, or, by a pickler that takes them, do
nothing where they arrive.  So the hooks stay at home, and the class is made known there again.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

__all__ = ["let_record", "without_recorders"]

_RECORDERS = "transformers.utils.output_capturing"


def without_recorders(model: Any) -> Any:
    """Give a model with the same weights, and without transformers' hooks for hidden states.

    Parameters
    ----------
    model : PreTrainedModel
        Is left as it is.

    Returns
    -------
    PreTrainedModel
        Its modules are new, its tensors are the model's own.
    """
    return _bare(model, {})


def _bare(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    if id(module) in made:  # the same module in two places
        return made[id(module)]
    new = made[id(module)] = type(module).__new__(type(module))
    new.__dict__.update(module.__dict__)
    new._forward_hooks = OrderedDict(
        (key, hook)
        for key, hook in module._forward_hooks.items()
        if getattr(hook, "__module__", None) != _RECORDERS
    )
    new.__dict__.pop("_output_capturing_hooks_installed", None)
    new._modules = {
        name: child if child is None else _bare(child, made)
        for name, child in module._modules.items()
    }
    return new


def let_record(model: Any) -> None:
    """Make the classes of a model known to transformers in this process, as loading it does.

    Parameters
    ----------
    model : PreTrainedModel
        As it came from another process.
    """
    with torch.device("meta"):  # no memory, no random numbers
        type(model)(copy.deepcopy(model.config))
