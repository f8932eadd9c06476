"""Figures about sentence pairs: cosine against gold score, and what is behind a cosine.

Each function takes plain arrays and gives a Plotly figure; buttons and sliders live inside the
figure, so that they work in a page without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.figures.drawing import add_bars, add_histograms, draw, lay_out, shares_of
from bertflow_lite.figures.plots import (
    INK,
    PALETTE,
    Look,
    add_slider,
    looks_of,
    make_button,
    switch_views,
)

_COLORS = [*PALETTE.values()]
SAME = Look("same meaning", "", PALETTE["blue"], "circle")
_PARTLY = Look("partly the same", "", PALETTE["green"], "diamond")
_TRICK = Look("same words, other meaning", "", PALETTE["vermillion"], "triangle-up")
OTHER = Look("other meaning", "", PALETTE["gray"], "x")
KIND_GROUPS = {
    **dict.fromkeys(("near-duplicate", "paraphrase"), SAME),
    "partial": _PARTLY,
    **dict.fromkeys(("number", "negation", "role-swap", "word-overlap"), _TRICK),
    **dict.fromkeys(("same-topic", "unrelated"), OTHER),
    "plain": Look("plain pairs", "", PALETTE["orange"], "square"),
}
"""The nine kinds of mini-sts in four groups, and the plain half: a reader can tell five apart."""


def similarity_scatter(
    pairs: SentencePairs, similarities: Mapping[str, NDArray[np.float64]], title: str = ""
) -> go.Figure:
    """Cosine against gold score, one point a pair; a button for each set of similarities.

    ``pairs``: the pairs; where they have kinds, color and shape show the group of kinds.
    ``similarities``: cosines by the name on the button; the first is shown at the start.
    """
    kinds = pairs.kinds if pairs.kinds is not None else np.full(len(pairs), "")
    groups = [KIND_GROUPS.get(str(kind), replace(SAME, name="pairs")) for kind in kinds]
    looks = [*dict.fromkeys(sorted(groups, key=lambda look: _COLORS.index(look.color)))]
    rows = [np.flatnonzero([one == look for one in groups]) for look in looks]
    # Gold scores are multiples of 0.2: a little sideways noise keeps points from hiding others.
    x = pairs.gold + np.random.default_rng(0).uniform(-0.06, 0.06, len(pairs))
    y = {
        label: [np.round(values[chosen], 4) for chosen in rows]
        for label, values in similarities.items()
    }
    fig = go.Figure()
    for look, chosen in zip(looks, rows, strict=True):
        text = [
            f"{pairs.sentences1[i]}<br>{pairs.sentences2[i]}<br>gold {pairs.gold[i]:g}"
            + (f", {kinds[i]}" if kinds[i] else "")
            for i in chosen
        ]
        hover = "%{text}<br>cosine %{y:.3f}"
        x_of = np.round(x[chosen], 3)
        draw(fig, look, x_of, None, hover, size=7, opacity=0.75, text=text)
    # One scale for all buttons: that raw cosines use so little of it is the point.
    lowest = min(float(np.min(values)) for values in similarities.values())
    fig.update_yaxes(range=[lowest - 0.05, 1.05])
    menu = switch_views(fig, {label: {"y": heights} for label, heights in y.items()})
    across, up = "gold score (0 unrelated, 5 the same)", "cosine of the two vectors"
    # Room for axes and legend at once: where they push a margin, Plotly lays out all of it again.
    return lay_out(fig, title, across, up, height=540, menu=menu, margin_l=66, margin_b=100)


def cosine_histograms(groups: Mapping[str, Mapping[str, ArrayLike]], title: str = "") -> go.Figure:
    """Histograms of cosines, overlaid; a button for each key of ``groups``.

    ``groups``: button label -> legend label -> cosines. All buttons have the same legend labels.
    """
    bins = 60
    edges = np.linspace(-1, 1, bins + 1)
    fig = go.Figure()
    add_histograms(fig, next(iter(groups.values())), bins)
    menu = [
        make_button(label, {"y": [shares_of(values, edges) for values in by.values()]})
        for label, by in groups.items()
    ]
    return lay_out(fig, title, "cosine", "share of pairs (%)", height=460, menu=menu)


def contribution_bars(
    shares: Mapping[str, NDArray[np.float64]], top: int = 12, title: str = ""
) -> go.Figure:
    """How much each dimension gives to the mean cosine of random pairs; strongest first.

    ``shares``: button label -> share of each dimension, in percent of the mean cosine. ``top``:
    number of dimensions shown; the rest is one bar.
    """

    def bars(values: NDArray[np.float64]) -> tuple[list[str], NDArray[np.float64]]:
        order = np.argsort(-values)
        rest = values[order[top:]].sum()
        labels = [f"dim {i}" for i in order[:top]] + [f"other {len(values) - top}"]
        return labels, np.round(np.append(values[order[:top]], rest), 2)

    states = {label: bars(values) for label, values in shares.items()}
    fig = go.Figure()
    add_bars(fig, Look("", "", PALETTE["blue"]), None, None, "%{x}: %{y:.1f} %")
    fig.data[0].marker.color = [PALETTE["blue"]] * top + [PALETTE["gray"]]
    menu = switch_views(fig, {label: {"x": [x], "y": [y]} for label, (x, y) in states.items()})
    across, up = "dimension, strongest first", "share of the mean cosine (%)"
    return lay_out(fig, title, across, up, menu=menu)


def score_dots(
    scores: Mapping[str, Mapping[str, float]], title: str = "", axis: str = "Spearman x 100"
) -> go.Figure:
    """Scores by data set (one line each), one marker for each method.

    ``scores``: method -> data set -> score.
    """
    fig = go.Figure()
    sets = list(next(iter(scores.values())))
    joint = Look("", "", "rgba(128,128,128,0.4)")
    for name in sets:  # a thin line joins the methods on one set
        values = [by[name] for by in scores.values() if name in by]
        ends = [min(values), max(values)]
        draw(fig, joint, ends, [name, name], mode="lines", width=2, showlegend=False)
    for look, by in zip(looks_of(scores).values(), scores.values(), strict=True):
        x = [round(value, 2) for value in by.values()]
        draw(fig, look, x, list(by), "%{y}: %{x:.2f}", size=11)
    fig.update_yaxes(categoryorder="array", categoryarray=sets[::-1])
    return lay_out(fig, title, axis, height=480)


def loss_curve(loss: Sequence[float], baselines: Mapping[str, float], title: str = "") -> go.Figure:
    """Training loss by step, with horizontal lines to compare it with.

    ``loss``: bits per dimension at each step. ``baselines``: name -> bits per dimension.
    """
    looks = looks_of(["flow, batch by batch", *baselines])
    fig = go.Figure()
    (flow, *others), at = looks.values(), list(range(len(loss)))
    draw(fig, flow, at, np.round(loss, 4), "step %{x}: %{y:.3f} bits", "lines")
    for look, dash, value in zip(others, ("dash", "dot"), baselines.values(), strict=False):
        level = replace(look, dash=dash)
        draw(fig, level, [0, at[-1]], [round(value, 4)] * 2, "%{y:.3f} bits", "lines")
    return lay_out(fig, title, "training step", "bits per dimension")


def spectrum_lines(spectra: Mapping[str, NDArray[np.float64]], title: str = "") -> go.Figure:
    """Variance along the principal directions, each spectrum as a share of its total.

    ``spectra``: name -> variances, largest first.
    """
    fig = go.Figure()
    for look, values in zip(looks_of(spectra).values(), spectra.values(), strict=True):
        share = [float(f"{value:.4g}") for value in 100 * values / values.sum()]
        at = list(range(1, len(share) + 1))
        draw(fig, look, at, share, "direction %{x}: %{y:.3g} %", "lines")
    fig.update_yaxes(type="log")
    across, up = "principal direction, strongest first", "share of the variance (%)"
    return lay_out(fig, title, across, up, height=460)


def layer_histograms(
    groups: Mapping[str, Mapping[str, ArrayLike]], scores: Mapping[str, float], title: str = ""
) -> go.Figure:
    """Histograms of cosines, overlaid; a slider over hidden states, with their STS scores.

    ``groups``: hidden state -> legend label -> cosines. ``scores``: hidden state -> Spearman x 100,
    shown beside the slider.
    """
    fig = go.Figure()
    for by_label in groups.values():
        add_histograms(fig, by_label, 50, digits=2)
    labels = [f"{label} (score {scores[label]:.0f})" for label in groups]
    add_slider(fig, labels, prefix="hidden state ")
    # The label of every step would not fit below a phone's slider: the current one is enough.
    fig.layout.sliders[0].update(font={"color": "rgba(0, 0, 0, 0)"}, ticklen=4)
    fig.layout.sliders[0].currentvalue.font.color = INK
    highest = max(float(np.max(trace.y)) for trace in fig.data)
    fig.update_xaxes(range=[-1, 1])
    fig.update_yaxes(range=[0, 1.05 * highest])
    return lay_out(fig, title, "cosine", "share of the pairs, %", height=500)


def threshold_bars(
    spaces: Mapping[str, ArrayLike],
    same: ArrayLike,
    thresholds: Sequence[float],
    *,
    active: int = 0,
    title: str = "",
) -> go.Figure:
    """Share of the pairs above a threshold of the cosine, in each space; a slider moves it.

    ``spaces``: cosines of the same pairs, by the name of the space. ``same``: which pairs mean the
    same. ``thresholds``: positions of the slider. ``active``: where it stands at first.

    Two bars a space, in percent: of the pairs that mean the same, and of the others.

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
    groups = [
        (replace(SAME, name="pairs that mean the same"), alike),
        (replace(OTHER, name="other pairs"), ~alike),
    ]
    fig = go.Figure()
    for threshold in thresholds:
        for look, rows in groups:
            above = [100 * float((values[rows] >= threshold).mean()) for values in cosines.values()]
            y = [round(share, 1) for share in above]
            add_bars(fig, look, list(cosines), y, "%{x}: %{y:.0f} % above the threshold")
    labels = [f"{threshold:.2f}" for threshold in thresholds]
    add_slider(fig, labels, prefix="threshold: ", active=active)
    fig.update_yaxes(range=[0, 100])
    up = "above the threshold, percent"
    return lay_out(fig, title, y=up, height=460, barmode="group")
