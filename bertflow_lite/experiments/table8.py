"""Table 8: the spread between models that were fine-tuned with different seeds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from tabulate import tabulate

from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.models import load_model
from bertflow_lite.encoders.pooling import LayersArgument
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.nli_judge import load_nli_record
from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.experiments.scoring import calibrated, encode_parts, show_score
from bertflow_lite.measures.scores import score_sts

CALIBRATOR = "flow:paper"


def run_table8(
    models: Sequence[str | os.PathLike[str]],
    *,
    data: str = "stsb",
    layers: Sequence[str] = ("last2avg", "first-last"),
    max_length: int = 64,
    device: str | None = None,
    download: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Spread over seeds (Table 8): models that were fine-tuned with different seeds.

    Each model's flow is fitted on all splits' sentences with the model's own seed.  Besides, the
    first model is fitted with the seeds of all: the spread that comes from the flow alone.

    The models are folders made by `fine_tune`, at least two, with different seeds.  The layer
    choices are beside the last layer: the paper's text says last2avg, its code is first-last.

    Gives ``rows``: each with ``row``, ``layers``, ``calibrator``, ``values`` (Spearman x 100, one
    for each seed), ``mean``, ``std`` (with n - 1) and ``median``; ``models`` and ``settings``.
    """
    records = [load_nli_record(folder) for folder in models]
    _check_kin(records)
    scored, fitted = load_sts(data, download=download), load_sts(data, "all")
    choices: list[LayersArgument] = ["last", *layers]
    values: dict[tuple[str, str], list[float]] = {}
    spread: dict[str, list[float]] = {name: [] for name in layers}
    for number, (folder, record) in enumerate(zip(models, records, strict=True)):
        encoder = Encoder(load_model(folder, device=device), max_length=max_length)
        texts = {"fit": fitted.sentences, "score": scored.sentences}
        for name, x in encode_parts(encoder, texts, choices, progress=progress).items():
            to_fit, to_score = x["fit"], x["score"]
            raw = score_sts(scored, to_score).all
            values.setdefault((name, "none"), []).append(raw)
            if name == "last":
                continue
            for seed in [r["seed"] for r in records] if number == 0 else [record["seed"]]:
                z = calibrated(CALIBRATOR, to_fit, to_score, seed=seed, progress=progress)
                score = score_sts(scored, z).all
                if seed == record["seed"]:
                    values.setdefault((name, CALIBRATOR), []).append(score)
                if number == 0:
                    spread[name].append(score)
    rows = [_row(_row_name(name, how), name, how, scores) for (name, how), scores in values.items()]
    rows += [
        _row(f"{name} + flow (target), first model, flow's seed alone", name, CALIBRATOR, scores)
        for name, scores in spread.items()
    ]
    return {
        "rows": rows,
        "models": [
            {key: r[key] for key in ("seed", "fingerprint")}
            | {"accuracy": r["history"]["accuracy"]}
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


def format_table8(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out Table 8: mean ± standard deviation and median over models, ours and the paper's."""
    n = len(results["models"])
    lines = [
        [f"here ({n} models)", row["row"], show_score(row["values"]), f"{row['median']:.2f}"]
        for row in results["rows"]
    ]
    for label, values in load_paper_table(8).items():
        if label != "caption":
            mean, deviation, median = values
            lines.append(["paper", label, f"{mean:.2f} ± {deviation:.2f}", f"{median:.2f}"])
    headers = ["", "STS-B, Spearman x 100", "mean ± deviation", "median"]
    return tabulate(lines, headers, tablefmt=style, disable_numparse=True)
