"""Figures about normalizing flows: in one and two dimensions, and from embeddings to the latent.

The functions take plain arrays, or the results of a stored run, and give Plotly figures whose
slider or buttons work in a page without a kernel.
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
from bertflow_lite.figures.drawing import add_film, draw, lay_out
from bertflow_lite.figures.plots import PALETTE, Look, add_slider, series


def change_of_variables(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]], title: str = ""
) -> go.Figure:
    """Draw a map in one dimension and what it does to a density; a slider for the map.

    ``curves``: slider label -> four arrays of one length: latents in ascending order, their images
    under the map, and the two densities at these points.
    """
    heads = ("the map f<br>from z to u", "the densities<br>of z and u")
    fig = make_subplots(rows=1, cols=2, subplot_titles=heads, horizontal_spacing=0.12)
    latent = Look("z, Gaussian", "", PALETTE["gray"], dash="dash")
    mapped, data = (Look(n, "", PALETTE[c]) for n, c in (("u = f(z)", "green"), ("u", "blue")))
    left, right = {"row": 1, "col": 1}, {"row": 1, "col": 2}
    reach, top = 0.0, 0.0
    for arrays in curves.values():
        z, u, p_z, p_u = (np.round(np.asarray(a, dtype=float), 3) for a in arrays)
        reach = max(reach, float(np.abs(np.asarray(arrays[1])).max()))
        top = max(top, float(np.max(arrays[3])))
        under: dict[str, Any] = {"fill": "tozeroy", "fillcolor": "rgba(0, 114, 178, 0.2)"}
        draw(fig, mapped, z, u, "z %{x:.2f} goes to u %{y:.2f}", "lines", **left)
        draw(fig, latent, z, p_z, "density of z at %{x:.2f}: %{y:.3f}", "lines", **right)
        draw(fig, data, u, p_u, "density of u at %{x:.2f}: %{y:.3f}", "lines", **under, **right)
    add_slider(fig, list(curves), prefix="strength a = ")
    lay_out(fig, title, height=470, showlegend=False, margin_t=90)
    ends = [-1.05 * reach, 1.05 * reach]
    fig.update_xaxes(title="latent z", **left)
    fig.update_yaxes(title="data u", range=ends, **left)
    fig.update_xaxes(title="z or u", range=ends, **right)
    return fig.update_yaxes(title="density", range=[0, 1.08 * top], **right)


def cloud_slider(
    frames: Mapping[str, ArrayLike],
    groups: Sequence[int] | NDArray[np.integer],
    *,
    prefix: str = "",
    title: str = "",
    reach: float | None = None,
) -> go.Figure:
    """Points of a plane in several states, one at each position of a slider.

    ``frames``: slider label -> where the points are. ``groups``: 0 for the upper moon, 1 for the
    lower one: each has its color and symbol. ``reach``: both axes go from ``-reach`` to ``reach``;
    default: as far as the points.
    """
    belongs = np.asarray(groups)
    points = {label: np.asarray(x, dtype=float) for label, x in frames.items()}
    limit = reach or 1.05 * max(float(np.abs(x).max()) for x in points.values())
    fig = go.Figure()
    for x in points.values():
        # What runs off the axes would only stretch the file.
        x = np.clip(np.round(x, 2), -3 * limit, 3 * limit)
        for group, name in enumerate(("upper moon", "lower moon")):
            across, up = x[belongs == group].T
            draw(fig, series(group, name), across, up, size=5, opacity=0.7)
    add_slider(fig, list(points), prefix=prefix)
    fig.update_xaxes(range=[-limit, limit], constrain="domain")
    fig.update_yaxes(range=[-limit, limit], scaleanchor="x")
    return lay_out(fig, title, "first dimension", "second dimension", height=560)


def density_maps(
    maps: Mapping[str, ArrayLike], axis: ArrayLike, points: ArrayLike, title: str = ""
) -> go.Figure:
    """Log-density over a square as a heat map with data points on it; a button for each model.

    ``maps``: button label -> density (not its logarithm) at the grid points, rows along the second
    axis. ``axis``: grid positions, the same for both axes. ``points``: some data points.
    """
    grid = np.round(np.asarray(axis, dtype=float), 3)
    data = np.round(np.asarray(points, dtype=float), 2)
    layers = {label: np.round(np.asarray(p, dtype=float), 3) for label, p in maps.items()}
    fig = go.Figure()
    fig.add_heatmap(
        x=grid,
        y=grid,
        z=next(iter(layers.values())),
        zmin=0,
        zmax=max(float(p.max()) for p in layers.values()),
        colorscale="Cividis",
        colorbar={"title": "density", "thickness": 12},
        hovertemplate="density %{z:.2f}<extra></extra>",
    )
    draw(fig, Look("", "", "white"), *data.T, size=3, opacity=0.6, showlegend=False)
    menu = [
        {"label": label, "method": "restyle", "args": [{"z": [p]}, [0]]}
        for label, p in layers.items()
    ]
    fig.update_xaxes(constrain="domain")
    fig.update_yaxes(scaleanchor="x")
    return lay_out(fig, title, "first dimension", "second dimension", height=540, menu=menu)


def shifted_band(
    x: ArrayLike, shifts: Mapping[str, ArrayLike], sample: ArrayLike, title: str = ""
) -> go.Figure:
    """Draw what one additive coupling does in the plane: its shift as a curve, before and after.

    ``x``: values of the kept dimension. ``shifts``: slider label -> the shift g(x). ``sample``:
    points, first the kept dimension.
    """
    kept, points = np.asarray(x, dtype=float), np.asarray(sample, dtype=float)
    curves = [np.asarray(values, dtype=float) for values in shifts.values()]
    limit = 1.05 * float(np.abs(points).max()) + max(float(np.abs(g).max()) for g in curves)
    before = Look("before", "", PALETTE["gray"])
    after = Look("after", "", PALETTE["blue"], "diamond")
    shift = Look("shift g(u1)", "", PALETTE["vermillion"])
    fig = go.Figure()
    across, up = points.T
    for g in curves:
        moved = up + np.interp(across, kept, g)
        draw(fig, before, np.round(across, 2), np.round(up, 2), size=4, opacity=0.4)
        draw(fig, after, np.round(across, 2), np.round(moved, 2), size=4, opacity=0.7)
        hover = "at u1 = %{x:.1f}, u2 moves by %{y:.2f}"
        draw(fig, shift, np.round(kept, 2), np.round(g, 3), hover, "lines", width=3)
    add_slider(fig, list(shifts), prefix="strength = ")
    fig.update_xaxes(constrain="domain")
    fig.update_yaxes(range=[-limit, limit])
    return lay_out(fig, title, "u1, kept", "u2, shifted", height=540)


def draw_figure1(results: Mapping[str, Any], *, layers: str = "") -> go.Figure:
    """Draw the map from the embedding space to the latent, a slider over the flow's steps.

    ``results``: from `figure1.run_figure1`. ``layers``: a layer choice of the run; empty: its
    first.

    One point a sentence; color and shape show whether its words are frequent (thirds of the
    sentences by mean log frequency). The cross is the origin; distances are in units of the points'
    root mean square distance from it.
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
        points = [{"x": x[third == k], "y": y[third == k]} for k in range(3)]
        return [*points, {"x": [-reach], "y": [reach], "text": [note]}]

    looks = (
        Look("rare words", "", PALETTE["vermillion"], "triangle-up"),
        Look("in between", "", PALETTE["gray"], "circle"),
        Look("frequent words", "", PALETTE["blue"], "square"),
    )
    *points, corner = traces(states[0])
    fig = go.Figure()
    for k, (look, at) in enumerate(zip(looks, points, strict=True)):
        of = {"text": texts[third == k], "customdata": frequency[third == k]}
        hover = "%{text}<br>mean log frequency %{customdata:.1f}"
        draw(fig, look, **at, hover=hover, size=6, opacity=0.75, **of)
    quiet = {"showlegend": False, "hoverinfo": "skip"}
    fig.add_scatter(**corner, mode="text", textposition="bottom right", **quiet)
    origin = Look("origin", "", PALETTE["purple"], "cross-thin")
    draw(fig, origin, [0], [0], "the origin", size=16)
    fig.data[-1].marker.line = {"width": 3, "color": origin.color}
    last = len(states) - 1
    names = ["raw", *(state["name"] for state in states[1:last]), "latent"]
    fig.frames = [
        go.Frame(name=name, data=[go.Scatter(one) for one in traces(state)], traces=[0, 1, 2, 3])
        for name, state in zip(names, states, strict=True)
    ]
    played = {"forward": names, "backward": names[::-1]}
    about = f"{results['set']}, layers {layers or next(iter(results['maps']))}"
    title = (
        f"From embeddings to the latent<br><sup>{about}; 1 = typical distance from the origin</sup>"
    )
    fig.update_xaxes(range=[-reach, reach], zeroline=True)
    fig.update_yaxes(range=[-reach, reach], zeroline=True, scaleanchor="x", constrain="domain")
    lay_out(fig, title, "direction 1", "direction 2", height=640, margin_t=115)
    return add_film(fig, names, played, prefix="state: ", duration=700)


def choose(options: Mapping[str, Any], wanted: str, what: str) -> Any:
    """Give what a run has under a name, or its first entry; `what` names it in an error."""
    name = wanted or next(iter(options))
    if name not in options:
        raise ValueError(f"{what} is {wanted!r}; the run has {', '.join(options)}.")
    return options[name]


def load_text(name: str, split: str, fingerprints: Mapping[str, str]) -> SentencePairs | None:
    """Load the pairs that a run was made on, by what the run says of its data.

    None where the set is not on this machine, or another version of it is.
    """
    try:
        pairs = load_sts(name, split)
    except FileNotFoundError:
        return None
    return pairs if pairs.fingerprint == fingerprints[name] else None
