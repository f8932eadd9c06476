"""At home in scikit-learn: containers, names, pipelines, searches by labelled pairs."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from bertflow_lite import FlowCalibrator, Standardizer, TopDirectionRemover, Whitener
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.measures.scores import pair_scorer, score_sts

FLOW = FlowCalibrator(1, 1, 4, device="cpu")
ALL = [Standardizer(), TopDirectionRemover(), Whitener(), Whitener(3), FLOW]
each = pytest.mark.parametrize("calibrator", ALL, ids=str)


def embeddings(n: int = 120, dim: int = 6, dtype: type = np.float32) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim)) + 3).astype(dtype)


def toy_pairs(n: int = 40) -> tuple[SentencePairs, np.ndarray]:
    """Pairs whose gold score is a whitened similarity: calibration must find it."""
    rng = np.random.default_rng(0)
    clean = rng.normal(size=(2 * n, 6))
    clean[n:] += clean[:n] * rng.uniform(0, 3, (n, 1))
    gold = np.array([a @ b / np.linalg.norm(a) / np.linalg.norm(b)
                     for a, b in zip(clean[:n], clean[n:], strict=True)])  # fmt: skip
    pairs = SentencePairs(
        "toy", "dev", tuple(f"a{i}" for i in range(n)), tuple(f"b{i}" for i in range(n)),
        2.5 + 2.5 * gold, np.array(["toy"] * n),
    )  # fmt: skip
    return pairs, (clean * [50, 1, 1, 1, 1, 1] + [100, 0, 0, 0, 0, 0]).astype(np.float32)


@each
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_output_as_a_frame_with_names(calibrator, library):
    pytest.importorskip(library)
    x = embeddings()
    fitted = clone(calibrator).set_output(transform=library)
    frame = fitted.fit_transform(x)
    assert type(frame).__module__.split(".")[0] == library
    assert list(frame.columns) == list(fitted.get_feature_names_out())
    assert_allclose(frame.to_numpy(), clone(calibrator).fit(x).transform(x), rtol=1e-6)


@each
def test_names_of_a_frame_are_kept_and_checked(calibrator):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(embeddings(), columns=list("abcdef"))
    fitted = clone(calibrator).fit(frame)
    names = list(fitted.get_feature_names_out())
    whitens = isinstance(calibrator, Whitener)
    width = calibrator.n_components or 6 if whitens else 6
    assert names == ([f"whitener{i}" for i in range(width)] if whitens else list("abcdef"))
    assert fitted.transform(frame).shape == (120, len(names))
    with pytest.raises(ValueError, match="feature names"):
        fitted.transform(frame[list("fedcba")])


@each
def test_fit_on_a_sample_and_transform_anything(calibrator):
    x = embeddings()
    fitted = clone(calibrator).fit(x[:50])
    assert_allclose(fitted.transform(x)[:50], fitted.transform(x[:50]), atol=1e-5)
    assert fitted.transform(x[:1]).shape[0] == 1
    for form in (x.astype(np.float64), np.asfortranarray(x), x[::-1][::-1], x.tolist()):
        assert_allclose(fitted.transform(form), fitted.transform(x), atol=1e-5)


@each
def test_clones_are_unfitted_and_equal_in_settings(calibrator):
    fitted = clone(calibrator).fit(embeddings())
    again = clone(fitted)
    assert str(again.get_params()) == str(fitted.get_params())
    assert not hasattr(again, "n_features_in_") and not hasattr(again, "mean_")
    assert not getattr(again, "_moments", None)


@each
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pipelines_keep_the_float_type(calibrator, dtype):
    pipe = make_pipeline(FunctionTransformer(), Standardizer(), clone(calibrator))
    assert pipe.fit_transform(embeddings(dtype=dtype)).dtype == dtype


def test_a_search_scores_fits_without_labels_on_labelled_pairs():
    pairs, x = toy_pairs()
    rows = np.arange(len(x))
    search = GridSearchCV(
        Pipeline([("calibrator", Standardizer())]),
        {"calibrator": [TopDirectionRemover(0), Standardizer(), Whitener()]},
        scoring=pair_scorer(pairs, x),
        cv=[(rows, rows)],
    ).fit(x)
    expected = [
        score_sts(pairs, clone(c).fit(x).transform(x)).all
        for c in (TopDirectionRemover(0), Standardizer(), Whitener())
    ]
    assert_allclose(search.cv_results_["mean_test_score"], expected)
    assert type(search.best_params_["calibrator"]) is not TopDirectionRemover
    assert search.best_score_ > expected[0] + 5


def test_the_scorer_takes_any_aggregation_and_can_be_pickled():
    pairs, x = toy_pairs()
    fitted = Standardizer().fit(x)
    scores = score_sts(pairs, fitted.transform(x))
    for name in ("all", "mean", "wmean"):
        scorer = pickle.loads(pickle.dumps(pair_scorer(pairs, x, name)))
        assert scorer(fitted, None) == pytest.approx(getattr(scores, name))
    framed = clone(fitted).set_output(transform="pandas").fit(x)
    assert pair_scorer(pairs, x)(framed) == pytest.approx(scores.all)
    with pytest.raises(ValueError, match=r"79 embeddings, but 40 pairs have 80 sentences"):
        pair_scorer(pairs, x[:-1])
    with pytest.raises(ValueError, match=r"aggregation is 'median'"):
        pair_scorer(pairs, x, "median")
