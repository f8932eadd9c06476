"""Table 6 and Figure 2 as experiments: edit distance against raw and calibrated cosines.

`run_table6` and `run_figure2` give dicts that JSON can hold; the command line stores them.
`compare_own_pairs` does the same for a handful of pairs that a reader makes up.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from tabulate import tabulate

from bertflow_lite.calibrate import FlowCalibrator, make_calibrator
from bertflow_lite.datasets import load_sts
from bertflow_lite.encode import Encoder
from bertflow_lite.evaluate import pair_cosines
from bertflow_lite.lexical import NEAR, UNITS, edit_distances, lexical_similarities, score_lexical
from bertflow_lite.linear import DeadDimensionWarning
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.paper import load_paper_table
from bertflow_lite.similarity import Floats, cosine, spearman
from bertflow_lite.table_rows import Keep, default_layers, no_keep
from bertflow_lite.word_vectors import WordVectorEncoder

__all__ = [
    "CALIBRATORS",
    "FLOW_STEPS",
    "SETS",
    "compare_own_pairs",
    "fit_calibrator",
    "format_figure2",
    "format_table6",
    "run_figure2",
    "run_table6",
]

CALIBRATORS: dict[str, str] = {"none": "raw", "sn": "SN", "whiten": "whitening", "flow": "flow"}
"""Short names (`make_calibrator`) and what tables and buttons call them."""

SETS: dict[str, str] = {"stsb": "dev", "mini-sts": "test"}
"""The paper's set, and one that is always here; each with the split that is looked at."""

FLOW_STEPS = 500
"""Least number of training steps: one epoch of mini-sts would be 24 of them, of STS-B 539."""


def run_table6(
    encoder: Encoder | WordVectorEncoder,
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
        For each set: ``definitions`` (Spearman x 100 of distance and gold, distance and cosine,
        for each unit of `UNITS`, plain and divided by length), ``gold``, and ``rows``, each a
        `LexicalScore` over all pairs and, under ``near``, over those at distance 4 or less.
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
        distances = edit_distances(pairs.sentences1, pairs.sentences2)
        near = distances <= NEAR
        rows: list[dict[str, Any]] = []
        first_cosines: dict[str, Floats] = {}

        def score(label: str, calibrator: str, seed: int, values: Floats, raw: Floats) -> None:
            def compute(
                pairs: SentencePairs = pairs, distances: Floats = distances, near: Any = near
            ) -> dict[str, Any]:
                baseline = None if calibrator == "none" else raw
                part = None if baseline is None else baseline[near]
                return {
                    "layers": label,
                    "calibrator": calibrator,
                    "seed": seed,
                    **score_lexical(pairs, values, distances, baseline=baseline).to_dict(),
                    "near": score_lexical(
                        pairs.select(near), values[near], distances[near], baseline=part
                    ).to_dict(),
                }

            rows.append(keep(f"{name} {label} {calibrator} {seed}", compute))

        embeddings = encoder.encode([*fit_on, *pairs.sentences], list(choices), progress=progress)
        for label, vectors in embeddings.items():
            raw = pair_cosines(pairs, vectors[len(fit_on) :])
            for calibrator in CALIBRATORS:
                for seed in range(seeds if "flow" in calibrator else 1):
                    values = raw
                    if calibrator != "none":
                        model = fit_calibrator(calibrator, vectors[: len(fit_on)], seed)
                        values = pair_cosines(pairs, model.transform(vectors[len(fit_on) :]))
                    if label == next(iter(embeddings)) and seed == 0:
                        first_cosines[calibrator] = values
                    score(label, calibrator, seed, values, raw)
        raw = first_cosines["none"]
        for lexical, values in lexical_similarities(pairs, fit_on).items():
            score("", lexical, 0, values, raw)
        out["settings"]["data"][name] = pairs.fingerprint
        out["sets"][name] = {
            "split": pairs.split,
            "n_pairs": len(pairs),
            "n_near": int(near.sum()),
            "fitted_on": len(fit_on),
            "gold": score_lexical(pairs, pairs.gold, distances).to_dict()["edit_distance"],
            "gold_near": score_lexical(
                pairs.select(near), pairs.gold[near], distances[near]
            ).to_dict()["edit_distance"],
            "definitions": _definitions(encoder, pairs, first_cosines),
            "rows": rows,
        }
    return _round(out)


def format_table6(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out Table 6: our rows beside the paper's, then the definitions of edit distance.

    Parameters
    ----------
    results : dict
        From `run_table6`.
    style : str, default "simple"
        A table format of the tabulate package.
    """
    paper = load_paper_table(6)
    parts = []
    for name, result in results["sets"].items():
        lines: list[list[str]] = []
        if name == "stsb":
            for row, label in (
                ("gold", "gold"),
                ("BERT-induced", "BERT-base"),
                ("flow-induced", "BERT-base-flow"),
            ):
                lines.append(["paper", label, f"{paper['edit_distance'][row]:.2f}", "",
                              f"{paper['gold'][row]:.2f}", "", ""])  # fmt: skip
        lines.append(["", "gold", _cell(result["gold"]), "0", "100",
                      _cell(result["gold_near"]), ""])  # fmt: skip
        for (label, calibrator), group in _grouped(result["rows"]).items():
            first, near = group[0], group[0]["near"]
            lines.append(
                [
                    label,
                    CALIBRATORS.get(calibrator, calibrator),
                    *(
                        _cell(first[key], [row[key]["estimate"] for row in group])
                        for key in ("edit_distance", "edit_distance_given_gold", "gold")
                    ),
                    *(
                        _cell(near[key], [row["near"][key]["estimate"] for row in group])
                        for key in ("edit_distance", "gold")
                    ),
                ]
            )
        headers = ["layers", "similarity", "edit distance", "..., gold held", "gold",
                   f"edit distance <= {NEAR}", "gold there"]  # fmt: skip
        parts.append(
            f"{name} {result['split']}: {result['n_pairs']} pairs, {result['n_near']} of them at "
            f"{NEAR} edits or fewer; Spearman x 100 [95 % interval]; flow: mean over seeds\n"
            + tabulate(lines, headers, tablefmt=style, disable_numparse=True)
        )
        lines = [
            [row["unit"] + (" / length" if row["normalize"] else ""), str(row["n_near"] or ""),
             f"{row['gold']:.2f}", *(f"{row['cosine'][c]:.2f}" for c in CALIBRATORS)]
            for row in result["definitions"]
        ]  # fmt: skip
        headers = ["edit distance over", f"pairs <= {NEAR}", "gold", *CALIBRATORS.values()]
        parts.append(
            f"{name} {result['split']}: other edit distances; cosines of "
            f"layers {results['settings']['layers'][0]}\n"
            + tabulate(lines, headers, tablefmt=style, disable_numparse=True)
        )
    return "\n\n".join(parts)


def run_figure2(
    encoder: Encoder | WordVectorEncoder,
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


def format_figure2(results: dict[str, Any], style: str = "simple") -> str:
    """Say in a table what Figure 2 shows; parameters are those of `format_table6`."""
    lines = []
    for name, result in results["sets"].items():
        distance = np.array(result["distance"], dtype=np.float64)
        near = distance <= NEAR
        for label, by_calibrator in result["cosines"].items():
            for calibrator, values in by_calibrator.items():
                lines.append([name, label, CALIBRATORS[calibrator],
                              f"{100 * spearman(distance, values):.2f}",
                              f"{100 * spearman(distance[near], np.array(values)[near]):.2f}"])  # fmt: skip
    headers = ["set", "layers", "cosine", "with edit distance", f"where it is <= {NEAR}"]
    return tabulate(lines, headers, tablefmt=style, disable_numparse=True)


def compare_own_pairs(
    own: Sequence[tuple[str, str]],
    encoder: Encoder | WordVectorEncoder,
    *,
    layers: str = "",
    reference: SentencePairs | None = None,
    unit: str = "words and marks",
    random_state: int = 0,
) -> pd.DataFrame:
    """Show what each similarity makes of the reader's own pairs.

    Raw and calibrated cosines fill different ranges, so beside each cosine stands its rank: the
    share of the reference pairs that are less alike by the same measure.

    Parameters
    ----------
    own : sequence of (str, str)
        The pairs, such as ``[("I like this restaurant", "I dislike this restaurant")]``.
    encoder : Encoder or WordVectorEncoder
        From `load_encoder`.
    layers : str, default ""
        A layer choice; empty: the encoder's first default one.
    reference : SentencePairs, optional
        Pairs to rank among; their sentences fit the calibrators. Default: mini-sts.
    unit : str, default "words and marks"
        A key of `UNITS`.
    random_state : int, default 0
        Seed of the flow.

    Returns
    -------
    pandas.DataFrame
        A row for each pair: both sentences, ``edit distance``, and for each of `CALIBRATORS` its
        cosine and ``... rank`` in percent.

    Raises
    ------
    ValueError
        If there is no pair, or an entry is not two sentences.
    """
    if isinstance(own, str) or not len(own) or any(isinstance(p, str) or len(p) != 2 for p in own):
        raise ValueError(
            "own must be a list of pairs of sentences, such as [('I like it', 'I dislike it')]."
        )
    pairs = load_sts("mini-sts") if reference is None else reference
    first, second = [pair[0] for pair in own], [pair[1] for pair in own]
    tokenizer = getattr(encoder, "tokenizer", None)
    table: dict[str, Any] = {
        "sentence 1": first,
        "sentence 2": second,
        "edit distance": edit_distances(first, second, unit, tokenizer=tokenizer),
    }
    texts = [*pairs.sentences, *first, *second]
    vectors = encoder.encode(texts, layers or default_layers(encoder)[0])
    fit_rows, n = 2 * len(pairs), len(own)
    for calibrator, label in CALIBRATORS.items():
        z = vectors
        if calibrator != "none":
            z = fit_calibrator(calibrator, vectors[:fit_rows], random_state).transform(vectors)
        known = np.sort(pair_cosines(pairs, z[:fit_rows]))
        values = cosine(z[fit_rows : fit_rows + n], z[fit_rows + n :])
        table[label] = values
        table[f"{label} rank"] = 100 * np.searchsorted(known, values) / len(known)
    return pd.DataFrame(table)


def fit_calibrator(name: str, vectors: ArrayLike, seed: int) -> Any:
    """Fit a calibrator by its short name; a flow gets `FLOW_STEPS` training steps at least."""
    model: Any = make_calibrator(name, random_state=seed)
    if isinstance(model, FlowCalibrator):
        model.set_params(min_steps=FLOW_STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadDimensionWarning)
        return model.fit(vectors)


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


def _definitions(
    encoder: Any, pairs: SentencePairs, cosines: dict[str, Floats]
) -> list[dict[str, Any]]:
    """Correlate each kind of edit distance with gold and with each cosine."""
    tokenizer = getattr(encoder, "tokenizer", None)
    rows = []
    for unit in UNITS:
        if unit == "wordpieces" and tokenizer is None:
            continue
        for normalize in (False, True):
            d = edit_distances(
                pairs.sentences1, pairs.sentences2, unit, normalize=normalize, tokenizer=tokenizer
            )
            rows.append(
                {
                    "unit": unit,
                    "normalize": normalize,
                    "n_near": None if normalize else int((d <= NEAR).sum()),
                    "gold": 100 * spearman(d, pairs.gold),
                    "cosine": {name: 100 * spearman(d, v) for name, v in cosines.items()},
                }
            )
    return rows


def _grouped(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["layers"], row["calibrator"]), []).append(row)
    return groups


def _cell(interval: dict[str, float], values: Sequence[float] = ()) -> str:
    """Write an estimate with its interval; the mean where several seeds were fitted."""
    estimate = float(np.mean(values)) if len(values) else interval["estimate"]
    return f"{estimate:.2f} [{interval['low']:.1f}, {interval['high']:.1f}]"


def _round(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _round(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_round(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value
