"""Figures of the chapter on anisotropy, from what `experiments.geometry.run_geometry` gives."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.figures.drawing import draw, lay_out, whiskers
from bertflow_lite.figures.plots import PALETTE, Look, looks_of, series, short_name

_PRINTED = load_paper_table(1)
PAPER_TABLE1: dict[str, Any] = {
    "norm": _PRINTED["mean_l2_norm"],
    "distance": _PRINTED["mean_knn_l2_dist"],
    "dot": _PRINTED["mean_knn_dot_product"],
}
"""Table 1 of the paper (BERT-base)."""
# Two panels stand side by side on a phone, too.
_LAYER = "layer (0 is the<br>embedding layer)"
_BIN_NAMES = ["0 to 99", "100 to 499", "500 to 4,999", "5,000 to 9,999"]


def plot_table1(tables: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """Table 1 of the paper beside that of some models: norm, distance, dot product by bin.

    ``tables``: for each model's name its ``run["words"]["table1"]``.

    Three panels. Each line is divided by its first value, since models differ in scale; the values
    themselves are in the hover text.
    """
    heads = ["norm", "distance to<br>3 nearest", "3 largest<br>dot products"]
    fig = make_subplots(1, 3, subplot_titles=heads)
    everyone = {"BERT-base (paper)": PAPER_TABLE1, **tables}
    for number, (name, table) in enumerate(everyone.items()):
        look = replace(series(number - 1, name), dash="solid")
        if number == 0:
            look = Look(name, name, PALETTE["gray"], "star", "dot")
        lines = [table["norm"], table["distance"]["3"], table["dot"]["3"]]
        for column, values in enumerate(lines, start=1):
            y = [value / values[0] for value in values]
            more = {"customdata": values, "legendgroup": name, "showlegend": column == 1}
            hover = "rank %{x}<br>%{customdata:.2f}"
            place = {"row": 1, "col": column}
            draw(fig, look, _BIN_NAMES, y, hover, "lines+markers", size=9, **more, **place)
    lay_out(fig, "Table 1, relative to the most frequent words", height=460, margin_t=80)
    fig.update_xaxes(title_text="rank of word frequency", col=2)
    return fig.update_yaxes(title_text="relative to the first bin", col=1)


def plot_word_norms(words: Mapping[str, Any]) -> go.Figure:
    """Norm of each shown word against its frequency rank, colored by its neighbors' distance.

    ``words``: a run's ``words``.
    """
    shown = words["shown"]
    # Plotly reads hover text as HTML, and some tokens are "<".
    beside = list(zip(shown["distance"], map(html.escape, shown["neighbors"]), strict=True))
    hover = (
        "<b>%{text}</b><br>rank %{x:,}<br>norm %{y:.2f}<br>distance to 7 nearest "
        "%{customdata[0]:.2f}<br>nearest: %{customdata[1]}"
    )
    fig = go.Figure()
    at = [rank + 1 for rank in shown["rank"]]
    more = {"text": shown["word"], "customdata": beside, "showlegend": False}
    draw(fig, Look("", "", PALETTE["gray"]), at, shown["norm"], hover, size=6, **more)
    bar = {"title": {"text": "distance<br>to 7<br>nearest"}}
    fig.data[0].marker.update(color=shown["distance"], colorscale="Cividis", colorbar=bar)
    fig.update_xaxes(type="log")
    across = "frequency rank in Wikipedia (1 = most frequent)"
    title = "Word norm against frequency: one dot a word"
    return lay_out(fig, title, across, "norm of the word embedding")


def plot_layers(layers: Mapping[str, Sequence[Mapping[str, Any]]]) -> go.Figure:
    """STS score, mean cosine, IsoScore and frequency's share, layer by layer.

    ``layers``: a run's ``layers``: for each set, the measures of each layer.
    """
    panels = {
        "STS score (Spearman x 100)": lambda m: m["sts"],
        "mean cosine of random pairs": lambda m: m["mean_cosine"]["estimate"],
        "IsoScore": lambda m: m["iso_score"],
        "share of top-5 variance: log frequency": lambda m: m["frequency"]["top"],
    }
    fig = make_subplots(
        2, 2, subplot_titles=["<br>".join(wrap(head, 20)) for head in panels], shared_xaxes=True
    )
    for number, (name, measures) in enumerate(layers.items()):
        look = replace(series(number, name), dash="solid")
        at = list(range(len(measures)))
        for panel, value in enumerate(panels.values()):
            more: dict[str, Any] = {"legendgroup": name, "showlegend": panel == 0}
            if panel == 0:
                more["error_y"] = whiskers(
                    (m["sts"], m["sts_low"], m["sts_high"]) for m in measures
                )
            y = [value(m) for m in measures]
            place = {"row": panel // 2 + 1, "col": panel % 2 + 1}
            hover = "layer %{x}: %{y:.3g}"
            draw(fig, look, at, y, hover, "lines+markers", size=6, **more, **place)
    lay_out(fig, "Layer by layer", height=620, margin_t=80)
    return fig.update_xaxes(title_text=_LAYER, row=2)


def plot_first_token(
    first_token: Sequence[Mapping[str, float]], layers: Sequence[Mapping[str, Any]]
) -> go.Figure:
    """Norm of the first token beside the others', and the STS score with and without it.

    ``first_token``: a run's ``first_token``. ``layers``: the measures of the same set in the run's
    ``layers``.
    """
    fig = make_subplots(1, 2, subplot_titles=["mean norm<br>of a token", "STS score"])
    lines = [
        ("first token", 1, [m["first_norm"] for m in first_token], "vermillion", "square"),
        ("all other tokens", 1, [m["other_norm"] for m in first_token], "blue", "circle"),
        ("mean over all tokens", 2, [m["sts"] for m in layers], "vermillion", "diamond"),
        ("mean without the first", 2, [m["sts"] for m in first_token], "blue", "triangle-up"),
    ]
    for name, column, values, color, mark in lines:
        look, at = Look(name, name, PALETTE[color], mark), list(range(len(values)))
        place = {"row": 1, "col": column}
        draw(fig, look, at, values, "layer %{x}: %{y:.4g}", "lines+markers", size=7, **place)
    lay_out(fig, "One token closes the cone", _LAYER, margin_t=80)
    fig.update_yaxes(type="log", title_text="norm", col=1)
    return fig.update_yaxes(title_text="Spearman x 100", col=2)


def plot_calibrated(calibrated: Mapping[str, Mapping[str, Any]], *, x: str) -> go.Figure:
    """STS score with its interval against a measure of geometry, one mark a calibrator.

    ``calibrated``: one set and one layer choice of a run's ``calibrated``. ``x``: the measure, such
    as ``"iso_score"``.
    """
    titles = {
        "mean_cosine": "mean cosine of random pairs",
        "iso_score": "IsoScore (1 = isotropic)",
        "effective_rank": "effective rank",
        "partition_score": "partition score (1 = isotropic)",
    }
    if x not in titles:
        raise ValueError(f"x is {x!r}; it must be one of {', '.join(titles)}.")
    fig = go.Figure()
    for (method, m), look in zip(calibrated.items(), looks_of(calibrated).values(), strict=True):
        at = [m[x]["estimate"] if x == "mean_cosine" else m[x]]
        bars = whiskers([(m["sts"], m["sts_low"], m["sts_high"])])
        named = replace(look, name=short_name(method))
        draw(fig, named, at, [m["sts"]], "%{x:.3f}<br>STS %{y:.1f}", size=11, error_y=bars)
    title = "Does a more isotropic space score better?"
    return lay_out(fig, title, titles[x], "STS score (Spearman x 100)", height=480)


def plot_word_similarity(word_similarity: Mapping[str, Any]) -> go.Figure:
    """Spearman with people's ratings by calibration, on pairs of words of one token each.

    ``word_similarity``: a run's ``word_similarity``.
    """
    fig = go.Figure()
    for number, (name, result) in enumerate(word_similarity["sets"].items()):
        look = series(number, f"{name} ({result['n_one_token']} pairs)")
        x = [scores["one_token"] for scores in result["scores"].values()]
        draw(fig, look, x, list(map(short_name, result["scores"])), "%{y}: %{x:.1f}", size=11)
    fig.update_yaxes(autorange="reversed")
    title = "Word similarity, raw and calibrated"
    return lay_out(fig, title, "Spearman x 100 with people's ratings")
