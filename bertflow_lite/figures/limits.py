"""Figures about the limits of calibration: what a threshold on cosines does before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from bertflow_lite.plots import PALETTE, add_slider

__all__ = ["threshold_bars"]


def threshold_bars(
    spaces: Mapping[str, ArrayLike],
    same: ArrayLike,
    thresholds: Sequence[float],
    *,
    active: int = 0,
    title: str = "",
) -> go.Figure:
    """Share of the pairs above a threshold of the cosine, in each space; a slider moves it.

    Parameters
    ----------
    spaces : mapping of str to array-like, shape (n_pairs,)
        Cosines of the same pairs, by the name of the space.
    same : array-like of bool, shape (n_pairs,)
        Which pairs mean the same.
    thresholds : sequence of float
        Positions of the slider.
    active : int, default 0
        Where it stands at first.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Two bars a space, in percent: of the pairs that mean the same, and of the others.

    Raises
    ------
    ValueError
        If one of the two groups of pairs is empty, or the lengths differ.

    Examples
    --------
    >>> fig = threshold_bars({"raw": [0.9, 0.2, 0.8]}, [True, False, False], [0.5, 0.85])
    >>> [list(trace.y) for trace in fig.data]
    [[100.0], [50.0], [100.0], [0.0]]
    """
    alike = np.asarray(same, dtype=bool)
    cosines = {name: np.asarray(values, dtype=float) for name, values in spaces.items()}
    if not 0 < alike.sum() < alike.size:
        raise ValueError("There must be pairs that mean the same and pairs that do not.")
    if wrong := [name for name, values in cosines.items() if values.shape != alike.shape]:
        raise ValueError(f"{wrong[0]!r} needs {alike.size} cosines, one for each pair.")
    groups = (
        ("pairs that mean the same", alike, "blue"),
        ("other pairs", ~alike, "orange"),
    )
    fig = go.Figure()
    for threshold in thresholds:
        for label, rows, color in groups:
            shares = [
                100 * float((values[rows] >= threshold).mean()) for values in cosines.values()
            ]
            fig.add_bar(
                x=list(cosines),
                y=[round(share, 1) for share in shares],
                name=label,
                marker_color=PALETTE[color],
                hovertemplate="%{x}: %{y:.0f} % above the threshold<extra>" + label + "</extra>",
            )
    fig.update_layout(
        title=title,
        barmode="group",
        yaxis={"title": "above the threshold, percent", "range": [0, 100]},
        height=460,
    )
    labels = [f"{threshold:.2f}" for threshold in thresholds]
    return add_slider(fig, labels, prefix="threshold: ", active=active)
