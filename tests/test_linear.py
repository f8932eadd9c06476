"""Linear calibrators against scikit-learn, and the input that breaks naive ones."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from bertflow_lite.calibrate import FlowCalibrator
from bertflow_lite.linear import (
    DeadDimensionWarning,
    Standardizer,
    TopDirectionRemover,
    Whitener,
    find_live,
)

ALL = [Standardizer(), TopDirectionRemover(), Whitener(), FlowCalibrator(1, 1, 4, device="cpu")]
CAREFUL = [ALL[0], ALL[3]]  # those that divide by the deviation of each dimension
each = pytest.mark.parametrize("calibrator", ALL, ids=lambda c: type(c).__name__)
each_careful = pytest.mark.parametrize("calibrator", CAREFUL, ids=lambda c: type(c).__name__)


def embeddings(n: int = 200, dim: int = 6, dtype: type = np.float64) -> np.ndarray:
    """Correlated rows with mean far from 0, as embeddings are."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim)) + 3).astype(dtype)


@parametrize_with_checks(ALL)
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_standardizer_is_standard_scaler():
    x = embeddings()
    ours, theirs = Standardizer().fit(x), StandardScaler().fit(x)
    assert_allclose(ours.transform(x), theirs.transform(x), atol=1e-12)
    assert_allclose(ours.inverse_transform(ours.transform(x)), x, atol=1e-12)


@pytest.mark.parametrize("width", [None, 1, 4])
def test_whitener_is_whitening_pca_up_to_signs_and_the_biased_variance(width):
    x = embeddings()
    ours = Whitener(width).fit_transform(x)
    theirs = PCA(width, whiten=True).fit_transform(x) * np.sqrt(len(x) / (len(x) - 1))
    assert_allclose(ours * np.sign((ours * theirs).sum(axis=0)), theirs, atol=1e-9)
    assert_allclose(np.cov(ours.T, bias=True), np.eye(width or 6).squeeze(), atol=1e-9)


def test_whitener_drops_what_has_no_variance_and_inverts_in_the_span():
    x = embeddings(dim=3) @ np.random.default_rng(1).normal(size=(3, 8)) + 2
    whitener = Whitener(6).fit(x)
    z = whitener.transform(x)
    assert z.shape == (200, 3)
    assert_allclose(np.cov(z.T, bias=True), np.eye(3), atol=1e-9)
    assert_allclose(whitener.inverse_transform(z), x, atol=1e-8)


def test_whitener_of_fewer_rows_than_dimensions():
    x = embeddings(n=5, dim=20)
    z = Whitener().fit_transform(x)
    assert z.shape == (5, 4)
    assert_allclose(np.cov(z.T, bias=True), np.eye(4), atol=1e-9)


def test_whiteners_inverse_takes_whole_numbers_and_tensors_and_refuses_other_widths():
    whitener = Whitener(2).fit(embeddings())
    expected = whitener.inverse_transform(np.array([[1.0, 2.0]]))
    assert_allclose(whitener.inverse_transform([[1, 2]]), expected, rtol=1e-5)
    assert_allclose(whitener.inverse_transform(torch.tensor([[1.0, 2.0]])), expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"shape \(1, 3\); this Whitener gives \(n, 2\)"):
        whitener.inverse_transform([[1.0, 2.0, 3.0]])


@pytest.mark.parametrize("k", [0, 1, 3])
def test_top_direction_remover_takes_the_first_principal_components_out(k):
    x = embeddings()
    z = TopDirectionRemover(k).fit_transform(x)
    top = PCA(6).fit(x).components_[:k]
    centered = x - x.mean(axis=0)
    assert_allclose(z, centered - centered @ top.T @ top, atol=1e-9)
    assert np.linalg.matrix_rank(z, tol=1e-6) == 6 - k


def with_dead(dtype: type, dead: list[int], value: object) -> np.ndarray:
    x = embeddings(dim=12, dtype=dtype)
    for number, column in enumerate(dead):
        noise = np.random.default_rng(number).normal(size=len(x))
        x[:, column] = 1e-32 * noise if value == "tiny" else value
    return x


@each_careful
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", ["tiny", 0.0, 5.0, 0.1])
@pytest.mark.parametrize("dead", [[4], [1, 7, 11], list(range(9))], ids=len)
def test_dead_dimensions_pass_through_and_are_named(calibrator, dtype, value, dead):
    x = with_dead(dtype, dead, value)
    names = ", ".join(map(str, dead))
    with pytest.warns(DeadDimensionWarning, match=f"{len(dead)} of 12 .* unchanged: {names}\\."):
        fitted = clone(calibrator).fit(x)
    z = fitted.transform(x)
    assert np.isfinite(z).all()
    assert_array_equal(z[:, dead], x[:, dead])
    assert_array_equal(np.flatnonzero(~fitted.live_), dead)
    live = fitted.live_
    assert_allclose(fitted.inverse_transform(z)[:, live], x[:, live], atol=1e-4)


@each_careful
def test_the_rounding_of_a_large_mean_is_no_spread(calibrator):
    x = embeddings(dim=4, dtype=np.float32)
    x[:, 2] = 1000 + 1e-4 * np.random.default_rng(0).normal(size=len(x))
    with pytest.warns(DeadDimensionWarning, match="unchanged: 2"):
        assert np.isfinite(clone(calibrator).fit(x).transform(x)).all()


def test_spreads_of_several_orders_of_magnitude_are_all_live():
    x = embeddings(dim=5) * [1e-4, 1e-2, 1.0, 1e2, 1e4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_live(x - x.mean(axis=0)).all()


@each
@pytest.mark.parametrize("row", [[0.1] * 4, [0.0] * 4, [5.0, -3.3, 1e9, 1e-9]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_rows_have_nothing_to_calibrate(calibrator, row, dtype):
    with pytest.raises(ValueError, match="all 7 rows are equal"):
        clone(calibrator).fit(np.tile(np.array(row, dtype=dtype), (7, 1)))


@each
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_input_is_refused(calibrator, bad):
    x = embeddings()
    fitted = clone(calibrator).fit(x)
    x[3, 2] = bad
    for method in (fitted.transform, fitted.fit):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            method(x)


@each
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_float_type_is_kept_and_the_input_untouched(calibrator, dtype):
    x = embeddings(dtype=dtype)
    before = x.copy()
    fitted = clone(calibrator).fit(x)
    assert fitted.transform(x).dtype == dtype
    for other in (np.float32, np.float64):
        assert fitted.transform(x.astype(other)).dtype == other
    assert_array_equal(x, before)


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_are_taken_with_and_without_gradients(calibrator, dtype):
    tensor = torch.tensor(embeddings(), dtype=dtype, requires_grad=True)
    array = tensor.detach().double().numpy()
    array = array if dtype == torch.float64 else array.astype(np.float32)
    assert_array_equal(
        clone(calibrator).fit_transform(tensor), clone(calibrator).fit_transform(array)
    )


@each
def test_pipelines_and_pandas_output(calibrator):
    x = embeddings()
    z = make_pipeline(TopDirectionRemover(0), clone(calibrator)).fit_transform(x)
    assert z.shape == x.shape
    frame = clone(calibrator).set_output(transform="pandas").fit_transform(x)
    assert list(frame.columns) == list(clone(calibrator).fit(x).get_feature_names_out())


@each
def test_an_unfitted_calibrator_and_another_width_are_refused(calibrator):
    x = embeddings()
    with pytest.raises(NotFittedError):
        clone(calibrator).transform(x)
    with pytest.raises(ValueError, match="X has 5 features, but"):
        clone(calibrator).fit(x).transform(x[:, :5])


@pytest.mark.parametrize(
    ("calibrator", "message"),
    [
        (TopDirectionRemover(6), "k is 6; it must be from 0 to dim - 1 = 5"),
        (TopDirectionRemover(-1), "k is -1"),
        (Whitener(7), "n_components is 7; it must be from 1 to dim = 6"),
        (Whitener(0), "n_components is 0"),
    ],
)
def test_bad_settings_are_named(calibrator, message):
    with pytest.raises(ValueError, match=message):
        calibrator.fit(embeddings())
