"""What the notebooks say about their own runs, and the status page that shows it."""

import json
import re
from pathlib import Path
from typing import Any

import notebooks
import pytest
import status

LIMIT, TOGETHER = 90, 600  # seconds: each chapter, and all of them
STATED = re.compile(r"\*\*Time:\*\*.*?; (?:about )?([^;.]*?) to run on")
WORDS = {"half a minute": 30.0, "a minute": 60.0, "a quarter of a minute": 15.0}


def run_of(path: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["metadata"][status.RUN]
    return run


def seconds_in(words: str) -> float:
    if words in WORDS:
        return WORDS[words]
    number, unit = re.fullmatch(r"(\d+) (seconds?|minutes?)", words).groups()  # type: ignore[union-attr]
    return float(number) * (60 if unit.startswith("minute") else 1)


def test_page_is_in_step() -> None:
    assert list(status.check()) == []


def test_chapters_run_within_their_limits() -> None:
    seconds = {path.stem: run_of(path)["seconds"] for path in status.chapters()}
    assert {name: s for name, s in seconds.items() if s >= LIMIT} == {}
    assert sum(seconds.values()) < TOGETHER


def test_time_that_a_chapter_states_is_what_was_measured() -> None:
    stated = 0
    for path in status.chapters():
        text = path.with_suffix(".md").read_text(encoding="utf-8")
        if "In this chapter" not in text:
            continue
        found = STATED.search(text)
        assert found, f"{path.stem} does not state its time as '**Time:** ...; X to run on ...'"
        said, met = seconds_in(found.group(1)), run_of(path)["seconds"]
        assert said / 3 <= met <= 3 * said, f"{path.stem} says {said:.0f} s, it took {met:.0f} s"
        stated += 1
    assert stated >= 7


def test_at_least_ten_figures_answer_without_a_kernel() -> None:
    titles = set()
    for path in status.chapters():
        for figure in status.figures(json.loads(path.read_text(encoding="utf-8"))):
            if status.answers(figure):
                titles.add(figure["layout"]["meta"]["alt"])  # equal figures count once
    assert len(titles) >= 10


@pytest.mark.parametrize("path", sorted(notebooks.BOOK.glob("[0-9]*.ipynb")), ids=lambda p: p.stem)
def test_at_most_five_figures_of_a_chapter_need_a_click(path: Path) -> None:
    figures = status.figures(json.loads(path.read_text(encoding="utf-8")))
    assert sum(map(status.answers, figures)) <= 5


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ({"layout": {}}, False),
        ({"layout": {"sliders": []}}, False),
        ({"layout": {"sliders": [{}]}}, True),
        ({"layout": {"updatemenus": [{}]}}, True),
        ({"layout": {}, "frames": [{}]}, True),
    ],
)
def test_which_figures_answer(figure: dict[str, Any], expected: bool) -> None:
    assert status.answers(figure) is expected


def test_run_leaves_its_facts_in_the_notebook_and_write_keeps_them(tmp_path: Path) -> None:
    facts = notebooks._describe_run(12.34)
    assert facts["seconds"] == 12.3
    assert set(notebooks.PACKAGES) < set(facts["versions"])
    old = notebooks.nbformat.v4.new_notebook(metadata={**notebooks.METADATA, status.RUN: facts})
    new = notebooks.combine(notebooks.nbformat.v4.new_notebook(), old)
    assert new.metadata[status.RUN] == facts


def test_page_that_was_edited_by_hand_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "status.md"
    page.write_text(status.render() + "More words.\n", encoding="utf-8")
    monkeypatch.setattr(status, "PAGE", page)
    assert any("out of step" in problem for problem in status.check())
    status.write()
    assert not any("out of step" in problem for problem in status.check())
