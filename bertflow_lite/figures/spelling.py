"""Figures about spelling and meaning: all pairs of a set, and single pairs of sentences."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from bertflow_lite.experiments.spelling import NEAR
from bertflow_lite.figures.drawing import add_bars, draw, lay_out
from bertflow_lite.figures.flows import choose, load_text
from bertflow_lite.figures.plots import (
    PALETTE,
    Look,
    looks_of,
    make_button,
    make_slider,
    short_name,
)
from bertflow_lite.measures.similarity import Floats, as_values, rank_correlation

_LINE = 44  # characters of a sentence on a line that a phone shows whole
_GOLD = {"dash": "dot", "color": PALETTE["gray"]}


def pair_ranks(
    own: Sequence[tuple[str, str]], ranks: Mapping[str, ArrayLike], notes: Sequence[str] = ()
) -> go.Figure:
    """Show where each measure puts a pair of sentences among known pairs; a slider over the pairs.

    ``own``: the pairs. ``ranks``: measure (edit distance, a cosine, people) -> percent of the known
    pairs that it takes for less alike; NaN where the measure says nothing about a pair. ``notes``:
    for each pair, a word for the slider; default: its number.

    A line for each measure, from 0 to its rank.
    """
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in ranks.items()}
    labels = list(notes) or [str(k + 1) for k in range(len(own))]
    lengths = {len(own), len(labels), *(len(values) for values in columns.values())}
    if not own or not columns or len(lengths) > 1:
        raise ValueError(
            f"give at least one pair and one measure, and as many ranks and notes as pairs; there "
            f"are {len(own)} pairs, {len(labels)} notes and {len(columns)} measures."
        )
    names = list(columns)

    def bars(pair: int) -> list[float | None]:
        found = (float(values[pair]) for values in columns.values())
        return [round(rank, 1) if np.isfinite(rank) else None for rank in found]

    headings = ["<br>".join(line for text in pair for line in _wrap(text)) for pair in own]
    hover = "%{y}: more alike than %{x:.0f} % of the known pairs"
    fig = go.Figure()
    more = {"orientation": "h", "width": 0.6, "showlegend": False}
    add_bars(fig, Look("", "", PALETTE["blue"]), bars(0), names, hover, **more)
    fig.data[0].marker.color = [look.color for look in looks_of(names).values()]
    steps = [
        make_button(label, {"x": [bars(pair)]}, {"title.text": headings[pair]})
        for pair, label in enumerate(labels)
    ]
    longest = max(heading.count("<br>") for heading in headings) + 1
    fig.update_xaxes(range=[0, 102])
    fig.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    axis = "known pairs that are less alike (%)"
    lay_out(fig, headings[0], axis, height=240 + 36 * len(names) + 20 * longest)
    top = 30 + 20 * longest
    title = {"text": headings[0], "font": {"size": 14}}
    return fig.update_layout(title=title, margin_t=top, sliders=make_slider(steps, prefix="pair: "))


def _wrap(text: str) -> list[str]:
    return [html.escape(line, quote=False) for line in textwrap.wrap(text, _LINE)] or [""]


MOST_PAIRS = 1500
_TICKS = (0, 1, 2, 4, 8, 16, 32, 64)


def draw_figure2(
    results: Mapping[str, Any], *, data: str = "", layers: str = "", texts: bool = True
) -> go.Figure:
    """Draw Figure 2: similarity against edit distance, gold and each kind of cosine by button.

    ``results``: from `table6.run_figure2`. ``data``, ``layers``: a set and a layer choice of the
    run; empty: the first. ``texts``: show the sentences under the pointer, where the set is on this
    machine.
    """
    chosen = choose(results["sets"], data, "data")
    name = data or next(iter(results["sets"]))
    cosines = choose(chosen["cosines"], layers, "layers")
    pairs = load_text(name, chosen["split"], results["settings"]["data"]) if texts else None
    shown = {"gold": chosen["gold"]}
    shown |= {short_name(calibrator): values for calibrator, values in cosines.items()}
    return lexical_scatter(
        chosen["distance"],
        shown,
        texts=None if pairs is None else list(zip(pairs.sentences1, pairs.sentences2, strict=True)),
        title=f"{name}, layers {layers or next(iter(chosen['cosines']))}",
    )


def lexical_scatter(
    distances: ArrayLike,
    similarities: Mapping[str, ArrayLike],
    *,
    texts: Sequence[tuple[str, str]] | None = None,
    title: str = "",
) -> go.Figure:
    """Scatter similarity against edit distance, one point a pair, one button a similarity.

    ``distances``: edit distances in words (`spelling.edit_distances`). ``similarities``: what to
    show by the name on its button; ``"gold"`` is taken for a gold score. ``texts``: the pairs, for
    the hover text.

    Pairs at distance 4 or less are highlighted, as in the paper. At most 1,500 points are drawn, by
    lot; correlations are over all pairs.
    """
    edits = as_values(distances, "distances")
    values = {name: as_values(one, name) for name, one in similarities.items()}
    if any(len(one) != len(edits) for one in values.values()) or not values:
        raise ValueError(f"Give at least one similarity, each with {len(edits)} values.")
    rng = np.random.default_rng(0)
    drawn = np.sort(rng.permutation(len(edits))[:MOST_PAIRS])
    # Whole numbers would hide one another; the axis is stretched where the near pairs are.
    height = np.round(np.log2(1 + edits + rng.uniform(-0.3, 0.3, len(edits))), 3)
    far, close = drawn[edits[drawn] > NEAR], drawn[edits[drawn] <= NEAR]
    x = {name: [np.round(one[rows], 3) for rows in (far, close)] for name, one in values.items()}
    looks = (
        Look(f"edit distance over {NEAR}", "", PALETTE["blue"], "circle"),
        Look(f"{NEAR} edits or fewer", "", PALETTE["green"], "diamond"),
    )
    first = next(iter(values))
    fig = go.Figure()
    for look, rows, at in zip(looks, (far, close), x[first], strict=True):
        text = [_pair_text(texts[i]) if texts is not None else f"pair {i}" for i in rows]
        hover = "%{text}<br>%{customdata} edits, similarity %{x:.2f}"
        more: dict[str, Any] = {"text": text, "customdata": edits[rows].astype(int)}
        draw(fig, look, at, height[rows], hover, size=6, opacity=0.6, **more)
    views = {name: _scatter_layout(name, one, edits, title) for name, one in values.items()}
    menu = [make_button(name, {"x": x[name]}, view) for name, view in views.items()]
    ticks = [tick for tick in _TICKS if tick <= 2 * edits.max()]
    fig.add_hline(y=float(np.log2(1.5 + NEAR)), line=_GOLD)
    fig.update_xaxes(range=views[first]["xaxis.range"])
    places = [float(np.log2(1 + tick)) for tick in ticks]
    fig.update_yaxes(tickvals=places, ticktext=[str(tick) for tick in ticks])
    axes = (views[first]["xaxis.title.text"], "edit distance (words)")
    return lay_out(fig, views[first]["title.text"], *axes, height=560, menu=menu)


def _scatter_layout(name: str, values: Floats, edits: Floats, title: str) -> dict[str, Any]:
    """Title, axis title and range of one button."""
    close = edits <= NEAR
    both = [100 * float(rank_correlation(edits[part], values[part]))
            for part in (np.full(len(edits), True), close)]  # fmt: skip
    shown = [f"{one:.1f}" if np.isfinite(one) else "undefined" for one in both]
    low, high = float(values.min()), float(values.max())
    pad = 0.04 * (high - low) or 0.1
    what = "gold score (5 = same meaning)" if name == "gold" else f"cosine, {name}"
    return {
        "title.text": f"{title}<br><sup>Spearman x 100 of {name} with edit distance:<br>"
        f"{shown[0]} over all pairs, {shown[1]} at {NEAR} edits or fewer</sup>",
        "xaxis.title.text": what,
        "xaxis.range": [round(low - pad, 3), round(high + pad, 3)],
    }


def _pair_text(pair: tuple[str, str]) -> str:
    return "<br>".join(html.escape(text, quote=False) for text in pair)
