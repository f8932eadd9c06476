"""Train a BERT from scratch: masks, batches, the step, and the loop with its snapshots."""

from __future__ import annotations

import math
import shutil
import sys
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

from bertflow_lite.devices import choose_bf16
from bertflow_lite.experiments.pretraining.checkpoints import (
    CHECKPOINT,
    begin_run,
    restore,
    save_checkpoint,
    save_model,
)
from bertflow_lite.experiments.pretraining.corpus import PackedCorpus, row_lengths, similar_lengths
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

NUMBERS = ("steps", "tokens", "seconds", "loss")  # of a record, and of `Pretraining`


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
    """Model, optimizer and place in the corpus; it writes nothing.

    Parameters
    ----------
    corpus : PackedCorpus
    tokenizer : PreTrainedTokenizerFast
    recipe : Recipe
    seed : int, default 0
        Of weights, order and masks.
    device : torch.device or str, default "cpu"
    bf16 : bool, default False
        Compute in bfloat16 where autocast does.
    held_out : int, optional
        Rows at the end of the corpus that are not trained on; default: ``corpus.n_held_out``.

    Attributes
    ----------
    step, tokens : int
        Updates made and pieces seen.
    seconds, running : float
        Seconds of training, and the running mean of the training loss.
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

        Parameters
        ----------
        share : float
            Of the run that is over, by which the rate falls.
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
    trained : bool
        False where a finished run was found, and nothing was left to do.
    """

    folder: Path
    steps: int
    tokens: int
    seconds: float
    loss: list[list[float]]
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
    on_snapshot: Callable[[int, Path], None] | None = None,
) -> Pretraining:
    """Train a BERT from scratch on the masked-language-model objective.

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
        has units for it (`devices.choose_bf16`).  What was chosen belongs to the run.
    checkpoint_seconds : float, default 120
        Between two checkpoints.
    overwrite : bool
        Begin anew where another run lies in the folder, or one that is finished.
    progress : bool
        Show a progress bar; where that is no terminal, it is written once a minute.
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
    if tokens is not None and minutes is None:
        clock, end = "tokens", tokens
    elif minutes is not None and tokens is None:
        clock, end = "seconds", 60 * minutes
    else:
        raise ValueError("say how long to train: give either tokens or minutes.")
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
        "minutes": minutes, "seed": seed, "bf16": bf16,
    }  # fmt: skip
    work = (out / CHECKPOINT).parent
    if (record := begin_run(out, settings, overwrite)) is not None:
        shutil.rmtree(work, ignore_errors=True)  # left by a kill between the end and tidying up
        known = {key: record[key] for key in NUMBERS}
        return Pretraining(out, **known, trained=False)

    run = TrainingRun(corpus, tokenizer, recipe, seed=seed, device=device, bf16=bf16)
    checkpoint, wanted = out / CHECKPOINT, set(snapshot_steps())
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
            total=None if tokens is None else int(tokens), initial=run.tokens, unit="tok",
            unit_scale=True, mininterval=pause, maxinterval=max(pause, 10), disable=not progress,
        ) as bar:  # fmt: skip
            while (share := getattr(run, clock) / end) < 1:
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
        done = Pretraining(out, run.step, run.tokens, round(run.seconds, 1), loss)
        record = settings | {name: getattr(done, name) for name in NUMBERS}
        # The book's own run had two processes.
        record |= {"processes": 1, "threads": torch.get_num_threads()}
        write_json(out / "record.json", record)
    return done
