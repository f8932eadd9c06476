"""Tables 2 and 3 as text: our rows, the paper's rows, and the gains that its text claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tabulate import SEPARATING_LINE, tabulate

from bertflow_lite.experiments.sts_tables import RAW, TARGET
from bertflow_lite.experiments.table_rows import show_score
from bertflow_lite.paper import SETS, Gain, measure_gain, paper_rows, text_claims
from bertflow_lite.runs import load_run

__all__ = ["flow_gains", "format_table2", "format_table3", "mean_scores"]


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

    def cells(scores: dict[str, Any], show: Callable[[Any], str]) -> list[str]:
        means = [np.mean(scores[name]) for name in sets if name in scores]
        complete = len(means) == len(sets)
        return [show(scores[name]) if name in scores else "" for name in sets] + [
            f"{np.mean(means):.2f}" if complete else ""
        ]

    def ours(row: dict[str, Any], name: str) -> list[str]:
        scores = {set_name: one["wmean"] for set_name, one in row["scores"].items()}
        return [name, row["row"], *cells(scores, lambda x: show_score(np.atleast_1d(x).tolist()))]

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

    Parameters
    ----------
    results : dict
        From `run_table2` or `run_table3`, or a stored run's ``results``.

    Returns
    -------
    dict of str to Gain
        By layer choice, in points of wmean (mean over seeds).
    """
    rows = {(row["layers"], row["row"]): row for row in results["rows"] if "model" not in row}
    return {
        layer: measure_gain(
            mean_scores(rows[layer, RAW.label]), mean_scores(rows[layer, TARGET.label])
        )
        for layer in results["settings"]["layers"]
        if (layer, TARGET.label) in rows
    }
