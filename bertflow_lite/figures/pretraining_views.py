"""From a stored pre-training run to panels over its steps: what several figures need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.control_parts import make_menu
from bertflow_lite.figures.pretraining_parts import Line, Panel, change_lines, stack_panels

__all__ = [
    "Getter",
    "Run",
    "Value",
    "draw_views",
    "legend_below",
    "line_of",
    "loss_panel",
    "name_bin",
    "snapshots_of",
]

_ROW = 19  # pixels, of a legend

Run = Mapping[str, Any]
Value = float | None
Getter = Callable[[Mapping[str, Any]], Value]


def draw_views(run: Run, views: Mapping[str, Sequence[Panel]], title: str) -> go.Figure:
    """Draw panels over the steps of a run; a menu for the views, where there are several."""
    steps = [s["step"] for s in snapshots_of(run)]
    tokens = [s["tokens"] for s in snapshots_of(run)]
    menu = make_menu(change_lines(views))
    fig = stack_panels(next(iter(views.values())), steps, tokens, title=title, menu=bool(menu))
    for one in menu:  # between the figure's title and the first panel's
        one.update(y=1, yanchor="bottom", pad={"b": fig.layout.margin.t - 80})
    fig.update_layout(updatemenus=menu)
    return fig


def snapshots_of(run: Run) -> Sequence[Mapping[str, Any]]:
    """Give the snapshots of a run, of which there is one at least."""
    found: Sequence[Mapping[str, Any]] = run["snapshots"]
    if not found:
        raise ValueError("The run has no snapshot: measure it first (pretrain-measure).")
    return found


def line_of(run: Run, name: str, value: Getter) -> Line:
    """Make a line of one value of each snapshot."""
    return Line(name, [value(snapshot) for snapshot in snapshots_of(run)])


def loss_panel(run: Run) -> Panel:
    """Make the panel of the held-out loss, one piece masked at a time."""
    unigram = snapshots_of(run)[-1]["gain"]["unigram_loss"]
    return Panel(
        "Loss on text that was held out",
        "nats",
        [
            line_of(run, "loss", lambda s: s["gain"]["loss"]),
            Line("frequencies only", [unigram], color="gray", dash="dash"),
        ],
    )


def name_bin(ranks: Sequence[Any]) -> str:
    """Name a range of frequency ranks.

    Examples
    --------
    >>> name_bin([500, 5000]), name_bin([10000, None])
    ('500–4,999', '10,000+')
    """
    low, high = ranks
    return f"{low:,}+" if high is None else f"{low:,}–{high - 1:,}"


def legend_below(fig: go.Figure, height: int = 330, top: int = 50) -> go.Figure:
    """Put the legend under the axis title, with room for one entry a row on a phone."""
    bottom = 76 + _ROW * len(fig.data)
    return fig.update_layout(
        height=top + height + bottom,
        margin={"t": top, "b": bottom},
        legend={"y": -66 / height, "yanchor": "top", "font": {"size": 12}},
    )
