"""Table 6 and Figure 2 laid out as text, our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tabulate import tabulate

from bertflow_lite.experiments.lexical_runs import CALIBRATORS
from bertflow_lite.lexical import NEAR
from bertflow_lite.paper import load_paper_table
from bertflow_lite.similarity import spearman

__all__ = ["format_figure2", "format_table6"]

_PAPER_ROWS = {"gold": "gold", "BERT-induced": "BERT-base", "flow-induced": "BERT-base-flow"}


def format_table6(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out Table 6: our rows beside the paper's, then the other kinds of edit distance.

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
        groups = _grouped(result["rows"])
        lines: list[list[str]] = []
        if name == "stsb":
            for row, label in _PAPER_ROWS.items():
                distance, gold = paper["edit_distance"][row], paper["gold"][row]
                lines.append(["(paper)", label, f"{distance:.2f}", "", "", f"{gold:.2f}", "", ""])
        for (layers, calibrator), rows in groups.items():
            columns = ("edit_distance", "edit_distance_given_length", "length", "gold")
            lines.append(
                [
                    layers,
                    CALIBRATORS.get(calibrator, calibrator),
                    *(_cell([row[column] for row in rows]) for column in columns),
                    *(_cell([row["near"][c] for row in rows]) for c in ("edit_distance", "gold")),
                ]
            )
        headers = ["layers", "similarity", "edit distance", "at equal length", "length", "gold"]
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


def _grouped(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Put the rows that differ in their seed only together."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["layers"], row["calibrator"]), []).append(row)
    return groups


def _cell(intervals: Sequence[dict[str, float]]) -> str:
    """Write the mean estimate over seeds, with the first seed's interval."""
    mean = np.mean([one["estimate"] for one in intervals])
    return f"{mean:.2f} [{intervals[0]['low']:.1f}, {intervals[0]['high']:.1f}]"
