"""Figures about spelling and meaning: several encoders at once, and single pairs of sentences."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.experiments.table6 import CALIBRATORS
from bertflow_lite.figures.flows import choose, load_text
from bertflow_lite.figures.plots import PALETTE
from bertflow_lite.measures.similarity import Floats, as_values, rank_correlation
from bertflow_lite.measures.spelling import NEAR

__all__ = ["draw_figure2", "draw_table6", "lexical_paths", "lexical_scatter", "pair_ranks"]

_MEASURES = {"edit_distance": "as in the paper", "edit_distance_given_length": "at equal length"}
_COLORS = ("blue", "orange", "green", "vermillion", "purple")
_SYMBOLS = {"none": "circle-open", "whiten": "diamond", "flow": "triangle-up"}
_PAPER = "BERT-base (paper)"
_BARS = {"edit distance": "vermillion", "people": "purple"}  # the others are cosines
_LINE = 44  # characters of a sentence on a line that a phone shows whole


def lexical_paths(
    runs: Mapping[str, tuple[Mapping[str, Any], str]], *, data: str = "stsb", title: str = ""
) -> go.Figure:
    """Draw Table 6 for several encoders: a path from raw over whitening to flow for each.

    Parameters
    ----------
    runs : mapping of str to (mapping, str)
        Label -> results of `lexical_runs.run_table6`, and a layer choice in them; at most four.
    data : str, default "stsb"
        A set that all runs have.
    title : str, default ""
        Title of the figure.

    Returns
    -------
    plotly.graph_objects.Figure
        Correlation with edit distance (across) and with the gold score (up), means over seeds.
        Buttons: the correlation as the paper takes it, and at equal length, which the paper does
        not have.  The dotted line is where the gold scores themselves stand.

    Raises
    ------
    ValueError
        If there is no run or more than four, or a run lacks the set or the layers.
    """
    if not 1 <= len(runs) < len(_COLORS):
        raise ValueError(f"there are {len(runs)} runs; give 1 to {len(_COLORS) - 1} of them.")
    fig = go.Figure()
    across: dict[str, list[list[float | None]]] = {measure: [] for measure in _MEASURES}
    gold: dict[str, float] = {}
    for color, (label, (results, layers)) in zip(_COLORS, runs.items(), strict=False):
        rows = choose(results["sets"], data, "data")["rows"]
        points = {name: [r for r in rows if (r["calibrator"], r["layers"]) == (name, layers)]
                  for name in _SYMBOLS}  # fmt: skip
        if not all(points.values()):
            raise ValueError(f"the run of {label!r} has no layers {layers!r}.")
        scored = next(row for row in rows if row["calibrator"] == "gold")
        for measure in _MEASURES:
            across[measure].append([_mean(rows, measure) for rows in points.values()])
            gold[measure] = round(scored[measure]["estimate"], 2)
        up = [_mean(rows, "gold") for rows in points.values()]
        _add_path(fig, label, across["edit_distance"][-1], up, color)
    if data == "stsb":
        paper, ends = load_paper_table(6), ("BERT-induced", "flow-induced")
        # The paper has neither whitening nor equal length.
        printed: dict[str, list[float | None]] = {
            column: [paper[column][ends[0]], None, paper[column][ends[1]]]
            for column in ("edit_distance", "gold")
        }
        _add_path(fig, _PAPER, printed["edit_distance"], printed["gold"], _COLORS[-1], dash="dot")
        across["edit_distance"].append(printed["edit_distance"])
        across["edit_distance_given_length"].append([None] * 3)
    for name, symbol in _SYMBOLS.items():  # what the symbols mean
        look = {"symbol": symbol, "size": 11, "color": PALETTE["gray"], "line": {"width": 2}}
        fig.add_scatter(x=[None], y=[None], mode="markers", marker=look, name=CALIBRATORS[name])
    first = next(iter(_MEASURES))
    fig.add_vline(x=gold[first], line={"dash": "dot", "color": PALETTE["gray"]})
    buttons = [
        {
            "label": label,
            "method": "update",
            "args": [
                {"x": [*across[measure], *[[None]] * len(_SYMBOLS)]},
                {
                    "shapes[0].x0": gold[measure],
                    "shapes[0].x1": gold[measure],
                    "xaxis.title.text": _axis(measure),
                },
            ],
        }
        for measure, label in _MEASURES.items()
    ]
    fig.update_layout(
        title=title,
        xaxis_title=_axis(first),
        yaxis_title="Spearman x 100 with the gold score",
        height=640,
        margin_t=105,
        legend={"y": -0.27, "yanchor": "top"},
        updatemenus=[
            {
                "type": "buttons",
                "direction": "right",
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "bgcolor": "rgba(128,128,128,0.15)",
                "font": {"size": 12},
                "buttons": buttons,
            }
        ],
    )
    return fig


def pair_ranks(
    own: Sequence[tuple[str, str]],
    ranks: Mapping[str, ArrayLike],
    notes: Sequence[str] = (),
    *,
    axis: str = "known pairs that are less alike (%)",
) -> go.Figure:
    """Show where each measure puts a pair of sentences among known pairs; a slider over the pairs.

    Parameters
    ----------
    own : sequence of (str, str)
        The pairs.
    ranks : mapping of str to array-like, each of shape (n_pairs,)
        Measure (edit distance, a cosine, people) -> percent of the known pairs that it takes for
        less alike; NaN where the measure says nothing about a pair.
    notes : sequence of str, default ()
        For each pair, a word for the slider; default: its number.
    axis : str
        Title of the axis.

    Returns
    -------
    plotly.graph_objects.Figure
        A line for each measure, from 0 to its rank.

    Raises
    ------
    ValueError
        If there is no pair or no measure, or a length differs.
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

    def heading(pair: int) -> str:
        return "<br>".join(line for text in own[pair] for line in _wrap(text))

    fig = go.Figure(
        go.Bar(
            x=bars(0),
            y=names,
            orientation="h",
            width=0.6,
            marker_color=[PALETTE[_BARS.get(name, "blue")] for name in names],
            hovertemplate="%{y}: more alike than %{x:.0f} % of the known pairs<extra></extra>",
            showlegend=False,
        )
    )
    steps = [
        {
            "label": labels[pair],
            "method": "update",
            "args": [{"x": [bars(pair)]}, {"title.text": heading(pair)}],
        }
        for pair in range(len(own))
    ]
    longest = max(heading(pair).count("<br>") for pair in range(len(own))) + 1
    height = 240 + 36 * len(names) + 20 * longest
    fig.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    fig.update_layout(
        title={"text": heading(0), "font": {"size": 14}, "y": 1 - 24 / height},
        xaxis={"title": {"text": axis}, "range": [0, 102]},
        height=height,
        margin_t=40 + 20 * longest,
        sliders=[{
            "active": 0,
            "steps": steps,
            "currentvalue": {"prefix": "pair: "},
            "pad": {"t": 60},
            "bgcolor": "rgba(128, 128, 128, 0.25)",
            "activebgcolor": PALETTE["blue"],
            "font": {"size": 12},
        }],
    )  # fmt: skip
    return fig


def _add_path(
    fig: go.Figure,
    label: str,
    across: Sequence[float | None],
    up: Sequence[float | None],
    color: str,
    dash: str = "solid",
) -> None:
    """Add a line from raw over whitening to flow."""
    fig.add_scatter(
        x=list(across),
        y=list(up),
        name=label,
        text=[CALIBRATORS[name] for name in _SYMBOLS],
        mode="lines+markers",
        connectgaps=True,
        line={"color": PALETTE[color], "width": 1.5, "dash": dash},
        marker={"symbol": list(_SYMBOLS.values()), "size": 11, "line": {"width": 2}},
        hovertemplate="%{text}: with edit distance %{x:.1f}, with gold %{y:.1f}"
        "<extra>%{fullData.name}</extra>",
    )


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

    Parameters
    ----------
    results : mapping
        From `lexical_runs.run_figure2`.
    data, layers : str, default ""
        A set and a layer choice of the run; empty: the first.
    texts : bool, default True
        Show the sentences under the pointer, where the set is on this machine.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    chosen = choose(results["sets"], data, "data")
    name = data or next(iter(results["sets"]))
    cosines = choose(chosen["cosines"], layers, "layers")
    pairs = load_text(name, chosen["split"], results["settings"]["data"]) if texts else None
    shown = {"gold": chosen["gold"]}
    shown |= {CALIBRATORS[calibrator]: values for calibrator, values in cosines.items()}
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
    near: int = NEAR,
    most: int = MOST_PAIRS,
    title: str = "",
) -> go.Figure:
    """Scatter similarity against edit distance, one point a pair, one button a similarity.

    Parameters
    ----------
    distances : array-like, shape (n_pairs,)
        Edit distances in words (`lexical.edit_distances`).
    similarities : mapping of str to array-like, each of shape (n_pairs,)
        What to show by the name on its button; ``"gold"`` is taken for a gold score.
    texts : sequence of (str, str), optional
        The pairs, for the hover text.
    near : int, default 4
        Pairs at this distance or less are highlighted, as in the paper.
    most : int, default 1500
        Points drawn; of more pairs, some are drawn by lot. Correlations are over all pairs.
    title : str, default ""
        First line of the title; the second one gives the correlations.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    edits = as_values(distances, "distances")
    values = {name: as_values(one, name) for name, one in similarities.items()}
    if any(len(one) != len(edits) for one in values.values()) or not values:
        raise ValueError(f"Give at least one similarity, each with {len(edits)} values.")
    rng = np.random.default_rng(0)
    drawn = np.sort(rng.permutation(len(edits))[:most])
    # Whole numbers would hide one another; the axis is stretched where the near pairs are.
    height = np.round(np.log2(1 + edits + rng.uniform(-0.3, 0.3, len(edits))), 3)
    groups = {
        f"edit distance over {near}": (drawn[edits[drawn] > near], "blue", "circle"),
        f"{near} edits or fewer": (drawn[edits[drawn] <= near], "green", "diamond"),
    }
    first = next(iter(values))
    fig = go.Figure()
    for name, (rows, color, symbol) in groups.items():
        fig.add_scatter(
            x=np.round(values[first][rows], 3),
            y=height[rows],
            customdata=edits[rows].astype(int),
            text=[_pair_text(texts[i]) if texts is not None else f"pair {i}" for i in rows],
            name=name,
            mode="markers",
            marker={"color": PALETTE[color], "symbol": symbol, "size": 6, "opacity": 0.6},
            hovertemplate="%{text}<br>%{customdata} edits, similarity %{x:.2f}<extra></extra>",
        )
    buttons = [
        {
            "label": name,
            "method": "update",
            "args": [
                {"x": [np.round(one[rows], 3) for rows, _, _ in groups.values()]},
                _scatter_layout(name, one, edits, near, title),
            ],
        }
        for name, one in values.items()
    ]
    ticks = [tick for tick in _TICKS if tick <= 2 * edits.max()]
    fig.update_yaxes(
        title_text="edit distance (words)",
        tickvals=[float(np.log2(1 + tick)) for tick in ticks],
        ticktext=[str(tick) for tick in ticks],
    )
    fig.add_hline(y=float(np.log2(1.5 + near)), line={"dash": "dot", "color": PALETTE["gray"]})
    start = _scatter_layout(first, values[first], edits, near, title)
    fig.update_layout(
        title={"text": start["title.text"], "y": 0.955},
        xaxis={"title": {"text": start["xaxis.title.text"]}, "range": start["xaxis.range"]},
        height=560,
        margin_t=125,
        legend={"y": -0.2, "yanchor": "top"},
        updatemenus=[
            {
                "type": "buttons",
                "direction": "right",
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "bgcolor": "rgba(128,128,128,0.15)",
                "font": {"size": 12},
                "buttons": buttons,
            }
        ]
        if len(buttons) > 1
        else [],
    )
    return fig


def draw_table6(
    results: Mapping[str, Any],
    *,
    data: str = "",
    layers: str = "",
    measure: str = "edit_distance",
) -> go.Figure:
    """Draw Table 6: correlation with the gold score against correlation with edit distance.

    Parameters
    ----------
    results : mapping
        From `lexical_runs.run_table6`.
    data, layers : str, default ""
        A set and a layer choice of the run; empty: the first.
    measure : {"edit_distance", "edit_distance_given_length"}, default "edit_distance"
        The correlation with edit distance as the paper takes it, or at equal length.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    titles = {"edit_distance": "", "edit_distance_given_length": ", at equal length"}
    title = "Spearman x 100 with edit distance" + choose(titles, measure, "measure")
    chosen = choose(results["sets"], data, "data")
    wanted = layers or results["settings"]["layers"][0]
    looks = {
        "none": ("vermillion", "circle"),
        "sn": ("orange", "square"),
        "whiten": ("green", "diamond"),
        "flow": ("blue", "triangle-up"),
        "bag of words": ("gray", "x"),
        "tf-idf": ("purple", "cross"),
    }
    fig = go.Figure()
    for row in chosen["rows"]:
        if row["calibrator"] not in looks or row["layers"] not in ("", wanted):
            continue
        color, symbol = looks[row["calibrator"]]
        x, y = row[measure], row["gold"]
        fig.add_scatter(
            x=[x["estimate"]],
            y=[y["estimate"]],
            error_x=_error(x) if row["seed"] == 0 else None,
            error_y=_error(y) if row["seed"] == 0 else None,
            name=CALIBRATORS.get(row["calibrator"], row["calibrator"]),
            legendgroup=row["calibrator"],
            showlegend=row["seed"] == 0,
            mode="markers",
            marker={"color": PALETTE[color], "symbol": symbol, "size": 11},
            hovertemplate="%{fullData.name}<br>with edit distance %{x:.1f}<br>with gold %{y:.1f}"
            f"<extra>seed {row['seed']}</extra>",
        )
    if (data or next(iter(results["sets"]))) == "stsb" and measure == "edit_distance":
        paper = load_paper_table(6)
        for row, label in (("BERT-induced", "BERT-base"), ("flow-induced", "BERT-base-flow")):
            fig.add_scatter(
                x=[paper["edit_distance"][row]],
                y=[paper["gold"][row]],
                name=f"paper: {label}",
                mode="markers",
                marker={"symbol": "star-open", "size": 13, "color": PALETTE["sky"]},
                hovertemplate="%{fullData.name}<br>with edit distance %{x:.1f}<br>with gold "
                "%{y:.1f}<extra></extra>",
            )
    gold = next(row for row in chosen["rows"] if row["calibrator"] == "gold")
    fig.add_vline(x=gold[measure]["estimate"], line={"dash": "dot", "color": PALETTE["gray"]})
    fig.update_layout(
        title=f"Words or meaning, layers {wanted}<br><sup>dotted: the gold scores themselves</sup>",
        title_y=0.95,
        xaxis_title=title,
        yaxis_title="Spearman x 100 with the gold score",
        height=520,
        legend={"y": -0.2, "yanchor": "top"},
    )
    return fig


def _scatter_layout(
    name: str, values: Floats, edits: Floats, near: int, title: str
) -> dict[str, Any]:
    """Title, axis title and range of one button."""
    close = edits <= near
    both = [100 * float(rank_correlation(edits[part], values[part]))
            for part in (np.full(len(edits), True), close)]  # fmt: skip
    shown = [f"{one:.1f}" if np.isfinite(one) else "undefined" for one in both]
    low, high = float(values.min()), float(values.max())
    pad = 0.04 * (high - low) or 0.1
    what = "gold score (5 = same meaning)" if name == "gold" else f"cosine, {name}"
    return {
        "title.text": f"{title}<br><sup>Spearman x 100 of {name} with edit distance:<br>"
        f"{shown[0]} over all pairs, {shown[1]} at {near} edits or fewer</sup>",
        "xaxis.title.text": what,
        "xaxis.range": [round(low - pad, 3), round(high + pad, 3)],
    }


def _pair_text(pair: tuple[str, str]) -> str:
    return "<br>".join(html.escape(text, quote=False) for text in pair)


def _error(interval: Mapping[str, float]) -> dict[str, Any]:
    estimate = interval["estimate"]
    return {
        "array": [interval["high"] - estimate],
        "arrayminus": [estimate - interval["low"]],
        "thickness": 1,
    }
