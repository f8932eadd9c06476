"""Figures of a small BERT that learns: its sentences and their scores, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.control_parts import METHOD_NAMES, make_menu
from bertflow_lite.figures.pretraining_parts import Line, Panel, place_title
from bertflow_lite.figures.pretraining_views import (
    Getter,
    Run,
    Value,
    draw_views,
    legend_below,
    line_of,
    loss_panel,
    snapshots_of,
)
from bertflow_lite.plots import PALETTE

__all__ = ["LAYER_NAMES", "score_curves", "space_explorer", "spectrum_lines"]

LAYER_NAMES = {
    "last2avg": "last two (last2avg)",
    "last": "last",
    "first-last": "first and last",
}
"""What the menus call the layer choices."""

_SHADES = ("gray", "blue", "sky", "green", "orange", "vermillion", "purple")
_COLORS = {"none": "blue", "sn": "orange", "whiten": "green", "flow": "vermillion"}


def space_explorer(run: Run, *, title: str = "") -> go.Figure:
    """Sentences: cone, frequency, length, effective rank, and score, for a choice of layers.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Five panels over the same steps; a menu for the layers.
    """
    views = {}
    for layer in _layers(run):
        views[LAYER_NAMES.get(layer, layer)] = [
            loss_panel(run),
            Panel(
                "Two random sentences",
                "mean cosine",
                [line_of(run, "sentences", _of_layer(layer, "mean_cosine", "estimate"))],
                -0.05,
                1.05,
            ),
            Panel(
                "The strongest direction",
                "share",
                [
                    line_of(run, "of all variance", _of_layer(layer, "frequency", "variance", 0)),
                    line_of(run, "frequency in it", _of_layer(layer, "frequency", "explained", 0)),
                    line_of(run, "length in it", _of_layer(layer, "length", "explained", 0)),
                ],
                -0.05,
                1.05,
            ),
            Panel(
                "Effective rank of the sentences",
                "directions",
                [line_of(run, "sentences", _of_layer(layer, "effective_rank"))],
            ),
            Panel(
                f"{_name_set(run)}, by calibrator",
                "Spearman x 100",
                [_score(run, layer, name) for name in ("none", "whiten", "flow")],
            ),
        ]
    return draw_views(run, views, title)


def score_curves(run: Run, *, title: str = "") -> go.Figure:
    """STS scores, raw and calibrated, with what has learned nothing as levels; gain of the flow.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Two panels, the upper one of double height; a menu for the layers.  Error bars are the
        standard deviation over the seeds of the flow, where there are several.
    """
    base = run["baselines"]
    random = base["random vectors of pieces"]
    levels = [
        Line("TF-IDF", [base["tf-idf"]], color="gray", dash="dash"),
        Line("random, flow", [_mean(random["flow"])], color="gray", dash="dashdot"),
        Line("random", [_mean(random["none"])], color="gray", dash="dot"),
    ]
    views = {}
    for layer in _layers(run):
        scores = [_score(run, layer, name) for name in run["settings"]["calibrators"]]
        raw = _score(run, layer, "none").y
        gains = [
            replace(line, y=[_minus(a, b) for a, b in zip(line.y, raw, strict=True)], error=None)
            for line in scores[1:]
        ]
        views[LAYER_NAMES.get(layer, layer)] = [
            Panel(_name_set(run), "Spearman x 100", [*scores, *levels], rows=2),
            Panel("Gain over raw", "points", gains),
        ]
    return draw_views(run, views, title)


def spectrum_lines(run: Run, *, every: int = 3, title: str = "") -> go.Figure:
    """Singular spectra of some snapshots, divided by the largest value; a menu for the space.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    every : int, default 3
        Show each third snapshot, counted from the last one; and the first.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    snapshots = [s for k, s in enumerate(snapshots_of(run)[::-1]) if k % every == 0][::-1]
    if snapshots[0]["step"] != snapshots_of(run)[0]["step"]:
        snapshots.insert(0, snapshots_of(run)[0])
    spaces = {"words": [s["words"]["spectrum"] for s in snapshots]}
    for layer in run["settings"]["layers"]:
        spaces[f"sentences, {layer}"] = [s["sentences"][layer]["spectrum"] for s in snapshots]
    fig = go.Figure()
    for number, (snapshot, spectrum) in enumerate(zip(snapshots, spaces["words"], strict=True)):
        fig.add_scatter(
            x=spectrum["index"],
            y=_positive(spectrum["value"]),
            name=f"step {snapshot['step']:,}",
            mode="lines",
            line={"color": PALETTE[_SHADES[number % len(_SHADES)]], "dash": _dash(number)},
            hovertemplate="direction %{x}: %{y:.3f} of the largest<extra>%{fullData.name}</extra>",
        )
    buttons = [
        {
            "label": name,
            "method": "restyle",
            "args": [
                {
                    "x": [one["index"] for one in spectra],
                    "y": [_positive(one["value"]) for one in spectra],
                }
            ],
        }
        for name, spectra in spaces.items()
    ]
    fig.update_xaxes(type="log", title="direction, strongest first (log scale)", dtick=1)
    fig.update_yaxes(
        type="log", title="singular value / largest", range=[_lowest(spaces), 0.05], dtick=1
    )
    fig.update_layout(title=place_title(title), updatemenus=make_menu(buttons))
    return legend_below(fig, top=100)


def _lowest(spaces: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """Give a lower end for a log axis; nulled directions are zero up to rounding."""
    values = [v for spectra in spaces.values() for one in spectra for v in one["value"]]
    return max(math.log10(min(v for v in values if v > 1e-3)), -2.5) - 0.1


def _layers(run: Run) -> list[str]:
    known = [layer for layer in LAYER_NAMES if layer in run["settings"]["layers"]]
    return known + [layer for layer in run["settings"]["layers"] if layer not in known]


def _of_layer(layer: str, *keys: Any) -> Getter:
    def value(snapshot: Mapping[str, Any]) -> float:
        found: Any = snapshot["sentences"][layer]
        for key in keys:
            found = found[key]
        return float(found)

    return value


def _score(run: Run, layer: str, calibrator: str) -> Line:
    seeds = [snapshot["sts"][layer][calibrator] for snapshot in snapshots_of(run)]
    error = [_deviation(values) for values in seeds]
    return Line(
        METHOD_NAMES.get(calibrator, calibrator),
        [_mean(values) for values in seeds],
        error if any(error) else None,
        _COLORS.get(calibrator),
    )


def _name_set(run: Run) -> str:
    names = {"stsb-dev": "STS-B, validation"}
    name = str(run["settings"]["set"])
    return names.get(name, name)


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)


def _deviation(values: Sequence[float]) -> Value:
    if len(values) < 2:
        return None
    middle = sum(values) / len(values)
    return round(math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1)), 3)


def _minus(a: Value, b: Value) -> Value:
    return None if a is None or b is None else round(a - b, 3)


def _positive(values: Sequence[float]) -> list[float | None]:
    return [value or None for value in values]  # no zero on a log axis


def _dash(number: int) -> str:
    return ("solid", "dash", "dot", "dashdot")[number % 4]
