"""How the tests themselves are run: fewer examples unless all are asked for, files kept whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]


@settings(max_examples=40)
@given(st.integers())
def test_some_examples(number: int) -> None:
    assert isinstance(number, int)


def test_a_quarter_of_the_examples_is_tried(thorough: bool) -> None:
    found = test_some_examples._hypothesis_internal_use_settings
    assert found.max_examples == (40 if thorough else 10)
    assert found.deadline is None  # no clock decides
    assert found.derandomize == (not thorough)


@pytest.mark.thorough
def test_what_is_left_to_make_test_all_is_left_out(thorough: bool) -> None:
    assert thorough


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="for a worker of several")
def test_a_worker_has_one_thread() -> None:
    import torch

    assert torch.get_num_threads() == 1


def test_long_files_and_those_that_are_spread_exist(pytestconfig: pytest.Config) -> None:
    ours = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    assert ours is not None
    named = [*ours.SPREAD, *ours.LONG_FIRST]
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
