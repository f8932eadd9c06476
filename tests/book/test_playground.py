"""The flow that trains in the page is the package's flow, and its playground can be used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn

from bertflow_lite.flow import ActNorm, CouplingNetwork, Glow, Permutation, standard_normal_log_prob
from bertflow_lite.train import train_flow

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "book" / "static"
PARTS = ("random", "layers", "network", "model", "train", "points")
PAGE = "book/05_flows.html"
pytestmark = [pytest.mark.book, pytest.mark.browser]


class AffineCoupling(nn.Module):
    """Chapter 5's affine coupling, around the package's network: log-scales first, then shifts."""

    def __init__(self, dim: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.kept = (dim + 1) // 2
        self.network = CouplingNetwork(self.kept, 2 * (dim - self.kept), width, generator)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        u1, u2 = u[:, : self.kept], u[:, self.kept :]
        log_scale, shift = self.network(u1).chunk(2, dim=1)
        log_scale = torch.tanh(log_scale)
        return torch.cat([u1, u2 * log_scale.exp() + shift], dim=1), log_scale.sum(dim=1)

    @torch.no_grad()
    def initialize(self, sample: Tensor) -> None:
        self.network.initialize(sample[:, : self.kept])


class AffineFlow(nn.Module):
    """The same steps as `Glow`, with affine couplings."""

    def __init__(self, dim: int, depth: int, width: int, actnorm: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.dim = dim
        self.layers = nn.ModuleList()
        for _ in range(depth):
            self.layers.extend([ActNorm(dim, generator)] if actnorm else [])
            self.layers.append(Permutation(dim, "reverse", generator))
            self.layers.append(AffineCoupling(dim, width, generator))

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        log_det = u.new_zeros(len(u))
        for layer in self.layers:
            u, change = layer(u)
            log_det = log_det + change
        return u, log_det

    def log_prob(self, u: Tensor) -> Tensor:
        z, log_det = self(u)
        return standard_normal_log_prob(z) + log_det

    @torch.no_grad()
    def initialize(self, sample: Tensor) -> None:
        for layer in self.layers:
            if isinstance(layer, (ActNorm, AffineCoupling)):
                layer.initialize(sample)
            sample = layer(sample)[0]


@pytest.fixture(scope="module")
def page(chromium: Any) -> Iterator[Any]:
    """An empty page with the flow's scripts, and no playground."""
    page = chromium.new_page()
    for part in PARTS:
        page.add_script_tag(path=STATIC / f"flow_{part}.js")
    yield page
    page.close()


def settings(coupling: str, actnorm: bool, dim: int = 2, depth: int = 4, width: int = 7) -> dict:
    return {
        "dim": dim, "depth": depth, "width": width, "coupling": coupling, "actnorm": actnorm,
        "permutation": "reverse",
    }  # fmt: skip


def python_flow(chosen: dict) -> Any:
    if chosen["coupling"] == "additive":
        return Glow(
            chosen["dim"], 1, chosen["depth"], chosen["width"], "reverse", actnorm=chosen["actnorm"]
        ).double()
    size = chosen["dim"], chosen["depth"], chosen["width"]
    return AffineFlow(*size, chosen["actnorm"]).double()


def data(n: int, dim: int = 2, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=draw, dtype=torch.float64)
    x[:, -1] += x[:, 0].square() - 0.5
    return x


def shaken(flow: Any, sample: Tensor) -> Any:
    """Start from the data, then move every weight, so that each layer does something."""
    flow.initialize(sample)
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in flow.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    return flow


def flat(tensors: Any) -> list[list[float]]:
    return [tensor.detach().flatten().tolist() for tensor in tensors]


MAKE = """
  const model = new bertflowFlow.Flow(settings);
  if (weights) model.setParameters(weights);
  const u = Float64Array.from(points);
  const lists = arrays => Array.from(arrays, array => Array.from(array));
"""

CASES = [
    ("additive", True, 2), ("additive", False, 2), ("affine", True, 2), ("affine", False, 2),
    ("additive", True, 5), ("affine", True, 5),
]  # fmt: skip


@pytest.mark.parametrize(("coupling", "actnorm", "dim"), CASES)
def test_latents_densities_and_gradients_are_those_of_torch(
    coupling: str, actnorm: bool, dim: int, page: Any
) -> None:
    chosen, u = settings(coupling, actnorm, dim), data(40, dim)
    flow = shaken(python_flow(chosen), u)
    u.requires_grad_()
    z, _ = flow(u)
    log_p = flow.log_prob(u)
    loss = -log_p.mean() / (dim * math.log(2))
    loss.backward()
    got = page.evaluate(
        f"""([settings, weights, points]) => {{ {MAKE}
          const {{z}} = model.forward(u), {{loss, du}} = model.lossAndGradient(u);
          return {{z: Array.from(z), back: Array.from(model.inverse(z)), loss: loss,
                   logProb: Array.from(model.logProb(u)), du: Array.from(du),
                   gradients: lists(model.gradients), bits: model.bits(u)}};
        }}""",
        [chosen, flat(flow.parameters()), u.flatten().tolist()],
    )
    tight = {"atol": 1e-5, "rtol": 1e-9}
    assert_allclose(got["z"], z.detach().flatten(), **tight)
    assert_allclose(got["logProb"], log_p.detach(), **tight)
    assert_allclose(got["back"], u.detach().flatten(), **tight)
    assert_allclose(got["loss"], loss.item(), **tight)
    assert_allclose(got["bits"], loss.item(), **tight)
    assert_allclose(got["du"], u.grad.flatten(), **tight)
    wanted = flat(weight.grad for weight in flow.parameters())
    assert len(got["gradients"]) == len(wanted)
    for mine, theirs in zip(got["gradients"], wanted, strict=True):
        assert_allclose(mine, theirs, **tight)
        assert np.abs(theirs).max() > 1e-6, "a weight that does nothing would pass any test"


@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_gradients_are_those_of_finite_differences(coupling: str, page: Any) -> None:
    chosen, u = settings(coupling, True, depth=2, width=5), data(30)
    flow = shaken(python_flow(chosen), u)
    pairs = page.evaluate(
        f"""([settings, weights, points]) => {{ {MAKE}
          model.lossAndGradient(u);
          const gradients = lists(model.gradients), step = 1e-6, pairs = [];
          model.parameters.forEach((array, p) => array.forEach((value, k) => {{
            array[k] = value + step;
            const above = model.bits(u);
            array[k] = value - step;
            const below = model.bits(u);
            array[k] = value;
            pairs.push([gradients[p][k], (above - below) / (2 * step)]);
          }}));
          return pairs;
        }}""",
        [chosen, flat(flow.parameters()), u.flatten().tolist()],
    )
    assert len(pairs) == sum(weight.numel() for weight in flow.parameters())
    by_hand, measured = np.array(pairs).T
    assert_allclose(by_hand, measured, atol=2e-6)


@pytest.mark.parametrize(("coupling", "actnorm"), [case[:2] for case in CASES[:4]])
def test_the_start_from_the_data_is_the_same(coupling: str, actnorm: bool, page: Any) -> None:
    chosen, u = settings(coupling, actnorm), data(200)
    flow = python_flow(chosen)
    weights = flat(flow.parameters())
    flow.initialize(u)
    got = page.evaluate(
        f"""([settings, weights, points]) => {{ {MAKE}
          model.initialize(u);
          return lists(model.parameters);
        }}""",
        [chosen, weights, u.flatten().tolist()],
    )
    for mine, theirs in zip(got, flat(flow.parameters()), strict=True):
        assert_allclose(mine, theirs, atol=1e-9)


@pytest.mark.parametrize("learning_rate", [1e-3, 0.05])
def test_the_same_start_and_batches_give_the_same_curve(learning_rate: float, page: Any) -> None:
    chosen, u = settings("additive", True), data(256)
    flow = python_flow(chosen)
    flow.initialize(u)
    start = flat(flow.parameters())
    batches = [u[k % 4 :: 4] for k in range(60)]
    history = train_flow(flow, lambda epoch: iter(batches), learning_rate=learning_rate)
    got = page.evaluate(
        f"""([settings, weights, points, batches, learningRate]) => {{ {MAKE}
          const trainer = new bertflowFlow.Trainer(model, {{learningRate: learningRate}});
          const losses = batches.map(batch => trainer.step(Float64Array.from(batch)));
          return {{losses: losses, weights: lists(model.parameters)}};
        }}""",
        [chosen, start, u.flatten().tolist(), flat(batches), learning_rate],
    )
    assert_allclose(got["losses"], history.loss, atol=1e-5)
    assert history.loss[-1] < history.loss[0] - 0.05
    for mine, theirs in zip(got["weights"], flat(flow.parameters()), strict=True):
        assert_allclose(mine, theirs, atol=1e-5)


def test_batches_are_passes_over_the_data(page: Any) -> None:
    passes = page.evaluate(
        """() => {
          const model = new bertflowFlow.Flow({depth: 1, width: 2, coupling: "additive"});
          const trainer = new bertflowFlow.Trainer(model, {batchSize: 4, seed: 3});
          const data = Float64Array.from({length: 20}, (_, k) => k >> 1);
          return [1, 2].map(() => [1, 2].flatMap(() => Array.from(trainer.nextBatch(data))));
        }"""
    )
    for rows in passes:
        assert len(rows) == 16
        assert len(set(rows[::2])) == 8, "no point twice in a pass, and a rest is left out"
        assert rows[::2] == rows[1::2]
    assert passes[0] != passes[1]


def test_a_loss_that_is_no_number_leaves_the_weights_alone(page: Any) -> None:
    before, after, message = page.evaluate(
        """() => {
          const model = new bertflowFlow.Flow({depth: 2, width: 3, coupling: "affine"});
          const trainer = new bertflowFlow.Trainer(model, {learningRate: 0.1});
          const before = model.parameters.map(array => Array.from(array));
          let message = "";
          try { trainer.step(Float64Array.of(NaN, 1, 2, 3)); } catch (e) { message = e.message; }
          return [before, model.parameters.map(array => Array.from(array)), message];
        }"""
    )
    assert before == after
    assert "no longer a number" in message


def test_random_numbers_are_what_they_should_be(page: Any) -> None:
    normal, uniform, order, again, other = page.evaluate(
        """() => {
          const draw = (seed, kind) => { const r = bertflowFlow.random(seed);
            return Array.from({length: 20000}, () => r[kind]()); };
          return [draw(0, "normal"), draw(0, "uniform"), bertflowFlow.random(2).order(50),
                  draw(0, "normal").slice(0, 5), draw(1, "normal").slice(0, 5)];
        }"""
    )
    assert_allclose([np.mean(normal), np.std(normal)], [0, 1], atol=0.03)
    assert_allclose(np.mean(np.abs(normal) < 1), 0.683, atol=0.015)
    assert min(uniform) >= 0
    assert max(uniform) < 1
    assert_allclose(np.histogram(uniform, 10, (0, 1))[0] / 20000, 0.1, atol=0.01)
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 0.03
    assert sorted(order) == list(range(50))
    assert order != list(range(50))
    assert again == normal[:5]
    assert other != again


def test_the_lines_of_the_simple_models_are_right(page: Any) -> None:
    u = data(300)
    got = page.evaluate(
        "points => bertflowFlow.gaussianBits(Float64Array.from(points))", u.flatten().tolist()
    )
    for name, covariance in (
        ("diagonal", torch.diag(u.var(dim=0, correction=0))),
        ("whitening", torch.cov(u.T, correction=0)),
    ):
        normal = torch.distributions.MultivariateNormal(u.mean(dim=0), covariance)
        assert_allclose(got[name], -normal.log_prob(u).mean() / (2 * math.log(2)), atol=1e-9)
    assert got["whitening"] <= got["diagonal"]


def test_shapes_are_in_two_groups_and_in_view(page: Any) -> None:
    shapes = page.evaluate(
        """() => bertflowFlow.shapes.map(shape => {
          const {points, groups} = bertflowFlow.points(shape, 400, 1);
          return [shape, Array.from(points), groups];
        })"""
    )
    assert [shape for shape, *_ in shapes] == ["two moons", "rings", "spiral", "two clouds"]
    for shape, points, groups in shapes:
        assert len(points) == 800, shape
        assert sum(groups) == 200, shape
        assert np.abs(points).max() < 4, shape
