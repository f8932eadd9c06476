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

from bertflow_lite.calibrators.base import DeadDimensionWarning, find_live
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import Standardizer, TopDirectionRemover, Whitener

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
def test_dead_dimensions_are_centered_and_named(calibrator, dtype, value, dead):
    x = with_dead(dtype, dead, value)
    names = ", ".join(map(str, dead))
    with pytest.warns(DeadDimensionWarning, match=f"{len(dead)} of 12 .* unchanged: {names}\\."):
        fitted = clone(calibrator).fit(x)
    z = fitted.transform(x)
    assert np.isfinite(z).all()
    assert_allclose(z[:, dead], x[:, dead] - x[:, dead].mean(axis=0), rtol=1e-5, atol=1e-6)
    assert_array_equal(np.flatnonzero(~fitted.live_), dead)
    assert_allclose(fitted.inverse_transform(z), x, atol=1e-4)
    moved = x[:3].copy()
    moved[:, dead] += 2  # in other data, it may be alive
    assert_allclose(fitted.transform(moved)[:, dead], z[:3, dead] + 2, rtol=1e-5)
    assert_allclose(fitted.inverse_transform(fitted.transform(moved)), moved, atol=1e-4)


@each
def test_a_constant_offset_does_not_rule_the_cosines(calibrator):
    x = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    x[:, 3] = 50
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the dead dimension
        z = clone(calibrator).fit_transform(x)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    assert abs((unit @ unit.T).mean()) < 0.05


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
        (Whitener(2.0), "n_components is 2.0, of type float; it must be a whole number"),
        (Whitener("8"), "n_components is '8', of type str; it must be a whole number"),
        (Whitener(True), "n_components is True"),
        (TopDirectionRemover(2.0), "k is 2.0, of type float; it must be a whole number: give an"),
        (TopDirectionRemover(None), "k is None, of type NoneType"),
        (TopDirectionRemover(True), "k is True, of type bool"),
    ],
)
def test_bad_settings_are_named(calibrator, message):
    with pytest.raises(ValueError, match=message):
        calibrator.fit(embeddings())
    with pytest.raises(ValueError, match=message):
        clone(calibrator).partial_fit(embeddings())
    begun = type(calibrator)(1).partial_fit(embeddings())
    before = begun.transform(embeddings())
    with pytest.raises(ValueError, match=message):
        begun.set_params(**calibrator.get_params()).partial_fit(embeddings())
    assert_array_equal(begun.transform(embeddings()), before)


@pytest.mark.parametrize("count", [np.int64(2), np.int32(2), np.uint8(2)])
def test_numpys_whole_numbers_are_whole_numbers(count):
    x = embeddings()
    for kind in (Whitener, TopDirectionRemover):
        assert_array_equal(kind(count).fit_transform(x), kind(2).fit_transform(x))


ROWS = np.random.default_rng(3).normal(size=(30, 20))


@pytest.mark.parametrize(
    ("rows", "width", "message"),
    [
        (
            ROWS[:10],
            None,
            "^There are 10 different rows, .* they span, 9: .*n_components far below 9",
        ),
        (ROWS[:21], None, "^There are 21 different .*more sentences than the 20"),
        (ROWS[:5], 4, "^There are 5 different rows"),
        (np.repeat(ROWS[:10], 50, axis=0), None, "^There are 10 different rows"),
        (ROWS[:10].astype(np.float32), None, "^There are 10 different rows"),
        (ROWS[:10], 16, "^n_components is 16, but only 9 of 20 .* gives 9 columns. There are 10"),
        (ROWS[:, :3] @ ROWS[:3], 6, "^n_components is 6, but only 3 of 20 .* gives 3 columns.$"),
    ],
)
def test_whitening_says_when_all_cosines_are_rounding(rows, width, message):
    for learn in ("fit", "partial_fit"):
        with pytest.warns(DeadDimensionWarning, match=message) as caught:
            z = getattr(Whitener(width), learn)(rows).transform(rows[:50])
        assert len(caught) == 1 and caught[0].filename == __file__
    if "There are" in message:
        unit = np.unique(z.round(6), axis=0)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        if len(unit) > 1:
            cosines = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
            assert np.ptp(cosines) < 1e-4


@pytest.mark.parametrize(
    ("rows", "width"),
    [(ROWS[:22], None), (ROWS[:10], 8), (ROWS[:3], 1), (np.repeat(ROWS[:22], 9, axis=0), None),
     (ROWS[:, :3] @ ROWS[:3], None)],
)  # fmt: skip
def test_whitening_of_enough_rows_is_silent(rows, width):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Whitener(width).fit(rows)
        Whitener(width).partial_fit(rows).partial_fit(rows)


@pytest.mark.parametrize("learn", ["fit", "partial_fit"])
def test_the_warning_of_dead_dimensions_names_the_callers_line(learn):
    x = with_dead(np.float64, [4], 5.0)
    with pytest.warns(DeadDimensionWarning, match="centered") as caught:
        getattr(Standardizer(), learn)(x)
    assert caught[0].filename == __file__
