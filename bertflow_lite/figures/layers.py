"""Figures over a model's hidden states, one position of a slider for each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from bertflow_lite.plots import PALETTE, add_slider

__all__ = ["layer_histograms"]

_COLORS = ("gray", "blue", "orange", "green")


def layer_histograms(
    groups: Mapping[str, Mapping[str, ArrayLike]],
    scores: Mapping[str, float],
    title: str = "",
    bins: int = 50,
) -> go.Figure:
    """Histograms of cosines, overlaid; a slider over hidden states, with their STS scores.

    Parameters
    ----------
    groups : mapping of str to mapping of str to array
        Hidden state -> legend label -> cosines.
    scores : mapping of str to float
        Hidden state -> Spearman x 100, shown beside the slider.
    title : str, default ""
    bins : int, default 50
        Bins between -1 and 1.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    edges = np.linspace(-1, 1, bins + 1)
    centers = np.round((edges[:-1] + edges[1:]) / 2, 4)
    fig = go.Figure()
    highest = 0.0
    for by_label in groups.values():
        for color, (label, values) in zip(_COLORS, by_label.items(), strict=False):
            count, _ = np.histogram(np.clip(np.asarray(values), -1, 1), edges)
            share = np.round(100 * count / count.sum(), 2)
            highest = max(highest, float(share.max()))
            fig.add_bar(
                x=centers,
                y=share,
                name=label,
                marker_color=PALETTE[color],
                opacity=0.7,
                hovertemplate="cosine %{x:.2f}: %{y:.1f} % of " + label + "<extra></extra>",
            )
    labels = [f"{label} (score {scores[label]:.0f})" for label in groups]
    add_slider(fig, labels, prefix="hidden state ")
    # The label of every step would not fit below a phone's slider: the current one is enough.
    fig.update_layout(
        title=title,
        height=500,
        barmode="overlay",
        bargap=0,
        xaxis={"title": "cosine", "range": [-1, 1]},
        yaxis={"title": "share of the pairs, %", "range": [0, 1.05 * highest]},
    )
    fig.layout.sliders[0].update(font={"color": "rgba(0, 0, 0, 0)"}, ticklen=4)
    fig.layout.sliders[0].currentvalue.update(font={"color": "#7B7F86", "size": 14})
    return fig
