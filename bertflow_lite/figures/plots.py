"""What all figures of the book share: palette, looks of methods, menus, legends, the renderer.

A method has one color, mark and dash in every chapter: `LOOKS`. A figure adds its traces by `draw`
and `add_bars` of `drawing`, and its titles, menu and legend by its `lay_out`.

The renderer emits each figure twice: as Plotly's JSON, which Jupyter and VS Code draw, and as HTML
without the library, which the built book and Colab draw. The HTML of equal figures is equal byte
for byte, so that running a notebook again changes nothing.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.io.base_renderers import MimetypeRenderer
from plotly.offline import get_plotlyjs_version

__all__ = ["LOOKS", "PALETTE", "RENDERER", "Look", "looks_of", "show", "use_book_renderer"]

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
}
"""Okabe and Ito's colors, told apart with any color vision; gray stands in for their black, and
their yellow, which cannot be seen on white, is left out."""
SET_NAMES = {"stsb": "STS-B", "sick-r": "SICK-R"} | {
    name: name for name in ("mini-sts", "mini-sts-plain", "mini-sts-both")
}
Rows = Sequence[Mapping[str, Any]]
"""Rows of a stored run."""
# Gray with the same contrast (4.0) on white as on the book's dark background. In the book itself,
# static/custom.css gives text the theme's own color.
INK = "#7B7F86"
_GRID = "rgba(128, 128, 128, 0.25)"
# Below: at the bottom of the figure; however many rows a legend needs, Plotly makes room for it.
BELOW = {"yref": "container", "y": 0, "yanchor": "bottom", "font": {"size": 12}}
_MENU_WIDTH = 50  # characters that fit a phone
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
    lines = {"gridcolor": _GRID, "linecolor": _GRID, "zerolinecolor": _GRID}
    axis = {**lines, "automargin": True, "title": {"font": {"size": 13}, "standoff": 8}}
    layout = go.Layout(
        autosize=True,
        height=420,
        colorway=list(PALETTE.values()),
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"family": "system-ui, sans-serif", "size": 14, "color": INK},
        title={
            **{"x": 0, "xref": "container", "y": 1, "yref": "container", "yanchor": "top"},
            "font": {"size": 16},
        },
        margin={"l": 50, "r": 15, "t": 50, "b": 45},
        legend={"orientation": "h", "x": 0.01, "xref": "container", "xanchor": "left", **BELOW},
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


@dataclass(frozen=True)
class Look:
    """How one thing is drawn, in every figure where it appears.

    Attributes
    ----------
    name, short : str
        What a legend calls it; the name that tables have room for.
    color : str
        Hexadecimal, of the palette.
    mark, dash : str
        Plotly's symbol of its points, and dash of its line: they tell it apart without color.
    """

    name: str
    short: str
    color: str
    mark: str = "circle"
    dash: str = "solid"


def _looks(rows: Mapping[str, tuple[str, str, str, str, str]]) -> dict[str, Look]:
    return {
        key: Look(name, short, PALETTE[color], mark, dash)
        for key, (name, short, color, mark, dash) in rows.items()
    }


LOOKS = _looks({
    "none": ("raw", "raw", "gray", "circle-open", "solid"),
    "sn": ("standardized", "SN", "orange", "square", "dash"),
    "centered": ("centered", "centered", "orange", "square-open", "longdash"),
    "natsv": ("top directions removed", "NATSV", "vermillion", "x", "dashdot"),
    "natsv:1": ("top direction removed", "NATSV:1", "vermillion", "x", "dashdot"),
    "sn+natsv": ("standardized, directions removed", "SN+NATSV", "sky", "cross", "longdash"),
    "no frequency": ("frequency removed", "no frequency", "vermillion", "x-open", "dashdot"),
    "whiten": ("whitened", "whitening", "green", "diamond", "dot"),
    "whiten:128": ("whitened, 128 directions", "whitening:128", "green", "diamond-open", "dashdot"),
    "zipf-whiten": ("Zipfian whitening", "Zipfian whitening", "green", "star-diamond", "longdash"),
    "flow": ("flow", "flow", "blue", "triangle-up", "solid"),
    "flow:nli": ("flow (NLI)", "flow (NLI)", "sky", "triangle-down", "dash"),
    "flow:released-code": ("released-code", "released-code", "sky", "pentagon", "dash"),
    "flow:recommended": ("recommended", "recommended", "blue", "star", "longdash"),
    "tfidf": ("TF-IDF", "TF-IDF", "purple", "triangle-left", "longdash"),
    "count": ("bag of words", "bag of words", "purple", "hexagon", "dot"),
    "edit distance": ("edit distance", "edit distance", "purple", "bowtie", "dash"),
    "people": ("people", "people", "vermillion", "hexagram", "dot"),
})  # fmt: skip
"""The one look of each method, in every chapter; weights by words alone are purple."""
# What a label may call a method; the first that is found decides.
_CALLED = (
    ("zipf", "zipf-whiten"),
    (r"tf-?idf", "tfidf"),
    (r"bag of words|word counts|words only", "count"),
    (r"\braw\b|^none$|no flow|no calibration", "none"),
    (r"released.code", "flow:released-code"),
    ("recommended", "flow:recommended"),
    (r"flow.*nli", "flow:nli"),
    (r"flow|^paper$", "flow"),
    (r"whiten.*(third|width|\d)", "whiten:128"),
    ("whiten", "whiten"),
    (r"sn ?\+ ?natsv", "sn+natsv"),
    (r"natsv|directions? removed", "natsv"),
    (r"standardized|^sn$", "sn"),
    ("centered", "centered"),
    ("frequency removed", "no frequency"),
    ("edit distance", "edit distance"),
    ("^people$", "people"),
)
_COLORS = ("blue", "orange", "green", "vermillion", "purple", "sky", "gray")
_MARKS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")


def series(number: int, name: str = "") -> Look:
    """Give the look of one of several things that are no methods, by its place among them."""
    k, turn = number % len(_COLORS), number // len(_COLORS)
    mark = _MARKS[k] + ("", "-open", "-dot", "-open-dot")[turn % 4]
    return Look(name, name, PALETTE[_COLORS[k]], mark, _DASHES[(k + turn) % len(_DASHES)])


def name_method(method: str) -> str:
    """Name a method, such as ``"sn"``, as legends do."""
    return LOOKS[method].name if method in LOOKS else method


def short_name(method: str) -> str:
    """Name a method as tables do.

    Examples
    --------
    >>> short_name("whiten"), short_name("sn+natsv:6")
    ('whitening', 'SN+NATSV:6')
    """
    if method in LOOKS:
        return LOOKS[method].short
    return method.replace("natsv", "NATSV").replace("sn+", "SN+")


def looks_of(labels: Iterable[str]) -> dict[str, Look]:
    """Give each label the look of the method that it names; different labels look different.

    Parameters
    ----------
    labels : iterable of str
        Such as ``"untrained, flow"``.  What names no method takes colors that are left.

    Returns
    -------
    dict of str to Look
        In the order of the labels, which are the names.

    Examples
    --------
    >>> looks = looks_of(["untrained, flow", "BERT-flow (target)", "USE"])
    >>> [(look.color, look.mark) for look in looks.values()]
    [('#0072B2', 'triangle-up'), ('#0072B2', 'triangle-up-open'), ('#E69F00', 'diamond')]
    """
    methods = {label: _method_of(label) for label in labels}
    found: dict[str, Look] = {}
    taken: set[tuple[str, str]] = set()
    # Methods choose first: what has no look of its own takes colors that they leave.
    for label in sorted(methods, key=lambda one: methods[one] is None):
        others = [series(k) for k in range(4 * len(_COLORS))]
        if (method := methods[label]) is not None:
            own = LOOKS[method]
            turned = own.mark.removesuffix("-open") if "-open" in own.mark else f"{own.mark}-open"
            other = "dot" if own.dash != "dot" else "dashdot"
            options = [own, replace(own, mark=turned, dash=other), *others]
        else:
            colors = {color for color, _ in taken}
            options = [*(look for look in others if look.color not in colors), *others]
        look = next((one for one in options if (one.color, one.mark) not in taken), others[0])
        taken.add((look.color, look.mark))
        found[label] = replace(look, name=label)
    return {label: found[label] for label in methods}


def _method_of(label: str) -> str | None:
    if label in LOOKS:
        return label
    return next((key for words, key in _CALLED if re.search(words, label.lower())), None)


def make_button(
    label: str, traces: Mapping[str, Any], layout: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Make a button that gives all traces new values, and the layout where it is given."""
    if layout is None:
        return {"label": label, "method": "restyle", "args": [traces]}
    return {"label": label, "method": "update", "args": [traces, layout]}


def make_menu(
    buttons: Sequence[dict[str, Any]], *, folded: bool = False, **more: Any
) -> list[dict[str, Any]]:
    """Make a row of buttons where they fit a phone, else a list that folds out.

    With fewer than two buttons there is nothing to choose, and no menu.  A list is made always
    where `folded` asks for it, such as where long names leave the axes little of a phone.
    """
    if len(buttons) < 2:
        return []
    few = not folded and sum(len(button["label"]) + 3 for button in buttons) <= _MENU_WIDTH
    menu = {
        "type": "buttons" if few else "dropdown",
        "direction": "right" if few else "down",
        "buttons": list(buttons),
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "pad": {"b": 6},
        "showactive": True,
        "bgcolor": "rgba(128, 128, 128, 0.15)",
        "font": {"size": 12},  # four buttons fit a phone
    }
    return [{**menu, **more}]


def switch_groups(
    fig: go.Figure,
    labels: Sequence[str],
    *,
    active: int = 0,
    layouts: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Show one group of traces, and make buttons that show the others.

    The traces come in ``len(labels)`` groups of equal size, one after the other.  `layouts` is what
    each button changes in the layout.
    """
    if not labels or len(fig.data) % len(labels):
        raise ValueError(
            f"The figure's {len(fig.data)} traces cannot be split evenly over {len(labels)} labels."
        )
    size = len(fig.data) // len(labels)
    groups = [[k // size == step for k in range(len(fig.data))] for step in range(len(labels))]
    for trace, visible in zip(fig.data, groups[active], strict=True):
        trace.visible = visible
    return [
        make_button(label, {"visible": group}, layouts[k] if layouts else None)
        for k, (label, group) in enumerate(zip(labels, groups, strict=True))
    ]


def switch_views(
    fig: go.Figure, views: Mapping[str, Mapping[str, Sequence[Any]]]
) -> list[dict[str, Any]]:
    """Give the traces the values of the first view, and make a button for each view.

    A view is, for each property that it changes, such as ``"error_y.array"``, a value a trace.
    """
    for key, values in next(iter(views.values())).items():
        for trace, value in zip(fig.data, values, strict=True):
            trace[key] = value
    return [make_button(label, view) for label, view in views.items()]


def make_slider(
    steps: Sequence[dict[str, Any]], *, prefix: str = "", active: int = 0
) -> list[dict[str, Any]]:
    """Make a slider over steps, each like a button."""
    slider = {
        "active": active,
        "steps": list(steps),
        "currentvalue": {"prefix": prefix, "font": {"size": 14}},
        "font": {"size": 12},
        "pad": {"t": 60},
        "bgcolor": _GRID,
        "activebgcolor": PALETTE["blue"],
    }
    return [slider]


def add_slider(
    fig: go.Figure, labels: Sequence[str], *, prefix: str = "", active: int = 0
) -> go.Figure:
    """Add a slider that shows one group of traces at a time (`switch_groups`), without a kernel.

    ``labels``: what it says at each position; ``prefix``: before that. ``active``: where it opens.
    """
    steps = switch_groups(fig, labels, active=active)
    return fig.update_layout(sliders=make_slider(steps, prefix=prefix, active=active))


def name_set(name: str) -> str:
    """Write a set's name as the paper does."""
    return SET_NAMES.get(name, name.upper())
