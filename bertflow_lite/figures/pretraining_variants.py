"""A figure of what bends the space of words: the first training steps with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bertflow_lite.figures.control_parts import make_menu
from bertflow_lite.figures.pretraining_parts import Line, Panel, change_lines, stack_panels

__all__ = ["GROUPS", "variant_curves"]

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
