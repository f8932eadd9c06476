"""Figures of the controls: what an encoder that has learned nothing scores, and why.

Each function takes the rows of stored runs (``data/results/controls``) and gives a Plotly figure
whose buttons work in a page without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bertflow_lite.figures.plots import (
    BELOW,
    METHOD_NAMES,
    PALETTE,
    Rows,
    add_slider,
    grouped_bars,
    make_menu,
    name_set,
)

__all__ = [
    "block_lines",
    "influence_lines",
    "lead_dots",
    "overlap_bars",
    "rarity_dots",
    "trick_bars",
    "weight_slider",
]


def lead_dots(
    runs: Mapping[str, Rows],
    *,
    methods: Sequence[str] = ("sn", "whiten", "whiten:128", "flow"),
    control: str = "random weights",
    title: str = "",
) -> go.Figure:
    """Scores by set: a model and one that has learned nothing, raw and calibrated.

    Parameters
    ----------
    runs : mapping of str to rows of `run_pretraining`
        Rows of one layer choice, by the name of the model and layer; a button for each model and
        method.
    methods : sequence of str
        Calibrators to choose from; those that a run lacks are left out.
    control : str, default "random weights"
        What to call the control.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Dots with 95 % intervals; hover shows the lead of the model over the control.
    """
    views: dict[str, dict[str, list[Any]]] = {}
    for model, rows in runs.items():
        for method in methods:
            if any(row["calibrator"] == method and "lead" in row for row in rows):
                views[f"{model}: {METHOD_NAMES[method]}"] = _lead_view(rows, method)
    if not views:
        raise ValueError("No row has a lead over a control: give rows of run_pretraining.")
    first = next(iter(views.values()))
    traces = (
        (f"{control}, raw", "circle-open", "gray"),
        (f"{control}, calibrated", "circle", "gray"),
        ("model, raw", "diamond-open", "blue"),
        ("model, calibrated", "diamond", "blue"),
    )
    fig = go.Figure()
    for k, (name, symbol, color) in enumerate(traces):
        fig.add_scatter(
            x=first["x"][k],
            y=first["y"][k],
            customdata=first["text"][k],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": first["up"][k],
                "arrayminus": first["down"][k],
                "thickness": 1,
                "width": 3,
            },
            mode="markers",
            name=name,
            marker={"symbol": symbol, "color": PALETTE[color], "size": 10},
            hovertemplate="%{y}: %{x:.1f}%{customdata}<extra>" + name + "</extra>",
        )
    buttons = [
        {
            "label": label,
            "method": "restyle",
            "args": [
                {
                    "x": view["x"],
                    "y": view["y"],
                    "customdata": view["text"],
                    "error_x.array": view["up"],
                    "error_x.arrayminus": view["down"],
                }
            ],
        }
        for label, view in views.items()
    ]
    fig.update_layout(
        title=title,
        xaxis_title="Spearman x 100",
        height=560,
        margin_t=110,
        legend=BELOW,
        updatemenus=make_menu(buttons),
    )
    fig.update_yaxes(categoryorder="array", categoryarray=first["y"][0][::-1])
    return fig


def _lead_view(rows: Rows, method: str) -> dict[str, list[Any]]:
    by = {(row["data"], row["calibrator"]): row for row in rows}
    sets = [name for name, calibrator in by if calibrator == method]
    parts = [("control", "none"), ("control", method), ("model", "none"), ("model", method)]
    view: dict[str, list[Any]] = {key: [] for key in ("x", "y", "up", "down", "text")}
    for who, calibrator in parts:
        values = [by[name, calibrator][who] for name in sets]
        view["x"].append([value[0] for value in values])
        view["y"].append([name_set(name) for name in sets])
        view["up"].append([round(high - estimate, 2) for estimate, _, high in values])
        view["down"].append([round(estimate - low, 2) for estimate, low, _ in values])
        leads = [by[name, calibrator]["lead"] for name in sets]
        view["text"].append(
            [
                f"<br>lead over the control {lead:+.1f} [{low:+.1f}, {high:+.1f}]"
                if who == "model"
                else ""
                for lead, low, high in leads
            ]
        )
    return view


def rarity_dots(
    runs: Mapping[str, Rows],
    *,
    methods: Sequence[str] = ("none", "sn", "whiten:128", "flow"),
    by: str = "tfidf",
    title: str = "",
) -> go.Figure:
    """How alike a model's similarities are to TF-IDF's, and what is left without it; by set.

    Parameters
    ----------
    runs : mapping of str to rows of `run_rarity`
        Rows of one layer choice, by the name of the model and layer.
    methods : sequence of str
        Calibrators; one color each.
    by : {"tfidf", "count"}, default "tfidf"
        Which simple similarity explains.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Bars by model; buttons change what is shown: agreement with people, with TF-IDF, and with
        people given TF-IDF, each the mean over the sets.
    """
    measures = {
        "agreement with people": "gold",
        f"agreement with {METHOD_NAMES[by]}": "control",
        f"with people, given {METHOD_NAMES[by]}": "gold_given_control",
        f"{METHOD_NAMES[by]} with people, given the model": "control_gold_given",
    }
    heights: dict[str, list[list[float | None]]] = {}
    for label, key in measures.items():
        heights[label] = []
        for method in methods:
            values: list[float | None] = []
            for rows in runs.values():
                found = [r[key] for r in rows if r["calibrator"] == method and r["by"] == by]
                values.append(round(float(np.mean(found)), 2) if found else None)
            heights[label].append(values)
    fig = grouped_bars(list(runs), methods, next(iter(heights.values())))
    buttons = [
        {"label": label, "method": "restyle", "args": [{"y": values}]}
        for label, values in heights.items()
    ]
    fig.update_layout(
        title=title,
        yaxis_title="rank correlation x 100, mean of sets",
        updatemenus=make_menu(buttons),
    )
    return fig


def block_lines(
    rows: Rows,
    *,
    methods: Sequence[str] = ("none", "sn", "whiten", "flow"),
    aggregation: str = "all",
    title: str = "",
) -> go.Figure:
    """Score by number of blocks of a network with random weights; a button for each set.

    Parameters
    ----------
    rows : rows of `encoder_scores`
        Layers that are no index, such as ``"cls"``, are left out.
    methods : sequence of str
        Calibrators; one line each.
    aggregation : {"all", "wmean"}, default "all"
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    counted = [row for row in rows if row["layers"].isdigit()]
    if not counted:
        raise ValueError("No row has a hidden state's index as its layers.")
    views: dict[str, list[tuple[list[int], list[float], list[float]]]] = {}
    for name in dict.fromkeys(row["data"] for row in counted):
        views[name_set(name)] = []
        for method in methods:
            mine = [r for r in counted if (r["data"], r["calibrator"]) == (name, method)]
            mine.sort(key=lambda row: int(row["layers"]))
            means = [round(float(np.mean(row[aggregation])), 2) for row in mine]
            spread = [round(float(np.std(row[aggregation])), 2) for row in mine]
            views[name_set(name)].append(([int(r["layers"]) for r in mine], means, spread))
    fig = go.Figure()
    colors = ("gray", "orange", "green", "blue")
    first = next(iter(views.values()))
    for method, color, (x, y, spread) in zip(methods, colors, first, strict=False):
        label = METHOD_NAMES.get(method, method)
        fig.add_scatter(
            x=x,
            y=y,
            error_y={"type": "data", "array": spread, "thickness": 1},
            mode="lines+markers",
            name=label,
            line={"color": PALETTE[color]},
            hovertemplate="%{x} blocks: %{y:.1f}<extra>" + label + "</extra>",
        )
    buttons = [
        {
            "label": name,
            "method": "restyle",
            "args": [
                {
                    "x": [x for x, _, _ in lines],
                    "y": [y for _, y, _ in lines],
                    "error_y.array": [spread for _, _, spread in lines],
                }
            ],
        }
        for name, lines in views.items()
    ]
    fig.update_layout(
        title=title,
        xaxis_title="untrained blocks (0: embedding layer)",
        yaxis_title=f"Spearman x 100, {aggregation}",
        height=480,
        margin_t=110,
        legend=BELOW,
        updatemenus=make_menu(buttons),
    )
    return fig


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
