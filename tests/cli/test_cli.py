"""The command line, on GloVe and mini-sts, which need seconds."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bertflow_lite.cli.common import BOOK, MEASURE, SENTENCES, app
from bertflow_lite.encoders.models import PACKAGED_MODELS
from bertflow_lite.files import data_file

pytestmark = pytest.mark.skipif(
    PACKAGED_MODELS["glove"].path() is None, reason="glove is not installed"
)
GLOVE = ["sts", "--model", "glove", "--layers", "mean", "--data", "mini-sts"]


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_sts_prints_a_table_and_names_the_aggregation() -> None:
    result = invoke(*GLOVE, "--calibrate", "none,sn")
    assert result.exit_code == 0
    assert "all, Spearman x 100" in result.stdout
    assert [line.split()[1] for line in result.stdout.splitlines() if line.startswith("mean")] == [
        "none",
        "sn",
    ]


def test_json_is_json_and_nothing_else() -> None:
    result = invoke(*GLOVE, "--calibrate", "none", "--json")
    content = json.loads(result.stdout)
    (row,) = content["results"]
    assert row["low"] < row["all"] < row["high"]
    assert content["how"]["data"].keys() == {"mini-sts"}
    assert content["how"]["model"] == "glove"


@pytest.mark.parametrize("ending", ["json", "csv", "md", "tex"])
def test_results_are_written_in_four_formats(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"out.{ending}"
    assert invoke(*GLOVE, "--calibrate", "none,sn", "--out", str(path)).exit_code == 0
    text = path.read_text(encoding="utf-8")
    if ending == "json":
        assert len(json.loads(text)["results"]) == 2
    elif ending == "csv":
        assert [row["calibrator"] for row in csv.DictReader(text.splitlines())] == ["none", "sn"]
    elif ending == "md":
        assert text.startswith("| layers")
    else:
        assert r"\begin{tabular}" in text and r"\bottomrule" in text


def test_several_seeds_show_mean_and_deviation() -> None:
    result = invoke(*GLOVE, "--calibrate", "flow", "--seeds", "2")
    assert " ± " in result.stdout


def test_a_run_is_stored_where_the_book_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertflow_lite.experiments.runs.data_file", lambda _: tmp_path)
    assert invoke(*GLOVE, "--calibrate", "none", "--store", "x").exit_code == 0
    run = json.loads((tmp_path / "sts" / "x.json").read_text())
    assert run["table"] == "sts" and run["how"]["versions"]["torch"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "minlm"], "Did you mean 'minilm'"),
        (["--model", "glove", "--data", "stbs"], "Did you mean stsb"),
        (["--model", "glove", "--calibrate", "wite"], "Did you mean 'whiten'"),
        (["--model", "glove", "--calibrate", "flow:papr"], "Did you mean 'paper'"),
        (["--model", "glove", "--fit-on", "dev"], "must be target, train or test"),
        (["--model", "glove", "--out", "x.pdf"], "the ending must be"),
        (["--model", "glove", "--aggregation", "median"], "must be all, mean or wmean"),
        (["--model", "glove", "--fit-on", "train"], "train"),
    ],
)
def test_errors_are_one_line_with_advice(arguments: list[str], says: str) -> None:
    result = invoke("sts", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_a_misspelt_option_is_exit_code_2() -> None:
    assert invoke("sts", "--modle", "glove").exit_code == 2


def test_info_says_where_things_are_or_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFLOW_DATA", str(data_file(".")))  # a folder without the sets
    result = invoke("info", "--json")
    content = json.loads(result.stdout)
    names = {model["name"] for model in content["models"]}
    assert names == {"minilm", "smollm2", "glove", "mini-bert", "mpnet"}
    sets = {d["name"]: d for d in content["data"]}
    assert sets["mini-sts"]["found"] and not sets["stsb"]["found"]
    assert (sets["mini-sts-plain"]["pairs"], sets["mini-sts-both"]["pairs"]) == (400, 820)
    assert "download" in sets["stsb"]["where"].lower()
    assert "mini-sts" in invoke("info").stdout


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bertflow_lite", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    groups = re.split(r"─ (?=Your own|Measure|Make)", done.stdout)[1:]
    assert [group.split(" ─")[0] for group in groups] == [SENTENCES, MEASURE, BOOK]
    for name, group in (("fit ", 0), ("evaluate ", 0), ("sts ", 1), ("table ", 2), ("nli ", 2)):
        assert f"│ {name}" in groups[group]
    assert len(done.stdout.splitlines()) < 60  # a page of a terminal or two
