"""Checkpoints of a pre-training run: safetensors and JSON, written whole or not at all.

What is renamed to its place lies on the disk by then, so that a loss of power leaves the one that
was there before or the new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bertflow_lite.folders import put_folder
from bertflow_lite.runs import write_json

__all__ = [
    "last_checkpoint",
    "restore",
    "save_checkpoint",
    "save_model",
    "sweep",
    "sync",
]

_SCRATCH = ".new-"  # how the folders begin in which something is being written


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
    with tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH) as work:
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
        sync(new)
        put_folder(new, target)
    for old in folder.glob("step-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def last_checkpoint(folder: Path) -> Path | None:
    """Give the newest whole checkpoint in a folder, or None."""
    return max(folder.glob("step-*"), default=None)


def restore(checkpoint: Path, model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put model and optimizer back where a checkpoint left them, and give its state.

    Raises
    ------
    ValueError
        If the checkpoint is damaged; the message says what to delete.
    """
    try:
        weights = load_file(checkpoint / "model.safetensors")
        optimized = load_file(checkpoint / "optimizer.safetensors")
        state: dict[str, Any] = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    except (SafetensorError, ValueError, OSError) as error:
        work = checkpoint.parent.parent
        raise ValueError(
            f"the checkpoint {checkpoint.name} of {work.parent.name!r} is damaged ({error}): "
            f"delete the folder {work.parent.name}/{work.name}, and the same command begins the "
            "training anew."
        ) from error
    model.load_state_dict(weights)
    moments: dict[int, dict[str, Any]] = {}
    for name, value in optimized.items():
        index, key = name.split(".", 1)
        moments.setdefault(int(index), {})[key] = value
    now = optimizer.state_dict()
    optimizer.load_state_dict({"state": moments, "param_groups": now["param_groups"]})
    return state


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write a transformers model, weights in float16, as a folder that is whole or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_SCRATCH) as work:
        new = Path(work) / "whole"
        # One copy of tensors that share memory (tied embeddings), so that they are written once.
        state = model.state_dict()
        half = {value.data_ptr(): value.half() for value in state.values()}
        halves = {name: half[value.data_ptr()] for name, value in state.items()}
        model.save_pretrained(new, state_dict=halves)
        tokenizer.save_pretrained(new)
        sync(new)
        put_folder(new, folder)


def sweep(*folders: Path) -> None:
    """Remove what processes that were killed had begun to write.

    Parameters
    ----------
    *folders : Path
        That nobody else is writing in.  They need not exist.
    """
    for folder in folders:
        for left in folder.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file, or a folder and what is in it, lies on the disk.

    Parameters
    ----------
    path : Path

    Raises
    ------
    OSError
        If a file cannot be written to the disk.
    """
    for one in [*path.rglob("*"), path]:
        # Windows has no handle of a folder, and wants one that may write for a file.
        is_folder = one.is_dir()
        with contextlib.suppress(OSError) if is_folder else contextlib.nullcontext():
            handle = os.open(one, os.O_RDONLY if is_folder else os.O_RDWR)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _own(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy tensors that share memory (tied embeddings): safetensors wants each by itself."""
    return {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
