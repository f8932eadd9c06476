"""Plotly figures for the book: one look, one renderer, and small helpers.

The renderer emits each figure twice: as Plotly's JSON, which Jupyter and VS Code draw, and as HTML
without the library, which the built book and Colab draw. The HTML of equal figures is equal byte
for byte, so that running a notebook again changes nothing.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.io.base_renderers import MimetypeRenderer
from plotly.offline import get_plotlyjs_version

__all__ = [
    "BELOW",
    "METHOD_NAMES",
    "PALETTE",
    "RENDERER",
    "SET_NAMES",
    "Rows",
    "add_slider",
    "grouped_bars",
    "make_menu",
    "name_set",
    "show",
    "use_book_renderer",
]

RENDERER = "bertflow"
"""Name of the renderer and of the template in Plotly's registries."""
PALETTE = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermillion": "#D55E00",
    "sky": "#56B4E9",
    "purple": "#CC79A7",
    "gray": "#7B7F86",
    "yellow": "#F0E442",
}
"""Okabe and Ito's colors, told apart with any color vision; gray stands in for their black."""
# Gray with the same contrast (4.0) on white as on the book's dark background. In the book itself,
# static/custom.css gives text the theme's own color.
_INK = "#7B7F86"
_GRID = "rgba(128, 128, 128, 0.25)"
_CONFIG = {"responsive": True, "displaylogo": False}
# Where the page has a tag for the library (the built book has: book/book_site.py), wait for it;
# else (Colab, before a notebook is run) fetch the library once, from its public address.
_SCRIPT = """\
(function () {
  var script = document.currentScript;
  var box = (script && script.previousElementSibling) || document.getElementById("@ID@");
  var figure = @FIGURE@;
  function draw() { Plotly.newPlot(box, figure); }
  function fail() { box.textContent = box.parentNode.getAttribute("aria-label"); }
  if (window.Plotly) { draw(); return; }
  var library = document.getElementById("plotly-library");
  var address = "@ADDRESS@";
  if (!library && address) {
    library = document.createElement("script");
    library.id = "plotly-library";
    library.src = address;
    document.head.appendChild(library);
  }
  if (!library) { fail(); return; }
  library.addEventListener("load", draw);
  library.addEventListener("error", fail);
})();"""


def _template() -> go.layout.Template:
    axis = {"gridcolor": _GRID, "linecolor": _GRID, "zerolinecolor": _GRID, "automargin": True}
    layout = go.Layout(
        autosize=True,
        height=420,
        colorway=list(PALETTE.values()),
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"family": "system-ui, sans-serif", "size": 14, "color": _INK},
        title={"x": 0, "xref": "paper", "y": 0.98, "yanchor": "top", "font": {"size": 16}},
        margin={"l": 50, "r": 15, "t": 75, "b": 45},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        hoverlabel={"bgcolor": "#FFFFFF", "font": {"color": "#1A1A1A"}},
        xaxis=axis,
        yaxis=axis,
        colorscale={"sequential": "Cividis", "diverging": "RdBu"},
    )
    return go.layout.Template(layout=layout)


class _BookRenderer(MimetypeRenderer):
    """Emit a figure as Plotly's JSON and as an HTML element without the library."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, Any]:
        figure = json.loads(pio.to_json(fig_dict, validate=False))
        figure["config"] = _CONFIG
        return {"application/vnd.plotly.v1+json": figure, "text/html": _to_html(figure)}


def _to_html(figure: dict[str, Any]) -> str:
    layout = figure.get("layout", {})
    text = json.dumps(figure, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    name = "figure-" + hashlib.sha256(text.encode()).hexdigest()[:12]
    script = (
        _SCRIPT.replace("@ID@", name)
        .replace("@ADDRESS@", f"https://cdn.plot.ly/plotly-{get_plotlyjs_version()}.min.js")
        .replace("@FIGURE@", text.replace("</", "<\\/").replace("<!--", "\\u003c!--"))
    )
    height = layout.get("height") or layout.get("template", {}).get("layout", {}).get("height", 420)
    label = html.escape(_alt_text(layout) or _title(layout) or "A figure", quote=True)
    return (
        f'<div class="bertflow-figure" role="figure" aria-label="{label}">'
        f'<div id="{name}" class="plotly-graph-div" style="height:{height}px;width:100%"></div>'
        f"<script>{script}</script></div>"
    )


def _alt_text(layout: dict[str, Any]) -> str:
    meta = layout.get("meta")
    return str(meta.get("alt", "")).strip() if isinstance(meta, dict) else ""


def _title(layout: dict[str, Any]) -> str:
    title = layout.get("title", {})
    return str(title.get("text") or "") if isinstance(title, dict) else str(title)


def use_book_renderer() -> None:
    """Make the book's renderer and template Plotly's default in this process."""
    pio.renderers[RENDERER] = _BookRenderer()
    pio.renderers.default = RENDERER
    pio.templates[RENDERER] = _template()
    pio.templates.default = RENDERER


def show(fig: go.Figure, alt: str | None = None) -> None:
    """Show a figure, with a description for those who cannot see it.

    Parameters
    ----------
    fig : plotly.graph_objects.Figure
        The figure. It is shown with Plotly's current default renderer.
    alt : str, optional
        What the figure shows, in one or two sentences: what is on the axes and what one sees. It is
        kept as ``fig.layout.meta["alt"]``, where it may also have been set before.

    Raises
    ------
    ValueError
        If there is no description, neither in `alt` nor in the figure.
    """
    if alt is not None:
        meta = fig.layout.meta if isinstance(fig.layout.meta, dict) else {}
        fig.update_layout(meta={**meta, "alt": alt})
    if not _alt_text(fig.to_dict().get("layout", {})):
        raise ValueError(
            "This figure has no description: pass alt='what it shows' to show(), "
            "for readers who cannot see it."
        )
    fig.show()


def add_slider(
    fig: go.Figure, labels: Sequence[str], *, prefix: str = "", active: int = 0
) -> go.Figure:
    """Add a slider that shows one group of traces at a time and works without a kernel.

    Parameters
    ----------
    fig : plotly.graph_objects.Figure
        Its traces come in ``len(labels)`` groups of equal size, one after the other.
    labels : sequence of str
        What the slider says at each position.
    prefix : str, optional
        Text before the current label.
    active : int, default 0
        Position at which the figure opens.

    Returns
    -------
    plotly.graph_objects.Figure
        The same figure.

    Raises
    ------
    ValueError
        If the traces cannot be split evenly over the labels.
    """
    if not labels or len(fig.data) % len(labels):
        raise ValueError(
            f"The figure's {len(fig.data)} traces cannot be split evenly over {len(labels)} labels."
        )
    size = len(fig.data) // len(labels)
    groups = [[k // size == step for k in range(len(fig.data))] for step in range(len(labels))]
    steps = [
        {"method": "restyle", "args": [{"visible": group}], "label": label}
        for label, group in zip(labels, groups, strict=True)
    ]
    for trace, visible in zip(fig.data, groups[active], strict=True):
        trace.visible = visible
    slider = {
        "active": active,
        "steps": steps,
        "currentvalue": {"prefix": prefix},
        "pad": {"t": 60},
        "bgcolor": _GRID,
        "activebgcolor": PALETTE["blue"],
    }
    fig.update_layout(sliders=[slider])
    return fig


Rows = Sequence[Mapping[str, Any]]
SET_NAMES = {"stsb": "STS-B", "sick-r": "SICK-R", "mini-sts": "mini-sts"}
METHOD_NAMES = {
    "none": "raw",
    "sn": "standardized",
    "natsv:1": "top direction removed",
    "whiten": "whitened",
    "whiten:128": "whitened, 128 directions",
    "flow": "flow",
    "tfidf": "TF-IDF",
    "count": "bag of words",
}
BELOW = {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.25, "yanchor": "top"}


def grouped_bars(
    groups: list[str], methods: Sequence[str], heights: list[list[float | None]]
) -> go.Figure:
    """Draw bars: a group for each of ``groups``, a color for each method."""
    fig = go.Figure()
    colors = ("gray", "orange", "green", "blue", "vermillion", "purple")
    for method, color, values in zip(methods, colors, heights, strict=False):
        label = METHOD_NAMES.get(method, method)
        fig.add_bar(
            x=groups,
            y=values,
            name=label,
            marker_color=PALETTE[color],
            hovertemplate="%{x}: %{y:.1f}<extra>" + label + "</extra>",
        )
    fig.update_layout(barmode="group", height=500, margin_t=110, legend=BELOW)
    return fig


def make_menu(buttons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make a row of buttons where they fit a phone, else a list that folds out."""
    if len(buttons) < 2:
        return []
    few = len(buttons) <= 4 and sum(len(button["label"]) for button in buttons) < 60
    return [
        {
            "type": "buttons" if few else "dropdown",
            "direction": "right" if few else "down",
            "buttons": buttons,
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "showactive": True,
            "bgcolor": "rgba(128,128,128,0.15)",
            "font": {"size": 12},
        }
    ]


def name_set(name: str) -> str:
    """Write a set's name as the paper does."""
    return SET_NAMES.get(name, name.upper())
