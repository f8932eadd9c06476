"""Figures of the PMI chapter: from the dicts of `toy_world` and `probe` to Plotly.

Every control lies inside the figure, so that it works in a static page.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from bertflow_lite.figures.drawing import add_bars, draw, lay_out
from bertflow_lite.figures.plots import (
    PALETTE,
    Look,
    add_slider,
    looks_of,
    make_button,
    series,
    switch_groups,
)

Run = Mapping[str, Any]
TERMS = {
    "PMI": PALETTE["blue"],
    "log p(x)": PALETTE["orange"],
    "lambda_c": PALETTE["purple"],
    "residual": PALETTE["gray"],
}
"""The terms of Eq. 3, and the color of each."""
_BLUE = Look("", "", PALETTE["blue"])


def terms_figure(heatmap: Run) -> go.Figure:
    """Draw the score matrix of the toy world and the terms of Eq. 3; a dropdown picks one.

    ``heatmap``: ``run_toy()["heatmap"]``.
    """
    contexts, words = heatmap["contexts"], heatmap["words"]
    pmi = np.array(heatmap["pmi"])
    log_p = np.tile(heatmap["log_p"], (len(contexts), 1))
    lambda_c = np.tile(np.array(heatmap["lambda_c"])[:, None], (1, len(words)))
    score = pmi + log_p + lambda_c
    layers = {
        "score h_c . w_x": score - score.mean(),
        "PMI(x, c)": pmi,
        "log p(x), mean taken off": log_p - log_p.mean(),
        "lambda_c, mean taken off": lambda_c - lambda_c.mean(),
    }
    limit = max(float(np.abs(z).max()) for z in layers.values())
    fig = go.Figure()
    for name, z in layers.items():
        fig.add_heatmap(
            x=words,
            y=contexts,
            z=[[round(value, 2) for value in row] for row in z.tolist()],
            zmin=-limit,
            zmax=limit,
            colorscale="RdBu",
            colorbar={"title": {"text": "nats"}},
            hovertemplate="%{y}<br>word %{x}<br>" + name + ": %{z:.2f}<extra></extra>",
        )
    menu = switch_groups(fig, list(layers))
    fig.update_xaxes(showticklabels=False)
    fig.update_yaxes(showticklabels=False)
    axes = ("words, sorted by topic", "contexts, sorted by main topic")
    return lay_out(fig, "The score and its three terms", *axes, height=480, menu=menu)


def width_figure(widths: Mapping[str, Run]) -> go.Figure:
    """Draw the residual against the width: the softmax bottleneck.

    ``widths``: ``run_toy()["widths"]``.
    """
    fig = go.Figure()
    names = {"product": "log-linear world", "mixture": "mixture world"}
    for number, (kind, curve) in enumerate(widths.items()):
        name, look = names.get(kind, kind), series(number)
        x = [row["width"] for row in curve["rows"]]
        y = [row["residual_std"] for row in curve["rows"]]
        fitted = replace(look, name=f"{name}, needs width {curve['needed_width']}")
        draw(fig, fitted, x, y, "%{x}: std %{y:.2g} nats", "lines+markers", size=7)
        least = [(row["width"], row["least_residual_std"]) for row in curve["rows"]]
        kept = [(at, bound) for at, bound in least if bound > 1e-9]
        lowest = replace(look, name=f"{name}, least possible", dash="dot")
        x, y = [at for at, _ in kept], [bound for _, bound in kept]
        draw(fig, lowest, x, y, "width %{x}<br>least std %{y:.2g} nats", "lines", width=1)
    fig.add_hline(y=0.01, line_dash="dash", line_color=PALETTE["gray"], annotation_text="0.01")
    fig.update_xaxes(type="log", dtick="D2")
    fig.update_yaxes(type="log", exponentformat="e")
    axes = ("width of the vectors", "std of h.w - log p* - lambda_c, nats")
    return lay_out(fig, "The softmax bottleneck", *axes, height=460)


def spectrum_slider_figure(rows: Sequence[Run]) -> go.Figure:
    """Draw cosine against overlap of context pairs; the slider changes A but no probability.

    ``rows``: ``run_toy()["shares_of_spectrum"]``.
    """
    fig = go.Figure()
    for row in rows:
        note = (
            f"mean cosine {row['mean cosine']:.2f};<br>correlation with overlap "
            f"{row['overlap']:.2f}, with topics {row['topics']:.2f}"
        )
        _cloud(fig, replace(_BLUE, name=note), row["x"], row["y"], "overlap")
    fig.update_yaxes(range=[-1.05, 1.05])
    labels = [f"{row['share']:.1f}" for row in rows]
    add_slider(fig, labels, prefix="share of the spread in h: ", active=len(rows) // 2)
    axes = ("overlap of p*(x|c) and p*(x|c')", "cosine of h_c and h_c'")
    return lay_out(fig, "The same softmax, other cosines", *axes, height=520)


def _cloud(fig: go.Figure, look: Look, x: Any, y: Any, axis: str) -> None:
    """Add points, one for each pair of contexts; their name says what was measured."""
    hover = axis + " %{x:.2f}<br>cosine %{y:.2f}"
    draw(fig, look, x, y, hover, size=5, opacity=0.6, showlegend=True)


def gauge_figure(gauge: Mapping[str, Run]) -> go.Figure:
    """Draw agreement with topics for solutions with one softmax, raw and whitened.

    ``gauge``: ``run_toy()["gauge"]``.
    """
    fig = go.Figure()
    keys = ("correlation with topics", "whitened: correlation with topics")
    looks = looks_of(["raw cosine", "cosine after whitening"])
    differences = [row["largest difference in log p"] for row in gauge.values()]
    for look, key in zip(looks.values(), keys, strict=True):
        y = [row[key] for row in gauge.values()]
        hover = "%{x}: %{y:.3f}<br>log p differs by at most %{customdata:.1e}"
        add_bars(fig, look, list(gauge), y, hover, customdata=differences)
    fig.update_layout(barmode="group")
    return lay_out(fig, "Four solutions, one p(x|c)", y="Spearman with topic similarity")


def reliance_figure(rows: Sequence[Run]) -> go.Figure:
    """Draw when removing frequency helps, in a panel for each meaning of similarity.

    ``rows``: ``run_toy()["reliance"]``.
    """
    references = ("topics", "overlap")
    fig = make_subplots(1, 2, subplot_titles=["same topics", "overlap"], shared_yaxes=True)
    x = [row["spread"] for row in rows]
    for name, look in looks_of(name for name in rows[0] if name != "spread").items():
        for column, reference in enumerate(references, 1):
            place = {"row": 1, "col": column, "showlegend": column == 1}
            y = [row[name][reference] for row in rows]
            draw(fig, look, x, y, "%{x}: Spearman %{y:.3f}", "lines+markers", size=7, **place)
    axis = "difference in leaning"  # short: there are two beside each other, also on a phone
    lay_out(fig, "When does removing frequency help?", axis, height=440, margin_t=80)
    return fig.update_yaxes(title_text="Spearman with the similarity", col=1)


def languages_figure(languages: Run) -> go.Figure:
    """Draw where the claim fails: contexts of two languages that share no word.

    ``languages``: ``run_toy()["languages"]``.
    """
    fig = go.Figure()
    for key, same, color, mark in (
        ("within", True, PALETTE["blue"], "circle"),
        ("across", False, PALETTE["vermillion"], "x"),
    ):
        chosen = [i for i, value in enumerate(languages["same"]) if value == same]
        correlation = languages[key]["correlation with topics"]
        look = Look(f"{key} a language: Spearman {correlation:.2f}", key, color, mark)
        x, y = ([languages[axis][i] for i in chosen] for axis in "xy")
        draw(fig, look, x, y, "topics %{x:.2f}<br>cosine %{y:.2f}", size=6, opacity=0.7)
    axes = ("cosine of the true topic weights", "cosine of h_c and h_c'")
    return lay_out(fig, "Contexts that share no word", *axes)


def neighbors_figure(items: Sequence[Run], what: str) -> go.Figure:
    """Draw nearest neighbors by dot product beside those by PMI; a dropdown picks the item.

    ``items``: ``run_toy()["neighbors"]["words"]`` or ``["contexts"]``, or those of `run_probe`.
    ``what``: what an item is, for instance ``"context"``.
    """
    if not items:
        raise ValueError("there are no items to show neighbors of.")
    columns = [_neighbor_columns(item) for item in items]
    fig = go.Figure(
        go.Table(
            columnwidth=[5, 2, 5, 2],
            header={
                "values": ["<b>by dot product</b>", "h.w", "<b>by PMI</b>", "PMI"],
                "align": "left",
                "fill": {"color": [PALETTE["sky"], PALETTE["sky"], *[PALETTE["orange"]] * 2]},
                "font": {"color": "#000000"},
            },
            cells={
                "values": columns[0],
                "align": "left",
                "height": 30,
                "font": {"size": 12},
                "fill": {"color": "rgba(0, 0, 0, 0)"},
            },
        )
    )
    menu = [
        make_button(
            "<br>".join(map(_text, wrap(item["name"][-70:], 44))), {"cells.values": [cells]}
        )
        for item, cells in zip(items, columns, strict=True)
    ]
    return lay_out(fig, f"Neighbors of a {what} (bold: in both lists)", height=560, menu=menu)


def scatter_figure(scatter: Run) -> go.Figure:
    """Draw the score against each term of Eq. 3 and their sum; a dropdown picks which.

    ``scatter``: ``run_probe()["scatter"]``.
    """
    columns = {
        "PMI(x, c)": scatter["pmi"],
        "log p(x)": scatter["log_p"],
        "lambda_c": scatter["lambda_c"],
    }
    columns["sum of all three"] = [sum(three) for three in zip(*columns.values(), strict=True)]
    kinds = {"evenly": PALETTE["gray"], "from p(x|c)": PALETTE["blue"]}
    rows = {kind: [i for i, d in enumerate(scatter["drawn"]) if d == kind] for kind in kinds}
    # The buttons move the points instead of switching traces: the texts are long, and stay.
    x = {
        name: [[round(values[i], 3) for i in chosen] for chosen in rows.values()]
        for name, values in columns.items()
    }
    fig = go.Figure()
    for (kind, color), across in zip(kinds.items(), x["PMI(x, c)"], strict=True):
        y = [round(scatter["score"][i], 3) for i in rows[kind]]
        text = [_text(f"{scatter['context'][i]} [{scatter['word'][i]}]") for i in rows[kind]]
        look, hover = Look(f"words drawn {kind}", kind, color), "%{text}<br>term %{x:.2f}"
        draw(fig, look, across, y, hover + "<br>score %{y:.2f}", size=5, opacity=0.6, text=text)
    menu = [
        make_button(name, {"x": values}, {"xaxis.title.text": f"{name}, nats"})
        for name, values in x.items()
    ]
    axes = ("PMI(x, c), nats", "score h_c . w_x")
    return lay_out(fig, "The score against its terms", *axes, height=480, menu=menu)


def frequency_figure(frequency: Run) -> go.Figure:
    """Draw the model's own p(x) against wordfreq's frequencies.

    ``frequency``: ``run_probe()["frequency"]``.
    """
    fig = go.Figure()
    hover = "%{text}<br>wordfreq %{x:.2f}<br>log p(x) %{y:.2f}"
    x, y, text = frequency["zipf"], frequency["log_p"], frequency["words"]
    draw(fig, _BLUE, x, y, hover, size=5, opacity=0.6, text=text)
    rho = frequency["spearman_wordfreq"]
    title = f"The model's word frequencies (Spearman {rho:.2f})"
    axes = (
        "wordfreq: log10 of the frequency per billion words",
        "log p(x), mean of p(x|c) over contexts",
    )
    return lay_out(fig, title, *axes)


def _text(text: str) -> str:
    """Make text safe for Plotly, which reads tags, and between two dollar signs LaTeX."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def _neighbor_columns(item: Run) -> list[list[str]]:
    """Names and values of both rankings, as columns of a table; shared names in bold."""
    shared = {name for name, _ in item["dot"]} & {name for name, _ in item["pmi"]}
    columns = []
    for key in ("dot", "pmi"):
        names = [(_text(name), name in shared) for name, _ in item[key]]
        columns.append([f"<b>{name}</b>" if bold else name for name, bold in names])
        columns.append([f"{value:.2f}" for _, value in item[key]])
    return columns
