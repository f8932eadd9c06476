"""One opened page, looked at in several widths and themes."""

from typing import Any

__all__ = ["show"]

TWO_FRAMES = "() => new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))"
# The theme has come, nothing moves or fades, and each figure is drawn in the width of its place.
SETTLED = """theme => document.documentElement.dataset.theme === theme
  && document.getAnimations().every(one => one.playState !== 'running')
  && Array.from(document.querySelectorAll('.plotly-graph-div .main-svg:first-child')).every(svg => {
    const place = svg.closest('.plotly-graph-div').parentElement.clientWidth;
    return !place || Math.abs(svg.clientWidth - place) < 2;
  })"""


def show(page: Any, *, width: int = 1280, theme: str = "light") -> None:
    """Look at the same page in another width or theme, once it has drawn itself anew."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=theme)
    page.evaluate(TWO_FRAMES)
    page.wait_for_function(SETTLED, arg=theme)
