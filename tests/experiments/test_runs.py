"""Stored runs: written whole, read back, and traceable."""

import json
import re
from pathlib import Path

import pytest

from bertflow_lite.experiments.runs import load_run, provenance, store_run
from bertflow_lite.files import data_file, write_json

HOW = {"model": "m", "fingerprint": "f", "seed": 0, "device": "cpu"}


def test_a_run_comes_back_as_it_went(tmp_path: Path) -> None:
    results = [{"all": 12.5, "name": "naïve"}]
    path = store_run("sts", "org/model", provenance(**HOW, layers=["last"]), results, tmp_path)
    assert path == tmp_path / "sts" / "org--model.json"
    run = load_run("sts", "org/model", tmp_path)
    assert run["results"] == results
    assert run["how"]["layers"] == ["last"]
    assert {"versions", "date", "command", "threads"} <= run["how"].keys()
    assert run["how"]["device"].startswith("cpu (")


def test_nan_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"score": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"version": 1})

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("bertflow_lite.files.os.replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_json(path, {"version": 2})
    assert json.loads(path.read_text()) == {"version": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_missing_run_names_those_there_are(tmp_path: Path) -> None:
    store_run("sts", "minilm", provenance(**HOW), [], tmp_path)
    with pytest.raises(FileNotFoundError, match="There are: sts/minilm"):
        load_run("sts", "minlm", tmp_path)


def test_every_stored_run_says_how_it_came_about() -> None:
    paths = list(data_file("results").glob("*/*.json"))
    assert paths, "no stored runs"
    for path in paths:
        run = json.loads(path.read_text(encoding="utf-8"))
        assert {"model", "fingerprint", "seed", "versions", "device", "date", "command"} <= run[
            "how"
        ].keys(), path.name
        assert run["how"]["versions"]["bertflow-lite"][0].isdigit(), path.name
        assert run["how"]["command"].startswith("python -m bertflow_lite "), path.name
        # Names such as "glove/mean" are fine; a path of some machine is not.
        assert not re.search(r"(^|[\s=])(/|~|\.{1,2}/)", run["how"]["command"]), path.name
