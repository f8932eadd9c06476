"""Training that diverges, is stopped, has too little data or too little memory, in any process."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
import torch
from refusal import helps, must, refuses

import bertflow_lite as bf
from bertflow_lite.devices import OutOfMemoryError, is_out_of_memory
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.flow import Glow
from bertflow_lite.train import FlowHistory, NonFiniteLossError, train_flow


def embeddings(rows: int = 200, dim: int = 8) -> Any:
    return np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)


def small(**changes: Any) -> bf.FlowCalibrator:
    return bf.FlowCalibrator(**{"levels": 1, "depth": 2, "width": 8} | changes)


SETTINGS: dict[str, tuple[dict[str, Any], Any]] = {
    "rate-too-high": (
        {"learning_rate": 1e4},
        refuses(NonFiniteLossError, "step", "batch", "Lower"),
    ),
    "rate-infinite": ({"learning_rate": math.inf}, refuses(NonFiniteLossError, "step 1", "Lower")),
    "rate-zero": ({"learning_rate": 0.0}, refuses(ValueError, "learning_rate 0.0", "more than 0")),
    "rate-negative": ({"learning_rate": -1e-3}, refuses(ValueError, "learning_rate -0.001")),
    "rate-nan": ({"learning_rate": math.nan}, refuses(ValueError, "learning_rate nan")),
    "batch-zero": ({"batch_size": 0}, refuses(ValueError, "batch_size is 0", "1 or more")),
    "batch-negative": ({"batch_size": -5}, refuses(ValueError, "batch_size is -5")),
    "epochs-negative": ({"epochs": -1}, refuses(ValueError, "epochs is -1", "0 or more")),
    "steps-negative": ({"min_steps": -1}, refuses(ValueError, "min_steps is -1")),
    "sample-of-one": ({"init_rows": 1}, refuses(ValueError, "init_rows is 1", "2 or more")),
    "no-levels": ({"levels": 0}, refuses(ValueError, "levels is 0")),
    "no-depth": ({"depth": 0}, refuses(ValueError, "depth is 0")),
    "no-width": ({"width": 0}, refuses(ValueError, "width is 0")),
    "unknown-permutation": ({"permutation": "odd"}, refuses(ValueError, "'odd'", "random")),
    "unknown-rotation": ({"rotation": "ica"}, refuses(ValueError, "'ica'", "pca")),
    "unknown-optimizer": ({"optimizer": "sgd"}, refuses(ValueError, "'sgd'", "adam")),
    "noise-negative": ({"noise": -1.0}, refuses(ValueError, "noise is -1.0", "from 0 up")),
    "noise-nan": ({"noise": math.nan}, refuses(ValueError, "noise is nan", "number")),
    "clip-negative": ({"max_grad_norm": -1.0}, refuses(ValueError, "max_grad_norm is -1", "None")),
    "clip-zero": ({"max_grad_norm": 0.0}, refuses(ValueError, "max_grad_norm is 0", "more than 0")),
    "seed-a-fraction": ({"random_state": 0.5}, refuses(ValueError, "random_state is 0.5", "int")),
    "device-unknown": ({"device": "tpu9"}, refuses(ValueError, "'tpu9'", "cannot be used", "cpu")),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_setting_that_cannot_work(case: str, tmp_path: Path) -> None:
    changes, expected = SETTINGS[case]
    must(expected, lambda: small(**changes).fit(embeddings()), tmp_path)


FINE: dict[str, dict[str, Any]] = {
    "batch-of-1": {"batch_size": 1},
    "batch-larger-than-the-data": {"batch_size": 10_000},
    "epochs-0": {"epochs": 0},
    "clipping-off": {"max_grad_norm": None},
    "tiny-rate": {"learning_rate": 1e-30},
    "many-levels": {"levels": 50},
    "negative-seed": {"random_state": -7},
    "numpy-seed": {"random_state": np.int64(3)},
    "no-seed": {"random_state": None},
    "seed-of-a-generator": {"random_state": np.random.RandomState(3)},
    "clipping-tiny": {"max_grad_norm": 1e-30},
    "clipping-infinite": {"max_grad_norm": math.inf},
    "no-actnorm": {"actnorm": False},
    "no-coupling": {"coupling": False},
    "neither": {"actnorm": False, "coupling": False},
    "much-noise": {"noise": 100.0},
    "sample-of-two": {"init_rows": 2},
}


@pytest.mark.parametrize("case", FINE)
def test_an_odd_setting_that_works(case: str) -> None:
    x = embeddings()
    fitted = small(**FINE[case]).fit(x)
    z = fitted.transform(x)
    assert np.isfinite(z).all()
    np.testing.assert_allclose(fitted.inverse_transform(z), x, atol=1e-3)
    if case == "epochs-0":
        assert fitted.history_.steps == 0


# --- a loss that is not finite --------------------------------------------------------------------


def turning_bad(at: int) -> Iterator[Any]:
    """Give good batches, and one with huge values at the end."""
    for number in range(at):
        yield np.random.default_rng(number).normal(size=(32, 8)).astype(np.float32)
    yield np.full((32, 8), 1e30, np.float32)


@pytest.mark.parametrize("at", [1, 5, 20])
def test_the_last_good_state_is_kept(at: int, caplog: pytest.LogCaptureFixture) -> None:
    flow = Glow(8, 1, 2, 8)
    with pytest.raises(NonFiniteLossError) as caught:
        train_flow(flow, lambda epoch: map(torch.from_numpy, turning_bad(at)))
    helps(str(caught.value), f"at step {at}", f"batch {at}", "Lower learning_rate", "outliers")
    good = Glow(8, 1, 2, 8)
    train_flow(good, lambda epoch: map(torch.from_numpy, list(turning_bad(at))[:-1]))
    for name, value in good.state_dict().items():
        torch.testing.assert_close(flow.state_dict()[name], value)


def test_a_calibrator_that_diverges_can_still_be_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Glow.log_prob
    calls = []

    def forward(self: Any, batch: Any) -> Any:
        calls.append(1)
        return real(self, batch) * (math.nan if len(calls) > 3 else 1.0)

    monkeypatch.setattr(Glow, "log_prob", forward)
    flow = small()
    with caplog.at_level(logging.WARNING), pytest.raises(NonFiniteLossError, match="step 3"):
        flow.fit(embeddings())
    helps(caplog.text, "training failed", "after 3 steps is kept")
    assert flow.history_.steps == 3
    assert np.isfinite(flow.transform(embeddings())).all()


def test_a_fit_that_fails_at_once_leaves_the_earlier_one() -> None:
    flow = small().fit(embeddings())
    before = flow.transform(embeddings())
    with pytest.raises(ValueError, match="equal"):
        flow.fit(np.ones((40, 5), np.float32))
    with pytest.raises(NonFiniteLossError, match="step 0"):
        flow.fit((embeddings() + 7) * np.float32(1e37))
    np.testing.assert_array_equal(flow.transform(embeddings()), before)


# --- no memory ------------------------------------------------------------------------------------

OUT = "CUDA out of memory. Tried to allocate 9.00 GiB"


def room_for(rows: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loss of a larger batch fail as it does without memory."""
    real = Glow.log_prob

    def forward(self: Any, batch: Any) -> Any:
        if len(batch) > rows:
            raise error
        return real(self, batch)

    monkeypatch.setattr(Glow, "log_prob", forward)


ERRORS: dict[str, Exception] = {
    "gpu": torch.OutOfMemoryError(OUT),
    "old-gpu": RuntimeError(OUT),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate "
                        "memory: you tried to allocate 4096000000000 bytes."),
    "python": MemoryError(),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_without_memory_the_batch_is_named(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    room_for(20, ERRORS[case], monkeypatch)
    expected = refuses(OutOfMemoryError, "128 rows", "step 0", "lower batch_size")
    must(expected, lambda: small(batch_size=128).fit(embeddings()), tmp_path)
    small(batch_size=16).fit(embeddings())  # as it says


def test_another_error_is_not_taken_for_one_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    room_for(0, RuntimeError("shapes differ"), monkeypatch)
    with pytest.raises(RuntimeError, match="shapes differ"):
        small().fit(embeddings())


def test_real_torch_errors_of_memory_are_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)
    assert is_out_of_memory(caught.value)


SENTENCES = [f"the cat sat on {word} mat" for word in ("the", "a", "one", "two", "three", "red")]


@pytest.mark.parametrize("room", [1, 2, 3, 5])
def test_the_encoder_goes_on_with_the_batch_that_fits(
    room: int, tiny_bert: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    want = tiny_bert.encode(SENTENCES)
    tiny_bert._cache.path = None
    real = Encoder._forward

    def forward(self: Encoder, ids: list[list[int]], *others: Any) -> Any:
        if len(ids) > room:
            raise torch.OutOfMemoryError(OUT)
        return real(self, ids, *others)

    monkeypatch.setattr(Encoder, "_forward", forward)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_allclose(tiny_bert.encode(SENTENCES), want, atol=1e-5)
    helps(caplog.text, "no memory on cpu for 6 sentences", "going on with 3")


def test_a_sentence_that_does_not_fit_alone(
    tiny_bert: Encoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def forward(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError(OUT)

    tiny_bert._cache.path = None
    monkeypatch.setattr(Encoder, "_forward", forward)
    expected = refuses(OutOfMemoryError, "one sentence of 8 tokens", "max_length", "cpu")
    must(expected, lambda: tiny_bert.encode(SENTENCES), tmp_path)


# --- interrupted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("milliseconds", [0, 5, 30, 150, 400])
def test_ctrl_c_at_any_time_keeps_the_last_whole_step(milliseconds: int) -> None:
    child, pipe = children.start(children.fit_until_interrupted, 200)
    assert pipe.poll(children.PATIENCE)
    assert pipe.recv() == "begun"
    child.join(milliseconds / 1000)
    os.kill(child.pid, signal.SIGINT)
    assert pipe.poll(children.PATIENCE), "Ctrl-C was not heeded"
    kind, left = pipe.recv()
    child.join(children.PATIENCE)
    assert kind == "answer", left
    assert left["finite"]


def test_the_history_tells_how_far_it_came() -> None:
    history = FlowHistory()

    def batches(epoch: int) -> Iterator[torch.Tensor]:
        yield torch.randn(16, 8)
        yield torch.randn(16, 8)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_flow(Glow(8, 1, 1, 4), batches, history=history)
    assert history.steps == 2


# --- other processes ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "forkserver"])  # spawned: integration/test_workers.py
def test_a_fit_in_another_process_is_the_same(method: str) -> None:
    if method == "fork" and torch.get_num_threads() > 1:
        torch.set_num_threads(1)  # threads of OpenMP do not outlive a fork
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=children.send_fit, args=(theirs,), daemon=True)
    child.start()
    assert ours.poll(children.PATIENCE), f"the child ({method}) did not answer"
    got = ours.recv()
    child.join(children.PATIENCE)
    np.testing.assert_allclose(got, children.fit_and_transform(theirs), atol=1e-6)
