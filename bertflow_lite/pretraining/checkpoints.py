"""Checkpoints of a pre-training run: safetensors and JSON, written whole or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from bertflow_lite.folders import put_folder
from bertflow_lite.runs import write_json

__all__ = ["last_checkpoint", "restore", "save_checkpoint", "save_model"]


def save_checkpoint(
    folder: Path, model: Any, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> None:
    """Write what is needed to go on, then drop the checkpoint before it.

    Parameters
    ----------
    folder : Path
        Holds the checkpoints, named by their step.
    model, optimizer
        Of the run.
    state : dict
        JSON-able; ``state["step"]`` names the checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step-{state['step']:09d}"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as work:
        new = Path(work) / "whole"
        new.mkdir()
        save_file(_own(model.state_dict()), new / "model.safetensors")
        moments = {
            f"{i}.{name}": value
            for i, one in optimizer.state_dict()["state"].items()
            for name, value in one.items()
        }
        save_file(_own(moments), new / "optimizer.safetensors")
        write_json(new / "state.json", state)
        put_folder(new, target)
    for old in folder.glob("step-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def last_checkpoint(folder: Path) -> Path | None:
    """Give the newest whole checkpoint in a folder, or None."""
    return max(folder.glob("step-*"), default=None)


def restore(checkpoint: Path, model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put model and optimizer back where a checkpoint left them, and give its state."""
    model.load_state_dict(load_file(checkpoint / "model.safetensors"))
    moments: dict[int, dict[str, Any]] = {}
    for name, value in load_file(checkpoint / "optimizer.safetensors").items():
        index, key = name.split(".", 1)
        moments.setdefault(int(index), {})[key] = value
    now = optimizer.state_dict()
    optimizer.load_state_dict({"state": moments, "param_groups": now["param_groups"]})
    state: dict[str, Any] = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    return state


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write a transformers model, weights in float16, as a folder that is whole or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as work:
        new = Path(work) / "whole"
        # One copy of tensors that share memory (tied embeddings), so that they are written once.
        state = model.state_dict()
        half = {value.data_ptr(): value.half() for value in state.values()}
        halves = {name: half[value.data_ptr()] for name, value in state.items()}
        model.save_pretrained(new, state_dict=halves)
        tokenizer.save_pretrained(new)
        put_folder(new, folder)


def _own(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy tensors that share memory (tied embeddings): safetensors wants each by itself."""
    return {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
