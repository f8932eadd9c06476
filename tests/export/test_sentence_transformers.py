"""Exported models: the same vectors inside sentence-transformers, saved and loaded safely."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fresh_process import forget_models, remember_models
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.pipeline import make_pipeline

pytest.importorskip("sentence_transformers", minversion="6.0")

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

import bertflow_lite as bf
from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.calibrators.base import DeadDimensionWarning
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import Standardizer, Whitener
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.models import LoadedModel, load_model
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.export.dense import dense_modules
from bertflow_lite.export.sentence_transformers import to_sentence_transformer

CALIBRATORS = ["none", "sn", "natsv:2", "whiten:5", "sn+natsv:1", "flow", "flow:released-code"]
CALIBRATORS += ["flow:recommended"]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    words = ["the cat", "a dog", "one red tree", "two blue mat", "it"]
    ends = ["sat .", "ran on the mat", "is not red and not blue", "unknownword", "ran " * 30]
    return [f"{start} {end}" for start in words for end in ends] + ["", "cat"]


def fit(name: str, raw: np.ndarray) -> Any:
    calibrator = make_calibrator(name)
    if isinstance(calibrator, FlowCalibrator):
        calibrator.set_params(device="cpu", epochs=3, batch_size=4)
    return calibrator if calibrator is None else calibrator.fit(raw)


def reload(model: SentenceTransformer, folder: Path, **options: Any) -> SentenceTransformer:
    model.save(os.fspath(folder))
    return SentenceTransformer(os.fspath(folder), device="cpu", **options)


# Layers are chosen before there is anything to calibrate: one choice will do for all calibrators.
@pytest.mark.parametrize(
    ("layers", "name"),
    [*(("first-last", name) for name in CALIBRATORS), (1, "none"), (1, "flow")],
)
def test_the_vectors_are_those_of_our_pipeline(
    tiny_bert: Encoder, sentences, tmp_path, layers, name
):
    raw = tiny_bert.encode(sentences, layers)
    calibrator = fit(name, raw)
    ours = raw if calibrator is None else calibrator.transform(raw)
    model = to_sentence_transformer(tiny_bert, layers, calibrator)
    assert model.get_embedding_dimension() == ours.shape[1]
    assert_allclose(model.encode(sentences), ours, rtol=0, atol=1e-5 * max(1, np.abs(ours).max()))
    again = reload(model, tmp_path / "model")
    assert_array_equal(again.encode(sentences), model.encode(sentences))
    assert again.get_embedding_dimension() == ours.shape[1]


@pytest.mark.parametrize("layers", ["cls", "last", "last2avg", "embeddings-last", (0, 1, 1)])
def test_every_choice_of_layers_can_be_exported(tiny_bert: Encoder, sentences, layers):
    model = to_sentence_transformer(tiny_bert, layers)
    ours = tiny_bert.encode(sentences, layers)
    assert_allclose(model.encode(sentences), ours, rtol=0, atol=1e-5)


def test_a_causal_model_without_special_tokens(tiny_llama: Encoder, sentences, tmp_path):
    texts = [text for text in sentences if text]  # nothing to average in an empty one
    raw = tiny_llama.encode(texts, "last2avg")
    whitener = Whitener(6).fit(raw)
    model = to_sentence_transformer(tiny_llama, "last2avg", whitener)
    again = reload(model, tmp_path / "model")
    assert_allclose(again.encode(texts), whitener.transform(raw), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["flow", "flow:recommended"])
def test_dimensions_without_spread_pass_through(tiny_bert: Encoder, sentences, name):
    raw = tiny_bert.encode(sentences, 1)
    raw[:, [3, 9]] = 2.5
    with pytest.warns(DeadDimensionWarning):
        flow = fit(name, raw)
    ours = flow.transform(raw)
    for module in list(to_sentence_transformer(tiny_bert, 1, flow))[2:]:
        assert isinstance(module, Dense)
        raw = module({"sentence_embedding": torch.as_tensor(raw)})["sentence_embedding"]
    assert_allclose(raw, ours, rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------- saved and loaded


def test_a_saved_model_holds_no_pickle_and_no_path(
    tiny_bert: Encoder, sentences, tmp_path, monkeypatch
):
    raw = tiny_bert.encode(sentences, 1)
    model = to_sentence_transformer(tiny_bert, 1, fit("flow", raw))

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("pickled or unpickled something")

    for module, names in ((pickle, ("load", "loads", "dump", "dumps")), (torch, ("load", "save"))):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    model.save(os.fspath(tmp_path / "m"), safe_serialization=True)
    files = [path for path in (tmp_path / "m").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".md", ".txt"}
    here = (str(tmp_path).encode(), str(Path(tiny_bert.name).parent).encode())
    assert not [path for path in files for part in here if part in path.read_bytes()]


def test_prompts_and_similarity_come_back(tiny_bert: Encoder, sentences, tmp_path):
    model = to_sentence_transformer(tiny_bert, 1)
    model.prompts = {"query": "the cat "}
    again = reload(model, tmp_path / "m")
    assert again.prompts["query"] == "the cat " and again.similarity_fn_name == "cosine"
    assert_array_equal(again.encode(["sat"], prompt_name="query"), model.encode(["the cat sat"]))


# ------------------------------------------------------------------------------ other processes


@pytest.mark.parametrize("layers", ["first-last", "last2avg", "embeddings-last", (0, 1, 1), 1])
def test_without_recorded_states_the_vectors_are_the_same(
    tiny_bert: Encoder, sentences, tmp_path, layers
):
    raw = tiny_bert.encode(sentences, layers)
    whitener = Whitener(5).fit(raw)
    model = to_sentence_transformer(tiny_bert, layers, whitener, workers=True)
    assert not any(getattr(part, "model", None) and part.model.config.output_hidden_states
                   for part in model)  # fmt: skip
    again = reload(model, tmp_path / "model")
    assert_allclose(again.encode(sentences), whitener.transform(raw), rtol=0, atol=2e-5)


def test_where_a_last_norm_comes_between_workers_are_refused(tiny_llama: Encoder):
    with pytest.raises(ValueError, match=r"workers=True: with fewer blocks .* choose the last"):
        to_sentence_transformer(tiny_llama, "last2avg", workers=True)
    assert len(to_sentence_transformer(tiny_llama, "last", workers=True)) == 2


def test_what_was_pickled_gives_the_same_vectors_where_no_model_was_made(
    tiny_bert: Encoder, tiny_llama: Encoder, sentences, tmp_path
):
    """A real process of its own takes some of them in tests/integration/test_workers.py."""
    from joblib.externals.loky.backend.reduction import dumps as dumps_by_loky

    texts = [text for text in sentences if text]
    copies = {}
    for name, encoder in (("bert", tiny_bert), ("llama", tiny_llama)):
        model = to_sentence_transformer(encoder, "last2avg")
        model.encode(texts)  # transformers' hooks, which cannot be pickled, are there now
        copies[f"pickle-{name}"] = pickle.dumps(model)
        copies[f"loky-{name}"] = bytes(dumps_by_loky(model))
    loaded = reload(to_sentence_transformer(tiny_bert, "last2avg", workers=True), tmp_path / "m")
    loaded.encode(texts)
    copies["saved-bert"] = pickle.dumps(loaded)
    expected = {
        "bert": tiny_bert.encode(texts, "last2avg"), "llama": tiny_llama.encode(texts, "last2avg"),
    }  # fmt: skip
    known = forget_models()
    try:
        for name, copy in copies.items():
            forget_models()
            found = pickle.loads(copy).encode(texts)
            kind = name.partition("-")[2]
            assert_allclose(found, expected[kind], rtol=0, atol=2e-5, err_msg=name)
    finally:
        remember_models(known)


# -------------------------------------------------------------------------- types and devices


def test_a_portable_model_in_half_precision_is_close(tiny_bert: Encoder, sentences, tmp_path):
    raw = tiny_bert.encode(sentences, "first-last")
    flow = fit("flow", raw)
    model = to_sentence_transformer(tiny_bert, "first-last", flow)
    half = reload(model, tmp_path / "m", model_kwargs={"dtype": torch.bfloat16}).encode(sentences)
    whole = flow.transform(raw)
    cosines = (half * whole).sum(1) / np.linalg.norm(half, axis=1) / np.linalg.norm(whole, axis=1)
    assert cosines.min() > 0.99


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_vectors(tiny_bert: Encoder, sentences):
    raw = tiny_bert.encode(sentences, "first-last")
    flow = fit("flow", raw)
    model = to_sentence_transformer(tiny_bert, "first-last", flow).to("cuda")
    assert_allclose(model.encode(sentences), flow.transform(raw), rtol=0, atol=1e-4)


def test_normalized_and_as_tensors(tiny_bert: Encoder, sentences):
    raw = tiny_bert.encode(sentences, 1)
    flow = fit("flow", raw)
    z = flow.transform(raw)
    model = to_sentence_transformer(tiny_bert, 1, flow)
    tensor = model.encode(sentences, convert_to_tensor=True, normalize_embeddings=True)
    assert isinstance(tensor, torch.Tensor)
    assert_allclose(tensor, z / np.linalg.norm(z, axis=1, keepdims=True), rtol=0, atol=1e-5)
    similarities = model.similarity(tensor[:3], tensor[:3])
    assert_allclose(similarities.diagonal(), np.ones(3), atol=1e-5)
    assert model.encode(sentences[0]).shape == (16,)


# ----------------------------------------------------------------------------------- refusals


def test_what_cannot_be_exported_says_why(tiny_bert: Encoder, sentences):
    words = WordVectorEncoder(np.zeros((1, 3), np.float32), ["a"], "letters")
    with pytest.raises(ValueError, match="is no transformer"):
        to_sentence_transformer(words, "last")  # type: ignore[arg-type]
    narrow = Standardizer().fit(np.random.default_rng(0).normal(size=(9, 4)))
    with pytest.raises(ValueError, match=r"takes vectors of width 4, and .* gives 16"):
        to_sentence_transformer(tiny_bert, 1, narrow)
    with pytest.raises(ValueError, match="not fitted"):
        to_sentence_transformer(tiny_bert, 1, FlowCalibrator())
    with pytest.raises(ValueError, match="has 3"):
        to_sentence_transformer(tiny_bert, 7)


def test_a_model_that_would_give_other_vectors_there_is_refused(
    tmp_path, own_cache, tiny_bert_folder
):
    """sentence-transformers pads, and knows no encoder without its decoder but T5's."""
    import shutil

    import transformers

    small = {"vocab_size": 23, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
             "decoder_ffn_dim": 32, "max_position_embeddings": 64}  # fmt: skip
    plain = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
    made = {
        "bart": transformers.BartModel(transformers.BartConfig(**small)),
        "fnet": transformers.FNetModel(transformers.FNetConfig(**plain, initializer_range=0.5)),
        "t5": transformers.T5Model(
            transformers.T5Config(vocab_size=23, d_model=16, num_layers=2, num_heads=2, d_kv=8)
        ),
    }
    for name, model in made.items():
        model.save_pretrained(tmp_path / name)
        for path in tiny_bert_folder.glob("tokenizer*"):
            shutil.copy(path, tmp_path / name)
    load = {
        name: bf.load_encoder(tmp_path / name, max_length=24, device="cpu", cache=False)
        for name in made
    }
    with pytest.raises(ValueError, match=r"BartEncoder\) cannot be exported"):
        to_sentence_transformer(load["bart"], "last2avg")
    with pytest.raises(ValueError, match="padding changes its vectors"):
        to_sentence_transformer(load["fnet"], "last2avg")
    texts = ["the cat sat", "red", "a dog ran on the mat ."]
    exported = reload(to_sentence_transformer(load["t5"], "last2avg"), tmp_path / "m")
    assert_allclose(exported.encode(texts), load["t5"].encode(texts, "last2avg"), rtol=0, atol=1e-5)


def test_without_sentence_transformers_the_error_says_what_to_install(monkeypatch, tiny_bert):
    monkeypatch.setitem(sys.modules, "sentence_transformers.base.modules", None)
    with pytest.raises(ImportError, match=r"pip install 'sentence-transformers>=6'"):
        to_sentence_transformer(tiny_bert, 1)


# ------------------------------------------------------------------------------ real models


def test_minilm_with_a_flow(minilm: LoadedModel, tmp_path, no_network):
    """Saving asks nobody whether the hub has a model of that name."""
    pairs = load_sts("mini-sts").select(range(40))
    encoder = Encoder(minilm)
    raw = encoder.encode(pairs.sentences, 4)
    flow = FlowCalibrator(device="cpu", epochs=2).fit(raw)
    model = to_sentence_transformer(encoder, 4, flow)
    again = reload(model, tmp_path / "m")
    assert_allclose(again.encode(pairs.sentences), flow.transform(raw), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def smollm2() -> tuple[np.ndarray, torch.Tensor]:
    """Give the vectors of SmolLM2, ours and those of the exported model."""
    sentences = load_sts("mini-sts").select(range(20)).sentences
    encoder = Encoder(load_model("smollm2", device="cpu"))
    model = to_sentence_transformer(encoder, "last2avg")
    return encoder.encode(sentences, "last2avg"), model.encode(sentences, convert_to_tensor=True)


@pytest.mark.slow
@pytest.mark.parametrize("width", [None, 32])
def test_smollm2_whitened(smollm2: tuple[np.ndarray, torch.Tensor], width: int | None):
    # The mean of its vectors is three times as long as they are spread: hard on float32.
    raw, exported = smollm2
    whitener = Whitener(width).fit(raw)
    ours = whitener.transform(raw)
    features: dict[str, Any] = {"sentence_embedding": exported}
    for module in dense_modules(whitener):  # as a calibrator is appended to any model
        features = module(features)
    # The encoder's own rounding, which differs with the batch, is all that is left.
    found = features["sentence_embedding"]
    assert_allclose(found, ours, rtol=0, atol=1e-5 * np.abs(ours).max())


# ------------------------------------------------------- what is known of the calibrator


@pytest.mark.parametrize("name", ["sn", "flow", "flow-no-actnorm", "flow:released-code", "sn+flow"])
def test_dead_dimensions_are_centered_in_the_model_too(
    tiny_bert: Encoder, sentences, tmp_path, name
):
    raw = tiny_bert.encode(sentences, 1)
    raw[:, 2] = 50
    calibrator = fit(name.removesuffix("-no-actnorm"), raw) if "+" not in name else None
    if calibrator is None:
        calibrator = make_calibrator(name).fit(raw)
    if "no-actnorm" in name:
        calibrator.set_params(actnorm=False).fit(raw)
    z = calibrator.transform(raw)
    assert_allclose(z[:, 2], 0, atol=1e-6)
    modules = dense_modules(calibrator)
    features: dict[str, Any] = {"sentence_embedding": torch.from_numpy(raw)}
    for module in modules:
        features = module(features)
    assert_allclose(features["sentence_embedding"], z, rtol=0, atol=2e-4)


# ------------------------------------------------------------------------------ pipelines


def test_a_loaded_pipeline_is_exported_as_it_is(
    tiny_bert_folder: Path, own_cache: Path, sentences, tmp_path
):
    step = bf.SentenceEncoder(str(tiny_bert_folder), layers=1, max_length=24, device="cpu")
    pipeline = make_pipeline(step, Whitener(5)).fit(sentences)
    path = bf.save(pipeline, tmp_path / "p.safetensors")
    loaded = bf.load(path, model=str(tiny_bert_folder), device="cpu")
    model = to_sentence_transformer(loaded)
    assert_allclose(model.encode(sentences), pipeline.transform(sentences), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="brings its own calibrator"):
        to_sentence_transformer(loaded, calibrator=Whitener(5))
    raw = make_pipeline(step).fit(sentences)
    assert to_sentence_transformer(raw).encode(["cat"]).shape == (1, 16)
