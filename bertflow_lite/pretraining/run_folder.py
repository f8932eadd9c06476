"""What a pre-training run left in its folder, or has left there so far."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertflow_lite.nli.workplace import begin_or_go_on
from bertflow_lite.pretraining.checkpoints import last_checkpoint

__all__ = ["Training", "begin_run", "fingerprint_folder", "read_training"]


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
