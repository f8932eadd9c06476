"""Figures over stored runs: scores by data set, and scores with their intervals.

A menu inside the figure chooses the table that is shown, so that it works without a kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bertflow_lite.figures.plots import PALETTE

__all__ = [
    "Interval",
    "mean_test_scores",
    "nli_losses",
    "preset_dots",
    "score_explorer",
    "score_intervals",
    "score_lines",
    "tuning_curves",
]

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


_BASE = "flow:paper"
# What is compared with it: name, color, symbol.
_SHOWN = {
    "whiten": ("whitened", "green", "diamond-open"),
    "best width": ("whitened, best width", "green", "diamond"),
    "flow:released-code": ("released-code", "orange", "square"),
    "flow:recommended": ("recommended", "blue", "triangle-up"),
}
_AGGREGATIONS = ("wmean", "all")


def mean_test_scores(
    results: Mapping[str, Any], aggregation: str = "wmean"
) -> dict[str, dict[str, float]]:
    """Average a stored test run over its sets (and, before that, over seeds).

    Parameters
    ----------
    results : mapping
        Results of a test run of the ablation: ``rows`` (`run_test`) and ``widths``.
    aggregation : {"wmean", "all", "mean"}, default "wmean"
        How each set's subsets are summed up.

    Returns
    -------
    dict of str to dict of str to float
        Calibrator -> layer choice -> mean Spearman x 100.  ``"best width"`` is the whitening that
        was best in validation.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in results["rows"]:
        by_set = found.setdefault((row["calibrator"], row["layers"]), {})
        by_set.setdefault(row["data"], []).append(row[aggregation])
    means = {
        key: float(np.mean([np.mean(values) for values in by_set.values()]))
        for key, by_set in found.items()
    }
    table: dict[str, dict[str, float]] = {}
    for (calibrator, layers), mean in means.items():
        table.setdefault(calibrator, {})[layers] = mean
    # A width at or above the embeddings' own was run as the whole whitening.
    table["best width"] = {
        layers: means.get((width, layers), means["whiten", layers])
        for layers, width in results["widths"].items()
    }
    return table


def preset_dots(runs: Mapping[str, Mapping[str, Any]], title: str = "") -> go.Figure:
    """Compare whitening and two presets with the preset ``paper``, on the mean over test sets.

    Parameters
    ----------
    runs : mapping of str to mapping
        Label of a model -> results of its stored test run.
    title : str, default ""
        Title of the figure.

    Returns
    -------
    plotly.graph_objects.Figure
        A line for each model and layer choice, a mark for each calibrator: its score minus that
        of ``paper``.  A button for each aggregation.

    Raises
    ------
    ValueError
        If there are no runs.
    """
    if not runs:
        raise ValueError("there are no test runs to draw: give one model's at least.")
    tables = {
        aggregation: {model: mean_test_scores(run, aggregation) for model, run in runs.items()}
        for aggregation in _AGGREGATIONS
    }
    lines = [(model, layers) for model, run in runs.items() for layers in run["widths"]]

    def scores(aggregation: str, calibrator: str) -> list[float]:
        table = tables[aggregation]
        return [
            round(table[model][calibrator][layers] - table[model][_BASE][layers], 2)
            for model, layers in lines
        ]

    names = [
        f"{model}, {f'block {layers}' if layers.isdigit() else layers}" for model, layers in lines
    ]
    fig = go.Figure()
    for calibrator, (name, color, symbol) in _SHOWN.items():
        fig.add_scatter(
            x=scores("wmean", calibrator),
            y=names,
            mode="markers",
            name=name,
            marker={"color": PALETTE[color], "symbol": symbol, "size": 11, "line": {"width": 2}},
            hovertemplate="%{y}: %{x:+.2f}<extra>" + name + "</extra>",
        )
    buttons = [
        {
            "label": aggregation,
            "method": "update",
            "args": [
                {"x": [scores(aggregation, calibrator) for calibrator in _SHOWN]},
                {"xaxis.title.text": _axis(aggregation)},
            ],
        }
        for aggregation in _AGGREGATIONS
    ]
    fig.add_vline(x=0, line={"dash": "dot", "color": PALETTE["gray"]})
    fig.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    fig.update_layout(
        title=title,
        xaxis_title=_axis("wmean"),
        height=260 + 42 * len(names),
        margin_t=110 if title else 70,
        legend={"y": -0.23, "yanchor": "top"},
        updatemenus=[
            {
                "type": "buttons",
                "direction": "right",
                "buttons": buttons,
                "x": 0,
                "xanchor": "left",
                "y": 1.01,
                "yanchor": "bottom",
                "bgcolor": "rgba(128,128,128,0.15)",
                "font": {"size": 12},
            }
        ],
    )
    return fig


def score_lines(
    lines: Mapping[str, Sequence[tuple[str, float]]], title: str = "", axis: str = ""
) -> go.Figure:
    """Scores along an ordered series of named places, such as the layers of a flow.

    Parameters
    ----------
    lines : mapping of str to sequence of (str, float)
        Name of a line -> name of each place, and the score there; at most three lines.
    title, axis : str, default ""
        Title of the figure and of the axis of places.  Up to eight places are named there.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.

    Raises
    ------
    ValueError
        If there is no line, or more than three.
    """
    looks = [("blue", "circle"), ("orange", "diamond"), ("green", "triangle-up")]
    if not 1 <= len(lines) <= len(looks):
        raise ValueError(f"there are {len(lines)} lines; give 1 to {len(looks)} of them.")
    fig = go.Figure()
    for (name, line), (color, symbol) in zip(lines.items(), looks, strict=False):
        fig.add_scatter(
            x=list(range(len(line))),
            y=[round(score, 2) for _, score in line],
            text=[place for place, _ in line],
            mode="lines+markers",
            name=name,
            line={"color": PALETTE[color]},
            marker={"symbol": symbol, "size": 8},
            hovertemplate="%{text}: %{y:.1f}<extra>" + name + "</extra>",
        )
    places = [place for place, _ in max(lines.values(), key=len)]
    if len(places) <= 8:
        fig.update_xaxes(tickvals=list(range(len(places))), ticktext=places)
    fig.update_layout(
        title=title,
        xaxis_title=axis,
        yaxis_title="Spearman x 100",
        margin_t=60,
        legend={"y": -0.23, "yanchor": "top"},
    )
    return fig


def _axis(aggregation: str) -> str:
    return f"points above paper ({aggregation})"


_STYLES = (("blue", "circle"), ("orange", "diamond"), ("green", "square"))
_LEVELS = (("vermillion", "dash"), ("gray", "dot"), ("purple", "dashdot"))
_RUNS = ("blue", "orange", "green", "vermillion", "purple", "sky", "gray")


def tuning_curves(
    curves: Mapping[str, Mapping[str, Mapping[int, float]]],
    levels: Mapping[str, Mapping[str, float]],
    title: str = "",
    *,
    x_axis: str,
    axis: str = "Spearman x 100, validation",
) -> go.Figure:
    """Draw validation scores over a calibrator's setting, the best one ringed; a menu for encoders.

    Parameters
    ----------
    curves : mapping of str to mapping of str to mapping of int to float
        Menu entry -> calibrator -> setting (k, or a width) -> score.  At most three calibrators.
    levels : mapping of str to mapping of str to float
        Menu entry -> what has no such setting -> its score, drawn as a horizontal line.  The same
        names in all entries, at most three.
    title, x_axis, axis : str
        Title, the setting's name, and what the scores are.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.

    Raises
    ------
    ValueError
        If there is nothing to draw, or more lines than can be told apart.
    """
    names = list(dict.fromkeys(name for by in curves.values() for name in by))
    flat = list(dict.fromkeys(name for by in levels.values() for name in by))
    if not names:
        raise ValueError("there is no curve to draw: pass at least one calibrator's scores.")
    if len(names) > len(_STYLES) or len(flat) > len(_LEVELS):
        raise ValueError(f"at most 3 curves and 3 levels; given: {', '.join([*names, *flat])}.")
    settings = [x for by in curves.values() for curve in by.values() for x in curve]
    ends = [min(settings), max(settings)]

    def traces(label: str) -> list[dict[str, list[Any]]]:
        out: list[dict[str, list[Any]]] = []
        for name in names:
            curve = curves[label].get(name, {})
            best = max(curve, key=lambda x: curve[x]) if curve else None
            out.append({"x": [*curve], "y": [round(y, 2) for y in curve.values()]})
            out.append({"x": [best], "y": [round(curve[best], 2) if best is not None else None]})
        for name in flat:
            level = levels.get(label, {}).get(name)
            out.append({"x": ends, "y": [level and round(level, 2)] * 2})
        return out

    start = traces(next(iter(curves)))
    fig = go.Figure()
    for k, name in enumerate(names):
        color, symbol = PALETTE[_STYLES[k][0]], _STYLES[k][1]
        fig.add_scatter(
            **start[2 * k],
            name=name,
            mode="lines+markers",
            line={"color": color},
            marker={"symbol": symbol, "size": 6},
            hovertemplate="%{x}: %{y:.2f}<extra>" + name + "</extra>",
        )
        fig.add_scatter(
            **start[2 * k + 1],
            name=f"best {name}",
            mode="markers",
            showlegend=False,
            marker={"symbol": "circle-open", "size": 16, "color": color, "line": {"width": 2}},
            hoverinfo="skip",
        )
    for k, name in enumerate(flat):
        fig.add_scatter(
            **start[2 * len(names) + k],
            name=name,
            mode="lines",
            line={"color": PALETTE[_LEVELS[k][0]], "dash": _LEVELS[k][1]},
            hovertemplate=name + ": %{y:.2f}<extra></extra>",
        )
    entries: list[dict[str, Any]] = [
        {
            "label": label,
            "method": "restyle",
            "args": [{key: [trace[key] for trace in traces(label)] for key in ("x", "y")}],
        }
        for label in curves
    ]
    fig.update_layout(
        title=title,
        height=480,
        xaxis_title=_title(x_axis),
        yaxis_title=axis,
        margin_t=110,
        legend=_BELOW,
        updatemenus=_menu(entries),
    )
    return fig


def nli_losses(
    losses: Mapping[str, Sequence[tuple[int, float]]], title: str = "", smooth: int = 10
) -> go.Figure:
    """Draw the training loss of NLI fine-tuning over its steps, one line a run.

    Parameters
    ----------
    losses : mapping of str to sequence of (int, float)
        Run -> the curve of `NliHistory.loss`: step, mean cross-entropy since the point before.
    title : str
    smooth : int, default 10
        Points of the curve that are averaged into one: single batches jump about.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.

    Raises
    ------
    ValueError
        If there is no run, or ``smooth`` is below 1.
    """
    if not losses or smooth < 1:
        raise ValueError(f"needs at least one run and smooth >= 1, not {smooth}.")
    fig = go.Figure()
    last = 0
    for k, (name, curve) in enumerate(losses.items()):
        # What is left at the end goes to the last mean: alone it would be a spike.
        starts = [*range(0, max(len(curve) - smooth, 0) + 1, smooth), len(curve)]
        parts = [curve[a:b] for a, b in itertools.pairwise(starts)]
        steps = [int(part[-1][0]) for part in parts]
        fig.add_scatter(
            x=steps,
            y=[round(sum(loss for _, loss in part) / len(part), 4) for part in parts],
            name=name,
            mode="lines",
            line={"color": PALETTE[_RUNS[k % len(_RUNS)]], "dash": "solid" if k < 7 else "dot"},
            hovertemplate="step %{x}: %{y:.3f}<extra>" + name + "</extra>",
        )
        last = max(last, *steps)
    fig.add_scatter(
        x=[0, last],
        y=[round(math.log(3), 4)] * 2,
        name="guessing: ln 3",
        mode="lines",
        line={"color": PALETTE["gray"], "dash": "dash"},
        hoverinfo="skip",
    )
    fig.update_layout(
        title=title,
        height=460,
        xaxis_title=_title("step (16 pairs each)"),
        yaxis_title="cross-entropy (nats)",
        margin_t=60,
        legend=_BELOW,
    )
    return fig
