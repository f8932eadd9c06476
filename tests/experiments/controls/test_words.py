"""Encoders that only count words: against scikit-learn, word averages, and formulas by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

import bertflow_lite as bf
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.experiments.controls.words import (
    WeightedWordVectors,
    WordCountEncoder,
    idf_weights,
    sif_weights,
)
from bertflow_lite.text import split_words

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "tree", "red", "blue", "not"]


@pytest.fixture(scope="module")
def pairs() -> bf.SentencePairs:
    return bf.load_sts("mini-sts")


@pytest.fixture(scope="module")
def vectors() -> WordVectorEncoder:
    rng = np.random.default_rng(0)
    return WordVectorEncoder(rng.normal(size=(len(WORDS), 7)).astype(np.float32), WORDS, "small")


def test_tfidf_similarities_are_those_of_scikit_learn(pairs: bf.SentencePairs) -> None:
    ours = WordCountEncoder("tfidf").fit(pairs.sentences)
    theirs = TfidfVectorizer(tokenizer=split_words, token_pattern=None, lowercase=False)
    rows = theirs.fit_transform(pairs.sentences)
    expected = cosine_similarity(rows[: len(pairs)], rows[len(pairs) :]).diagonal()
    found = ours.similarities(pairs.sentences1, pairs.sentences2)
    assert np.allclose(found, expected, atol=1e-12)
    assert ours.n_words == rows.shape[1]


def test_a_projected_count_is_the_mean_of_its_words_vectors() -> None:
    texts = ["the cat sat", "the dog ran on the mat", "a red tree is not blue"]
    encoder = WordCountEncoder("count", "random", dim=6, random_state=3).fit(texts)
    words = encoder.encode(sorted({w for text in texts for w in text.split()}))
    row_of = {w: i for i, w in enumerate(sorted({w for t in texts for w in t.split()}))}
    for text in texts:
        mean = np.mean([words[row_of[word]] for word in text.split()], axis=0)
        assert np.allclose(encoder.encode([text])[0], mean, atol=1e-6)


def test_a_wide_random_projection_keeps_cosines(pairs: bf.SentencePairs) -> None:
    encoder = WordCountEncoder("count", "random", dim=2000).fit(pairs.sentences)
    sparse = encoder.similarities(pairs.sentences1, pairs.sentences2)
    dense = bf.pair_cosines(pairs, encoder.encode(pairs.sentences))
    # The error's standard deviation is at most 1 / sqrt(2000) = 0.022 (Johnson-Lindenstrauss).
    assert np.abs(sparse - dense).std() < 0.025
    assert abs((sparse - dense).mean()) < 0.005


def test_svd_keeps_more_of_the_variance_than_a_random_projection(pairs: bf.SentencePairs) -> None:
    """LSA's rows, mapped back, are nearer to the counts than those of any other 50 directions."""
    errors = {}
    for kind in ("svd", "random"):
        encoder = WordCountEncoder("tfidf", kind, dim=50).fit(pairs.sentences)
        counts = encoder.counts(pairs.sentences).toarray()
        z = encoder.encode(pairs.sentences)
        best = np.linalg.lstsq(z, counts, rcond=None)[0]
        errors[kind] = np.square(counts - z @ best).sum()
    assert errors["svd"] < 0.9 * errors["random"]


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(6)))
def test_word_order_does_not_count(order: list[int]) -> None:
    texts = ["the cat sat on red mat", "a dog ran", "one tree is not it"]
    words = texts[0].split()
    shuffled = " ".join(words[i] for i in order)
    for kind in ("count", "tfidf"):
        encoder = WordCountEncoder(kind, dim=4).fit(texts)
        assert np.allclose(encoder.encode([shuffled]), encoder.encode(texts[:1]), atol=1e-6)
        assert encoder.similarities([shuffled], texts[:1]) == pytest.approx([1.0])


def test_sentences_without_known_words_are_zero_and_like_nothing() -> None:
    encoder = WordCountEncoder(dim=2).fit(["the cat sat", "the dog ran"])
    assert not encoder.encode(["xyzzy", ""]).any()
    assert encoder.similarities(["xyzzy"], ["the cat"]).tolist() == [0.0]


def test_interface_is_that_of_word_vectors(pairs: bf.SentencePairs) -> None:
    encoder = WordCountEncoder(dim=32).fit(pairs.sentences)
    both = encoder.encode(pairs.sentences[:3], layers=["mean", "last"])
    assert list(both) == ["mean", "last"] and both["mean"].dtype == np.float32
    assert both["mean"].shape == (3, encoder.dim) and encoder.name == "count-random"
    assert "count-random" in repr(encoder)
    other = [
        WordCountEncoder(dim=32, random_state=1).fit(pairs.sentences),
        WordCountEncoder("tfidf", dim=32).fit(pairs.sentences),
        WordCountEncoder(dim=32).fit(pairs.sentences[1:]),
    ]
    same = WordCountEncoder(dim=32).fit(pairs.sentences)
    assert same.fingerprint == encoder.fingerprint
    assert len({one.fingerprint for one in [encoder, *other]}) == 4


def test_weights_of_one_give_the_plain_average(vectors: WordVectorEncoder) -> None:
    texts = ["the cat sat on the mat", "xyzzy", "a dog xyzzy ran"]
    plain = WeightedWordVectors(vectors, {}, 1.0, "plain")
    assert np.allclose(plain.encode(texts), vectors.encode(texts), atol=1e-6)
    assert plain.fingerprint != WeightedWordVectors(vectors, {"cat": 2.0}, 1.0, "x").fingerprint


def test_weighted_average_by_hand(vectors: WordVectorEncoder) -> None:
    weighted = WeightedWordVectors(vectors, {"cat": 3.0, "sat": 0.5}, 2.0, "by hand")
    cat, sat, dog = (vectors.vectors[WORDS.index(word)] for word in ("cat", "sat", "dog"))
    expected = (3.0 * cat + 0.5 * sat + 2.0 * dog) / 3
    assert np.allclose(weighted.encode(["cat sat dog xyzzy"])[0], expected, atol=1e-6)
    assert list(weighted.encode(["cat"], layers=["mean"])) == ["mean"]
    assert "by hand" in repr(weighted)


def test_sif_weights_are_a_over_a_plus_p() -> None:
    weights = sif_weights(["the cat", "the dog"], a=0.01)
    assert weights["the"] == pytest.approx(0.01 / (0.01 + 0.5))
    assert weights["cat"] == pytest.approx(0.01 / (0.01 + 0.25))
    with pytest.raises(ValueError, match="positive"):
        sif_weights(["the cat"], a=0)


def test_idf_weights_are_those_of_scikit_learn(pairs: bf.SentencePairs) -> None:
    theirs = TfidfVectorizer(tokenizer=split_words, token_pattern=None, lowercase=False)
    theirs.fit(pairs.sentences)
    ours = idf_weights(pairs.sentences)
    expected = dict(zip(theirs.get_feature_names_out(), theirs.idf_, strict=True))
    assert ours.keys() == expected.keys()
    assert all(ours[word] == pytest.approx(expected[word]) for word in ours)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="weighting is 'idf'"):
        WordCountEncoder("idf")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="projection is 'pca'"):
        WordCountEncoder("count", "pca")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="call fit first"):
        WordCountEncoder().encode(["the cat"])
    with pytest.raises(ValueError, match="3 different words"):
        WordCountEncoder(dim=3).fit(["the cat", "the dog"])
    with pytest.raises(ValueError, match="one string"):
        WordCountEncoder().fit("the cat")
    fitted = WordCountEncoder(dim=2).fit(["the cat sat", "the dog ran"])
    with pytest.raises(ValueError, match="cannot be paired"):
        fitted.similarities(["a"], ["a", "b"])
