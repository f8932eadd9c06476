"""The flow: invertible, with the right log-determinant, and equal to the released code's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from bertflow_lite.flow import ActNorm, AdditiveCoupling, Glow, Permutation, Split

FLOWS = {
    "dim": st.integers(2, 65),
    "levels": st.integers(1, 4),
    "depth": st.integers(1, 3),
    "width": st.integers(1, 16),
    "permutation": st.sampled_from(["random", "reverse", "none"]),
    "seed": st.integers(0, 999),
}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def perturbed(flow: Glow, u: torch.Tensor, seed: int = 0, size: float = 0.1) -> Glow:
    """Initialize on u, then move every parameter away from that special point, zeros included."""
    flow = flow.to(u.dtype)
    flow.initialize(u)
    with torch.no_grad():
        for number, p in enumerate(flow.parameters()):
            typical = float(p.abs().mean()) or 1.0
            p += size * typical * normal(*p.shape, seed=seed + number, dtype=u.dtype)
    return flow


@settings(max_examples=60, deadline=None)
@given(**FLOWS)
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_inverse_undoes_forward_and_forward_inverse(dtype, within, seed, **sizes):
    u = 3 * normal(20, sizes["dim"], seed=seed, dtype=dtype) + 5
    flow = perturbed(Glow(**sizes, seed=seed), u, seed)
    with torch.no_grad():
        z, _ = flow(u)
        assert z.shape == u.shape
        assert_allclose(flow.inverse(z), u, rtol=0, atol=within * float(u.abs().max()))
        z = normal(20, sizes["dim"], seed=seed + 1, dtype=dtype)
        assert_allclose(flow(flow.inverse(z))[0], z, rtol=0, atol=within * float(u.abs().max()))


@settings(max_examples=25, deadline=None)
@given(**FLOWS)
def test_log_det_is_that_of_autograds_jacobian(seed, **sizes):
    u = 3 * normal(20, sizes["dim"], seed=seed) + 5
    flow = perturbed(Glow(**sizes, seed=seed), u, seed)
    for row in (0, 1):
        jacobian = torch.func.jacrev(lambda x: flow(x[None])[0][0])(u[row])
        expected = torch.linalg.slogdet(jacobian).logabsdet
        assert_allclose(flow(u)[1].detach(), expected.detach(), rtol=0, atol=1e-4)


def test_log_prob_is_the_gaussian_of_z_plus_log_det():
    u = normal(9, 5)
    flow = perturbed(Glow(5), u)
    with torch.no_grad():
        z, log_det = flow(u)
        gaussian = multivariate_normal(np.zeros(5), np.eye(5)).logpdf(z.numpy())
        assert_allclose(flow.log_prob(u), gaussian + float(log_det), rtol=1e-12)


def test_the_density_integrates_to_one():
    grid = torch.linspace(-20, 20, 801, dtype=torch.float64)
    points = torch.cartesian_prod(grid, grid)
    flow = perturbed(Glow(2, width=8), normal(50, 2))
    with torch.no_grad():
        total = flow.log_prob(points).exp().sum() * (grid[1] - grid[0]) ** 2
    assert float(total) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("actnorm", [True, False])
@pytest.mark.parametrize("coupling", [True, False])
def test_layers_can_be_left_out(actnorm, coupling):
    u = normal(30, 7)
    flow = perturbed(Glow(7, actnorm=actnorm, coupling=coupling), u)
    kinds = {type(layer) for layers in flow.steps for layer in layers}
    assert (ActNorm in kinds, AdditiveCoupling in kinds) == (actnorm, coupling)
    with torch.no_grad():
        z, log_det = flow(u)
        assert_allclose(flow.inverse(z), u, atol=1e-10)
        assert (float(log_det) != 0) == actnorm


def test_sample_has_the_shape_the_seed_decides_and_it_inverts_gaussians():
    u = normal(200, 6) * 4 - 1
    flow = perturbed(Glow(6), u)
    sample = flow.sample(5000, seed=3)
    assert sample.shape == (5000, 6) and sample.dtype == u.dtype and not sample.requires_grad
    assert torch.equal(sample, flow.sample(5000, seed=3))
    assert not torch.equal(sample, flow.sample(5000, seed=4))
    z = flow(sample)[0].detach()
    assert_allclose(z.mean(0), 0, atol=0.06)
    assert_allclose(z.std(0), 1, atol=0.05)


def test_initialize_makes_every_actnorm_give_mean_0_and_deviation_1():
    u = normal(500, 9) * torch.logspace(-2, 2, 9, dtype=torch.float64) + 7
    flow = Glow(9, levels=3, depth=2).double()
    flow.initialize(u)
    seen = []
    for level, layers in enumerate(flow.steps):
        for layer in layers:
            u = layer(u)[0]
            if isinstance(layer, ActNorm):
                seen.append(u.detach())
        if level < len(flow.splits):
            u = flow.splits[level](u)[0]
    assert len(seen) == 6
    for out in seen:
        assert_allclose(out.mean(0), 0, atol=1e-9)
        assert_allclose(out.std(0, correction=0), 1, atol=2e-4)


def test_the_start_is_a_standardisation_since_couplings_start_as_the_identity():
    u = normal(100, 8) * 3 + 1
    flow = Glow(8, permutation="none").double()
    flow.initialize(u)
    z = flow(u)[0].detach()
    expected = (u - u.mean(0)) / u.std(0, correction=0)
    assert_allclose(z[:, :4], expected[:, 4:], atol=1e-4)  # the half that leaves comes first
    assert_allclose(z[:, 4:], expected[:, :4], atol=1e-4)


def test_every_parameter_gets_a_gradient():
    u = normal(64, 10)
    flow = perturbed(Glow(10, levels=3), u)
    (-flow.log_prob(u).mean()).backward()
    without = [n for n, p in flow.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize(("levels", "count"), [(2, 127_872), (3, 151_488)])
def test_parameter_count_is_the_released_codes(levels, count):
    assert sum(p.numel() for p in Glow(768, levels=levels).parameters()) == count


def released_code(u: np.ndarray, weights: dict[str, np.ndarray], levels: int, depth: int):
    """Compute the flow in NumPy, written from the table of paper_vs_code alone."""

    def actnorm(x, name):
        return (x + weights[f"{name}.bias"]) * np.exp(3 * weights[f"{name}.log_scale"])

    eps, log_det = [], 0.0
    for level in range(levels):
        for step in range(depth):
            name = f"steps.{level}.{3 * step}"
            u = actnorm(u, name)
            log_det += np.sum(3 * weights[f"{name}.log_scale"])
            u = u[:, ::-1]
            x1, x2 = np.split(u, 2, axis=1)
            net = f"steps.{level}.{3 * step + 2}.network"
            h = np.maximum(actnorm(x1 @ weights[f"{net}.weight1"].T, f"{net}.norm1"), 0)
            h = np.maximum(actnorm(h @ weights[f"{net}.weight2"].T, f"{net}.norm2"), 0)
            shift = h @ weights[f"{net}.weight3"].T + weights[f"{net}.bias3"]
            u = np.hstack([x1, x2 + shift * np.exp(3 * weights[f"{net}.log_scale3"])])
        if level < levels - 1:
            u, done = np.split(u, 2, axis=1)
            eps.append(done)
    return np.hstack([*eps, u]), log_det


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_equals_an_independent_released_code(levels):
    u = normal(40, 32) * 2 + 1
    flow = perturbed(Glow(32, levels, 3, 5, "reverse"), u)
    weights = {name: p.detach().numpy() for name, p in flow.named_parameters()}
    expected_z, expected_log_det = released_code(u.numpy(), weights, levels, 3)
    for dtype, within in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        z, log_det = flow.to(dtype)(u.to(dtype))
        scale = np.abs(expected_z).max()
        assert_allclose(z.detach(), expected_z, rtol=0, atol=within * scale)
        assert_allclose(log_det.detach(), expected_log_det, rtol=within)


def test_random_permutations_differ_between_steps_and_follow_the_seed():
    orders = [
        [layer.order for layers in Glow(32, seed=seed).steps for layer in layers[1::3]]
        for seed in (0, 0, 1)
    ]
    assert all(torch.equal(a, b) for a, b in zip(orders[0], orders[1], strict=True))
    assert not torch.equal(orders[0][0], orders[0][1])
    assert not torch.equal(orders[0][0], orders[2][0])


def test_building_and_sampling_leave_the_global_random_state_alone():
    before = torch.get_rng_state()
    Glow(8).sample(3)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("dim", "asked", "built"), [(2, 4, 1), (3, 4, 2), (4, 9, 2), (5, 9, 3), (768, 3, 3)]
)
def test_narrow_embeddings_get_fewer_levels(dim, asked, built):
    assert Glow(dim, levels=asked, depth=1, width=1).levels == built


@pytest.mark.parametrize(("dim", "kept"), [(2, 1), (3, 2), (7, 4), (8, 4)])
def test_an_odd_width_leaves_the_larger_part_first(dim, kept):
    u = normal(3, dim)
    going_on, done = Split(dim)(u)
    assert going_on.shape[1] == kept and done.shape[1] == dim - kept
    assert torch.equal(Split(dim).inverse(going_on, done), u)
    coupling = AdditiveCoupling(dim, width=4).double()
    torch.nn.init.ones_(coupling.network.bias3)
    assert_allclose(coupling(u)[0].detach() - u, [[0] * kept + [1] * (dim - kept)] * 3, atol=1e-12)


def test_without_data_the_actnorms_start_as_in_the_released_code():
    """Without data the actnorms hold TensorFlow's default, glorot-uniform values."""
    layer = ActNorm(768, torch.Generator().manual_seed(0))
    limit = math.sqrt(6 / 769)
    for p in (layer.bias, layer.log_scale):
        assert limit * 0.98 < float(p.detach().abs().max()) <= limit
        assert abs(float(p.detach().mean())) < limit / 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 1}, "dim is 1"),
        ({"levels": 0}, "levels is 0"),
        ({"levels": 1.5}, r"levels is 1\.5.*whole"),
        ({"depth": 0}, "depth is 0"),
        ({"width": -3}, "width is -3"),
        ({"permutation": "randm"}, "'randm'.*'random', 'reverse' or 'none'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Glow(**{"dim": 8, **arguments})


@pytest.mark.parametrize("method", ["forward", "inverse", "log_prob", "initialize"])
@pytest.mark.parametrize("shape", [(8,), (2, 7), (2, 8, 1)])
def test_a_wrong_shape_is_named(method, shape):
    with pytest.raises(ValueError, match=r"shape \(batch, 8\)"):
        getattr(Glow(8), method)(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_a_type_other_than_the_weights_is_named(dtype):
    with pytest.raises(ValueError, match=f"torch.float32 and it got {dtype}"):
        Glow(8)(torch.zeros(2, 8, dtype=dtype))


def test_one_row_cannot_initialize():
    with pytest.raises(ValueError, match=r"1 row\(s\); it needs at least 2"):
        Glow(8).initialize(torch.zeros(1, 8))


def test_the_permutation_has_an_inverse_for_any_order():
    permutation = Permutation(11, "random", torch.Generator().manual_seed(2))
    u = normal(4, 11)
    z, log_det = permutation(u)
    assert not torch.equal(z, u) and float(log_det) == 0
    assert torch.equal(permutation.inverse(z), u)
