"""Table 8 laid out: the spread between fine-tuned models (`nli.runs.table8`), and the paper's."""

from __future__ import annotations

from typing import Any

from tabulate import tabulate

from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.experiments.scoring import show_score

__all__ = ["format_table8"]


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
