"""The Lee documents out of gensim's test data."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr

from bertflow_lite.datasets.gensim_sets import LeeDocuments, gensim_file, load_lee

FILES = ("lee.cor", "lee_background.cor", "similarities0-1.txt")

needs_gensim = pytest.mark.skipif(
    importlib.util.find_spec("gensim") is None, reason="gensim is not installed"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a copy of the three files, to be spoilt."""
    for name in FILES:
        shutil.copy(gensim_file(name), tmp_path / name)
    return tmp_path


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
    rows = [line.split() for line in gensim_file(FILES[2]).open()]
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
def test_the_fingerprint_is_the_same_from_a_folder(lee: LeeDocuments, folder: Path) -> None:
    copy = load_lee(folder)
    assert (lee.source, copy.source) == ("the package gensim", "folder")
    assert copy.fingerprint == lee.fingerprint


@needs_gensim
@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("lee.cor", lambda text: text[:5000], r"lee\.cor has \d+ documents instead of 50"),
        ("lee_background.cor", lambda text: text + b"\nmore", "301 documents instead of 300"),
        ("similarities0-1.txt", lambda text: text[:4000], r"0-1\.txt, line \d+: 50 numbers"),
        ("similarities0-1.txt", lambda text: text.replace(b"0.3", b"x", 1), r"line 1: 50 numbers"),
        ("similarities0-1.txt", lambda text: text.replace(b"0.3", b"3", 1), r"line 1: 50 numbers"),
        ("similarities0-1.txt", lambda text: text[: text.rindex(b"\n", 0, -5) + 1], "49 rows"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, file: str, change, message: str) -> None:  # type: ignore[no-untyped-def]
    (folder / file).write_bytes(change((folder / file).read_bytes()))
    with pytest.raises(ValueError, match=message):
        load_lee(folder)


@needs_gensim
def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "lee.cor").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no lee\.cor.*pip install --no-deps gensim"):
        load_lee(folder)


def test_without_gensim_the_command_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps gensim"):
        load_lee()
