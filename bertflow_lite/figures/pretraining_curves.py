"""Figures of a small BERT that learns: its words, and what it knows of them, step by step.

Each function takes the results of a stored run (``data/results/pretraining``), as `measure_run`
gives them, and gives a Plotly figure whose menu works in a page without a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.plots import METHOD_NAMES, PALETTE, make_menu
from bertflow_lite.figures.pretraining_panels import (
    Getter,
    Line,
    Panel,
    Run,
    Value,
    change_lines,
    draw_views,
    legend_below,
    line_of,
    loss_panel,
    name_bin,
    place_title,
    snapshots_of,
    stack_panels,
)

__all__ = [
    "GROUPS",
    "LAYER_NAMES",
    "meaning_curves",
    "recipe_curves",
    "score_curves",
    "space_explorer",
    "spectrum_lines",
    "start_curves",
    "term_curves",
    "variant_curves",
    "word_curves",
]


def word_curves(run: Run, *, title: str = "") -> go.Figure:
    """Words: norm and frequency, norm and neighbors' distance by frequency, cone and direction.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Five panels; a menu chooses the lower half of Table 1 that the third one shows.
    """
    shown = {
        **{f"distance to {k} nearest": ("distance", str(k)) for k in (3, 5, 7)},
        "3 largest dot products": ("dot", "3"),
    }
    views = {
        label: [
            Panel(
                "Rank correlation with frequency",
                "Spearman",
                [
                    line_of(run, "norm", lambda s: s["words"]["norm_log_frequency"]["spearman"]),
                    line_of(
                        run,
                        "distance to neighbors",
                        # With the rank, which falls as frequency rises.
                        lambda s: -s["words"]["spearman_distance_rank"],
                    ),
                ],
                -1.05,
                1.05,
            ),
            Panel("Mean norm, by frequency rank", "norm", _bins(run, "norm")),
            Panel(
                f"Mean {label}, by rank",
                "dot product" if key[0] == "dot" else "distance",
                _bins(run, *key),
            ),
            Panel(
                "Two random words",
                "mean cosine",
                [line_of(run, "words", lambda s: s["words"]["mean_cosine"]["estimate"])],
            ),
            Panel(
                "The words' strongest direction",
                "share",
                [
                    line_of(
                        run, "of all variance", lambda s: s["words"]["frequency"]["variance"][0]
                    ),
                    line_of(
                        run, "frequency in it", lambda s: s["words"]["frequency"]["explained"][0]
                    ),
                ],
            ),
        ]
        for label, key in shown.items()
    }
    return draw_views(run, views, title)


def meaning_curves(run: Run, *, title: str = "") -> go.Figure:
    """Draw what is known of words in context: loss, PMI by frequency, PMI against counts.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Three panels.
    """
    bins = _all_bins(run, lambda s: s["gain"]["by_frequency"])
    pmi = [
        Line(
            name_bin(ranks),
            [_at_bin(s["gain"]["by_frequency"], ranks, "pmi") for s in snapshots_of(run)],
            [_at_bin(s["gain"]["by_frequency"], ranks, "error") for s in snapshots_of(run)],
        )
        for ranks in bins
    ]
    last = snapshots_of(run)[-1]
    panels = [
        loss_panel(run),
        Panel("Mean PMI of the true piece, by rank", "nats", pmi),
        Panel(
            "The model's PMI of neighbors",
            "Spearman",
            [
                line_of(run, "with the corpus", lambda s: s["neighbors"]["spearman"]),
                line_of(run, "with itself", lambda s: s["neighbors"]["spearman_halves"]),
                Line(
                    "rarity alone",
                    [last["neighbors"]["spearman_rarity"]],
                    color="gray",
                    dash="dash",
                ),
            ],
        ),
    ]
    return draw_views(run, {"": panels}, title)


def term_curves(run: Run, *, title: str = "") -> go.Figure:
    """Where log p(x) is kept, and what share of the scores' variance each of three terms has.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Two panels; a menu says whether all pieces count alike in the second, or by p(x|c).
    """
    views = {}
    for label, weights in (("all pieces alike", "pairs"), ("weighted by p(x|c)", "joint")):
        shares = [
            line_of(run, name, lambda s, w=weights, t=term: s["terms"][w]["shares"][t])  # type: ignore[misc]
            for name, term in (("PMI", "PMI"), ("log p(x)", "log p(x)"), ("λ", "lambda_c"))
        ]
        where = [
            line_of(run, "bias", lambda s: s["terms"]["log_p_in"]["bias_slope"]),
            line_of(run, "vectors", lambda s: s["terms"]["log_p_in"]["vectors_slope"]),
        ]
        if snapshots_of(run)[0]["terms"]["log_p_in"]["r2_of_vectors"] is not None:
            where.append(
                line_of(
                    run,
                    "R² from vectors",
                    lambda s: s["terms"]["log_p_in"]["r2_of_vectors"],
                )
            )
        views[label] = [
            Panel("Where log p(x) is kept", "slope, or R²", where),
            Panel(f"Scores' variance, {label}", "share", shares),
        ]
    return draw_views(run, views, title)


def _bins(run: Run, measure: str, k: str | None = None) -> list[Line]:
    def of(table: Mapping[str, Any]) -> Sequence[float]:
        values: Sequence[float] = table[measure] if k is None else table[measure][k]
        return values

    tables = [snapshot["words"]["table1"] for snapshot in snapshots_of(run)]
    return [
        Line(name_bin(ranks), [of(table)[i] for table in tables])
        for i, ranks in enumerate(tables[0]["bins"])
    ]


def _all_bins(run: Run, part: Callable[[Mapping[str, Any]], Any]) -> list[tuple[int, int | None]]:
    found = {tuple(ranks) for snapshot in run["snapshots"] for ranks in part(snapshot)["bins"]}
    return sorted(found, key=lambda ranks: ranks[0])


def _at_bin(part: Mapping[str, Any], ranks: Sequence[Any], name: str) -> Value:
    bins = [tuple(one) for one in part["bins"]]
    return part[name][bins.index(tuple(ranks))] if tuple(ranks) in bins else None


_RECIPE_STYLES = ("solid", "dash", "longdash")
_ASIDE_STYLES = ("dot", "dashdot", "longdashdot")


def recipe_curves(run: Mapping[str, Any], *, title: str = "") -> go.Figure:
    """Held-out loss against tokens, a line for each recipe.

    Parameters
    ----------
    run : mapping
        Results of a stored comparison: ``recipes``, each with ``name``, ``why`` and ``curve``
        ([step, tokens, held-out loss], rising); ``settings``, maybe with ``unigram_loss``;
        maybe ``ladder``, how many of the first ones build on each other: the others are dotted.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.  The axis ends above the first recipe's start and all ends; a curve that
        begins higher comes in from above.

    Raises
    ------
    ValueError
        If there is no recipe, or one has no point after its first step.
    """
    recipes = run["recipes"]
    ladder = run.get("ladder", len(recipes))
    if not recipes:
        raise ValueError("The comparison has no recipe: run it again.")
    colors = [color for color in PALETTE if color not in ("gray", "yellow")]
    fig = go.Figure()
    farthest = 0.0
    for number, recipe in enumerate(recipes):
        curve = recipe["curve"]
        if len(curve) < 2:
            raise ValueError(f"The recipe {recipe['name']!r} has no point after its first step.")
        farthest = max(farthest, curve[-1][1])
        styles = _RECIPE_STYLES if number < ladder else _ASIDE_STYLES
        fig.add_scatter(
            x=[tokens for _, tokens, _ in curve],
            y=[loss for _, _, loss in curve],
            customdata=[step for step, _, _ in curve],
            name=recipe["name"],
            mode="lines+markers",
            line={
                "color": PALETTE[colors[number % len(colors)]],
                "dash": styles[number // len(colors) % len(styles)],
            },
            marker={"symbol": number % 8, "size": 7},
            hovertemplate="step %{customdata:,}, %{x:.3s} pieces: %{y:.2f} nats"
            f"<extra>{recipe['name']}</extra>",
        )
    if (level := run["settings"].get("unigram_loss")) is not None:
        fig.add_scatter(
            x=[0, farthest],
            y=[level, level],
            name="frequencies only",
            mode="lines",
            line={"color": PALETTE["gray"], "dash": "dash"},
            hovertemplate="frequencies only: %{y:.2f} nats<extra></extra>",
        )
    fig.update_xaxes(title="word pieces seen", tickformat="~s")
    curves = [[loss for *_, loss in recipe["curve"]] for recipe in recipes]
    # A bias that starts at zero begins far above all others, and would press them together.
    high = max(curves[0][0], *(curve[-1] for curve in curves)) + 0.05
    low = min(map(min, curves)) - 0.05
    fig.update_yaxes(title="held-out loss, nats", range=[low, high])
    fig.update_layout(title=place_title(title), hovermode="closest")
    return legend_below(fig)


LAYER_NAMES = {
    "last2avg": "last two (last2avg)",
    "last": "last",
    "first-last": "first and last",
}
"""What the menus call the layer choices."""
_SHADES = ("gray", "blue", "sky", "green", "orange", "vermillion", "purple")
_COLORS = {"none": "blue", "sn": "orange", "whiten": "green", "flow": "vermillion"}


def space_explorer(run: Run, *, title: str = "") -> go.Figure:
    """Sentences: cone, frequency, length, effective rank, and score, for a choice of layers.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Five panels over the same steps; a menu for the layers.
    """
    views = {}
    for layer in _layers(run):
        views[LAYER_NAMES.get(layer, layer)] = [
            loss_panel(run),
            Panel(
                "Two random sentences",
                "mean cosine",
                [line_of(run, "sentences", _of_layer(layer, "mean_cosine", "estimate"))],
                -0.05,
                1.05,
            ),
            Panel(
                "The strongest direction",
                "share",
                [
                    line_of(run, "of all variance", _of_layer(layer, "frequency", "variance", 0)),
                    line_of(run, "frequency in it", _of_layer(layer, "frequency", "explained", 0)),
                    line_of(run, "length in it", _of_layer(layer, "length", "explained", 0)),
                ],
                -0.05,
                1.05,
            ),
            Panel(
                "Effective rank of the sentences",
                "directions",
                [line_of(run, "sentences", _of_layer(layer, "effective_rank"))],
            ),
            Panel(
                f"{_name_set(run)}, by calibrator",
                "Spearman x 100",
                [_score(run, layer, name) for name in ("none", "whiten", "flow")],
            ),
        ]
    return draw_views(run, views, title)


def score_curves(run: Run, *, title: str = "") -> go.Figure:
    """STS scores, raw and calibrated, with what has learned nothing as levels; gain of the flow.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Two panels, the upper one of double height; a menu for the layers.  Error bars are the
        standard deviation over the seeds of the flow, where there are several.
    """
    base = run["baselines"]
    random = base["random vectors of pieces"]
    levels = [
        Line("TF-IDF", [base["tf-idf"]], color="gray", dash="dash"),
        Line("random, flow", [_mean(random["flow"])], color="gray", dash="dashdot"),
        Line("random", [_mean(random["none"])], color="gray", dash="dot"),
    ]
    views = {}
    for layer in _layers(run):
        scores = [_score(run, layer, name) for name in run["settings"]["calibrators"]]
        raw = _score(run, layer, "none").y
        gains = [
            replace(line, y=[_minus(a, b) for a, b in zip(line.y, raw, strict=True)], error=None)
            for line in scores[1:]
        ]
        views[LAYER_NAMES.get(layer, layer)] = [
            Panel(_name_set(run), "Spearman x 100", [*scores, *levels], rows=2),
            Panel("Gain over raw", "points", gains),
        ]
    return draw_views(run, views, title)


def spectrum_lines(run: Run, *, every: int = 3, title: str = "") -> go.Figure:
    """Singular spectra of some snapshots, divided by the largest value; a menu for the space.

    Parameters
    ----------
    run : mapping
        Results of a stored run.
    every : int, default 3
        Show each third snapshot, counted from the last one; and the first.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        For `plots.show`.
    """
    snapshots = [s for k, s in enumerate(snapshots_of(run)[::-1]) if k % every == 0][::-1]
    if snapshots[0]["step"] != snapshots_of(run)[0]["step"]:
        snapshots.insert(0, snapshots_of(run)[0])
    spaces = {"words": [s["words"]["spectrum"] for s in snapshots]}
    for layer in run["settings"]["layers"]:
        spaces[f"sentences, {layer}"] = [s["sentences"][layer]["spectrum"] for s in snapshots]
    fig = go.Figure()
    for number, (snapshot, spectrum) in enumerate(zip(snapshots, spaces["words"], strict=True)):
        fig.add_scatter(
            x=spectrum["index"],
            y=_positive(spectrum["value"]),
            name=f"step {snapshot['step']:,}",
            mode="lines",
            line={"color": PALETTE[_SHADES[number % len(_SHADES)]], "dash": _dash(number)},
            hovertemplate="direction %{x}: %{y:.3f} of the largest<extra>%{fullData.name}</extra>",
        )
    buttons = [
        {
            "label": name,
            "method": "restyle",
            "args": [
                {
                    "x": [one["index"] for one in spectra],
                    "y": [_positive(one["value"]) for one in spectra],
                }
            ],
        }
        for name, spectra in spaces.items()
    ]
    fig.update_xaxes(type="log", title="direction, strongest first (log scale)", dtick=1)
    fig.update_yaxes(
        type="log", title="singular value / largest", range=[_lowest(spaces), 0.05], dtick=1
    )
    fig.update_layout(title=place_title(title), updatemenus=make_menu(buttons))
    return legend_below(fig, top=100)


def _lowest(spaces: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """Give a lower end for a log axis; nulled directions are zero up to rounding."""
    values = [v for spectra in spaces.values() for one in spectra for v in one["value"]]
    return max(math.log10(min(v for v in values if v > 1e-3)), -2.5) - 0.1


def _layers(run: Run) -> list[str]:
    known = [layer for layer in LAYER_NAMES if layer in run["settings"]["layers"]]
    return known + [layer for layer in run["settings"]["layers"] if layer not in known]


def _of_layer(layer: str, *keys: Any) -> Getter:
    def value(snapshot: Mapping[str, Any]) -> float:
        found: Any = snapshot["sentences"][layer]
        for key in keys:
            found = found[key]
        return float(found)

    return value


def _score(run: Run, layer: str, calibrator: str) -> Line:
    seeds = [snapshot["sts"][layer][calibrator] for snapshot in snapshots_of(run)]
    error = [_deviation(values) for values in seeds]
    return Line(
        METHOD_NAMES.get(calibrator, calibrator),
        [_mean(values) for values in seeds],
        error if any(error) else None,
        _COLORS.get(calibrator),
    )


def _name_set(run: Run) -> str:
    names = {"stsb-dev": "STS-B, validation"}
    name = str(run["settings"]["set"])
    return names.get(name, name)


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)


def _deviation(values: Sequence[float]) -> Value:
    if len(values) < 2:
        return None
    middle = sum(values) / len(values)
    return round(math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1)), 3)


def _minus(a: Value, b: Value) -> Value:
    return None if a is None or b is None else round(a - b, 3)


def _positive(values: Sequence[float]) -> list[float | None]:
    return [value or None for value in values]  # no zero on a log axis


def _dash(number: int) -> str:
    return ("solid", "dash", "dot", "dashdot")[number % 4]


BASE = "as the book's model"
GROUPS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "bias": (
        ("from log p", BASE, "both"),
        ("from zero", "bias from zero", "both"),
        ("none", "no bias", "both"),
    ),
    "vectors": (
        ("tied", BASE, "both"),
        ("input", "untied", "input"),
        ("output", "untied", "output"),
    ),
    "frequencies": (
        ("whole", BASE, "both"),
        ("thinned", "thinned text", "both"),
        ("all equal", "equal frequencies", "both"),
    ),
    "frequencies, bias from zero": (
        ("whole", "bias from zero", "both"),
        ("all equal", "equal frequencies, bias from zero", "both"),
        ("all equal, from log p", "equal frequencies", "both"),
    ),
    "recipe": (
        ("ours", BASE, "both"),
        ("no decay", "no weight decay", "both"),
        ("random heads", "heads at random", "both"),
    ),
}
"""Menu entry -> lines: label, variant, and the ends (input, output, both) of its word vectors."""
DASHES = ("solid", "solid", "dot")  # the last line of a group may cover the one before


def variant_curves(run: Mapping[str, Any], *, title: str = "") -> go.Figure:
    """Draw variants over the training steps, a group of three at a time.

    Parameters
    ----------
    run : mapping
        Results of a stored run of `pretrain-variants`.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Five panels; a menu for the groups.

    Raises
    ------
    ValueError
        If the run lacks a variant that is drawn.
    """
    found = {one["name"]: one["snapshots"] for one in run["variants"]}
    if missing := {name for group in GROUPS.values() for _, name, _ in group} - set(found):
        raise ValueError(f"The run has no variant {', '.join(map(repr, sorted(missing)))}.")
    views = {label: _panels(found, group) for label, group in GROUPS.items()}
    first = found[BASE]
    menu = make_menu(change_lines(views))
    fig = stack_panels(
        next(iter(views.values())),
        [one["step"] for one in first],
        [one["tokens"] for one in first],
        title=title,
        menu=True,
    )
    for one in menu:  # between the figure's title and the first panel's
        one.update(y=1, yanchor="bottom", pad={"b": fig.layout.margin.t - 80})
    return fig.update_layout(updatemenus=menu)


def start_curves(
    runs: Mapping[str, Mapping[str, Any]], *, layer: str = "last2avg", title: str = ""
) -> go.Figure:
    """Draw what the start of the output bias decides, over the steps that all runs have.

    Parameters
    ----------
    runs : mapping
        Label -> results of a stored run of `pretrain-measure`.
    layer : str, default "last2avg"
        Of the sentences.
    title : str, default ""

    Returns
    -------
    plotly.graph_objects.Figure
        Six panels.

    Raises
    ------
    ValueError
        If the runs have no step in common.
    """
    kept = [{one["step"]: one for one in run["snapshots"]} for run in runs.values()]
    steps = sorted(set.intersection(*(set(found) for found in kept)))
    if not steps:
        raise ValueError("The runs were measured at no common step.")

    def lines(value: Callable[[Mapping[str, Any]], float]) -> list[Line]:
        return [
            Line(label, [value(found[step]) for step in steps], dash=dash)
            for label, found, dash in zip(runs, kept, ("solid", "dash", "dot"), strict=False)
        ]

    def score(name: str) -> Callable[[Mapping[str, Any]], float]:
        return lambda one: sum(one["sts"][layer][name]) / len(one["sts"][layer][name])

    raw, flow = score("none"), score("flow")
    return stack_panels(
        [
            Panel(
                "A word's norm and its frequency",
                "Spearman",
                lines(lambda one: one["words"]["norm_log_frequency"]["spearman"]),
                -1.05,
                1.05,
            ),
            Panel(
                "log p(x) in the vectors",
                "slope",
                lines(lambda one: one["terms"]["log_p_in"]["vectors_slope"]),
            ),
            Panel(
                "Frequency in the words' strongest direction",
                "share",
                lines(lambda one: one["words"]["frequency"]["explained"][0]),
                -0.05,
                1.05,
            ),
            Panel(
                "Two random sentences",
                "mean cosine",
                lines(lambda one: one["sentences"][layer]["mean_cosine"]["estimate"]),
                -0.05,
                1.05,
            ),
            Panel("Raw cosines", "Spearman x 100", lines(raw)),
            Panel("Gain of the flow", "points", lines(lambda one: round(flow(one) - raw(one), 2))),
        ],
        steps,
        [kept[0][step]["tokens"] for step in steps],
        title=title,
    )


def _panels(
    found: Mapping[str, Sequence[Mapping[str, Any]]], group: Sequence[tuple[str, str, str]]
) -> list[Panel]:
    def lines(end: str, value: Callable[[Mapping[str, Any]], float]) -> list[Line]:
        """Draw what belongs to one end of the model; nothing of a variant's other end."""
        return [
            Line(
                label,
                [value(one) if of in (end, "both") else None for one in found[name]],
                dash=dash,
            )
            for (label, name, of), dash in zip(group, DASHES, strict=True)
        ]

    norms = [
        Line(
            label,
            [one["norm"]["output" if of == "output" else "input"] for one in found[name]],
            dash=dash,
        )
        for (label, name, of), dash in zip(group, DASHES, strict=True)
    ]
    return [
        Panel("A word's norm and its frequency", "Spearman", norms, -1.05, 1.05),
        Panel(
            "log p(x) in the vectors",
            "slope",
            lines("output", lambda one: one["terms"]["vectors_slope"]),
        ),
        Panel("Two random words", "mean cosine", lines("input", lambda one: one["words_cosine"])),
        Panel("Raw cosines", "Spearman x 100", lines("input", lambda one: one["sts"]["none"])),
        Panel(
            "Gain of the flow",
            "points",
            lines("input", lambda one: round(one["sts"]["flow"] - one["sts"]["none"], 2)),
        ),
    ]
