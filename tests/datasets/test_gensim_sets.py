"""The Lee documents out of gensim's test data."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from scipy.stats import pearsonr

from bertflow_lite.datasets.gensim_sets import (
    WORD_SETS,
    LeeDocuments,
    gensim_file,
    load_lee,
    load_word_pairs,
)

needs_gensim = pytest.mark.skipif(
    importlib.util.find_spec("gensim") is None, reason="gensim is not installed"
)


@pytest.fixture
def lee() -> LeeDocuments:
    return load_lee()


@needs_gensim
def test_the_set_has_its_official_size(lee: LeeDocuments) -> None:
    assert (len(lee), len(lee.background), len(lee.ratings)) == (50, 300, 1225)
    lengths = [len(document.split()) for document in lee.documents]
    assert min(lengths) >= 40 and max(lengths) <= 130
    assert any("£3,000" in document for document in lee.documents)  # the one odd character


@needs_gensim
def test_ratings_are_means_of_grades_from_one_to_five_divided_by_five(lee: LeeDocuments) -> None:
    assert lee.similarities.shape == (50, 50)
    assert np.array_equal(lee.similarities, lee.similarities.T)
    assert (lee.similarities.diagonal() == 1).all()
    assert lee.ratings.min() == 0.2 and lee.ratings.max() == 1
    # A mean of n grades has n as its denominator: 8 to 12 people rated each pair.
    grades = 5 * lee.ratings
    close = [np.isclose(grades * n, np.round(grades * n), atol=1e-4) for n in range(8, 13)]
    assert np.logical_or.reduce(close).all()


@needs_gensim
def test_pairs_and_ratings_belong_together(lee: LeeDocuments) -> None:
    first, second = lee.pairs
    assert (first < second).all()
    for i in (0, 48, 49, 1224):
        assert lee.ratings[i] == lee.similarities[first[i], second[i]]
    rows = [line.split() for line in gensim_file("similarities0-1.txt").open()]
    assert lee.ratings[0] == float(rows[0][1]) and lee.ratings[-1] == float(rows[48][49])


@needs_gensim
def test_shared_words_go_with_the_ratings(lee: LeeDocuments) -> None:
    """Would not hold if documents and ratings were shifted against each other.

    Lee et al. (2005) find correlations up to about 0.5 for measures over words.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(stop_words="english").fit([*lee.documents, *lee.background])
    vectors = words.transform(lee.documents).toarray()
    cosines = (vectors @ vectors.T)[lee.pairs]
    right = pearsonr(cosines, lee.ratings).statistic
    shifted = np.roll(np.arange(50), 1)
    wrong = pearsonr(cosines, lee.similarities[np.ix_(shifted, shifted)][lee.pairs]).statistic
    assert right > 0.4 > 0.2 > wrong


@needs_gensim
@pytest.mark.parametrize("name", WORD_SETS)
def test_word_pairs_have_their_official_number(name: str) -> None:
    pairs = load_word_pairs(name)
    assert len(pairs) == len(pairs.words1) == len(pairs.words2) == WORD_SETS[name][1]
    assert 0 <= pairs.ratings.min() < 1 < 9 < pairs.ratings.max() <= 10


def test_without_gensim_the_command_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps gensim"):
        load_lee()
