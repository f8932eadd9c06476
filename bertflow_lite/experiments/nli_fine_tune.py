"""Siamese fine-tuning on natural language inference, as Sentence-BERT and the paper's Table 3 do.

Two sentences pass through one encoder; their means over tokens, u and v, are joined to
``[u, v, |u - v|]``, and a softmax over this says whether the first entails the second, contradicts
it, or neither.  The classifier is then left aside: what counts is the encoder, whose embeddings
have become better at similarity without ever seeing a similarity score.

Loop and loss are sentence-transformers' own, with what they lack: a softmax without bias;
checkpoints that keep it, and an order of the pairs that depends on seed and epoch alone, so that a
stopped run goes on where it was; and, on a CPU, sentences of like length run together.  An encoder
can be cut to its first blocks before, and the output folder is there complete or not at all.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import math
import os
import random
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model as load_weights
from safetensors.torch import save_file
from safetensors.torch import save_model as save_weights
from torch import Tensor
from torch.utils.data import RandomSampler
from tqdm import tqdm
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging

from bertflow_lite.datasets.nli import NliPairs, load_nli_pairs
from bertflow_lite.datasets.sts import OWN_SETS, load_sts
from bertflow_lite.devices import find_device
from bertflow_lite.encoders.models import LoadedModel, _fingerprint, load_model
from bertflow_lite.encoders.pooling import resolve_layers
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.nli_judge import (
    CLASSIFIER,
    RECORD,
    NliHistory,
    check_pairs,
    draw,
    hold_out,
    judge,
    load_nli_record,
    select_pairs,
)
from bertflow_lite.experiments.runs import begin_or_go_on, stop_requested, workplace
from bertflow_lite.files import put_folder, write_json
from bertflow_lite.measures.scores import score_sts

try:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.base.losses.merged_forward import merge_feature_batches
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import SoftmaxLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
except ImportError as error:
    raise ImportError(
        "fine-tuning needs sentence-transformers. Run: "
        "pip install 'sentence-transformers>=6.2' accelerate datasets"
    ) from error

logger = logging.getLogger(__name__)
STS_LAYERS = ["last", "last2avg", "first-last"]
CURVE_POINTS = 200  # at most about so many points of the loss curve are kept
N_LABELS = 3
ROWS_ON_CPU = 8  # sentences run at once: more is padding, fewer is overhead
WEIGHTS = "siamese.safetensors"  # in a checkpoint: encoder and classifier
CLOCK = "clock.json"  # in a checkpoint: seconds so far, and where it was taken up again
STATE = "trainer_state.json"  # in a checkpoint: written last by transformers
EPOCH_STRIDE = 1_000_003  # between the seeds of two epochs: far, so that no two runs share one


def cut_blocks(loaded: LoadedModel, keep: int) -> LoadedModel:
    """Copy an encoder without its blocks after the first ``keep``, and without the pooler.

    In BERT and its kin nothing follows the last block, so the hidden states 0 to ``keep`` of the
    cut model are those of the whole one.

    An error where the model is not built like BERT: in Llama and its kin a last norm follows the
    blocks, so cutting would change the last hidden state.
    """
    there = int(loaded.model.config.num_hidden_layers)
    if not 1 <= keep <= there:
        raise ValueError(
            f"{loaded.name!r} has {there} blocks; keep 1 to {there} of them, not {keep}."
        )
    owner = getattr(loaded.model, "encoder", getattr(loaded.model, "transformer", None))
    if len(getattr(owner, "layer", ())) != there:
        raise ValueError(
            f"{loaded.name!r} ({type(loaded.model).__name__}) is not built like BERT: "
            "only encoders whose blocks are the last thing that happens can be cut."
        )
    model = copy.deepcopy(loaded.model)
    owner = getattr(model, "encoder", getattr(model, "transformer", None))
    owner.layer = owner.layer[:keep]  # type: ignore[union-attr]
    model.config.num_hidden_layers = keep
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # no embedding here passes through it
    name = f"{loaded.name}, first {keep} blocks"
    return LoadedModel(name, model, loaded.tokenizer, _fingerprint(model, loaded.tokenizer))


def fine_tune(
    model: str | os.PathLike[str] | LoadedModel,
    pairs: NliPairs,
    out: str | os.PathLike[str],
    *,
    epochs: int = 1,
    learning_rate: float = 2e-5,
    batch_size: int = 16,
    keep_blocks: int | None = None,
    max_length: int = 64,
    validation: int = 2000,
    limit: int | None = None,
    seed: int = 0,
    device: str | None = None,
    checkpoint_steps: int = 500,
    overwrite: bool = False,
    download: bool = False,
    progress: bool = False,
) -> NliHistory:
    """Fine-tune an encoder on NLI pairs by a softmax over ``[u, v, |u - v|]`` (Section 4.1).

    A run that is stopped (Ctrl-C, SIGTERM, a power cut) leaves its checkpoints in a folder beside
    ``out``; the next call with the same arguments goes on from the last of them and arrives where
    an undisturbed run would have.

    The folder ``out`` is a plain transformers model (``load_encoder(out)``), the classifier, and
    ``nli.json`` with all settings and the history; ``overwrite`` replaces what is in it, and
    forgets an unfinished run of other settings.

    The rate of AdamW rises linearly to ``learning_rate`` over a tenth of the steps, then falls
    linearly to 0; gradients are clipped at norm 1. All weights but biases and layer norms decay, as
    in Sentence-BERT and the released code. ``keep_blocks`` cuts the encoder before (`cut_blocks`).

    ``validation`` pairs are held out for the accuracy (`hold_out`); of the others, ``limit`` are
    trained on, drawn at random: the same ones for every seed. The seed is that of the classifier's
    first weights, the order of the pairs, and dropout.
    """
    out = Path(out)
    if out.exists() and not overwrite:
        raise ValueError(
            f"the folder {out.name!r} exists already: name another one, or say overwrite=True "
            "(command line: --overwrite)."
        )
    for name, value, good in (
        ("epochs", epochs, epochs >= 1),
        ("batch_size", batch_size, batch_size >= 1),
        ("checkpoint_steps", checkpoint_steps, checkpoint_steps >= 1),
        ("learning_rate", learning_rate, learning_rate > 0),
        ("limit", limit, limit is None or limit >= 1),
        ("seed", seed, seed >= 0),
    ):
        if not good:
            raise ValueError(f"{name} is {value}, which is out of its range.")
    check_pairs(pairs)
    place, loaded = find_device(device), model
    if not isinstance(loaded, LoadedModel):
        loaded = load_model(loaded, device="cpu", download=download)
    start = cut_blocks(loaded, keep_blocks) if keep_blocks is not None else loaded
    Encoder(start, max_length=max_length, cache=False)  # raises when it cannot take so many tokens
    trained_on, held_out = hold_out(pairs, validation)
    if limit is not None:
        trained_on = draw(trained_on, limit)
    settings: dict[str, Any] = {
        "base": Path(loaded.name).name if Path(loaded.name).is_dir() else loaded.name,
        "base_fingerprint": loaded.fingerprint,
        "keep_blocks": keep_blocks,
        "start_fingerprint": start.fingerprint,
        "loss": "softmax over [u, v, |u - v|]",
        "pooling": "mean of the last block's output over tokens",
        "classifier_bias": False,
        "epochs": epochs,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "warmup": 0.1,
        "weight_decay": 0.01,
        "max_length": max_length,
        "seed": seed,
        "pairs": {"fingerprint": pairs.fingerprint, "train": len(trained_on),
                  "held_out": len(held_out)},
    }  # fmt: skip
    work = out.with_name(f".{out.name}.unfinished")
    with workplace(work), _random_state_kept():
        begin_or_go_on(work / "settings.json", settings, overwrite)
        trained = train_siamese(
            start, select_pairs(pairs, trained_on), work, settings=settings, device=place,
            checkpoint_steps=checkpoint_steps, progress=progress,
        )  # fmt: skip
        result = work / "result"
        tuned = load_model(result, device=place)
        verdict: dict[str, Any] = {}
        if len(held_out):
            encoder = Encoder(tuned, max_length=max_length, precision="float32", cache=False)
            verdict = judge(encoder, select_pairs(pairs, held_out), result)
        history = NliHistory(
            **trained, n_train=len(trained_on), n_validation=len(held_out), **verdict
        )
        packages = ("torch", "transformers", "sentence-transformers", "accelerate", "datasets")
        record = {
            **settings,
            "pairs_source": pairs.source,
            "fingerprint": tuned.fingerprint,
            "device": str(place),
            "versions": {name: version(name) for name in packages},
            "history": asdict(history),
        }
        write_json(result / RECORD, record)
        put_folder(result, out)
    return history


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    """Give the process its random states back, which the training library sets for itself."""
    devices = list(range(torch.cuda.device_count()))
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (restored, not used)
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def run_nli(
    model: str,
    out: str | os.PathLike[str],
    *,
    pairs: NliPairs | None = None,
    sts: str = "stsb",
    keep_blocks: int | None = None,
    max_length: int = 64,
    device: str | None = None,
    download: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Fine-tune an encoder on NLI, and measure what that does to it.

    The pairs are by default those of `load_nli_pairs`. The set ``sts`` is scored before and after,
    on its validation split (one of the package's own: on all of it). The options are those of
    `fine_tune`.

    Gives ``record`` (settings and history), ``sts`` (Spearman x 100 of the raw cosine by layer
    choice, ``before`` and ``after``) and ``blocks``: the same number for each hidden state of the
    whole model before training, which shows where sentence tuning sets in.
    """
    split = "test" if sts in OWN_SETS else "dev"
    dev = load_sts(sts, split, download=download)  # fails before the work
    pairs = load_nli_pairs(download=download) if pairs is None else pairs
    whole = load_model(model, device=device, download=download)
    options |= {"keep_blocks": keep_blocks, "max_length": max_length, "device": device}
    fine_tune(whole, pairs, out, **options)
    # The cut model's hidden states are the whole one's, so that one pass (or the cache) gives all.
    n_blocks = int(whole.model.config.num_hidden_layers)
    states = Encoder(whole, max_length=max_length, precision="float32").encode(
        dev.sentences, [*range(n_blocks + 1)]
    )
    by_state = list(states.values())
    tuned = Encoder(load_model(out, device=device), max_length=max_length, precision="float32")
    scores: dict[str, dict[str, float]] = {"before": {}, "after": {}}
    for name in STS_LAYERS if tuned.n_layers > 1 else STS_LAYERS[:1]:
        indices = resolve_layers(name, tuned.n_layers + 1).indices
        raw = np.mean([by_state[i] for i in indices], axis=0)
        scores["before"][name] = round(score_sts(dev, raw).all, 4)
        scores["after"][name] = round(score_sts(dev, tuned.encode(dev.sentences, name)).all, 4)
    return {
        "record": load_nli_record(out),
        "sts": scores,
        "blocks": [round(score_sts(dev, x).all, 4) for x in by_state],
        "data": {f"{dev.name} {dev.split}": dev.fingerprint, "nli": pairs.fingerprint},
    }


class SiameseLoss(SoftmaxLoss):
    """Cross-entropy of a softmax over ``[u, v, |u - v|]``, with a bias or without."""

    def __init__(self, siamese: SentenceTransformer, dim: int, bias: bool) -> None:
        super().__init__(siamese, dim, N_LABELS)
        device = self.classifier.weight.device
        self.classifier = torch.nn.Linear(3 * dim, N_LABELS, bias=bias, device=device)

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Mean loss of a batch: features of premises and hypotheses, labels of shape (batch,)."""
        u, v = self._embed(list(sentence_features)).chunk(2)
        logits = self.classifier(torch.cat([u, v, (u - v).abs()], dim=1))
        loss: Tensor = self.loss_fct(logits, labels.view(-1))
        return loss

    def _embed(self, columns: list[dict[str, Tensor]]) -> Tensor:
        """Embed all sentences; on a CPU those of like length together, for half of it is padding.

        It makes a step on NLI 1.5 times as fast as one pass for both columns.
        """
        both = merge_feature_batches(columns)
        if both is None or both["attention_mask"].device.type != "cpu":
            found = [self.model(c)["sentence_embedding"] for c in ([both] if both else columns)]
            return torch.cat(found)
        mask = both["attention_mask"].bool()
        order = mask.sum(dim=1).argsort(stable=True)
        found = []
        for rows in order.split(ROWS_ON_CPU):
            used = mask[rows].any(dim=0)
            part = {
                name: x[rows][:, used] if isinstance(x, Tensor) and x.ndim > 1 else x
                for name, x in both.items()
            }
            found.append(self.model(part)["sentence_embedding"])
        return torch.cat(found)[order.argsort()]


def make_siamese(folder: Path, *, max_length: int, bias: bool, device: torch.device) -> SiameseLoss:
    """Put a transformers folder, mean pooling and a softmax with new weights together."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # no report that the unused pooler is missing
    try:
        encoder = Transformer(str(folder), max_seq_length=max_length)
    finally:
        transformers_logging.set_verbosity(verbosity)
    dim = int(encoder.auto_model.config.hidden_size)
    siamese = SentenceTransformer(modules=[encoder, Pooling(dim, "mean")], device=str(device))
    return SiameseLoss(siamese, dim, bias)


def train_siamese(
    start: LoadedModel,
    pairs: NliPairs,
    work: Path,
    *,
    settings: dict[str, Any],
    device: torch.device,
    checkpoint_steps: int,
    progress: bool,
) -> dict[str, Any]:
    """Train ``start`` and a classifier on ``pairs``; put both into ``work / "result"``.

    The arguments are those of `fine_tune`, which checks them.  ``work`` is the folder for
    checkpoints; the last complete one is gone on from.  Gives the fields of `NliHistory`.
    """
    transformers_logging.disable_progress_bar()
    begin, result = work / "start", work / "result"
    start.model.save_pretrained(begin)
    start.tokenizer.save_pretrained(begin)
    torch.manual_seed(settings["seed"])  # the classifier's first weights
    loss = make_siamese(begin, max_length=settings["max_length"], bias=False, device=device)
    steps = math.ceil(len(pairs.premises) / settings["batch_size"]) * settings["epochs"]
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(work / "checkpoints"),
        num_train_epochs=settings["epochs"],
        per_device_train_batch_size=settings["batch_size"],
        learning_rate=settings["learning_rate"],
        warmup_steps=math.ceil(settings["warmup"] * steps),
        lr_scheduler_type="linear",
        weight_decay=settings["weight_decay"],
        max_grad_norm=1.0,
        seed=settings["seed"],
        batch_sampler=_EpochSampler,
        save_strategy="steps",
        save_steps=checkpoint_steps,
        save_total_limit=2,
        logging_strategy="steps",
        logging_steps=max(1, steps // CURVE_POINTS),
        logging_nan_inf_filter=False,  # a broken run must not look like a good one
        report_to="none",
        disable_tqdm=True,  # its bar prints losses on stdout
        use_cpu=device.type == "cpu",
        dataloader_pin_memory=device.type == "cuda",
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs would change the batch size
    columns = {"sentence1": list(pairs.premises), "sentence2": list(pairs.hypotheses)}
    checkpoint = _last_checkpoint(work / "checkpoints")
    with stop_requested() as stopped, tqdm(total=steps, unit="step", disable=not progress) as bar:
        watch = _Watch(checkpoint, stopped, bar)
        trainer = _Trainer(
            model=loss.model,
            args=arguments,
            train_dataset=Dataset.from_dict({**columns, "label": [int(x) for x in pairs.labels]}),
            loss=loss,
            callbacks=[watch],
        )
        trainer.siamese_loss, trainer.watch = loss, watch
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if trainer.state.global_step < steps:
        raise KeyboardInterrupt(f"stopped after step {trainer.state.global_step} of {steps}")
    encoder: Any = loss.model[0]
    encoder.auto_model.save_pretrained(result)
    start.tokenizer.save_pretrained(result)
    weights = {k: v.detach().cpu().contiguous() for k, v in loss.classifier.state_dict().items()}
    save_file(weights, result / CLASSIFIER)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    curve = [(int(entry["step"]), round(entry["loss"], 5)) for entry in logged]
    return {"steps": steps, "loss": curve, **watch.clock()}


class _Trainer(SentenceTransformerTrainer):
    """The library's trainer, whose checkpoints forget the classifier: here they keep it."""

    siamese_loss: SiameseLoss
    watch: _Watch

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(str(output_dir or self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(self.siamese_loss, str(folder / WEIGHTS))
        write_json(folder / CLOCK, self.watch.clock())

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        device = next(self.siamese_loss.parameters()).device
        load_weights(self.siamese_loss, Path(resume_from_checkpoint) / WEIGHTS, device=str(device))

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Do nothing: a model card would ask the hub about the base model."""


class _EpochSampler(DefaultBatchSampler):
    """Batches in an order that depends on seed and epoch alone, so that a resumed run has it too.

    The library's own goes on with one generator from epoch to epoch.
    """

    def __init__(self, dataset: Any, *, generator: torch.Generator, **options: Any) -> None:
        order = RandomSampler(dataset, generator=generator)
        super().__init__(order, generator=generator, **options)

    def __iter__(self) -> Iterator[list[int]]:
        assert self.generator is not None  # given in __init__
        self.generator.manual_seed(self.seed + EPOCH_STRIDE * self.epoch)
        yield from super().__iter__()


class _Watch(TrainerCallback):
    """Shows the progress, notes the time, stops when asked, and where the loss is not finite."""

    def __init__(self, checkpoint: Path | None, stopped: threading.Event, bar: tqdm[Any]) -> None:
        self._before: dict[str, Any] = {"seconds": 0.0, "cpu_seconds": 0.0, "resumed_at": []}
        if checkpoint is not None:
            self._before = json.loads((checkpoint / CLOCK).read_text(encoding="utf-8"))
        self._started = time.monotonic(), time.process_time()
        self._stopped, self._bar = stopped, bar

    def clock(self) -> dict[str, Any]:
        """Seconds of training up to now, and the steps at which it was taken up again."""
        before, (wall, processor) = self._before, self._started
        return {
            "seconds": round(before["seconds"] + time.monotonic() - wall, 1),
            "cpu_seconds": round(before["cpu_seconds"] + time.process_time() - processor, 1),
            "resumed_at": before["resumed_at"],
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._started = time.monotonic(), time.process_time()
        if state.global_step:
            self._before["resumed_at"].append(state.global_step)
            self._bar.update(state.global_step)
            logger.info("going on from step %d", state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._bar.update()
        if self._stopped.is_set():
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss became {loss} at or before step {state.global_step}: "
                "try a lower learning rate."
            )


def _last_checkpoint(folder: Path) -> Path | None:
    """Find the last complete checkpoint; one that was cut short while being written is removed."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.split("-")[1]))
    for path in found:
        try:
            json.loads((path / STATE).read_text(encoding="utf-8"))
            return path
        except (OSError, ValueError):
            shutil.rmtree(path, ignore_errors=True)
    return None
