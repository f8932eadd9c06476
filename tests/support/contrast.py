"""What axe finds wrong with a page; for colors it looks at two texts of each look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["mark_looks", "violations"]

MARK = "data-look"
# Marks the first and the last text in sight of each look. A look is what contrast depends on: the
# color, size and weight of the letters, and color, picture and opacity of all that lies behind; and
# for a link what sets it off from the text around it, if there is any. Known looks are not marked.
MARK_LOOKS = """([within, mark, known]) => {
  const seen = new Map(), behind = new Map();
  const below = node => {
    if (!node) return '';
    if (!behind.has(node)) {
      const {backgroundColor, backgroundImage, opacity, filter} = getComputedStyle(node);
      const own = /, 0\\)$/.test(backgroundColor) ? '' : backgroundColor;
      const picture = backgroundImage === 'none' ? '' : backgroundImage;
      const veil = opacity === '1' ? '' : opacity;
      const change = filter === 'none' ? '' : filter;
      const layer = [own, picture, veil, change].filter(Boolean).join(' ');
      behind.set(node, below(node.parentElement) + (layer && '/' + layer));
    }
    return behind.get(node);
  };
  const setOff = link => {
    if (!link) return '';
    const around = link.parentElement, own = getComputedStyle(link);
    const alone = around.textContent.trim() === link.textContent.trim();
    const border = [own.borderBottomStyle, own.borderBottomWidth];
    return [alone, own.textDecorationLine, ...border, getComputedStyle(around).color].join('|');
  };
  document.querySelectorAll(`[${mark}]`).forEach(node => node.removeAttribute(mark));
  for (const node of document.querySelector(within).querySelectorAll('*')) {
    const text = node.matches('input, textarea, select, button')
      || Array.from(node.childNodes).some(one => one.nodeType === 3 && one.data.trim());
    if (!text || node.matches('script, style, noscript') || !node.checkVisibility()) continue;
    const {color, fill, fontSize, fontWeight, textShadow} = getComputedStyle(node);
    const letters = [color, node.closest('svg') ? fill : '', fontSize, fontWeight, textShadow];
    const link = node.closest('a[href]');
    const look = letters.join('|') + below(node) + setOff(link);
    seen.set(look, [(seen.get(look) || [node])[0], node]);
  }
  known.forEach(look => seen.has(look) && seen.set(look, []));
  for (const node of [...seen.values()].flat()) {
    node.setAttribute(mark, '');
    node.closest('a[href]')?.setAttribute(mark, '');
  }
  return [...seen.keys()];
}"""

# Its time goes with the number of nodes, most of which it has nothing to say about: the shapes of a
# figure, the colored words of code, formulas as they are drawn. They are taken out for its visit.
DULL = ".plotly-graph-div svg :is(path, rect, circle, line, image, defs), pre span, mjx-math"
# What lies behind a text does not change with these, in whose places nothing is marked.
BESIDE = ".bd-article :is(p, li, dt, dd, tr, pre, svg, mjx-container)"
COLORS = ["color-contrast", "link-in-text-block"]
TAKE_OUT = """([dull, mark]) => {
  const keep = `[${mark}]`;
  window.takenOut = Array.from(document.querySelectorAll(dull))
    .filter(node => !node.matches(keep) && !node.querySelector(keep))
    .map(node => [node, document.createComment('')]);
  for (const [node, place] of window.takenOut) node.replaceWith(place);
}"""
PUT_BACK = """() => {
  for (const [node, place] of window.takenOut.reverse()) place.replaceWith(node);
}"""


def mark_looks(page: Any, within: str = "body", known: Iterable[str] = ()) -> set[str]:
    """Mark the first and the last text of each look that is not known; return all looks."""
    return set(page.evaluate(MARK_LOOKS, [within, MARK, list(known)]))


def violations(
    page: Any,
    axe: Any,
    within: str = "body",
    *,
    colors: bool,
    others: bool,
    every: bool,
    alike: str = "",
    known: set[str] | None = None,
) -> Iterator[str]:
    """Yield in words what axe calls serious or critical in a part of a page.

    Parameters
    ----------
    page, axe
        The page, and the tool.
    within : str
        Selector of the part.
    colors : bool
        Look at the contrast of texts, and at what sets links off from the text around them.
    others : bool
        Look at all other rules.
    every : bool
        Look at the colors of every text, not only of two of each look, and at dull parts, too.
    alike : str
        Selector of what need not be looked at even then.
    known : set of str, optional
        Looks that were found good on other pages, not looked at again; those found good are added.
    """
    known = set() if known is None else known
    fresh: set[str] = set()
    runs: list[tuple[Any, dict[str, Any], str]] = []
    dull = ", ".join(filter(None, [DULL, alike]))
    if colors:
        place: Any = {"include": [[within]]} | ({"exclude": [[alike]]} if alike else {})
        if not every:
            looks = mark_looks(page, within, known)
            assert looks, "no text is in sight"
            fresh = looks - known
            place = {"include": [[f"{within} [{MARK}]"]]}
        if every or fresh:
            runs.append((place, {"runOnly": COLORS}, f"{dull}, {BESIDE}"))
    if others:
        runs.append((within, {"rules": {name: {"enabled": False} for name in COLORS}}, dull))
    found: list[dict[str, Any]] = []
    for place, rules, left_out in runs:
        if not every:
            page.evaluate(TAKE_OUT, [left_out, MARK])
        # A page in a file may not fetch its style sheets again, so axe must not try.
        options = {"resultTypes": ["violations"], "preload": False, **rules}
        found += axe.run(page, context=place, options=options).response["violations"]
        if not every:
            page.evaluate(PUT_BACK)
    if not any(rule["id"] in COLORS for rule in found):
        known |= fresh
    for rule in found:
        if rule["impact"] in ("serious", "critical"):
            yield from (f"axe, {rule['id']}: {node['html'][:200]}" for node in rule["nodes"])
