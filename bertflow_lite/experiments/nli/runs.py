"""Fine-tune an encoder on NLI, and judge what that does to it (Table 3)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from bertflow_lite.datasets.nli import NliPairs, load_nli_pairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.models import load_model
from bertflow_lite.encoders.pooling import resolve_layers
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.nli.fine_tune import fine_tune, load_nli_record
from bertflow_lite.measures.scores import score_sts

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
