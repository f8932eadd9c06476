"""Figures about normalizing flows in one and two dimensions.

Each function takes plain arrays and gives a Plotly figure whose slider or buttons work in a page
without a kernel.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray
from plotly.subplots import make_subplots

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.figures.plots import PALETTE, add_slider

__all__ = [
    "change_of_variables",
    "choose",
    "cloud_slider",
    "density_maps",
    "draw_figure1",
    "load_text",
    "shifted_band",
]

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


_CROSS = PALETTE["purple"]


def draw_figure1(results: Mapping[str, Any], *, layers: str = "") -> go.Figure:
    """Draw the map from the embedding space to the latent, a slider over the flow's steps.

    Parameters
    ----------
    results : mapping
        From `flow_map.run_figure1`.
    layers : str, default ""
        A layer choice of the run; empty: its first.

    Returns
    -------
    plotly.graph_objects.Figure
        One point a sentence; color and shape show whether its words are frequent (thirds of the
        sentences by mean log frequency). The cross is the origin; distances are in units of the
        points' root mean square distance from it.
    """
    states = choose(results["maps"], layers, "layers")
    pairs = load_text(results["set"], "all", results["settings"]["data"])
    frequency = np.array(results["log_frequency"])
    texts = np.array(
        [html.escape(pairs.sentences[row], quote=False) for row in results["row"]]
        if pairs is not None
        else [f"sentence {row}" for row in results["row"]]
    )
    third = np.searchsorted(np.quantile(frequency, [1 / 3, 2 / 3]), frequency)
    reach = 0.1 + max(np.abs([state["x"], state["y"]]).max() for state in states)

    def traces(state: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Coordinates of the three groups, and the text in the corner."""
        x, y = np.array(state["x"]), np.array(state["y"])
        note = f"mean cosine {state['mean_cosine']:.2f}"
        return [
            *({"type": "scatter", "x": x[third == k], "y": y[third == k]} for k in range(3)),
            {"type": "scatter", "x": [-reach], "y": [reach], "text": [note]},
        ]

    looks = [
        ("rare words", "vermillion", "triangle-up"),
        ("in between", "gray", "circle"),
        ("frequent words", "blue", "square"),
    ]
    start = traces(states[0])
    fig = go.Figure()
    for k, (name, color, symbol) in enumerate(looks):
        fig.add_scatter(
            x=start[k]["x"],
            y=start[k]["y"],
            text=texts[third == k],
            customdata=frequency[third == k],
            name=name,
            mode="markers",
            marker={"color": PALETTE[color], "symbol": symbol, "size": 6, "opacity": 0.75},
            hovertemplate="%{text}<br>mean log frequency %{customdata:.1f}<extra></extra>",
        )
    fig.add_scatter(
        **{key: value for key, value in start[3].items() if key != "type"},
        mode="text",
        textposition="bottom right",
        showlegend=False,
        hoverinfo="skip",
    )
    fig.add_scatter(
        x=[0],
        y=[0],
        name="origin",
        mode="markers",
        marker={"symbol": "cross-thin", "size": 16, "line": {"width": 3, "color": _CROSS}},
        hovertemplate="the origin<extra></extra>",
    )
    names = [_state_name(state["name"], k, len(states)) for k, state in enumerate(states)]
    fig.frames = [
        go.Frame(name=name, data=traces(state), traces=[0, 1, 2, 3])
        for name, state in zip(names, states, strict=True)
    ]
    move = {
        "mode": "immediate",
        "frame": {"duration": 700, "redraw": False},
        "transition": {"duration": 700, "easing": "cubic-in-out"},
    }
    axis = {"range": [-reach, reach], "zeroline": True}
    fig.update_xaxes(title_text="direction 1", **axis)
    fig.update_yaxes(title_text="direction 2", scaleanchor="x", constrain="domain", **axis)
    label = layers or next(iter(results["maps"]))
    fig.update_layout(
        title=f"From embeddings to the latent<br><sup>{results['set']}, layers {label}; "
        "1 = typical distance from the origin</sup>",
        height=640,
        margin_t=110,
        legend={"y": -0.55, "yanchor": "top"},
        updatemenus=[
            {
                "type": "buttons",
                "direction": "right",
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "showactive": False,
                "bgcolor": "rgba(128,128,128,0.15)",
                "font": {"size": 12},
                "buttons": [
                    {"label": text, "method": "animate", "args": [order, move]}
                    for text, order in (("forward", names), ("backward", names[::-1]))
                ],
            }
        ],
        sliders=[
            {
                "active": 0,
                "pad": {"t": 60},
                "currentvalue": {"prefix": "state: "},
                "bgcolor": "rgba(128,128,128,0.25)",
                "activebgcolor": PALETTE["blue"],
                "font": {"size": 12},
                "steps": [
                    {"label": name, "method": "animate", "args": [[name], move]} for name in names
                ],
            }
        ],
    )
    return fig


def choose(options: Mapping[str, Any], wanted: str, what: str) -> Any:
    """Give what a run has under a name, or its first entry.

    Parameters
    ----------
    options : mapping
        What there is, by name; not empty.
    wanted : str
        A name; ``""`` asks for the first.
    what : str
        What the names stand for, in an error.

    Returns
    -------
    object
        The chosen value.

    Raises
    ------
    ValueError
        If there is no such name.
    """
    name = wanted or next(iter(options))
    if name not in options:
        raise ValueError(f"{what} is {wanted!r}; the run has {', '.join(options)}.")
    return options[name]


def load_text(name: str, split: str, fingerprints: Mapping[str, str]) -> SentencePairs | None:
    """Load the pairs that a run was made on.

    Parameters
    ----------
    name, split : str
        The set.
    fingerprints : mapping of str to str
        What the run says of its data.

    Returns
    -------
    SentencePairs or None
        None where the set is not on this machine, or another version of it is.
    """
    try:
        pairs = load_sts(name, split)
    except FileNotFoundError:
        return None
    return pairs if pairs.fingerprint == fingerprints[name] else None


def _state_name(name: str, k: int, count: int) -> str:
    return "raw" if k == 0 else "latent" if k == count - 1 else name
