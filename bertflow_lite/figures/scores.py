"""Figures over stored runs: scores by data set and with their intervals, effects of changes.

A menu inside the figure chooses the table that is shown, so that it works without a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from bertflow_lite.experiments.ablation import Effect
from bertflow_lite.figures.drawing import draw, error_bars, lay_out, whiskers
from bertflow_lite.figures.plots import (
    LOOKS,
    PALETTE,
    Look,
    looks_of,
    make_button,
    switch_groups,
    switch_views,
)

Interval = Sequence[float]
"""A score and the ends of its interval: ``(score, low, high)``; or ``(score,)`` without one."""
_DODGE = 0.25  # vertical distance of two series in one row, whose rows are 1 apart


def score_explorer(
    tables: Mapping[str, Mapping[str, Mapping[str, float]]],
    title: str = "",
    axis: str = "Spearman x 100",
) -> go.Figure:
    """Scores by data set, one marker a method; a menu chooses the table.

    ``tables``: menu entry -> method -> data set -> score. A method has one look in all tables.
    """
    looks = looks_of(name for table in tables.values() for name in table)
    sets = list(dict.fromkeys(s for t in tables.values() for by in t.values() for s in by))
    values = [v for t in tables.values() for by in t.values() for v in by.values()]
    if not values:
        raise ValueError("there is no score to draw: pass at least one table with one score.")

    def state(table: Mapping[str, Mapping[str, float]]) -> dict[str, list[Any]]:
        rows = [table.get(name, {}) for name in looks]
        return {
            "x": [[round(by[s], 2) if s in by else None for s in sets] for by in rows],
            "visible": [name in table for name in looks],
        }

    fig = go.Figure()
    for look in looks.values():
        draw(fig, look, None, sets, "%{y}: %{x:.2f}", size=11)
    menu = switch_views(fig, {label: state(table) for label, table in tables.items()})
    # One scale for all entries, so that they can be compared.
    fig.update_xaxes(range=[min(values) - 2, max(values) + 2])
    fig.update_yaxes(categoryorder="array", categoryarray=sets[::-1])
    return lay_out(fig, title, axis, height=500, menu=menu, folded=True)


def score_panels(
    tables: Mapping[str, Mapping[str, Mapping[str, float]]],
    title: str = "",
    axis: str = "Spearman x 100",
    *,
    columns: int = 2,
    lines: Mapping[str, float] | None = None,
) -> go.Figure:
    """Scores in small panels on one scale: a row for each set, one marker a method.

    Where `score_explorer` shows one table at a time, this one shows all of them side by side.

    ``tables``: title of a panel -> method -> row -> score; a method has one look in all panels.
    ``axis``: what the scores are; name the aggregation there. ``columns``: panels beside each
    other. ``lines``: title of a panel -> where a dotted vertical line stands in it.
    """
    values = [v for table in tables.values() for by in table.values() for v in by.values()]
    if not values:
        raise ValueError("there is no score to draw: pass at least one table with one score.")
    if columns < 1:
        raise ValueError(f"columns is {columns}; give 1 or more panels beside each other.")
    values += (lines or {}).values()
    pad = 0.04 * (max(values) - min(values)) or 1.0
    rows = list(dict.fromkeys(row for t in tables.values() for by in t.values() for row in by))
    looks = looks_of(name for table in tables.values() for name in table)
    columns = min(columns, len(tables))
    lanes = -(-len(tables) // columns)
    height = 60 + 28 * len(rows)  # of one panel, in pixels
    fig = make_subplots(
        lanes,
        columns,
        subplot_titles=list(tables),
        shared_yaxes=True,
        horizontal_spacing=0.05,
        vertical_spacing=min(54 / (height * lanes), 1 / lanes),
    )
    joint = Look("", "", "rgba(128,128,128,0.4)")
    named = set()  # a method's name stands in the legend once
    for k, (label, table) in enumerate(tables.items()):
        at: dict[str, Any] = {"row": k // columns + 1, "col": k % columns + 1}
        for row in rows:
            found = [by[row] for by in table.values() if row in by]
            if found:
                ends = [min(found), max(found)]
                draw(fig, joint, ends, [row, row], mode="lines", width=2, showlegend=False, **at)
        for name, by in table.items():
            x = [round(value, 2) for value in by.values()]
            group: dict[str, Any] = {"legendgroup": name, "showlegend": name not in named}
            draw(fig, looks[name], x, list(by), "%{y}: %{x:.1f}", size=10, **group, **at)
            named.add(name)
        if lines and label in lines:
            dotted = {"dash": "dot", "color": PALETTE["gray"]}
            fig.add_vline(x=round(lines[label], 2), line=dotted, **at)
    fig.update_xaxes(range=[min(values) - pad, max(values) + pad])
    fig.update_yaxes(categoryorder="array", categoryarray=rows[::-1])
    lay_out(fig, title, height=170 + height * lanes)
    fig.update_layout(margin_t=fig.layout.margin.t + 20)  # for the titles of the first panels
    for k in range(columns):
        fig.update_xaxes(title={"text": axis if k == 0 else ""}, row=lanes, col=k + 1)
    return fig.update_annotations(font={"size": 13})


def score_intervals(
    tables: Mapping[str, Mapping[str, Mapping[str, Interval]]],
    title: str = "",
    axis: str = "Spearman x 100",
    *,
    lines: Mapping[str, tuple[str, float]] | None = None,
    same_scale: bool = True,
) -> go.Figure:
    """Scores with their intervals, a row each; color and shape show the series.

    ``tables``: menu entry -> series -> row -> ``(score, low, high)``, or ``(score,)`` where no
    interval is known. Where several series have the same row, their marks stand below each other.
    ``lines``: menu entry -> what a dashed vertical line shows, and where it is. ``same_scale``: one
    range of the axis for all entries; else each has its own.
    """
    for label, table in tables.items():
        for by in table.values():
            for name, found in by.items():
                if len(found) == 3 and not found[1] <= found[0] <= found[2]:
                    raise ValueError(f"{label}, {name}: the interval {found} misses its score.")
    reaches = {label: _reach(table) for label, table in tables.items()}
    if not any(reaches.values()):
        raise ValueError("there is no score to draw: pass at least one table with one score.")
    looks = looks_of(name for table in tables.values() for name in table)
    wide = [value for reach in reaches.values() for value in reach]
    states: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {}
    for label, table in tables.items():
        rows = list(dict.fromkeys(row for by in table.values() for row in by))
        reach = wide if same_scale else reaches[label]
        traces = [_series(table.get(name, {}), rows, _offset(table, name)) for name in looks]
        text, place = (lines or {}).get(label, ("", None))
        traces.append({"x": [place, place], "y": [-0.5, len(rows) - 0.5], "name": text})
        axes = {
            "xaxis.range": [min(reach) - 2, max(reach) + 2],
            "yaxis.range": [len(rows) - 0.4, -0.6],
            "yaxis.tickvals": list(range(len(rows))),
            "yaxis.ticktext": rows,
        }
        states[label] = (traces, axes)
    first, axes = next(iter(states.values()))
    fig = go.Figure()
    for look, state in zip(looks.values(), first, strict=False):
        draw(fig, look, hover="%{text}", size=9, **state)
        fig.data[-1].error_x.update(color=look.color, thickness=1.5)
    level = Look(first[-1].pop("name"), "", PALETTE["gray"], dash="dash")
    draw(fig, level, **first[-1], mode="lines", width=1.5, showlegend=lines is not None)
    first[-1]["name"] = level.name
    menu = [
        make_button(label, _restyle(traces, list(looks)), axes)
        for label, (traces, axes) in states.items()
    ]
    most = max(len(axes["yaxis.ticktext"]) for _, axes in states.values())
    shared = any(_offset(table, name) for table in tables.values() for name in looks)
    lay_out(fig, title, axis, height=230 + (40 if shared else 26) * most, menu=menu, folded=True)
    # Small labels leave more of a narrow screen to the marks.
    fig.update_yaxes(tickfont={"size": 12}, zeroline=False)
    return fig.update_layout({key.replace(".", "_"): value for key, value in axes.items()})


def _reach(table: Mapping[str, Mapping[str, Interval]]) -> list[float]:
    return [value for by in table.values() for found in by.values() for value in found]


def _offset(table: Mapping[str, Mapping[str, Interval]], name: str) -> float:
    """Where a series stands within its rows: 0 unless it shares a row with another."""
    rows = [row for by in table.values() for row in by]
    if len(set(rows)) == len(rows) or name not in table:
        return 0.0
    return _DODGE * (list(table).index(name) - (len(table) - 1) / 2)


def _series(found: Mapping[str, Interval], rows: list[str], offset: float) -> dict[str, Any]:
    """Coordinates, whiskers and hover text of one series."""
    text = []
    for row, (score, *ends) in found.items():
        said = f"<br>95 % interval {ends[0]:.1f} to {ends[1]:.1f}" if ends else ""
        text.append(f"{row}: {score:.2f}{said}")
    return {
        "x": [round(values[0], 2) for values in found.values()],
        "y": [round(rows.index(row) + offset, 3) for row in found],
        "error_x": whiskers(found.values(), digits=2),
        "text": text,
        "visible": bool(found),
    }


def _restyle(traces: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Say what changes in all traces when a menu entry is chosen."""
    *marks, line = traces
    return {
        "x": [trace["x"] for trace in traces],
        "y": [trace["y"] for trace in traces],
        "text": [*(trace["text"] for trace in marks), None],
        "visible": [*(trace["visible"] for trace in marks), line["x"][0] is not None],
        "error_x.array": [*(trace["error_x"]["array"] for trace in marks), None],
        "error_x.arrayminus": [*(trace["error_x"]["arrayminus"] for trace in marks), None],
        "name": [*names, line["name"]],
    }


_BASE = "flow:paper"
# What is compared with it, and its look.
_SHOWN = {
    "whiten": LOOKS["whiten"],
    "best width": replace(LOOKS["whiten:128"], name="whitened, best width"),
    "flow:released-code": LOOKS["flow:released-code"],
    "flow:recommended": LOOKS["flow:recommended"],
}
_AGGREGATIONS = ("wmean", "all")


def mean_test_scores(
    results: Mapping[str, Any], aggregation: str = "wmean"
) -> dict[str, dict[str, float]]:
    """Average a stored test run over its sets (and, before that, over seeds).

    ``results``: results of a test run of the ablation: ``rows`` (`run_test`) and ``widths``.
    ``aggregation``: how each set's subsets are summed up.

    Calibrator -> layer choice -> mean Spearman x 100. ``"best width"`` is the whitening that was
    best in validation.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in results["rows"]:
        by_set = found.setdefault((row["calibrator"], row["layers"]), {})
        by_set.setdefault(row["data"], []).append(row[aggregation])
    means = {
        key: float(np.mean([np.mean(values) for values in by_set.values()]))
        for key, by_set in found.items()
    }
    table: dict[str, dict[str, float]] = {}
    for (calibrator, layers), mean in means.items():
        table.setdefault(calibrator, {})[layers] = mean
    # A width at or above the embeddings' own was run as the whole whitening.
    table["best width"] = {
        layers: means.get((width, layers), means["whiten", layers])
        for layers, width in results["widths"].items()
    }
    return table


def preset_dots(runs: Mapping[str, Mapping[str, Any]], title: str = "") -> go.Figure:
    """Compare whitening and two presets with the preset ``paper``, on the mean over test sets.

    ``runs``: label of a model -> results of its stored test run.

    A line for each model and layer choice, a mark for each calibrator: its score minus that of
    ``paper``. A button for each aggregation.
    """
    if not runs:
        raise ValueError("there are no test runs to draw: give one model's at least.")
    lines = [(model, layers) for model, run in runs.items() for layers in run["widths"]]
    names = [
        f"{model}, {f'block {layers}' if layers.isdigit() else layers}" for model, layers in lines
    ]
    x: dict[str, list[list[float]]] = {}
    for aggregation in _AGGREGATIONS:
        means = {model: mean_test_scores(run, aggregation) for model, run in runs.items()}
        x[aggregation] = [
            [round(means[model][one][of] - means[model][_BASE][of], 2) for model, of in lines]
            for one in _SHOWN
        ]
    fig = go.Figure()
    for look, values in zip(_SHOWN.values(), x["wmean"], strict=True):
        draw(fig, look, values, names, "%{y}: %{x:+.2f}", size=11)
        fig.data[-1].marker.line.update(width=2, color=look.color)
    axis = "points above paper ({})"
    menu = [
        make_button(one, {"x": x[one]}, {"xaxis.title.text": axis.format(one)})
        for one in _AGGREGATIONS
    ]
    fig.add_vline(x=0, line={"dash": "dot", "color": PALETTE["gray"]})
    fig.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    return lay_out(fig, title, axis.format("wmean"), height=230 + 42 * len(names), menu=menu)


def score_lines(
    lines: Mapping[str, Sequence[tuple[str, float]]], title: str = "", axis: str = ""
) -> go.Figure:
    """Scores along an ordered series of named places, such as the layers of a flow.

    ``lines``: name of a line -> name of each place, and the score there; at most three lines.
    """
    if not 1 <= len(lines) <= 3:
        raise ValueError(f"there are {len(lines)} lines; give 1 to 3 of them.")
    fig = go.Figure()
    for (name, look), line in zip(looks_of(lines).items(), lines.values(), strict=True):
        x, y = list(range(len(line))), [round(score, 2) for _, score in line]
        text = [place for place, _ in line]
        draw(fig, replace(look, name=name), x, y, "%{text}: %{y:.1f}", "lines+markers", text=text)
    places = [place for place, _ in max(lines.values(), key=len)]
    if len(places) <= 8:
        fig.update_xaxes(tickvals=list(range(len(places))), ticktext=places)
    return lay_out(fig, title, axis, "Spearman x 100")


def tuning_curves(
    curves: Mapping[str, Mapping[str, Mapping[int, float]]],
    levels: Mapping[str, Mapping[str, float]],
    title: str = "",
    *,
    x_axis: str,
) -> go.Figure:
    """Draw validation scores over a calibrator's setting, the best one ringed; a menu for encoders.

    ``curves``: menu entry -> calibrator -> setting (k, or a width) -> score. At most three
    calibrators. ``levels``: menu entry -> what has no such setting -> its score, drawn as a
    horizontal line. The same names in all entries, at most three.
    """
    names = list(dict.fromkeys(name for by in curves.values() for name in by))
    flat = list(dict.fromkeys(name for by in levels.values() for name in by))
    if not names:
        raise ValueError("there is no curve to draw: pass at least one calibrator's scores.")
    if len(names) > 3 or len(flat) > 3:
        raise ValueError(f"at most 3 curves and 3 levels; given: {', '.join([*names, *flat])}.")
    settings = [x for by in curves.values() for curve in by.values() for x in curve]
    ends = [min(settings), max(settings)]

    def state(label: str) -> dict[str, list[Any]]:
        x: list[list[Any]] = []
        y: list[list[Any]] = []
        for name in names:
            curve = curves[label].get(name, {})
            best = max(curve, key=lambda x: curve[x]) if curve else None
            x += [[*curve], [best]]
            y += [[round(v, 2) for v in curve.values()]]
            y += [[round(curve[best], 2) if best is not None else None]]
        for name in flat:
            level = levels.get(label, {}).get(name)
            x.append(ends)
            y.append([level and round(level, 2)] * 2)
        return {"x": x, "y": y}

    fig = go.Figure()
    looks = looks_of([*names, *flat])
    for name in names:
        look = looks[name]
        draw(fig, look, None, None, "%{x}: %{y:.2f}", "lines+markers", size=6)
        ring = replace(look, name=f"best {name}", mark="circle-open")
        draw(fig, ring, None, None, size=16, showlegend=False)
        fig.data[-1].marker.line.update(width=2, color=look.color)
    for name, dash in zip(flat, ("dash", "dot", "dashdot"), strict=False):
        draw(fig, replace(looks[name], dash=dash), None, None, "%{y:.2f}", "lines")
    menu = switch_views(fig, {label: state(label) for label in curves})
    return lay_out(fig, title, x_axis, "Spearman x 100, validation", height=480, menu=menu)


_STARTS = {
    "paper": replace(LOOKS["flow"], name="the paper's flow, changed"),
    "released-code": replace(LOOKS["flow:released-code"], name="the released code's, changed"),
    "reference": replace(LOOKS["none"], name="no flow"),
}


def effect_dots(effects: Mapping[str, Sequence[Effect]], title: str = "") -> go.Figure:
    """Effect of each change, with its standard deviation over seeds; a button for each model.

    ``effects``: label of the button -> from `summarize`. What diverged has no dot.
    """
    _check(effects)
    fig = go.Figure()
    axes: list[dict[str, Any]] = []
    for mine in effects.values():
        rows: dict[str, None] = {}
        for start, look in _STARTS.items():
            dots = [one for one in mine if one.start == start and one.part != "start"]
            dots = [one for one in dots if one.effect is not None]
            spread = [round(one.effect_sd or 0.0, 2) for one in dots]
            draw(
                fig,
                look,
                [round(one.effect or 0.0, 2) for one in dots],
                [_row(one) for one in dots],
                "%{y}: %{x:+.2f} ± %{error_x.array:.2f}, to %{customdata[0]:.2f}",
                size=9,
                error_x=error_bars(spread),
                customdata=[[round(one.score or 0.0, 2)] for one in dots],
            )
            rows |= dict.fromkeys(map(_row, dots))
        names = list(rows)[::-1]
        axes.append({"yaxis.categoryarray": names, "yaxis.range": [-0.7, len(names) - 0.3]})
    menu = switch_groups(fig, list(effects), layouts=axes)
    fig.add_vline(x=0, line={"color": PALETTE["gray"], "width": 1})
    height = 180 + 19 * max(len(one["yaxis.categoryarray"]) for one in axes)
    lay_out(fig, title, "effect in points (± sd)", height=height, menu=menu)
    return fig.update_yaxes(
        categoryorder="array",
        categoryarray=axes[0]["yaxis.categoryarray"],
        range=axes[0]["yaxis.range"],
        tickfont={"size": 11},
    )


def likelihood_scatter(effects: Mapping[str, Sequence[Effect]], title: str = "") -> go.Figure:
    """Bits per dimension against Spearman, a dot for each flow; a button for each model.

    ``effects``: label of the button -> from `summarize`; what has no density is left out.
    """
    _check(effects)
    fig = go.Figure()
    for mine in effects.values():
        for start in ("paper", "released-code"):
            dots = [
                one
                for one in mine
                if one.start == start and one.bits is not None and one.score is not None
            ]
            x = [round(one.bits or 0.0, 3) for one in dots]
            y = [round(one.score or 0.0, 2) for one in dots]
            hover = "%{text}<br>%{x:.2f} bits, Spearman %{y:.2f}"
            text = [_row(one) for one in dots]
            draw(fig, _STARTS[start], x, y, hover, size=10, opacity=0.8, text=text)
    menu = switch_groups(fig, list(effects))
    across, up = "bits per dimension (left: more likely)", "Spearman x 100, validation"
    return lay_out(fig, title, across, up, height=480, menu=menu)


def _check(effects: Mapping[str, Sequence[Effect]]) -> None:
    if not effects or not all(effects.values()):
        raise ValueError("there are no effects to draw: give those of one model at least.")


def _row(effect: Effect) -> str:
    """Name the line of a change; the two starts share it where the change is the same."""
    if effect.part == "start":
        return "as it is"
    same = effect.start == "reference" and effect.change.startswith(effect.part)
    # A phone has room for one line of 40 characters beside the dots.
    separator = ":<br>" if len(effect.part + effect.change) > 38 else ": "
    return effect.change if same else f"{effect.part}{separator}{effect.change}"
