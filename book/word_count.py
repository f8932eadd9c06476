"""Count the words that a reader of each chapter reads before the exercises, and the time they take.

Prose counts: paragraphs, lists, boxes, tables and headings, up to the heading "Exercises". Code,
formulas, what code printed and the descriptions of figures do not. A minute is 200 words, or one
figure.

    python book/word_count.py          print the table
    python book/word_count.py --write  and bring the times at the heads of the chapters in step
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "LIMIT",
    "LIMITS",
    "STATED",
    "TOTAL",
    "Length",
    "main_line",
    "measure",
    "prose_before_exercises",
    "words",
]

BOOK = Path(__file__).resolve().parent
FIGURE = "application/vnd.plotly.v1+json"
WORDS_A_MINUTE = 200
TOTAL = 20_000  # words before the exercises, in the whole main line ...
LIMIT = 2200  # ... in any chapter ...
LIMITS = {"14_watching": 2500}  # ... and in these

# What is not read as prose, in the order in which it is taken out.
NOT_PROSE = [
    re.compile(r"\A---\n.*?\n---\n", re.S),  # front matter
    re.compile(r"^(`{3,}).*?^\1\s*$", re.S | re.M),  # code
    re.compile(r"<!--.*?-->|<[^>\n]+>", re.S),
    re.compile(r"\$\$.*?\$\$", re.S),
    re.compile(r"^:{3,}(?:\{\w[\w-]*\})?|^:[\w-]+:.*$", re.M),  # fences and options, not titles
    re.compile(r"^!\[[^\]]*\]\([^)]*\)$", re.M),  # drawings, with their descriptions
    re.compile(r"\]\([^)]*\)"),  # targets of links
    re.compile(r"^\|[-:| ]+\|$", re.M),  # the line below a table's head
]
# A formula, a name in code, a link to a page or a citation is read as one word.
ONE_WORD = re.compile(r"\{[\w:-]+\}`[^`]*`|`[^`]*`|\$[^$\n]+\$")
WORD = re.compile(r"[^\W_]+(?:['’.,×-][^\W_]+)*")
# The time at the head of a chapter.
STATED = re.compile(r"(?<=\*\*Time:\*\* about )\d+(?= minutes to read)")


class Length(NamedTuple):
    """Words before the exercises, figures in the same part, and minutes for both."""

    words: int
    figures: int

    @property
    def minutes(self) -> int:
        """Reading time: 200 words a minute, and a minute for each figure."""
        return round(self.words / WORDS_A_MINUTE + self.figures)


def prose_before_exercises(text: str) -> str:
    """Return the prose of a chapter's source that stands before its exercises."""
    text = re.split(r"^## Exercises$", text, maxsplit=1, flags=re.M)[0]
    for pattern in NOT_PROSE:
        text = pattern.sub(" ", text)
    return ONE_WORD.sub(" thing ", text)


def words(text: str) -> int:
    """Count the words that a reader of a chapter's source reads before the exercises."""
    return len(WORD.findall(prose_before_exercises(text)))


def measure(source: Path) -> Length:
    """Measure a chapter by its source; its figures are those of the notebook beside it."""
    notebook = source.with_suffix(".ipynb")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"] if notebook.exists() else []
    figures = 0
    for cell in cells:
        if "## Exercises" in "".join(cell["source"]).splitlines():
            break
        figures += sum(FIGURE in output.get("data", {}) for output in cell.get("outputs", []))
    return Length(words(source.read_text(encoding="utf-8")), figures)


def main_line() -> dict[str, Length]:
    """Measure the opening page and every chapter, in the book's order."""
    sources = [BOOK / "intro.md", *sorted(BOOK.glob("[0-9][0-9]_*.md"))]
    return {source.stem: measure(source) for source in sources}


if __name__ == "__main__":
    lengths = main_line()
    for name, length in lengths.items():
        limit = LIMITS.get(name, LIMIT)
        over = f", {length.words - limit} over {limit:,}" if length.words > limit else ""
        print(f"{name:24s}{length.words:6,d} words, {length.minutes:3d} minutes{over}")
        source = BOOK / f"{name}.md"
        if "--write" in sys.argv:
            text = source.read_text(encoding="utf-8")
            source.write_text(STATED.sub(str(length.minutes), text), encoding="utf-8")
    print(f"{'in all':24s}{sum(length.words for length in lengths.values()):6,d} words")
