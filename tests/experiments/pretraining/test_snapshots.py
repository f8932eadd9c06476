"""Runs that are finished, killed, damaged, moved to other hardware, or watched from afar."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite import devices as precision
from bertflow_lite.cli.common import app
from bertflow_lite.devices import choose_bf16, computes_in_bfloat16
from bertflow_lite.experiments.pretraining import checkpoints, loop, progress
from bertflow_lite.experiments.pretraining import loop as training_run
from bertflow_lite.experiments.pretraining.checkpoints import last_checkpoint, read_training
from bertflow_lite.experiments.pretraining.corpus import PackedCorpus, pack_corpus, split_sentences
from bertflow_lite.experiments.pretraining.recipe import RECIPES, attention_on

TINY = RECIPES["tiny"]


@pytest.fixture(scope="module")
def tokenizer(minilm):
    return minilm.tokenizer


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    sentences = bf.load_sts("mini-sts").sentences
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    parts = [" ".join(sentences[i : i + 4]) for i in range(0, len(sentences), 4)]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(text, tokenizer) -> PackedCorpus:
    return pack_corpus(text, tokenizer, length=TINY.length)


def train(corpus, tokenizer, out: Path, **options: Any):
    return loop.pretrain(corpus, tokenizer, out, recipe=TINY, **({"tokens": 2000} | options))


def stopped_at(wanted: int, kind: int = signal.SIGINT):
    def stop(step: int, _: Path) -> None:
        if step == wanted:
            signal.raise_signal(kind)

    return stop


def files(folder: Path) -> dict[str, int]:
    """Give every file of a run, and when it was written."""
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*")}


# ---- the end ------------------------------------------------------------------------------------


def test_a_finished_run_is_not_trained_again(corpus, tokenizer, tmp_path, monkeypatch) -> None:
    done = train(corpus, tokenizer, tmp_path / "run")
    before = files(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "TrainingRun", None)
        again = train(corpus, tokenizer, tmp_path / "run")
    assert done.trained and not again.trained
    assert vars(again) == vars(done) | {"trained": False}
    assert files(tmp_path / "run") == before


def test_what_was_killed_before_it_tidied_up_is_finished(corpus, tokenizer, tmp_path) -> None:
    train(corpus, tokenizer, tmp_path / "run")
    (tmp_path / "run" / "unfinished" / "checkpoints" / "step-000000001").mkdir(parents=True)
    assert not train(corpus, tokenizer, tmp_path / "run").trained
    assert not (tmp_path / "run" / "unfinished").exists()


def test_overwrite_trains_a_finished_run_again(corpus, tokenizer, tmp_path: Path) -> None:
    done = train(corpus, tokenizer, tmp_path / "run")
    (tmp_path / "run" / "snapshots" / "step-000099999").mkdir()
    steps: list[int] = []
    again = train(
        corpus,
        tokenizer,
        tmp_path / "run",
        overwrite=True,
        on_snapshot=lambda s, _: steps.append(s),
    )
    assert again.trained and steps[0] == 0 and again.loss == done.loss
    assert not (tmp_path / "run" / "snapshots" / "step-000099999").exists()


def test_without_its_model_a_run_is_not_finished(corpus, tokenizer, tmp_path: Path) -> None:
    train(corpus, tokenizer, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "final")
    assert train(corpus, tokenizer, tmp_path / "run").trained


def test_a_finished_run_with_other_settings_is_called_finished(corpus, tokenizer, tmp_path) -> None:
    train(corpus, tokenizer, tmp_path / "run")
    says = r"a finished run lies in 'run', trained with another seed, tokens\..*--overwrite"
    with pytest.raises(ValueError, match=says):
        train(corpus, tokenizer, tmp_path / "run", tokens=3000, seed=1)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, tmp_path / "run", on_snapshot=stopped_at(1))
    with pytest.raises(
        ValueError, match=r"an unfinished run lies in 'run', begun with another see"
    ):
        train(corpus, tokenizer, tmp_path / "run", seed=1)


def test_the_record_of_an_earlier_run_finishes_no_other(corpus, tokenizer, tmp_path: Path) -> None:
    """Also where the two differ in their length only."""
    train(corpus, tokenizer, tmp_path / "run", tokens=1000)
    kept = (tmp_path / "run" / "record.json").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, tmp_path / "run", tokens=9000, overwrite=True,
              on_snapshot=stopped_at(2))  # fmt: skip
    assert not (tmp_path / "run" / "record.json").exists()
    (tmp_path / "run" / "record.json").write_bytes(kept)  # as an older version left it
    assert not read_training(tmp_path / "run", partial=True).finished
    assert train(corpus, tokenizer, tmp_path / "run", tokens=9000).tokens >= 9000


def test_the_command_says_that_it_is_done(text: Path, tmp_path: Path) -> None:
    command = ["pretrain", "--corpus", text, "--out", tmp_path / "run", "--config", "tiny"]
    command += ["--tokens", "2000", "--device", "cpu"]
    first, second = (CliRunner().invoke(app, [str(word) for word in command]) for _ in range(2))
    assert first.exit_code == second.exit_code == 0
    assert first.stdout == second.stdout
    assert "holds this run already" in second.stderr and "--overwrite" in second.stderr
    assert "holds this run already" not in first.stderr


def test_two_processes_agree_that_it_is_done(text: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m",
        "bertflow_lite", "pretrain", "--corpus", text, "--config", "tiny", "--tokens", "2000",
        "--threads", "1", "--device", "cpu", "--out", tmp_path / "run",
    ]  # fmt: skip
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)
    )
    assert second.stderr.count("holds this run already") == 1
    assert second.stdout == first.stdout
    assert first.stderr.count("step 3:") == 1  # one of them speaks
    other = subprocess.run([*command, "--seed", "1"], capture_output=True, text=True, check=False)
    assert other.returncode != 0 and "a finished run lies in" in other.stderr


# ---- hardware -----------------------------------------------------------------------------------


def hardware(monkeypatch: pytest.MonkeyPatch, bf16: bool) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: bf16, raising=False)


def test_bfloat16_is_chosen_where_the_hardware_has_it(monkeypatch, caplog) -> None:
    for can in (True, False):
        hardware(monkeypatch, can)
        assert choose_bf16(None, "cpu") is can
        assert choose_bf16(True, "cpu") is True and choose_bf16(False, "cpu") is False
    assert caplog.text.count("emulated on this cpu") == 1
    assert not computes_in_bfloat16("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for can in (True, False):
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation, can=can: can
        )
        assert choose_bf16(None, "cuda:1") is can


def test_a_torch_that_cannot_say_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert precision.computes_in_bfloat16("cpu") is False


def test_a_run_that_moves_to_other_hardware_says_so(
    corpus, tokenizer, tmp_path, monkeypatch
) -> None:
    hardware(monkeypatch, False)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, out, bf16=None, on_snapshot=stopped_at(1))
    assert json.loads((out / "settings.json").read_text())["bf16"] is False
    hardware(monkeypatch, True)
    with pytest.raises(ValueError, match=r"another bf16\. It was begun with --no-bf16;.*hardware"):
        train(corpus, tokenizer, out, bf16=None)
    assert train(corpus, tokenizer, out, bf16=False).trained


def test_the_command_leaves_it_to_the_hardware(text: Path, tmp_path: Path, monkeypatch) -> None:
    command = ["pretrain", "--corpus", text, "--config", "tiny", "--tokens", "300"]
    for can, option, expected in (
        (True, [], True),
        (False, [], False),
        (True, ["--no-bf16"], False),
        (False, ["--bf16"], True),
    ):
        hardware(monkeypatch, can)
        out = tmp_path / f"{can}{option}"
        words = [*command, "--device", "cpu", "--out", out, *option]
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        assert json.loads((out / "settings.json").read_text())["bf16"] is expected


def test_attention_is_eager_on_a_cpu_only(corpus, tokenizer, tmp_path: Path, monkeypatch) -> None:
    assert [attention_on(kind) for kind in ("cpu", "cuda", "mps")] == ["eager", "sdpa", "sdpa"]
    settings = (corpus, tokenizer, TINY, tmp_path, 0, torch.device("cpu"), False, 9, None)
    assert training_run.TrainingRun(*settings).model.config._attn_implementation == "eager"
    monkeypatch.setattr(training_run, "attention_on", lambda kind: "sdpa")
    fused = training_run.TrainingRun(*settings)
    assert fused.model.config._attn_implementation == "sdpa"
    monkeypatch.undo()
    plain = training_run.TrainingRun(*settings)
    assert fused.held_out_loss() == pytest.approx(plain.held_out_loss(), abs=1e-4)


# ---- power, kills and damage --------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_files_lie_on_the_disk_before_they_get_their_name(
    corpus, tokenizer, tmp_path, monkeypatch
) -> None:
    synced: list[str] = []
    put: list[tuple[str, set[str]]] = []
    put_folder, fsync = checkpoints.put_folder, os.fsync

    def note(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def check(scratch: Path, folder: Path) -> None:
        missing = {str(path) for path in (scratch, *scratch.rglob("*"))} - set(synced)
        put.append((folder.name, missing))
        put_folder(scratch, folder)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(checkpoints, "put_folder", check)
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, tmp_path / "run", on_snapshot=stopped_at(1))
    names = [name for name, _ in put]
    assert names == ["step-000000000", "step-000000001", "step-000000001"]  # the last: checkpoint
    assert all(missing == set() for _, missing in put)
    train(corpus, tokenizer, tmp_path / "run")
    assert put[-1] == ("final", set())
    assert str(tmp_path / "run" / "record.json") in synced


def test_what_a_kill_left_behind_is_swept(corpus, tokenizer, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, out, on_snapshot=stopped_at(1))
    for place in (out, out / "snapshots", out / "unfinished" / "checkpoints"):
        (place / ".new-abc" / "whole").mkdir(parents=True)
        (place / ".new-abc" / "whole" / "model.safetensors").write_bytes(b"half")
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, out, on_snapshot=stopped_at(2))
    assert not list(out.rglob(".new-*"))


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_a_damaged_checkpoint_says_what_to_do(
    file: str, how: str, corpus, tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, out, on_snapshot=stopped_at(1))
    checkpoint = last_checkpoint(out / "unfinished" / "checkpoints")
    assert checkpoint is not None
    if how == "cut":
        content = (checkpoint / file).read_bytes()
        (checkpoint / file).write_bytes(content[: len(content) // 2])
    else:
        (checkpoint / file).unlink()
    says = r"checkpoint step-000000001 of 'run' is damaged .*delete the folder run/unfinished"
    with pytest.raises(ValueError, match=says):
        train(corpus, tokenizer, out)
    shutil.rmtree(out / "unfinished")
    assert train(corpus, tokenizer, out).trained


# ---- watching -----------------------------------------------------------------------------------


def test_lines_tell_where_a_bar_cannot(text: Path, tmp_path: Path) -> None:
    base = ["pretrain", "--corpus", text, "--config", "tiny", "--tokens", "2000", "--device", "cpu"]
    told, quiet = (
        CliRunner().invoke(app, [str(word) for word in (*base, "--out", tmp_path / name, *option)])
        for name, option in (("a", []), ("b", ["--no-progress"]))
    )
    assert told.exit_code == quiet.exit_code == 0
    lines = [line for line in told.stderr.splitlines() if line.startswith("step")]
    assert [line.split(":")[0] for line in lines][:4] == ["step 1", "step 2", "step 3", "step 5"]
    shape = r"step [\d,]+: [\d,]+ tokens \(\d+%\), loss \d+\.\d{3}, [\d,]+ tokens a second"
    assert all(re.fullmatch(shape, line) for line in lines)
    assert "step" not in quiet.stderr


def test_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    run = SimpleNamespace(step=1, tokens=100, seconds=1.0, running=5.0)
    said: list[str] = []
    told = progress.Progress(run, None, False, said.append)
    for now in (10.0, 59.0, 61.0, 80.0, 122.0):  # noqa: B007 (the clock reads it)
        told.update(10, 0.5, snapshot=False)
    told.update(10, 0.5, snapshot=True)
    told.close()
    assert len(said) == 3 and "(50%)" in said[0]


# ---- comparing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["bertflow_lite.__version__", "FORMAT"])
def test_a_comparison_of_another_version_is_not_used(
    what: str, text: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertflow_lite.experiments.pretraining import variants as compare

    trained: list[str] = []

    def pretend(packed: Any, tokenizer: Any, trial: Any, **options: Any) -> dict[str, Any]:
        trained.append(trial.name)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return {"name": trial.name, "curve": [[0, 0, 9.0]], "seconds": 1.0}

    monkeypatch.setattr(compare, "compare_recipes", pretend)
    command = ["pretrain-compare", "--corpus", str(text), "--config", "tiny", "--device", "cpu"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 130 and "held-out loss 9.000, 1 s" in first.stderr
    assert CliRunner().invoke(app, command).exit_code == 0
    assert trained[3:5] == [trained[2], trial_after(trained[2])]  # two were kept
    name = what if "." in what else "bertflow_lite.experiments.pretraining.variants.COMPARE_FORMAT"
    monkeypatch.setattr(name, "other" if "." in what else 99)
    trained.clear()
    CliRunner().invoke(app, command)
    assert trained[0] == compare.LADDER[0].name  # none was


def trial_after(name: str) -> str:
    from bertflow_lite.experiments.pretraining.variants import ASIDES, LADDER

    names = [trial.name for trial in (*LADDER, *ASIDES)]
    return names[names.index(name) + 1]


# ---- what the words promise ---------------------------------------------------------------------


def test_of_a_sentence_longer_than_a_row_the_end_is_left_out(
    tokenizer, tmp_path: Path, own_cache: Path
) -> None:
    long = "A " + "very " * 20 + "long way."
    (tmp_path / "long.txt").write_text(f"{long} Short one.")
    assert len(split_sentences(f"{long} Short one.")) == 2
    packed = pack_corpus(tmp_path / "long.txt", tokenizer, length=16)
    rows = [tokenizer.decode(row, skip_special_tokens=True) for row in packed.rows]
    assert rows == ["a" + " very" * 13, "short one."]
