"""Table 6 and Figure 2: edit distance against raw and calibrated cosines, and a reader's own pairs.

`run_table6` and `run_figure2` give dicts that JSON can hold; the command line stores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tabulate import tabulate

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.experiments.scoring import (
    AnyEncoder,
    RunOptions,
    calibrated,
    encode_parts,
    group_seeds,
    seeds_for,
)
from bertflow_lite.experiments.spelling import (
    NEAR,
    UNITS,
    edit_distances,
    lexical_similarities,
    score_lexical,
)
from bertflow_lite.measures.scores import pair_cosines
from bertflow_lite.measures.similarity import Floats, cosine, spearman

CALIBRATORS: dict[str, str] = {"none": "raw", "sn": "SN", "whiten": "whitening", "flow": "flow"}
"""Short names (`make_calibrator`) and what tables and buttons call them."""
SETS: dict[str, str] = {"stsb": "dev", "mini-sts": "test"}
"""The paper's set, and one that is always here; each with the split that is looked at."""
FLOW_STEPS = 500
"""Least number of training steps: one epoch of mini-sts would be 24 of them, of STS-B 539."""
PER_LENGTH = " / length"
"""Ending of the name of an edit distance that is divided by the longer sentence's length."""


def run_table6(encoder: AnyEncoder, options: RunOptions | None = None) -> dict[str, Any]:
    """Correlate edit distance, gold scores and cosines (Table 6), on some of `SETS`.

    Calibrators are fitted on the sentences of all splits of the set (the paper's "target").

    Gives ``settings``, and for each of ``sets`` a list of ``rows``: the gold score, each cosine,
    and two similarities that see words only. A row is a `LexicalScore` over all pairs; under
    ``near``, one over the pairs at distance 4 or less; and, under ``units``, Spearman x 100 with
    every other kind of edit distance, and with one minus the cosine of word counts, plain and
    weighted by rarity.
    """
    options = options or RunOptions()
    choices = options.choices(*encoder.default_layers)
    out: dict[str, Any] = {
        "settings": {
            "data": {},
            "layers": choices,
            "calibrators": list(CALIBRATORS),
            "fit_on": "target",
            "flow_steps": FLOW_STEPS,
            "seeds": options.seeds,
            "near": NEAR,
        },
        "sets": {},
    }
    for name, pairs, fit_on in _load_sets(options):
        by_words = lexical_similarities(pairs, fit_on)
        distances = _all_distances(encoder, pairs)
        distances |= {f"1 - cosine, {lexical}": 1 - values for lexical, values in by_words.items()}
        texts = {"fit": fit_on, "score": pairs.sentences}
        encoded = encode_parts(encoder, texts, choices, progress=options.progress)
        # Layers, calibrator, seed, and how to compute the row.
        work: list[tuple[str, str, int, Any]] = [
            ("", "gold", 0, partial(_score, pairs, distances, pairs.gold, None))
        ]
        for label, vectors in encoded.items():
            for calibrator in CALIBRATORS:
                for seed in seeds_for(calibrator, options.seeds):
                    compute = partial(
                        _calibrate_and_score, pairs, distances, vectors, calibrator, seed
                    )
                    work.append((label, calibrator, seed, compute))
        for lexical, values in by_words.items():
            work.append(("", lexical, 0, partial(_score, pairs, distances, values, None)))
        rows = [
            {"layers": label, "calibrator": calibrator, "seed": seed}
            | options.keep(f"{name} {label} {calibrator} {seed}", compute)
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


def run_figure2(encoder: AnyEncoder, options: RunOptions | None = None) -> dict[str, Any]:
    """Compute the points of Figure 2, on some of `SETS`.

    Gives, for each set: ``gold`` and ``distance``, one value a pair, and ``cosines`` by layers and
    calibrator (flow: random state 0). No sentence is kept.
    """
    options = options or RunOptions()
    choices = options.choices(*encoder.default_layers)
    out: dict[str, Any] = {
        "settings": {"data": {}, "layers": choices, "fit_on": "target", "flow_steps": FLOW_STEPS},
        "sets": {},
    }
    for name, pairs, fit_on in _load_sets(options):
        texts = {"fit": fit_on, "score": pairs.sentences}
        encoded = encode_parts(encoder, texts, choices, progress=options.progress)
        distances = edit_distances(pairs.sentences1, pairs.sentences2)
        out["settings"]["data"][name] = pairs.fingerprint
        out["sets"][name] = {
            "split": pairs.split,
            "gold": pairs.gold.tolist(),
            "distance": distances.astype(int).tolist(),
            "cosines": {
                label: {one: _cosines(pairs, vectors, one).tolist() for one in CALIBRATORS}
                for label, vectors in encoded.items()
            },
        }
    return _round(out)


def _cosines(
    pairs: SentencePairs, vectors: Mapping[str, NDArray[np.float32]], calibrator: str, seed: int = 0
) -> Floats:
    """Cosines of pairs; a flow gets `FLOW_STEPS` training steps at least."""
    fit_on, scored = vectors["fit"], vectors["score"]
    return pair_cosines(
        pairs, calibrated(calibrator, fit_on, scored, seed=seed, min_steps=FLOW_STEPS)
    )


def _load_sets(options: RunOptions) -> list[tuple[str, SentencePairs, list[str]]]:
    """Give name, pairs and the sentences to fit on, for each set asked for."""
    names = list(SETS) if options.data is None else list(options.data)
    if unknown := [name for name in names if name not in SETS]:
        raise ValueError(f"Table 6 is made on {' and '.join(SETS)}, not on {', '.join(unknown)}.")
    return [
        (
            name,
            load_sts(name, SETS[name], download=options.download),
            load_sts(name, "all", download=options.download).sentences,
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
    vectors: Mapping[str, NDArray[np.float32]],
    calibrator: str,
    seed: int,
) -> dict[str, Any]:
    """Score the cosines of one calibrator, beside the raw ones."""
    raw = _cosines(pairs, vectors, "none")
    if calibrator == "none":
        return _score(pairs, distances, raw, None)
    return _score(pairs, distances, _cosines(pairs, vectors, calibrator, seed), raw)


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


_PAPER_ROWS = {"gold": "gold", "BERT-induced": "BERT-base", "flow-induced": "BERT-base-flow"}


def format_table6(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out Table 6: our rows beside the paper's, then the other kinds of edit distance."""
    paper = load_paper_table(6)
    parts = []
    for name, result in results["sets"].items():
        groups = group_seeds(result["rows"], "calibrator")
        lines: list[list[str]] = []
        if name == "stsb":
            for row, label in _PAPER_ROWS.items():
                distance, gold = paper["edit_distance"][row], paper["gold"][row]
                lines.append(
                    ["(paper)", label, f"{distance:.2f}", *[""] * 3, f"{gold:.2f}", "", ""]
                )
        for (layers, calibrator), rows in groups.items():
            given = "edit_distance_given_length"
            columns = ("edit_distance", given, f"{given}_and_gold", "length", "gold")
            lines.append(
                [
                    layers,
                    CALIBRATORS.get(calibrator, calibrator),
                    *(_cell([row[column] for row in rows]) for column in columns),
                    *(_cell([row["near"][c] for row in rows]) for c in ("edit_distance", "gold")),
                ]
            )
        headers = ["layers", "similarity", "edit distance", "at equal length"]
        headers += ["at equal length and gold", "length", "gold"]
        headers += [f"distance <= {NEAR}: distance", "gold"]
        parts.append(
            f"{name} {result['split']}: {result['n_pairs']} pairs, {result['n_near']['words']} of "
            f"them at {NEAR} edits or fewer; Spearman x 100 [95 % interval, seed 0]; flow: mean of "
            f"{results['settings']['seeds']} seeds\n"
            + tabulate(lines, headers, tablefmt=style, disable_numparse=True)
        )
        # One line for each kind of distance: the first layer choice, and what has no layers.
        shown = [key for key in groups if key[0] in ("", results["settings"]["layers"][0])]
        lines = [
            [unit, str(result["n_near"].get(unit, ""))]
            + [f"{np.mean([row['units'][unit] for row in groups[key]]):.2f}" for key in shown]
            for unit in result["rows"][0]["units"]
        ]
        headers = ["distance over", f"pairs <= {NEAR}"]
        headers += [CALIBRATORS.get(calibrator, calibrator) for _, calibrator in shown]
        parts.append(
            f"{name} {result['split']}: with other distances between words (layers "
            f"{results['settings']['layers'][0]})\n"
            + tabulate(lines, headers, tablefmt=style, disable_numparse=True)
        )
    return "\n\n".join(parts)


def format_figure2(results: dict[str, Any], style: str = "simple") -> str:
    """Say in a table what Figure 2 shows; parameters are those of `format_table6`."""
    lines = []
    for name, result in results["sets"].items():
        distance = np.array(result["distance"], dtype=np.float64)
        near = distance <= NEAR
        for label, by_calibrator in result["cosines"].items():
            for calibrator, values in by_calibrator.items():
                cosines = np.array(values)
                over_all = 100 * spearman(distance, cosines)
                over_near = 100 * spearman(distance[near], cosines[near])
                lines.append(
                    [name, label, CALIBRATORS[calibrator], f"{over_all:.2f}", f"{over_near:.2f}"]
                )
    headers = ["set", "layers", "cosine", "with edit distance", f"where it is <= {NEAR}"]
    return tabulate(lines, headers, tablefmt=style, disable_numparse=True)


def _cell(intervals: Sequence[dict[str, float]]) -> str:
    """Write the mean estimate over seeds, with the first seed's interval."""
    mean = np.mean([one["estimate"] for one in intervals])
    return f"{mean:.2f} [{intervals[0]['low']:.1f}, {intervals[0]['high']:.1f}]"


def compare_own_pairs(
    own: Sequence[tuple[str, str]], encoder: AnyEncoder, *, layers: str = ""
) -> pd.DataFrame:
    """Show what each similarity makes of the reader's own pairs.

    Raw and calibrated cosines fill different ranges, so beside each cosine stands its rank: the
    share of the reference pairs that are less alike by the same measure, in percent.

    The ranks are among the pairs of mini-sts, whose sentences fit the calibrators, and the layers
    are by default the encoder's first choice.
    """
    if not len(own) or any(isinstance(pair, str) or len(pair) != 2 for pair in own):
        raise ValueError(
            "own must be a list of pairs of sentences, such as [('I like it', 'I dislike it')]."
        )
    pairs = load_sts("mini-sts")
    first, second = [pair[0] for pair in own], [pair[1] for pair in own]
    table: dict[str, Any] = {
        "sentence 1": first,
        "sentence 2": second,
        "edit distance": edit_distances(first, second, "words and marks"),
    }
    texts = [*pairs.sentences, *first, *second]
    vectors = encoder.encode(texts, layers or encoder.default_layers[0])
    fit_rows, n = 2 * len(pairs), len(own)
    for calibrator, label in CALIBRATORS.items():
        z = calibrated(calibrator, vectors[:fit_rows], vectors, min_steps=FLOW_STEPS)
        known = np.sort(pair_cosines(pairs, z[:fit_rows]))
        values = cosine(z[fit_rows : fit_rows + n], z[fit_rows + n :])
        table[label] = values
        table[f"{label} rank"] = 100 * np.searchsorted(known, values) / len(known)
    return pd.DataFrame(table)
