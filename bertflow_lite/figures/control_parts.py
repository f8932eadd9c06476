"""What the figures of the controls share: names of sets and methods, menus, grouped bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.plots import PALETTE

__all__ = ["BELOW", "METHOD_NAMES", "SET_NAMES", "Rows", "grouped_bars", "make_menu", "name_set"]

Rows = Sequence[Mapping[str, Any]]

SET_NAMES = {"stsb": "STS-B", "sick-r": "SICK-R", "mini-sts": "mini-sts"}
METHOD_NAMES = {
    "none": "raw",
    "sn": "standardized",
    "natsv:1": "top direction removed",
    "whiten": "whitened",
    "whiten:128": "whitened, 128 directions",
    "flow": "flow",
    "tfidf": "TF-IDF",
    "count": "bag of words",
}
BELOW = {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.25, "yanchor": "top"}


def grouped_bars(
    groups: list[str], methods: Sequence[str], heights: list[list[float | None]]
) -> go.Figure:
    """Draw bars: a group for each of ``groups``, a color for each method."""
    fig = go.Figure()
    colors = ("gray", "orange", "green", "blue", "vermillion", "purple")
    for method, color, values in zip(methods, colors, heights, strict=False):
        label = METHOD_NAMES.get(method, method)
        fig.add_bar(
            x=groups,
            y=values,
            name=label,
            marker_color=PALETTE[color],
            hovertemplate="%{x}: %{y:.1f}<extra>" + label + "</extra>",
        )
    fig.update_layout(barmode="group", height=500, margin_t=110, legend=BELOW)
    return fig


def make_menu(buttons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make a row of buttons where they fit a phone, else a list that folds out."""
    if len(buttons) < 2:
        return []
    few = len(buttons) <= 4 and sum(len(button["label"]) for button in buttons) < 60
    return [
        {
            "type": "buttons" if few else "dropdown",
            "direction": "right" if few else "down",
            "buttons": buttons,
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "showactive": True,
            "bgcolor": "rgba(128,128,128,0.15)",
            "font": {"size": 12},
        }
    ]


def name_set(name: str) -> str:
    """Write a set's name as the paper does."""
    return SET_NAMES.get(name, name.upper())
