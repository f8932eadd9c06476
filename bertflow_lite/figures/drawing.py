"""What figures draw with: points, bars and error bars with a look, and the layout of a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from bertflow_lite.figures.plots import BELOW, PALETTE, Look, make_menu, make_slider

_PHONE = 300  # pixels for a legend on a screen of 400
_TITLE_WIDTH = 44  # characters that fit such a screen


def draw(
    fig: go.Figure,
    look: Look,
    x: Any,
    y: Any,
    hover: str = "",
    mode: str = "markers",
    *,
    size: float = 8,
    opacity: float | None = None,
    width: float | None = None,
    **more: Any,
) -> None:
    """Add points, a line, or both (``"lines+markers"``) with a look.

    Its name stands in the legend and beside `hover`, the template of the hover text (empty: none).
    `size` and `opacity` are those of the points, `width` that of the line.
    """
    if "markers" in mode:
        more["marker"] = {"color": look.color, "symbol": look.mark, "size": size}
        more["marker"] |= {"opacity": opacity} if opacity else {}
    if "lines" in mode:
        more["line"] = {"color": look.color, "dash": look.dash}
        more["line"] |= {"width": width} if width else {}
    fig.add_scatter(x=x, y=y, mode=mode, **_named(look.name, hover), **more)


def add_bars(
    fig: go.Figure, look: Look, x: Any, y: Any, hover: str = "%{x}: %{y:.1f}", **more: Any
) -> None:
    """Add bars with a look."""
    fig.add_bar(x=x, y=y, marker_color=look.color, **_named(look.name, hover), **more)


def _named(name: str, hover: str) -> dict[str, Any]:
    if not hover:
        return {"name": name or None, "hoverinfo": "skip"}
    # The name as it is: menus may exchange it.
    shown = "%{fullData.name}" if name else ""
    return {"name": name or None, "hovertemplate": f"{hover}<extra>{shown}</extra>"}


def add_histograms(
    fig: go.Figure, groups: Mapping[str, ArrayLike], bins: int, digits: int = 3
) -> None:
    """Add overlaid bars: how many percent of each group's cosines lie in each bin."""
    colors = ("gray", "blue", "orange", "green")
    centers = np.round((edges := np.linspace(-1, 1, bins + 1))[:-1] + 1 / bins, 4)
    for color, (name, values) in zip(colors, groups.items(), strict=False):
        add_bars(
            fig,
            Look(name, name, PALETTE[color]),
            centers,
            shares_of(values, edges, digits),
            "cosine %{x:.2f}: %{y:.1f} %",
            opacity=0.7,
        )
    fig.update_layout(barmode="overlay", bargap=0)


def shares_of(values: ArrayLike, edges: NDArray[np.float64], digits: int = 3) -> Any:
    """Give the percent of cosines in each bin."""
    count, _ = np.histogram(np.clip(np.asarray(values), -1, 1), edges)
    return np.round(100 * count / count.sum(), digits)


def whiskers(intervals: Iterable[Sequence[Any]], *, digits: int = 4) -> Any:
    """Make error bars of ``(estimate, low, high)``; none where there is an estimate alone."""
    found = [one if len(one) == 3 else (one[0], None, None) for one in intervals]
    up = [None if high is None else round(high - at, digits) for at, _, high in found]
    down = [None if low is None else round(at - low, digits) for at, low, _ in found]
    return error_bars(up, down)


def error_bars(up: Sequence[float | None], down: Sequence[float | None] | None = None) -> Any:
    """Make error bars of given lengths; the same down as up by default."""
    bars = {"type": "data", "array": list(up), "thickness": 1, "width": 3}
    return bars if down is None else {**bars, "symmetric": False, "arrayminus": list(down)}


def place_title(title: str) -> dict[str, Any]:
    """Put a figure's title at its upper edge, in lines that a phone has room for."""
    text = title if "<br>" in title else "<br>".join(wrap(title, _TITLE_WIDTH))
    # Plotly moves a title up by half of each further line.
    return {"text": text, "pad": {"t": 12 + 10 * text.count("<br>"), "l": 12}}


def lay_out(
    fig: go.Figure,
    title: str = "",
    x: str = "",
    y: str = "",
    *,
    height: int = 420,
    menu: Sequence[dict[str, Any]] = (),
    folded: bool = False,
    **layout: Any,
) -> go.Figure:
    """Give a figure its title, axis titles, menu and legend, with room for each of them.

    The figure has all of its traces, whose names are the legend, and its slider.  The menu, of
    buttons (`make_button`), stands under the title.  To the height, in pixels, comes what a legend
    needs beyond two rows.
    """
    place, room = place_title(title), make_menu(menu, folded=folded)
    top = 20 + (24 * (place["text"].count("<br>") + 1) if title else 0) + (38 if room else 0)
    fig.update_layout(
        title=place,
        height=height + 19 * max(_most_rows(fig, menu) - 2, 0),
        margin_t=top,
        updatemenus=room,
        legend=BELOW,
    )
    if x:
        fig.update_xaxes(title={"text": "<br>".join(wrap(x, _TITLE_WIDTH + 2))})
    if y:
        fig.update_yaxes(title={"text": y})
    return fig.update_layout(**layout)


def _most_rows(fig: go.Figure, menu: Sequence[dict[str, Any]]) -> int:
    """Count the rows of the legend on a phone, whatever the menu or the slider shows."""
    steps = [step.to_plotly_json() for slider in fig.layout.sliders for step in slider.steps]
    changes = [one["args"][0] for one in [*menu, *steps] if one["method"] != "animate"]
    states = [[t.visible is not False for t in fig.data]]
    states += [change["visible"] for change in changes if "visible" in change]
    named = [t.name if t.name and t.showlegend is not False else None for t in fig.data]
    shown = [
        {name for name, on in zip(named, state, strict=True) if name and on} for state in states
    ]
    return max(legend_rows(list(names)) if len(names) > 1 else 0 for names in shown)


def legend_rows(names: Sequence[str]) -> int:
    """Count the rows of a legend on a phone."""
    widths = [48 + 6.6 * len(name) for name in names]
    if sum(widths) <= _PHONE:
        return 1
    # Where they do not fit into one row, Plotly makes columns of equal width.
    return math.ceil(len(widths) / max(int(_PHONE / max(widths)), 1))


def add_film(
    fig: go.Figure,
    labels: Sequence[str],
    buttons: Mapping[str, Sequence[str | None]],
    *,
    prefix: str,
    active: int = 0,
    duration: int = 900,
    **menu: Any,
) -> go.Figure:
    """Add a slider over a figure's frames, named by `labels`, and buttons that play them.

    Each button has a label and the frames that it plays, each for `duration` milliseconds;
    ``[None]`` stops.  `active` is the frame that is shown at first.
    """

    def move(frames: Sequence[str | None], still: int, moving: int) -> list[Any]:
        frame = {"duration": still, "redraw": False}
        return [
            [*frames],
            {"mode": "immediate", "frame": frame, "transition": {"duration": moving}},
        ]

    steps = [
        {"label": label, "method": "animate", "args": move([label], 0, 250)} for label in labels
    ]
    played = [
        {"label": label, "method": "animate", "args": move(frames, duration, 2 * duration // 3)}
        for label, frames in buttons.items()
    ]
    return fig.update_layout(
        sliders=make_slider(steps, prefix=prefix, active=active),
        updatemenus=make_menu(played, showactive=False, **menu),
    )
