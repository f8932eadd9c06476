"""How nbval runs the notebooks: in the environment of `notebooks.py run`, numbers to a unit."""

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from near_numbers import settle_outputs, without_bars
from notebooks import KERNEL_ENV

FIGURE = "application/vnd.plotly.v1+json"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the kernels' environment; compare figures by presence, and numbers to a unit."""
    cells = [item for item in items if hasattr(item.parent, "skip_compare")]
    for notebook in {cell.parent for cell in cells}:
        notebook.skip_compare += (FIGURE,)
        notebook.setup = _in_kernel_environment(notebook.setup)
    for cell in cells:
        cell.compare_outputs = _to_a_unit(cell)  # type: ignore[attr-defined]


def _in_kernel_environment(start_kernel: Callable[[], None]) -> Callable[[], None]:
    def start() -> None:
        # Where several workers share the cores, a kernel has as many threads as its worker.
        fewer = {k: v for k, v in os.environ.items() if k.endswith("_NUM_THREADS")}
        several = fewer if "PYTEST_XDIST_WORKER" in os.environ else {}
        with mock.patch.dict(os.environ, {**KERNEL_ENV, **several}):
            start_kernel()

    return start


def _to_a_unit(cell: Any) -> Callable[..., bool]:
    exactly = cell.compare_outputs

    def compare(test: list[Any], ref: list[Any], skip_compare: Any = None) -> bool:
        got, reference = (cell.sanitize_outputs(without_bars(outputs)) for outputs in (test, ref))
        return bool(exactly(settle_outputs(got, reference), reference, skip_compare))

    return compare
