"""Fixtures of the hostile cases; what several of them import lies beside this file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Kill what a failed test has started and left running."""
    yield
    import children

    children.kill_all()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the server of the children after the last of these tests: it holds all libraries."""
    if nextitem is None or HERE not in nextitem.path.parents:
        import children

        children.stop()


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty current folder, a cache of its own, and no data."""
    monkeypatch.setenv("BERTFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BERTFLOW_DATA", raising=False)
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()
