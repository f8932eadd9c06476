"""A strip of pictures from chapter 5's film of a flow that learns, for a page without JavaScript.

It is made from the figure that the chapter's notebook has stored, whenever the book is built, so
it shows what was run.
"""

from __future__ import annotations

import json
from array import array
from base64 import b64decode
from pathlib import Path
from typing import Any

FIGURE = "application/vnd.plotly.v1+json"
TITLE = "The latents become a Gaussian cloud"
STEPS = ("0", "60", "250", "1000")
SIDE, GAP, REACH = 180, 10, 3.6
TYPES = {"f4": "f", "f8": "d"}


def strip(notebook: Path) -> str:
    """Return the strip as SVG: the latents of each point at some training steps.

    Raises
    ------
    LookupError
        If the notebook has no such figure.
    """
    figure = _figure(notebook)
    labels = [step["label"] for step in figure["layout"]["sliders"][0]["steps"]]
    groups = len(figure["data"]) // len(labels)
    parts = []
    for place, step in enumerate(STEPS):
        first = groups * labels.index(step)
        left = place * (SIDE + GAP)
        frame = f'<rect width="{SIDE}" height="{SIDE}" fill="none" stroke="#7B7F86"/>'
        words = f'<text x="4" y="{SIDE + 18}">step {step}</text>'
        dots = "".join(_dots(trace) for trace in figure["data"][first : first + groups])
        parts.append(f'<g transform="translate({left + 1},1)">{frame}{dots}{words}</g>')
    width, height = len(STEPS) * (SIDE + GAP), SIDE + 26
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="14" fill="#7B7F86">'
        f"{''.join(parts)}</svg>\n"
    )


def _figure(notebook: Path) -> dict[str, Any]:
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            figure: dict[str, Any] = output.get("data", {}).get(FIGURE, {"layout": {}})
            if figure["layout"].get("title", {}).get("text") == TITLE:
                return figure
    raise LookupError(f"{notebook.name} has no figure called {TITLE!r}: run the chapter")


def _dots(trace: dict[str, Any]) -> str:
    """Draw one group of points, in the frame's units."""
    scale = SIDE / (2 * REACH)
    xs, ys = (_numbers(trace[axis]) for axis in "xy")
    at = [
        f"M{(x + REACH) * scale:.1f} {(REACH - y) * scale:.1f}h0"
        for x, y in zip(xs, ys, strict=True)
        if max(abs(x), abs(y)) < REACH
    ]
    look = f'stroke="{trace["marker"]["color"]}" stroke-width="3.5" stroke-linecap="round"'
    return f'<path {look} stroke-opacity="0.7" d="{"".join(at)}"/>'


def _numbers(values: Any) -> list[float]:
    """Return the numbers of a trace, which Plotly may have packed."""
    if isinstance(values, dict):
        packed: array[float] = array(TYPES[values["dtype"]], b64decode(values["bdata"]))
        return packed.tolist()
    return list(values)
