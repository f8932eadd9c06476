"""What the figures of a pre-training run share: panels over training steps, one above the other.

Steps are drawn on a log scale.  Step 0, the untrained model, has no place on one; it stands at the
left, behind a dotted line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.plots import PALETTE, make_menu

__all__ = [
    "MARKS",
    "Getter",
    "Line",
    "Panel",
    "Run",
    "Value",
    "change_lines",
    "draw_views",
    "legend_below",
    "line_of",
    "loss_panel",
    "name_bin",
    "place_title",
    "snapshots_of",
    "stack_panels",
    "step_places",
]

MARKS = (
    ("blue", "circle"),
    ("orange", "diamond"),
    ("green", "square"),
    ("vermillion", "triangle-up"),
    ("purple", "cross"),
)
"""Color and mark of a panel's lines, in turn: told apart without their colors, too."""
_ZERO = -0.7  # where step 0 stands on an axis of log10(step); step 1 is at 0
# Pixels: a panel, its title, a row of its legend, what is under it; title and menu of the figure.
_PANEL, _HEAD, _LEGEND, _GAP, _TITLE, _MENU, _BOTTOM = 150, 36, 19, 24, 40, 48, 70
_PHONE = 300  # width for a legend on a screen of 400


@dataclass(frozen=True)
class Line:
    """A line of a panel.

    Attributes
    ----------
    name : str
    y : sequence of float or None
        A value for each snapshot, None where there is none.  A single value is a level, drawn
        across the panel.
    error : sequence of float or None, optional
        Half the length of each error bar.
    color : str, optional
        Name in the palette; default: by the line's place in the panel.
    dash : str, default "solid"
    """

    name: str
    y: Sequence[float | None]
    error: Sequence[float | None] | None = None
    color: str | None = None
    dash: str = "solid"


@dataclass(frozen=True)
class Panel:
    """A panel over training steps.

    Attributes
    ----------
    title, axis : str
        What it shows; title of the y axis, with the unit.
    lines : sequence of Line
    low, high : float, optional
        Ends of the y axis.
    rows : int, default 1
        Height, in those of a usual panel.
    """

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
    """Draw panels one above the other, over one axis of steps.

    Parameters
    ----------
    panels : sequence of Panel
    steps, tokens : sequence of int
        Of each snapshot.
    title : str, default ""
    menu : bool, default False
        Leave room for a menu under the title.

    Returns
    -------
    plotly.graph_objects.Figure
        With one annotation, its title, for each panel.
    """
    heads = [_HEAD + _LEGEND * _legend_rows(panel) for panel in panels]
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
        fig.add_annotation(
            text=_bold(panel.title), xanchor="left", yanchor="top", yshift=head - 4, **place
        )
        fig.layout[f"legend{suffix}"] = {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": high + (head - 20) / inner,
            "yanchor": "top",
            "font": {"size": 12},
        }
        if 0 in steps:
            fig.add_shape(
                type="line",
                x0=_ZERO / 2,
                x1=_ZERO / 2,
                y0=0,
                y1=1,
                yref=f"y{suffix} domain",
                line={"color": PALETTE["gray"], "width": 1, "dash": "dot"},
            )
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


def _legend_rows(panel: Panel) -> int:
    """Rows of the legend on a phone; a single line needs none, the panel's title names it."""
    if len(panel.lines) < 2:
        return 0
    widths = [48 + 6.6 * len(line.name) for line in panel.lines]
    if sum(widths) <= _PHONE:
        return 1
    # Where they do not fit into one row, Plotly makes columns of equal width.
    return math.ceil(len(widths) / max(int(_PHONE / max(widths)), 1))


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
        color, symbol = MARKS[marked % len(MARKS)]
        marked += not level
        fig.add_scatter(
            x=list(ends) if level else at,
            y=_heights(line),
            error_y=_error(line),
            text=None if level else list(seen),
            name=line.name,
            mode="lines" if level else "lines+markers",
            line={"color": PALETTE[line.color or color], "dash": line.dash, "width": 2},
            marker={"symbol": symbol, "size": 7},
            hovertemplate=_hover(line),
            yaxis=f"y{suffix}",
            legend=f"legend{suffix}",
            showlegend=len(panel.lines) > 1,
        )


def _hover(line: Line) -> str:
    step = "" if len(line.y) == 1 else "%{text}<br>"
    return f"{step}{line.name}: %{{y:.3~g}}<extra></extra>"


def _heights(line: Line) -> list[float | None]:
    return [*line.y, *line.y] if len(line.y) == 1 else list(line.y)


def _error(line: Line) -> dict[str, Any] | None:
    if line.error is None:
        return None
    return {"type": "data", "array": list(line.error), "thickness": 1, "width": 3}


def change_lines(views: Mapping[str, Sequence[Panel]]) -> list[dict[str, Any]]:
    """Make menu buttons that exchange the values of all lines, their names, and the titles.

    Parameters
    ----------
    views : mapping of str to sequence of Panel
        Label -> panels with as many lines, but other values.
    """
    buttons = []
    for label, panels in views.items():
        lines = [line for panel in panels for line in panel.lines]
        new: dict[str, Any] = {
            "y": [_heights(line) for line in lines],
            "name": [line.name for line in lines],
            "hovertemplate": [_hover(line) for line in lines],
        }
        if any(line.error is not None for line in lines):
            new["error_y.array"] = [list(line.error or ()) for line in lines]
        titles: dict[str, str] = {}
        for number, panel in enumerate(panels, start=1):
            titles[f"annotations[{number - 1}].text"] = _bold(panel.title)
            titles[f"yaxis{_suffix(number)}.title.text"] = panel.axis
        buttons.append({"label": label, "method": "update", "args": [new, titles]})
    return buttons


def _suffix(number: int) -> str:
    return "" if number == 1 else str(number)


def _bold(title: str) -> str:
    return f"<b>{title}</b>"


def place_title(title: str) -> dict[str, Any]:
    """Put a figure's title at its upper edge, whatever the margins."""
    return {"text": title, "yref": "container", "y": 1, "yanchor": "top", "pad": {"t": 12}}


def _millions(tokens: int) -> str:
    if tokens < 1e6:
        return f"{tokens:,} pieces"
    return f"{tokens / 1e6:.1f} million pieces"


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
