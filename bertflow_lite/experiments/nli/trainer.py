"""The network of `nli.fine_tune`: one encoder for both sentences, and a softmax over both.

It is sentence-transformers' `SoftmaxLoss` over `Transformer` and `Pooling`; two things differ.  The
softmax has no bias unless asked.  And on a CPU the sentences of a batch are run in chunks of like
length, with one look-up of the word embeddings: the same numbers for half of the work, since on NLI
half of a batch is padding.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_model as load_weights
from safetensors.torch import save_file
from safetensors.torch import save_model as save_weights
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import SoftmaxLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import Tensor
from torch.utils.data import RandomSampler
from tqdm import tqdm
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging

from bertflow_lite.datasets.nli import NliPairs
from bertflow_lite.encoders.models import LoadedModel
from bertflow_lite.experiments.nli.fine_tune import NliHistory
from bertflow_lite.experiments.nli.judge import CLASSIFIER
from bertflow_lite.files import put_folder, write_json

__all__ = ["SiameseLoss", "TrimmedTransformer", "make_siamese", "train_siamese"]

N_LABELS = 3
CHUNK_TOKENS = 160  # padded tokens run at once on a CPU: more is padding, fewer is overhead


class SiameseLoss(SoftmaxLoss):
    """Cross-entropy of a softmax over ``[u, v, |u - v|]``.

    Parameters
    ----------
    siamese : SentenceTransformer
        The encoder.
    dim : int
        Width of its embeddings.
    bias : bool, default False
        Give the softmax a bias.
    """

    def __init__(self, siamese: SentenceTransformer, dim: int, *, bias: bool = False) -> None:
        super().__init__(siamese, dim, N_LABELS)
        device = self.classifier.weight.device
        self.classifier = torch.nn.Linear(3 * dim, N_LABELS, bias=bias, device=device)

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Mean loss of a batch: features of premises and hypotheses, labels of shape (batch,)."""
        # Both sentences in one pass: they are of one kind, unlike a query and a document.
        u, v = embed_columns(self.model, sentence_features, separate_first=False)
        logits = self.classifier(torch.cat([u, v, (u - v).abs()], dim=1))
        loss: Tensor = self.loss_fct(logits, labels.view(-1))
        return loss


class TrimmedTransformer(Transformer):
    """A transformer that, when trained on a CPU, runs sentences of like length together."""

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``token_embeddings``, shape (batch, tokens, dim), to the features."""
        ids, mask = features["input_ids"], features["attention_mask"]
        if not self.training or ids.device.type != "cpu":
            return super().forward(features, **kwargs)
        # One look-up for all chunks: its gradient is as large as the vocabulary, each time.
        words = self.auto_model.get_input_embeddings()(ids)
        states = torch.zeros_like(words)
        for rows, longest in chunks(mask.sum(dim=1)):
            part = self.auto_model(
                inputs_embeds=words[rows, :longest], attention_mask=mask[rows, :longest]
            )
            states[rows, :longest] = part.last_hidden_state
        features["token_embeddings"] = states
        return features


def chunks(lengths: Tensor, budget: int = CHUNK_TOKENS) -> Iterator[tuple[Tensor, int]]:
    """Group rows of like length: their numbers, and the longest among them, longest first.

    A group holds as many rows as fit ``budget`` padded tokens, at least one.
    """
    order = lengths.argsort(descending=True, stable=True)
    position = 0
    while position < len(order):
        longest = max(int(lengths[order[position]]), 1)
        size = max(1, budget // longest)
        yield order[position : position + size], longest
        position += size


def make_siamese(folder: Path, *, max_length: int, bias: bool, device: torch.device) -> SiameseLoss:
    """Put a transformers folder, mean pooling and a softmax with new weights together."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # no report that the unused pooler is missing
    try:
        encoder = TrimmedTransformer(str(folder), max_seq_length=max_length)
    finally:
        transformers_logging.set_verbosity(verbosity)
    dim = int(encoder.auto_model.config.hidden_size)
    siamese = SentenceTransformer(modules=[encoder, Pooling(dim, "mean")], device=str(device))
    return SiameseLoss(siamese, dim, bias=bias)


logger = logging.getLogger(__name__)
WEIGHTS = "siamese.safetensors"  # in a checkpoint: encoder and classifier
CLOCK = "clock.json"  # in a checkpoint: seconds so far, and where it was taken up again
EPOCH_STRIDE = 1_000_003  # between the seeds of two epochs: far, so that no two runs share one
STATE = "trainer_state.json"  # in a checkpoint: written last by transformers


def train_siamese(
    start: LoadedModel,
    pairs: NliPairs,
    work: Path,
    *,
    settings: dict[str, Any],
    device: torch.device,
    checkpoint_steps: int,
    curve_points: int,
    progress: bool,
) -> NliHistory:
    """Train ``start`` and a classifier on ``pairs``; put both into ``work / "result"``.

    The arguments are those of `nli.fine_tune`, which checks them.  ``work`` is the folder for
    checkpoints; the last complete one is gone on from.
    """
    if not (work / "start").exists():
        _save_encoder(start.model, start.tokenizer, work / "start")
    torch.manual_seed(settings["seed"])  # the classifier's first weights
    loss = make_siamese(
        work / "start",
        max_length=settings["max_length"],
        bias=settings["classifier_bias"],
        device=device,
    )
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
        logging_steps=max(1, steps // curve_points),
        logging_nan_inf_filter=False,  # a broken run must not look like a good one
        report_to="none",
        disable_tqdm=True,  # `_Watch` has a bar of its own, without widgets
        use_cpu=device.type == "cpu",
        dataloader_pin_memory=device.type == "cuda",
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs would change the batch size
    columns = {"sentence1": list(pairs.premises), "sentence2": list(pairs.hypotheses)}
    checkpoint = _last_checkpoint(work / "checkpoints")
    watch = _Watch(_read_clock(checkpoint), steps, progress)
    trainer = _Trainer(
        model=loss.model,
        args=arguments,
        train_dataset=Dataset.from_dict({**columns, "label": [int(x) for x in pairs.labels]}),
        loss=loss,
        callbacks=[watch],
    )
    trainer.siamese_loss, trainer.watch = loss, watch
    trainer.remove_callback(PrinterCallback)
    with _stop_signals(watch.stop):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if trainer.state.global_step < steps:
        raise KeyboardInterrupt(f"stopped after step {trainer.state.global_step} of {steps}")
    scratch = work / "result-partial"
    _save_encoder(loss.model[0].auto_model, start.tokenizer, scratch)
    weights = {k: v.detach().cpu().contiguous() for k, v in loss.classifier.state_dict().items()}
    save_file(weights, scratch / CLASSIFIER)
    put_folder(scratch, work / "result")
    curve = [
        (int(e["step"]), round(e["loss"], 5)) for e in trainer.state.log_history if "loss" in e
    ]
    return NliHistory(steps=steps, loss=curve, **watch.clock())


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

    def __init__(self, before: dict[str, Any], steps: int, progress: bool) -> None:
        self._before, self._steps, self._progress = before, steps, progress
        self._started = time.monotonic(), time.process_time()
        self._asked = False
        self._bar: tqdm[Any] | None = None

    def stop(self) -> None:
        """Ask for a checkpoint and an end after the present step."""
        self._asked = True

    def clock(self) -> dict[str, Any]:
        """Seconds of training up to now, and the steps at which it was taken up again."""
        wall, processor = self._started
        return {
            "seconds": round(self._before["seconds"] + time.monotonic() - wall, 1),
            "cpu_seconds": round(self._before["cpu_seconds"] + time.process_time() - processor, 1),
            "resumed_at": self._before["resumed_at"],
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._started = time.monotonic(), time.process_time()
        if state.global_step:
            self._before["resumed_at"].append(state.global_step)
            logger.info("going on from step %d of %d", state.global_step, self._steps)
        self._bar = tqdm(
            total=self._steps,
            initial=state.global_step,
            desc="fine-tune",
            unit="step",
            disable=not self._progress,
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n if self._progress else 1)
        if self._asked:
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        loss = (logs or {}).get("loss")
        if loss is None:
            return
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss became {loss} at or before step {state.global_step}: "
                "try a lower learning rate."
            )
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{loss:.3f}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._bar is not None:
            self._bar.close()


def _save_encoder(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a transformers folder, complete or not at all."""
    transformers_logging.disable_progress_bar()
    scratch = folder.with_name(f"{folder.name}-writing")
    shutil.rmtree(scratch, ignore_errors=True)
    model.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    put_folder(scratch, folder)


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


def _read_clock(checkpoint: Path | None) -> dict[str, Any]:
    if checkpoint is None:
        return {"seconds": 0.0, "cpu_seconds": 0.0, "resumed_at": []}
    clock: dict[str, Any] = json.loads((checkpoint / CLOCK).read_text(encoding="utf-8"))
    return clock


@contextmanager
def _stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the run after a checkpoint; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt("stopped at once")
        asked = True
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
