"""Figures about the ablation: what each change does, and likelihood against rank correlation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.experiments.ablation_summary import Effect
from bertflow_lite.figures.drawing import draw, error_bars, lay_out
from bertflow_lite.figures.plots import LOOKS, PALETTE, switch_groups

__all__ = ["effect_dots", "likelihood_scatter"]

_STARTS = {
    "paper": replace(LOOKS["flow"], name="the paper's flow, changed"),
    "released-code": replace(LOOKS["flow:released-code"], name="the released code's, changed"),
    "reference": replace(LOOKS["none"], name="no flow"),
}


def effect_dots(effects: Mapping[str, Sequence[Effect]], title: str = "") -> go.Figure:
    """Effect of each change, with its standard deviation over seeds; a button for each model.

    Parameters
    ----------
    effects : mapping of str to sequence of Effect
        Label of the button -> from `summarize`.  What diverged has no dot.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure

    Raises
    ------
    ValueError
        If there are no effects.
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

    Parameters
    ----------
    effects : mapping of str to sequence of Effect
        Label of the button -> from `summarize`; what has no density is left out.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure

    Raises
    ------
    ValueError
        If there are no effects.
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
