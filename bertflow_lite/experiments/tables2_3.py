"""Tables 2 and 3: seven STS sets, raw and calibrated; how they are made and laid out.

Table 2 is an encoder without NLI supervision, Table 3 one that was fine-tuned on NLI; the
experiment is the same, the layers and the published rows differ.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tabulate import SEPARATING_LINE, tabulate

from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.nli_flow import (
    NLI_FORMS,
    ConvergedFlow,
    choose_sentences,
    fit_nli_flow,
)
from bertflow_lite.experiments.paper import SETS, Gain, measure_gain, paper_rows, text_claims
from bertflow_lite.experiments.runs import load_run
from bertflow_lite.experiments.scoring import (
    AnyEncoder,
    EncodedSet,
    Row,
    RunOptions,
    encode_set,
    fit_and_score,
    merge_seeds,
    scores,
    seeds_for,
    show_score,
)

logger = logging.getLogger(__name__)
RAW = Row("raw", "none", "none")
TARGET = Row("flow (target)", "flow:paper", "target")
TRAIN = Row("flow (target), train only", "flow:paper", "train")
NLI_LABELS = {
    "published": "flow (NLI), 0.15 epoch at 2e-5",
    "converged": "flow (NLI), to convergence",
}


@dataclass(frozen=True)
class _Run:
    """What all parts of one run of a table share."""

    encoder: AnyEncoder
    sets: dict[str, dict[str, EncodedSet]]  # by set, then by layer choice
    options: RunOptions


def run_table2(encoder: AnyEncoder, options: RunOptions | None = None) -> dict[str, Any]:
    """Run Table 2 on an encoder.

    Rows: CLS, raw; the mean of the last layer, last2avg, first-last and each further layer choice,
    raw and calibrated: by whitening (full, and to a third of the width as BERT-whitening does),
    flow (NLI) in both forms of `fit_nli_flow`, flow (target) fitted on the sentences of all splits
    as the paper does, and on those of the train split only.  Word vectors have one layer, and stand
    beside any other encoder where GloVe is installed.

    Flow (NLI) to convergence, by far the longest, is fitted with random state 0 only.

    Gives ``settings`` and ``rows``. A row has ``row``, ``layers``, ``calibrator``, ``fit_on`` and
    ``scores``: by set, what `scores` gives, over seeds (`merge_seeds`), ``fitted_on`` and for flows
    ``bits_per_dim``.
    """
    options = options or RunOptions()
    chosen, raw_only = [*encoder.default_layers], []
    if isinstance(encoder, Encoder):
        chosen = options.choices("last", *chosen)
        raw_only = ["cls"] if encoder.has_cls else []
    results = _run(encoder, chosen, raw_only, options)
    if encoder.name != "glove":
        results["rows"] = _glove_rows(results, options) + results["rows"]
    return results


def run_table3(encoder: AnyEncoder, options: RunOptions | None = None) -> dict[str, Any]:
    """Run Table 3 on an encoder that was fine-tuned on NLI (or is sentence-tuned otherwise).

    Rows: mean of the last layer and last2avg, raw and calibrated; the result is as `run_table2`'s.
    """
    if not isinstance(encoder, Encoder):
        raise ValueError(f"Table 3 is about fine-tuned transformers; {encoder.name!r} is none.")
    options = options or RunOptions()
    return _run(encoder, options.choices("last", "last2avg"), [], options)


def _run(
    encoder: AnyEncoder, layers: list[str], raw_only: list[str], options: RunOptions
) -> dict[str, Any]:
    every = list(dict.fromkeys([*(one for one in raw_only if one not in layers), *layers]))
    how = {"download": options.download, "progress": options.progress}
    sets = {}
    for name in options.data or SETS:
        by_layer = encode_set(encoder, name, every, **how)
        sets[next(iter(by_layer.values())).pairs.name] = by_layer
    run = _Run(encoder, sets, options)
    third = f"whiten:{max(1, encoder.dim // 3)}"
    rows = [_target_row(run, layer, RAW) for layer in every]
    nli, reason = _load_nli(options.download)
    chosen = choose_sentences(nli.sentences, options.nli_sentences) if nli is not None else []
    for layer in layers:
        rows.append(_target_row(run, layer, Row("whitening", "whiten", "target")))
        rows.append(_target_row(run, layer, Row("whitening to a third", third, "target")))
        if nli is not None:
            rows += _nli_rows(run, layer, chosen)
        rows.append(_target_row(run, layer, TARGET))
        if any("train" in one[layer].fit for one in sets.values()):
            rows.append(_target_row(run, layer, TRAIN))
    rows.sort(key=lambda row: every.index(row["layers"]))  # stable: raw stays first in each
    settings = {
        "data": {
            name: next(iter(one.values())).pairs.fingerprint for name, one in sets.items()
        },
        "nli": {"sentences": len(chosen), "of": len(nli.sentences), "fingerprint": nli.fingerprint,
                "source": nli.source} if nli is not None else {"left out": reason},
        "layers": every,
        "seeds": list(range(options.seeds)),
        "dim": encoder.dim,
    }  # fmt: skip
    return {"settings": settings, "rows": rows}


def _target_row(run: _Run, layer: str, row: Row) -> dict[str, Any]:
    by_set = {}
    for name, by_layer in run.sets.items():
        encoded = by_layer[layer]
        if row.fit_on not in ("none", *encoded.fit):
            continue
        parts: list[dict[str, Any]] = []
        for seed in seeds_for(row.calibrator, run.options.seeds):
            logger.info("%s, %s, %s, seed %d", layer, row.label, name, seed)
            compute = functools.partial(
                fit_and_score, row, encoded, seed, progress=run.options.progress
            )
            parts.append(run.options.keep(f"{layer} | {row.label} | {name} | {seed}", compute))
        by_set[name] = merge_seeds(parts)
    return {
        "row": row.label,
        "layers": layer,
        "calibrator": row.calibrator,
        "fit_on": row.fit_on,
        "scores": by_set,
    }


def _nli_rows(run: _Run, layer: str, sentences: Sequence[str]) -> list[dict[str, Any]]:
    progress = run.options.progress

    @functools.cache
    def embeddings() -> Any:  # when the first flow needs them, for this layer only
        asked: Any = [layer]
        (encoded,) = run.encoder.encode(sentences, asked, progress=progress).values()
        return encoded

    def fit_and_score_all(form: Any, seed: int) -> dict[str, Any]:
        flow = fit_nli_flow(embeddings(), form=form, seed=seed, progress=progress)
        bits = flow.bits_per_dim(embeddings())
        out: dict[str, Any] = {
            name: scores(one[layer].pairs, flow.transform(one[layer].scored), interval=seed == 0)
            | {"fitted_on": len(sentences), "bits_per_dim": round(bits, 4)}
            for name, one in run.sets.items()
        }
        if isinstance(flow, ConvergedFlow):
            out["held out"] = [round(value, 4) for value in flow.held_out_bits_]
        return out

    rows = []
    for form in NLI_FORMS:
        parts = []
        for seed in range(run.options.seeds if form == "published" else 1):
            logger.info("%s, %s, seed %d", layer, NLI_LABELS[form], seed)
            compute = functools.partial(fit_and_score_all, form, seed)
            parts.append(run.options.keep(f"{layer} | {NLI_LABELS[form]} | {seed}", compute))
        row: dict[str, Any] = {
            "row": NLI_LABELS[form],
            "layers": layer,
            "calibrator": "flow:paper" if form == "published" else "flow",
            "fit_on": "nli",
            "scores": {name: merge_seeds([part[name] for part in parts]) for name in run.sets},
        }
        if form == "converged":
            row["held_out_bits"] = [part["held out"] for part in parts]
        rows.append(row)
    return rows


def _glove_rows(results: dict[str, Any], options: RunOptions) -> list[dict[str, Any]]:
    """Score the average of GloVe vectors, raw, on the same sets, where GloVe is installed."""
    from bertflow_lite.encoders.word_vectors import load_glove

    try:
        glove = load_glove()
    except FileNotFoundError as error:
        logger.warning("the GloVe row is left out: %s", error)
        return []
    sets = {
        name: encode_set(glove, name, ["mean"], download=options.download)
        for name in results["settings"]["data"]
    }
    return [_target_row(_Run(glove, sets, options), "mean", RAW) | {"model": "glove"}]


def _load_nli(download: bool) -> tuple[Any, str]:
    """Give the NLI sentences at hand, or None and the reason."""
    from bertflow_lite.datasets.nli import load_nli_sentences

    try:
        return load_nli_sentences(download=download), ""
    except FileNotFoundError as error:
        logger.warning("flow (NLI) is left out: %s", error)
        return None, "no NLI sentences were found"


def mean_scores(row: dict[str, Any], aggregation: str = "wmean") -> dict[str, float]:
    """Mean over the seeds of a row's scores, by set."""
    return {name: float(np.mean(one[aggregation])) for name, one in row["scores"].items()}


def format_table2(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out `run_table2`'s rows with the paper's Table 2 below, and the gains of the text."""
    return f"{_format(results, 2, style)}\n\n{_format_gains(results)}"


def format_table3(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out `run_table3`'s rows with the paper's Table 3 below.

    The stored run of all-MiniLM-L6-v2, a sentence-tuned encoder that anyone can run, stands
    between them.
    """
    try:
        rows = load_run("table2", "minilm")["results"]["rows"]
    except FileNotFoundError:
        rows = []
    tuned = [row for row in rows if (row["row"], row["layers"]) == ("raw", "last")]
    return _format(results, 3, style, beside=tuned)


def _format(
    results: dict[str, Any], number: int, style: str, beside: Sequence[dict[str, Any]] = ()
) -> str:
    sets = list(results["settings"]["data"])

    def cells(by_set: dict[str, Any], show: Callable[[Any], str]) -> list[str]:
        means = [np.mean(by_set[name]) for name in sets if name in by_set]
        complete = len(means) == len(sets)
        return [show(by_set[name]) if name in by_set else "" for name in sets] + [
            f"{np.mean(means):.2f}" if complete else ""
        ]

    def ours(row: dict[str, Any], name: str) -> list[str]:
        by_set = {set_name: one["wmean"] for set_name, one in row["scores"].items()}
        return [name, row["row"], *cells(by_set, lambda x: show_score(np.atleast_1d(x).tolist()))]

    lines: list[Any] = [
        ours(row, f"{row['model']} {row['layers']}" if "model" in row else row["layers"])
        for row in results["rows"]
    ]
    rule = [SEPARATING_LINE] if style == "simple" else []
    lines += rule + [ours(row, f"minilm {row['layers']} (stored run)") for row in beside]
    if any(name in SETS for name in sets):
        lines += rule if beside else []
        lines += [
            [f"paper ({row.aggregation})", row.label, *cells(row.scores, lambda x: f"{x:.2f}")]
            for row in paper_rows(number)
        ]
    headers = ["layers", "wmean, Spearman x 100", *(SETS.get(n, n) for n in sets), "average"]
    return tabulate(lines, headers, tablefmt=style, disable_numparse=True)


def _format_gains(results: dict[str, Any]) -> str:
    """State the text's claim, recomputed from the paper's table, and our counterpart by layer."""
    lines = ["Gain of flow (target) over the same layers raw (points of wmean):"]
    for model, claim in text_claims().items():
        lines.append(
            f"  paper, {model}: average {claim['average']:+.2f} from its table "
            f"(its text: {claim['stated']:+.2f}), largest {claim['largest']:+.2f} on "
            f"{claim['largest_on']} (its text, over both models: {claim['stated_largest']:+.2f})"
        )
    for layer, gain in flow_gains(results).items():
        lines.append(
            f"  here, {layer}: average {gain.average:+.2f}, largest {gain.largest:+.2f} on "
            f"{gain.largest_on}"
        )
    return "\n".join(lines)


def flow_gains(results: dict[str, Any]) -> dict[str, Gain]:
    """Give the gain of flow (target) over the same layers raw: our counterpart of the text's claim.

    By layer choice, in points of wmean (mean over seeds), from results of Table 2 or 3.
    """
    rows = {(row["layers"], row["row"]): row for row in results["rows"] if "model" not in row}
    return {
        layer: measure_gain(
            mean_scores(rows[layer, RAW.label]), mean_scores(rows[layer, TARGET.label])
        )
        for layer in results["settings"]["layers"]
        if (layer, TARGET.label) in rows
    }
