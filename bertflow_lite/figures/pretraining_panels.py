"""What the figures of a pre-training run share: panels over training steps, one above the other.

Steps are drawn on a log scale.  Step 0, the untrained model, has no place on one; it stands at the
left, behind a dotted line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.drawing import draw, error_bars, legend_rows, place_title
from bertflow_lite.figures.plots import PALETTE, Look, make_button, make_menu, series

Run = Mapping[str, Any]
Value = float | None
LEVEL = Look("", "", PALETTE["gray"], dash="dash")
"""Of a level that is no method's."""
_ZERO = -0.7  # where step 0 stands on an axis of log10(step); step 1 is at 0
# Pixels: a panel, its title, a row of its legend, what is under it; title and menu of the figure.
_PANEL, _HEAD, _LEGEND, _GAP, _TITLE, _MENU, _BOTTOM = 150, 36, 19, 24, 40, 48, 70


@dataclass(frozen=True)
class Line:
    """A line of a panel: a value for each snapshot, None where there is none.

    A single value is a level, drawn across the panel.  An error is half the length of its bar.
    Without a look, the line's place in the panel decides its color.
    """

    name: str
    y: Sequence[Value]
    error: Sequence[Value] | None = None
    look: Look | None = None
    dash: str = "solid"


@dataclass(frozen=True)
class Panel:
    """A panel over training steps, as high as `rows` usual ones; the y axis from low to high."""

    title: str
    axis: str
    lines: Sequence[Line]
    low: float | None = None
    high: float | None = None
    rows: int = 1


def step_places(steps: Sequence[int]) -> list[float]:
    """Place of each step on the axis.

    Examples
    --------
    >>> step_places([0, 1, 100])
    [-0.7, 0.0, 2.0]
    """
    return [round(math.log10(step), 4) if step else _ZERO for step in steps]


def stack_panels(
    panels: Sequence[Panel],
    steps: Sequence[int],
    tokens: Sequence[int],
    *,
    title: str = "",
    menu: bool = False,
) -> go.Figure:
    """Draw panels one above the other, over one axis of steps, with room for a menu if asked.

    The title of each panel is an annotation of the figure.
    """
    # Rows of each legend; a single line needs none, the panel's title names it.
    rows = [legend_rows([one.name for one in p.lines]) if len(p.lines) > 1 else 0 for p in panels]
    heads = [_HEAD + _LEGEND * count for count in rows]
    top = _TITLE + (_MENU if menu else 0) + heads[0]
    # The plot's area reaches from the first panel's top to the last one's bottom.
    inner = sum(p.rows * _PANEL for p in panels) + sum(heads[1:]) + _GAP * (len(panels) - 1)
    at = step_places(steps)
    seen = [f"step {s:,}, {_millions(t)}" for s, t in zip(steps, tokens, strict=True)]
    ends = (min(at) - 0.15, max(at) + 0.15)
    fig = go.Figure()
    down = 0.0
    for number, (panel, head) in enumerate(zip(panels, heads, strict=True), start=1):
        suffix = _suffix(number)
        _draw(fig, panel, at, seen, ends, suffix)
        high, low = 1 - down / inner, 1 - (down + panel.rows * _PANEL) / inner
        fig.layout[f"yaxis{suffix}"] = {
            "domain": [max(low, 0), high],
            "title": {"text": panel.axis, "font": {"size": 12}},
            "range": None if panel.low is None else [panel.low, panel.high],
            "nticks": 5,
            "zeroline": False,
        }
        place = {"xref": "paper", "yref": "paper", "x": 0, "y": high, "showarrow": False}
        above: dict[str, Any] = {
            "font_size": 13,
            "xanchor": "left",
            "yanchor": "top",
            "yshift": head - 4,
        }
        fig.add_annotation(text=_bold(panel.title), **above, **place)
        fig.layout[f"legend{suffix}"] = {
            "yref": "paper",
            "y": high + (head - 20) / inner,
            "yanchor": "top",
            "font": {"size": 12},
            "orientation": "h",
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
        }
        if 0 in steps:
            behind = {"x0": _ZERO / 2, "x1": _ZERO / 2, "y0": 0, "y1": 1}
            line = {"color": PALETTE["gray"], "width": 1, "dash": "dot"}
            fig.add_shape(type="line", yref=f"y{suffix} domain", line=line, **behind)
        down += panel.rows * _PANEL + _GAP + (heads[number] if number < len(panels) else 0)
    fig.update_xaxes(anchor=f"y{_suffix(len(panels))}", range=ends, **_step_axis(steps))
    fig.update_layout(
        title=place_title(title),
        height=inner + top + _BOTTOM,
        margin={"t": top, "b": _BOTTOM, "l": 60},
        hovermode="closest",
    )
    return fig


def _step_axis(steps: Sequence[int]) -> dict[str, Any]:
    farthest = max(step_places(steps))
    powers = [k for k in range(math.ceil(farthest) + 1) if k <= farthest + 0.15]
    zero = [_ZERO] if 0 in steps else []
    return {
        "tickvals": [*zero, *powers],
        "ticktext": [*("0" for _ in zero), *(f"{10**k:,}" for k in powers)],
        "tickangle": 0,
        "title": {"text": "training steps, log scale (0: untrained)", "font": {"size": 13}},
        "zeroline": False,
        "showspikes": True,
        "spikemode": "across",
        "spikethickness": 1,
        "spikedash": "dot",
        "spikecolor": PALETTE["gray"],
    }


def _draw(
    fig: go.Figure,
    panel: Panel,
    at: Sequence[float],
    seen: Sequence[str],
    ends: tuple[float, float],
    suffix: str,
) -> None:
    marked = 0
    for line in panel.lines:
        level = len(line.y) == 1
        if not level and len(line.y) != len(at):
            raise ValueError(f"{line.name!r} has {len(line.y)} values for {len(at)} snapshots.")
        look = line.look or replace(series(marked), dash=line.dash)
        marked += not level
        axes: dict[str, Any] = {"yaxis": f"y{suffix}", "legend": f"legend{suffix}"}
        draw(
            fig,
            replace(look, name=line.name),
            list(ends) if level else at,
            _heights(line),
            "%{y:.3~g}" if level else "%{text}<br>%{y:.3~g}",
            "lines" if level else "lines+markers",
            size=7,
            width=2,
            error_y=line.error and error_bars(line.error),
            text=None if level else list(seen),
            showlegend=len(panel.lines) > 1,
            **axes,
        )


def _heights(line: Line) -> list[Value]:
    return [*line.y, *line.y] if len(line.y) == 1 else list(line.y)


def _change_lines(views: Mapping[str, Sequence[Panel]]) -> list[dict[str, Any]]:
    """Make buttons that exchange the values of all lines, their names, and the titles."""
    buttons = []
    for label, panels in views.items():
        lines = [line for panel in panels for line in panel.lines]
        new: dict[str, Any] = {
            "y": [_heights(line) for line in lines],
            "name": [line.name for line in lines],
        }
        if any(line.error is not None for line in lines):
            new["error_y.array"] = [list(line.error or ()) for line in lines]
        titles: dict[str, str] = {}
        for number, panel in enumerate(panels, start=1):
            titles[f"annotations[{number - 1}].text"] = _bold(panel.title)
            titles[f"yaxis{_suffix(number)}.title.text"] = panel.axis
        buttons.append(make_button(label, new, titles))
    return buttons


def _suffix(number: int) -> str:
    return "" if number == 1 else str(number)


def _bold(title: str) -> str:
    return f"<b>{title}</b>"


def _millions(tokens: int) -> str:
    return f"{tokens:,} pieces" if tokens < 1e6 else f"{tokens / 1e6:.1f} million pieces"


def draw_views(
    snapshots: Sequence[Mapping[str, Any]], views: Mapping[str, Sequence[Panel]], title: str
) -> go.Figure:
    """Draw panels over the steps of a run; a menu for the views, where there are several.

    All views have as many panels and lines.
    """
    steps, tokens = ([one[key] for one in snapshots] for key in ("step", "tokens"))
    first, several = next(iter(views.values())), len(views) > 1
    fig = stack_panels(first, steps, tokens, title=title, menu=several)
    # Between the figure's title and the first panel's.
    place = {"b": fig.layout.margin.t - 80}
    return fig.update_layout(updatemenus=make_menu(_change_lines(views), pad=place))


def snapshots_of(run: Run) -> Sequence[Mapping[str, Any]]:
    """Give the snapshots of a run, of which there is one at least."""
    found: Sequence[Mapping[str, Any]] = run["snapshots"]
    if not found:
        raise ValueError("The run has no snapshot: measure it first (pretrain-measure).")
    return found


def value_at(of: Mapping[str, Any], *path: Any) -> Any:
    """Follow keys into a snapshot."""
    found: Any = of
    for key in path:
        found = found[key]
    return found


def line_of(run: Run, name: str, *path: Any) -> Line:
    """Make a line of what stands under the same keys in each snapshot."""
    return Line(name, [value_at(snapshot, *path) for snapshot in snapshots_of(run)])


def loss_panel(run: Run) -> Panel:
    """Make the panel of the held-out loss, one piece masked at a time."""
    unigram = snapshots_of(run)[-1]["gain"]["unigram_loss"]
    lines = [line_of(run, "loss", "gain", "loss"), Line("frequencies only", [unigram], look=LEVEL)]
    return Panel("Loss on text that was held out", "nats", lines)


def name_bin(ranks: Sequence[Any]) -> str:
    """Name a range of frequency ranks.

    Examples
    --------
    >>> name_bin([500, 5000]), name_bin([10000, None])
    ('500–4,999', '10,000+')
    """
    low, high = ranks
    return f"{low:,}+" if high is None else f"{low:,}–{high - 1:,}"
