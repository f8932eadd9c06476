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
from torch.autograd.function import once_differentiable
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
from bertflow_lite.experiments.resume import stop_requested, workplace
from bertflow_lite.files import write_json

NUMBERS = ("steps", "tokens", "seconds", "loss")  # of a record, and of `Pretraining`


def mask_rows(
    rows: Tensor, tokenizer: Any, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Choose pieces at random; show the mask for 80 % of them, a random piece for 10 %.

    Rows, shape (n, length), are whole; marks and padding are never chosen. The generator is on the
    CPU.

    Gives what the model is shown, and where it has to predict, which is at least one place in all.
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

    ``rows`` is the text, ``seen`` what the model is shown, both of shape (n, length); ``pad`` is
    the id that is hidden from attention.
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


_SLICE = 64
"""Places at once: 8 MB of float32 logits for BERT's vocabulary."""


def vocabulary_loss(hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    r"""Mean of :math:`-\log p` under the softmax of ``hidden @ weight.T + bias``, in nats.

    The same as `torch.nn.functional.cross_entropy` of the logits, a slice of places at a time.

    With 30,522 word pieces the output layer's numbers are larger than all others together: a
    thousand places make 125 MB of logits, and as much again for their softmax, its gradient and the
    copies between types.  Here a slice is taken from hidden state to gradient before the next one
    begins, so that the numbers stay near the processor; only the gradient is kept for all places,
    in the type of the products (autocast's, where it is on; all else is float32).

    A negative target marks a place that does not count: it fills up a slice.

    Examples
    --------
    >>> hidden, weight = torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> vocabulary_loss(hidden, weight, torch.zeros(2), torch.tensor([0, 1]))
    tensor(0.1269)
    """
    kind = hidden.device.type
    low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    return _VocabularyLoss.apply(hidden.float(), weight, bias, target, low)


class _VocabularyLoss(torch.autograd.Function):
    """The gradient is found on the way forward: with softmax minus one-hot it is almost free."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, low: torch.dtype
    ) -> Tensor:
        n = max(int((target >= 0).sum()), 1)
        wanted = any(ctx.needs_input_grad)
        h, words = hidden.detach().to(low), weight.detach().to(low)
        slope = h.new_empty(len(h) if wanted else 0, len(words))
        total = hidden.new_zeros(())
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(h), _SLICE):
                part = slice(start, start + _SLICE)
                at, counts = target[part, None].clamp(min=0), (target[part, None] >= 0).float()
                logits = (h[part] @ words.T).float().add_(bias)
                logits.sub_(logits.amax(1, keepdim=True))
                own = logits.gather(1, at)
                p = logits.exp_()
                sums = p.sum(1, keepdim=True)
                total += ((sums.log() - own) * counts).sum()
                if wanted:  # d loss / d logits = (p - one-hot) / n
                    slope[part] = p.mul_(counts / (sums * n)).scatter_add_(1, at, counts / -n)
            if wanted:
                to_bias = slope.sum(0, dtype=torch.float32)
                ctx.save_for_backward((slope @ words).float(), (slope.T @ h).float(), to_bias)
        return total / n

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return (*(slope * one for one in ctx.saved_tensors), None, None)


class TrainingRun:
    """Model, optimizer and place in the corpus; it writes nothing.

    Weights, order and masks follow from the seed. ``bf16`` computes in bfloat16 where autocast
    does. ``held_out`` rows at the end of the corpus are not trained on (default:
    ``corpus.n_held_out``).

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

    The corpus is packed with the recipe's length. Give either ``tokens`` or ``minutes``, after
    which the run ends; weights, order and masks follow from the seed. In the folder ``out``, an
    unfinished run that was begun with the same arguments goes on, and a finished one is returned as
    it is; ``overwrite`` begins anew where another run lies, or one that is finished.

    With ``bf16`` it computes in bfloat16 where autocast does; None: where the hardware has units
    for it (`devices.choose_bf16`). What was chosen belongs to the run. The progress bar is written
    once a minute where it goes to no terminal; ``on_snapshot`` is called with step and folder of
    each snapshot.

    Stopped (Ctrl-C, SIGTERM), it writes a checkpoint and raises KeyboardInterrupt; where the loss
    is no longer a number, a FloatingPointError, and the last checkpoint stays.
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
