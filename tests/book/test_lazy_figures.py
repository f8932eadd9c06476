"""Figures are drawn when they come near the view; nothing jumps, and a print has all of them."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plotly
import plotly_parts
import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.book, pytest.mark.browser]
LIBRARY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
LONG = "book/04_anisotropy.html"  # ten figures, over many heights of a window
SHORTER = "book/recipe.html"  # five, over as many
FORMULAS = "book/05_flows.html"  # formulas and figures

DRAWN = """() => Array.from(document.querySelectorAll('.plotly-graph-div'))
  .map(div => div.querySelector('.main-svg') !== null)"""
PLACES = """() => Array.from(document.querySelectorAll('.plotly-graph-div, h2, h3, h4'))
  .map(node => node.getBoundingClientRect()).map(box => [box.top + scrollY, box.height])"""
SETTLED = """() => Promise.resolve(window.MathJax?.startup?.promise)
  .then(() => document.fonts.ready)
  .then(() => new Promise(done => requestAnimationFrame(() => setTimeout(done))))
  .then(() => true)"""
# Where there are formulas, their library has come as well.
OPENED = """() => document.querySelector('.plotly-graph-div .main-svg')
  && (!document.querySelector('article .math') || window.MathJax?.startup?.promise)"""


@pytest.fixture
def opened(site: Path, chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open a page in a window of 900 pixels, and wait for its first figure and its formulas."""
    pages = []

    def open_page(name: str, fragment: str = "") -> Any:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        pages.append(page)
        page.goto((site / name).as_uri() + fragment, wait_until="load")
        page.wait_for_function(OPENED)
        page.evaluate(SETTLED)
        return page

    yield open_page
    for page in pages:
        page.close()


def wait_for(page: Any, number: int) -> None:
    """Wait until a figure, counted from 0, is drawn."""
    page.wait_for_function(
        "n => document.querySelectorAll('.plotly-graph-div')[n].querySelector('.main-svg')",
        arg=number,
    )


def test_figures_are_drawn_near_the_view_or_all_in_their_order_and_nothing_jumps(
    opened: Callable[..., Any],
) -> None:
    page = opened(LONG)
    tops = [top for top, _ in page.evaluate(PLACES.replace(", h2, h3, h4", ""))]
    assert tops[-1] > 5 * 900
    wait_for(page, 0)
    before = page.evaluate(PLACES)
    drawn = page.evaluate(DRAWN)
    assert drawn[0], "the first figure does not wait"
    assert not any(drawn[k] for k, top in enumerate(tops) if top > 3 * 900), drawn
    assert page.evaluate("() => bertflowFigures.waiting()") == drawn.count(False) > 4

    page.evaluate("top => scrollTo({top: top, behavior: 'instant'})", tops[-1])
    wait_for(page, len(tops) - 1)
    middle = [k for k, top in enumerate(tops) if 3 * 900 < top < tops[-1] - 3 * 900]
    assert len(middle) > 2
    assert not any(page.evaluate(DRAWN)[k] for k in middle), "those that were jumped over"

    order, left = page.evaluate(
        """async () => {
          const boxes = Array.from(document.querySelectorAll('.plotly-graph-div'));
          const left = boxes.filter(div => !div.querySelector('.main-svg'));
          const order = [];
          const real = Plotly.newPlot;
          Plotly.newPlot = (box, figure) => { order.push(boxes.indexOf(box));
                                              return real(box, figure); };
          await bertflowFigures.drawAll();
          return [order, left.map(div => boxes.indexOf(div))];
        }"""
    )
    assert order == left == sorted(order), "in the order of the page"
    assert len(order) > 2
    assert all(page.evaluate(DRAWN))
    page.evaluate("() => scrollTo({top: 0, behavior: 'instant'})")
    after = page.evaluate(PLACES)
    assert len(before) == len(after)
    for (top, height), (new_top, new_height) in zip(before, after, strict=True):
        assert abs(top - new_top) <= 1, "nothing jumps"
        assert abs(height - new_height) <= 1, "nothing changes its height"


def test_a_link_into_the_page_draws_what_it_leads_to(
    site: Path, opened: Callable[..., Any]
) -> None:
    text = (site / SHORTER).read_text(encoding="utf-8")
    section = re.findall(r'<section id="([^"]+)"', text[: text.rindex("plotly-graph-div")])[-1]
    page = opened(SHORTER, f"#{section}")
    at_bottom = page.evaluate(
        "() => Array.from(document.querySelectorAll('.plotly-graph-div')).findIndex("
        "div => div.getBoundingClientRect().bottom > 0)"
    )
    assert at_bottom > 1, "none that is drawn anyway"
    wait_for(page, at_bottom)


def test_a_print_has_all_figures(opened: Callable[..., Any]) -> None:
    page = opened(SHORTER)
    assert not all(page.evaluate(DRAWN))
    page.pdf()
    assert all(page.evaluate(DRAWN))


def test_who_asks_early_gets_all_figures(site: Path, chromium: Any) -> None:
    """Before the library has come, `drawAll` waits for it."""
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(
        "document.addEventListener('readystatechange', () => {"
        "  if (document.readyState === 'interactive')"
        "    window.asked = bertflowFigures.drawAll().then(() => bertflowFigures.waiting());"
        "}, {once: true});"
    )
    page.goto((site / SHORTER).as_uri(), wait_until="load")
    assert page.evaluate("() => window.asked") == 0
    assert all(page.evaluate(DRAWN))
    page.close()


def test_without_the_library_the_descriptions_and_formulas_stand_there(
    site: Path, chromium: Any, tmp_path: Path
) -> None:
    text = (site / FORMULAS).read_text(encoding="utf-8")
    text = text.replace("../_static/plotly.min.js", "../_static/is-not-there.js")
    text = text.replace("../_static/", f"{(site / '_static').as_uri()}/")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page = chromium.new_page()
    page.goto((tmp_path / "page.html").as_uri(), wait_until="load")
    page.wait_for_function("() => window.MathJax?.startup?.promise")
    page.evaluate(SETTLED)
    labels, shown = page.evaluate(
        """() => { const boxes = Array.from(document.querySelectorAll('.bertflow-figure'));
          return [boxes.map(box => box.getAttribute('aria-label')),
                  boxes.map(box => box.querySelector('.plotly-graph-div').textContent)]; }"""
    )
    assert len(shown) > 3
    assert shown == labels
    assert page.evaluate("() => document.querySelectorAll('article mjx-container').length") > 0
    page.close()


def test_the_library_has_what_the_figures_need_and_little_more(site: Path) -> None:
    whole = LIBRARY.read_text(encoding="utf-8")
    cut = (site / "_static" / "plotly.min.js").read_text(encoding="utf-8")
    assert len(cut) < 0.3 * len(whole)
    notice = whole[: whole.index("*/")]
    assert "licen" in notice.lower()
    assert cut.startswith(notice)
    kinds = plotly_parts.kinds_in((ROOT / "book").glob("*.ipynb"))
    assert {"scatter", "bar"} <= kinds
    registered = set(re.findall(r'moduleType:"trace",name:"(\w+)"', cut))
    assert kinds <= registered
    assert not registered & {"scattergl", "surface", "choroplethmap", "pie", "sankey"}


def test_every_module_that_the_cut_library_names_is_in_it() -> None:
    whole = LIBRARY.read_text(encoding="utf-8")
    cut = plotly_parts.without_unused(whole, {"scatter", "bar"})
    defined = {match[1] for match in plotly_parts.MODULE.finditer(whole)}
    kept = {match[1] for match in plotly_parts.MODULE.finditer(cut)}
    assert 100 < len(kept) < 0.6 * len(defined)
    # A name of a module is long enough not to be a local one.
    named = {word for word in plotly_parts.WORD.findall(cut) if len(word) > 2}
    assert not (named & defined) - kept


@pytest.mark.parametrize("library", ["", "window.Plotly = {};", "var a=B(()=>{});window.Plotly=a;"])
def test_another_library_is_left_as_it_is(library: str) -> None:
    assert plotly_parts.without_unused(library, {"scatter", "bar"}) == library


def test_a_kind_that_is_not_found_leaves_the_library_whole() -> None:
    whole = LIBRARY.read_text(encoding="utf-8")
    assert plotly_parts.without_unused(whole, {"scatter", "no-such-trace"}) == whole


def test_kinds_are_read_from_figures_and_their_frames(tmp_path: Path) -> None:
    figure = {
        "data": [{"y": [1]}, {"type": "bar", "y": [2]}],
        "frames": [{"data": [{"type": "heatmap"}]}],
    }
    cells = [{"outputs": [{"data": {plotly_parts.FIGURE: figure}}]}, {"source": []}]
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    assert plotly_parts.kinds_in([path]) == {"scatter", "bar", "heatmap"}
