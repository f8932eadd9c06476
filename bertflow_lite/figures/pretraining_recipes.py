"""A figure of recipes for pre-training: what each change does to the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.pretraining_parts import place_title
from bertflow_lite.figures.pretraining_views import legend_below
from bertflow_lite.plots import PALETTE

__all__ = ["recipe_curves"]

_RECIPE_STYLES = ("solid", "dash", "longdash")
_ASIDE_STYLES = ("dot", "dashdot", "longdashdot")


def recipe_curves(run: Mapping[str, Any], *, title: str = "") -> go.Figure:
    """Held-out loss against tokens, a line for each recipe.

    Parameters
    ----------
    run : mapping
        Results of a stored comparison: ``recipes``, each with ``name``, ``why`` and ``curve``
        ([step, tokens, held-out loss], rising); ``settings``, maybe with ``unigram_loss``;
        maybe ``ladder``, how many of the first ones build on each other: the others are dotted.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.  The axis ends above the first recipe's start and all ends; a curve that
        begins higher comes in from above.

    Raises
    ------
    ValueError
        If there is no recipe, or one has no point after its first step.
    """
    recipes = run["recipes"]
    ladder = run.get("ladder", len(recipes))
    if not recipes:
        raise ValueError("The comparison has no recipe: run it again.")
    colors = [color for color in PALETTE if color not in ("gray", "yellow")]
    fig = go.Figure()
    farthest = 0.0
    for number, recipe in enumerate(recipes):
        curve = recipe["curve"]
        if len(curve) < 2:
            raise ValueError(f"The recipe {recipe['name']!r} has no point after its first step.")
        farthest = max(farthest, curve[-1][1])
        styles = _RECIPE_STYLES if number < ladder else _ASIDE_STYLES
        fig.add_scatter(
            x=[tokens for _, tokens, _ in curve],
            y=[loss for _, _, loss in curve],
            customdata=[step for step, _, _ in curve],
            name=recipe["name"],
            mode="lines+markers",
            line={
                "color": PALETTE[colors[number % len(colors)]],
                "dash": styles[number // len(colors) % len(styles)],
            },
            marker={"symbol": number % 8, "size": 7},
            hovertemplate="step %{customdata:,}, %{x:.3s} pieces: %{y:.2f} nats"
            f"<extra>{recipe['name']}</extra>",
        )
    if (level := run["settings"].get("unigram_loss")) is not None:
        fig.add_scatter(
            x=[0, farthest],
            y=[level, level],
            name="frequencies only",
            mode="lines",
            line={"color": PALETTE["gray"], "dash": "dash"},
            hovertemplate="frequencies only: %{y:.2f} nats<extra></extra>",
        )
    fig.update_xaxes(title="word pieces seen", tickformat="~s")
    curves = [[loss for *_, loss in recipe["curve"]] for recipe in recipes]
    # A bias that starts at zero begins far above all others, and would press them together.
    high = max(curves[0][0], *(curve[-1] for curve in curves)) + 0.05
    low = min(map(min, curves)) - 0.05
    fig.update_yaxes(title="held-out loss, nats", range=[low, high])
    fig.update_layout(title=place_title(title), hovermode="closest")
    return legend_below(fig)
