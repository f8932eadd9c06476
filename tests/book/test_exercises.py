"""Exercises: the check cell stays quiet before, and accepts the folded solution after.

What runs here is the hand-out, the chapter without its solutions, so that both are known to work.
"""

from typing import Any

import handouts
import plotly.graph_objects as go
import pytest
from notebooks import sources

CHAPTERS = [source for source in sources() if handouts.solutions(source)]


def test_there_are_exercises() -> None:
    assert len(CHAPTERS) >= 7


@pytest.mark.slow
@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)
def test_solutions_pass_their_checks(
    source: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(go.Figure, "show", lambda *_, **__: None)  # drawn elsewhere
    notebook, taken = handouts.split(source)
    answers = {solution.cell: solution.code for solution in taken if solution.cell}
    space: dict[str, Any] = {}
    answer, checked = "", 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        exec(cell.source, space)
        printed = capsys.readouterr().out
        answer = answers.pop(cell.id, answer)
        if "check" in cell.metadata.get("tags", []):
            assert "not tried yet" in printed
            assert answer, "a check cell needs an exercise cell with a folded solution before it"
            exec(answer, space)
            capsys.readouterr()
            exec(cell.source, space)
            assert capsys.readouterr().out.strip().endswith("right")
            answer, checked = "", checked + 1
    assert checked >= 1
    assert not answers
    for solution in taken:  # to open exercises, which have no check
        if solution.cell is None and solution.code:
            exec(solution.code, space)
