"""Which pieces a masked language model has to predict, and what it sees in their place."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertflow_lite.devices import choose_bf16
from bertflow_lite.experiments.pretraining.checkpoints import (
    begin_run,
    last_checkpoint,
    restore,
    save_checkpoint,
    save_model,
    sweep,
    sync,
)
from bertflow_lite.experiments.pretraining.corpus import PackedCorpus, row_lengths, similar_lengths
from bertflow_lite.experiments.pretraining.peers import Peers
from bertflow_lite.experiments.pretraining.progress import Progress
from bertflow_lite.experiments.pretraining.recipe import (
    Recipe,
    attention_on,
    learning_rate_at,
    make_masked_model,
    masked_at,
    rows_at,
)
from bertflow_lite.experiments.pretraining.vocabulary_loss import vocabulary_loss
from bertflow_lite.experiments.resume import stop_requested, workplace
from bertflow_lite.files import write_json

__all__ = [
    "HELD_OUT",
    "Pretraining",
    "TrainingRun",
    "mask_rows",
    "masked_loss",
    "pretrain",
    "snapshot_steps",
]


def mask_rows(
    rows: Tensor, tokenizer: Any, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Choose pieces at random; show the mask for 80 % of them, a random piece for 10 %.

    Parameters
    ----------
    rows : Tensor of int64, shape (n, length)
        Whole rows; marks and padding are never chosen.
    tokenizer : PreTrainedTokenizerFast
    share : float
        Of the pieces, to choose.
    generator : torch.Generator
        On the CPU.

    Returns
    -------
    seen : Tensor, shape (n, length)
        What the model is shown.
    chosen : Tensor of bool, shape (n, length)
        Where it has to predict.  At least one place in all.
    """
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    can = ~torch.isin(rows, special)
    chosen = can & (torch.rand(rows.shape, generator=generator) < share)
    if not chosen.any() and can.any():
        chosen.view(-1)[int(can.view(-1).nonzero()[0])] = True
    fate = torch.rand(rows.shape, generator=generator)
    seen = torch.where(chosen & (fate < 0.8), tokenizer.mask_token_id, rows)
    other = torch.randint(len(tokenizer), rows.shape, generator=generator)
    return torch.where(chosen & (fate >= 0.9), other, seen), chosen


@dataclass(frozen=True)
class Pretraining:
    """What a run left: see `pretrain`.

    Attributes
    ----------
    folder : Path
        With ``final`` and ``snapshots/step-...``: transformers models.
    steps, tokens : int
        Updates made and pieces seen.
    seconds : float
        Of training, stops left out.
    loss : list of [step, tokens, training loss, held-out loss]
        In nats for a chosen piece; the training loss is a running mean.
    first : bool
        Whether this process is the one that wrote it.
    trained : bool
        False where a finished run was found, and nothing was left to do.
    """

    folder: Path
    steps: int
    tokens: int
    seconds: float
    loss: list[list[float]]
    first: bool = True
    trained: bool = True


def pretrain(
    corpus: PackedCorpus,
    tokenizer: Any,
    out: Path,
    *,
    recipe: Recipe,
    tokens: float | None = None,
    minutes: float | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    bf16: bool | None = False,
    checkpoint_seconds: float = 120.0,
    overwrite: bool = False,
    progress: bool = False,
    say: Callable[[str], None] | None = None,
    on_snapshot: Callable[[int, Path], None] | None = None,
) -> Pretraining:
    """Train a BERT from scratch on the masked-language-model objective.

    Under ``accelerate launch`` or ``torchrun``, call it in every process: each takes its share of
    every batch, and the first one writes (see `peers`).

    Parameters
    ----------
    corpus : PackedCorpus
        From `pack_corpus`, of the recipe's length.
    tokenizer : PreTrainedTokenizerFast
    out : Path
        Folder to fill.  An unfinished run there, begun with the same arguments, goes on; a
        finished one is returned as it is.
    recipe : Recipe
    tokens, minutes : float, optional
        When to end; give one of them.
    seed : int
        Of weights, order and masks.
    device : torch.device or str
    bf16 : bool, optional
        Compute in bfloat16 where autocast does, or not (the default); None: where the hardware
        has units for it (`precision.choose_bf16`).  What was chosen belongs to the run.
    checkpoint_seconds : float, default 120
        Between two checkpoints.
    overwrite : bool
        Begin anew where another run lies in the folder, or one that is finished.
    progress : bool
        Show a progress bar.
    say : callable, optional
        Takes a line on how far it is, at every snapshot and once a minute, in the first process:
        for where a bar cannot be shown.
    on_snapshot : callable, optional
        Called with step and folder of each snapshot.

    Returns
    -------
    Pretraining

    Raises
    ------
    ValueError
        If not exactly one of tokens and minutes is given, the corpus has rows of another length or
        too few of them, the folder holds another run, or its last checkpoint is damaged.
    FloatingPointError
        If the loss is no longer a number: the last checkpoint stays.
    KeyboardInterrupt
        When stopped (Ctrl-C, SIGTERM), after a checkpoint.
    """
    if (tokens is None) == (minutes is None):
        raise ValueError("say how long to train: give either tokens or minutes.")
    if corpus.rows.shape[1] != recipe.length:
        raise ValueError(
            f"the corpus has rows of {corpus.rows.shape[1]} pieces, the recipe wants "
            f"{recipe.length}: pack it again with that length."
        )
    held_out = min(HELD_OUT, len(corpus.rows) // 10)
    if len(corpus.rows) - held_out < recipe.most_rows:
        raise ValueError(
            f"the corpus has only {len(corpus.rows)} rows; a batch takes {recipe.most_rows}. "
            "Use a larger text or a smaller batch."
        )
    peers, device = Peers(), torch.device(device)
    chosen = peers.agree(lambda: choose_bf16(bf16, device))
    settings = {
        "recipe": recipe.as_dict(),
        "corpus": corpus.fingerprint,
        "tokens": tokens,
        "minutes": minutes,
        "seed": seed,
        "bf16": chosen,
    }
    record = peers.agree(lambda: begin_run(out, settings, overwrite))
    if record is not None:
        known = {key: record[key] for key in ("steps", "tokens", "seconds", "loss")}
        return Pretraining(out, **known, first=peers.first, trained=False)
    run = TrainingRun(corpus, tokenizer, recipe, out, seed, device, chosen, held_out, peers)
    folder = out / "unfinished"
    with stop_requested() as stopped, peers.only_first(lambda: workplace(folder), folder) as work:
        if peers.first:
            sweep(out, out / "snapshots", work / "checkpoints")
        run.begin(work, on_snapshot)
        told = Progress(run, tokens, progress and peers.first, say if peers.first else None)
        saved = time.monotonic()
        while (share := run.share(tokens, minutes)) < 1:
            # Several processes learn of a signal to one of them with the next step's gradients.
            if peers.size == 1 and stopped.is_set():
                run.stopped = True
            if run.step and (run.stopped or time.monotonic() - saved > checkpoint_seconds):
                run.checkpoint(work)
                saved = time.monotonic()
            if run.stopped:
                raise KeyboardInterrupt(f"stopped at step {run.step}")
            pieces = run.step_once(share, stopped.is_set())
            if run.step in run.wanted:
                run.snapshot(on_snapshot)
            told.update(pieces, run.share(tokens, minutes), run.step in run.wanted)
        told.close()
        run.snapshot(on_snapshot)
        result = Pretraining(
            out, run.step, run.tokens, round(run.seconds, 1), run.loss, peers.first
        )
        if peers.first:
            save_model(out / "final", run.model, tokenizer)
            write_json(
                out / "record.json",
                {**settings, "steps": run.step, "tokens": run.tokens, "seconds": result.seconds,
                 "processes": peers.size, "threads": torch.get_num_threads(), "loss": run.loss},
            )  # fmt: skip
            sync(out / "record.json")  # before the checkpoint goes
        peers.wait()
    return result


HELD_OUT = 1024
"""Rows at the end of the corpus on which the loss is measured and never trained."""


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


def masked_loss(model: Any, rows: Tensor, chosen: Tensor, seen: Tensor, pad: int) -> Tensor:
    """Mean of -log p over the chosen places, in nats.

    Parameters
    ----------
    model : BertForMaskedLM
    rows, seen : Tensor of int64, shape (n, length)
        The text, and what the model is shown.
    chosen : Tensor of bool, shape (n, length)
    pad : int
        Padding id, hidden from attention.
    """
    mask = (rows != pad).long()
    # Sizes are rounded up: for each new one, the CPU's matrix library makes, and keeps, new code.
    longest = min(-(-int(mask.sum(1).max()) // 8) * 8, rows.shape[1])
    hidden = model.bert(seen[:, :longest], attention_mask=mask[:, :longest]).last_hidden_state
    places = chosen[:, :longest].reshape(-1).nonzero().squeeze(1)
    more = -len(places) % 64
    target = F.pad(rows[:, :longest].reshape(-1)[places], (0, more), value=-1)
    head = model.cls.predictions
    guess = head.transform(hidden.flatten(0, 1)[F.pad(places, (0, more))])
    return vocabulary_loss(guess, head.decoder.weight, head.decoder.bias, target)


class TrainingRun:
    """Model, optimizer and place in the corpus.

    Attributes
    ----------
    step, tokens : int
        Updates made and pieces seen.
    seconds, running : float
        Seconds of training, and the running mean of the training loss.
    loss : list of [step, tokens, training loss, held-out loss]
        Of the snapshots.
    stopped : bool
        Whether the processes agreed to stop.
    """

    def __init__(
        self,
        corpus: PackedCorpus,
        tokenizer: Any,
        recipe: Recipe,
        out: Path,
        seed: int,
        device: torch.device,
        bf16: bool,
        held_out: int,
        peers: Peers,
    ) -> None:
        self.peers, self.stopped = peers, False
        self.corpus, self.tokenizer, self.recipe = corpus, tokenizer, recipe
        self.out, self.seed, self.device, self.held_out = out, seed, device, held_out
        self.model = make_masked_model(recipe, tokenizer, corpus.counts, seed).to(device)
        self.model.set_attn_implementation(attention_on(device.type))
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        matrices = [p for p in self.parameters if p.ndim > 1]
        others = [p for p in self.parameters if p.ndim <= 1]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=0.0, betas=(0.9, recipe.beta2), eps=recipe.epsilon, fused=True
        )
        self.autocast: Any = torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()
        self.wanted = set(snapshot_steps())
        self.step = self.tokens = self.epoch = self.at = 0
        self.seconds = self.agreed = 0.0
        self.running = math.nan
        self.loss: list[list[float]] = []
        self.lengths = row_lengths(corpus, tokenizer.pad_token_id)
        self._order: tuple[int, Any] = (-1, None)

    def begin(self, work: Path, on_snapshot: Callable[[int, Path], None] | None) -> None:
        """Go on from the last checkpoint, or keep the untrained model as the first snapshot."""
        if (checkpoint := last_checkpoint(work / "checkpoints")) is None:
            self.snapshot(on_snapshot)
            return
        state = restore(checkpoint, self.model, self.optimizer)
        self.step, self.tokens = state["step"], state["tokens"]
        self.epoch, self.at = state["epoch"], state["at"]
        self.seconds = self.agreed = state["seconds"]
        self.running, self.loss = state["running"], state["loss"]

    def checkpoint(self, work: Path) -> None:
        """Write all that is needed to go on (the first process does)."""
        if not self.peers.first:
            return
        names = ("step", "tokens", "epoch", "at", "seconds", "running", "loss")
        state = {name: getattr(self, name) for name in names}
        save_checkpoint(work / "checkpoints", self.model, self.optimizer, state)

    def snapshot(self, on_snapshot: Callable[[int, Path], None] | None) -> None:
        """Keep the model as it is, and note its loss (the first process does; once a step)."""
        if not self.peers.first or (self.loss and self.loss[-1][0] == self.step):
            return
        running = self.running if self.step else self.held_out_loss()
        self.loss.append(
            [self.step, self.tokens, round(running, 4), round(self.held_out_loss(), 4)]
        )
        folder = self.out / "snapshots" / f"step-{self.step:09d}"
        save_model(folder, self.model, self.tokenizer)
        if on_snapshot is not None:
            on_snapshot(self.step, folder)

    def share(self, tokens: float | None, minutes: float | None) -> float:
        """How much of the run is over."""
        if tokens is not None:
            return self.tokens / tokens
        # The rate hangs on it, so all processes go by the first one's clock, as of a step ago.
        return self.agreed / (60 * minutes)  # type: ignore[operator]

    def step_once(self, share: float, stop: bool = False) -> int:
        """Make one update; give the number of pieces it saw."""
        began = time.monotonic()
        rows = self._next_rows()
        generator = torch.Generator().manual_seed((self.seed << 32) + self.step)
        masked = masked_at(self.recipe, self.tokens)
        seen, chosen = mask_rows(rows, self.tokenizer, masked, generator)
        n = int((rows != self.tokenizer.pad_token_id).sum())
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.recipe, self.tokens + n, share)
        self.optimizer.zero_grad()
        # Every process draws the same masks and takes every size-th row: the sum of the gradients
        # is then that of the whole batch, whatever the number of processes.
        mine = slice(self.peers.rank, None, self.peers.size)
        value, part = 0.0, int(chosen[mine].sum()) / int(chosen.sum())
        if part:
            loss = part * self._loss(rows[mine], chosen[mine], seen[mine])
            loss.backward()
            value = float(loss.detach())
        seconds = self.seconds if self.peers.first else 0.0
        value, stops, self.agreed = self.peers.add(self.parameters, [value, stop, seconds])
        self.stopped = stops > 0 and self.peers.size > 1
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
        with self.autocast:
            return masked_loss(
                self.model,
                rows.to(self.device),
                chosen.to(self.device),
                seen.to(self.device),
                self.tokenizer.pad_token_id,
            )

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
