"""Table 6 and Figure 2 as experiments: edit distance against raw and calibrated cosines.

`run_table6` and `run_figure2` give dicts that JSON can hold; the command line stores them and
`lexical_tables` lays them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.calibrate import FlowCalibrator, make_calibrator
from bertflow_lite.datasets import load_sts
from bertflow_lite.evaluate import pair_cosines
from bertflow_lite.experiments.table_rows import (
    AnyEncoder,
    Keep,
    default_layers,
    fit_quietly,
    no_keep,
)
from bertflow_lite.lexical import NEAR, UNITS, edit_distances, lexical_similarities, score_lexical
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.similarity import Floats, spearman

__all__ = [
    "CALIBRATORS",
    "FLOW_STEPS",
    "SETS",
    "fit_calibrator",
    "run_figure2",
    "run_table6",
]

CALIBRATORS: dict[str, str] = {"none": "raw", "sn": "SN", "whiten": "whitening", "flow": "flow"}
"""Short names (`make_calibrator`) and what tables and buttons call them."""

SETS: dict[str, str] = {"stsb": "dev", "mini-sts": "test"}
"""The paper's set, and one that is always here; each with the split that is looked at."""

FLOW_STEPS = 500
"""Least number of training steps: one epoch of mini-sts would be 24 of them, of STS-B 539."""

PER_LENGTH = " / length"
"""Ending of the name of an edit distance that is divided by the longer sentence's length."""


def run_table6(
    encoder: AnyEncoder,
    *,
    seeds: int = 3,
    layers: Sequence[str] = (),
    data: Sequence[str] | None = None,
    download: bool = False,
    progress: bool = False,
    keep: Keep = no_keep,
) -> dict[str, Any]:
    """Correlate edit distance, gold scores and cosines (Table 6).

    Calibrators are fitted on the sentences of all splits of the set (the paper's "target").

    Parameters
    ----------
    encoder : Encoder or WordVectorEncoder
        From `load_encoder`.
    seeds : int, default 3
        Flows are fitted with random states 0 to seeds - 1.
    layers : sequence of str, default ()
        Layer choices beside the default ones.
    data : sequence of str, optional
        Some of `SETS`; default: all.
    download : bool, default False
        Fetch a missing set.
    progress : bool, default False
        Progress bar while encoding.
    keep : callable, default `no_keep`
        Where finished parts are kept.

    Returns
    -------
    dict
        ``settings``, and for each of ``sets`` a list of ``rows``: the gold score, each cosine,
        and two similarities that see words only.  A row is a `LexicalScore` over all pairs; under
        ``near``, one over the pairs at distance 4 or less; and, under ``units``, Spearman x 100
        with every other kind of edit distance, and with one minus the cosine of word counts, plain
        and weighted by rarity.
    """
    choices = [*dict.fromkeys([*default_layers(encoder), *layers])]
    out: dict[str, Any] = {
        "settings": {
            "data": {},
            "layers": choices,
            "calibrators": list(CALIBRATORS),
            "fit_on": "target",
            "flow_steps": FLOW_STEPS,
            "seeds": seeds,
            "near": NEAR,
        },
        "sets": {},
    }
    for name, pairs, fit_on in _load_sets(data, download):
        by_words = lexical_similarities(pairs, fit_on)
        distances = _all_distances(encoder, pairs)
        distances |= {f"1 - cosine, {lexical}": 1 - values for lexical, values in by_words.items()}
        embeddings = encoder.encode([*fit_on, *pairs.sentences], list(choices), progress=progress)
        # Layers, calibrator, seed, and how to compute the row.
        work: list[tuple[str, str, int, Any]] = [
            ("", "gold", 0, partial(_score, pairs, distances, pairs.gold, None))
        ]
        for label, vectors in embeddings.items():
            for calibrator in CALIBRATORS:
                for seed in range(seeds if "flow" in calibrator else 1):
                    compute = partial(
                        _calibrate_and_score, pairs, distances, vectors, calibrator, seed
                    )
                    work.append((label, calibrator, seed, compute))
        for lexical, values in by_words.items():
            work.append(("", lexical, 0, partial(_score, pairs, distances, values, None)))
        rows = [
            {"layers": label, "calibrator": calibrator, "seed": seed}
            | keep(f"{name} {label} {calibrator} {seed}", compute)
            for label, calibrator, seed, compute in work
        ]
        out["settings"]["data"][name] = pairs.fingerprint
        out["sets"][name] = {
            "split": pairs.split,
            "n_pairs": len(pairs),
            "n_near": {
                unit: int((d <= NEAR).sum()) for unit, d in distances.items() if unit in UNITS
            },
            "fitted_on": len(fit_on),
            "rows": rows,
        }
    return _round(out)


def run_figure2(
    encoder: AnyEncoder,
    *,
    seeds: int = 1,
    layers: Sequence[str] = (),
    data: Sequence[str] | None = None,
    download: bool = False,
    progress: bool = False,
    keep: Keep = no_keep,
) -> dict[str, Any]:
    """Compute the points of Figure 2; parameters are those of `run_table6`.

    Returns
    -------
    dict
        For each set: ``gold`` and ``distance``, one value a pair, and ``cosines`` by layers and
        calibrator (flow: random state 0). No sentence is kept.
    """
    choices = [*dict.fromkeys([*default_layers(encoder), *layers])]
    out: dict[str, Any] = {
        "settings": {"data": {}, "layers": choices, "fit_on": "target", "flow_steps": FLOW_STEPS},
        "sets": {},
    }
    for name, pairs, fit_on in _load_sets(data, download):
        embeddings = encoder.encode([*fit_on, *pairs.sentences], list(choices), progress=progress)
        cosines: dict[str, Any] = {}
        for label, vectors in embeddings.items():
            to_fit, scored = vectors[: len(fit_on)], vectors[len(fit_on) :]
            cosines[label] = {
                calibrator: pair_cosines(
                    pairs,
                    scored
                    if calibrator == "none"
                    else fit_calibrator(calibrator, to_fit, 0).transform(scored),
                ).tolist()
                for calibrator in CALIBRATORS
            }
        distances = edit_distances(pairs.sentences1, pairs.sentences2)
        out["settings"]["data"][name] = pairs.fingerprint
        out["sets"][name] = {
            "split": pairs.split,
            "gold": pairs.gold.tolist(),
            "distance": distances.astype(int).tolist(),
            "cosines": cosines,
        }
    return _round(out)


def fit_calibrator(name: str, vectors: NDArray[np.floating[Any]], seed: int) -> Any:
    """Fit a calibrator by its short name; a flow gets `FLOW_STEPS` training steps at least."""
    model: Any = make_calibrator(name, random_state=seed)
    if isinstance(model, FlowCalibrator):
        model.set_params(min_steps=FLOW_STEPS)
    fit_quietly(model, vectors)
    return model


def _load_sets(
    data: Sequence[str] | None, download: bool
) -> list[tuple[str, SentencePairs, list[str]]]:
    """Give name, pairs and the sentences to fit on, for each set asked for."""
    names = list(SETS) if data is None else list(data)
    if unknown := [name for name in names if name not in SETS]:
        raise ValueError(f"Table 6 is made on {' and '.join(SETS)}, not on {', '.join(unknown)}.")
    return [
        (
            name,
            load_sts(name, SETS[name], download=download),
            load_sts(name, "all", download=download).sentences,
        )
        for name in names
    ]


def _all_distances(encoder: Any, pairs: SentencePairs) -> dict[str, Floats]:
    """Every kind of edit distance, the paper's first; those divided by length end PER_LENGTH."""
    tokenizer = getattr(encoder, "tokenizer", None)
    return {
        unit + PER_LENGTH * normalize: edit_distances(
            pairs.sentences1, pairs.sentences2, unit, normalize=normalize, tokenizer=tokenizer
        )
        for unit in UNITS
        if unit != "wordpieces" or tokenizer is not None
        for normalize in (False, True)
    }


def _calibrate_and_score(
    pairs: SentencePairs,
    distances: Mapping[str, Floats],
    vectors: NDArray[np.float32],
    calibrator: str,
    seed: int,
) -> dict[str, Any]:
    """Score the cosines of the last rows, calibrated by what is fitted on those before them."""
    to_fit, scored = vectors[: -2 * len(pairs)], vectors[-2 * len(pairs) :]
    raw = pair_cosines(pairs, scored)
    if calibrator == "none":
        return _score(pairs, distances, raw, None)
    z = fit_calibrator(calibrator, to_fit, seed).transform(scored)
    return _score(pairs, distances, pair_cosines(pairs, z), raw)


def _score(
    pairs: SentencePairs, distances: Mapping[str, Floats], values: Floats, raw: Floats | None
) -> dict[str, Any]:
    """Score one similarity over all pairs, over the near ones, and by each kind of distance."""
    words = distances["words"]
    near = words <= NEAR
    return {
        **score_lexical(pairs, values, words, baseline=raw).to_dict(),
        "near": score_lexical(
            pairs.select(near),
            values[near],
            words[near],
            baseline=None if raw is None else raw[near],
        ).to_dict(),
        "units": {unit: 100 * spearman(d, values) for unit, d in distances.items()},
    }


def _round(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _round(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_round(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value
