"""A figure of what bends the space of words: the first training steps with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.control_parts import make_menu
from bertflow_lite.figures.pretraining_parts import Line, Panel, change_lines, stack_panels

__all__ = ["GROUPS", "start_curves", "variant_curves"]

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
