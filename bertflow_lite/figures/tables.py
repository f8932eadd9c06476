"""The paper's Figure 1 on real embeddings: the map from the embedding space to the latent.

A stored run keeps no sentences: hover text shows them where the set is on this machine.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bertflow_lite.datasets import load_sts
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.plots import PALETTE

__all__ = ["choose", "draw_figure1", "load_text"]

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
