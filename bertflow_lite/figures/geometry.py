"""Figures of the chapter on anisotropy, from the dicts that `geometry_runs.run_geometry` gives."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from bertflow_lite.figures.plots import PALETTE, add_slider

__all__ = [
    "PAPER_TABLE1",
    "plot_calibrated",
    "plot_first_token",
    "plot_layers",
    "plot_sentences",
    "plot_spectra",
    "plot_table1",
    "plot_word_norms",
    "plot_word_similarity",
]

# Table 1 of the paper (BERT-base); its last bin is printed "[5K, 1K)" and means [5K, 10K).
PAPER_TABLE1: dict[str, Any] = {
    "norm": [0.95, 1.04, 1.22, 1.45],
    "distance": {
        "3": [0.77, 0.93, 1.16, 1.30],
        "5": [0.83, 0.99, 1.22, 1.34],
        "7": [0.87, 1.04, 1.26, 1.37],
    },
    "dot": {
        "3": [0.73, 0.92, 1.20, 1.63],
        "5": [0.73, 0.91, 1.19, 1.61],
        "7": [0.72, 0.90, 1.17, 1.60],
    },
}
_BIN_NAMES = ["0 to 99", "100 to 499", "500 to 4,999", "5,000 to 9,999"]
_COLORS = ["gray", "blue", "vermillion", "green", "purple", "orange", "sky", "yellow"]
_MARKS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon"]


def plot_table1(tables: Mapping[str, Mapping[str, Any]], *, k: int = 3) -> go.Figure:
    """Table 1 of the paper beside that of some models: norm, distance, dot product by bin.

    Parameters
    ----------
    tables : mapping of str to dict
        For each model's name its ``run["words"]["table1"]``.
    k : int, default 3
        Number of neighbors: 3, 5 or 7.

    Returns
    -------
    plotly.graph_objects.Figure
        Three panels. Each line is divided by its first value, since models differ in scale; the
        values themselves are in the hover text.
    """
    titles = ["norm", f"distance to {k} nearest", f"{k} largest dot products"]
    fig = make_subplots(1, 3, subplot_titles=titles)
    everyone = {"BERT-base (paper)": PAPER_TABLE1, **tables}
    for number, (name, table) in enumerate(everyone.items()):
        lines = [table["norm"], table["distance"][str(k)], table["dot"][str(k)]]
        for column, values in enumerate(lines, start=1):
            fig.add_scatter(
                x=_BIN_NAMES,
                y=[value / values[0] for value in values],
                customdata=values,
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                mode="lines+markers",
                line={"color": _color(number), "dash": "dot" if number == 0 else "solid"},
                marker={"symbol": _MARKS[number % len(_MARKS)], "size": 9},
                hovertemplate="%{fullData.name}<br>rank %{x}<br>%{customdata:.2f}<extra></extra>",
                row=1,
                col=column,
            )
    fig.update_xaxes(title_text="rank of word frequency", col=2)
    fig.update_yaxes(title_text="relative to the first bin", col=1)
    fig.update_layout(title="Table 1, relative to the most frequent words", height=460)
    fig.update_layout(legend={"y": 1.1}, margin={"t": 110})
    return fig


def plot_word_norms(words: Mapping[str, Any]) -> go.Figure:
    """Norm of each shown word against its frequency rank, colored by its neighbors' distance.

    Parameters
    ----------
    words : dict
        A run's ``words``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    shown = words["shown"]
    fig = go.Figure()
    fig.add_scatter(
        x=[rank + 1 for rank in shown["rank"]],
        y=shown["norm"],
        mode="markers",
        marker={
            "color": shown["distance"],
            "colorscale": "Cividis",
            "size": 6,
            "colorbar": {"title": {"text": "distance<br>to 7<br>nearest"}},
        },
        text=shown["word"],
        # Plotly reads hover text as HTML, and some tokens are "<".
        customdata=list(zip(shown["distance"], map(html.escape, shown["neighbors"]), strict=True)),
        hovertemplate="<b>%{text}</b><br>rank %{x:,}<br>norm %{y:.2f}<br>distance to 7 nearest "
        "%{customdata[0]:.2f}<br>nearest: %{customdata[1]}<extra></extra>",
        showlegend=False,
    )
    fig.update_xaxes(type="log", title_text="frequency rank in Wikipedia (1 = most frequent)")
    fig.update_yaxes(title_text="norm of the word embedding")
    fig.update_layout(title="Word norm against frequency: one dot a word")
    return fig


def plot_layers(layers: Mapping[str, Sequence[Mapping[str, Any]]]) -> go.Figure:
    """STS score, mean cosine, IsoScore and frequency's share, layer by layer.

    Parameters
    ----------
    layers : mapping of str to list of dict
        A run's ``layers``: for each set, the measures of each layer.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    panels = [
        ("STS score (Spearman x 100)", lambda m: m["sts"]),
        ("mean cosine of random pairs", lambda m: m["mean_cosine"]["estimate"]),
        ("IsoScore", lambda m: m["iso_score"]),
        ("share of top-5 variance: log frequency", lambda m: m["frequency"]["top"]),
    ]
    fig = make_subplots(2, 2, subplot_titles=[title for title, _ in panels], shared_xaxes=True)
    for number, (name, measures) in enumerate(layers.items(), start=1):
        at = list(range(len(measures)))
        for panel, (_, value) in enumerate(panels):
            error = None
            if panel == 0:
                error = {
                    "array": [m["sts_high"] - m["sts"] for m in measures],
                    "arrayminus": [m["sts"] - m["sts_low"] for m in measures],
                    "thickness": 1,
                }
            fig.add_scatter(
                x=at,
                y=[value(m) for m in measures],
                error_y=error,
                name=name,
                legendgroup=name,
                showlegend=panel == 0,
                mode="lines+markers",
                line={"color": _color(number)},
                marker={"symbol": _MARKS[number], "size": 6},
                hovertemplate="%{fullData.name}, layer %{x}: %{y:.3g}<extra></extra>",
                row=panel // 2 + 1,
                col=panel % 2 + 1,
            )
    fig.update_xaxes(title_text="layer (0 is the embedding layer)", row=2)
    fig.update_layout(title="Layer by layer", height=620, legend={"y": 1.07}, margin={"t": 110})
    return fig


def plot_first_token(
    first_token: Sequence[Mapping[str, float]], layers: Sequence[Mapping[str, Any]]
) -> go.Figure:
    """Norm of the first token beside the others', and the STS score with and without it.

    Parameters
    ----------
    first_token : list of dict
        A run's ``first_token``.
    layers : list of dict
        The measures of the same set in the run's ``layers``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = make_subplots(1, 2, subplot_titles=["mean norm of a token", "STS score"])
    lines = [
        ("first token", 1, [m["first_norm"] for m in first_token], "vermillion", "square"),
        ("all other tokens", 1, [m["other_norm"] for m in first_token], "blue", "circle"),
        ("mean over all tokens", 2, [m["sts"] for m in layers], "vermillion", "diamond"),
        ("mean without the first", 2, [m["sts"] for m in first_token], "blue", "triangle-up"),
    ]
    for name, column, values, color, mark in lines:
        fig.add_scatter(
            x=list(range(len(values))),
            y=values,
            name=name,
            mode="lines+markers",
            line={"color": PALETTE[color]},
            marker={"symbol": mark, "size": 7},
            hovertemplate="%{fullData.name}, layer %{x}: %{y:.4g}<extra></extra>",
            row=1,
            col=column,
        )
    fig.update_yaxes(type="log", title_text="norm", col=1)
    fig.update_yaxes(title_text="Spearman x 100", col=2)
    fig.update_xaxes(title_text="layer (0 is the embedding layer)")
    fig.update_layout(title="One token closes the cone", legend={"y": 1.1}, margin={"t": 110})
    return fig


def plot_spectra(calibrated: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """Singular spectra, centered and divided by the largest, one line a calibrator.

    Parameters
    ----------
    calibrated : mapping of str to dict
        One set and one layer choice of a run's ``calibrated``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    for number, (name, measures) in enumerate(calibrated.items()):
        fig.add_scatter(
            x=measures["spectrum"]["index"],
            y=[value or None for value in measures["spectrum"]["value"]],  # no zero on a log axis
            name=_calibrator(name),
            mode="lines",
            line={"color": _color(number)},
            customdata=[measures["effective_rank"]] * len(measures["spectrum"]["index"]),
            hovertemplate="%{fullData.name}<br>direction %{x}: %{y:.3f} of the largest<br>"
            "effective rank %{customdata:.0f}<extra></extra>",
        )
    fig.update_xaxes(type="log", title_text="direction, strongest first")
    # Nulled directions are zero up to rounding; they would stretch the axis over 16 decades.
    fig.update_yaxes(type="log", title_text="singular value / largest", range=[-2.5, 0.1])
    fig.update_layout(title="Singular spectrum of the sentence embeddings")
    return fig


def plot_calibrated(calibrated: Mapping[str, Mapping[str, Any]], *, x: str) -> go.Figure:
    """STS score with its interval against a measure of geometry, one mark a calibrator.

    Parameters
    ----------
    calibrated : mapping of str to dict
        One set and one layer choice of a run's ``calibrated``.
    x : {"mean_cosine", "iso_score", "effective_rank", "partition_score"}
        The measure.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
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
    for number, (name, m) in enumerate(calibrated.items()):
        fig.add_scatter(
            x=[m[x]["estimate"] if x == "mean_cosine" else m[x]],
            y=[m["sts"]],
            error_y={"array": [m["sts_high"] - m["sts"]], "arrayminus": [m["sts"] - m["sts_low"]]},
            name=_calibrator(name),
            mode="markers",
            marker={"color": _color(number), "symbol": _MARKS[number % len(_MARKS)], "size": 11},
            hovertemplate="%{fullData.name}<br>%{x:.3f}<br>STS %{y:.1f}<extra></extra>",
        )
    fig.update_xaxes(title_text=titles[x])
    fig.update_yaxes(title_text="STS score (Spearman x 100)")
    fig.update_layout(
        title="Does a more isotropic space score better?",
        height=480,
        margin_t=60,
        legend={"y": -0.23, "yanchor": "top"},
    )
    return fig


def plot_word_similarity(word_similarity: Mapping[str, Any]) -> go.Figure:
    """Spearman with people's ratings by calibration, on pairs of words of one token each.

    Parameters
    ----------
    word_similarity : dict
        A run's ``word_similarity``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    for number, (name, result) in enumerate(word_similarity["sets"].items(), start=1):
        fig.add_scatter(
            x=[scores["one_token"] for scores in result["scores"].values()],
            y=[_calibrator(method) for method in result["scores"]],
            name=f"{name} ({result['n_one_token']} pairs)",
            mode="markers",
            marker={"color": _color(number), "symbol": _MARKS[number], "size": 11},
            hovertemplate="%{y}: %{x:.1f}<extra>%{fullData.name}</extra>",
        )
    fig.update_xaxes(title_text="Spearman x 100 with people's ratings")
    fig.update_yaxes(autorange="reversed")
    fig.update_layout(title="Word similarity, raw and calibrated")
    return fig


def plot_sentences(
    views: Mapping[str, Any],
    sentences: Sequence[str],
    *,
    method: str = "umap",
    kinds: Sequence[str] | None = None,
) -> go.Figure:
    """Map sentences, with a slider from raw to whitened to the flow's latent.

    Parameters
    ----------
    views : dict
        A run's ``views``.
    sentences : sequence of str
        ``pairs.sentences`` of the set that the views are of.
    method : {"umap", "pca"}, default "umap"
        Which coordinates.
    kinds : sequence of str, optional
        A kind for each of `sentences` (``[*pairs.kinds] * 2``): colors the marks by it, instead
        of by word frequency.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.

    Raises
    ------
    ValueError
        If `method` is unknown, or sentences or kinds are not those of the views.
    """
    if method not in ("umap", "pca"):
        raise ValueError(f"method is {method!r}; it must be 'umap' or 'pca'.")
    rows = views["row"]
    if max(rows) >= len(sentences):
        raise ValueError(
            f"The views are of the set {views['set']}; give its pairs.sentences, not "
            f"{len(sentences)} others."
        )
    if kinds is not None and len(kinds) != len(sentences):
        raise ValueError(f"There are {len(sentences)} sentences, but {len(kinds)} kinds.")
    names = [""] if kinds is None else sorted({kinds[row] for row in rows})
    fig = go.Figure()
    for space in views["coordinates"].values():
        for number, kind in enumerate(names):
            inside = [i for i, row in enumerate(rows) if kinds is None or kinds[row] == kind]
            frequency = [views["log_frequency"][i] for i in inside]
            look: dict[str, Any] = {
                "color": _color(number),
                "symbol": _MARKS[number % len(_MARKS)],
            }
            if kinds is None:
                bar = {"title": {"text": "mean log<br>word<br>frequency"}}
                look = {"color": frequency, "colorscale": "Cividis", "colorbar": bar}
            fig.add_scatter(
                x=[space[method]["x"][i] for i in inside],
                y=[space[method]["y"][i] for i in inside],
                text=[html.escape(sentences[rows[i]], quote=False) for i in inside],
                customdata=frequency,
                name=kind,
                mode="markers",
                marker={**look, "size": 6},
                hovertemplate="%{text}<br>mean log frequency %{customdata:.1f}<extra></extra>",
                showlegend=kinds is not None,
            )
    fig.update_xaxes(title_text=f"{method.upper()} 1")
    fig.update_yaxes(title_text=f"{method.upper()} 2")
    fig.update_layout(
        title=f"Sentences of {views['set']}, {method.upper()}",
        height=560 if kinds is None else 640,
        margin_t=75 if kinds is None else 150,  # a legend of nine kinds needs three rows
    )
    labels = [_calibrator(name) for name in views["coordinates"]]
    return add_slider(fig, labels, prefix="Space: ")


def _color(number: int) -> str:
    return PALETTE[_COLORS[number % len(_COLORS)]]


def _calibrator(name: str) -> str:
    words = {"none": "raw", "sn": "SN", "whiten": "whitening", "zipf-whiten": "Zipfian whitening"}
    return words.get(name, name.replace("natsv", "NATSV").replace("sn+", "SN+"))
