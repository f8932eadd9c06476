"""The built pages in a headless browser: figures drawn, formulas set, nothing asked of a server."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import looks
import numpy as np
import plotly
import plotly.graph_objects as go
import pytest
from contrast import mark_looks, violations
from PIL import Image

from bertflow_lite.figures import plots

Axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe
playwright = pytest.importorskip("playwright.sync_api")
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

# The names of a table's rows, in the first column, or of several columns of names in the last: what
# takes more than two lines, but for sentences, and what leaves the view where the table scrolls.
NAMES_OF_ROWS = """sentence => Array.from(document.querySelectorAll('.bd-article table'))
  .filter(table => !table.matches('.highlighttable') && table.checkVisibility())
  .flatMap(table => Array.from(table.querySelectorAll('tbody tr')).flatMap(row => {
    const name = row.querySelector(':scope > th:last-of-type') ?? row.cells[0];
    const text = name.textContent.trim(), range = document.createRange();
    range.selectNodeContents(name);
    const line = parseFloat(getComputedStyle(name).lineHeight);
    const lines = range.getBoundingClientRect().height / line;
    const short = text.length < sentence && !text.includes('/');
    const long = short && lines > 2.5 ? [`takes ${lines.toFixed(1)} lines`] : [];
    table.scrollLeft = table.scrollWidth;
    const gone = table.getBoundingClientRect().left - name.getBoundingClientRect().left;
    table.scrollLeft = 0;
    return [...long, ...(gone > 2 ? ['leaves the view'] : [])].map(what => [text, what]);
  }))"""
SENTENCE = 45  # characters, from which on a row is named by a sentence; a path may break anywhere

PRINTED = "book/01_puzzle.html"  # it has figures, tables, formulas, boxes and code
# Text of a printed page that stands out too little from white.
FAINT = """() => {
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number)
      .map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return Array.from(document.querySelectorAll('.bd-article *'))
    .filter(node => Array.from(node.childNodes).some(n => n.nodeType === 3 && n.data.trim()))
    .filter(node => node.checkVisibility() && !node.closest('svg, script, style, mjx-container'))
    .filter(node => 1.05 / (light(getComputedStyle(node).color) + 0.05) < 4.5)
    .map(node => node.tagName + ' ' + node.textContent.slice(0, 40)).slice(0, 5);
}"""

# Stands for machines whose fonts are wider than this one's.
WIDE_FONT = ".bd-article { letter-spacing: 0.1em; }"

# Rows of nothing but text look like the first four.
ALIKE = "tbody tr:nth-child(n + 5):not(:has(td :not(p)))"

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
            ".every(div => div.querySelector('.main-svg'))"
        )

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(t in message.text for t in HARMLESS):
            self.complaints.append(f"{message.type}: {message.text}")

    def show(self, *, width: int = 1280, theme: str = "light") -> None:
        """Look at the same page in another width or theme, once it has drawn itself anew."""
        looks.show(self.page, width=width, theme=theme)

    def complain(self) -> Iterator[str]:
        """Say what the console and the network had to say until now, and forget it."""
        said, self.complaints[:] = list(self.complaints), []
        yield from said


@pytest.fixture(params=_names())
def name(request: pytest.FixtureRequest, site: Path) -> str:
    if not (site / request.param).exists():
        pytest.skip(f"{request.param} is not in the table of contents")
    return str(request.param)


@pytest.fixture(scope="session")
def known() -> set[str]:
    """Looks of text, letters and what lies behind them, that were found good on some page."""
    return set()


def test_page(name: str, site: Path, chromium: Any, thorough: bool, known: set[str]) -> None:
    """Each page is opened once, looked at in all ways, and closed; all that is wrong is told."""
    page = chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    try:
        url = (site / name).as_uri()
        found = list(complaints(Visit(page, url), site.as_uri(), thorough, known))
    finally:
        page.close()
    assert not found, f"look at {url}\n" + "\n".join(found)


def complaints(visit: Visit, here: str, every: bool, known: set[str]) -> Iterator[str]:
    """Yield in words whatever is wrong with a page, in ``every`` text and width or in a sample."""
    page = visit.page
    for url in visit.requests:
        if not url.startswith((here, "data:", "blob:")):
            yield f"it asks another server: {url}"
    yield from (f"console: {text}" for text in visit.complain())  # before axe may write there
    yield from undrawn(page)
    for theme in ("light", "dark"):
        visit.show(theme=theme)
        yield from (f"{theme}: {text}" for text in unreadable(page, theme, every, known))
    for text, what in page.evaluate(NAMES_OF_ROWS, SENTENCE):
        yield f"1280 px wide: the name of a row, {text!r}, {what}"
    yield from dead_sliders(page)
    for width in (768, 400) if every else (400,):
        visit.show(width=width)
        yield from (f"{width} px wide: {text}" for text in too_wide(page))
    page.add_style_tag(content=WIDE_FONT)
    yield from (f"400 px wide, in a wide font: {text}" for text in too_wide(page))
    yield from (f"console, later: {text}" for text in visit.complain())


def undrawn(page: Any) -> Iterator[str]:
    """Figures that were not drawn, formulas that were not set."""
    for figure in page.eval_on_selector_all(".plotly-graph-div", DRAWN):
        if not (figure["marks"] > 0 and figure["height"] > 100):
            yield f"a figure is not drawn: {figure}"
    yield from (f"a formula is not set: {source}" for source in page.evaluate(RAW_MATH))
    if wrong := page.evaluate(MATH_ERRORS):
        yield f"formulas with an error: {wrong}"


def unreadable(page: Any, theme: str, every: bool, known: set[str]) -> Iterator[str]:
    """Text of figures without contrast, pressed buttons like others, and what axe finds serious."""
    for ratio, text in page.evaluate(CONTRAST):
        yield f"contrast of {text!r} in a figure is {ratio:.1f}, not 4.5"
    buttons = page.eval_on_selector_all(".plotly-graph-div", BUTTONS)
    pressed = {button["look"] for button in buttons if button["pressed"]}
    others = {button["look"] for button in buttons if not button["pressed"]}
    if len(pressed) != bool(buttons) or pressed & others:
        yield f"pressed buttons look {pressed}, the others {others}"
    # Only colors differ in the dark.
    yield from violations(
        page, Axe(), colors=True, others=theme == "light", every=every, alike=ALIKE, known=known
    )


def dead_sliders(page: Any) -> Iterator[str]:
    """Sliders that change nothing without a kernel."""
    for div in page.query_selector_all(".plotly-graph-div:has(.slider-container)"):
        before = div.query_selector(".cartesianlayer").inner_html()
        rails = div.query_selector_all(".slider-rail-touch-rect")
        rails[0].click(position={"x": 400, "y": 5}, force=True)
        try:
            page.wait_for_function(
                "([div, before]) => div.querySelector('.cartesianlayer').innerHTML !== before",
                arg=[div, before],
            )
        except playwright.TimeoutError:
            yield f"a slider changes nothing: {div.get_attribute('id')}"


def too_wide(page: Any) -> Iterator[str]:
    """What makes the page scroll sideways."""
    found = page.evaluate(OVERFLOW)
    if found["scroll"] > 0 or found["wide"]:
        yield f"the page scrolls {found['scroll']} px sideways, by {found['wide']}"


FADED = """<main><style>p {{ color: #222 }} .dark {{ background: #333 }} .veil {{ opacity: 0.3 }}
  .far {{ position: relative; z-index: 1 }}</style>{}<p>The last.</p></main>"""


@pytest.mark.parametrize(
    "odd",
    [
        "<p style='color: #aaa'>pale</p>",
        "<div class=dark><p>dark on dark</p></div>",
        "<div class=dark><div style='background: transparent'><p>dark on dark</p></div></div>",
        "<div class=veil><p>behind a veil</p></div>",
        "<p><code style='color: #aaa'>pale code</code></p>",
        "<pre style='font: inherit; color: #222'><span style='color: #aaa'>pale</span></pre>",
        "<input aria-label='a field' value='pale' style='color: #aaa'>",
        "<p><a href='#' style='color: #aaa'>a pale link</a></p>",
    ],
)
def test_one_pale_text_among_many_is_found(odd: str, chromium: Any) -> None:
    """Though contrast is looked at for two texts of each look only."""
    page = chromium.new_page()
    try:
        page.set_content(FADED.format(40 * "<p>A text.</p>" + odd + 40 * "<p>A text.</p>"))
        looks = mark_looks(page, "main")
        assert len(looks) == 2
        assert page.locator("[data-look]").count() == 3  # the first, the odd one, the last
        known: set[str] = set()
        for _ in range(2):  # what was found bad is found again
            found = list(
                violations(page, Axe(), "main", colors=True, others=False, every=False, known=known)
            )
            assert len(found) == 1 and "color-contrast" in found[0]
            assert not known
        assert found == list(violations(page, Axe(), "main", colors=True, others=False, every=True))
    finally:
        page.close()


def test_one_link_that_looks_like_text_is_found_among_many(chromium: Any) -> None:
    links = 20 * "<p>A text with <a href='#'>a link</a>.</p>"
    alone = "<p><a href='#' class=plain>alone, so all can see that it is one</a></p>"
    odd = "<p>A text with <a href='#' class=plain>a link</a> among its words.</p>"
    style = "<style>p {color: #222} .plain {color: #333; text-decoration: none}</style>"
    page = chromium.new_page()
    try:
        for inner, wanted in ((links, 0), (links + odd + links, 1)):
            text = style + alone + inner + alone
            page.set_content(f"<main><article class=bd-article>{text}</article></main>")
            for every in (False, True):
                found = violations(page, Axe(), "main", colors=True, others=False, every=every)
                assert ["link-in-text-block" in one for one in found] == [True] * wanted
    finally:
        page.close()


def test_a_look_that_was_found_good_is_not_looked_at_again(chromium: Any) -> None:
    page = chromium.new_page()
    try:
        known: set[str] = set()
        for odd, wanted in (("", 1), ("", 0), ("<p style='color: #333'>another look</p>", 1)):
            page.set_content(FADED.format(5 * "<p>A text.</p>" + odd))
            before = len(known)
            seen = violations(
                page, Axe(), "main", colors=True, others=False, every=False, known=known
            )
            assert not list(seen)
            assert len(known) == before + wanted
            assert page.locator("[data-look]").count() == (2 if not before else wanted)
    finally:
        page.close()


def test_a_page_is_as_before_when_axe_has_seen_it(chromium: Any) -> None:
    page = chromium.new_page()
    dull = "<pre><span>a <b>b</b></span> <span>c</span></pre><svg><path d='M0 0'/><rect/></svg>"
    try:
        page.set_content(f"<main><div class=plotly-graph-div>{3 * dull}</div></main>")
        before = page.inner_html("main")
        for _ in range(2):
            found = violations(page, Axe(), "main", colors=True, others=True, every=False)
            assert not list(found)
        assert page.inner_html("main").replace(' data-look=""', "") == before
    finally:
        page.close()


def test_a_page_knows_nothing_of_those_before_and_asks_for_all_it_needs(
    chromium: Any, tmp_path: Path
) -> None:
    """Though pages are tabs of one window, whose scripts are compiled once."""
    (tmp_path / "one.js").write_text(
        "document.title = String(localStorage.theme); localStorage.theme = 'dark';"
    )
    (tmp_path / "page.html").write_text("<script src=one.js></script><p>A page.")
    for looks_like in ({"color_scheme": "dark", "viewport": {"width": 400, "height": 900}}, {}):
        page = chromium.new_page(**looks_like)
        requests: list[str] = []
        page.on("request", lambda request, asked=requests: asked.append(request.url))
        page.goto((tmp_path / "page.html").as_uri(), wait_until="load")
        assert page.title() == "undefined"
        assert [url.rpartition("/")[2] for url in requests] == ["page.html", "one.js"]
        seen = page.evaluate(
            "() => [matchMedia('(prefers-color-scheme: dark)').matches, innerWidth]"
        )
        assert seen == ([True, 400] if looks_like else [False, 1280])
        page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_paper_is_white_and_text_on_it_dark(theme: str, site: Path, chromium: Any) -> None:
    page = chromium.new_page(viewport={"width": 800, "height": 1200}, color_scheme=theme)
    try:
        visit = Visit(page, (site / PRINTED).as_uri())
        visit.show(width=800, theme=theme)
        page.emulate_media(media="print", color_scheme=theme)
        shot = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("L")
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(FAINT) == []
    finally:
        page.close()
    light = np.asarray(shot)
    corners = light[[0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners == 255).all(), "the paper itself is not white"
    assert (light > 230).mean() > 0.8, "too little of the page is white"
    assert (light < 90).mean() > 0.005, "hardly any text is dark"
    assert (light < 90).mean() < 0.15, "something large is dark"


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
