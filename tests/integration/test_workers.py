"""In worker processes the vectors are those of this one, or there is an error, never other ones."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest
from joblib.externals.loky import get_reusable_executor
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.pipeline import make_pipeline

import bertflow_lite as bf
from bertflow_lite.encoders.models import load_model
from bertflow_lite.encoders.transformer import Encoder

SENTENCES = ["the cat sat", "a dog ran on the mat .", "red", "it is not blue"]
CHOICES: list[Any] = ["last2avg", "first-last", 1, "cls"]


@pytest.fixture(scope="module", autouse=True)
def _no_idle_processes() -> Iterator[None]:
    """joblib keeps its processes for minutes, with all that they have imported."""
    yield
    get_reusable_executor().shutdown(wait=True)


@pytest.fixture
def encoder(tiny_bert_folder: Path, own_cache: Path) -> Encoder:
    """Give an encoder that keeps nothing, so that a worker must compute."""
    return Encoder(load_model(tiny_bert_folder, device="cpu"), max_length=24, cache=False)


@pytest.fixture
def step(tiny_bert_folder: Path, own_cache: Path) -> bf.SentenceEncoder:
    return bf.SentenceEncoder(str(tiny_bert_folder), max_length=24, device="cpu", cache=False)


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for label, vectors in expected.items():
        assert_allclose(found[label], vectors, rtol=0, atol=1e-6)


def test_an_encoder_is_pickled_before_and_after_it_has_encoded(encoder):
    first = pickle.loads(pickle.dumps(encoder))
    expected = encoder.encode(SENTENCES, CHOICES)
    for other in (first, pickle.loads(pickle.dumps(encoder)), copy.deepcopy(encoder)):
        same(other.encode(SENTENCES, CHOICES), expected)
        assert repr(other) == repr(encoder) and other.fingerprint == encoder.fingerprint
    same(encoder.encode(SENTENCES, CHOICES), expected)  # it is left as it was


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_modules_that_stand_in_two_places_stay_one(kind, request, own_cache):
    folder = request.getfixturevalue(f"tiny_{kind}_folder")
    encoder = Encoder(load_model(folder, device="cpu"), max_length=24, cache=False)
    encoder.model.again = encoder.model.get_input_embeddings()
    other = pickle.loads(pickle.dumps(encoder))
    assert other.model.again is other.model.get_input_embeddings()
    assert_array_equal(other.encode(SENTENCES), encoder.encode(SENTENCES))


def test_a_spawned_process_gives_the_same_vectors(encoder, step):
    pipeline = make_pipeline(step, bf.Whitener(3)).fit(SENTENCES * 3)
    expected = encoder.encode(SENTENCES, CHOICES)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        same(pool.apply(encoder.encode, (SENTENCES, CHOICES)), expected)
        assert_allclose(pool.apply(step.transform, (SENTENCES,)), expected["last2avg"], atol=1e-6)
        found = pool.apply(pipeline.transform, (SENTENCES,))
    assert_allclose(found, pipeline.transform(SENTENCES), rtol=0, atol=1e-4)


def test_joblibs_processes_give_the_same_vectors(encoder, step):
    """Their pickler takes hooks along, which do nothing in another process."""
    pipeline = make_pipeline(step, bf.Whitener(3)).fit(SENTENCES * 3)
    expected = encoder.encode(SENTENCES, "last2avg")
    tasks = [
        joblib.delayed(encoder.encode)(SENTENCES, "last2avg"),
        joblib.delayed(step.transform)(SENTENCES),
        joblib.delayed(pipeline.transform)(SENTENCES),
        joblib.delayed(os.getpid)(),
    ]
    one, two, three, worker = joblib.Parallel(n_jobs=2, backend="loky")(tasks)
    assert worker != os.getpid()
    assert_allclose(one, expected, rtol=0, atol=1e-6)
    assert_allclose(two, expected, rtol=0, atol=1e-6)
    assert_allclose(three, pipeline.transform(SENTENCES), rtol=0, atol=1e-4)


@pytest.mark.parametrize("layers", [1, "last", 0])
def test_an_exported_model_of_one_layer_works_in_a_pool(encoder, tmp_path, layers):
    st = pytest.importorskip("sentence_transformers", minversion="6.0")
    bf.to_sentence_transformer(encoder, layers).save(os.fspath(tmp_path / "m"))
    model = st.SentenceTransformer(os.fspath(tmp_path / "m"), device="cpu")
    expected = encoder.encode(SENTENCES, layers)
    assert_allclose(model.encode(SENTENCES), expected, rtol=0, atol=1e-5)
    if layers == 1:  # processes are slow to start
        found = model.encode(SENTENCES, device=["cpu", "cpu"], chunk_size=1)
        assert_allclose(found, expected, rtol=0, atol=1e-5)
        (found,) = joblib.Parallel(n_jobs=2)([joblib.delayed(model.encode)(SENTENCES)])
        assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert not any(module._forward_hooks for module in model.modules())  # nothing is recorded


def test_an_exported_model_of_several_layers_gives_no_wrong_vector_there(encoder, tmp_path):
    """sentence-transformers passes over an average that it has no states for: then nothing is."""
    st = pytest.importorskip("sentence_transformers", minversion="6.0")
    bf.to_sentence_transformer(encoder, "last2avg").save(os.fspath(tmp_path / "m"))
    model = st.SentenceTransformer(os.fspath(tmp_path / "m"), device="cpu")
    with pytest.raises(KeyError, match="token_embeddings"):
        model.encode(SENTENCES, device=["cpu"], chunk_size=4)
    assert_allclose(
        model.encode(SENTENCES), encoder.encode(SENTENCES, "last2avg"), rtol=0, atol=1e-5
    )
    with pytest.raises((AttributeError, pickle.PicklingError), match="output_captur"):
        model.encode(SENTENCES, device=["cpu"], chunk_size=4)


def test_a_model_that_was_taken_out_says_why_it_gives_no_states(encoder, monkeypatch):
    """Sent by itself, not within its encoder, it does not know how to record them."""
    from transformers.utils import output_capturing

    alone = pickle.loads(pickle.dumps(encoder.model))
    monkeypatch.setattr(
        output_capturing, "_CAN_RECORD_REGISTRY", type(output_capturing._CAN_RECORD_REGISTRY)()
    )
    encoder.model = alone
    with pytest.raises(RuntimeError, match=r"gives no hidden states\. In another process"):
        encoder.encode(SENTENCES)
