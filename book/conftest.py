"""How nbval runs the notebooks: with the environment that `notebooks.py run` gives them."""

import os
from collections.abc import Callable
from unittest import mock

import pytest
from notebooks import KERNEL_ENV

FIGURE = "application/vnd.plotly.v1+json"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the kernels' environment, and compare figures by presence, not number by number."""
    for notebook in {item.parent for item in items if hasattr(item.parent, "skip_compare")}:
        notebook.skip_compare += (FIGURE,)
        notebook.setup = _in_kernel_environment(notebook.setup)


def _in_kernel_environment(start_kernel: Callable[[], None]) -> Callable[[], None]:
    def start() -> None:
        with mock.patch.dict(os.environ, KERNEL_ENV):
            start_kernel()

    return start
