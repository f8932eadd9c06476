"""The training loop: batches of masked rows, AdamW, snapshots evenly spread on a log scale.

The loop is short on purpose, since watching it is what the chapter is about.  The output layer is
applied to the chosen places only; over all places it would cost as much as the encoder.
"""

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
from tqdm.auto import tqdm

from bertflow_lite.nli.workplace import begin_or_go_on, workplace
from bertflow_lite.pretraining.checkpoints import (
    last_checkpoint,
    restore,
    save_checkpoint,
    save_model,
)
from bertflow_lite.pretraining.corpus import PackedCorpus
from bertflow_lite.pretraining.interrupt import stop_requested
from bertflow_lite.pretraining.masking import mask_rows
from bertflow_lite.pretraining.recipe import Recipe, learning_rate_at, make_masked_model, rows_at
from bertflow_lite.runs import write_json

__all__ = ["Pretraining", "masked_loss", "pretrain", "snapshot_steps"]

HELD_OUT = 1024
"""Rows at the end of the corpus on which the loss is measured and never trained."""


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
    """

    folder: Path
    steps: int
    tokens: int
    seconds: float
    loss: list[list[float]]


def snapshot_steps(most: int = 10**9) -> list[int]:
    """Give the steps at which the model is kept: 0, 1, 2, 5, 10, 20, 50 and so on.

    Examples
    --------
    >>> snapshot_steps(60)
    [0, 1, 2, 5, 10, 20, 50]
    """
    out, unit = [0], 1
    while unit <= most:
        out += [k * unit for k in (1, 2, 5) if k * unit <= most]
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
    longest = int(mask.sum(1).max())
    hidden = model.bert(seen[:, :longest], attention_mask=mask[:, :longest]).last_hidden_state
    logits = model.cls(hidden[chosen[:, :longest]])
    return F.cross_entropy(logits.float(), rows[chosen])


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
    bf16: bool = False,
    checkpoint_seconds: float = 120.0,
    overwrite: bool = False,
    progress: bool = False,
    on_snapshot: Callable[[int, Path], None] | None = None,
) -> Pretraining:
    """Train a BERT from scratch on the masked-language-model objective.

    Parameters
    ----------
    corpus : PackedCorpus
        From `pack_corpus`, of the recipe's length.
    tokenizer : PreTrainedTokenizerFast
    out : Path
        Folder to fill.  An unfinished run there, begun with the same arguments, goes on.
    recipe : Recipe
    tokens, minutes : float, optional
        When to end; give one of them.
    seed : int
        Of weights, order and masks.
    device : torch.device or str
    bf16 : bool
        Compute in bfloat16 where autocast does.
    checkpoint_seconds : float, default 120
        Between two checkpoints.
    overwrite : bool
        Begin anew where something else lies in the folder.
    progress : bool
    on_snapshot : callable, optional
        Called with step and folder of each snapshot.

    Returns
    -------
    Pretraining

    Raises
    ------
    ValueError
        If not exactly one of tokens and minutes is given, the corpus has rows of another length or
        too few of them, or the folder holds another run.
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
    settings = {
        "recipe": recipe.as_dict(),
        "corpus": corpus.fingerprint,
        "tokens": tokens,
        "minutes": minutes,
        "seed": seed,
        "bf16": bf16,
    }
    begin_or_go_on(out / "settings.json", settings, overwrite)
    run = _Run(corpus, tokenizer, recipe, out, seed, torch.device(device), bf16, held_out)
    with stop_requested() as stopped, workplace(out / "unfinished") as work:
        run.begin(work, on_snapshot)
        bar = tqdm(total=None if tokens is None else int(tokens), unit="tok", unit_scale=True,
                   initial=run.tokens, disable=not progress)  # fmt: skip
        saved = time.monotonic()
        while (share := run.share(tokens, minutes)) < 1:
            bar.update(run.step_once(share))
            bar.set_postfix(loss=f"{run.running:.3f}", step=run.step)
            if run.step in run.wanted:
                run.snapshot(on_snapshot)
            if stopped.is_set() or time.monotonic() - saved > checkpoint_seconds:
                run.checkpoint(work)
                saved = time.monotonic()
            if stopped.is_set():
                raise KeyboardInterrupt(f"stopped at step {run.step}")
        bar.close()
        run.snapshot(on_snapshot)
        save_model(out / "final", run.model, tokenizer)
        result = Pretraining(out, run.step, run.tokens, round(run.seconds, 1), run.loss)
        write_json(
            out / "record.json",
            {**settings, "steps": run.step, "tokens": run.tokens, "seconds": result.seconds,
             "loss": run.loss},
        )  # fmt: skip
    return result


class _Run:
    """Model, optimizer and place in the corpus."""

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
    ) -> None:
        self.corpus, self.tokenizer, self.recipe = corpus, tokenizer, recipe
        self.out, self.seed, self.device, self.held_out = out, seed, device, held_out
        self.model = make_masked_model(recipe, tokenizer, corpus.counts, seed).to(device)
        named = list(self.model.named_parameters())
        groups = [
            {"params": [p for _, p in named if p.ndim > 1], "weight_decay": recipe.weight_decay},
            {"params": [p for _, p in named if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=0.0, betas=(0.9, recipe.beta2), eps=recipe.epsilon, fused=True
        )
        self.autocast: Any = torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()
        self.wanted = set(snapshot_steps())
        self.step = self.tokens = self.epoch = self.at = 0
        self.seconds, self.running = 0.0, math.nan
        self.loss: list[list[float]] = []
        self._order: tuple[int, Any] = (-1, None)

    def begin(self, work: Path, on_snapshot: Callable[[int, Path], None] | None) -> None:
        """Go on from the last checkpoint, or keep the untrained model as the first snapshot."""
        if (checkpoint := last_checkpoint(work / "checkpoints")) is None:
            self.snapshot(on_snapshot)
            return
        state = restore(checkpoint, self.model, self.optimizer)
        self.step, self.tokens = state["step"], state["tokens"]
        self.epoch, self.at = state["epoch"], state["at"]
        self.seconds, self.running, self.loss = state["seconds"], state["running"], state["loss"]

    def checkpoint(self, work: Path) -> None:
        names = ("step", "tokens", "epoch", "at", "seconds", "running", "loss")
        state = {name: getattr(self, name) for name in names}
        save_checkpoint(work / "checkpoints", self.model, self.optimizer, state)

    def snapshot(self, on_snapshot: Callable[[int, Path], None] | None) -> None:
        if self.loss and self.loss[-1][0] == self.step:
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
        return self.tokens / tokens if tokens is not None else self.seconds / (60 * minutes)  # type: ignore[operator]

    def step_once(self, share: float) -> int:
        """Make one update; give the number of pieces it saw."""
        began = time.monotonic()
        rows = self._next_rows()
        generator = torch.Generator().manual_seed((self.seed << 32) + self.step)
        seen, chosen = mask_rows(rows, self.tokenizer, self.recipe.masked, generator)
        n = int((rows != self.tokenizer.pad_token_id).sum())
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.recipe, self.tokens + n, share)
        loss = self._loss(rows, chosen, seen)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the loss is {value} at step {self.step}: lower the learning rate, and go on from "
                "the last checkpoint."
            )
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
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
            order = np.random.default_rng([self.seed, self.epoch]).permutation(trained)
            self._order = (self.epoch, order)
        chosen = np.sort(self._order[1][self.at : self.at + n])
        self.at += n
        return torch.from_numpy(self.corpus.rows[chosen].astype(np.int64))
