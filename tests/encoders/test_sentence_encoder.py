"""The encoder as a scikit-learn step: cheap to copy, and the same vectors as the encoder itself."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from bertflow_lite import FlowCalibrator, SentenceEncoder, load_encoder
from bertflow_lite.encoders import sentence_encoder

TEXTS = ["the cat sat", "a dog ran", "the cat ran", "a dog sat on it"] * 6
TEXTS = [f"{text} {number}" for text in TEXTS for number in ("one", "two")]
PETS = ["cat" if "cat" in text else "dog" for text in TEXTS]


@pytest.fixture
def step(tiny_bert_folder, own_cache):
    return SentenceEncoder(tiny_bert_folder, layers=1, max_length=24, device="cpu")


@pytest.mark.parametrize("kind", ["list", "tuple", "array", "pandas", "polars"])
def test_vectors_are_the_encoders(step, tiny_bert_folder, kind):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    make = {"list": list, "tuple": tuple, "array": np.array, "pandas": pd.Series}
    found = step.fit_transform((make | {"polars": pl.Series})[kind](TEXTS))
    encoder = load_encoder(tiny_bert_folder, max_length=24, device="cpu")
    assert_array_equal(found, encoder.encode(TEXTS, 1))
    assert found.dtype == np.float32


def test_in_a_pipeline_a_search_and_a_cross_validation(step):
    flow = FlowCalibrator(1, 1, 4, device="cpu")
    pipeline = make_pipeline(step, flow, LogisticRegression())
    search = GridSearchCV(
        clone(pipeline), {"sentenceencoder__layers": [1, "last"]}, cv=2, error_score="raise"
    )
    search.fit(TEXTS, PETS)
    assert search.best_score_ > 0.7
    scores = cross_val_score(pipeline, np.array(TEXTS), PETS, cv=3, error_score="raise")
    assert scores.shape == (3,)


def test_copies_carry_names_and_the_model_is_loaded_once(step, monkeypatch):
    sentence_encoder._load.cache_clear()
    loaded = []
    load = sentence_encoder.load_model
    monkeypatch.setattr(
        sentence_encoder, "load_model", lambda *a, **k: loaded.append(a) or load(*a, **k)
    )
    copy = clone(step.fit(TEXTS)).set_params(layers="last")
    copy.transform(TEXTS)
    again = pickle.loads(pickle.dumps(step))
    assert_array_equal(again.transform(TEXTS), step.transform(TEXTS))
    assert len(loaded) == 1 and len(pickle.dumps(step)) < 2000
    assert step.get_params()["layers"] == 1 and copy.get_params()["layers"] == "last"


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_table_with_names_comes_out(step, library):
    pytest.importorskip(library)
    frame = step.set_output(transform=library).fit_transform(TEXTS)
    names = [f"sentenceencoder{i}" for i in range(16)]
    assert list(frame.columns) == names == list(step.get_feature_names_out())
    assert type(frame).__module__.split(".")[0] == library


@pytest.mark.parametrize(
    ("settings", "x", "words"),
    [
        ({}, "one", "one string"),
        ({}, [["a"]], "sentence 0 is of type list"),
        ({"layers": [1, 2]}, ["a"], "one layer choice"),
        ({"layers": 9}, ["a"], "hidden state 9"),
        ({"layers": "lst"}, ["a"], "Did you mean 'last'"),
        ({"max_length": 25}, ["a"], "takes 3 to 24"),
        ({"max_length": 24.0}, ["a"], "whole number"),
        ({"precision": "int8"}, ["a"], "int8"),
        ({"device": "tpu9"}, ["a"], "tpu9"),
    ],
)
def test_mistakes_are_named_by_fit(step, settings, x, words):
    with pytest.raises(ValueError, match=words):
        step.set_params(**settings).fit(x)
