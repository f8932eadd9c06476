"""The committed notebooks are in step with their sources; the check notices when they are not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import notebooks
import pytest
from hypothesis import given
from hypothesis import strategies as st
from near_numbers import settle_text

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

```{code-cell} ipython3
1 + 1
```

Some words.

```{code-cell} ipython3
:tags: [hide-input]

print("two")
```
"""


def committed() -> list[Path]:
    return notebooks.sources()


@pytest.fixture
def chapter(tmp_path: Path) -> Path:
    """A small chapter with its notebook, as if it had been run."""
    shutil.copy(notebooks.BOOK / "jupytext.toml", tmp_path)
    source = tmp_path / "09_small.md"
    source.write_text(SOURCE, encoding="utf-8")
    notebook = notebooks.write(source)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, 1):
        cell.execution_count = count
        cell.outputs = [nbformat.v4.new_output("stream", text=f"output {count}\n")]
    notebooks.save(notebook, source.with_suffix(".ipynb"))
    return source


def edit(chapter: Path, old: str, new: str) -> None:
    text = chapter.read_text(encoding="utf-8")
    assert old in text
    chapter.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize("source", committed(), ids=lambda path: path.stem)
def test_committed_notebook_is_in_step(source: Path) -> None:
    problems = list(notebooks.check(source))
    assert not problems, "\n".join([f"{source.stem}: run `make run`", *problems])


@pytest.mark.parametrize("source", committed(), ids=lambda path: path.stem)
def test_chapter_begins_with_the_setup_cell(source: Path) -> None:
    first = next(c for c in notebooks.from_source(source).cells if c.cell_type == "code")
    assert "setup" in first.metadata.get("tags", [])


def test_check_is_content_with_a_notebook_in_step(chapter: Path) -> None:
    assert list(notebooks.check(chapter)) == []


def test_write_twice_gives_the_same_bytes(chapter: Path) -> None:
    path = chapter.with_suffix(".ipynb")
    before = path.read_bytes()
    notebooks.write(chapter)
    assert path.read_bytes() == before


def test_changed_words_keep_outputs(chapter: Path) -> None:
    edit(chapter, "Some words.", "Other words.")
    assert "Some words." in "\n".join(notebooks.check(chapter))
    notebooks.write(chapter)
    assert list(notebooks.check(chapter)) == []


@pytest.mark.parametrize(("old", "new"), [("1 + 1", "1 + 2"), ('"two"', '("two")')])
def test_changed_code_loses_its_output_and_is_reported(chapter: Path, old: str, new: str) -> None:
    edit(chapter, old, new)
    assert any("the source gives" in problem for problem in notebooks.check(chapter))
    notebooks.write(chapter)
    assert any("was not run" in problem for problem in notebooks.check(chapter))


def test_missing_notebook_is_reported(chapter: Path) -> None:
    chapter.with_suffix(".ipynb").unlink()
    assert list(notebooks.check(chapter)) == ["there is no notebook yet"]


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (nbformat.v4.new_output("error", ename="KeyError", evalue="'x'"), "stopped with KeyError"),
        (nbformat.v4.new_output("stream", text=f"in {notebooks.ROOT}/a.py"), "path of one machine"),
        (nbformat.v4.new_output("stream", text="/home/ann/a.py:3: Warning"), "path of one machine"),
    ],
)
def test_bad_output_is_reported(chapter: Path, output: object, words: str) -> None:
    path = chapter.with_suffix(".ipynb")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].outputs = [output]
    notebooks.save(notebook, path)
    assert any(words in problem for problem in notebooks.check(chapter))


def test_cells_run_out_of_order_are_reported(chapter: Path) -> None:
    path = chapter.with_suffix(".ipynb")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].execution_count = 7
    notebooks.save(notebook, path)
    assert any("out of order" in problem for problem in notebooks.check(chapter))


def test_setup_cell_takes_its_values_from_the_comment_and_the_config() -> None:
    text = notebooks.setup_source('# setup: MODEL="minilm"')
    assert text.startswith('# setup: MODEL="minilm"')
    assert '\nMODEL = "minilm"\nDATA = "mini-sts"\n' in text
    assert "@MODEL" not in text
    assert "@REPOSITORY" not in text
    assert "git+https://" in text
    compile(text, "setup", "exec")


@pytest.mark.parametrize("comment", ["print(1)", '# setup: COLOUR="red"'])
def test_setup_cell_refuses_what_it_does_not_know(comment: str) -> None:
    with pytest.raises(ValueError, match="A cell tagged setup"):
        notebooks.setup_source(comment)


@given(st.integers(-2000, 2000), st.integers(-3, 3), st.integers(0, 4), st.integers(1, 9))
def test_a_number_may_be_off_by_one_unit_and_no_more(
    value: int, off: int, places: int, width: int
) -> None:
    def write(x: int) -> str:
        return f"score {x / 10**places:{width}.{places}f}, (12 pairs)\n"

    got, reference = write(value + off), write(value)
    settled = settle_text(got, reference)
    one_layout = len(got) == len(reference) or width == 1
    if abs(off) > 1:
        assert settled == got
    elif one_layout:
        assert settled == reference


@pytest.mark.parametrize(
    ("got", "reference"),
    [
        ("score 3", "points 3"),  # another word
        ("minilm-3: 5", "minilm-4: 5"),  # a name is not a number
        ("STS12", "STS13"),
        ("0x3f", "0x4f"),
        ("[1, 2]", "[1, 2, 3]"),  # one more number
        ("1.5", "1.70"),
        ("12,001", "11,999"),
        ("2e-07", "4e-07"),
    ],
)
def test_what_is_not_a_near_number_stays(got: str, reference: str) -> None:
    assert settle_text(got, reference) == got


def test_nbval_forgives_the_last_place_of_a_number_and_nothing_else(tmp_path: Path) -> None:
    """The whole way: stored outputs of a notebook, run again by pytest with the book's conftest."""
    stored = {"37": True, "38": True, "40": False, "score": False}
    cells = []
    for text in stored:
        cell = nbformat.v4.new_code_cell("print(38)", execution_count=1)
        cell.outputs = [nbformat.v4.new_output("stream", text=f"{text}\n")]
        cells.append(cell)
    bar = "from tqdm.auto import tqdm\nfor _ in tqdm(range(3)):\n    pass\nprint(38)"
    cells.append(nbformat.v4.new_code_cell(bar, execution_count=1, outputs=cells[1].outputs))
    stored["38, and a bar"] = True
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "small.ipynb")
    for name in ("conftest.py", "near_numbers.py"):
        shutil.copy(notebooks.BOOK / name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-q", "-rA", tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{notebooks.BOOK}"},
        capture_output=True,
        text=True,
        check=False,
    )
    for number, passes in enumerate(stored.values()):
        word = "PASSED" if passes else "FAILED"
        assert f"{word} small.ipynb::Cell {number}" in done.stdout, done.stdout
