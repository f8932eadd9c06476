"""Every chapter has its frame: outcomes, needs, time, exercises with checks, summary, quiz."""

import re
from pathlib import Path

import handouts
import notebooks
import pytest

CHAPTERS = [s for s in notebooks.sources() if re.match(r"\d\d_", s.name)]
EXERCISE = re.compile(
    r":::\{admonition\} Exercise (\d+): (.*?)\n:class: exercise\n(.*?)\n:::", re.S
)


def text_of(source: Path) -> str:
    return source.read_text(encoding="utf-8")


def test_the_contents_name_every_chapter_in_its_order() -> None:
    contents = (notebooks.ROOT / "_toc.yml").read_text(encoding="utf-8")
    assert re.findall(r"book/(\d\d_\w+)", contents) == [source.stem for source in CHAPTERS]
    assert [source.name[:2] for source in CHAPTERS] == [
        f"{k:02d}" for k in range(1, len(CHAPTERS) + 1)
    ]


@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_opens_with_outcomes_needs_and_time(source: Path) -> None:
    box = re.search(
        r":::\{admonition\} In this chapter\n:class: tip\n(.*?)\n:::", text_of(source), re.S
    )
    assert box
    assert len(re.findall(r"^- .+[;.]$", box.group(1), re.M)) >= 3
    assert "You will learn" in box.group(1)
    assert "**You need**" in box.group(1)
    assert re.search(r"\*\*Time:\*\* about \d+ minutes to read", box.group(1))


@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_closes_with_summary_quiz_and_reading(source: Path) -> None:
    text = text_of(source)
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings[-3:] == ["Exercises", "Summary", "Further reading"]
    summary = text.rpartition("\n## Summary")[2].partition(":::")[0]
    assert len(re.findall(r"^- ", summary, re.M)) >= 3
    (quiz,) = [s for s in handouts.solutions(source) if s.title.startswith("Quiz")]
    assert len(quiz.text.split("\n\n")) >= 3, "each question has its answer"
    assert len(handouts._QUESTION.findall(text)) == 0  # questions are folded with their answers


@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)
def test_exercises_go_from_easy_to_open_and_are_checked(source: Path) -> None:
    text = text_of(source)
    found = [(m.start(), *m.groups()) for m in EXERCISE.finditer(text)]
    assert [int(number) for _, number, *_ in found] == list(range(1, len(found) + 1))
    assert len(found) >= 2
    assert "(open" in found[-1][2]
    ends = [start for start, *_ in found[1:]] + [text.rindex("\n## Summary")]
    for (start, number, title, _), end in zip(found, ends, strict=True):
        if "(open" not in title:
            part = text[start:end]
            assert re.search(r"\(\d+ minutes", title), f"exercise {number} says no time"
            assert ":tags: [exercise]" in part, f"exercise {number} has no cell for an answer"
            assert ":tags: [check" in part, f"exercise {number} has no check"
            assert "{dropdown} Solution" in part, f"exercise {number} has no solution"
