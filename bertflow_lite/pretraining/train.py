"""Pre-train a small BERT: the loop, checkpoints, and snapshots evenly spread on a log scale."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from bertflow_lite.nli.workplace import begin_or_go_on, workplace
from bertflow_lite.pretraining.checkpoints import save_model
from bertflow_lite.pretraining.corpus import PackedCorpus
from bertflow_lite.pretraining.interrupt import stop_requested
from bertflow_lite.pretraining.peers import Peers
from bertflow_lite.pretraining.recipe import Recipe
from bertflow_lite.pretraining.training_run import HELD_OUT, TrainingRun
from bertflow_lite.runs import write_json

__all__ = ["Pretraining", "pretrain"]


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
    """

    folder: Path
    steps: int
    tokens: int
    seconds: float
    loss: list[list[float]]
    first: bool = True


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

    Under ``accelerate launch`` or ``torchrun``, call it in every process: each takes its share of
    every batch, and the first one writes (see `peers`).

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
    peers = Peers()
    if peers.first:
        begin_or_go_on(out / "settings.json", settings, overwrite)
    run = TrainingRun(
        corpus, tokenizer, recipe, out, seed, torch.device(device), bf16, held_out, peers
    )
    folder = out / "unfinished"
    with stop_requested() as stopped, peers.only_first(lambda: workplace(folder), folder) as work:
        run.begin(work, on_snapshot)
        bar = tqdm(total=None if tokens is None else int(tokens), unit="tok", unit_scale=True,
                   initial=run.tokens, disable=not (progress and peers.first))  # fmt: skip
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
            bar.update(run.step_once(share, stopped.is_set()))
            bar.set_postfix(loss=f"{run.running:.3f}", step=run.step)
            if run.step in run.wanted:
                run.snapshot(on_snapshot)
        bar.close()
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
        peers.wait()
    return result
