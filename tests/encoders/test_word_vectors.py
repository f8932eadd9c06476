"""Averages of word vectors."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bertflow_lite.encoders.models import PACKAGED_MODELS
from bertflow_lite.encoders.transformer import load_encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder

VECTORS = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]], dtype=np.float32)


@pytest.fixture
def encoder() -> WordVectorEncoder:
    return WordVectorEncoder(VECTORS, ["cat", "dog", "."], "three")


def test_the_mean_counts_repeats_and_leaves_unknown_words_out(encoder):
    out = encoder.encode(["Cat", "cat dog", "cat cat dog", "the cat.", "the", ""])
    expected = [[1, 0], [0.5, 1], [2 / 3, 2 / 3], [2.5, 2], [0, 0], [0, 0]]
    assert_allclose(out, expected, rtol=1e-6)
    assert out.dtype == np.float32
    assert encoder.encode([]).shape == (0, 2)


def test_a_list_of_layers_gives_a_dict_labelled_like_encoders(encoder):
    out = encoder.encode(["cat"], layers=["last", 1, (1, 6)])
    assert list(out) == ["last", "1", "1,6"]
    assert_array_equal(out["1,6"], [[1, 0]])


@pytest.mark.parametrize("sentences", ["cat", None, ["cat", None], ["\udc00"]])
def test_bad_input_is_refused(encoder, sentences):
    with pytest.raises(ValueError, match="sentence"):
        encoder.encode(sentences)


def test_the_fingerprint_follows_words_and_vectors(encoder):
    words = ["cat", "dog", "."]
    assert WordVectorEncoder(VECTORS.copy(), words, "x").fingerprint == encoder.fingerprint
    assert WordVectorEncoder(VECTORS + 1, words, "x").fingerprint != encoder.fingerprint
    assert WordVectorEncoder(VECTORS, words[::-1], "x").fingerprint != encoder.fingerprint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": -3}, "max_length is -3"),
        ({"max_length": 64.0}, "whole number"),
        ({"device": "tpu9"}, "'tpu9'"),
        ({"precision": "int8"}, "'int8'"),
    ],
)
def test_settings_that_glove_has_no_use_for_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        load_encoder("glove", **settings)


@pytest.mark.skipif(PACKAGED_MODELS["glove"].path() is None, reason="glove is not installed")
def test_settings_that_change_nothing_are_named(caplog):
    load_encoder("glove", max_length=64, device="cpu", precision="float32")
    assert not caplog.records
    load_encoder("glove", max_length=24, precision="float16")
    assert "max_length=24 changes nothing" in caplog.text and "'float16'" in caplog.text


@pytest.mark.skipif(PACKAGED_MODELS["glove"].path() is None, reason="glove is not installed")
def test_glove_knows_that_cats_are_like_dogs():
    glove = load_encoder("glove")
    assert glove.dim == 50 and len(glove.row_of) == 400_000
    cat, dog, tax = glove.encode(["cat", "dog", "tax"])
    assert_array_equal(cat, glove.vectors[glove.row_of["cat"]])
    assert cat @ dog / np.linalg.norm(cat) / np.linalg.norm(dog) > 0.9
    assert cat @ tax / np.linalg.norm(cat) / np.linalg.norm(tax) < 0.3
