"""The explorer of a map of sentences (`experiments.maps`): a notebook's figure, or a page alone.

It is a script over a canvas (map_explorer.js), which moves thousands of points smoothly; it brings
all that it shows, and asks nothing of any server.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import pandas as pd
from plotly.colors import sample_colorscale

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.experiments.maps import JUDGED, describe_sentences
from bertflow_lite.experiments.scoring import different_sentences
from bertflow_lite.figures.plots import series, short_name

# Nothing is fetched, whatever a sentence holds.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
_NAMES = {"idf": "weights (idf)", "idf-1": "weights (idf-1)", "sif": "weights (sif)"}


class Explorer:
    """A map that shows itself as the last value of a cell, or as a page of its own."""

    def __init__(self, fragment: str, description: str) -> None:
        self.fragment, self.description = fragment, description

    def _repr_html_(self) -> str:
        return self.fragment

    def __repr__(self) -> str:
        return self.description

    def page(self, title: str) -> str:
        """Write a page that needs no other file."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{html.escape(title)}</title>\n<style>body {{ max-width: 60rem; margin: 1rem "
            "auto; padding: 0 0.8rem; font-family: system-ui, sans-serif; }</style></head>\n"
            f"<body><main><h1>{html.escape(title)}</h1>\n{self.fragment}\n</main></body></html>\n"
        )


def explore_map(
    layout: Mapping[str, Any],
    texts: Sequence[str],
    groups: Mapping[str, pd.Categorical],
    alt: str,
    *,
    color: str = "topic",
    partners: Mapping[int, tuple[int, str]] | None = None,
) -> Explorer:
    """Make the explorer of what `make_map` gives, with what `describe_sentences` says.

    ``alt`` is what one sees, for who cannot; ``color`` the groups that are shown at first;
    ``partners`` gives for a sentence the number of the one that it is paired with, and how.
    """
    steps = layout["steps"]
    sizes = {len(texts), *(len(step["x"]) for step in steps.values())}
    sizes |= {len(one) for one in groups.values()}
    if len(sizes) > 1:
        raise ValueError(f"the map, its sentences and their groups differ in number: {sizes}.")
    if color not in groups:
        raise ValueError(f"color is {color!r}; it must be one of {', '.join(groups)}.")
    names = {name: _NAMES.get(name, short_name(name)) for name in steps}
    content = {
        "texts": list(texts),
        "height": layout["height"],
        "color": color,
        "groups": {name: _colored(one) for name, one in groups.items()},
        "partners": {str(k): list(one) for k, one in (partners or {}).items()},
        "steps": [
            {
                "name": names[name],
                **{key: step[key] for key in ("x", "y", "neighbors", "cosines")},
                "note": _note(names[name], step, raw=number == 0),
            }
            for number, (name, step) in enumerate(steps.items())
        ],
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    name = f"map-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    safe = text.replace("</", "<\\/").replace("<!--", "\\u003c!--")
    script = files("bertflow_lite.figures").joinpath("map_explorer.js").read_text("utf-8")
    label = html.escape(alt, quote=True)
    fragment = (
        f'<div class="bertflow-map" id="{name}" role="figure" aria-label="{label}">'
        f"<p>{html.escape(alt, quote=False)}</p></div>\n"
        f'<script>(function () {{\n{script}\nexploreMap("{name}", {safe});\n}})();</script>'
    )
    return Explorer(fragment, alt)


def explore_map_of_pairs(
    layout: Mapping[str, Any], pairs: SentencePairs, alt: str, *, color: str = "kind of pair"
) -> Explorer:
    """Make the explorer of a map of a set's different sentences; each knows its pair."""
    rows, texts = different_sentences(pairs)
    number = {text: k for k, text in enumerate(texts)}
    partners = {}
    for k, row in enumerate(rows):
        pair = row % len(pairs)
        other = pairs.sentences[pair + (0 if row >= len(pairs) else len(pairs))]
        kind = "" if pairs.kinds is None else f"{pairs.kinds[pair]}, "
        partners[k] = (number[other], f"{kind}rated {pairs.gold[pair]:.1f}")
    groups = describe_sentences(texts, pairs)
    return explore_map(layout, texts, groups, alt, color=color, partners=partners)


def _note(name: str, step: Mapping[str, Any], *, raw: bool) -> str:
    kept = f"{100 * step['kept_on_map']:.0f} %"
    note = f"{name}: of a sentence's {JUDGED} nearest in this space, the map keeps {kept}"
    note += f" (trustworthiness {step['trustworthiness']:.2f})."
    if raw:
        return note
    return (
        f"{note} Of the {JUDGED} nearest in the raw space, {100 * step['kept_of_raw']:.0f} % stay."
    )


def _colored(groups: pd.Categorical) -> dict[str, Any]:
    """Give each group its color; those with an order run through one scale."""
    labels = groups.categories.tolist()
    looks = [series(k) for k in range(len(labels))]
    colors = [look.color for look in looks]
    if groups.ordered:
        # Neither end of the scale, which light or dark pages swallow.
        at = [0.3 + 0.6 * k / max(len(labels) - 1, 1) for k in range(len(labels))]
        colors = sample_colorscale("Cividis", at)
    opened = ["-open" in look.mark for look in looks]
    names = [list(one) for one in zip(labels, colors, opened, strict=True)]
    return {"names": names, "of": groups.codes.tolist()}
