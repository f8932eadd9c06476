"""Pre-train a small BERT: the loop, checkpoints, and snapshots evenly spread on a log scale."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertflow_lite.nli.workplace import workplace
from bertflow_lite.pretraining.checkpoints import save_model, sweep, sync
from bertflow_lite.pretraining.corpus import PackedCorpus
from bertflow_lite.pretraining.interrupt import stop_requested
from bertflow_lite.pretraining.peers import Peers
from bertflow_lite.pretraining.precision import choose_bf16
from bertflow_lite.pretraining.progress import Progress
from bertflow_lite.pretraining.recipe import Recipe
from bertflow_lite.pretraining.run_folder import begin_run
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
