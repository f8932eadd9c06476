"""Figures over stored runs: scores by data set, with a menu for the table that is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.plots import PALETTE

__all__ = ["score_explorer"]

_LOOKS = (
    ("gray", "circle-open"),
    ("orange", "circle"),
    ("green", "square"),
    ("sky", "triangle-up"),
    ("purple", "triangle-down"),
    ("blue", "diamond"),
    ("vermillion", "x"),
)


def score_explorer(
    tables: Mapping[str, Mapping[str, Mapping[str, float]]],
    title: str = "",
    axis: str = "Spearman x 100",
) -> go.Figure:
    """Scores by data set, one marker a method; a menu chooses the table.

    Parameters
    ----------
    tables : mapping of str to mapping of str to mapping of str to float
        Menu entry -> method -> data set -> score.  A method has one look in all tables.
    title, axis : str
        Title, and what the scores are; name the aggregation there.
    """
    methods = list(dict.fromkeys(name for table in tables.values() for name in table))
    sets = list(dict.fromkeys(s for t in tables.values() for by in t.values() for s in by))
    values = [v for t in tables.values() for by in t.values() for v in by.values()]
    shown = next(iter(tables.values()))
    fig = go.Figure()
    for k, name in enumerate(methods):
        color, symbol = _LOOKS[k % len(_LOOKS)]
        fig.add_scatter(
            x=_row(shown, name, sets),
            y=sets,
            mode="markers",
            name=name,
            visible=name in shown,
            marker={"symbol": symbol, "color": PALETTE[color], "size": 11},
            hovertemplate="%{y}: %{x:.2f}<extra>" + name + "</extra>",
        )
    entries: list[dict[str, Any]] = [
        {
            "label": label,
            "method": "restyle",
            "args": [
                {
                    "x": [_row(table, name, sets) for name in methods],
                    "visible": [name in table for name in methods],
                }
            ],
        }
        for label, table in tables.items()
    ]
    fig.update_layout(
        title=title,
        height=560,
        # One scale for all entries, so that they can be compared.
        xaxis={"title": axis, "range": [min(values) - 2, max(values) + 2]},
        yaxis={"categoryorder": "array", "categoryarray": sets[::-1]},
        margin_t=110,
        legend={"y": -0.2, "yanchor": "top"},
        updatemenus=[
            {
                "buttons": entries,
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "bgcolor": "rgba(128,128,128,0.15)",
            }
        ]
        if len(entries) > 1
        else [],
    )
    return fig


def _row(table: Mapping[str, Mapping[str, float]], name: str, sets: list[str]) -> list[Any]:
    by = table.get(name, {})
    return [round(by[s], 2) if s in by else None for s in sets]
