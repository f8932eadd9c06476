"""Figures of a small BERT that learns: its words, and what it knows of them, step by step.

Where not said otherwise, ``run`` is the results of a stored run (``data/results/pretraining``), as
`measure_run` gives them.  Each function gives a Plotly figure whose menu works in a page without a
kernel.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.drawing import draw, lay_out
from bertflow_lite.figures.plots import LOOKS, name_method, series, switch_views
from bertflow_lite.figures.pretraining_panels import (
    LEVEL,
    Line,
    Panel,
    Run,
    Value,
    draw_views,
    line_of,
    loss_panel,
    name_bin,
    snapshots_of,
    stack_panels,
    value_at,
)


def word_curves(run: Run, *, title: str = "") -> go.Figure:
    """Words: norm and frequency, norm and neighbors' distance by frequency, cone and direction.

    Five panels; a menu chooses the lower half of Table 1 that the third one shows.
    """
    shown = {
        **{f"distance to {k} nearest": ("distance", str(k)) for k in (3, 5, 7)},
        "3 largest dot products": ("dot", "3"),
    }
    norm = line_of(run, "norm", "words", "norm_log_frequency", "spearman")
    # With the rank, which falls as frequency rises.
    ranks = line_of(run, "distance to neighbors", "words", "spearman_distance_rank")
    distance = replace(ranks, y=[value and -value for value in ranks.y])
    cosine = line_of(run, "words", "words", "mean_cosine", "estimate")
    frequency = [
        line_of(run, "of all variance", "words", "frequency", "variance", 0),
        line_of(run, "frequency in it", "words", "frequency", "explained", 0),
    ]
    views = {}
    for label, key in shown.items():
        unit = "dot product" if key[0] == "dot" else "distance"
        views[label] = [
            Panel("Rank correlation with frequency", "Spearman", [norm, distance], -1.05, 1.05),
            Panel("Mean norm, by frequency rank", "norm", _bins(run, "norm")),
            Panel(f"Mean {label}, by rank", unit, _bins(run, *key)),
            Panel("Two random words", "mean cosine", [cosine]),
            Panel("The words' strongest direction", "share", frequency),
        ]
    return draw_views(snapshots_of(run), views, title)


def _bins(run: Run, *path: str) -> list[Line]:
    bins = snapshots_of(run)[0]["words"]["table1"]["bins"]
    return [
        line_of(run, name_bin(ranks), "words", "table1", *path, i) for i, ranks in enumerate(bins)
    ]


def meaning_curves(run: Run, *, title: str = "") -> go.Figure:
    """Draw what is known of words in context: loss, PMI by frequency, PMI against counts."""
    parts = [snapshot["gain"]["by_frequency"] for snapshot in snapshots_of(run)]
    bins = sorted({tuple(ranks) for part in parts for ranks in part["bins"]}, key=lambda r: r[0])
    pmi = [
        Line(
            name_bin(ranks),
            [_at_bin(part, ranks, "pmi") for part in parts],
            [_at_bin(part, ranks, "error") for part in parts],
        )
        for ranks in bins
    ]
    rarity = snapshots_of(run)[-1]["neighbors"]["spearman_rarity"]
    neighbors = [
        line_of(run, "with the corpus", "neighbors", "spearman"),
        line_of(run, "with itself", "neighbors", "spearman_halves"),
        Line("rarity alone", [rarity], look=LEVEL),
    ]
    panels = [
        loss_panel(run),
        Panel("Mean PMI of the true piece, by rank", "nats", pmi),
        Panel("The model's PMI of neighbors", "Spearman", neighbors),
    ]
    return draw_views(snapshots_of(run), {"": panels}, title)


def _at_bin(part: Mapping[str, Any], ranks: Sequence[Any], name: str) -> Value:
    bins = [tuple(one) for one in part["bins"]]
    return part[name][bins.index(tuple(ranks))] if tuple(ranks) in bins else None


def term_curves(run: Run, *, title: str = "") -> go.Figure:
    """Where log p(x) is kept, and what share of the scores' variance each of three terms has.

    Two panels; a menu says whether all pieces count alike in the second, or by p(x|c).
    """
    parts = {"bias": "bias_slope", "vectors": "vectors_slope", "R² from vectors": "r2_of_vectors"}
    if snapshots_of(run)[0]["terms"]["log_p_in"]["r2_of_vectors"] is None:
        del parts["R² from vectors"]
    where = [line_of(run, name, "terms", "log_p_in", key) for name, key in parts.items()]
    terms = {"PMI": "PMI", "log p(x)": "log p(x)", "λ": "lambda_c"}
    views = {}
    for label, weights in (("all pieces alike", "pairs"), ("weighted by p(x|c)", "joint")):
        shares = [
            line_of(run, name, "terms", weights, "shares", term) for name, term in terms.items()
        ]
        views[label] = [
            Panel("Where log p(x) is kept", "slope, or R²", where),
            Panel(f"Scores' variance, {label}", "share", shares),
        ]
    return draw_views(snapshots_of(run), views, title)


_RECIPE_STYLES = ("solid", "dash", "longdash")
_ASIDE_STYLES = ("dot", "dashdot", "longdashdot")


def recipe_curves(run: Mapping[str, Any], *, title: str = "") -> go.Figure:
    """Held-out loss against tokens, a line for each recipe.

    ``run``: results of a stored comparison: ``recipes``, each with ``name``, ``why`` and ``curve``
    ([step, tokens, held-out loss], rising); ``settings``, maybe with ``unigram_loss``; maybe
    ``ladder``, how many of the first ones build on each other: the others are dotted.

    For `plots.show`. The axis ends above the first recipe's start and all ends; a curve that begins
    higher comes in from above.
    """
    recipes = run["recipes"]
    ladder = run.get("ladder", len(recipes))
    if not recipes:
        raise ValueError("The comparison has no recipe: run it again.")
    fig = go.Figure()
    for number, recipe in enumerate(recipes):
        if len(recipe["curve"]) < 2:
            raise ValueError(f"The recipe {recipe['name']!r} has no point after its first step.")
        styles = _RECIPE_STYLES if number < ladder else _ASIDE_STYLES
        dash = styles[number // _COLORED % len(styles)]
        look = replace(series(number % _COLORED, recipe["name"]), dash=dash)
        step, tokens, loss = (list(column) for column in zip(*recipe["curve"], strict=True))
        hover = "step %{customdata:,}, %{x:.3s} pieces: %{y:.2f} nats"
        draw(fig, look, tokens, loss, hover, "lines+markers", size=7, customdata=step)
        fig.data[-1].marker.symbol = number % 8
    if (level := run["settings"].get("unigram_loss")) is not None:
        ends = [0, max(recipe["curve"][-1][1] for recipe in recipes)]
        only = replace(LEVEL, name="frequencies only")
        draw(fig, only, ends, [level, level], "%{y:.2f} nats", "lines")
    curves = [[loss for *_, loss in recipe["curve"]] for recipe in recipes]
    # A bias that starts at zero begins far above all others, and would press them together.
    high = max(curves[0][0], *(curve[-1] for curve in curves)) + 0.05
    fig.update_xaxes(tickformat="~s")
    fig.update_yaxes(range=[min(map(min, curves)) - 0.05, high])
    axes = ("word pieces seen", "held-out loss, nats")
    return lay_out(fig, title, *axes, height=480, hovermode="closest")


_COLORED = 6  # looks of `series` that are not gray, which is for levels


LAYER_NAMES = {"last2avg": "last two (last2avg)", "last": "last", "first-last": "first and last"}
"""What the menus call the layer choices."""


def space_explorer(run: Run, *, title: str = "") -> go.Figure:
    """Sentences: cone, frequency, length, effective rank, and score, for a choice of layers.

    Five panels over the same steps; a menu for the layers.
    """
    views = {}
    for layer in _layers(run):
        of = ("sentences", layer)
        cosine = line_of(run, "sentences", *of, "mean_cosine", "estimate")
        shares = [
            line_of(run, "of all variance", *of, "frequency", "variance", 0),
            line_of(run, "frequency in it", *of, "frequency", "explained", 0),
            line_of(run, "length in it", *of, "length", "explained", 0),
        ]
        rank = line_of(run, "sentences", *of, "effective_rank")
        scores = [_score(run, layer, name) for name in ("none", "whiten", "flow")]
        views[LAYER_NAMES.get(layer, layer)] = [
            loss_panel(run),
            Panel("Two random sentences", "mean cosine", [cosine], -0.05, 1.05),
            Panel("The strongest direction", "share", shares, -0.05, 1.05),
            Panel("Effective rank of the sentences", "directions", [rank]),
            Panel(f"{_name_set(run)}, by calibrator", "Spearman x 100", scores),
        ]
    return draw_views(snapshots_of(run), views, title)


def score_curves(run: Run, *, title: str = "") -> go.Figure:
    """STS scores, raw and calibrated, with what has learned nothing as levels; gain of the flow.

    Two panels, the upper one of double height; a menu for the layers. Error bars are the standard
    deviation over the seeds of the flow, where there are several.
    """
    base = run["baselines"]
    random = base["random vectors of pieces"]
    levels = [
        Line("TF-IDF", [base["tf-idf"]], look=replace(LOOKS["tfidf"], dash="dash")),
        Line("random, flow", [_mean(random["flow"])], look=replace(LOOKS["flow"], dash="dashdot")),
        Line("random", [_mean(random["none"])], look=replace(LOOKS["none"], dash="dot")),
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
    return draw_views(snapshots_of(run), views, title)


def spectrum_lines(run: Run, *, every: int = 3, title: str = "") -> go.Figure:
    """Singular spectra of some snapshots, divided by the largest value; a menu for the space.

    ``every``: show each third snapshot, counted from the last one; and the first.
    """
    snapshots = [s for k, s in enumerate(snapshots_of(run)[::-1]) if k % every == 0][::-1]
    if snapshots[0]["step"] != snapshots_of(run)[0]["step"]:
        snapshots.insert(0, snapshots_of(run)[0])
    paths: dict[str, tuple[str, ...]] = {"words": ("words",)}
    paths |= {f"sentences, {one}": ("sentences", one) for one in run["settings"]["layers"]}
    spaces = {
        name: {
            "x": [value_at(s, *path, "spectrum", "index") for s in snapshots],
            # No zero on a log axis.
            "y": [[v or None for v in value_at(s, *path, "spectrum", "value")] for s in snapshots],
        }
        for name, path in paths.items()
    }
    fig = go.Figure()
    for number, snapshot in enumerate(snapshots):
        look = replace(series(number, f"step {snapshot['step']:,}"), dash=_DASHES[number % 4])
        draw(fig, look, None, None, "direction %{x}: %{y:.3f} of the largest", "lines")
    # Nulled directions are zero up to rounding.
    kept = [v for one in spaces.values() for y in one["y"] for v in y if v and v > 1e-3]
    lowest = max(math.log10(min(kept)), -2.5) - 0.1
    menu = switch_views(fig, spaces)
    fig.update_xaxes(type="log", dtick=1)
    fig.update_yaxes(type="log", range=[lowest, 0.05], dtick=1)
    axes = ("direction, strongest first (log scale)", "singular value / largest")
    return lay_out(fig, title, *axes, height=480, menu=menu)


_DASHES = ("solid", "dash", "dot", "dashdot")


def _layers(run: Run) -> list[str]:
    known = [layer for layer in LAYER_NAMES if layer in run["settings"]["layers"]]
    return known + [layer for layer in run["settings"]["layers"] if layer not in known]


def _score(run: Run, layer: str, calibrator: str) -> Line:
    seeds = [snapshot["sts"][layer][calibrator] for snapshot in snapshots_of(run)]
    error = [_deviation(values) for values in seeds]
    name, means = name_method(calibrator), [_mean(values) for values in seeds]
    look = LOOKS.get(calibrator)
    return Line(name, means, error if any(error) else None, look and replace(look, dash="solid"))


def _name_set(run: Run) -> str:
    names = {"stsb-dev": "STS-B, validation"}
    name = str(run["settings"]["set"])
    return names.get(name, name)


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)


def _deviation(values: Sequence[float]) -> Value:
    return round(statistics.stdev(values), 3) if len(values) > 1 else None


def _minus(a: Value, b: Value) -> Value:
    return None if a is None or b is None else round(a - b, 3)


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

    ``run``: results of a stored run of `pretrain-variants`.

    Five panels; a menu for the groups.
    """
    found = {one["name"]: one["snapshots"] for one in run["variants"]}
    if missing := {name for group in GROUPS.values() for _, name, _ in group} - set(found):
        raise ValueError(f"The run has no variant {', '.join(map(repr, sorted(missing)))}.")
    views = {label: _variants(found, group) for label, group in GROUPS.items()}
    return draw_views(found[BASE], views, title)


def _variants(
    found: Mapping[str, Sequence[Mapping[str, Any]]], group: Sequence[tuple[str, str, str]]
) -> list[Panel]:
    def draw_each(value: Callable[[Mapping[str, Any], str], Value]) -> list[Line]:
        return [
            Line(label, [value(one, of) for one in found[name]], dash=dash)
            for (label, name, of), dash in zip(group, DASHES, strict=True)
        ]

    def lines(end: str, value: Callable[[Mapping[str, Any]], float]) -> list[Line]:
        """Draw what belongs to one end of the model; nothing of a variant's other end."""
        return draw_each(lambda one, of: value(one) if of in (end, "both") else None)

    norms = draw_each(lambda one, of: one["norm"]["output" if of == "output" else "input"])
    slopes = lines("output", lambda one: one["terms"]["vectors_slope"])
    gains = lines("input", lambda one: round(one["sts"]["flow"] - one["sts"]["none"], 2))
    return [
        Panel("A word's norm and its frequency", "Spearman", norms, -1.05, 1.05),
        Panel("log p(x) in the vectors", "slope", slopes),
        Panel("Two random words", "mean cosine", lines("input", lambda one: one["words_cosine"])),
        Panel("Raw cosines", "Spearman x 100", lines("input", lambda one: one["sts"]["none"])),
        Panel("Gain of the flow", "points", gains),
    ]


def start_curves(
    runs: Mapping[str, Mapping[str, Any]], *, layer: str = "last2avg", title: str = ""
) -> go.Figure:
    """Draw what the start of the output bias decides, over the steps that all runs have.

    ``runs``: label -> results of a stored run of `pretrain-measure`. ``layer``: of the sentences.

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

    def of(*path: Any) -> list[Line]:
        return lines(lambda one: float(value_at(one, *path)))

    def score(one: Mapping[str, Any], name: str) -> float:
        seeds = one["sts"][layer][name]
        return float(sum(seeds) / len(seeds))

    norms = of("words", "norm_log_frequency", "spearman")
    explained = of("words", "frequency", "explained", 0)
    cosines = of("sentences", layer, "mean_cosine", "estimate")
    gains = lines(lambda one: round(score(one, "flow") - score(one, "none"), 2))
    return stack_panels(
        [
            Panel("A word's norm and its frequency", "Spearman", norms, -1.05, 1.05),
            Panel("log p(x) in the vectors", "slope", of("terms", "log_p_in", "vectors_slope")),
            Panel("Frequency in the words' strongest direction", "share", explained, -0.05, 1.05),
            Panel("Two random sentences", "mean cosine", cosines, -0.05, 1.05),
            Panel("Raw cosines", "Spearman x 100", lines(lambda one: score(one, "none"))),
            Panel("Gain of the flow", "points", gains),
        ],
        steps,
        [kept[0][step]["tokens"] for step in steps],
        title=title,
    )
