"""The folder of a pre-training run: its settings, checkpoint, models and record."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bertflow_lite.experiments.resume import begin_or_go_on
from bertflow_lite.files import put_folder

if TYPE_CHECKING:
    from bertflow_lite.experiments.pretraining.loop import TrainingRun

CHECKPOINT = Path("unfinished", "checkpoint.safetensors")
_COUNTERS = ("step", "tokens", "epoch", "at", "seconds", "running")


def begin_run(run: Path, settings: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Begin a run, or make sure that the one in the folder is the same.

    The settings are all that the weights depend on. With ``overwrite`` it begins anew where another
    run lies, or one that is finished. Gives the record of a finished run; None where there is
    something to train.
    """
    if overwrite and _record(run):
        (run / "record.json").unlink()  # first, for without it the run is unfinished
        for name in ("final", "snapshots", "unfinished"):
            shutil.rmtree(run / name, ignore_errors=True)
    begin_or_go_on(run / "settings.json", settings, overwrite)
    return _record(run)


def save_checkpoint(path: Path, run: TrainingRun, loss: list[list[float]]) -> None:
    """Write what is needed to go on: one file, whole or as it was before."""
    moments = {
        f"optimizer.{i}.{name}": value
        for i, one in run.optimizer.state_dict()["state"].items()
        for name, value in one.items()
    }
    weights = {f"model.{name}": value for name, value in run.model.state_dict().items()}
    # Tensors that share memory (tied embeddings) are copied: safetensors wants each by itself.
    tensors = {k: v.detach().cpu().clone().contiguous() for k, v in (weights | moments).items()}
    state = {name: getattr(run, name) for name in _COUNTERS} | {"loss": loss}
    scratch = path.with_suffix(".new")
    save_file(tensors, scratch, metadata={"state": json.dumps(state)})
    os.replace(scratch, path)


def restore(path: Path, run: TrainingRun) -> list[list[float]]:
    """Put a run back where a checkpoint left it; give its losses so far.

    Of a damaged checkpoint, the error says what to delete.
    """
    weights: dict[str, torch.Tensor] = {}
    moments: dict[int, dict[str, torch.Tensor]] = {}
    try:
        state = _read_state(path)
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (no dict)
                kind, rest = name.split(".", 1)
                if kind == "model":
                    weights[rest] = file.get_tensor(name)
                else:
                    index, key = rest.split(".", 1)
                    moments.setdefault(int(index), {})[key] = file.get_tensor(name)
        run.model.load_state_dict(weights)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        work = path.parent
        raise ValueError(
            f"the checkpoint of {work.parent.name!r} is damaged ({error}): delete the folder "
            f"{work.parent.name}/{work.name}, and the same command begins the training anew."
        ) from error
    groups = run.optimizer.state_dict()["param_groups"]
    run.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    for name in _COUNTERS:
        setattr(run, name, state[name])
    loss: list[list[float]] = state["loss"]
    return loss


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write a transformers model, weights in float16, as a folder that is whole or not there."""
    scratch = folder.with_name(".new")
    shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
    # One copy of tensors that share memory (tied embeddings), so that they are written once.
    state = model.state_dict()
    half = {value.data_ptr(): value.half() for value in state.values()}
    halves = {name: half[value.data_ptr()] for name, value in state.items()}
    model.save_pretrained(scratch, state_dict=halves)
    tokenizer.save_pretrained(scratch)
    put_folder(scratch, folder)


def fingerprint_folder(folder: Path) -> str:
    """Digest a model folder without loading it: weights, head included, and configuration."""
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Training:
    """What a run folder says of the training.

    Attributes
    ----------
    settings : dict
        Recipe, corpus, length, seed; where it is finished, processes and threads.
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

    ``partial`` takes an unfinished run as far as its last checkpoint.
    """
    if not (run / "settings.json").is_file():
        raise FileNotFoundError(
            f"{run.name!r} is no pre-training run: it has no settings.json. Name the folder that "
            "was given to `pretrain --out`."
        )
    settings = _read_json(run / "settings.json")
    finished = _record(run)
    if (record := finished) is None:
        if not partial:
            raise ValueError(
                f"the training in {run.name!r} is unfinished: let it end, or measure what there is "
                "(command line: --partial)."
            )
        if not (run / CHECKPOINT).is_file():
            raise FileNotFoundError(
                f"{run.name!r} has no checkpoint yet: wait for the first one, some minutes."
            )
        record = _read_state(run / CHECKPOINT)
        record["steps"] = record["step"]
    settings |= {key: record[key] for key in ("processes", "threads") if key in record}
    known = {int(entry[0]) for entry in record["loss"]}
    found = {int(path.name.removeprefix("step-")): path for path in run.glob("snapshots/step-*")}
    snapshots = {step: found[step] for step in sorted(found) if step in known}
    if not snapshots:
        raise FileNotFoundError(f"{run.name!r} has no snapshots: train it again.")
    numbers = (int(record["steps"]), int(record["tokens"]), float(record["seconds"]))
    return Training(settings, *numbers, record["loss"], snapshots, finished is not None)


def _record(run: Path) -> dict[str, Any] | None:
    """Give the record that a run leaves at its end, or None."""
    whole = (run / "record.json").is_file() and (run / "final").is_dir()
    return _read_json(run / "record.json") if whole else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} of the run cannot be read ({error}).") from error
    return content


def _read_state(checkpoint: Path) -> dict[str, Any]:
    with safe_open(checkpoint, "pt") as file:
        state: dict[str, Any] = json.loads(file.metadata()["state"])
    return state
