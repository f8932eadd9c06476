"""Figures of the controls: pairs whose word overlap is held fixed, and what each word weighs.

Each function takes the rows of stored runs (``data/results/controls``) and gives a Plotly figure
whose buttons work in a page without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.control_parts import (
    BELOW,
    METHOD_NAMES,
    Rows,
    grouped_bars,
    make_menu,
    name_set,
)
from bertflow_lite.plots import PALETTE, add_slider

__all__ = ["influence_lines", "overlap_bars", "trick_bars", "weight_slider"]


def overlap_bars(
    runs: Mapping[str, Rows], *, overlap: str = "jaccard", title: str = ""
) -> go.Figure:
    """Gain of calibrating, over all pairs and within bins of like word overlap, by set.

    Parameters
    ----------
    runs : mapping of str to rows of `run_within`
        Rows of one layer choice, by the name of the model and layer; a button for each model and
        calibrator.
    overlap : {"jaccard", "edit"}, default "jaccard"
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    views = {}
    for model, rows in runs.items():
        kept = [row for row in rows if row["overlap"] == overlap and "gain" in row]
        for method in dict.fromkeys(row["calibrator"] for row in kept):
            views[f"{model}: {METHOD_NAMES.get(method, method)}"] = [
                row for row in kept if row["calibrator"] == method
            ]
    if not views:
        raise ValueError("No row has a gain: give rows of run_within, with their raw scores.")
    fig = go.Figure()
    first = next(iter(views.values()))
    sets = [name_set(row["data"]) for row in first]
    fig.add_bar(
        x=sets,
        y=[row["plain_gain"] for row in first],
        name="all pairs",
        marker_color=PALETTE["gray"],
        hovertemplate="%{x}: %{y:+.1f}<extra>all pairs</extra>",
    )
    fig.add_bar(
        x=sets,
        y=[row["gain"][0] for row in first],
        error_y=_error_bars(first),
        name="within bins of like overlap",
        marker_color=PALETTE["blue"],
        hovertemplate="%{x}: %{y:+.1f}<extra>within bins</extra>",
    )
    buttons = []
    for label, rows in views.items():
        bars = _error_bars(rows)
        update = {
            "x": [[name_set(row["data"]) for row in rows]] * 2,
            "y": [[row["plain_gain"] for row in rows], [row["gain"][0] for row in rows]],
            "error_y.array": [None, bars["array"]],
            "error_y.arrayminus": [None, bars["arrayminus"]],
        }
        buttons.append({"label": label, "method": "restyle", "args": [update]})
    fig.update_layout(
        title=title,
        barmode="group",
        yaxis_title="gain, Spearman x 100",
        height=480,
        margin_t=110,
        legend=BELOW,
        updatemenus=make_menu(buttons),
    )
    return fig


def _error_bars(rows: Rows) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [round(row["gain"][2] - row["gain"][0], 2) for row in rows],
        "arrayminus": [round(row["gain"][0] - row["gain"][1], 2) for row in rows],
        "thickness": 1,
    }


def trick_bars(
    runs: Mapping[str, Rows],
    *,
    methods: Sequence[str] = ("none", "sn", "whiten:128", "flow"),
    title: str = "",
) -> go.Figure:
    """Chance that a pair that means the same beats a pair that only shares its words.

    Parameters
    ----------
    runs : mapping of str to rows of `run_kinds`
        Rows of one layer choice, by the name of the model and layer.
    methods : sequence of str
        Calibrators; one color each.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Bars by model; a button for each kind of equal meaning against each trick.  A line at 50:
        guessing.
    """
    duels = list(dict.fromkeys((r["same"], r["trick"]) for rows in runs.values() for r in rows))
    heights = {}
    for same, trick in duels:
        heights[f"{same} over {trick}"] = [
            [
                next(
                    (
                        row["auc"]
                        for row in rows
                        if (row["same"], row["trick"], row["calibrator"]) == (same, trick, method)
                    ),
                    None,
                )
                for rows in runs.values()
            ]
            for method in methods
        ]
    fig = grouped_bars(list(runs), methods, next(iter(heights.values())))
    fig.add_hline(y=50, line={"dash": "dot", "color": PALETTE["gray"]})
    buttons = [
        {"label": label, "method": "restyle", "args": [{"y": values}]}
        for label, values in heights.items()
    ]
    fig.update_layout(title=title, yaxis_title="AUC (50: guessing)", updatemenus=make_menu(buttons))
    fig.update_yaxes(range=[0, 100])
    return fig


def influence_lines(
    runs: Mapping[str, Rows],
    *,
    methods: Sequence[str] = ("none", "sn", "whiten:128", "flow"),
    title: str = "",
) -> go.Figure:
    """Draw what a word weighs in the sentence's vector, against how rare it is.

    Parameters
    ----------
    runs : mapping of str to rows of `run_influence`
        Rows of one layer choice, by the name of the model and layer; a button each.
    methods : sequence of str
        Calibrators; one line each.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    if not runs:
        raise ValueError("There is no run to draw.")
    views: dict[str, list[tuple[list[float], list[float]]]] = {}
    for model, rows in runs.items():
        by = {row["calibrator"]: row for row in rows}
        views[model] = [
            (by[m]["idf"], by[m]["influence"]) if m in by else ([], []) for m in methods
        ]
    fig = go.Figure()
    styles = [("gray", "solid"), ("orange", "dash"), ("green", "dot"), ("blue", "solid")]
    first = next(iter(views.values()))
    for method, (color, dash), (x, y) in zip(methods, styles, first, strict=False):
        fig.add_scatter(
            x=x,
            y=y,
            mode="lines+markers",
            name=METHOD_NAMES.get(method, method),
            line={"color": PALETTE[color], "dash": dash},
            hovertemplate="idf %{x:.1f}: weight %{y:.2f}<extra>"
            + METHOD_NAMES.get(method, method)
            + "</extra>",
        )
    buttons = [
        {
            "label": model,
            "method": "restyle",
            "args": [{"x": [x for x, _ in lines], "y": [y for _, y in lines]}],
        }
        for model, lines in views.items()
    ]
    fig.update_layout(
        title=title,
        xaxis_title="rarity of the token (idf)",
        yaxis_title="influence (1: like the sentence's others)",
        height=480,
        margin_t=110,
        legend=BELOW,
        updatemenus=make_menu(buttons),
    )
    return fig


def weight_slider(
    widths: Mapping[int, Mapping[str, Sequence[float]]],
    count: Sequence[float],
    *,
    others: Mapping[str, Sequence[float]] | None = None,
    active: int = 0,
    title: str = "",
) -> go.Figure:
    """Draw what a shared word counts after whitening random word vectors; a slider for their width.

    Parameters
    ----------
    widths : mapping of int to mapping of str to sequence of float
        Width of the vectors -> ``"measured"`` and ``"predicted"`` weight of the words in each class
        of rarity, relative to the rarest.
    count : sequence of float
        How many sentences have the words of each class.
    others : mapping of str to sequence of float, optional
        Weights that do not depend on the width, by name, such as TF-IDF's.
    active : int, default 0
        At which of the widths the slider stands at first.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`; the slider works without a kernel.

    Raises
    ------
    ValueError
        If there is no width, or a weight is missing.

    Examples
    --------
    >>> fig = weight_slider({64: {"measured": [1, 0.2], "predicted": [1, 0.3]}}, [1, 100])
    >>> [trace.name for trace in fig.data]
    ['measured', 'predicted']
    """
    others = others or {}
    if not widths:
        raise ValueError("There is no width to draw: give the weights of at least one.")
    lines = [line for by in widths.values() for line in (by["measured"], by["predicted"])]
    if any(len(line) != len(count) for line in [*lines, *others.values()]):
        raise ValueError(f"Each line needs {len(count)} weights, one for each class of rarity.")
    fig = go.Figure()
    styles = [("orange", "dash"), ("purple", "dot"), ("green", "dashdot")]
    for width, by in widths.items():
        shown: list[tuple[str, Sequence[float], dict[str, Any]]] = [
            ("measured", by["measured"], {"mode": "markers", "marker": {"color": PALETTE["gray"]}}),
            ("predicted", by["predicted"], {"mode": "lines", "line": {"color": PALETTE["blue"]}}),
        ]
        for (name, weights), (color, dash) in zip(others.items(), styles, strict=False):
            line = {"color": PALETTE[color], "dash": dash}
            shown.append((name, weights, {"mode": "lines", "line": line}))
        for name, weights, look in shown:
            fig.add_scatter(
                x=list(count),
                y=[round(float(weight), 4) for weight in weights],
                name=name,
                hovertemplate=f"width {width}, in %{{x:.0f}} sentences: %{{y:.2f}}"
                f"<extra>{name}</extra>",
                **look,
            )
    fig.update_layout(
        title=title,
        xaxis={"title": "sentences that have the word", "type": "log"},
        yaxis={"title": "weight of a shared word (rarest: 1)", "rangemode": "tozero"},
        height=520,
        margin_t=120,
    )
    labels = [str(width) for width in widths]
    return add_slider(fig, labels, prefix="width of the vectors: ", active=active)
