"""What each part of a recipe does: short runs that differ in one thing.

`LADDER` begins with BERT's usual settings at a small batch (but for the bias of the output, which
starts at log p, and rows of whole sentences) and takes up one change after another.  `ASIDES` are
single changes to one of its steps, among them a way back to what BERT does.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from bertflow_lite.pretraining.corpus import PackedCorpus
from bertflow_lite.pretraining.peers import Peers
from bertflow_lite.pretraining.recipe import Recipe
from bertflow_lite.pretraining.training_run import HELD_OUT, TrainingRun

__all__ = ["ASIDES", "FORMAT", "LADDER", "Trial", "compare_recipes", "unigram_loss"]

_BERT = Recipe(
    waves=False, neighbors=0.0, masked=0.15, masked_last=0.15, learning_rate=1e-3, rows=32,
    most_rows=32, warmup_tokens=1e5, beta2=0.999,
)  # fmt: skip

FORMAT = 1
"""Of what `compare_recipes` gives: kept results of another one are not used."""


@dataclass(frozen=True)
class Trial:
    """One recipe to try.

    Attributes
    ----------
    name, why : str
        What is changed, and what one hopes for.
    changes : dict
        Fields of `Recipe`, on top of BERT's settings at a small batch.
    text : {"sentences", "running"}
        Rows of whole sentences, or of running text, cut wherever a row is full.
    """

    name: str
    why: str
    changes: dict[str, Any] = field(default_factory=dict)
    text: str = "sentences"

    @property
    def recipe(self) -> Recipe:
        """The whole recipe."""
        return dataclasses.replace(_BERT, **self.changes)


_WAVES: dict[str, Any] = {"waves": True}
_NEIGHBORS = {**_WAVES, "neighbors": 1.2}
_MASKED = {**_NEIGHBORS, "masked": 0.3, "masked_last": 0.3}

LADDER = (
    Trial("the start", "random places, 15 % masked, rate 0.001, bias at log p"),
    Trial("+ waves for places", "one place to the left is the same turn everywhere", _WAVES),
    Trial("+ heads begin at their neighbors", "no search for what matters most", _NEIGHBORS),
    Trial("+ 30 % masked", "twice as many guesses in a step", _MASKED),
)
ASIDES = (
    Trial("start, bias from zero", "BERT's own: frequencies have to be learned", {"bias": "zero"}),
    Trial(
        "start, initial scale 0.06", "attention that is less even at first", {"initial_std": 0.06}
    ),
    Trial("neighbors, rate 0.002", "larger steps", {**_NEIGHBORS, "learning_rate": 2e-3}),
    Trial("neighbors, rate 0.0005", "smaller steps", {**_NEIGHBORS, "learning_rate": 5e-4}),
    Trial("neighbors, no warm-up", "full steps at once", {**_NEIGHBORS, "warmup_tokens": 1.0}),
    Trial(
        "neighbors, 128 rows",
        "a quarter of the steps, with less noise",
        {**_NEIGHBORS, "rows": 128, "most_rows": 128},
    ),
    Trial("neighbors, running text", "full rows, cut sentences", _NEIGHBORS, "running"),
)


def unigram_loss(corpus: PackedCorpus, held_out: int) -> float:
    """Mean -log p(x) of the held-out pieces under the counts of the whole corpus, in nats."""
    smooth = corpus.counts + 0.5
    pieces = np.bincount(corpus.rows[-held_out:].ravel(), minlength=len(smooth)) * (
        corpus.counts > 0
    )
    return float(-(pieces @ np.log(smooth / smooth.sum())) / pieces.sum())


def running_text(corpus: PackedCorpus, tokenizer: Any, held_out: int) -> PackedCorpus:
    """Cut the text into full rows, wherever sentences end; the held-out rows stay as they are."""
    rows = np.asarray(corpus.rows[: len(corpus.rows) - held_out])
    pieces = rows[~np.isin(rows, tokenizer.all_special_ids)]
    inner = rows.shape[1] - 2
    whole = len(pieces) // inner
    full = np.empty((whole, inner + 2), rows.dtype)
    full[:, 0], full[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    full[:, 1:-1] = pieces[: whole * inner].reshape(whole, inner)
    return PackedCorpus(
        np.concatenate([full, corpus.rows[len(corpus.rows) - held_out :]]),
        corpus.counts,
        f"{corpus.fingerprint} running",
    )


def compare_recipes(
    corpus: PackedCorpus,
    tokenizer: Any,
    trial: Trial,
    *,
    tokens: float,
    shape: Mapping[str, Any] | None = None,
    points: Sequence[float] = (0, 0.1, 0.25, 0.5, 0.75, 1),
    seed: int = 0,
    device: torch.device | str = "cpu",
    bf16: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Train one recipe for a short while, the rate constant after its rise.

    Parameters
    ----------
    corpus, tokenizer
        As `pretrain`.
    trial : Trial
    tokens : float
        When to end.
    shape : mapping, optional
        Fields of `Recipe` that all trials share, as ``width``; default: the book's model.
    points : sequence of float
        Shares of the tokens after which the held-out loss is measured.
    seed, device, bf16
        As `pretrain`.
    progress : bool
        Show a progress bar.

    Returns
    -------
    dict
        ``name``, ``why``, ``changes``; ``curve``: list of [step, tokens, held-out loss];
        ``seconds`` of training.
    """
    held_out = min(HELD_OUT, len(corpus.rows) // 10)
    if trial.text == "running":
        corpus = running_text(corpus, tokenizer, held_out)
    recipe = dataclasses.replace(trial.recipe, **(shape or {}))
    run = TrainingRun(
        corpus, tokenizer, recipe, Path("unused"), seed, torch.device(device), bf16, held_out,
        Peers(),
    )  # fmt: skip
    curve, left = [], sorted(points)
    began, measuring = time.monotonic(), 0.0
    with tqdm(total=int(tokens), unit="tok", unit_scale=True, desc=trial.name,
              disable=not progress) as bar:  # fmt: skip
        while left:
            if run.tokens >= left[0] * tokens:
                pause = time.monotonic()
                curve.append([run.step, run.tokens, round(run.held_out_loss(), 4)])
                measuring += time.monotonic() - pause
                left = [point for point in left if point * tokens > run.tokens]
                continue
            bar.update(run.step_once(0.0))
    return {
        "name": trial.name,
        "why": trial.why,
        "changes": trial.changes,
        "curve": curve,
        "seconds": round(time.monotonic() - began - measuring, 1),
    }
