"""The built pages in a headless browser: figures drawn, formulas set, nothing asked of a server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plotly
import plotly.graph_objects as go
import pytest

from bertflow_lite import plots

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.book, pytest.mark.browser]

# Text in the browser's console that is no fault of a page.
HARMLESS: tuple[str, ...] = ()

DRAWN = """divs => divs.map(div => {
  const marks = div.querySelectorAll(
    '.scatterlayer path, .barlayer path, .boxlayer path, .violinlayer path, .contourlayer path,'
    + '.heatmaplayer image, .imagelayer image, .pielayer path, .textpoint text, canvas,'
    + '.table .column-cell'
  );
  return {id: div.id, marks: marks.length, height: div.clientHeight, width: div.clientWidth};
})"""
# Rendered text with a formula's source in it, left by a formula that was not set.
RAW_MATH = """() => Array.from(document.querySelectorAll('article .math'))
  .filter(node => node.querySelector('mjx-container') === null)
  .map(node => node.textContent.slice(0, 60))"""
MATH_ERRORS = "() => document.querySelectorAll('article mjx-merror').length"
OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  const inside = node => {
    for (let up = node.parentElement; up; up = up.parentElement)
      if (/auto|scroll|hidden/.test(getComputedStyle(up).overflowX)) return true;
    return false;
  };
  const wide = Array.from(document.querySelectorAll('main *'))
    .filter(node => node.getBoundingClientRect().right > width + 1 && !inside(node))
    .filter(node => getComputedStyle(node).visibility !== 'hidden')  // a drawer that is shut
    .map(node => node.tagName + '.' + node.className);
  return {scroll: document.documentElement.scrollWidth - width, wide: wide.slice(0, 5)};
}"""
CONTRAST = """() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = color => {
    const [r, g, b] = color.slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = node => {
    for (let up = node; up; up = up.parentElement) {
      const color = parse(getComputedStyle(up).backgroundColor);
      if (color.length === 3 || color[3] > 0.5) return light(color);
    }
    return 1;
  };
  const texts = document.querySelectorAll(
    '.js-plotly-plot .xtick text, .js-plotly-plot .ytick text, .js-plotly-plot .xtitle,'
    + '.js-plotly-plot .ytitle, .js-plotly-plot .legendtext, .js-plotly-plot .slider-label,'
    + '.js-plotly-plot .gtitle');
  return Array.from(texts).map(node => {
    const front = light(parse(getComputedStyle(node).fill));
    const back = behind(node.closest('.bertflow-figure'));
    return [(Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05), node.textContent];
  }).filter(([ratio]) => ratio < 4.5);
}"""

# Fill and stroke of each button in sight, and whether it is the pressed one of its menu.
BUTTONS = """divs => divs.flatMap(div => Array.from(
  div.querySelectorAll('.updatemenu-button .updatemenu-item-rect'), rect => {
    const {fill, stroke} = getComputedStyle(rect);
    return {pressed: rect.style.fill === 'rgb(244, 250, 255)', look: [fill, stroke].join(' ')};
  }))"""


def _names() -> list[str]:
    book = ROOT / "book"
    stems = {path.stem for pattern in ("*.md", "*.ipynb") for path in book.glob(pattern)}
    return [f"book/{stem}.html" for stem in sorted(stems)] + ["search.html"]


class Visit:
    """A page that was opened, with all figures drawn: what it asked for, and its complaints."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("requestfailed", lambda request: self.complaints.append(f"failed: {request.url}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._listen)
        page.goto(url, wait_until="load")
        page.wait_for_function("() => !window.MathJax || !!window.MathJax.startup?.promise")
        page.evaluate("() => window.MathJax?.startup?.promise.then(() => true)")
        page.evaluate("() => window.bertflowFigures?.drawAll().then(() => true)")
        page.wait_for_function(
            "() => Array.from(document.querySelectorAll('.plotly-graph-div'))"
            ".every(div => div.querySelector('.main-svg'))",
            timeout=30_000,
        )

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(t in message.text for t in HARMLESS):
            self.complaints.append(f"{message.type}: {message.text}")


@pytest.fixture(scope="module")
def visit(site: Path, chromium: Any) -> Iterator[Callable[..., Visit]]:
    """Open a page of the book; the same page and settings are opened once."""
    opened: dict[tuple[Any, ...], Visit] = {}

    def open_page(name: str, width: int = 1280, theme: str = "light") -> Visit:
        key = (name, width, theme)
        if key not in opened:
            size = {"width": width, "height": 900}
            page = chromium.new_page(viewport=size, color_scheme=theme)
            opened[key] = Visit(page, (site / name).as_uri())
        return opened[key]

    yield open_page
    for each in opened.values():
        each.page.close()


@pytest.fixture(params=_names())
def name(request: pytest.FixtureRequest, site: Path) -> str:
    if not (site / request.param).exists():
        pytest.skip(f"{request.param} is not in the table of contents")
    return str(request.param)


def test_page_asks_no_other_server(name: str, site: Path, visit: Callable[..., Visit]) -> None:
    here = site.as_uri()
    outside = [url for url in visit(name).requests if not url.startswith((here, "data:", "blob:"))]
    assert not outside


def test_page_logs_no_error(name: str, visit: Callable[..., Visit]) -> None:
    assert not visit(name).complaints


def test_every_figure_is_drawn(name: str, visit: Callable[..., Visit]) -> None:
    for figure in visit(name).page.eval_on_selector_all(".plotly-graph-div", DRAWN):
        assert figure["marks"] > 0, figure
        assert figure["height"] > 100, figure


def test_every_formula_is_set(name: str, visit: Callable[..., Visit]) -> None:
    page = visit(name).page
    assert page.evaluate(RAW_MATH) == []
    assert page.evaluate(MATH_ERRORS) == 0


def test_slider_changes_the_figure_without_a_kernel(name: str, visit: Callable[..., Visit]) -> None:
    page = visit(name, width=1000).page
    for div in page.query_selector_all(".plotly-graph-div:has(.slider-container)"):
        before = div.query_selector(".cartesianlayer").inner_html()
        div.query_selector_all(".slider-group .slider-rail-touch-rect, .slider-rail-touch-rect")[
            0
        ].click(position={"x": 400, "y": 5}, force=True)
        page.wait_for_function(
            "([div, before]) => div.querySelector('.cartesianlayer').innerHTML !== before",
            arg=[div, before],
        )


@pytest.mark.parametrize("width", [400, 768])
def test_narrow_page_does_not_scroll_sideways(
    name: str, width: int, visit: Callable[..., Visit]
) -> None:
    found = visit(name, width=width).page.evaluate(OVERFLOW)
    assert found["scroll"] <= 0, found
    assert not found["wide"], found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figure_text_can_be_read(name: str, theme: str, visit: Callable[..., Visit]) -> None:
    assert visit(name, theme=theme).page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_pressed_button_looks_pressed(
    name: str, theme: str, visit: Callable[..., Visit]
) -> None:
    page = visit(name, theme=theme).page
    buttons = page.eval_on_selector_all(".plotly-graph-div", BUTTONS)
    pressed = {button["look"] for button in buttons if button["pressed"]}
    others = {button["look"] for button in buttons if not button["pressed"]}
    assert len(pressed) == bool(buttons)
    assert not pressed & others


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_is_accessible(name: str, theme: str, visit: Callable[..., Visit]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    # Only colors differ in the dark.
    rules = {"runOnly": ["color-contrast"]} if theme == "dark" else {}
    options = {"resultTypes": ["violations"], **rules}
    found = axe.run(visit(name, theme=theme).page, options=options).response["violations"]
    serious = [
        f"{rule['id']}: {node['html'][:200]}"
        for rule in found
        for node in rule["nodes"]
        if rule["impact"] in ("serious", "critical")
    ]
    assert not serious


def test_figure_outside_the_book_fetches_the_library_once(chromium: Any) -> None:
    figures = [go.Figure(go.Bar(y=[1, height]), {"template": None}) for height in (2, 3)]
    html = "".join(
        plots._to_html(json.loads(figure.to_json())) for figure in [*figures, figures[0]]
    )
    library = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    requests: list[str] = []
    page = chromium.new_page()

    def answer(route: Any) -> None:
        requests.append(route.request.url)
        route.fulfill(path=library, content_type="text/javascript")

    page.route("**/*", answer)
    page.set_content(f"<html><body>{html}</body></html>")
    page.wait_for_function("() => document.querySelectorAll('.barlayer').length === 3")
    assert len(requests) == 1
    page.close()


def test_figure_without_the_library_shows_its_description(chromium: Any) -> None:
    figure = go.Figure(go.Bar(y=[1, 2]), {"meta": {"alt": "Two bars."}})
    page = chromium.new_page()
    page.route("**/*", lambda route: route.abort())
    page.set_content(f"<body>{plots._to_html(json.loads(figure.to_json()))}</body>")
    page.wait_for_function("() => document.body.innerText.includes('Two bars.')")
    page.close()
