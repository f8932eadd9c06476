"""In worker processes the vectors are those of this one, or there is an error, never other ones.

A process that has imported all libraries is slow to start and large, so that all tests share one
that was spawned, and one of joblib's.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fresh_process import encode_without_this_package, forget_models, load_libraries
from joblib.executor import get_memmapping_executor
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.pipeline import make_pipeline

import bertflow_lite as bf
from bertflow_lite.encoders.models import load_model
from bertflow_lite.encoders.transformer import Encoder

pytestmark = pytest.mark.slow
SENTENCES = ["the cat sat", "a dog ran on the mat .", "red", "it is not blue"]
CHOICES: list[Any] = ["last2avg", "first-last", 1, "cls"]


@pytest.fixture
def encoder(tiny_bert_folder: Path, own_cache: Path) -> Encoder:
    """Give an encoder that keeps nothing, so that a worker must compute."""
    return Encoder(load_model(tiny_bert_folder, device="cpu"), max_length=24, cache=False)


@pytest.fixture
def step(tiny_bert_folder: Path, own_cache: Path) -> bf.SentenceEncoder:
    return bf.SentenceEncoder(str(tiny_bert_folder), max_length=24, device="cpu", cache=False)


class Portable:
    """A model saved for sentence-transformers, and what our own pipeline makes of the sentences."""

    def __init__(self, bert: Path, folder: Path) -> None:
        encoder = Encoder(load_model(bert, device="cpu"), max_length=24, cache=False)
        raw = encoder.encode(SENTENCES * 6, "first-last")
        flow = bf.FlowCalibrator(device="cpu", epochs=3, batch_size=4).fit(raw)
        self.expected = flow.transform(raw[: len(SENTENCES)])
        self.folder = os.fspath(folder)
        bf.to_sentence_transformer(encoder, "first-last", flow).save(self.folder)


class Process:
    """Another process, started by Python (spawned) or by joblib."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.portable: tuple[Portable, Future[Any]] | None = None

    def start(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return self._executor.submit(function, *arguments)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.start(function, *arguments).result()

    def call_first(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call what brings a model along as if it were the first one in that process."""
        self.call(forget_models)
        return self.call(function, *arguments)


@pytest.fixture(scope="module")
def spawned(tiny_bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Start a process; the model that needs no package of ours comes before all that does."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as executor:
        process = Process(executor)
        try:
            made = Portable(tiny_bert_folder, tmp_path_factory.mktemp("portable") / "model")
        except ImportError:  # no sentence-transformers here
            pass
        else:
            found = process.start(encode_without_this_package, made.folder, SENTENCES)
            process.portable = made, found
        yield process


@pytest.fixture(scope="module")
def joblibs() -> Iterator[Process]:
    """Start one process as `joblib.Parallel` starts several; it would keep it for minutes.

    One that has grown since its first task is replaced, so that this one loads the libraries.
    """
    executor = get_memmapping_executor(1)
    executor.submit(load_libraries).result()
    yield Process(executor)
    executor.shutdown(wait=True)


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


def test_a_spawned_process_gives_the_same_vectors(encoder, step, spawned):
    pipeline = make_pipeline(step, bf.Whitener(3)).fit(SENTENCES * 3)
    expected = encoder.encode(SENTENCES, CHOICES)
    assert spawned.call(os.getpid) != os.getpid()
    same(spawned.call_first(encoder.encode, SENTENCES, CHOICES), expected)
    assert_allclose(spawned.call(step.transform, SENTENCES), expected["last2avg"], atol=1e-6)
    found = spawned.call(pipeline.transform, SENTENCES)
    assert_allclose(found, pipeline.transform(SENTENCES), rtol=0, atol=1e-4)


def test_joblibs_processes_give_the_same_vectors(encoder, step, joblibs):
    """Their pickler takes hooks along, which do nothing in another process."""
    pipeline = make_pipeline(step, bf.Whitener(3)).fit(SENTENCES * 3)
    expected = encoder.encode(SENTENCES, "last2avg")
    assert joblibs.call(os.getpid) != os.getpid()
    found = joblibs.call_first(encoder.encode, SENTENCES, "last2avg")
    assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert_allclose(joblibs.call(step.transform, SENTENCES), expected, rtol=0, atol=1e-6)
    found = joblibs.call(pipeline.transform, SENTENCES)
    assert_allclose(found, pipeline.transform(SENTENCES), rtol=0, atol=1e-4)


def test_a_fit_in_a_spawned_process_is_the_same(spawned):
    x = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    flow = bf.FlowCalibrator(levels=1, depth=1, width=4, device="cpu")
    assert_allclose(spawned.call(flow.fit_transform, x), flow.fit_transform(x), atol=1e-6)


# ------------------------------------------------------------------------------ exported models


def saved(model: Any, folder: Path) -> Any:
    """Give a model as it comes out of its folder, a class of sentence-transformers' own."""
    from sentence_transformers import SentenceTransformer

    model.save(os.fspath(folder))
    return SentenceTransformer(os.fspath(folder), device="cpu")


def test_a_portable_model_loads_where_this_package_is_not(spawned):
    if spawned.portable is None:
        pytest.skip("sentence-transformers is not installed")
    made, found = spawned.portable
    assert_allclose(found.result(), made.expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layers", [1, "last", 0])
def test_an_exported_model_of_one_layer_works_in_other_processes(
    encoder, tmp_path, layers, request
):
    pytest.importorskip("sentence_transformers", minversion="6.0")
    model = saved(bf.to_sentence_transformer(encoder, layers), tmp_path / "m")
    expected = encoder.encode(SENTENCES, layers)
    assert_allclose(model.encode(SENTENCES), expected, rtol=0, atol=1e-5)
    if layers == 1:  # processes are slow to start
        for kind in ("spawned", "joblibs"):
            found = request.getfixturevalue(kind).call_first(model.encode, SENTENCES)
            assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=kind)
    assert not any(module._forward_hooks for module in model.modules())  # nothing is recorded


def test_an_exported_model_of_several_layers_gives_no_wrong_vector_there(
    encoder, tmp_path, spawned
):
    """sentence-transformers passes over an average that it has no states for: then nothing is."""
    pytest.importorskip("sentence_transformers", minversion="6.0")
    model = saved(bf.to_sentence_transformer(encoder, "last2avg"), tmp_path / "m")
    with pytest.raises(KeyError, match="token_embeddings"):
        spawned.call_first(model.encode, SENTENCES)
    assert_allclose(
        model.encode(SENTENCES), encoder.encode(SENTENCES, "last2avg"), rtol=0, atol=1e-5
    )
    with pytest.raises((AttributeError, pickle.PicklingError), match="output_captur"):
        model.encode(SENTENCES, device=["cpu"], chunk_size=4)


def test_an_exported_model_for_workers_gives_the_same_vectors_there(encoder, tmp_path, spawned):
    pytest.importorskip("sentence_transformers", minversion="6.0")
    model = bf.to_sentence_transformer(encoder, "last2avg", workers=True)
    model = saved(model, tmp_path / "m")
    found = spawned.call_first(model.encode, SENTENCES)
    assert_allclose(found, encoder.encode(SENTENCES, "last2avg"), rtol=0, atol=2e-5)


def test_a_pool_of_sentence_transformers_gives_the_same_vectors(encoder):
    pytest.importorskip("sentence_transformers", minversion="6.0")
    model = bf.to_sentence_transformer(encoder, "last2avg")
    found = model.encode(SENTENCES, device=["cpu"], chunk_size=1)
    assert_allclose(found, encoder.encode(SENTENCES, "last2avg"), rtol=0, atol=1e-5)


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
