"""Figures about spelling and meaning: several encoders at once, and single pairs of sentences."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.figures.drawing import add_bars, draw, lay_out
from bertflow_lite.figures.flows import choose, load_text
from bertflow_lite.figures.plots import (
    LOOKS,
    PALETTE,
    Look,
    looks_of,
    make_button,
    make_slider,
    series,
    short_name,
)
from bertflow_lite.measures.similarity import Floats, as_values, rank_correlation
from bertflow_lite.measures.spelling import NEAR

_MEASURES = {"edit_distance": "as in the paper", "edit_distance_given_length": "at equal length"}
_STATIONS = ("none", "whiten", "flow")  # of a path
_PAPER = "BERT-base (paper)"
_LINE = 44  # characters of a sentence on a line that a phone shows whole
_GOLD = {"dash": "dot", "color": PALETTE["gray"]}


def lexical_paths(
    runs: Mapping[str, tuple[Mapping[str, Any], str]], *, data: str = "stsb", title: str = ""
) -> go.Figure:
    """Draw Table 6 for several encoders: a path from raw over whitening to flow for each.

    ``runs``: label -> results of `table6.run_table6`, and a layer choice in them; at most four.
    ``data``: a set that all runs have.

    Correlation with edit distance (across) and with the gold score (up), means over seeds. Buttons:
    the correlation as the paper takes it, and at equal length, which the paper does not have. The
    dotted line is where the gold scores themselves stand.
    """
    if not 1 <= len(runs) <= 4:
        raise ValueError(f"there are {len(runs)} runs; give 1 to 4 of them.")
    fig = go.Figure()
    across: dict[str, list[list[float | None]]] = {measure: [] for measure in _MEASURES}
    gold: dict[str, float] = {}
    for number, (label, (results, layers)) in enumerate(runs.items()):
        rows = choose(results["sets"], data, "data")["rows"]
        points = [
            [r for r in rows if (r["calibrator"], r["layers"]) == (name, layers)]
            for name in _STATIONS
        ]
        if not all(points):
            raise ValueError(f"the run of {label!r} has no layers {layers!r}.")
        scored = next(row for row in rows if row["calibrator"] == "gold")
        for measure in _MEASURES:
            across[measure].append([_mean(found, measure) for found in points])
            gold[measure] = round(scored[measure]["estimate"], 2)
        up = [_mean(found, "gold") for found in points]
        look = replace(series(number, label), dash="solid")
        _add_path(fig, look, across["edit_distance"][-1], up)
    if data == "stsb":
        paper, ends = load_paper_table(6), ("BERT-induced", "flow-induced")
        # The paper has neither whitening nor equal length.
        printed: dict[str, list[float | None]] = {
            column: [paper[column][ends[0]], None, paper[column][ends[1]]]
            for column in ("edit_distance", "gold")
        }
        look = replace(series(4, _PAPER), dash="dot")
        _add_path(fig, look, printed["edit_distance"], printed["gold"])
        across["edit_distance"].append(printed["edit_distance"])
        across["edit_distance_given_length"].append([None] * 3)
    for name in _STATIONS:  # what the symbols mean
        meaning = replace(LOOKS[name], name=short_name(name), color=PALETTE["gray"])
        draw(fig, meaning, [None], [None], size=11)
        fig.data[-1].marker.line.update(width=2, color=meaning.color)
    first = next(iter(_MEASURES))
    fig.add_vline(x=gold[first], line=_GOLD)
    menu = []
    for measure, label in _MEASURES.items():
        line = {"shapes[0].x0": gold[measure], "shapes[0].x1": gold[measure]}
        moved = {"x": [*across[measure], *[[None]] * len(_STATIONS)]}
        menu.append(make_button(label, moved, {**line, "xaxis.title.text": _axis(measure)}))
    up_title = "Spearman x 100 with the gold score"
    return lay_out(fig, title, _axis(first), up_title, height=560, menu=menu)


def pair_ranks(
    own: Sequence[tuple[str, str]],
    ranks: Mapping[str, ArrayLike],
    notes: Sequence[str] = (),
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


def _add_path(
    fig: go.Figure, look: Look, across: Sequence[float | None], up: Sequence[float | None]
) -> None:
    """Add a line from raw over whitening to flow."""
    hover = "%{text}: with edit distance %{x:.1f}, with gold %{y:.1f}"
    more: dict[str, Any] = {"text": list(map(short_name, _STATIONS)), "connectgaps": True}
    draw(fig, look, list(across), list(up), hover, "lines+markers", size=11, width=1.5, **more)
    marks = [LOOKS[name].mark for name in _STATIONS]
    fig.data[-1].marker.update(symbol=marks, line={"width": 2, "color": look.color})


def _mean(rows: Sequence[Mapping[str, Any]], measure: str) -> float:
    return round(float(np.mean([row[measure]["estimate"] for row in rows])), 2)


def _axis(measure: str) -> str:
    more = "" if measure == "edit_distance" else f", {_MEASURES[measure]}"
    return "Spearman x 100 with edit distance" + more


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
