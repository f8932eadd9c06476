"""Films of a small BERT that learns: its space, and what it writes into holes, step by step."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from bertflow_lite.figures.drawing import add_bars, add_film, draw, place_title
from bertflow_lite.figures.plots import PALETTE, Look

Run = Mapping[str, Any]
_ROW = 58  # pixels for a sentence and its guesses


def space_film(
    run: Run,
    of: str = "words",
    *,
    texts: Sequence[str] | None = None,
    color: Sequence[float] | None = None,
    color_title: str = "count in the corpus, log10",
    title: str = "",
) -> go.Figure:
    """Show a flat picture of the space after each kept step, with a slider and a play button.

    Every frame is divided by its spread, so that its shape can be seen; how large the space is
    shows elsewhere (`word_curves`).

    ``run``: results of a stored run, whose ``film`` is shown. ``of``: ``"words"`` or
    ``"sentences"``. ``texts``: what the points are; words bring their own, for sentences it is all
    sentences of the set of the film, from which its rows are taken. ``color``: a number for each
    point, or for each of ``texts``; words have the logarithm of their count. ``color_title``: title
    of the color bar.
    """
    if of not in ("words", "sentences"):
        raise ValueError(f"of is {of!r}; it must be 'words' or 'sentences'.")
    film = run["film"][of]
    if of == "words":
        names = list(film["word"])
        shade = np.log10(np.asarray(film["count"], dtype=float)) if color is None else color
    else:
        if texts is None or color is None:
            raise ValueError(f"give texts and color: the sentences of {film['set']}, in its order.")
        if len(texts) != len(color) or len(texts) <= max(film["row"]):
            raise ValueError(
                f"there are {len(texts)} texts and {len(color)} colors; {film['set']} has more "
                "sentences."
            )
        names = [texts[row] for row in film["row"]]
        shade = [color[row] for row in film["row"]]
    labels = [f"{snapshot['step']:,}" for snapshot in run["snapshots"]]
    points = [
        np.stack([np.array(x), np.array(y)], axis=1)
        for x, y in zip(film["x"], film["y"], strict=True)
    ]
    points = [frame / np.sqrt((frame**2).sum(axis=1).mean()) for frame in points]
    # The farthest points of a few frames would make all others small.
    limit = float(np.quantile([np.abs(frame).max() for frame in points], 0.8)) * 1.05
    texts_of = [
        f"directions: {_percent(first)} and {_percent(second)} of the variance"
        for first, second in film["share"]
    ]
    last = len(points) - 1
    fig = go.Figure()
    more: dict[str, Any] = {
        "text": [html.escape(name, quote=False) for name in names],
        "customdata": _short(shade, 2),
        "showlegend": False,
    }
    across, up = _short(points[0][:, 0]), _short(points[0][:, 1])
    dots = Look("", "", PALETTE["gray"])
    draw(fig, dots, across, up, "%{text}<br>%{customdata}", size=8, **more)
    fig.data[0].marker.update(
        color=_short(shade, 2),
        colorscale="Cividis",
        line={"color": PALETTE["gray"], "width": 0.5},
        colorbar={
            "title": {"text": color_title, "side": "top"},
            "orientation": "h",
            "thickness": 10,
            "y": 1,
            "yanchor": "bottom",
            "nticks": 5,
        },
    )
    _write_at(fig, [-0.97 * limit], [1.08 * limit], [texts_of[0]])
    fig.frames = [
        go.Frame(
            name=labels[k],
            traces=[0, 1],
            data=[
                go.Scatter(x=_short(points[k][:, 0]), y=_short(points[k][:, 1])),
                go.Scatter(text=[texts_of[k]]),
            ],
        )
        for k in range(last + 1)
    ]
    # Plotly moves a title up, out of the figure, where a color bar is below it.
    place = {"xref": "paper", "yref": "paper", "x": 0, "y": 1, "showarrow": False}
    fig.add_annotation(
        text=title, font={"size": 16}, xanchor="left", yanchor="top", yshift=122, **place
    )
    fig.update_layout(
        height=680,
        margin={"t": 130, "b": 30},
        xaxis={"title": "first direction", "range": [-limit, limit], "constrain": "domain"},
        yaxis={
            "title": "second direction",
            "range": [-limit, 1.16 * limit],
            "scaleanchor": "x",
            "constrain": "domain",
            "constraintoward": "top",
        },
    )
    return _with_controls(fig, labels)


def guess_slider(run: Run, *, title: str = "") -> go.Figure:
    """Show sentences with a hole and the three best guesses, with a slider for the steps.

    A bar under each sentence is the probability of the best guess. It opens at the last step.
    """
    sentences = run["settings"]["masked_sentences"]
    rows = list(range(len(sentences)))
    labels = [f"{snapshot['step']:,}" for snapshot in run["snapshots"]]
    written, heights = [], []
    for snapshot in run["snapshots"]:
        written.append([_write(guesses) for guesses in snapshot["guesses"]])
        heights.append([round(guesses[0][1], 4) for guesses in snapshot["guesses"]])
    fig = go.Figure()
    places = [-row - 0.27 for row in rows]
    bar: dict[str, Any] = {"orientation": "h", "width": 0.1}
    add_bars(fig, Look("", "", PALETTE["blue"]), heights[-1], places, "best guess: %{x:.1%}", **bar)
    holes = [html.escape(s, quote=False).replace("[MASK]", "____") for s in sentences]
    _write_at(fig, [0] * len(rows), [0.28 - row for row in rows], holes, size=13)
    _write_at(fig, [0] * len(rows), [-0.03 - row for row in rows], written[-1])
    fig.frames = [
        go.Frame(name=label, traces=[0, 2], data=[go.Bar(x=bars), go.Scatter(text=words)])
        for label, bars, words in zip(labels, heights, written, strict=True)
    ]
    fig.update_layout(
        title=place_title(title),
        height=_ROW * len(rows) + 215,
        margin={"t": 50, "b": 40, "l": 10},
        showlegend=False,
        xaxis={"title": "probability of the best guess", "range": [0, 1], "tickformat": ".0%"},
        yaxis={"range": [-len(rows) + 0.5, 0.6], "visible": False},
    )
    return _with_controls(fig, labels, active=len(labels) - 1)


def _write_at(
    fig: go.Figure, x: Sequence[float], y: Sequence[float], text: Sequence[str], size: int = 12
) -> None:
    """Add lines of text that begin at given places."""
    look = {"textposition": "middle right", "textfont": {"size": size}, "cliponaxis": False}
    fig.add_scatter(x=x, y=y, mode="text", text=text, hoverinfo="skip", showlegend=False, **look)


def _with_controls(fig: go.Figure, labels: Sequence[str], active: int = 0) -> go.Figure:
    """Add a slider over the frames, and buttons at the right of the title that play and stop."""
    place: dict[str, Any] = {"x": 1, "xanchor": "right", "pad": {"b": fig.layout.margin.t - 40}}
    played = {"Play": labels, "Stop": [None]}
    return add_film(fig, labels, played, prefix="step ", active=active, **place)


def _write(guesses: Sequence[Sequence[Any]]) -> str:
    return "  ·  ".join(
        f"<b>{html.escape(str(token), quote=False)}</b> {_percent(p)}" for token, p in guesses
    )


def _short(values: ArrayLike, digits: int = 3) -> list[float]:
    """Round to a list: an array would be written with all of its digits."""
    found: list[float] = np.round(np.asarray(values, dtype=float), digits).tolist()
    return found


def _percent(p: float) -> str:
    return "< 1 %" if p < 0.01 else f"{100 * p:.0f} %"
