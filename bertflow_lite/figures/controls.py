"""Figures of the controls: what an encoder that has learned nothing scores, and why.

Each function takes the rows of stored runs (``data/results/controls``) and gives a Plotly figure
whose buttons work in a page without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bertflow_lite.figures.drawing import add_bars, draw, error_bars, lay_out, whiskers
from bertflow_lite.figures.plots import (
    INK,
    LOOKS,
    PALETTE,
    Look,
    Rows,
    add_slider,
    looks_of,
    name_method,
    name_set,
    switch_views,
)


def lead_dots(
    runs: Mapping[str, Rows],
    *,
    methods: Sequence[str] = ("sn", "whiten", "whiten:128", "flow"),
    title: str = "",
) -> go.Figure:
    """Scores by set: a model and one that has learned nothing, raw and calibrated.

    ``runs``: rows of `run_pretraining` for one layer choice, by the name of the model and layer; a
    button for each model and method. ``methods``: calibrators to choose from; those that a run
    lacks are left out.

    Dots with 95 % intervals; hover shows the lead of the model over the control.
    """
    views: dict[str, dict[str, list[Any]]] = {}
    for model, rows in runs.items():
        for method in methods:
            if any(row["calibrator"] == method and "lead" in row for row in rows):
                views[f"{model}: {name_method(method)}"] = _lead_view(rows, method)
    if not views:
        raise ValueError("No row has a lead over a control: give rows of run_pretraining.")
    fig = go.Figure()
    for look in (
        Look("random weights, raw", "", PALETTE["gray"], "circle-open"),
        Look("random weights, calibrated", "", PALETTE["gray"], "circle"),
        Look("model, raw", "", PALETTE["blue"], "diamond-open"),
        Look("model, calibrated", "", PALETTE["blue"], "diamond"),
    ):
        hover = "%{y}: %{x:.1f}%{customdata}"
        draw(fig, look, None, None, hover, size=10, error_x=error_bars([], []))
    menu = switch_views(fig, views)
    fig.update_yaxes(categoryorder="array", categoryarray=fig.data[0].y[::-1])
    return lay_out(fig, title, "Spearman x 100", height=540, menu=menu)


def _lead_view(rows: Rows, method: str) -> dict[str, list[Any]]:
    """Say what a button changes: for the control and the model, raw and calibrated."""
    by = {(row["data"], row["calibrator"]): row for row in rows}
    sets = [name for name, calibrator in by if calibrator == method]
    view: dict[str, list[Any]] = {
        key: [] for key in ("x", "y", "customdata", "error_x.array", "error_x.arrayminus")
    }
    parts = [("control", "none"), ("control", method), ("model", "none"), ("model", method)]
    for who, calibrator in parts:
        values = [by[name, calibrator][who] for name in sets]
        bars = whiskers(values, digits=2)
        view["x"].append([value[0] for value in values])
        view["y"].append([name_set(name) for name in sets])
        view["error_x.array"].append(bars["array"])
        view["error_x.arrayminus"].append(bars["arrayminus"])
        leads = [by[name, calibrator]["lead"] for name in sets]
        said = [
            f"<br>lead over the control {lead:+.1f} [{low:+.1f}, {high:+.1f}]"
            for lead, low, high in leads
        ]
        view["customdata"].append(said if who == "model" else [""] * len(sets))
    return view


GAINS = {
    "+ natsv:1": LOOKS["natsv:1"],
    "+ whiten": LOOKS["whiten"],
    "+ idf": Look("weights by rarity", "weights", PALETTE["purple"], "star"),
    "+ flow": LOOKS["flow"],
    "idf, + flow": Look("what the flow adds to the weights", "", PALETTE["blue"], "circle-open"),
}
"""The differences of `experiments.controls.weights` that `gain_dots` draws, and their looks."""


def gain_dots(runs: Mapping[str, Rows], *, title: str = "") -> go.Figure:
    """Gains of the flow and of simpler ways, by model; a button for each set.

    ``runs``: ``differences`` of `run_weights` for one layer choice, by name of model and layer.

    Points over the raw mean of the tokens, with 95 % intervals; hover shows the share of the flow's
    gain.
    """
    found = {
        label: {(row["data"], row["what"]): row["difference"] for row in rows}
        for label, rows in runs.items()
    }
    if not found:
        raise ValueError("There is no run: give the differences of run_weights, by model.")
    common = [{data for data, _ in one} for one in found.values()]
    sets = [d for d, _ in next(iter(found.values())) if d in set.intersection(*common)]
    views = {}
    for data in sorted(dict.fromkeys(sets), key=lambda name: name != "mean"):  # the mean first
        view: dict[str, list[Any]] = {
            key: [] for key in ("x", "customdata", "error_x.array", "error_x.arrayminus")
        }
        for what in GAINS:
            values = [one[data, what] for one in found.values()]
            bars = whiskers(values, digits=2)
            view["x"].append([value[0] for value in values])
            view["error_x.array"].append(bars["array"])
            view["error_x.arrayminus"].append(bars["arrayminus"])
            view["customdata"].append(
                [
                    f"[{value[1]:.1f}, {value[2]:.1f}]<br>"
                    f"{100 * value[0] / one[data, '+ flow'][0]:.0f} % of the flow's gain"
                    for value, one in zip(values, found.values(), strict=True)
                ]
            )
        views["mean of the sets" if data == "mean" else name_set(data)] = view
    first = next(iter(views.values()))
    fig = go.Figure()
    for k, look in enumerate(GAINS.values()):
        bars = error_bars(first["error_x.array"][k], first["error_x.arrayminus"][k])
        draw(
            fig,
            look,
            first["x"][k],
            list(found),
            "%{y}: %{x:.1f} %{customdata}",
            size=10,
            customdata=first["customdata"][k],
            error_x=bars,
        )
    fig.add_vline(x=0, line_color=INK, line_width=1)
    fig.update_yaxes(categoryorder="array", categoryarray=list(found)[::-1])
    menu = switch_views(fig, views)
    return lay_out(
        fig,
        title,
        "gain over the plain mean, points of Spearman x 100",
        height=520,
        menu=menu,
        folded=True,
    )


def rarity_dots(
    runs: Mapping[str, Rows],
    *,
    methods: Sequence[str] = ("none", "sn", "whiten:128", "flow"),
    title: str = "",
) -> go.Figure:
    """How alike a model's similarities are to TF-IDF's, and what is left without it; by set.

    ``runs``: rows of `run_rarity` for one layer choice, by the name of the model and layer.
    ``methods``: calibrators; one color each.

    Bars by model; buttons change what is shown: agreement with people, with TF-IDF, and with people
    given TF-IDF, each the mean over the sets.
    """
    measures = {
        "agreement with people": "gold",
        "agreement with TF-IDF": "control",
        "with people, given TF-IDF": "gold_given_control",
        "TF-IDF with people, given the model": "control_gold_given",
    }

    def mean(rows: Rows, method: str, key: str) -> float | None:
        found = [r[key] for r in rows if r["calibrator"] == method and r["by"] == "tfidf"]
        return round(float(np.mean(found)), 2) if found else None

    heights = {
        label: [[mean(rows, method, key) for rows in runs.values()] for method in methods]
        for label, key in measures.items()
    }
    return _bars(runs, methods, heights, title, "rank correlation x 100, mean of sets")


def _bars(
    runs: Mapping[str, Rows],
    methods: Sequence[str],
    heights: Mapping[str, list[list[float | None]]],
    title: str,
    axis: str,
) -> go.Figure:
    """Draw bars by model, a color for each method, and a button for each set of heights."""
    fig = go.Figure()
    for method, look in looks_of(methods).items():
        add_bars(fig, replace(look, name=name_method(method)), list(runs), None)
    fig.update_layout(barmode="group")
    menu = switch_views(fig, {label: {"y": values} for label, values in heights.items()})
    return lay_out(fig, title, y=axis, height=480, menu=menu)


def block_lines(
    rows: Rows, *, methods: Sequence[str] = ("none", "sn", "whiten", "flow"), title: str = ""
) -> go.Figure:
    """Score by number of blocks of a network with random weights; a button for each set.

    ``rows``: of `encoder_scores`; layers that are no index, such as ``"cls"``, are left out.
    ``methods``: calibrators; one line each.
    """
    counted = [row for row in rows if row["layers"].isdigit()]
    if not counted:
        raise ValueError("No row has a hidden state's index as its layers.")
    views: dict[str, dict[str, list[Any]]] = {}
    for name in dict.fromkeys(row["data"] for row in counted):
        view = views[name_set(name)] = {"x": [], "y": [], "error_y.array": []}
        for method in methods:
            mine = [r for r in counted if (r["data"], r["calibrator"]) == (name, method)]
            mine.sort(key=lambda row: int(row["layers"]))
            view["x"].append([int(row["layers"]) for row in mine])
            view["y"].append([round(float(np.mean(row["all"])), 2) for row in mine])
            spread = [round(float(np.std(row["all"])), 2) for row in mine]
            view["error_y.array"].append(spread)
    axes = ("untrained blocks (0: embedding layer)", "Spearman x 100, all")
    return _lines(views, methods, "%{x} blocks: %{y:.1f}", title, axes)


def _lines(
    views: Mapping[str, Mapping[str, list[Any]]],
    methods: Sequence[str],
    hover: str,
    title: str,
    axes: tuple[str, str],
) -> go.Figure:
    """Draw a line for each method, and a button for each view of them."""
    fig = go.Figure()
    bars = error_bars([]) if "error_y.array" in next(iter(views.values())) else None
    for method, look in looks_of(methods).items():
        named = replace(look, name=name_method(method))
        draw(fig, named, None, None, hover, "lines+markers", error_y=bars)
    menu = switch_views(fig, views)
    return lay_out(fig, title, *axes, height=480, menu=menu)


def overlap_bars(
    runs: Mapping[str, Rows], *, overlap: str = "jaccard", title: str = ""
) -> go.Figure:
    """Gain of calibrating, over all pairs and within bins of like word overlap, by set.

    ``runs``: rows of `run_within` for one layer choice, by the name of the model and layer; a
    button for each model and calibrator.
    """
    views = {}
    for model, rows in runs.items():
        kept = [row for row in rows if row["overlap"] == overlap and "gain" in row]
        for method in dict.fromkeys(row["calibrator"] for row in kept):
            mine = [row for row in kept if row["calibrator"] == method]
            bars = whiskers((row["gain"] for row in mine), digits=2)
            views[f"{model}: {name_method(method)}"] = {
                "x": [[name_set(row["data"]) for row in mine]] * 2,
                "y": [[row["plain_gain"] for row in mine], [row["gain"][0] for row in mine]],
                "error_y.array": [None, bars["array"]],
                "error_y.arrayminus": [None, bars["arrayminus"]],
            }
    if not views:
        raise ValueError("No row has a gain: give rows of run_within, with their raw scores.")
    fig = go.Figure()
    plain = Look("all pairs", "", PALETTE["gray"])
    within = Look("within bins of like overlap", "", PALETTE["blue"])
    for look, bars in ((plain, None), (within, error_bars([], []) | {"color": INK})):
        add_bars(fig, look, None, None, "%{x}: %{y:+.1f}", error_y=bars)
    menu = switch_views(fig, views)
    fig.update_layout(barmode="group")
    return lay_out(fig, title, y="gain, Spearman x 100", height=480, menu=menu)


def trick_bars(
    runs: Mapping[str, Rows],
    *,
    methods: Sequence[str] = ("none", "sn", "whiten:128", "flow"),
    title: str = "",
) -> go.Figure:
    """Chance that a pair that means the same beats a pair that only shares its words.

    ``runs``: rows of `run_kinds` for one layer choice, by the name of the model and layer.
    ``methods``: calibrators; one color each.

    Bars by model; a button for each kind of equal meaning against each trick. A line at 50:
    guessing.
    """

    def chance(rows: Rows, *duel: str) -> float | None:
        found = (r["auc"] for r in rows if (r["same"], r["trick"], r["calibrator"]) == duel)
        return next(found, None)

    duels = list(dict.fromkeys((r["same"], r["trick"]) for rows in runs.values() for r in rows))
    heights = {
        f"{same} over {trick}": [
            [chance(rows, same, trick, method) for rows in runs.values()] for method in methods
        ]
        for same, trick in duels
    }
    fig = _bars(runs, methods, heights, title, "AUC (50: guessing)")
    fig.add_hline(y=50, line={"dash": "dot", "color": PALETTE["gray"]})
    return fig.update_yaxes(range=[0, 100])


def influence_lines(
    runs: Mapping[str, Rows],
    *,
    methods: Sequence[str] = ("none", "sn", "whiten:128", "flow"),
    title: str = "",
) -> go.Figure:
    """Draw what a word weighs in the sentence's vector, against how rare it is.

    ``runs``: rows of `run_influence` for one layer choice, by the name of the model and layer; a
    button each.
    ``methods``: calibrators; one line each.
    """
    if not runs:
        raise ValueError("There is no run to draw.")
    views: dict[str, dict[str, list[Any]]] = {}
    for model, rows in runs.items():
        by = {row["calibrator"]: row for row in rows}
        nothing: dict[str, list[float]] = {"idf": [], "influence": []}
        found = [by.get(method, nothing) for method in methods]
        views[model] = {"x": [r["idf"] for r in found], "y": [r["influence"] for r in found]}
    axes = ("rarity of the token (idf)", "influence (1: like the sentence's others)")
    return _lines(views, methods, "idf %{x:.1f}: weight %{y:.2f}", title, axes)


def weight_slider(
    widths: Mapping[int, Mapping[str, Sequence[float]]],
    count: Sequence[float],
    *,
    others: Mapping[str, Sequence[float]] | None = None,
    active: int = 0,
    title: str = "",
) -> go.Figure:
    """Draw what a shared word counts after whitening random word vectors; a slider for their width.

    ``widths``: width of the vectors -> ``"measured"`` and ``"predicted"`` weight of the words in
    each class of rarity, relative to the rarest. ``count``: how many sentences have the words of
    each class. ``others``: weights that do not depend on the width, by name, such as TF-IDF's.
    ``active``: at which of the widths the slider stands at first.

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
    looks = {
        "measured": Look("measured", "", PALETTE["gray"]),
        "predicted": Look("predicted", "", PALETTE["blue"]),
        **looks_of(others),
    }
    fig = go.Figure()
    for width, by in widths.items():
        for name, weights in {**{key: by[key] for key in list(looks)[:2]}, **others}.items():
            y = [round(float(weight), 4) for weight in weights]
            hover = f"width {width}, in %{{x:.0f}} sentences: %{{y:.2f}}"
            mode = "markers" if name == "measured" else "lines"
            draw(fig, looks[name], list(count), y, hover, mode)
    add_slider(fig, [str(one) for one in widths], prefix="width of the vectors: ", active=active)
    fig.update_xaxes(type="log")
    fig.update_yaxes(rangemode="tozero")
    across, up = "sentences that have the word", "weight of a shared word (rarest: 1)"
    return lay_out(fig, title, across, up, height=500)
