"""Figures about sentence pairs: cosine against gold score, and what is behind a cosine.

Each function takes plain arrays and gives a Plotly figure; buttons and sliders live inside the
figure, so that they work in a page without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.figures.plots import PALETTE, add_slider

__all__ = [
    "contribution_bars",
    "cosine_histograms",
    "layer_histograms",
    "loss_curve",
    "score_dots",
    "similarity_scatter",
    "spectrum_lines",
    "threshold_bars",
]

# At the bottom of the figure, since buttons and a legend of two rows do not fit side by side above
# it. However many rows the legend needs, Plotly then makes room for it by itself.
_BELOW = {"yref": "container", "y": 0, "yanchor": "bottom"}
_NARROW = 40  # characters of a title that a phone has room for
# The nine kinds of mini-sts in four groups: a reader can tell four colors and shapes apart.
KIND_GROUPS: dict[str, tuple[str, str, str]] = {
    "near-duplicate": ("same meaning", "blue", "circle"),
    "paraphrase": ("same meaning", "blue", "circle"),
    "partial": ("partly the same", "green", "diamond"),
    "number": ("same words, other meaning", "vermillion", "triangle-up"),
    "negation": ("same words, other meaning", "vermillion", "triangle-up"),
    "role-swap": ("same words, other meaning", "vermillion", "triangle-up"),
    "word-overlap": ("same words, other meaning", "vermillion", "triangle-up"),
    "same-topic": ("other meaning", "gray", "x"),
    "unrelated": ("other meaning", "gray", "x"),
}


def similarity_scatter(
    pairs: SentencePairs, similarities: Mapping[str, NDArray[np.float64]], title: str = ""
) -> go.Figure:
    """Cosine against gold score, one point a pair; a button for each set of similarities.

    Parameters
    ----------
    pairs : SentencePairs
        The pairs; where they have kinds, color and shape show the group of kinds.
    similarities : mapping of str to ndarray, each of shape (n_pairs,)
        Cosines by the name on the button; the first is shown at the start.
    title : str, default ""
        Title of the figure.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    kinds = pairs.kinds if pairs.kinds is not None else np.full(len(pairs), "")
    groups = [KIND_GROUPS.get(str(kind), ("pairs", "blue", "circle")) for kind in kinds]
    names = list(dict.fromkeys(sorted(groups, key=lambda g: list(PALETTE).index(g[1]))))
    rows = [np.flatnonzero([g == name for g in groups]) for name in names]
    # Gold scores are multiples of 0.2: a little sideways noise keeps points from hiding others.
    x = pairs.gold + np.random.default_rng(0).uniform(-0.06, 0.06, len(pairs))
    first = next(iter(similarities.values()))
    lowest = min(float(np.min(values)) for values in similarities.values())
    fig = go.Figure()
    for (label, color, symbol), chosen in zip(names, rows, strict=True):
        text = [
            f"{pairs.sentences1[i]}<br>{pairs.sentences2[i]}<br>gold {pairs.gold[i]:g}"
            + (f", {kinds[i]}" if kinds[i] else "")
            for i in chosen
        ]
        fig.add_scatter(
            x=np.round(x[chosen], 3),
            y=np.round(first[chosen], 4),
            mode="markers",
            name=label,
            text=text,
            hovertemplate="%{text}<br>cosine %{y:.3f}<extra></extra>",
            marker={"color": PALETTE[color], "symbol": symbol, "size": 7, "opacity": 0.75},
        )
    buttons: list[dict[str, Any]] = [
        {
            "label": label,
            "method": "update",
            "args": [{"y": [np.round(values[chosen], 4) for chosen in rows]}],
        }
        for label, values in similarities.items()
    ]
    fig.update_layout(
        title=title,
        height=540,
        xaxis_title=_title("gold score (0 unrelated, 5 the same)"),
        yaxis_title="cosine of the two vectors",
        # One scale for all buttons: that raw cosines use so little of it is the point.
        yaxis_range=[lowest - 0.05, 1.05],
        margin_t=100 if title else 70,
        updatemenus=_buttons(buttons) if len(buttons) > 1 else [],
        legend=_BELOW,
    )
    return fig


def cosine_histograms(
    groups: Mapping[str, Mapping[str, ArrayLike]], title: str = "", bins: int = 60
) -> go.Figure:
    """Histograms of cosines, overlaid; a button for each key of ``groups``.

    Parameters
    ----------
    groups : mapping of str to mapping of str to array
        Button label -> legend label -> cosines.  All buttons have the same legend labels.
    title : str, default ""
    bins : int, default 60
        Bins between -1 and 1.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    edges = np.linspace(-1, 1, bins + 1)
    centers = np.round((edges[:-1] + edges[1:]) / 2, 4)

    def shares(values: ArrayLike) -> NDArray[np.float64]:
        count, _ = np.histogram(np.clip(np.asarray(values), -1, 1), edges)
        return np.round(100 * count / count.sum(), 3)

    fig = go.Figure()
    colors = ["gray", "blue", "orange", "green"]
    for color, (label, values) in zip(colors, next(iter(groups.values())).items(), strict=False):
        fig.add_bar(
            x=centers,
            y=shares(values),
            name=label,
            marker_color=PALETTE[color],
            opacity=0.7,
            hovertemplate="cosine %{x:.2f}: %{y:.1f} % of " + label + "<extra></extra>",
        )
    buttons: list[dict[str, Any]] = [
        {"label": label, "method": "update", "args": [{"y": [shares(v) for v in by.values()]}]}
        for label, by in groups.items()
    ]
    fig.update_layout(
        title=title,
        barmode="overlay",
        bargap=0,
        xaxis_title=_title("cosine"),
        yaxis_title="share of pairs (%)",
        height=460,
        margin_t=100,
        legend=_BELOW,
        updatemenus=_buttons(buttons) if len(buttons) > 1 else [],
    )
    return fig


def contribution_bars(
    shares: Mapping[str, NDArray[np.float64]], top: int = 12, title: str = ""
) -> go.Figure:
    """How much each dimension gives to the mean cosine of random pairs; strongest first.

    Parameters
    ----------
    shares : mapping of str to ndarray, shape (dim,)
        Button label -> share of each dimension, in percent of the mean cosine.
    top : int, default 12
        Number of dimensions shown; the rest is one bar.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """

    def bars(values: NDArray[np.float64]) -> tuple[list[str], NDArray[np.float64]]:
        order = np.argsort(-values)
        rest = values[order[top:]].sum()
        labels = [f"dim {i}" for i in order[:top]] + [f"other {len(values) - top}"]
        return labels, np.round(np.append(values[order[:top]], rest), 2)

    labels, heights = bars(next(iter(shares.values())))
    fig = go.Figure(
        go.Bar(
            x=labels,
            y=heights,
            marker_color=[PALETTE["blue"]] * top + [PALETTE["gray"]],
            hovertemplate="%{x}: %{y:.1f} %<extra></extra>",
        )
    )
    buttons: list[dict[str, Any]] = [
        {"label": label, "method": "update", "args": [{"x": [bars(v)[0]], "y": [bars(v)[1]]}]}
        for label, v in shares.items()
    ]
    fig.update_layout(
        title=title,
        xaxis_title="dimension, strongest first",
        yaxis_title="share of the mean cosine (%)",
        margin_t=110,
        updatemenus=_buttons(buttons) if len(buttons) > 1 else [],
    )
    return fig


def score_dots(
    scores: Mapping[str, Mapping[str, float]], title: str = "", axis: str = "Spearman x 100"
) -> go.Figure:
    """Scores by data set (one line each), one marker for each method.

    Parameters
    ----------
    scores : mapping of str to mapping of str to float
        Method -> data set -> score.
    title, axis : str
        Title of the figure and of the score axis; name the aggregation there.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    symbols = ["circle-open", "circle", "diamond", "square", "triangle-up", "x"]
    colors = ["gray", "blue", "orange", "green", "vermillion", "purple"]
    fig = go.Figure()
    sets = list(next(iter(scores.values())))
    for name in sets:  # a thin line joins the methods on one set
        values = [by[name] for by in scores.values() if name in by]
        fig.add_scatter(
            x=[min(values), max(values)],
            y=[name, name],
            mode="lines",
            line={"color": "rgba(128,128,128,0.4)", "width": 2},
            showlegend=False,
            hoverinfo="skip",
        )
    for k, (method, by) in enumerate(scores.items()):
        fig.add_scatter(
            x=[round(value, 2) for value in by.values()],
            y=list(by),
            mode="markers",
            name=method,
            marker={"symbol": symbols[k % 6], "color": PALETTE[colors[k % 6]], "size": 11},
            hovertemplate="%{y}: %{x:.2f}<extra>" + method + "</extra>",
        )
    lines = wrap(title, _NARROW)
    fig.update_layout(
        # Plotly anchors the last line, so each line above it needs its own room.
        title={"text": "<br>".join(lines), "y": 0.98 - 0.04 * max(len(lines) - 1, 0)},
        xaxis_title=_title(axis),
        yaxis_title="",
        height=500,
        margin_t=60,
        legend=_BELOW,
    )
    fig.update_yaxes(categoryorder="array", categoryarray=sets[::-1])
    return fig


def loss_curve(loss: Sequence[float], baselines: Mapping[str, float], title: str = "") -> go.Figure:
    """Training loss by step, with horizontal lines to compare it with.

    Parameters
    ----------
    loss : sequence of float
        Bits per dimension at each step.
    baselines : mapping of str to float
        Name -> bits per dimension.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure(
        go.Scatter(
            x=list(range(len(loss))),
            y=np.round(loss, 4),
            mode="lines",
            name="flow, batch by batch",
            line={"color": PALETTE["blue"]},
            hovertemplate="step %{x}: %{y:.3f} bits<extra></extra>",
        )
    )
    for (label, value), dash, color in zip(
        baselines.items(), ["dash", "dot"], ["orange", "green"], strict=False
    ):
        fig.add_scatter(
            x=[0, len(loss) - 1],
            y=[round(value, 4)] * 2,
            mode="lines",
            name=label,
            line={"dash": dash, "color": PALETTE[color]},
            hovertemplate=f"{label}: %{{y:.3f}} bits<extra></extra>",
        )
    fig.update_layout(
        title=title,
        xaxis_title=_title("training step"),
        yaxis_title="bits per dimension",
        margin_t=60,
        legend=_BELOW,
    )
    return fig


def spectrum_lines(spectra: Mapping[str, NDArray[np.float64]], title: str = "") -> go.Figure:
    """Variance along the principal directions, each spectrum as a share of its total.

    Parameters
    ----------
    spectra : mapping of str to ndarray, shape (dim,)
        Name -> variances, largest first.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    for (label, values), color, dash in zip(
        spectra.items(),
        ["gray", "orange", "green", "blue"],
        ["solid", "dash", "dot", "solid"],
        strict=False,
    ):
        share = 100 * values / values.sum()
        fig.add_scatter(
            x=list(range(1, len(share) + 1)),
            y=[float(f"{value:.4g}") for value in share],
            mode="lines",
            name=label,
            line={"color": PALETTE[color], "dash": dash},
            hovertemplate="direction %{x}: %{y:.3g} %<extra>" + label + "</extra>",
        )
    fig.update_layout(
        title=title,
        xaxis_title=_title("principal direction, strongest first"),
        yaxis_title="share of the variance (%)",
        height=460,
        margin_t=60,
        legend=_BELOW,
    )
    fig.update_yaxes(type="log")
    return fig


def _title(text: str) -> dict[str, Any]:
    return {"text": text, "standoff": 8}  # close to the axis, away from the legend


def _buttons(buttons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "type": "buttons",
            "direction": "right",
            "buttons": buttons,
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "showactive": True,
            "bgcolor": "rgba(128,128,128,0.15)",
            "font": {"size": 12},  # four buttons fit a phone
        }
    ]


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
