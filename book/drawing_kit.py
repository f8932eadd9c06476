"""A sheet to draw on, for the book's conceptual drawings: boxes, arrows, words and dots, as SVG.

A sheet brings its own white card, so that it reads alike in the light and the dark theme, on paper
and on a slide. Colors come from the palette of the figures. Each letter that the book uses for a
vector has one color in all drawings, that of the figures where they show the same thing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from bertflow_lite.figures.plots import PALETTE

__all__ = ["CARD", "INK", "ROLES", "SMALLEST", "WIDTH", "Sheet", "width_of"]

WIDTH = 700
CARD, INK = "#FFFFFF", "#1F2328"
ROLES = {
    "u": PALETTE["gray"],  # raw embeddings are gray in every figure
    "z": PALETTE["blue"],  # what comes out of the flow is blue
    "h": PALETTE["orange"],  # hidden states, and vectors of contexts
    "w": PALETTE["purple"],  # words and their weights are purple
    "good": PALETTE["green"],
    "bad": PALETTE["vermillion"],
    "do": PALETTE["sky"],
    "machine": INK,
}
"""Color of each kind of thing; `machine` is whatever computes."""
SIZE, SMALLEST = 20, 18
"""Usual and smallest size of letters, on a sheet that is 700 wide."""
_NARROW, _WIDE = set("fijlrtI.,:;'|!()[]-– "), set("mwMWABCDEGHKNOQRUVXY%…→=+−×")


def width_of(words: str, size: float, bold: bool = False) -> float:
    """Return how wide some words are in a wide common font: more than in most readers' fonts."""
    ems = sum(0.4 if c in _NARROW else 0.85 if c in _WIDE else 0.62 for c in words)
    return ems * size * (1.07 if bold else 1)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Sheet:
    """One drawing, 700 units wide.

    Parameters
    ----------
    title, description : str
        What a screen reader says.
    height : int
        In the same units.
    """

    def __init__(self, title: str, description: str, height: int) -> None:
        self.title, self.description, self.height = title, description, height
        self.parts: list[str] = []

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = SIZE,
        align: str = "middle",
        bold: bool = False,
        italic: bool = False,
    ) -> None:
        """Write one line, its middle at the height y."""
        look = ' font-weight="bold"' * bold + ' font-style="italic"' * italic
        anchor = "" if align == "start" else f' text-anchor="{align}"'
        place = f'x="{_number(x)}" y="{_number(y + 0.35 * size)}"'
        self.parts.append(
            f'<text {place} font-size="{size}"{anchor}{look}>{escape(text, quote=False)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        lines: str | Sequence[str] = (),
        *,
        role: str = "machine",
        size: int = SIZE,
        bold: bool = False,
        dashed: bool = False,
        full: bool = False,
    ) -> None:
        """Draw a box with lines of words in its middle; `full` makes its color stronger."""
        color = ROLES[role]
        tint = 0.0 if role == "machine" else 0.5 if full else 0.2
        dash = ' stroke-dasharray="5 5"' * dashed
        self.parts.append(
            f'<g class="box"><rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
            f'height="{_number(height)}" rx="7" fill="{color}" fill-opacity="{tint}" '
            f'stroke="{color}" stroke-width="2"{dash}/>'
        )
        lines = [lines] if isinstance(lines, str) else lines
        for k, line in enumerate(lines):
            middle = y + height / 2 + (k - (len(lines) - 1) / 2) * 1.25 * size
            self.words(x + width / 2, middle, line, size=size, bold=bold)
        self.parts.append("</g>")

    def cells(
        self, x: float, y: float, count: int, *, side: float = 40, role: str, full: bool = False
    ) -> None:
        """Draw a row of cells: a vector of `count` numbers."""
        for k in range(count):
            self.box(x + k * side, y, side - 4, side - 4, role=role, full=full)

    def bar(
        self, x: float, y: float, width: float, height: float, role: str, *, pointed: bool = False
    ) -> None:
        """Draw a plain bar, perhaps with a tip; a negative width goes to the left."""
        if pointed:
            tip = math.copysign(min(12, abs(width)), width)
            corners = [(x, y), (x + width - tip, y), (x + width, y + height / 2)]
            corners += [(x + width - tip, y + height), (x, y + height)]
            self._polygon(corners, role)
            return
        self.parts.append(
            f'<rect x="{_number(min(x, x + width))}" y="{_number(y)}" '
            f'width="{_number(abs(width))}" height="{_number(height)}" fill="{ROLES[role]}"/>'
        )

    def line(
        self, points: Sequence[tuple[float, float]], *, role: str = "machine", dashed: bool = False
    ) -> None:
        """Draw a line through points."""
        way = "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        dash = ' stroke-dasharray="5 5"' * dashed
        self.parts.append(
            f'<path d="M{way}" fill="none" stroke="{ROLES[role]}" stroke-width="2"{dash}/>'
        )

    def arrow(self, *points: tuple[float, float], role: str = "machine") -> None:
        """Draw a line through points, with a head at the last."""
        (x0, y0), (x, y) = points[-2:]
        length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
        dx, dy = (x - x0) / length, (y - y0) / length
        back = (x - 11 * dx, y - 11 * dy)
        self.line([*points[:-1], back], role=role)
        wings = [(back[0] + s * 5.5 * dy, back[1] - s * 5.5 * dx) for s in (1, -1)]
        self._polygon([(x, y), *wings], role)

    def _polygon(self, corners: Iterable[tuple[float, float]], role: str) -> None:
        shape = " ".join(f"{_number(a)},{_number(b)}" for a, b in corners)
        self.parts.append(f'<polygon points="{shape}" fill="{ROLES[role]}"/>')

    def dots(
        self,
        points: Iterable[tuple[float, float]],
        *,
        role: str = "machine",
        radius: float = 5,
        hollow: bool = False,
    ) -> None:
        """Draw dots, full or hollow."""
        color = ROLES[role]
        look = f'fill="{CARD}" stroke="{color}" stroke-width="2"' if hollow else f'fill="{color}"'
        self.parts += [
            f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}" {look}/>'
            for x, y in points
        ]

    def svg(self) -> str:
        """Return the drawing, one element a line."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'width="{WIDTH}" height="{self.height}" role="img" fill="{INK}" '
            "font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif\">\n"
            f"<title>{escape(self.title, quote=False)}</title>\n"
            f"<desc>{escape(self.description, quote=False)}</desc>\n"
            f'<rect width="{WIDTH}" height="{self.height}" rx="12" fill="{CARD}"/>'
        )
        return "\n".join([head, *self.parts, "</svg>"]) + "\n"
