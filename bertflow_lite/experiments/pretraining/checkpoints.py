"""Checkpoints of a pre-training run: safetensors and JSON, written whole or not at all.

What is renamed to its place lies on the disk by then, so that a loss of power leaves the one that
was there before or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bertflow_lite.experiments.resume import begin_or_go_on
from bertflow_lite.files import put_folder, write_json

__all__ = [
    "Training",
    "begin_run",
    "fingerprint_folder",
    "last_checkpoint",
    "read_training",
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


@dataclass(frozen=True)
class Training:
    """What a run folder says of the training.

    Attributes
    ----------
    settings : dict
        Recipe, corpus, length, seed.
    steps, tokens, seconds
        So far, where it is unfinished.
    loss : list of [step, tokens, training loss, held-out loss]
    snapshots : dict of int to Path
        Model folders by step, rising; those whose loss is known.
    finished : bool
    """

    settings: dict[str, Any]
    steps: int
    tokens: int
    seconds: float
    loss: list[list[float]]
    snapshots: dict[int, Path]
    finished: bool

    def to_dict(self) -> dict[str, Any]:
        """Give what a stored run keeps of it."""
        return {
            **self.settings,
            "wanted_tokens": self.settings["tokens"],
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens / self.seconds if self.seconds else None,
            "loss": self.loss,
            "finished": self.finished,
        }


def read_training(run: Path, *, partial: bool = False) -> Training:
    """Read a run folder that `pretrain` made or is at work in.

    Parameters
    ----------
    run : Path
    partial : bool, default False
        Take an unfinished run as far as its last checkpoint.

    Raises
    ------
    FileNotFoundError
        If it is no such folder, or there is nothing to measure yet.
    ValueError
        If it is unfinished, and ``partial`` is not said.
    """
    if not (run / "settings.json").is_file():
        raise FileNotFoundError(
            f"{run.name!r} is no pre-training run: it has no settings.json. Name the folder that "
            "was given to `pretrain --out`."
        )
    settings = _read_json(run / "settings.json")
    record = _finished_record(run, settings) or {}
    finished = bool(record)
    if not finished:
        if not partial:
            raise ValueError(
                f"the training in {run.name!r} is unfinished: let it end, or measure what there is "
                "(command line: --partial)."
            )
        checkpoint = last_checkpoint(run / "unfinished" / "checkpoints")
        if checkpoint is None:
            raise FileNotFoundError(
                f"{run.name!r} has no checkpoint yet: wait for the first one, some minutes."
            )
        record = _read_json(checkpoint / "state.json")
    how: dict[str, Any] = {key: record[key] for key in ("processes", "threads") if key in record}
    found = {int(path.name.removeprefix("step-")): path for path in run.glob("snapshots/step-*")}
    known = {int(entry[0]) for entry in record["loss"]}
    snapshots = {step: found[step] for step in sorted(found) if step in known}
    if not snapshots:
        raise FileNotFoundError(f"{run.name!r} has no snapshots: train it again.")
    steps = record["steps"] if finished else record["step"]
    return Training(
        {**settings, **how},
        int(steps),
        int(record["tokens"]),
        float(record["seconds"]),
        record["loss"],
        snapshots,
        finished,
    )


def begin_run(run: Path, settings: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Begin a run, or make sure that the one in the folder is the same.

    Parameters
    ----------
    run : Path
    settings : dict
        All that the weights depend on.
    overwrite : bool
        Begin anew where another run lies, or one that is finished.

    Returns
    -------
    dict or None
        The record of the run, if it is finished; None where there is something to train.

    Raises
    ------
    ValueError
        If another run lies in the folder, and ``overwrite`` is False.
    """
    path, record_file = run / "settings.json", run / "record.json"
    if overwrite and record_file.exists():
        for entry in run.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
        record_file.unlink()
    elif path.is_file() and not overwrite:
        before, now = _read_json(path), json.loads(json.dumps(settings))
        record = _finished_record(run, before) if (run / "final").is_dir() else None
        if differ := sorted(key for key in {*before, *now} if before.get(key) != now.get(key)):
            raise ValueError(_other_run(run, before, differ, record is not None))
        if record is not None:
            # Left where a process was killed after its last file and before it had tidied up.
            shutil.rmtree(run / "unfinished", ignore_errors=True)
            return record
        record_file.unlink(missing_ok=True)  # of an earlier run in this folder
    begin_or_go_on(path, settings, overwrite)
    return None


def _other_run(run: Path, before: dict[str, Any], differ: list[str], finished: bool) -> str:
    what = f"{', '.join(differ)}"
    hint = ""
    if differ == ["bf16"]:
        said = "--bf16" if before["bf16"] else "--no-bf16"
        hint = (
            f" It was begun with {said}; without that word, the hardware decides, and here it "
            "decides otherwise."
        )
    if finished:
        return (
            f"a finished run lies in {run.name!r}, trained with another {what}.{hint} Name another "
            "folder, or say overwrite=True (command line: --overwrite) to replace it."
        )
    return (
        f"an unfinished run lies in {run.name!r}, begun with another {what}.{hint} Give the same "
        "arguments to finish it, delete that folder, or say overwrite=True (command line: "
        "--overwrite)."
    )


def _finished_record(run: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Give the record of a run with these settings that reached its end, or None."""
    if not (run / "record.json").is_file():
        return None
    record = _read_json(run / "record.json")
    # A record of another run can be left where a folder was used again.  "tokens" is those wanted
    # in the settings and those seen in the record.
    same = all(record.get(key) == settings[key] for key in settings if key != "tokens")
    return record if same and record.get("tokens", 0) >= (settings["tokens"] or 0) else None


def fingerprint_folder(folder: Path) -> str:
    """Digest a model folder without loading it: weights, head included, and configuration."""
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} of the run cannot be read ({error}).") from error
    return content
