"""Figures of the controls: what an encoder that has learned nothing scores, and why.

Each function takes the rows of stored runs (``data/results/controls``) and gives a Plotly figure
whose buttons work in a page without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bertflow_lite.figures.control_parts import (
    BELOW,
    METHOD_NAMES,
    Rows,
    grouped_bars,
    make_menu,
    name_set,
)
from bertflow_lite.plots import PALETTE

__all__ = [
    "block_lines",
    "lead_dots",
    "rarity_dots",
]


def lead_dots(
    runs: Mapping[str, Rows],
    *,
    methods: Sequence[str] = ("sn", "whiten", "whiten:128", "flow"),
    control: str = "random weights",
    title: str = "",
) -> go.Figure:
    """Scores by set: a model and one that has learned nothing, raw and calibrated.

    Parameters
    ----------
    runs : mapping of str to rows of `run_pretraining`
        Rows of one layer choice, by the name of the model and layer; a button for each model and
        method.
    methods : sequence of str
        Calibrators to choose from; those that a run lacks are left out.
    control : str, default "random weights"
        What to call the control.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Dots with 95 % intervals; hover shows the lead of the model over the control.
    """
    views: dict[str, dict[str, list[Any]]] = {}
    for model, rows in runs.items():
        for method in methods:
            if any(row["calibrator"] == method and "lead" in row for row in rows):
                views[f"{model}: {METHOD_NAMES[method]}"] = _lead_view(rows, method)
    if not views:
        raise ValueError("No row has a lead over a control: give rows of run_pretraining.")
    first = next(iter(views.values()))
    traces = (
        (f"{control}, raw", "circle-open", "gray"),
        (f"{control}, calibrated", "circle", "gray"),
        ("model, raw", "diamond-open", "blue"),
        ("model, calibrated", "diamond", "blue"),
    )
    fig = go.Figure()
    for k, (name, symbol, color) in enumerate(traces):
        fig.add_scatter(
            x=first["x"][k],
            y=first["y"][k],
            customdata=first["text"][k],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": first["up"][k],
                "arrayminus": first["down"][k],
                "thickness": 1,
                "width": 3,
            },
            mode="markers",
            name=name,
            marker={"symbol": symbol, "color": PALETTE[color], "size": 10},
            hovertemplate="%{y}: %{x:.1f}%{customdata}<extra>" + name + "</extra>",
        )
    buttons = [
        {
            "label": label,
            "method": "restyle",
            "args": [
                {
                    "x": view["x"],
                    "y": view["y"],
                    "customdata": view["text"],
                    "error_x.array": view["up"],
                    "error_x.arrayminus": view["down"],
                }
            ],
        }
        for label, view in views.items()
    ]
    fig.update_layout(
        title=title,
        xaxis_title="Spearman x 100",
        height=560,
        margin_t=110,
        legend=BELOW,
        updatemenus=make_menu(buttons),
    )
    fig.update_yaxes(categoryorder="array", categoryarray=first["y"][0][::-1])
    return fig


def _lead_view(rows: Rows, method: str) -> dict[str, list[Any]]:
    by = {(row["data"], row["calibrator"]): row for row in rows}
    sets = [name for name, calibrator in by if calibrator == method]
    parts = [("control", "none"), ("control", method), ("model", "none"), ("model", method)]
    view: dict[str, list[Any]] = {key: [] for key in ("x", "y", "up", "down", "text")}
    for who, calibrator in parts:
        values = [by[name, calibrator][who] for name in sets]
        view["x"].append([value[0] for value in values])
        view["y"].append([name_set(name) for name in sets])
        view["up"].append([round(high - estimate, 2) for estimate, _, high in values])
        view["down"].append([round(estimate - low, 2) for estimate, low, _ in values])
        leads = [by[name, calibrator]["lead"] for name in sets]
        view["text"].append(
            [
                f"<br>lead over the control {lead:+.1f} [{low:+.1f}, {high:+.1f}]"
                if who == "model"
                else ""
                for lead, low, high in leads
            ]
        )
    return view


def rarity_dots(
    runs: Mapping[str, Rows],
    *,
    methods: Sequence[str] = ("none", "sn", "whiten:128", "flow"),
    by: str = "tfidf",
    title: str = "",
) -> go.Figure:
    """How alike a model's similarities are to TF-IDF's, and what is left without it; by set.

    Parameters
    ----------
    runs : mapping of str to rows of `run_rarity`
        Rows of one layer choice, by the name of the model and layer.
    methods : sequence of str
        Calibrators; one color each.
    by : {"tfidf", "count"}, default "tfidf"
        Which simple similarity explains.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Bars by model; buttons change what is shown: agreement with people, with TF-IDF, and with
        people given TF-IDF, each the mean over the sets.
    """
    measures = {
        "agreement with people": "gold",
        f"agreement with {METHOD_NAMES[by]}": "control",
        f"with people, given {METHOD_NAMES[by]}": "gold_given_control",
        f"{METHOD_NAMES[by]} with people, given the model": "control_gold_given",
    }
    heights: dict[str, list[list[float | None]]] = {}
    for label, key in measures.items():
        heights[label] = []
        for method in methods:
            values: list[float | None] = []
            for rows in runs.values():
                found = [r[key] for r in rows if r["calibrator"] == method and r["by"] == by]
                values.append(round(float(np.mean(found)), 2) if found else None)
            heights[label].append(values)
    fig = grouped_bars(list(runs), methods, next(iter(heights.values())))
    buttons = [
        {"label": label, "method": "restyle", "args": [{"y": values}]}
        for label, values in heights.items()
    ]
    fig.update_layout(
        title=title,
        yaxis_title="rank correlation x 100, mean of sets",
        updatemenus=make_menu(buttons),
    )
    return fig


def block_lines(
    rows: Rows,
    *,
    methods: Sequence[str] = ("none", "sn", "whiten", "flow"),
    aggregation: str = "all",
    title: str = "",
) -> go.Figure:
    """Score by number of blocks of a network with random weights; a button for each set.

    Parameters
    ----------
    rows : rows of `encoder_scores`
        Layers that are no index, such as ``"cls"``, are left out.
    methods : sequence of str
        Calibrators; one line each.
    aggregation : {"all", "wmean"}, default "all"
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    counted = [row for row in rows if row["layers"].isdigit()]
    if not counted:
        raise ValueError("No row has a hidden state's index as its layers.")
    views: dict[str, list[tuple[list[int], list[float], list[float]]]] = {}
    for name in dict.fromkeys(row["data"] for row in counted):
        views[name_set(name)] = []
        for method in methods:
            mine = [r for r in counted if (r["data"], r["calibrator"]) == (name, method)]
            mine.sort(key=lambda row: int(row["layers"]))
            means = [round(float(np.mean(row[aggregation])), 2) for row in mine]
            spread = [round(float(np.std(row[aggregation])), 2) for row in mine]
            views[name_set(name)].append(([int(r["layers"]) for r in mine], means, spread))
    fig = go.Figure()
    colors = ("gray", "orange", "green", "blue")
    first = next(iter(views.values()))
    for method, color, (x, y, spread) in zip(methods, colors, first, strict=False):
        label = METHOD_NAMES.get(method, method)
        fig.add_scatter(
            x=x,
            y=y,
            error_y={"type": "data", "array": spread, "thickness": 1},
            mode="lines+markers",
            name=label,
            line={"color": PALETTE[color]},
            hovertemplate="%{x} blocks: %{y:.1f}<extra>" + label + "</extra>",
        )
    buttons = [
        {
            "label": name,
            "method": "restyle",
            "args": [
                {
                    "x": [x for x, _, _ in lines],
                    "y": [y for _, y, _ in lines],
                    "error_y.array": [spread for _, _, spread in lines],
                }
            ],
        }
        for name, lines in views.items()
    ]
    fig.update_layout(
        title=title,
        xaxis_title="untrained blocks (0: embedding layer)",
        yaxis_title=f"Spearman x 100, {aggregation}",
        height=480,
        margin_t=110,
        legend=BELOW,
        updatemenus=make_menu(buttons),
    )
    return fig
