"""Figures about the ablation: what each change does, and likelihood against rank correlation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.experiments.ablation_summary import Effect
from bertflow_lite.figures.plots import PALETTE

__all__ = ["effect_dots", "likelihood_scatter"]

# Color and symbol of each start: told apart without color, too.
_STARTS = {
    "paper": ("blue", "circle"),
    "released-code": ("orange", "diamond"),
    "reference": ("gray", "square"),
}
_NAMES = {
    "paper": "the paper's flow, changed",
    "released-code": "the released code's, changed",
    "reference": "no flow",
}
# Below the axis title, as in the figures about pairs.
_BELOW = 75


def effect_dots(effects: Mapping[str, Sequence[Effect]], title: str = "") -> go.Figure:
    """Effect of each change, with its standard deviation over seeds; a button for each model.

    Parameters
    ----------
    effects : mapping of str to sequence of Effect
        Label of the button -> from `summarize`.  What diverged has no dot.
    title : str, default ""
        Title of the figure.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.

    Raises
    ------
    ValueError
        If there are no effects.
    """
    _check(effects)
    fig = go.Figure()
    for label, mine in effects.items():
        for start, (color, symbol) in _STARTS.items():
            dots = [
                effect
                for effect in mine
                if effect.start == start and effect.part != "start" and effect.effect is not None
            ]
            fig.add_scatter(
                x=[round(effect.effect or 0.0, 2) for effect in dots],
                y=[_row(effect) for effect in dots],
                error_x={
                    "type": "data",
                    "array": [round(effect.effect_sd or 0.0, 2) for effect in dots],
                    "thickness": 1.5,
                    "width": 3,
                },
                customdata=[[round(effect.score or 0.0, 2)] for effect in dots],
                mode="markers",
                name=_NAMES[start],
                visible=label == next(iter(effects)),
                marker={"color": PALETTE[color], "symbol": symbol, "size": 9},
                hovertemplate="%{y}: %{x:+.2f} ± %{error_x.array:.2f}, to "
                "%{customdata[0]:.2f}<extra></extra>",
            )
    rows = {
        label: list(dict.fromkeys(row for trace in _of(fig, k) for row in trace.y))[::-1]
        for k, label in enumerate(effects)
    }
    height = 200 + 19 * max(map(len, rows.values()))
    fig.add_vline(x=0, line={"color": PALETTE["gray"], "width": 1})
    axes = [
        {"yaxis.categoryarray": names, "yaxis.range": [-0.7, len(names) - 0.3]}
        for names in rows.values()
    ]
    fig.update_layout(
        title={"text": title, "xref": "container", "x": 0.02},
        xaxis_title="effect in points (± sd)",
        height=height,
        margin_t=110 if title else 70,
        legend={"y": -_BELOW / (height - 155), "yanchor": "top"},
        updatemenus=_model_buttons(list(effects), len(_STARTS), axes),
    )
    first = next(iter(rows.values()))
    fig.update_yaxes(
        categoryorder="array",
        categoryarray=first,
        range=[-0.7, len(first) - 0.3],
        tickfont={"size": 11},
    )
    return fig


def likelihood_scatter(effects: Mapping[str, Sequence[Effect]], title: str = "") -> go.Figure:
    """Bits per dimension against Spearman, a dot for each flow; a button for each model.

    Parameters
    ----------
    effects : mapping of str to sequence of Effect
        Label of the button -> from `summarize`; what has no density is left out.
    title : str, default ""
        Title of the figure.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.

    Raises
    ------
    ValueError
        If there are no effects.
    """
    _check(effects)
    fig = go.Figure()
    shown = [start for start in _STARTS if start != "reference"]
    for label, mine in effects.items():
        for start in shown:
            color, symbol = _STARTS[start]
            dots = [
                effect
                for effect in mine
                if effect.start == start and effect.bits is not None and effect.score is not None
            ]
            fig.add_scatter(
                x=[round(effect.bits or 0.0, 3) for effect in dots],
                y=[round(effect.score or 0.0, 2) for effect in dots],
                text=[_row(effect) for effect in dots],
                mode="markers",
                name=_NAMES[start],
                visible=label == next(iter(effects)),
                marker={"color": PALETTE[color], "symbol": symbol, "size": 10, "opacity": 0.8},
                hovertemplate="%{text}<br>%{x:.2f} bits, Spearman %{y:.2f}<extra></extra>",
            )
    fig.update_layout(
        title=title,
        height=480,
        xaxis_title="bits per dimension (left: more likely)",
        yaxis_title="Spearman x 100, validation",
        margin_t=110 if title else 70,
        legend={"y": -0.24, "yanchor": "top"},
        updatemenus=_model_buttons(list(effects), len(shown), [{}] * len(effects)),
    )
    return fig


def _check(effects: Mapping[str, Sequence[Effect]]) -> None:
    if not effects or not all(effects.values()):
        raise ValueError("there are no effects to draw: give those of one model at least.")


def _of(fig: go.Figure, number: int) -> tuple[Any, ...]:
    """Give the traces of one button of `effect_dots`."""
    return fig.data[number * len(_STARTS) : (number + 1) * len(_STARTS)]


def _row(effect: Effect) -> str:
    """Name the line of a change; the two starts share it where the change is the same."""
    if effect.part == "start":
        return "as it is"
    same = effect.start == "reference" and effect.change.startswith(effect.part)
    # A phone has room for one line of 40 characters beside the dots.
    separator = ":<br>" if len(effect.part + effect.change) > 38 else ": "
    return effect.change if same else f"{effect.part}{separator}{effect.change}"


def _model_buttons(
    labels: list[str], size: int, layouts: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One button a label, which shows that label's ``size`` traces and changes the layout."""
    if len(labels) < 2:
        return []
    buttons = [
        {
            "label": label,
            "method": "update",
            "args": [
                {"visible": [k // size == number for k in range(size * len(labels))]},
                layouts[number],
            ],
        }
        for number, label in enumerate(labels)
    ]
    return [
        {
            "type": "buttons",
            "direction": "right",
            "buttons": buttons,
            "x": 0,
            "xanchor": "left",
            "y": 1.01,
            "yanchor": "bottom",
            "showactive": True,
            "bgcolor": "rgba(128,128,128,0.15)",
            "font": {"size": 12},
        }
    ]
