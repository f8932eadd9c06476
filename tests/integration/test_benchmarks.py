"""The benchmarks compare like with like, and the page shows what was stored."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from numpy.testing import assert_allclose

from bertflow_lite.flow import LOG_SCALE_FACTOR, Glow

ROOT = Path(__file__).parents[2]
if not (ROOT / "benchmarks").is_dir():  # an installed copy of the tests
    pytest.skip("no benchmarks here", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def _benchmarks_on_path():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def sample() -> torch.Tensor:
    return 0.3 * torch.randn(64, 768, generator=torch.Generator().manual_seed(0)) + 0.1


def trained(levels: int, permutation: str, sample: torch.Tensor) -> Glow:
    """A flow none of whose parameters is at a special value any more."""
    flow = Glow(768, levels, permutation=permutation)
    flow.initialize(sample)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in flow.parameters():
            p += 0.02 * torch.randn(p.shape, generator=generator)
    return flow


def layers(flow: Glow):
    """Actnorm, permutation and coupling of each step, in order."""
    for level in flow.steps:
        found = list(level)
        for start in range(0, len(found), 3):
            yield found[start : start + 3]


def fold(network) -> list[torch.Tensor]:
    """Weights and biases of three linear maps that are equal to a coupling's network."""
    scales = [
        torch.exp(LOG_SCALE_FACTOR * log_scale)
        for log_scale in (network.norm1.log_scale, network.norm2.log_scale, network.log_scale3)
    ]
    weights = (network.weight1, network.weight2, network.weight3)
    biases = (network.norm1.bias, network.norm2.bias, network.bias3)
    return [
        part
        for weight, bias, scale in zip(weights, biases, scales, strict=True)
        for part in (weight * scale[:, None], bias * scale)
    ]


def copy_all(targets, sources) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.data.copy_(source.reshape(target.shape))


def copy_to_dense(flow: Glow, model) -> None:
    steps = [step for level in model.levels for step in level]
    for (norm, _, coupling), step in zip(layers(flow), steps, strict=True):
        net = coupling.network
        pairs = [(step.norm, norm), (step.norm1, net.norm1), (step.norm2, net.norm2)]
        for theirs, ours in pairs:
            copy_all((theirs.bias, theirs.log_scale), (ours.bias, ours.log_scale))
        copy_all(
            (step.conv1.weight, step.conv2.weight, step.conv3.weight, step.conv3.bias),
            (net.weight1, net.weight2, net.weight3, net.bias3),
        )
        copy_all([step.log_scale3], [net.log_scale3])


def copy_to_nflows(flow: Glow, model) -> None:
    modules = list(model.modules())
    kinds = ("ActNorm", "RandomPermutation", "AdditiveCouplingTransform")
    norms, orders, couplings = ([m for m in modules if type(m).__name__ == kind] for kind in kinds)
    steps = zip(layers(flow), norms, orders, couplings, strict=True)
    for (norm, permutation, coupling), their_norm, their_order, their_coupling in steps:
        half, dim = coupling.kept, len(permutation.order)
        swap = torch.arange(dim).roll(half)  # theirs works on with the second half, ours the first
        layout = torch.arange(dim) if coupling is first_coupling(flow, dim) else swap
        scale = LOG_SCALE_FACTOR * norm.log_scale
        shift = norm.bias * scale.exp()
        copy_all((their_norm.log_scale, their_norm.shift), (scale[layout], shift[layout]))
        their_order._permutation.copy_(layout.argsort()[permutation.order[swap]])
        copy_all(their_coupling.transform_net.parameters(), fold(coupling.network))


def first_coupling(flow: Glow, dim: int):
    """The first coupling of the level of this width."""
    return next(step[2] for step in layers(flow) if len(step[1].order) == dim)


def copy_to_normflows(flow: Glow, model) -> None:
    # Theirs counts from the latent: what we call forward is their inverse.
    steps = [composite for level in reversed(model.flows) for composite in reversed(level)]
    for (norm, permutation, coupling), composite in zip(layers(flow), steps, strict=True):
        block, order, their_norm = composite._flows
        copy_all((their_norm.s, their_norm.t), (-LOG_SCALE_FACTOR * norm.log_scale, -norm.bias))
        order.inv_perm.copy_(permutation.order)
        order.perm.copy_(permutation.restore)
        *others, weight, bias = fold(coupling.network)
        copy_all(block.parameters(), [*others, -weight, -bias])


@pytest.mark.parametrize(
    ("name", "levels", "permutation", "copy"),
    [
        ("nflows", 2, "random", copy_to_nflows),
        ("normflows", 2, "random", copy_to_normflows),
        ("dense", 3, "reverse", copy_to_dense),
    ],
)
def test_the_peers_are_the_same_flow(name, levels, permutation, copy, sample):
    if name != "dense":
        pytest.importorskip(name)
    import bench_flow

    peer = bench_flow.PEERS[levels][name](levels)
    peer.log_prob(sample)  # so that it does not initialize itself later
    ours = trained(levels, permutation, sample)
    with torch.no_grad():
        copy(ours, peer.model)
        expected = ours.log_prob(sample)
        found = peer.log_prob(sample)
        assert expected.std() > 1  # rows differ, so that equality says something
        assert_allclose(found, expected, rtol=1e-4)
        # The latents hold the same numbers; each library puts the parts in an order of its own.
        rows = peer.transform(sample).sort(dim=1).values
        assert_allclose(rows, ours(sample)[0].sort(dim=1).values, atol=1e-4)


@pytest.mark.parametrize("name", ["nflows", "normflows", "dense"])
def test_the_peers_learn(name, sample):
    """A plain loop lowers the loss, as ours does: what is timed is training."""
    if name != "dense":
        pytest.importorskip(name)
    import bench_flow

    levels = next(levels for levels, makers in bench_flow.PEERS.items() if name in makers)
    peer = bench_flow.PEERS[levels][name](levels)
    before = peer.log_prob(sample).mean().item()
    for _ in range(3):
        peer.train(sample, 32)
    assert peer.log_prob(sample).mean().item() > before


def test_turns_are_taken_and_the_first_is_not_counted():
    import bench_flow

    calls: list[str] = []
    contestants = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    times = bench_flow.take_turns(contestants, 3)
    assert calls == ["a", "b"] * 4
    assert set(times) == {"a", "b"} and all(value >= 0 for value in times.values())


@pytest.mark.parametrize(
    "name",
    [
        "flow",
        "encode",
        "static",
        "memory",
        "mapped",
        "pretraining",
        "try_it",
        "playground",
        "first_figure",
    ],
)
def test_the_page_shows_what_was_stored(name):
    import report

    assert name in report.TABLES
    made = report.make_table(name)
    shown = report.between(name).findall(report.PAGE.read_text(encoding="utf-8"))
    assert len(shown) == 1, f"the page needs the markers of {name!r} once"
    if made is None:
        assert not re.search(r"\d", shown[0]), "a number without a stored result"
    else:
        assert shown[0] == made, "run `python benchmarks/report.py --write`"
