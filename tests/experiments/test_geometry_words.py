"""Word ratings and whitening with weights."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from bertflow_lite.calibrators.linear import Whitener
from bertflow_lite.datasets.gensim_sets import WordPairs, load_word_pairs
from bertflow_lite.experiments.geometry import (
    WeightedWhitening,
    remove_frequency,
    score_word_pairs,
)


@pytest.fixture
def words():
    rng = np.random.default_rng(0)
    return rng.normal(size=(400, 6)) @ rng.normal(size=(6, 6)) + 3


def test_uniform_weights_are_plain_whitening(words):
    plain = Whitener().fit_transform(words)
    weighted = WeightedWhitening(words).transform(words)
    # Equal up to the order and sign of directions: all dot products agree.
    assert weighted @ weighted.T == pytest.approx(plain @ plain.T)


def test_whole_weights_are_repeats(words):
    repeats = np.random.default_rng(1).integers(0, 5, size=len(words))
    repeated = np.repeat(words, repeats, axis=0)
    plain = Whitener().fit(repeated).transform(words)
    weighted = WeightedWhitening(words, repeats).transform(words)
    assert weighted @ weighted.T == pytest.approx(plain @ plain.T)


def test_weighted_moments_after_zipfian_whitening(words):
    p = 1 / np.arange(1, len(words) + 1)
    p /= p.sum()
    z = WeightedWhitening(words, 1000 * p).transform(words)
    assert p @ z == pytest.approx(np.zeros(6), abs=1e-10)
    assert (z.T * p) @ z == pytest.approx(np.eye(6), abs=1e-8)


def test_directions_without_variance_are_dropped(words):
    flat = np.hstack([words, words[:, :1]])
    assert WeightedWhitening(flat).transform(flat).shape == (400, 6)


@pytest.mark.parametrize(
    ("weights", "message"),
    [(np.ones(3), "3 weights"), (-np.ones(400), "at least 0"), (np.zeros(400), "above 0")],
)
def test_bad_weights_are_refused(words, weights, message):
    with pytest.raises(ValueError, match=message):
        WeightedWhitening(words, weights)
    with pytest.raises(ValueError, match="vectors are equal"):
        WeightedWhitening(np.ones((4, 2)))


def test_removing_frequency_leaves_no_covariance_with_it(words):
    f = words @ np.arange(6.0) + np.random.default_rng(2).normal(size=len(words))
    left = remove_frequency(words, f, words)
    assert left.mean(axis=0) == pytest.approx(np.zeros(6), abs=1e-10)
    assert (f - f.mean()) @ left == pytest.approx(np.zeros(6), abs=1e-8)
    assert np.linalg.matrix_rank(left) == 5
    with pytest.raises(ValueError, match="no direction"):
        remove_frequency(words, np.ones(len(words)), words)


def test_score_is_spearman_of_cosines(words):
    a, b = words[:200], words[200:]
    ratings = np.random.default_rng(3).uniform(0, 10, 200)
    cosines = [x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in zip(a, b, strict=True)]
    pairs = WordPairs("test", ("x",) * 200, ("y",) * 200, ratings)
    expected = 100 * spearmanr(cosines, ratings).statistic
    assert score_word_pairs(pairs, a, b) == pytest.approx(expected)


def test_without_gensim_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps gensim"):
        load_word_pairs("simlex999")


@pytest.mark.parametrize(
    ("name", "n", "first"), [("wordsim353", 353, 6.77), ("simlex999", 999, 1.58)]
)
def test_gensims_files(name, n, first):
    try:
        pairs = load_word_pairs(name)
    except FileNotFoundError:
        pytest.skip("gensim is not installed")
    assert len(pairs) == len(pairs.words1) == len(pairs.words2) == n
    assert pairs.ratings[0] == first
    assert pairs.ratings.min() >= 0 and pairs.ratings.max() <= 10
