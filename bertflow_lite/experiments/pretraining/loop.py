"""The training of a small BERT: the step, the loop with its snapshots, and the folder of a run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from bertflow_lite.devices import computes_in_bfloat16
from bertflow_lite.experiments.pretraining.corpus import PackedCorpus, row_lengths, similar_lengths
from bertflow_lite.experiments.pretraining.recipe import (
    Recipe,
    attention_on,
    learning_rate_at,
    make_masked_model,
    mask_rows,
    masked_at,
    masked_loss,
    rows_at,
)
from bertflow_lite.experiments.runs import begin_or_go_on, stop_requested, workplace
from bertflow_lite.files import put_folder, write_json

logger = logging.getLogger(__name__)
CHECKPOINT = Path("unfinished", "checkpoint.pt")
_COUNTERS = ("step", "tokens", "epoch", "at", "seconds", "running")


class TrainingRun:
    """Model, optimizer and place in the corpus; it writes nothing.

    Weights, order and masks follow from the seed; ``bf16`` computes in bfloat16 as autocast does.
    ``held_out`` rows at the end of the corpus are not trained on (default: ``corpus.n_held_out``).
    ``step`` and ``tokens`` count updates made and pieces seen, ``seconds`` those of training;
    ``running`` is the running mean of the training loss.
    """

    def __init__(
        self,
        corpus: PackedCorpus,
        tokenizer: Any,
        recipe: Recipe,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        bf16: bool = False,
        held_out: int | None = None,
    ) -> None:
        self.corpus, self.tokenizer, self.recipe = corpus, tokenizer, recipe
        self.seed, self.device = seed, torch.device(device)
        self.held_out = corpus.n_held_out if held_out is None else held_out
        self.model = make_masked_model(recipe, tokenizer, corpus.counts, seed).to(self.device)
        self.model.set_attn_implementation(attention_on(self.device.type))
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [
            {
                "params": [p for p in self.parameters if p.ndim > 1],
                "weight_decay": recipe.weight_decay,
            },
            {"params": [p for p in self.parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=0.0, betas=(0.9, recipe.beta2), eps=recipe.epsilon, fused=True
        )
        low = torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext()
        self.autocast: Any = low
        self.step = self.tokens = self.epoch = self.at = 0
        self.seconds, self.running = 0.0, math.nan
        self.lengths = row_lengths(corpus, tokenizer.pad_token_id)
        self._order: tuple[int, Any] = (-1, None)

    def step_once(self, share: float) -> int:
        """Make one update; give the number of pieces it saw.

        ``share`` is that of the run that is over, by which the rate falls.
        """
        began = time.monotonic()
        rows = self._next_rows()
        # Masks depend on the seed and the step alone, so that resuming is exact.
        generator = torch.Generator().manual_seed((self.seed << 32) + self.step)
        seen, chosen = mask_rows(
            rows, self.tokenizer, masked_at(self.recipe, self.tokens), generator
        )
        n = int((rows != self.tokenizer.pad_token_id).sum())
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.recipe, self.tokens + n, share)
        self.optimizer.zero_grad()
        loss = self._loss(rows, chosen, seen)
        loss.backward()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the loss is {value} at step {self.step}: lower the learning rate, and go on from "
                "the last checkpoint."
            )
        torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        self.optimizer.step()
        self.running = value if math.isnan(self.running) else 0.98 * self.running + 0.02 * value
        self.step += 1
        self.tokens += n
        self.seconds += time.monotonic() - began
        return n

    def held_out_loss(self) -> float:
        """Loss on the held-out rows, masked the same way every time (15 %, as in BERT)."""
        rows = torch.from_numpy(self.corpus.rows[-self.held_out :].astype(np.int64))
        seen, chosen = mask_rows(rows, self.tokenizer, 0.15, torch.Generator().manual_seed(0))
        total = 0.0
        self.model.eval()
        with torch.no_grad():
            for part in torch.arange(len(rows)).split(128):
                n = int(chosen[part].sum())
                total += n * float(self._loss(rows[part], chosen[part], seen[part])) if n else 0.0
        self.model.train()
        return total / int(chosen.sum())

    def _loss(self, rows: Tensor, chosen: Tensor, seen: Tensor) -> Tensor:
        rows, chosen, seen = (x.to(self.device) for x in (rows, chosen, seen))
        with self.autocast:
            return masked_loss(self.model, rows, chosen, seen, self.tokenizer.pad_token_id)

    def _next_rows(self) -> Tensor:
        """Take the next rows; seed and epoch alone decide the order, so that resuming is exact."""
        n = rows_at(self.recipe, self.tokens)
        trained = len(self.corpus.rows) - self.held_out
        if self.at + n > trained:
            self.epoch, self.at = self.epoch + 1, 0
        if self._order[0] != self.epoch:
            random = np.random.default_rng([self.seed, self.epoch])
            order = similar_lengths(self.lengths[:trained], random, self.recipe.most_rows)
            self._order = (self.epoch, order)
        chosen = np.sort(self._order[1][self.at : self.at + n])
        self.at += n
        return torch.from_numpy(self.corpus.rows[chosen].astype(np.int64))


def snapshot_steps(most: int = 10**9) -> list[int]:
    """Give the steps at which the model is kept: 0, 1, 2, 3, 5, 7, 10, 20, 30 and so on.

    Examples
    --------
    >>> snapshot_steps(60)
    [0, 1, 2, 3, 5, 7, 10, 20, 30, 50]
    """
    out, unit = [0], 1
    while unit <= most:
        out += [k * unit for k in (1, 2, 3, 5, 7) if k * unit <= most]
        unit *= 10
    return out


@dataclass(frozen=True)
class Training:
    """What a run folder says of the training."""

    folder: Path  # with ``final`` and ``snapshots/step-...``: transformers models
    # Recipe, corpus, length, seed; where it is finished, processes and threads.
    settings: dict[str, Any]
    # Updates made and pieces seen, so far where it is unfinished.
    steps: int
    tokens: int
    seconds: float  # of training, stops left out
    loss: list[list[float]]  # in nats for a chosen piece; the training loss is a running mean
    snapshots: dict[int, Path]  # model folders by step, rising; those whose loss is known
    finished: bool
    trained: bool = True  # False where `pretrain` found it finished, and nothing was left to do

    def to_dict(self) -> dict[str, Any]:
        """Give what a stored run keeps of it."""
        return {
            **self.settings,
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "loss": self.loss,
            "finished": self.finished,
        }


def pretrain(
    corpus: PackedCorpus,
    tokenizer: Any,
    out: Path,
    *,
    recipe: Recipe,
    tokens: float,
    seed: int = 0,
    device: torch.device | str = "cpu",
    bf16: bool | None = False,
    checkpoint_seconds: float = 120.0,
    overwrite: bool = False,
    progress: bool = False,
    on_snapshot: Callable[[int, Path], None] | None = None,
) -> Training:
    """Train a BERT from scratch on the masked-language-model objective.

    The corpus is packed with the recipe's length. After so many ``tokens`` the run ends; weights,
    order and masks follow from the seed. In the folder ``out``, an unfinished run that was begun
    with the same arguments goes on, and a finished one is returned as it is; ``overwrite`` begins
    anew where another run lies, or one that is finished.

    With ``bf16`` it computes in bfloat16 where autocast does; None: where the hardware has units
    for it (`choose_bf16`). What was chosen belongs to the run. The progress bar is written
    once a minute where it goes to no terminal; ``on_snapshot`` is called with step and folder of
    each snapshot.

    Stopped (Ctrl-C, SIGTERM), it writes a checkpoint and raises KeyboardInterrupt; where the loss
    is no longer a number, a FloatingPointError, and the last checkpoint stays.
    """
    if corpus.rows.shape[1] != recipe.length:
        raise ValueError(
            f"the corpus has rows of {corpus.rows.shape[1]} pieces, the recipe wants "
            f"{recipe.length}: pack it again with that length."
        )
    if len(corpus.rows) - corpus.n_held_out < recipe.most_rows:
        raise ValueError(
            f"the corpus has only {len(corpus.rows)} rows; a batch takes {recipe.most_rows}. "
            "Use a larger text or a smaller batch."
        )
    bf16 = choose_bf16(bf16, device)
    settings = {
        "recipe": recipe.as_dict(), "corpus": corpus.fingerprint, "tokens": tokens,
        "seed": seed, "bf16": bf16,
    }  # fmt: skip
    checkpoint, wanted = out / CHECKPOINT, set(snapshot_steps())
    work = checkpoint.parent
    if overwrite and _record(out):
        (out / "record.json").unlink()  # first, for without it the run is unfinished
        for name in ("final", "snapshots", work.name):
            shutil.rmtree(out / name, ignore_errors=True)
    begin_or_go_on(out / "settings.json", settings, overwrite)
    if _record(out):
        shutil.rmtree(work, ignore_errors=True)  # left by a kill between the end and tidying up
        return dataclasses.replace(read_training(out), trained=False)

    run = TrainingRun(corpus, tokenizer, recipe, seed=seed, device=device, bf16=bf16)
    loss: list[list[float]] = []

    def snapshot() -> None:
        held_out = run.held_out_loss()
        running = run.running if run.step else held_out
        loss.append([run.step, run.tokens, round(running, 4), round(held_out, 4)])
        folder = out / "snapshots" / f"step-{run.step:09d}"
        save_model(folder, run.model, tokenizer)
        if on_snapshot is not None:
            on_snapshot(run.step, folder)

    # A bar that is written to a file is written seldom.
    pause = 0.1 if sys.stderr.isatty() else 60
    with stop_requested() as stopped, workplace(work):
        if checkpoint.exists():
            loss = restore(checkpoint, run)
        else:
            snapshot()
        saved = time.monotonic()
        with tqdm(
            total=int(tokens), initial=run.tokens, unit="tok", unit_scale=True,
            mininterval=pause, maxinterval=max(pause, 10), disable=not progress,
        ) as bar:  # fmt: skip
            while (share := run.tokens / tokens) < 1:
                stop = stopped.is_set()
                if stop or (run.step and time.monotonic() - saved > checkpoint_seconds):
                    save_checkpoint(checkpoint, run, loss)
                    saved = time.monotonic()
                if stop:
                    raise KeyboardInterrupt(f"stopped at step {run.step}")
                pieces = run.step_once(share)
                if run.step in wanted:
                    snapshot()
                bar.set_postfix(loss=f"{run.running:.3f}", step=run.step, refresh=False)
                bar.update(pieces)
        if loss[-1][0] != run.step:
            snapshot()
        save_model(out / "final", run.model, tokenizer)
        record = settings | {
            "steps": run.step, "tokens": run.tokens, "seconds": round(run.seconds, 1), "loss": loss,
            "processes": 1, "threads": torch.get_num_threads(),  # the book's own run had two
        }  # fmt: skip
        write_json(out / "record.json", record)
    return read_training(out)


def choose_bf16(wanted: bool | None, device: torch.device | str) -> bool:
    """Give what is wanted, with a warning where it is slow; default: what is best on the device."""
    can = computes_in_bfloat16(device)
    if wanted and not can:
        logger.warning(
            "bfloat16 is emulated on this %s, which is slow: say bf16=False (command line: "
            "--no-bf16) for float32",
            torch.device(device).type,
        )
    return can if wanted is None else wanted


def save_checkpoint(path: Path, run: TrainingRun, loss: list[list[float]]) -> None:
    """Write what is needed to go on: one file, whole or as it was before."""
    state = {name: getattr(run, name) for name in _COUNTERS} | {"loss": loss}
    state |= {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
    scratch = path.with_suffix(".new")
    torch.save(state, scratch)
    os.replace(scratch, path)


def restore(path: Path, run: TrainingRun) -> list[list[float]]:
    """Put a run back where a checkpoint left it; give its losses so far.

    Of a damaged checkpoint, the error says what to delete.
    """
    try:
        state = _read_checkpoint(path)
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        for name in _COUNTERS:
            setattr(run, name, state[name])
        loss: list[list[float]] = state["loss"]
    except (OSError, ValueError, KeyError, RuntimeError, EOFError, UnpicklingError) as error:
        work = path.parent
        raise ValueError(
            f"the checkpoint of {work.parent.name!r} is damaged ({error}): delete the folder "
            f"{work.parent.name}/{work.name}, and the same command begins the training anew."
        ) from error
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
        record = _read_checkpoint(run / CHECKPOINT)
        record["steps"] = record["step"]
    settings |= {key: record[key] for key in ("processes", "threads") if key in record}
    known = {int(entry[0]) for entry in record["loss"]}
    found = {int(path.name.removeprefix("step-")): path for path in run.glob("snapshots/step-*")}
    snapshots = {step: found[step] for step in sorted(found) if step in known}
    if not snapshots:
        raise FileNotFoundError(f"{run.name!r} has no snapshots: train it again.")
    numbers = (int(record["steps"]), int(record["tokens"]), float(record["seconds"]))
    return Training(run, settings, *numbers, record["loss"], snapshots, finished is not None)


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


def _read_checkpoint(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)  # runs nothing
    return state
