"""Figures about the presets: their test scores, and the score on the way through a flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bertflow_lite.plots import PALETTE

__all__ = ["mean_test_scores", "preset_dots", "score_lines"]

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
