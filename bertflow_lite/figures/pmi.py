"""Figures of the PMI chapter: from the dicts of `pmi_toy` and `pmi_probe` to Plotly.

Every control lies inside the figure, so that it works in a static page.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.plots import PALETTE, add_slider

__all__ = [
    "agreement_figure",
    "frequency_figure",
    "gauge_figure",
    "languages_figure",
    "neighbors_figure",
    "probe_similarity_figure",
    "reliance_figure",
    "scatter_figure",
    "shares_figure",
    "spectrum_slider_figure",
    "terms_figure",
    "width_figure",
]

Run = Mapping[str, Any]
TERM_COLORS = {
    "PMI": PALETTE["blue"],
    "log p(x)": PALETTE["orange"],
    "lambda_c": PALETTE["purple"],
    "residual": PALETTE["gray"],
}
LINE_STYLES = (
    (PALETTE["blue"], "solid", "circle"),
    (PALETTE["orange"], "dash", "square"),
    (PALETTE["green"], "dot", "diamond"),
    (PALETTE["vermillion"], "dashdot", "triangle-up"),
)


def terms_figure(heatmap: Run) -> go.Figure:
    """Draw the score matrix of the toy world and the terms of Eq. 3; a dropdown picks one.

    Parameters
    ----------
    heatmap : dict
        ``run_toy()["heatmap"]``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    contexts, words = heatmap["contexts"], heatmap["words"]
    pmi = heatmap["pmi"]
    log_p = [list(heatmap["log_p"]) for _ in contexts]
    lambda_c = [[value] * len(words) for value in heatmap["lambda_c"]]
    score = [
        [a + b + c for a, b, c in zip(*rows, strict=True)]
        for rows in zip(pmi, log_p, lambda_c, strict=True)
    ]
    layers = {
        "score h_c . w_x": _centered(score),
        "PMI(x, c)": pmi,
        "log p(x), mean taken off": _centered(log_p),
        "lambda_c, mean taken off": _centered(lambda_c),
    }
    limit = max(abs(v) for rows in layers.values() for row in rows for v in row)
    fig = go.Figure()
    for i, (name, z) in enumerate(layers.items()):
        fig.add_heatmap(
            x=words,
            y=contexts,
            z=_rounded(z),
            zmin=-limit,
            zmax=limit,
            colorscale="RdBu",
            visible=i == 0,
            colorbar={"title": {"text": "nats"}},
            hovertemplate="%{y}<br>word %{x}<br>" + name + ": %{z:.2f}<extra></extra>",
        )
    fig.update_xaxes(title_text="words, sorted by topic", showticklabels=False)
    fig.update_yaxes(title_text="contexts, sorted by main topic", showticklabels=False)
    return _dropdown(fig, list(layers), "The score and its three terms")


def shares_figure(rows: Mapping[str, Mapping[str, float]]) -> go.Figure:
    """Draw stacked bars: how much of the variance of the score each term explains.

    Parameters
    ----------
    rows : dict of dict
        For each bar the shares by term, such as ``run_toy()["fit"]["shares"]`` or
        ``run_probe()["regression"]["pairs"]["shares"]``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    for term, color in TERM_COLORS.items():
        if any(abs(shares.get(term, 0)) > 5e-4 for shares in rows.values()):
            values = [100 * shares.get(term, 0) for shares in rows.values()]
            fig.add_bar(
                y=list(rows),
                x=values,
                name=term,
                orientation="h",
                marker_color=color,
                text=[f"{v:.0f}%" if abs(v) >= 3 else "" for v in values],
                hovertemplate="%{y}<br>" + term + ": %{x:.1f}%<extra></extra>",
            )
    fig.update_layout(barmode="relative", title_text="Who explains the variance of h_c . w_x?")
    fig.update_xaxes(title_text="share of the variance of the score, %")
    fig.update_yaxes(autorange="reversed")
    return fig


def width_figure(widths: Mapping[str, Run]) -> go.Figure:
    """Draw the residual against the width: the softmax bottleneck.

    Parameters
    ----------
    widths : dict
        ``run_toy()["widths"]``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    names = {"product": "log-linear world", "mixture": "mixture world"}
    for (kind, curve), style in zip(widths.items(), LINE_STYLES, strict=False):
        x = [row["width"] for row in curve["rows"]]
        label = f"{names.get(kind, kind)}, needs width {curve['needed_width']}"
        _line(
            fig,
            x,
            [row["residual_std"] for row in curve["rows"]],
            label,
            style,
            "std %{y:.2g} nats",
        )
        bound = [row["least_residual_std"] for row in curve["rows"]]
        fig.add_scatter(
            x=[a for a, b in zip(x, bound, strict=True) if b > 1e-9],
            y=[b for b in bound if b > 1e-9],
            name=f"{names.get(kind, kind)}, least possible",
            mode="lines",
            line={"color": style[0], "dash": "dot", "width": 1},
            hovertemplate="width %{x}<br>least std %{y:.2g} nats<extra></extra>",
        )
    fig.add_hline(y=0.01, line_dash="dash", line_color=PALETTE["gray"], annotation_text="0.01")
    fig.update_xaxes(title_text="width of the vectors", type="log", dtick="D2")
    fig.update_yaxes(
        title_text="std of h.w - log p* - lambda_c, nats", type="log", exponentformat="e"
    )
    fig.update_layout(title_text="The softmax bottleneck", height=460)
    return fig


def spectrum_slider_figure(rows: Sequence[Run]) -> go.Figure:
    """Draw cosine against overlap of context pairs; the slider changes A but no probability.

    Parameters
    ----------
    rows : list of dict
        ``run_toy()["shares_of_spectrum"]``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    for row in rows:
        note = (
            f"mean cosine {row['mean cosine']:.2f}; correlation with overlap "
            f"{row['overlap']:.2f}, with topics {row['topics']:.2f}"
        )
        fig.add_scatter(
            x=row["x"],
            y=row["y"],
            mode="markers",
            name=note,
            showlegend=True,
            marker={"color": PALETTE["blue"], "size": 5, "opacity": 0.6},
            hovertemplate="overlap %{x:.2f}<br>cosine %{y:.2f}<extra></extra>",
        )
    fig.update_xaxes(title_text="overlap of p*(x|c) and p*(x|c')")
    fig.update_yaxes(title_text="cosine of h_c and h_c'", range=[-1.05, 1.05])
    fig.update_layout(title_text="The same softmax, other cosines", height=520)
    labels = [f"{row['share']:.1f}" for row in rows]
    return add_slider(fig, labels, prefix="share of the spread in h: ", active=len(rows) // 2)


def gauge_figure(gauge: Mapping[str, Run]) -> go.Figure:
    """Draw agreement with topics for solutions with one softmax, raw and whitened.

    Parameters
    ----------
    gauge : dict
        ``run_toy()["gauge"]``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    for name, key, color in (
        ("raw cosine", "correlation with topics", PALETTE["blue"]),
        ("cosine after whitening", "whitened: correlation with topics", PALETTE["orange"]),
    ):
        fig.add_bar(
            x=list(gauge),
            y=[row[key] for row in gauge.values()],
            name=name,
            marker_color=color,
            customdata=[row["largest difference in log p"] for row in gauge.values()],
            hovertemplate="%{x}, " + name + ": %{y:.3f}<br>log p differs by at most "
            "%{customdata:.1e}<extra></extra>",
        )
    fig.update_layout(barmode="group", title_text="Four solutions, one p(x|c)")
    fig.update_yaxes(title_text="Spearman with topic similarity")
    return fig


def reliance_figure(rows: Sequence[Run]) -> go.Figure:
    """Draw when removing frequency helps; a dropdown picks what similarity means.

    Parameters
    ----------
    rows : list of dict
        ``run_toy()["reliance"]``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    variants = [name for name in rows[0] if name != "spread"]
    references = {"topics": "topics (what contexts are about)", "overlap": "overlap of p*(x|c)"}
    for reference in references:
        for variant, style in zip(variants, LINE_STYLES, strict=False):
            y = [row[variant][reference] for row in rows]
            _line(fig, [row["spread"] for row in rows], y, variant, style, "Spearman %{y:.3f}")
    fig.update_xaxes(title_text="how much contexts differ in leaning on word frequency")
    fig.update_yaxes(title_text="Spearman with the similarity")
    title = "When does removing frequency help?"
    return _dropdown(fig, list(references.values()), title, group=len(variants))


def agreement_figure(agreement: Mapping[str, Mapping[str, Run]]) -> go.Figure:
    """Draw the higher-order claim as bars by calibration; a dropdown picks world and similarity.

    Parameters
    ----------
    agreement : dict
        ``run_toy()["agreement"]``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    labels = []
    for world, table in agreement.items():
        for reference in ("overlap", "topics", "PMI cosine"):
            labels.append(f"{world}: {reference}")
            for measure, color in (("cosine", PALETTE["blue"]), ("dot", PALETTE["orange"])):
                fig.add_bar(
                    x=list(table),
                    y=[row[measure][reference] for row in table.values()],
                    name="cosine" if measure == "cosine" else "dot product",
                    marker_color=color,
                    customdata=[row["mean cosine"] for row in table.values()],
                    hovertemplate="%{x}: %{y:.3f}<br>mean cosine %{customdata:.2f}<extra></extra>",
                )
    fig.update_layout(barmode="group")
    fig.update_yaxes(title_text="Spearman with the similarity", range=[0, 1])
    return _dropdown(fig, labels, "Do vectors agree with predictions?", group=2)


def languages_figure(languages: Run) -> go.Figure:
    """Draw where the claim fails: contexts of two languages that share no word.

    Parameters
    ----------
    languages : dict
        ``run_toy()["languages"]``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    for key, same, color, symbol in (
        ("within", True, PALETTE["blue"], "circle"),
        ("across", False, PALETTE["vermillion"], "x"),
    ):
        chosen = [i for i, value in enumerate(languages["same"]) if value == same]
        fig.add_scatter(
            x=[languages["x"][i] for i in chosen],
            y=[languages["y"][i] for i in chosen],
            mode="markers",
            name=f"{key} a language: Spearman {languages[key]['correlation with topics']:.2f}",
            marker={"color": color, "symbol": symbol, "size": 6, "opacity": 0.7},
            hovertemplate="topics %{x:.2f}<br>cosine %{y:.2f}<extra></extra>",
        )
    fig.update_xaxes(title_text="cosine of the true topic weights")
    fig.update_yaxes(title_text="cosine of h_c and h_c'")
    fig.update_layout(title_text="Contexts that share no word")
    return fig


def neighbors_figure(items: Sequence[Run], what: str) -> go.Figure:
    """Draw nearest neighbors by dot product beside those by PMI; a dropdown picks the item.

    Parameters
    ----------
    items : list of dict
        ``run_toy()["neighbors"]["words"]`` or ``["contexts"]``, or those of `run_probe`.
    what : str
        What an item is, for instance ``"context"``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    if not items:
        raise ValueError("there are no items to show neighbors of.")
    columns = [_neighbor_columns(item) for item in items]
    fig = go.Figure(
        go.Table(
            columnwidth=[5, 1, 5, 1],
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
                "fill": {"color": "rgba(0, 0, 0, 0)"},
            },
        )
    )
    buttons = [
        {
            "method": "restyle",
            "args": [{"cells.values": [cells]}],
            "label": _text(item["name"][-70:]),
        }
        for item, cells in zip(items, columns, strict=True)
    ]
    fig = _menu(fig, buttons, f"Neighbors of a {what} (bold: in both lists)")
    fig.update_layout(updatemenus=[{"x": 0, "xanchor": "left"}], height=560)
    return fig


def scatter_figure(scatter: Run) -> go.Figure:
    """Draw the score against each term of Eq. 3 and their sum; a dropdown picks which.

    Parameters
    ----------
    scatter : dict
        ``run_probe()["scatter"]``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    columns = {
        "PMI(x, c)": scatter["pmi"],
        "log p(x)": scatter["log_p"],
        "lambda_c": scatter["lambda_c"],
    }
    columns["sum of all three"] = [sum(three) for three in zip(*columns.values(), strict=True)]
    fig = go.Figure()
    kinds = {"evenly": PALETTE["gray"], "from p(x|c)": PALETTE["blue"]}
    rows = {kind: [i for i, d in enumerate(scatter["drawn"]) if d == kind] for kind in kinds}
    for kind, color in kinds.items():
        fig.add_scatter(
            x=[round(columns["PMI(x, c)"][i], 3) for i in rows[kind]],
            y=[round(scatter["score"][i], 3) for i in rows[kind]],
            text=[_text(f"{scatter['context'][i]} [{scatter['word'][i]}]") for i in rows[kind]],
            mode="markers",
            name=f"words drawn {kind}",
            marker={"color": color, "size": 5, "opacity": 0.6},
            hovertemplate="%{text}<br>term %{x:.2f}<br>score %{y:.2f}<extra></extra>",
        )
    # The buttons move the points instead of switching traces: the texts are long, and stay.
    buttons = [
        {
            "method": "update",
            "args": [
                {"x": [[round(x[i], 3) for i in rows[kind]] for kind in kinds]},
                {"xaxis.title.text": f"{name}, nats"},
            ],
            "label": name,
        }
        for name, x in columns.items()
    ]
    fig.update_xaxes(title_text="PMI(x, c), nats")
    fig.update_yaxes(title_text="score h_c . w_x")
    return _menu(fig, buttons, "The score against its terms")


def frequency_figure(frequency: Run) -> go.Figure:
    """Draw the model's own p(x) against wordfreq's frequencies.

    Parameters
    ----------
    frequency : dict
        ``run_probe()["frequency"]``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    fig.add_scatter(
        x=frequency["zipf"],
        y=frequency["log_p"],
        text=frequency["words"],
        mode="markers",
        marker={"color": PALETTE["blue"], "size": 5, "opacity": 0.6},
        hovertemplate="%{text}<br>wordfreq %{x:.2f}<br>log p(x) %{y:.2f}<extra></extra>",
    )
    fig.update_xaxes(title_text="wordfreq: log10 of the frequency per billion words")
    fig.update_yaxes(title_text="log p(x), mean of p(x|c) over contexts")
    rho = frequency["spearman_wordfreq"]
    fig.update_layout(title_text=f"The model's word frequencies (Spearman {rho:.2f})")
    return fig


def probe_similarity_figure(similarity: Run) -> go.Figure:
    """Draw cosine against overlap for pairs of real contexts; a dropdown picks the calibration.

    Parameters
    ----------
    similarity : dict
        ``run_probe()["similarity"]``.

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    fig = go.Figure()
    for variant, y in similarity["y"].items():
        row = similarity["table"][variant]
        fig.add_scatter(
            x=similarity["x"],
            y=y,
            mode="markers",
            showlegend=True,
            name=f"mean cosine {row['mean cosine']:.2f}, Spearman {row['cosine']['overlap']:.2f}",
            marker={"color": PALETTE["blue"], "size": 5, "opacity": 0.6},
            hovertemplate="overlap %{x:.2f}<br>cosine %{y:.2f}<extra></extra>",
        )
    fig.update_xaxes(title_text="overlap of p(x|c) and p(x|c')")
    fig.update_yaxes(title_text="cosine of h_c and h_c'", range=[-1.05, 1.05])
    return _dropdown(fig, list(similarity["y"]), "Do context vectors agree with predictions?")


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


def _line(
    fig: go.Figure,
    x: list[float],
    y: list[float],
    name: str,
    style: tuple[str, str, str],
    hover: str,
) -> None:
    """Add a curve whose dash and marker tell it apart without color."""
    color, dash, symbol = style
    fig.add_scatter(
        x=x,
        y=y,
        name=name,
        mode="lines+markers",
        line={"color": color, "dash": dash},
        marker={"symbol": symbol, "size": 7},
        hovertemplate=f"{name}<br>%{{x}}: {hover}<extra></extra>",
    )


def _dropdown(fig: go.Figure, labels: list[str], title: str, group: int = 1) -> go.Figure:
    """Add a dropdown that shows one group of traces at a time, and open with the first."""
    groups = [[k // group == i for k in range(len(fig.data))] for i in range(len(labels))]
    for trace, visible in zip(fig.data, groups[0], strict=True):
        trace.visible = visible
    buttons = [
        {"method": "restyle", "args": [{"visible": shown}], "label": label}
        for label, shown in zip(labels, groups, strict=True)
    ]
    return _menu(fig, buttons, title)


def _menu(fig: go.Figure, buttons: list[dict[str, Any]], title: str) -> go.Figure:
    """Put a dropdown at the upper right, above the legend."""
    menu = {"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.22, "yanchor": "top"}
    fig.update_layout(updatemenus=[menu], title_text=title, margin_t=120, height=480)
    return fig


def _centered(rows: list[list[float]]) -> list[list[float]]:
    values = [value for row in rows for value in row]
    mean = sum(values) / len(values)
    return [[value - mean for value in row] for row in rows]


def _rounded(rows: list[list[float]]) -> list[list[float]]:
    return [[round(value, 2) for value in row] for row in rows]
