"""What `recommended` adds to the paper's flow: a rotation to principal directions, and noise."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA
from sklearn.utils.estimator_checks import parametrize_with_checks

from bertflow_lite.calibrators.flow_calibrator import PRESETS, FlowCalibrator, add_noise
from bertflow_lite.calibrators.linear import Whitener
from bertflow_lite.flow import Glow, Rotation
from bertflow_lite.train import shuffled_batches, train_flow

BOTH = {"rotation": "pca", "noise": 0.7}


def embeddings(n: int = 2000, dim: int = 12, seed: int = 0, dtype: type = np.float64) -> np.ndarray:
    """Correlated, off center, with a spread from 1 down to 0.01 along random directions."""
    rng = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    x = rng.normal(size=(n, dim)) * np.logspace(0, -2, dim) @ axes.T + 3
    return x.astype(dtype)


def cosines(x: np.ndarray) -> np.ndarray:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return (unit[::2] * unit[1::2]).sum(axis=1)


@settings(max_examples=30, deadline=None)
@given(dim=st.integers(2, 40), levels=st.integers(1, 3), seed=st.integers(0, 99))
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_a_rotated_flow_is_invertible_with_the_right_log_determinant(
    dtype, within, dim, levels, seed
):
    generator = torch.Generator().manual_seed(seed)
    u = (3 * torch.randn(100, dim, generator=generator, dtype=torch.float64) + 5).to(dtype)
    flow = Glow(dim, levels, 2, 8, rotation="pca", seed=seed).to(dtype)
    flow.initialize(u)
    with torch.no_grad():
        for p in flow.parameters():  # away from the special point of the initialization
            p += 0.05 * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype)
        z, log_det = flow(u)
        assert_allclose(flow.inverse(z), u, rtol=0, atol=within * float(u.abs().max()))
    if dtype == torch.float64:
        jacobian = torch.func.jacrev(lambda x: flow(x[None])[0][0])(u[0])
        expected = torch.linalg.slogdet(jacobian).logabsdet
        assert_allclose(log_det, expected.detach(), rtol=0, atol=1e-6)


def test_the_axes_are_scikit_learns_principal_components():
    x = embeddings()
    rotation = Rotation(12).double()
    rotation.initialize(torch.from_numpy(x))
    axes = rotation.matrix.numpy()
    assert_allclose(axes @ axes.T, np.eye(12), atol=1e-12)
    components = PCA().fit(x).components_
    assert_allclose(np.abs((axes * components).sum(axis=1)), 1, atol=1e-6)
    assert (axes[np.arange(12), np.abs(axes).argmax(axis=1)] > 0).all()


def test_until_it_is_initialized_a_rotation_is_the_identity():
    u = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    z, log_det = Rotation(5)(u)
    assert torch.equal(z, u) and float(log_det) == 0


def test_a_rotated_flow_starts_as_whitening():
    x = embeddings()
    flow = FlowCalibrator(rotation="pca", epochs=0, device="cpu").fit(x)
    z = flow.transform(x)
    assert_allclose(np.cov(z.T, bias=True), np.eye(12), atol=1e-3)
    assert_allclose(cosines(z), cosines(Whitener().fit_transform(x)), atol=1e-3)


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_with_noise_it_starts_as_whitening_with_shrinkage(noise):
    x = embeddings(20_000)
    flow = FlowCalibrator(rotation="pca", noise=noise, init_rows=20_000, epochs=0, device="cpu")
    z = flow.fit(x).transform(x)
    floor = (noise * np.median(x.std(axis=0))) ** 2
    pca = PCA().fit(x)
    shrunk = pca.transform(x) / np.sqrt(pca.explained_variance_ + floor)
    assert_allclose(cosines(z), cosines(shrunk), atol=0.03)
    # That is not what full whitening gives.
    assert np.abs(cosines(z) - cosines(Whitener().fit_transform(x))).max() > 0.3


@pytest.mark.parametrize("changes", [{}, {"epochs": 2, "batch_size": 50}])
def test_without_noise_and_rotation_a_fit_is_what_it_was(changes):
    x = embeddings(400, dtype=np.float32)
    fitted = FlowCalibrator(width=8, random_state=3, device="cpu", **changes).fit(x)
    flow = Glow(12, width=8, seed=3)
    rows = torch.randperm(400, generator=torch.Generator().manual_seed(3))
    flow.initialize(torch.from_numpy(x)[rows])
    train_flow(flow, torch.from_numpy(x), seed=3, **changes)
    for name, p in flow.state_dict().items():
        assert torch.equal(fitted.flow_.state_dict()[name], p), name


def test_the_presets_of_paper_and_released_code_have_neither():
    for preset in ("paper", "released-code"):
        calibrator = FlowCalibrator.from_preset(preset)
        assert (calibrator.rotation, calibrator.noise) == ("none", 0.0)


def test_noise_is_in_the_fit_only_and_follows_the_seed():
    x = embeddings(500, dtype=np.float32)
    first = FlowCalibrator(width=8, random_state=1, device="cpu", **BOTH).fit(x)
    again = FlowCalibrator(width=8, random_state=1, device="cpu", **BOTH).fit(x)
    other = FlowCalibrator(width=8, random_state=2, device="cpu", **BOTH).fit(x)
    assert_array_equal(first.transform(x), first.transform(x))
    assert_array_equal(first.transform(x), again.transform(x))
    assert not np.allclose(first.transform(x), other.transform(x))
    assert_allclose(first.inverse_transform(first.transform(x)), x, atol=1e-5)


def test_noise_has_the_size_that_was_asked_for_and_is_fresh_in_every_epoch():
    x = embeddings(4000)
    x[:, 0] *= 1000  # a few very wide dimensions do not make the noise larger
    data = torch.from_numpy(x)
    sample, noisy = add_noise(data, shuffled_batches(data.__getitem__, len(x), 100, 5), 0.5, seed=5)
    size = 0.5 * np.median(x.std(axis=0))
    added = (sample - data).numpy()
    assert_allclose(added.std(axis=0), size, rtol=0.05)
    assert_allclose(added.mean(axis=0), 0, atol=0.1 * size)
    without = list(shuffled_batches(data.__getitem__, len(x), 100, 5)(0))
    epochs = [list(noisy(0)), list(noisy(0))]
    assert len(epochs[0]) == 40
    first = torch.cat(epochs[0]) - torch.cat(without)
    assert_allclose(first.std(), size, rtol=0.02)
    assert not np.allclose(torch.cat(list(noisy(1))), torch.cat(epochs[1]))


def test_noise_reaches_what_is_read_block_by_block(tmp_path):
    x = embeddings(3000, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    how = {"width": 8, "device": "cpu", "epochs": 2}
    whole = FlowCalibrator(**how, **BOTH).fit(x)
    blocks = FlowCalibrator(**how, **BOTH).fit(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert_allclose(cosines(blocks.transform(x)), cosines(whole.transform(x)), atol=0.1)


@pytest.mark.parametrize("n", [2, 20, 100])
def test_fewer_sentences_than_dimensions_are_met_by_noise(n):
    x = embeddings(400, dim=150, dtype=np.float32)
    flow = FlowCalibrator.from_preset("recommended", device="cpu").fit(x[:n])
    z = flow.transform(x)
    assert np.isfinite(z).all() and np.abs(z).max() < 100
    assert_allclose(flow.inverse_transform(z), x, rtol=0, atol=1e-4)


def test_a_direction_without_spread_is_not_blown_up():
    x = embeddings(500)
    x[:, 5] = x[:, :5].sum(axis=1)  # a hyperplane, as after a layer normalization
    x = (x + 1e-9 * np.random.default_rng(1).normal(size=x.shape)).astype(np.float64)
    flow = FlowCalibrator(width=8, rotation="pca", device="cpu").fit(x)
    z = flow.transform(x)
    variances = np.linalg.eigvalsh(np.cov(z.T, bias=True))
    assert variances[0] < 1e-6 and (variances[1:] > 0.3).all() and variances[-1] < 3
    assert_allclose(flow.inverse_transform(z), x, rtol=0, atol=1e-9)


def test_fewer_sentences_than_dimensions_without_noise_are_refused():
    with pytest.raises(ValueError, match=r"no spread along (31|32) of 150 .*add noise"):
        FlowCalibrator(rotation="pca", device="cpu").fit(embeddings(119, dim=150))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rotation": "svd"}, "rotation is 'svd'; it must be 'none' or 'pca'"),
        ({"noise": -0.1}, "noise is -0.1"),
        ({"noise": float("nan")}, "noise is nan"),
        ({"noise": float("inf")}, "noise is inf"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        FlowCalibrator(device="cpu", **changes).fit(embeddings(50))


@parametrize_with_checks([FlowCalibrator(1, 1, 4, device="cpu", **BOTH)])
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_recommended_is_no_copy_of_the_paper():
    assert PRESETS["recommended"] != PRESETS["paper"]
