"""Runs that are finished, killed, damaged, moved to other hardware, or watched from afar."""

from __future__ import annotations

import errno
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite import devices as precision
from bertflow_lite.cli.common import app
from bertflow_lite.devices import computes_in_bfloat16
from bertflow_lite.encoders.transformer import load_encoder
from bertflow_lite.experiments.pretraining import loop
from bertflow_lite.experiments.pretraining.corpus import PackedCorpus, pack_corpus, split_sentences
from bertflow_lite.experiments.pretraining.loop import CHECKPOINT, choose_bf16, read_training
from bertflow_lite.experiments.pretraining.recipe import RECIPES, attention_on
from bertflow_lite.experiments.runs import stop_requested

TINY = RECIPES["tiny"]


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


@pytest.fixture(scope="module")
def by_command(text: Path, tmp_path_factory) -> tuple[list[str], Any]:
    """Train by the command, with a progress bar; give its words and what came of it."""
    out = tmp_path_factory.mktemp("command") / "run"
    command = ["pretrain", "--corpus", text, "--out", out, "--config", "tiny"]
    command += ["--tokens", "2000", "--device", "cpu"]
    words = [str(word) for word in command]
    return words, CliRunner().invoke(app, words)


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
    (tmp_path / "run" / "unfinished").mkdir()
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


def test_a_run_with_other_settings_is_kept(corpus, tokenizer, tmp_path) -> None:
    train(corpus, tokenizer, tmp_path / "run")
    says = r"another seed \(0, now 1\), tokens \(2000, now 3000\)\..*--overwrite"
    with pytest.raises(ValueError, match=says):
        train(corpus, tokenizer, tmp_path / "run", tokens=3000, seed=1)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, tmp_path / "run", on_snapshot=stopped_at(1))
    with pytest.raises(ValueError, match=r"another run lies in 'run', begun with another seed"):
        train(corpus, tokenizer, tmp_path / "run", seed=1)


def test_overwrite_begins_another_run(corpus, tokenizer, tmp_path: Path) -> None:
    """Also one that is stopped: nothing of the finished one before is taken for its own."""
    train(corpus, tokenizer, tmp_path / "run", tokens=1000)
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, tmp_path / "run", tokens=9000, overwrite=True,
              on_snapshot=stopped_at(2))  # fmt: skip
    training = read_training(tmp_path / "run", partial=True)
    assert not training.finished and list(training.snapshots) == [0, 1, 2]
    assert train(corpus, tokenizer, tmp_path / "run", tokens=9000).tokens >= 9000


def test_the_command_says_that_it_is_done(by_command) -> None:
    command, first = by_command
    second = CliRunner().invoke(app, command)
    assert first.exit_code == second.exit_code == 0
    assert first.stdout == second.stdout
    assert "holds this run already" in second.stderr and "--overwrite" in second.stderr
    assert "holds this run already" not in first.stderr


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
    with pytest.raises(ValueError, match=r"another bf16 \(False, now True\)"):
        train(corpus, tokenizer, out, bf16=None)
    assert train(corpus, tokenizer, out, bf16=False).trained


def test_the_command_leaves_it_to_the_hardware(text: Path, tmp_path: Path, monkeypatch) -> None:
    """The first run trains, in bfloat16; the others are stopped before, when it is settled."""

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

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
        assert done.exit_code == (130 if loop.TrainingRun is stop else 0), done.output
        assert json.loads((out / "settings.json").read_text())["bf16"] is expected
        monkeypatch.setattr(loop, "TrainingRun", stop)


def test_attention_is_eager_on_a_cpu_only(corpus, tokenizer, tmp_path: Path, monkeypatch) -> None:
    assert [attention_on(kind) for kind in ("cpu", "cuda", "mps")] == ["eager", "sdpa", "sdpa"]
    settings = (corpus, tokenizer, TINY)
    assert loop.TrainingRun(*settings).model.config._attn_implementation == "eager"
    monkeypatch.setattr(loop, "attention_on", lambda kind: "sdpa")
    fused = loop.TrainingRun(*settings)
    assert fused.model.config._attn_implementation == "sdpa"
    monkeypatch.undo()
    plain = loop.TrainingRun(*settings)
    assert fused.held_out_loss() == pytest.approx(plain.held_out_loss(), abs=1e-4)


# ---- power, kills and damage --------------------------------------------------------------------


def test_what_a_kill_left_behind_is_swept(corpus, tokenizer, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, out, on_snapshot=stopped_at(1))
    for place in (out, out / "snapshots"):
        (place / ".new" / "more").mkdir(parents=True)
        (place / ".new" / "model.safetensors").write_bytes(b"half")
    (out / CHECKPOINT).with_suffix(".new").write_bytes(b"half")
    done = train(corpus, tokenizer, out)
    assert not list(out.rglob("*.new")) and not list(out.rglob("more"))
    assert load_encoder(out / "final", device="cpu").dim == TINY.width and done.trained


def test_a_checkpoint_is_whole_or_the_one_before(corpus, tokenizer, tmp_path, monkeypatch) -> None:
    """The disk is full while the second one is written: the first one is gone on from."""
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, out, on_snapshot=stopped_at(1))
    before = (out / CHECKPOINT).read_bytes()

    def full(state: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space"):
            train(corpus, tokenizer, out, checkpoint_seconds=0)
    assert (out / CHECKPOINT).read_bytes() == before
    plain = train(corpus, tokenizer, tmp_path / "plain")
    np.testing.assert_allclose(train(corpus, tokenizer, out).loss, plain.loss, atol=2e-4)


@pytest.mark.parametrize("kept", [0, 7, 0.5, 0.999])
def test_a_damaged_checkpoint_says_what_to_do(
    kept: float, corpus, tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, out, on_snapshot=stopped_at(1))
    content = (out / CHECKPOINT).read_bytes()
    size = int(kept if kept >= 1 else kept * len(content))
    (out / CHECKPOINT).write_bytes(content[:size])
    says = r"checkpoint of 'run' is damaged .*delete the folder run/unfinished"
    with pytest.raises(ValueError, match=says):
        train(corpus, tokenizer, out)
    shutil.rmtree(out / "unfinished")
    assert train(corpus, tokenizer, out).trained


def test_a_second_process_is_sent_away(corpus, tokenizer, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(corpus, tokenizer, out, on_snapshot=stopped_at(1))
    with FileLock(out / "unfinished" / "lock"), pytest.raises(ValueError, match="another process"):
        train(corpus, tokenizer, out)


def test_a_second_signal_acts_at_once() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def ask_twice() -> None:
        with stop_requested() as stopped:
            signal.raise_signal(signal.SIGINT)
            assert stopped.is_set()
            signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            ask_twice()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


# ---- watching -----------------------------------------------------------------------------------


def test_a_bar_that_is_no_terminal_is_written_seldom(
    by_command, text: Path, tmp_path: Path
) -> None:
    """A log of a long run has a line a minute, not ten a second."""
    _, told = by_command
    base = ["pretrain", "--corpus", text, "--config", "tiny", "--tokens", "300", "--device", "cpu"]
    words = [*base, "--out", tmp_path / "b", "--no-progress"]
    quiet = CliRunner().invoke(app, [str(word) for word in words])
    assert told.exit_code == quiet.exit_code == 0
    assert "tok/s" in told.stderr and told.stderr.count("\r") <= 2
    assert "tok/s" not in quiet.stderr


# ---- comparing ----------------------------------------------------------------------------------


def test_a_comparison_of_another_version_is_not_used(
    text: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
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
    assert first.exit_code == 130 and "finished recipes are in the cache" in first.stderr
    assert CliRunner().invoke(app, command).exit_code == 0
    assert trained[3:5] == [trained[2], trial_after(trained[2])]  # two were kept
    for what, other in (("version", lambda _: "other"), ("COMPARE_FORMAT", 99)):
        with monkeypatch.context() as patch:
            patch.setattr(compare, what, other)
            trained.clear()
            CliRunner().invoke(app, command)
            assert trained[0] == compare.LADDER[0].name, what  # none was


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
