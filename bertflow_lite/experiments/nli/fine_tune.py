"""Siamese fine-tuning on natural language inference, as Sentence-BERT and the paper's Table 3 do.

Two sentences pass through one encoder; their means over tokens, u and v, are joined to
``[u, v, |u - v|]``, and a softmax over this says whether the first entails the second, contradicts
it, or neither.  The classifier is then left aside: what counts is the encoder, whose embeddings
have become better at similarity without ever seeing a similarity score.

The loop is sentence-transformers' own (`trainer`); an encoder can be cut to its first blocks
before, and the output folder is there complete or not at all.
"""

from __future__ import annotations

import copy
import json
import os
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bertflow_lite.datasets.nli import NliPairs, load_nli_pairs
from bertflow_lite.datasets.sts import OWN_SETS, load_sts
from bertflow_lite.devices import find_device
from bertflow_lite.encoders.models import LoadedModel, _fingerprint, load_model
from bertflow_lite.encoders.pooling import resolve_layers
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.nli.judge import check_pairs, draw, hold_out, judge, select_pairs
from bertflow_lite.experiments.resume import begin_or_go_on, random_state_kept, workplace
from bertflow_lite.files import put_folder, write_json
from bertflow_lite.measures.scores import score_sts

RECORD = "nli.json"  # in the output folder: how the model was made
STS_LAYERS = ["last", "last2avg", "first-last"]
CURVE_POINTS = 200  # at most about so many points of the loss curve are kept


@dataclass
class NliHistory:
    """What happened during fine-tuning, and how well the classes of unseen pairs are told apart.

    Attributes
    ----------
    steps : int
        Optimizer steps made.
    loss : list of (int, float)
        The loss curve, thinned: a step, and the mean cross-entropy (natural logarithm) over the
        steps since the point before.  An untrained classifier starts at about ln 3 = 1.0986.
    n_train, n_validation : int
        Pairs trained on and held out; no premise of the ones is among the others.
    accuracy, majority, without_premise : float or None
        Share of held-out pairs classified right, 0 to 1 (None: nothing was held out); what always
        answering the most frequent class would score; and the accuracy when each hypothesis is
        given the premise of some other pair.  Hypotheses give much of their label away ("nobody",
        "sleeping"), so the last is what a classifier of both sentences has to beat.
    validation_loss : float or None
        Mean cross-entropy on the held-out pairs.
    by_source : dict of str to float
        Accuracy by the pairs' source.
    seconds, cpu_seconds : float
        Wall and processor time of the training loop, up to the last checkpoint of each stop.
    resumed_at : list of int
        Steps at which a stopped run was taken up again.
    """

    steps: int = 0
    loss: list[tuple[int, float]] = field(default_factory=list)
    n_train: int = 0
    n_validation: int = 0
    accuracy: float | None = None
    majority: float | None = None
    without_premise: float | None = None
    validation_loss: float | None = None
    by_source: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    resumed_at: list[int] = field(default_factory=list)


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
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    keep_blocks: int | None = None,
    classifier_bias: bool = False,
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

    The rate of AdamW rises linearly to ``learning_rate`` over the share ``warmup`` of the steps,
    then falls linearly to 0; gradients are clipped at norm 1. All weights but biases and layer
    norms decay, as in Sentence-BERT and the released code. ``classifier_bias`` gives the softmax a
    bias, as the library does; the papers and the released code have none. ``keep_blocks`` cuts the
    encoder before (`cut_blocks`).

    ``validation`` pairs are held out for the accuracy (`hold_out`); of the others, ``limit`` are
    trained on, drawn at random: the same ones for every seed. The seed is that of the classifier's
    first weights, the order of the pairs, and dropout.
    """
    try:
        from bertflow_lite.experiments.nli.trainer import train_siamese
    except ImportError as error:
        raise ImportError(
            "fine-tuning needs sentence-transformers. Run: "
            "pip install 'sentence-transformers>=6.2' accelerate datasets"
        ) from error
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
        ("warmup", warmup, 0 <= warmup < 1),
        ("weight_decay", weight_decay, weight_decay >= 0),
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
        "classifier_bias": classifier_bias,
        "epochs": epochs,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "max_length": max_length,
        "seed": seed,
        "pairs": {
            "fingerprint": pairs.fingerprint,
            "train": len(trained_on),
            "held_out": len(held_out),
        },
    }
    work = out.with_name(f".{out.name}.unfinished")
    with workplace(work), random_state_kept():
        begin_or_go_on(work / "settings.json", settings, overwrite)
        trained = train_siamese(
            start,
            select_pairs(pairs, trained_on),
            work,
            settings=settings,
            device=place,
            checkpoint_steps=checkpoint_steps,
            curve_points=CURVE_POINTS,
            progress=progress,
        )
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


def load_nli_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read how a model was fine-tuned: the settings and the history of `fine_tune`."""
    path = Path(folder) / RECORD
    if not path.is_file():
        raise FileNotFoundError(
            f"the folder {Path(folder).name!r} has no {RECORD}: it was not made by fine_tune "
            "(command line: nli)."
        )
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


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
    fine_tune(
        whole,
        pairs,
        out,
        keep_blocks=keep_blocks,
        max_length=max_length,
        device=device,
        **options,
    )
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
