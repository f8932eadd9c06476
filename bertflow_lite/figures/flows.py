"""Figures about normalizing flows in one and two dimensions.

Each function takes plain arrays and gives a Plotly figure whose slider or buttons work in a page
without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray
from plotly.subplots import make_subplots

from bertflow_lite.plots import PALETTE, add_slider

__all__ = ["change_of_variables", "cloud_slider", "density_maps", "shifted_band"]

_POINT_COLORS = (("blue", "circle"), ("orange", "diamond"))


def change_of_variables(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]], title: str = ""
) -> go.Figure:
    """Draw a map in one dimension and what it does to a density; a slider for the map.

    Parameters
    ----------
    curves : mapping of str to (z, u, density of z, density of u)
        Slider label -> four arrays of one length: latents in ascending order, their images under
        the map, and the two densities at these points.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = make_subplots(
        rows=1,
        cols=2,
        subplot_titles=("the map f from z to u", "the densities of z and u"),
        horizontal_spacing=0.12,
    )
    reach = max(float(np.max(np.abs(u))) for _, u, _, _ in curves.values())
    top = max(float(np.max(p)) for _, _, _, p in curves.values())
    for z, u, p_z, p_u in curves.values():
        z, u, p_z, p_u = (np.round(np.asarray(a, dtype=float), 3) for a in (z, u, p_z, p_u))
        fig.add_scatter(
            x=z, y=u, name="u = f(z)", line_color=PALETTE["green"], row=1, col=1,
            hovertemplate="z %{x:.2f} goes to u %{y:.2f}<extra></extra>",
        )  # fmt: skip
        fig.add_scatter(
            x=z, y=p_z, name="z, Gaussian", line={"color": PALETTE["gray"], "dash": "dash"},
            row=1, col=2, hovertemplate="density of z at %{x:.2f}: %{y:.3f}<extra></extra>",
        )  # fmt: skip
        fig.add_scatter(
            x=u, y=p_u, name="u", line_color=PALETTE["blue"], fill="tozeroy",
            fillcolor="rgba(0, 114, 178, 0.2)", row=1, col=2,
            hovertemplate="density of u at %{x:.2f}: %{y:.3f}<extra></extra>",
        )  # fmt: skip
    fig.update_xaxes(title="latent z", row=1, col=1)
    fig.update_yaxes(title="data u", range=[-1.05 * reach, 1.05 * reach], row=1, col=1)
    fig.update_xaxes(title="z or u", range=[-1.05 * reach, 1.05 * reach], row=1, col=2)
    fig.update_yaxes(title="density", range=[0, 1.08 * top], row=1, col=2)
    add_slider(fig, list(curves), prefix="strength a = ")
    fig.update_layout(title=title, height=470, margin_t=90, showlegend=False)
    return fig


def cloud_slider(
    frames: Mapping[str, ArrayLike],
    groups: Sequence[int] | NDArray[np.integer],
    names: Sequence[str] = ("upper moon", "lower moon"),
    *,
    prefix: str = "",
    title: str = "",
    reach: float | None = None,
    axes: tuple[str, str] = ("first dimension", "second dimension"),
) -> go.Figure:
    """Points of a plane in several states, one at each position of a slider.

    Parameters
    ----------
    frames : mapping of str to array, shape (n, 2)
        Slider label -> where the points are.
    groups : sequence of int, length n
        0 or 1: each group has its color and symbol.
    names : sequence of str
        The two groups' names in the legend.
    prefix, title : str
    reach : float, optional
        Both axes go from ``-reach`` to ``reach``; default: as far as the points.
    axes : tuple of str
        Axis titles.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    belongs = np.asarray(groups)
    points = {label: np.asarray(x, dtype=float) for label, x in frames.items()}
    limit = reach or 1.05 * max(float(np.abs(x).max()) for x in points.values())
    fig = go.Figure()
    for x in points.values():
        # What runs off the axes would only stretch the file.
        x = np.clip(np.round(x, 2), -3 * limit, 3 * limit)
        for group, (color, symbol) in enumerate(_POINT_COLORS):
            fig.add_scatter(
                x=x[belongs == group, 0],
                y=x[belongs == group, 1],
                mode="markers",
                name=names[group],
                marker={"color": PALETTE[color], "symbol": symbol, "size": 5, "opacity": 0.7},
                hoverinfo="skip",
            )
    add_slider(fig, list(points), prefix=prefix)
    fig.update_layout(
        title=title,
        height=560,
        xaxis={"title": axes[0], "range": [-limit, limit], "constrain": "domain"},
        yaxis={"title": axes[1], "range": [-limit, limit], "scaleanchor": "x"},
        margin_t=80,
    )
    return fig


def density_maps(
    maps: Mapping[str, ArrayLike], axis: ArrayLike, points: ArrayLike, title: str = ""
) -> go.Figure:
    """Log-density over a square as a heat map with data points on it; a button for each model.

    Parameters
    ----------
    maps : mapping of str to array, shape (k, k)
        Button label -> density (not its logarithm) at the grid points, rows along the second axis.
    axis : array, shape (k,)
        Grid positions, the same for both axes.
    points : array, shape (n, 2)
        Some data points.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    grid = np.round(np.asarray(axis, dtype=float), 3)
    data = np.round(np.asarray(points, dtype=float), 2)
    layers = {label: np.round(np.asarray(p, dtype=float), 3) for label, p in maps.items()}
    top = max(float(p.max()) for p in layers.values())
    fig = go.Figure()
    fig.add_heatmap(
        x=grid,
        y=grid,
        z=next(iter(layers.values())),
        zmin=0,
        zmax=top,
        colorscale="Cividis",
        colorbar={"title": "density", "thickness": 12},
        hovertemplate="density %{z:.2f}<extra></extra>",
    )
    fig.add_scatter(
        x=data[:, 0],
        y=data[:, 1],
        mode="markers",
        marker={"color": "white", "size": 3, "opacity": 0.6, "line_width": 0},
        hoverinfo="skip",
        showlegend=False,
    )
    buttons: list[dict[str, Any]] = [
        {"label": label, "method": "restyle", "args": [{"z": [p]}, [0]]}
        for label, p in layers.items()
    ]
    fig.update_layout(
        title=title,
        height=540,
        xaxis={"title": "first dimension", "constrain": "domain"},
        yaxis={"title": "second dimension", "scaleanchor": "x"},
        updatemenus=[
            {
                "type": "buttons",
                "direction": "right",
                "buttons": buttons,
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "showactive": True,
                "bgcolor": "rgba(128, 128, 128, 0.2)",
            }
        ],
        margin_t=110,
    )
    return fig


def shifted_band(
    x: ArrayLike, shifts: Mapping[str, ArrayLike], sample: ArrayLike, title: str = ""
) -> go.Figure:
    """Draw what one additive coupling does in the plane: its shift as a curve, before and after.

    Parameters
    ----------
    x : array, shape (k,)
        Values of the kept dimension.
    shifts : mapping of str to array, shape (k,)
        Slider label -> the shift g(x).
    sample : array, shape (n, 2)
        Points, first the kept dimension.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    kept, points = np.asarray(x, dtype=float), np.asarray(sample, dtype=float)
    limit = 1.05 * float(np.abs(points).max()) + max(
        float(np.abs(np.asarray(g)).max()) for g in shifts.values()
    )
    fig = go.Figure()
    for values in shifts.values():
        g = np.asarray(values, dtype=float)
        moved = points[:, 1] + np.interp(points[:, 0], kept, g)
        fig.add_scatter(
            x=np.round(points[:, 0], 2), y=np.round(points[:, 1], 2), mode="markers",
            name="before", marker={"color": PALETTE["gray"], "size": 4, "opacity": 0.4},
            hoverinfo="skip",
        )  # fmt: skip
        fig.add_scatter(
            x=np.round(points[:, 0], 2), y=np.round(moved, 2), mode="markers", name="after",
            marker={"color": PALETTE["blue"], "size": 4, "symbol": "diamond", "opacity": 0.7},
            hoverinfo="skip",
        )  # fmt: skip
        fig.add_scatter(
            x=np.round(kept, 2), y=np.round(g, 3), mode="lines", name="shift g(u1)",
            line={"color": PALETTE["vermillion"], "width": 3},
            hovertemplate="at u1 = %{x:.1f}, u2 moves by %{y:.2f}<extra></extra>",
        )  # fmt: skip
    add_slider(fig, list(shifts), prefix="strength = ")
    fig.update_layout(
        title=title,
        height=540,
        xaxis={"title": "u1, kept", "constrain": "domain"},
        yaxis={"title": "u2, shifted", "range": [-limit, limit]},
        margin_t=80,
    )
    return fig
