"""Figures of a small BERT that learns: its words, and what it knows of them, step by step.

Each function takes the results of a stored run (``data/results/pretraining``), as `measure_run`
gives them, and gives a Plotly figure whose menu works in a page without a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.pretraining_parts import Line, Panel
from bertflow_lite.figures.pretraining_views import (
    Run,
    Value,
    draw_views,
    line_of,
    loss_panel,
    name_bin,
    snapshots_of,
)

__all__ = ["meaning_curves", "term_curves", "word_curves"]


def word_curves(run: Run, *, title: str = "") -> go.Figure:
    """Words: norm and frequency, norm and neighbors' distance by frequency, cone and direction.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Five panels; a menu chooses the lower half of Table 1 that the third one shows.
    """
    shown = {
        **{f"distance to {k} nearest": ("distance", str(k)) for k in (3, 5, 7)},
        "3 largest dot products": ("dot", "3"),
    }
    views = {
        label: [
            Panel(
                "Rank correlation with frequency",
                "Spearman",
                [
                    line_of(run, "norm", lambda s: s["words"]["norm_log_frequency"]["spearman"]),
                    line_of(
                        run,
                        "distance to neighbors",
                        # With the rank, which falls as frequency rises.
                        lambda s: -s["words"]["spearman_distance_rank"],
                    ),
                ],
                -1.05,
                1.05,
            ),
            Panel("Mean norm, by frequency rank", "norm", _bins(run, "norm")),
            Panel(
                f"Mean {label}, by rank",
                "dot product" if key[0] == "dot" else "distance",
                _bins(run, *key),
            ),
            Panel(
                "Two random words",
                "mean cosine",
                [line_of(run, "words", lambda s: s["words"]["mean_cosine"]["estimate"])],
            ),
            Panel(
                "The words' strongest direction",
                "share",
                [
                    line_of(
                        run, "of all variance", lambda s: s["words"]["frequency"]["variance"][0]
                    ),
                    line_of(
                        run, "frequency in it", lambda s: s["words"]["frequency"]["explained"][0]
                    ),
                ],
            ),
        ]
        for label, key in shown.items()
    }
    return draw_views(run, views, title)


def meaning_curves(run: Run, *, title: str = "") -> go.Figure:
    """Draw what is known of words in context: loss, PMI by frequency, PMI against counts.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Three panels.
    """
    bins = _all_bins(run, lambda s: s["gain"]["by_frequency"])
    pmi = [
        Line(
            name_bin(ranks),
            [_at_bin(s["gain"]["by_frequency"], ranks, "pmi") for s in snapshots_of(run)],
            [_at_bin(s["gain"]["by_frequency"], ranks, "error") for s in snapshots_of(run)],
        )
        for ranks in bins
    ]
    last = snapshots_of(run)[-1]
    panels = [
        loss_panel(run),
        Panel("Mean PMI of the true piece, by rank", "nats", pmi),
        Panel(
            "The model's PMI of neighbors",
            "Spearman",
            [
                line_of(run, "with the corpus", lambda s: s["neighbors"]["spearman"]),
                line_of(run, "with itself", lambda s: s["neighbors"]["spearman_halves"]),
                Line(
                    "rarity alone",
                    [last["neighbors"]["spearman_rarity"]],
                    color="gray",
                    dash="dash",
                ),
            ],
        ),
    ]
    return draw_views(run, {"": panels}, title)


def term_curves(run: Run, *, title: str = "") -> go.Figure:
    """Where log p(x) is kept, and what share of the scores' variance each of three terms has.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Two panels; a menu says whether all pieces count alike in the second, or by p(x|c).
    """
    views = {}
    for label, weights in (("all pieces alike", "pairs"), ("weighted by p(x|c)", "joint")):
        shares = [
            line_of(run, name, lambda s, w=weights, t=term: s["terms"][w]["shares"][t])  # type: ignore[misc]
            for name, term in (("PMI", "PMI"), ("log p(x)", "log p(x)"), ("λ", "lambda_c"))
        ]
        where = [
            line_of(run, "bias", lambda s: s["terms"]["log_p_in"]["bias_slope"]),
            line_of(run, "vectors", lambda s: s["terms"]["log_p_in"]["vectors_slope"]),
        ]
        if snapshots_of(run)[0]["terms"]["log_p_in"]["r2_of_vectors"] is not None:
            where.append(
                line_of(
                    run,
                    "R² from vectors",
                    lambda s: s["terms"]["log_p_in"]["r2_of_vectors"],
                )
            )
        views[label] = [
            Panel("Where log p(x) is kept", "slope, or R²", where),
            Panel(f"Scores' variance, {label}", "share", shares),
        ]
    return draw_views(run, views, title)


def _bins(run: Run, measure: str, k: str | None = None) -> list[Line]:
    def of(table: Mapping[str, Any]) -> Sequence[float]:
        values: Sequence[float] = table[measure] if k is None else table[measure][k]
        return values

    tables = [snapshot["words"]["table1"] for snapshot in snapshots_of(run)]
    return [
        Line(name_bin(ranks), [of(table)[i] for table in tables])
        for i, ranks in enumerate(tables[0]["bins"])
    ]


def _all_bins(run: Run, part: Callable[[Mapping[str, Any]], Any]) -> list[tuple[int, int | None]]:
    found = {tuple(ranks) for snapshot in run["snapshots"] for ranks in part(snapshot)["bins"]}
    return sorted(found, key=lambda ranks: ranks[0])


def _at_bin(part: Mapping[str, Any], ranks: Sequence[Any], name: str) -> Value:
    bins = [tuple(one) for one in part["bins"]]
    return part[name][bins.index(tuple(ranks))] if tuple(ranks) in bins else None
