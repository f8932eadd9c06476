"""Hand-outs: no solution is left in them, and with the solutions put back nothing is missing."""

import re
from pathlib import Path

import handouts
import notebooks
import pytest

CHAPTERS = [source for source in notebooks.sources() if handouts.solutions(source)]
SOURCE = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A title

:::{dropdown} A proof
It stays.
:::

## Exercises

:::{admonition} Exercise 1: add (5 minutes)
:class: exercise

Add one and one.
:::

```{code-cell} ipython3
:tags: [exercise]

total = None  # your code here
```

:::{dropdown} Solution
The secret is to add.
```python
total = 1 + 1
```
It goes on.
```python
print(total)
```
:::

```{code-cell} ipython3
:tags: [check, hide-input]

print("not tried yet" if total is None else "right")
```

:::{admonition} Exercise 2: more (open)
:class: exercise

Add more.
:::

:::{dropdown} A start
Take a secret list.
:::

## Summary

:::{dropdown} Quiz: three questions
**1. What is one and one?** A secret.

It has a second paragraph.

**2. Why
is that?** Another secret.
:::
"""


def prose(text: str) -> str:
    """Leave out the figures, so that only words are compared."""
    return re.sub(r"\s+", " ", text)


@pytest.fixture
def chapter(tmp_path: Path) -> Path:
    source = tmp_path / "09_small.md"
    source.write_text(SOURCE, encoding="utf-8")
    return source


def text_of(handout: notebooks.NotebookNode) -> str:
    return "\n".join(cell.source for cell in handout.cells)


def test_solutions_go_and_the_rest_stays(chapter: Path) -> None:
    text = text_of(handouts.make_handout(chapter))
    for gone in ("secret", "1 + 1", "second paragraph", "print(total)", "It goes on"):
        assert gone not in text
    for stays in ("It stays.", "Add one and one.", "your code here", "not tried yet", "Add more."):
        assert stays in text
    assert "**1. What is one and one?**" in text
    assert "**2. Why\nis that?**" in text


def test_what_was_taken_out_is_told(chapter: Path) -> None:
    first, start, quiz = handouts.solutions(chapter)
    assert (first.title, first.code) == ("Solution", "total = 1 + 1\n\nprint(total)\n")
    assert first.cell is not None
    assert (start.title, start.cell, start.code) == ("A start", None, "")
    assert quiz.text == "A secret.\n\nIt has a second paragraph.\n\nAnother secret."


def test_solutions_fit_back_in(chapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handout, taken = handouts.split(chapter)
    space: dict[str, object] = {}
    for cell in handouts.fill_in(handout, taken).cells:
        if cell.cell_type == "code":
            exec(cell.source, space)
    assert capsys.readouterr().out == "2\nright\n"
    assert "1 + 1" not in text_of(handout)


def test_block_that_is_never_closed_is_refused(chapter: Path) -> None:
    chapter.write_text(SOURCE.rstrip().rstrip(":"), encoding="utf-8")
    with pytest.raises(ValueError, match="'Quiz: three questions' is never closed"):
        handouts.split(chapter)


@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)
def test_no_solution_is_left(source: Path) -> None:
    handout, taken = handouts.split(source)
    text = prose(text_of(handout))
    assert taken
    for solution in taken:
        for line in handouts._CODE.sub("", solution.text).splitlines():
            assert len(line) < 20 or prose(line) not in text, line
        # A line or two may well occur in a check too; more in a row give the solution away.
        lines = [line.strip() for line in solution.code.splitlines() if line.strip()]
        run = min(3, len(lines))
        for k in range(len(lines) - run + 1 if lines else 0):
            assert prose(" ".join(lines[k : k + run])) not in text, lines[k : k + run]
    assert "{dropdown} Solution" not in text
    assert not any(cell.get("outputs") for cell in handout.cells)


@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)
def test_code_and_quiz_of_the_chapter_are_in_its_handout(source: Path) -> None:
    chapter, handout = notebooks.from_source(source), handouts.make_handout(source)
    code = [[cell.source for cell in book.cells if cell.cell_type == "code"]
            for book in (chapter, handout)]  # fmt: skip
    assert code[0] == code[1]
    assert text_of(handout).count("**1. ") == 1
    assert len(re.findall(r"^\*\*[123]\. .*?\*\*$", text_of(handout), re.S | re.M)) == 3


def test_command_writes_into_a_folder_and_never_over_the_book(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert handouts.main(["01_puzzle", "--out", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["01_puzzle.ipynb"]
    with pytest.raises(SystemExit):
        handouts.main(["--out", str(notebooks.BOOK)])
    assert "name another one" in capsys.readouterr().err
