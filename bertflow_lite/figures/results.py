"""Figures over stored runs: scores by data set, and scores with their intervals.

A menu inside the figure chooses the table that is shown, so that it works without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.plots import PALETTE

__all__ = ["Interval", "score_explorer", "score_intervals"]

Interval = Sequence[float]
"""A score and the ends of its interval: ``(score, low, high)``; or ``(score,)`` without one."""

_LOOKS = (
    ("gray", "circle-open"),
    ("orange", "circle"),
    ("green", "square"),
    ("sky", "triangle-up"),
    ("purple", "triangle-down"),
    ("blue", "diamond"),
    ("vermillion", "x"),
)
_DODGE = 0.25  # vertical distance of two series in one row, whose rows are 1 apart
# At the bottom of the figure, however many rows it needs: Plotly then makes room by itself.
_BELOW = {"yref": "container", "y": 0, "yanchor": "bottom"}


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

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.

    Raises
    ------
    ValueError
        If there is no score to draw.
    """
    methods = list(dict.fromkeys(name for table in tables.values() for name in table))
    sets = list(dict.fromkeys(s for t in tables.values() for by in t.values() for s in by))
    values = [v for t in tables.values() for by in t.values() for v in by.values()]
    if not values:
        raise ValueError("there is no score to draw: pass at least one table with one score.")
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
        xaxis={"title": _title(axis), "range": [min(values) - 2, max(values) + 2]},
        yaxis={"categoryorder": "array", "categoryarray": sets[::-1]},
        margin_t=110,
        legend=_BELOW,
        updatemenus=_menu(entries),
    )
    return fig


def score_intervals(
    tables: Mapping[str, Mapping[str, Mapping[str, Interval]]],
    title: str = "",
    axis: str = "Spearman x 100",
    *,
    lines: Mapping[str, tuple[str, float]] | None = None,
    same_scale: bool = True,
) -> go.Figure:
    """Scores with their intervals, a row each; color and shape show the series.

    Parameters
    ----------
    tables : mapping of str to mapping of str to mapping of str to Interval
        Menu entry -> series -> row -> ``(score, low, high)``, or ``(score,)`` where no interval is
        known.  Where several series have the same row, their marks stand below each other.
    title, axis : str
        Title, and what the scores are; name the aggregation there.
    lines : mapping of str to (str, float), optional
        Menu entry -> what a dashed vertical line shows, and where it is.
    same_scale : bool, default True
        One range of the axis for all entries; else each has its own.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.

    Raises
    ------
    ValueError
        If there is no score to draw, or an interval does not hold its score.
    """
    for label, table in tables.items():
        for series in table.values():
            for name, found in series.items():
                if len(found) == 3 and not found[1] <= found[0] <= found[2]:
                    raise ValueError(f"{label}, {name}: the interval {found} misses its score.")
    reaches = {label: _reach(table) for label, table in tables.items()}
    if not any(reaches.values()):
        raise ValueError("there is no score to draw: pass at least one table with one score.")
    names = list(dict.fromkeys(series for table in tables.values() for series in table))
    wide = [min(min(r) for r in reaches.values() if r), max(max(r) for r in reaches.values() if r)]
    states: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {}
    for label, table in tables.items():
        rows = list(dict.fromkeys(row for series in table.values() for row in series))
        low, high = wide if same_scale else [min(reaches[label]), max(reaches[label])]
        traces = [_series(table.get(name, {}), rows, _offset(table, name)) for name in names]
        text, place = (lines or {}).get(label, ("", None))
        traces.append({"x": [place, place], "y": [-0.5, len(rows) - 0.5], "name": text})
        states[label] = (
            traces,
            {
                "xaxis.range": [low - 2, high + 2],
                "yaxis.range": [len(rows) - 0.4, -0.6],
                "yaxis.tickvals": list(range(len(rows))),
                "yaxis.ticktext": rows,
            },
        )
    first, layout = next(iter(states.values()))
    fig = go.Figure()
    for k, (name, state) in enumerate(zip(names, first, strict=False)):
        color, symbol = _LOOKS[k % len(_LOOKS)]
        fig.add_scatter(
            **state,
            name=name,
            mode="markers",
            marker={"symbol": symbol, "color": PALETTE[color], "size": 9},
            hovertemplate="%{text}<extra>" + name + "</extra>",
        )
        fig.data[-1].error_x.update(color=PALETTE[color], thickness=1.5, width=3)
    fig.add_scatter(
        **first[-1],
        mode="lines",
        line={"color": PALETTE["gray"], "dash": "dash", "width": 1.5},
        hoverinfo="skip",
        showlegend=lines is not None,
    )
    entries: list[dict[str, Any]] = [
        {
            "label": label,
            "method": "update",
            "args": [_restyle(traces, names), axes],
        }
        for label, (traces, axes) in states.items()
    ]
    most = max(len(axes["yaxis.ticktext"]) for _, axes in states.values())
    shared = any(_offset(table, name) for table in tables.values() for name in names)
    fig.update_layout(
        title=title,
        height=280 + (40 if shared else 26) * most,
        xaxis={"title": _title(axis), "range": layout["xaxis.range"]},
        yaxis={
            "range": layout["yaxis.range"],
            "tickvals": layout["yaxis.tickvals"],
            "ticktext": layout["yaxis.ticktext"],
            "tickfont": {"size": 12},  # leaves more of a narrow screen to the marks
            "zeroline": False,
        },
        margin_t=110,
        legend=_BELOW,
        updatemenus=_menu(entries),
    )
    return fig


def _menu(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lay out a menu above the figure; none where there is nothing to choose."""
    if len(entries) < 2:
        return []
    return [
        {
            "buttons": entries,
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "bgcolor": "rgba(128,128,128,0.15)",
        }
    ]


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "standoff": 8}


def _row(table: Mapping[str, Mapping[str, float]], name: str, sets: list[str]) -> list[Any]:
    by = table.get(name, {})
    return [round(by[s], 2) if s in by else None for s in sets]


def _reach(table: Mapping[str, Mapping[str, Interval]]) -> list[float]:
    return [value for series in table.values() for found in series.values() for value in found]


def _offset(table: Mapping[str, Mapping[str, Interval]], name: str) -> float:
    """Where a series stands within its rows: 0 unless it shares a row with another."""
    rows = [row for series in table.values() for row in series]
    if len(set(rows)) == len(rows) or name not in table:
        return 0.0
    return _DODGE * (list(table).index(name) - (len(table) - 1) / 2)


def _series(found: Mapping[str, Interval], rows: list[str], offset: float) -> dict[str, Any]:
    """Coordinates, whiskers and hover text of one series."""
    x, low, high, text = [], [], [], []
    for row, values in found.items():
        score, *ends = values
        x.append(round(score, 2))
        low.append(round(score - ends[0], 2) if ends else None)
        high.append(round(ends[1] - score, 2) if ends else None)
        said = f"<br>95 % interval {ends[0]:.1f} to {ends[1]:.1f}" if ends else ""
        text.append(f"{row}: {score:.2f}{said}")
    return {
        "x": x,
        "y": [round(rows.index(row) + offset, 3) for row in found],
        "error_x": {"type": "data", "symmetric": False, "array": high, "arrayminus": low},
        "text": text,
        "visible": bool(x),
    }


def _restyle(traces: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Say what changes in all traces when a menu entry is chosen."""
    *series, line = traces
    return {
        "x": [trace["x"] for trace in traces],
        "y": [trace["y"] for trace in traces],
        "text": [*(trace["text"] for trace in series), None],
        "visible": [*(trace["visible"] for trace in series), line["x"][0] is not None],
        "error_x.array": [*(trace["error_x"]["array"] for trace in series), None],
        "error_x.arrayminus": [*(trace["error_x"]["arrayminus"] for trace in series), None],
        "name": [*names, line["name"]],
    }
