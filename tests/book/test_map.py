"""The map explorer in a browser: points move, neighbors light up, words are found."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from contrast import violations

from bertflow_lite import load_run, load_sts
from bertflow_lite.figures.maps import Explorer, explore_map, explore_map_of_pairs

pytestmark = [pytest.mark.book, pytest.mark.browser]
AT = "(() => { const e = document.querySelector('.bertflow-map').explorer; return %s; })()"
HOSTILE = "<img src=x onerror=alert(1)> </script><!-- é 雪 😀"


def small_map(n: int = 40) -> Explorer:
    """Two spaces of sentences whose places and neighbors are known."""
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1000, n).astype(int)

    def step(y: Any, shift: int) -> dict[str, Any]:
        near = (np.arange(n)[:, None] + shift + np.arange(5)) % n
        return {
            **{"x": x.tolist(), "y": y.tolist(), "neighbors": near.tolist()},
            "cosines": np.linspace(0.9, 0.5, 5 * n).reshape(n, 5).round(3).tolist(),
            **{"kept_on_map": 0.31, "trustworthiness": 0.87, "kept_of_raw": 0.42},
        }

    texts = [f"Sentence {k} of the {'cat' if k % 4 else 'dog'}." for k in range(n)]
    texts[0] = HOSTILE
    steps = {"none": step(rng.integers(0, 400, n), 1), "flow": step(rng.integers(0, 400, n), 4)}
    groups = {
        "topic": pd.Categorical(["cats" if k % 4 else "dogs" for k in range(n)]),
        "length": pd.Categorical.from_codes(np.arange(n) * 2 // n, ["short", "long"], ordered=True),
    }
    return explore_map(
        {"height": 400, "steps": steps}, texts, groups, "A map.", partners={3: (9, "rated 1.0")}
    )


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    pages = []

    def open_page(**settings: Any) -> Any:
        (tmp_path / "map.html").write_text(small_map().page("A map"), encoding="utf-8")
        page = chromium.new_page(viewport={"width": 1000, "height": 900}, **settings)
        page.asked, page.complaints = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.goto((tmp_path / "map.html").as_uri(), wait_until="load")
        page.wait_for_function("() => document.querySelector('.bertflow-map').explorer.sx[5] > 0")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        assert page.asked == [(tmp_path / "map.html").as_uri()]
        assert page.complaints == []
        page.close()


def where(page: Any) -> np.ndarray:
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    return np.array(page.evaluate(AT % "[Array.from(e.sx), Array.from(e.sy)]")).T


def picture(page: Any) -> str:
    where(page)
    return str(page.evaluate("() => document.querySelector('.bertflow-map canvas').toDataURL()"))


def lists(page: Any) -> list[list[str]]:
    boxes = page.locator(".near ol").all()
    return [[item.inner_text() for item in box.locator("li").all()] for box in boxes]


def test_the_slider_and_its_buttons_move_the_points(opened: Callable[..., Any]) -> None:
    page = opened(reduced_motion="reduce")
    raw = where(page)
    assert "raw: of a sentence's 10 nearest in this space, the map keeps 31 %" in page.inner_text(
        ".note"
    )
    page.focus(".bertflow-map input[type=range]")
    page.keyboard.press("End")
    flow = where(page)
    assert (raw[:, 0] == flow[:, 0]).all() and (raw[:, 1] != flow[:, 1]).mean() > 0.9
    assert "42 % stay" in page.inner_text(".note")
    slider = page.locator("input[type=range]")
    assert slider.get_attribute("aria-valuetext") == "flow"
    page.evaluate(AT % "e.move(0.5)")
    np.testing.assert_allclose(where(page), (raw + flow) / 2, atol=1e-3)
    page.click(".step >> text=raw")
    np.testing.assert_array_equal(where(page), raw)


def test_play_goes_through_all_spaces_and_stops(opened: Callable[..., Any]) -> None:
    page = opened()
    raw = where(page)
    page.click(".play")
    assert page.inner_text(".play") == "Pause"
    page.wait_for_function("() => document.querySelector('.play').innerText === 'Play'")
    assert page.evaluate(AT % "e.at.step") == 1
    assert (where(page) != raw).any()


def test_pointing_lights_up_the_neighbors_of_before_and_after(opened: Callable[..., Any]) -> None:
    page = opened()
    x, y = where(page)[20]
    dark = picture(page)
    canvas = page.locator(".bertflow-map canvas")
    canvas.hover(position={"x": x, "y": y})
    before, after = lists(page)
    assert [item.partition(" ")[2] for item in before[:3]] == [
        f"Sentence {k} of the cat." for k in (21, 22, 23)
    ]
    assert [re.search(r"\d+ of", item)[0] for item in after] == [f"{k} of" for k in range(24, 29)]  # type: ignore[index]
    assert all(re.match(r"0\.\d\d ", item) for item in before + after)
    assert ["(in both)" in item for item in before] == 3 * [False] + 2 * [True]
    assert picture(page) != dark
    canvas.click(position={"x": x, "y": y})
    page.mouse.move(5, 5)
    assert page.evaluate(AT % "e.at.selected") == 20
    canvas.click(position={"x": x, "y": y})
    page.mouse.move(5, 5)
    assert page.evaluate(AT % "e.at.selected") == -1
    page.evaluate(AT % "e.select(3, true)")
    assert "Its pair (rated 1.0): Sentence 9" in page.inner_text(".near")


def test_words_are_found_and_sentences_chosen_by_keyboard(opened: Callable[..., Any]) -> None:
    page = opened()
    page.fill("input[type=text]", "DOG")
    assert page.inner_text(".count") == "9 found; Enter: next"
    for k in (4, 8):
        page.keyboard.press("Enter")
        assert page.inner_text(".near b >> nth=0") == f"Sentence {k} of the dog."
    page.fill("input[type=text]", "zebra")
    assert page.inner_text(".count") == "0 found"
    page.keyboard.press("Enter")
    assert page.evaluate(AT % "e.at.selected") == -1
    page.focus(".bertflow-map canvas")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".near b >> nth=0") == HOSTILE
    page.keyboard.press("ArrowRight")
    assert page.evaluate(AT % "e.at.selected") == 1
    page.keyboard.press("Escape")
    assert page.evaluate(AT % "e.at.selected") == -1


def test_colors_groups_and_zoom(opened: Callable[..., Any]) -> None:
    page = opened()
    looks = {picture(page)}
    page.click(".legend button >> text=dogs")
    assert page.locator(".legend [aria-pressed=true]").inner_text() == "dogs"
    looks.add(picture(page))
    page.select_option(".bertflow-map select", "length")
    assert page.locator(".legend button").all_inner_texts() == ["short", "long"]
    looks.add(picture(page))
    plain = where(page)
    page.click("[aria-label='Zoom in']")
    looks.add(picture(page))
    assert np.ptp(where(page)[:, 0]) == pytest.approx(1.5 * np.ptp(plain[:, 0]), rel=1e-4)
    page.click("[aria-label='Show all']")
    np.testing.assert_allclose(where(page), plain)
    assert len(looks) == 4


def test_it_is_accessible_and_fits(opened: Callable[..., Any]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened()
    page.evaluate(AT % "e.select(3, true)")
    # Each look differs from the one before in one thing only, which the picture shows.
    for width, theme in ((1000, "light"), (1000, "dark"), (400, "dark"), (400, "light")):
        before = picture(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        if (width, theme) != (1000, "light"):
            page.wait_for_function(  # it is drawn anew when the browser has told of the change
                "was => document.querySelector('.bertflow-map canvas').toDataURL() !== was",
                arg=before,
            )
        found = list(violations(page, axe, "main", colors=True, others=True, every=True))
        assert not found, (width, theme)
        wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, (width, theme)


def test_thousands_of_points_are_drawn(chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "map.html").write_text(small_map(5000).page("A map"), encoding="utf-8")
    page = chromium.new_page()
    page.goto((tmp_path / "map.html").as_uri(), wait_until="load")
    drawn = page.evaluate(
        """() => { const e = document.querySelector('.bertflow-map').explorer;
          for (let k = 0; k < 20; k += 1) { e.move(k / 20); e.draw(); }
          return Array.from(e.sx).filter(Number.isFinite).length; }"""
    )
    assert drawn == 5000
    page.close()


@pytest.mark.parametrize("chapter", ["04_anisotropy", "06_bert_flow"])
def test_a_chapter_has_its_map(chapter: str, site: Path, chromium: Any) -> None:
    asked: list[str] = []
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "book" / f"{chapter}.html").as_uri(), wait_until="load")
    root = page.locator(".bertflow-map")
    assert root.count() == 1 and len(root.get_attribute("aria-label")) > 80
    page.fill(".bertflow-map input[type=text]", "guitar")
    page.keyboard.press("Enter")
    assert "guitar" in page.inner_text(".near b >> nth=0").lower()
    assert [len(box) for box in lists(page)] == [5, 5]
    steps = page.locator(".step").all_inner_texts()
    whole = ["raw", "weights (idf)", "SN", "whitening", "flow"]
    assert steps == (whole if chapter.startswith("06") else ["raw", "SN", "flow"])
    assert all(url.startswith((site.as_uri(), "data:", "blob:")) for url in asked)
    page.close()


def test_what_does_not_fit_together_is_refused() -> None:
    layout = load_run("map", "minilm")["results"]
    with pytest.raises(ValueError, match="differ in number"):
        explore_map(layout, ["One."], {"topic": pd.Categorical(["a"])}, "A map.")
    with pytest.raises(ValueError, match="color is 'taste'; it must be one of length, rarity"):
        explore_map_of_pairs(layout, load_sts("mini-sts"), "A map.", color="taste")
    fragment = small_map().fragment
    assert fragment.count("</script>") == 1 and "<!--" not in fragment
    assert repr(small_map()) == "A map."
