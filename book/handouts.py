"""Make the exercise versions of the chapters: no solutions, no outputs, everything else in place.

    python book/handouts.py [--out FOLDER] [NAME ...]      all chapters into _build/handouts

Each `FOLDER/NAME.ipynb` comes from `book/NAME.md`, the same source as the book's own notebook, so
a hand-out is never kept by hand. What goes:

- in the section "Exercises", and wherever one is called "Solution", every folded block;
- the answers of the quiz, whose questions stay;
- the outputs of all cells.

The cells tagged `exercise` and `check` stay. `solutions` gives what was taken out, and
`fill_in` puts the code back: so the tests know that hand-out and solutions belong together.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from notebooks import BOOK, ROOT, from_source, save, sources

FOLDER = ROOT / "_build" / "handouts"
NOTE = (
    "*A hand-out: the exercises come without their solutions. Write your answer where it says "
    "`your code here`, run the cell, and then run the check below it.*"
)
_OPENING = re.compile(r"^(:{3,})\{dropdown\}\s*(.*?)\s*$")
_CODE = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
_QUESTION = re.compile(r"^\*\*\d+\. .*?\*\*", re.S)
_TITLE = re.compile(r"^# .+$", re.M)


@dataclass(frozen=True)
class Solution:
    """A folded block that was taken out of a chapter.

    Attributes
    ----------
    title : str
        As it is called: "Solution", "One way" ...
    text : str
        All of it, without the lines that fold it.
    code : str
        Its Python, block after block; empty for a quiz's answers.
    cell : str or None
        Id of the cell tagged `exercise` that it answers; None where there is no such cell.
    """

    title: str
    text: str
    code: str
    cell: str | None


def make_handout(source: Path) -> NotebookNode:
    """Return the exercise version of one chapter."""
    return split(source)[0]


def solutions(source: Path) -> list[Solution]:
    """Return what `make_handout` takes out of one chapter, in order."""
    return split(source)[1]


def split(source: Path) -> tuple[NotebookNode, list[Solution]]:
    """Split a chapter into its hand-out and the solutions."""
    notebook = from_source(source)
    taken: list[Solution] = []
    section, exercise = "", None
    for cell in notebook.cells:
        if cell.cell_type == "code":
            tags = cell.metadata.get("tags", [])
            if {"exercise", "check"} & set(tags):
                exercise = cell.id if "exercise" in tags else None
            continue
        kept: list[str] = []
        for block in _blocks(cell.source):
            if isinstance(block, str):
                if block.startswith("## "):
                    section = block[3:].strip()
                kept.append(block)
                continue
            title, text = block
            if title.startswith("Quiz"):
                kept.append(_ask(title, text))
                taken.append(Solution(title, _answers(text), "", None))
            elif title.startswith("Solution") or section.startswith("Exercise"):
                code = "\n".join(_CODE.findall(text))
                taken.append(Solution(title, text, code, exercise))
                exercise = None
            else:
                kept.append(f":::{{dropdown}} {title}\n{text}\n:::")
        cell.source = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    notebook.cells = [cell for cell in notebook.cells if cell.source]
    first = notebook.cells[0]
    first.source = _TITLE.sub(lambda found: f"{found.group()}\n\n{NOTE}", first.source, count=1)
    return notebook, taken


def fill_in(handout: NotebookNode, taken: list[Solution]) -> NotebookNode:
    """Return a hand-out with each solution's code after its exercise cell's own, in that cell."""
    answers = {solution.cell: solution.code for solution in taken if solution.cell}
    filled = nbformat.from_dict(handout)
    for cell in filled.cells:
        if cell.id in answers:
            cell.source = f"{cell.source}\n\n{answers.pop(cell.id)}"
    if answers:
        raise ValueError(f"the hand-out lacks the exercise cells {sorted(map(str, answers))}.")
    return filled


def _blocks(text: str) -> Iterator[str | tuple[str, str]]:
    """Yield the lines of a text, and each folded block as (title, inside)."""
    lines = iter(text.split("\n"))
    for line in lines:
        opening = _OPENING.match(line)
        if opening is None:
            yield line
            continue
        inside = []
        for within in lines:
            if within.rstrip() == opening.group(1):
                break
            inside.append(within)
        else:
            raise ValueError(f"the folded block {opening.group(2)!r} is never closed.")
        yield opening.group(2), "\n".join(inside)


def _ask(title: str, text: str) -> str:
    questions = [found.group() for part in text.split("\n\n") if (found := _QUESTION.match(part))]
    return "\n".join([f":::{{admonition}} {title}", "\n\n".join(questions), ":::"])


def _answers(text: str) -> str:
    parts = (_QUESTION.sub("", part).strip() for part in text.split("\n\n"))
    return "\n\n".join(part for part in parts if part)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="chapters, such as 01_puzzle; all when left out")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the hand-outs")
    arguments = parser.parse_intermixed_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.out.resolve() == BOOK:
        parser.error("the folder holds the book's own notebooks; name another one")
    for source in sources(arguments.names):
        handout, taken = split(source)
        if not taken:
            continue  # a page without exercises
        path = arguments.out / source.with_suffix(".ipynb").name
        save(handout, path)
        print(f"{path}: without {len(taken)} folded blocks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
