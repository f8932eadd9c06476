"""Experiments with NLI supervision: fine-tune and judge (Table 3), five seeds (Table 8)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.calibrators.base import DeadDimensionWarning
from bertflow_lite.datasets.nli import NliPairs, load_nli_pairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.models import load_model
from bertflow_lite.encoders.pooling import LayersArgument, resolve_layers
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.nli.fine_tune import fine_tune, load_nli_record
from bertflow_lite.measures.scores import score_sts

__all__ = ["run_nli", "table8"]

STS_LAYERS = ["last", "last2avg", "first-last"]


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

    Parameters
    ----------
    model : str
        What to fine-tune (`load_model`).
    out : path
        Folder to make (`fine_tune`).
    pairs : NliPairs, optional
        Default: `load_nli_pairs`.
    sts : str, default "stsb"
        The set to score before and after, on its validation split (mini-sts: all it has).
    keep_blocks, max_length, device, download, **options
        See `fine_tune`.

    Returns
    -------
    dict
        ``record`` (settings and history), ``sts`` (Spearman x 100 of the raw cosine by layer
        choice, ``before`` and ``after``) and ``blocks``: the same number for each hidden
        state of the whole model before training, which shows where sentence tuning sets in.
    """
    split = "test" if sts == "mini-sts" else "dev"
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


def table8(
    models: Sequence[str | os.PathLike[str]],
    *,
    data: str = "stsb",
    split: str | None = None,
    layers: Sequence[str] = ("last2avg", "first-last"),
    calibrator: str = "flow:paper",
    max_length: int = 64,
    device: str | None = None,
    download: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Spread over seeds (Table 8): models that were fine-tuned with different seeds.

    Each model's flow is fitted on all splits' sentences with the model's own seed.  Besides, the
    first model is fitted with the seeds of all: the spread that comes from the flow alone.

    Parameters
    ----------
    models : sequence of str or path
        Folders made by `fine_tune`, at least two, with different seeds.
    data, split : str
        The STS set; default: STS-B's test split.
    layers : sequence of str, default ("last2avg", "first-last")
        Layer choices beside the last layer.  The paper's text says last2avg, its code is
        first-last.
    calibrator : str, default "flow:paper"
        See `make_calibrator`.
    max_length, device, download, progress
        See `load_encoder` and `Encoder.encode`.

    Returns
    -------
    dict
        ``rows``: each with ``row``, ``layers``, ``calibrator``, ``values`` (Spearman x 100, one
        for each seed), ``mean``, ``std`` (with n - 1) and ``median``; ``models`` and ``settings``.

    Raises
    ------
    ValueError
        If there are fewer than two models, two have the same seed, or they are not of one kind.
    """
    records = [load_nli_record(folder) for folder in models]
    _check_kin(records)
    scored, fitted = load_sts(data, split, download=download), load_sts(data, "all")
    choices: list[LayersArgument] = ["last", *layers]
    values: dict[tuple[str, str], list[float]] = {}
    spread: dict[str, list[float]] = {name: [] for name in layers}
    for number, (folder, record) in enumerate(zip(models, records, strict=True)):
        encoder = Encoder(load_model(folder, device=device), max_length=max_length)
        both = encoder.encode([*fitted.sentences, *scored.sentences], choices, progress=progress)
        for name, x in both.items():
            to_fit, to_score = x[: len(fitted.sentences)], x[len(fitted.sentences) :]
            raw = score_sts(scored, to_score).all
            values.setdefault((name, "none"), []).append(raw)
            if name == "last":
                continue
            for seed in [r["seed"] for r in records] if number == 0 else [record["seed"]]:
                z = _calibrated(calibrator, seed, to_fit, to_score, progress)
                score = score_sts(scored, z).all
                if seed == record["seed"]:
                    values.setdefault((name, calibrator), []).append(score)
                if number == 0:
                    spread[name].append(score)
    rows = [_row(_row_name(name, how), name, how, scores) for (name, how), scores in values.items()]
    rows += [
        _row(f"{name} + flow (target), first model, flow's seed alone", name, calibrator, scores)
        for name, scores in spread.items()
    ]
    return {
        "rows": rows,
        "models": [
            {
                "seed": r["seed"],
                "fingerprint": r["fingerprint"],
                "accuracy": r["history"]["accuracy"],
            }
            for r in records
        ],
        "settings": {
            "data": {scored.name: scored.fingerprint},
            "split": scored.split,
            "base": records[0]["base"],
            "keep_blocks": records[0]["keep_blocks"],
            "pairs": records[0]["pairs"],
            "n_train": records[0]["history"]["n_train"],
            "max_length": max_length,
            "aggregation": "all",
            "std": "with n - 1",
        },
    }


def _calibrated(name: str, seed: int, to_fit: Any, to_score: Any, progress: bool) -> Any:
    model = make_calibrator(name, random_state=seed, progress=progress)
    if model is None:
        return to_score
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadDimensionWarning)
        model.fit(to_fit)
    return model.transform(to_score)


def _check_kin(records: list[dict[str, Any]]) -> None:
    """Raise ValueError unless the models differ in their seed alone."""
    seeds = [record["seed"] for record in records]
    if len(records) < 2 or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"Table 8 compares models of different seeds; given: {seeds}. Fine-tune some with "
            "--seed 0, 1, 2, 3, 4."
        )
    for key in ("start_fingerprint", "pairs", "epochs", "learning_rate", "batch_size", "warmup"):
        if len({str(record[key]) for record in records}) > 1:
            found = ", ".join(str(record[key]) for record in records)
            raise ValueError(f"the models differ in more than their seed: {key} is {found}.")


def _row_name(layers: str, calibrator: str) -> str:
    name = "mean of the last layer" if layers == "last" else layers
    return name if calibrator == "none" else f"{name} + flow (target)"


def _row(name: str, layers: str, calibrator: str, values: list[float]) -> dict[str, Any]:
    return {
        "row": name,
        "layers": layers,
        "calibrator": calibrator,
        "values": [round(value, 4) for value in values],
        "mean": round(float(np.mean(values)), 4),
        "std": round(float(np.std(values, ddof=1)), 4),
        "median": round(float(np.median(values)), 4),
    }
