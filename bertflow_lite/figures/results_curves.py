"""Figures over stored runs: a calibrator's one setting, tuned on validation; losses of training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.results import _BELOW, _menu, _title
from bertflow_lite.plots import PALETTE

__all__ = ["nli_losses", "tuning_curves"]

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
