"""Exercises: the check cell stays quiet before, and accepts the folded solution after."""

import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
CELL = re.compile(r"```\{code-cell\} ipython3\n(?::tags: \[(.*?)\]\n\n)?(.*?)```", re.S)
SOLUTION = re.compile(r":::\{dropdown\} Solution\n.*?```python\n(.*?)```", re.S)
CHAPTERS = sorted(
    p.stem for p in BOOK.glob("*.md") if "tags: [check" in p.read_text(encoding="utf-8")
)


def test_there_are_exercises() -> None:
    assert len(CHAPTERS) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_solutions_pass_their_checks(
    chapter: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from notebooks import setup_source

    monkeypatch.setattr(go.Figure, "show", lambda *_, **__: None)  # drawn elsewhere
    text = (BOOK / f"{chapter}.md").read_text(encoding="utf-8")
    space: dict[str, Any] = {}
    solution, checked = None, 0
    for match in re.finditer(f"{CELL.pattern}|{SOLUTION.pattern}", text, re.S):
        tags, code, folded = match.groups()
        if folded is not None:
            solution = folded
        elif tags and "check" in tags.split(", "):
            assert solution, "a check cell needs a folded solution before it"
            exec(code, space)
            assert "not tried yet" in capsys.readouterr().out
            exec(solution, space)
            capsys.readouterr()
            exec(code, space)
            assert capsys.readouterr().out.strip().endswith("right")
            solution, checked = None, checked + 1
        else:
            exec(setup_source(code.strip()) if tags == "setup" else code, space)
            capsys.readouterr()
    assert checked >= 1
