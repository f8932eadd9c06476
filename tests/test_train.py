"""Training: it reaches known optima, is repeatable, and stops with a clear word when it breaks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from bertflow_lite.flow import Glow
from bertflow_lite.train import NonFiniteLossError, ReleasedCodeAdam, bits_per_dim, train_flow


def gaussian(n: int = 2048, dim: int = 8, seed: int = 0) -> torch.Tensor:
    """Rows of a Gaussian with deviations from 0.1 to 10 and means away from 0."""
    rows = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))
    return rows * torch.logspace(-1, 1, dim) + torch.arange(dim)


def state(flow: Glow) -> list[torch.Tensor]:
    return [p.detach().clone() for p in flow.parameters()]


def test_loss_falls_to_the_entropy_of_a_gaussian():
    flow = Glow(8, depth=1, levels=1)  # not initialized: training finds means and deviations
    history = train_flow(flow, gaussian(), epochs=6, learning_rate=2e-2)
    entropy = 0.5 * math.log2(2 * math.pi * math.e)  # the log-deviations add up to 0
    assert history.loss[0] > entropy + 1
    assert history.epoch_loss[-1] < history.epoch_loss[0]
    assert bits_per_dim(flow, gaussian(4096, seed=1)) == pytest.approx(entropy, abs=0.05)


def test_bits_per_dim_is_the_mean_negative_log2_density():
    data, flow = gaussian(50), Glow(8)
    flow.initialize(data)
    expected = -float(flow.log_prob(data).detach().mean()) / (8 * math.log(2))
    assert bits_per_dim(flow, data, batch_size=7) == pytest.approx(expected, rel=1e-5)


def test_history_holds_each_step_and_epoch():
    history = train_flow(Glow(8), gaussian(100), epochs=2, batch_size=32)
    assert history.steps == len(history.loss) == 6  # 3 whole batches; the rest is dropped
    assert history.epoch_loss == pytest.approx(
        [np.mean(history.loss[:3]), np.mean(history.loss[3:])]
    )
    assert history.seconds > 0


def test_the_seed_decides_everything():
    results = []
    for seed in (0, 0, 1):
        torch.rand(3)  # the global random state must not matter
        flow = Glow(8)
        train_flow(flow, gaussian(200), seed=seed)
        results.append(torch.cat([p.flatten() for p in state(flow)]))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_no_epoch_leaves_the_flow_as_it_is():
    flow = Glow(8)
    before = state(flow)
    history = train_flow(flow, gaussian(50), epochs=0)
    assert history.steps == 0
    assert all(torch.equal(a, b) for a, b in zip(before, state(flow), strict=True))


def test_a_batch_larger_than_the_data_is_the_data():
    assert train_flow(Glow(8), gaussian(5), epochs=3, batch_size=32).steps == 3


def test_a_flow_without_parameters_has_nothing_to_train():
    assert train_flow(Glow(8, actnorm=False, coupling=False), gaussian(50)).steps == 0


@pytest.mark.parametrize("optimizer", ["adam", "released-code"])
def test_divergence_names_the_step_and_leaves_finite_weights(optimizer):
    flow = Glow(8)
    with pytest.raises(NonFiniteLossError, match=r"at step \d+ \(epoch 0, batch \d+\).*learning_r"):
        train_flow(flow, gaussian(), learning_rate=1e4, optimizer=optimizer)
    assert all(torch.isfinite(p).all() for p in flow.parameters())


@pytest.mark.parametrize("max_grad_norm", [1.0, None])
def test_a_bad_row_is_met_at_its_own_step(max_grad_norm):
    data, flow = gaussian(64), Glow(8)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    data[order[40], 3] = torch.inf
    with pytest.raises(NonFiniteLossError, match=r"step 5 \(epoch 0, batch 5\)"):
        train_flow(flow, data, batch_size=8, max_grad_norm=max_grad_norm)
    assert all(torch.isfinite(p).all() for p in flow.parameters())


@pytest.mark.parametrize("max_grad_norm", [1.0, None])
def test_an_overflowing_gradient_of_a_finite_loss_is_stopped_too(max_grad_norm):
    flow = Glow(2, coupling=False, depth=1)
    for p in flow.parameters():
        torch.nn.init.zeros_(p)
    data = torch.full((2, 2), 1.2e19)  # its square is just a float32
    assert torch.isfinite(flow.log_prob(data)).all()
    with pytest.raises(NonFiniteLossError, match="gradient's norm inf at step 0"):
        train_flow(flow, data, max_grad_norm=max_grad_norm)
    assert not any(p.any() for p in flow.parameters())


@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_thread_count_comes_back(monkeypatch, fails):
    before, seen = torch.get_num_threads(), []
    flow, data = Glow(8), gaussian(64)
    if fails:
        data[:] = torch.nan
    inner = flow.log_prob
    monkeypatch.setattr(
        flow, "log_prob", lambda u: (seen.append(torch.get_num_threads()), inner(u))[1]
    )
    try:
        torch.set_num_threads(2)
        if fails:
            with pytest.raises(NonFiniteLossError):
                train_flow(flow, data)
        else:
            train_flow(flow, data)
        assert torch.get_num_threads() == 2
        assert set(seen) == {1}
    finally:
        torch.set_num_threads(before)


def test_gradients_are_clipped(monkeypatch):
    norms = []
    step = ReleasedCodeAdam.step

    def watch(self):
        grads = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
        norms.append(float(torch.cat(grads).norm()))
        return step(self)

    monkeypatch.setattr(ReleasedCodeAdam, "step", watch)
    for limit in (0.05, None):
        train_flow(Glow(8), gaussian(64), optimizer="released-code", max_grad_norm=limit)
    assert norms[:2] == pytest.approx([0.05, 0.05], rel=1e-3)
    assert min(norms[2:]) > 0.1


def test_released_code_adam_equals_a_calculation_by_hand():
    rng = np.random.default_rng(0)
    p, gradients = rng.normal(size=4), rng.normal(size=(3, 4))
    tensor = torch.nn.Parameter(torch.tensor(p))
    optimizer = ReleasedCodeAdam([tensor], lr=0.01)
    m = v = np.zeros(4)
    for g in gradients:
        tensor.grad = torch.tensor(g)
        optimizer.step()
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        p = p - 0.01 * (m / (np.sqrt(v) + 1e-6) + 0.01 * p)
        assert_allclose(tensor.detach(), p, rtol=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs is -1"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"learning_rate": 0.0}, "learning_rate 0.0"),
        ({"data": torch.zeros(0, 8)}, "rows 0"),
        ({"optimizer": "sgd"}, "'sgd'; it must be 'adam' or 'released-code'"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        train_flow(Glow(8), **{"data": gaussian(9), **settings})


@pytest.mark.parametrize("norm", [-1.0, 0, 0.0, float("nan"), "1", True])
def test_clipping_to_nothing_or_less_is_refused(norm):
    with pytest.raises(ValueError, match=r"max_grad_norm is .*more than 0, or None"):
        train_flow(Glow(4, 1, 1, 4), torch.zeros(8, 4), max_grad_norm=norm)
