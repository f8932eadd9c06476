"""Exported models: the same vectors inside sentence-transformers, saved and loaded safely."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("sentence_transformers", minversion="6.0")

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense

from bertflow_lite import artifacts
from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.calibrators.base import DeadDimensionWarning
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import Standardizer, Whitener
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.models import LoadedModel, load_model
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.export.dense import dense_modules
from bertflow_lite.export.modules import Calibration, LayerPooling
from bertflow_lite.export.sentence_transformers import (
    load_sentence_transformer,
    to_sentence_transformer,
)

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
    own = any(isinstance(module, LayerPooling | Calibration) for module in model)
    return (load_sentence_transformer if own else SentenceTransformer)(
        os.fspath(folder), device="cpu", **options
    )


@pytest.mark.parametrize("portable", [True, False])
@pytest.mark.parametrize("name", CALIBRATORS)
@pytest.mark.parametrize("layers", ["first-last", 1])
def test_the_vectors_are_those_of_our_pipeline(
    tiny_bert: Encoder, sentences, tmp_path, layers, name, portable
):
    raw = tiny_bert.encode(sentences, layers)
    calibrator = fit(name, raw)
    ours = raw if calibrator is None else calibrator.transform(raw)
    model = to_sentence_transformer(tiny_bert, layers, calibrator, portable=portable)
    assert model.get_embedding_dimension() == ours.shape[1]
    assert_allclose(model.encode(sentences), ours, rtol=0, atol=1e-5 * max(1, np.abs(ours).max()))
    again = reload(model, tmp_path / "model")
    assert_array_equal(again.encode(sentences), model.encode(sentences))
    assert again.get_embedding_dimension() == ours.shape[1]


@pytest.mark.parametrize("portable", [True, False])
@pytest.mark.parametrize("layers", ["cls", "last", "last2avg", "embeddings-last", (0, 1, 1)])
def test_every_choice_of_layers_can_be_exported(tiny_bert: Encoder, sentences, layers, portable):
    model = to_sentence_transformer(tiny_bert, layers, portable=portable)
    ours = tiny_bert.encode(sentences, layers)
    assert_allclose(model.encode(sentences), ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("portable", [True, False])
def test_a_causal_model_without_special_tokens(tiny_llama: Encoder, sentences, tmp_path, portable):
    texts = [text for text in sentences if text]  # nothing to average in an empty one
    raw = tiny_llama.encode(texts, "last2avg")
    whitener = Whitener(6).fit(raw)
    model = to_sentence_transformer(tiny_llama, "last2avg", whitener, portable=portable)
    again = reload(model, tmp_path / "model")
    assert_allclose(again.encode(texts), whitener.transform(raw), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["flow", "flow:recommended"])
def test_dimensions_without_spread_pass_through(tiny_bert: Encoder, sentences, name):
    raw = tiny_bert.encode(sentences, 1)
    raw[:, [3, 9]] = 2.5
    with pytest.warns(DeadDimensionWarning):
        flow = fit(name, raw)
    ours = flow.transform(raw)
    features: dict[str, Any] = {"sentence_embedding": torch.from_numpy(raw)}
    assert_array_equal(Calibration(flow)(features)["sentence_embedding"].numpy(), ours)
    for module in list(to_sentence_transformer(tiny_bert, 1, flow))[3:]:
        assert isinstance(module, Dense)
        raw = module({"sentence_embedding": torch.as_tensor(raw)})["sentence_embedding"]
    assert_allclose(raw, ours, rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------- saved and loaded


def test_a_portable_model_loads_where_this_package_is_not(tiny_bert: Encoder, sentences, tmp_path):
    raw = tiny_bert.encode(sentences, "first-last")
    flow = fit("flow", raw)
    to_sentence_transformer(tiny_bert, "first-last", flow).save(os.fspath(tmp_path / "model"))
    code = """
import pickle, sys
import numpy as np, torch
sys.modules["bertflow_lite"] = None               # importing it fails from here on
def refuse(*args, **kwargs): raise AssertionError("unpickled something")
torch.load = refuse
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
np.save(sys.argv[2], model.encode(eval(sys.argv[3])), allow_pickle=False)
"""
    out = tmp_path / "vectors.npy"
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "model", out, repr(sentences)],
        check=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
    )
    assert_allclose(np.load(out), flow.transform(raw), rtol=0, atol=1e-5)


@pytest.mark.parametrize("portable", [True, False])
def test_a_saved_model_holds_no_pickle_and_no_path(
    tiny_bert: Encoder, sentences, tmp_path, monkeypatch, portable
):
    raw = tiny_bert.encode(sentences, 1)
    model = to_sentence_transformer(
        tiny_bert, 1, fit("flow", raw), portable=portable, data=None if portable else sentences
    )

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


def test_the_flag_of_sentence_transformers_is_needed_for_our_modules_only(
    tiny_bert: Encoder, sentences, tmp_path
):
    raw = tiny_bert.encode(sentences, 1)
    whitener = Whitener(4).fit(raw)
    model = to_sentence_transformer(tiny_bert, 1, whitener, portable=False)
    path = os.fspath(tmp_path / "m")
    model.save(path)
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(path, device="cpu")
    trusted = SentenceTransformer(path, device="cpu", trust_remote_code=True)
    assert_array_equal(trusted.encode(sentences), model.encode(sentences))
    assert isinstance(trusted[2], Calibration)


def test_the_calibrator_comes_out_of_a_saved_model_again(tiny_bert: Encoder, sentences, tmp_path):
    raw = tiny_bert.encode(sentences, "first-last")
    flow = fit("flow", raw)
    model = to_sentence_transformer(
        tiny_bert, "first-last", flow, portable=False, data="test sentences"
    )
    again = reload(reload(model, tmp_path / "once"), tmp_path / "twice")
    folder = tmp_path / "twice" / "2_Calibration"
    loaded = artifacts.load(folder, encoder=tiny_bert, layers="first-last")
    assert_array_equal(loaded.transform(raw), flow.transform(raw))
    assert artifacts.read_description(folder)["data"] == {"description": "test sentences"}
    assert_array_equal(again.encode(sentences), model.encode(sentences))
    assert "FlowCalibrator" in repr(again)


def test_damaged_and_foreign_models_are_refused(tiny_bert: Encoder, sentences, tmp_path):
    raw = tiny_bert.encode(sentences, 1)
    path = tmp_path / "m"
    to_sentence_transformer(tiny_bert, 1, Whitener(4).fit(raw), portable=False).save(str(path))
    weights = path / "2_Calibration" / "calibrator.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match="was cut or changed"):
        load_sentence_transformer(path)
    weights.write_bytes(whole)
    modules = json.loads((path / "modules.json").read_text())
    modules[2]["type"] = "evil.Module"
    (path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ValueError, match=r"'evil.Module', which is neither"):
        load_sentence_transformer(path)
    for content, message in (("{", "was cut or changed"), ('[{"idx": 0}]', "no list of modules")):
        (path / "modules.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            load_sentence_transformer(path)
    with pytest.raises(FileNotFoundError, match="no saved SentenceTransformer"):
        load_sentence_transformer(tmp_path)


def test_prompts_and_similarity_come_back(tiny_bert: Encoder, sentences, tmp_path):
    model = to_sentence_transformer(tiny_bert, 1, portable=False)
    model.prompts = {"query": "the cat "}
    again = reload(model, tmp_path / "m")
    assert again.prompts["query"] == "the cat " and again.similarity_fn_name == "cosine"
    assert_array_equal(again.encode(["sat"], prompt_name="query"), model.encode(["the cat sat"]))


# -------------------------------------------------------------------------- types and devices


@pytest.mark.parametrize("how", ["loaded", "half()", "bfloat16()", "to()"])
@pytest.mark.parametrize("name", ["whiten:5", "flow"])
def test_calibration_stays_exact_when_the_encoder_is_in_half_precision(
    tiny_bert: Encoder, sentences, tmp_path, name, how
):
    raw = tiny_bert.encode(sentences, "first-last")
    calibrator = fit(name, raw)
    model = to_sentence_transformer(tiny_bert, "first-last", calibrator, portable=False)
    if how == "loaded":
        model = reload(model, tmp_path / "m", model_kwargs={"dtype": torch.bfloat16})
    elif how == "to()":
        model = model.to(torch.bfloat16)
    else:
        model = getattr(model, how.removesuffix("()"))()
    assert model.dtype in (torch.bfloat16, torch.float16)
    parts = [t for t in model[2].state_dict().values() if t.is_floating_point()]
    assert {part.dtype for part in parts} <= {torch.float32, torch.float64}
    vectors = model.encode(sentences, convert_to_tensor=True)
    assert vectors.dtype == torch.float32 and torch.isfinite(vectors).all()
    # What the half-precision encoder gave, calibrated in NumPy, is what came out.
    features = model.preprocess(sentences[:5])
    with torch.inference_mode():
        for module in list(model)[:2]:
            features = module(features)
    pooled = features["sentence_embedding"].clone()
    assert pooled.dtype == torch.float32
    out = model[2](features)["sentence_embedding"]
    assert_allclose(out, calibrator.transform(pooled), rtol=0, atol=1e-5)
    # Also where a half-precision pooling comes before.
    given = model[2]({"sentence_embedding": pooled.bfloat16()})["sentence_embedding"]
    assert given.dtype == torch.float32
    assert_allclose(given, calibrator.transform(pooled.bfloat16().float()), rtol=0, atol=1e-5)


def test_autocast_does_not_reach_into_the_calibration(tiny_bert: Encoder, sentences):
    raw = tiny_bert.encode(sentences, 1)
    flow = fit("flow", raw)
    calibration = Calibration(flow)
    with torch.autocast("cpu", torch.bfloat16):
        z = calibration({"sentence_embedding": torch.from_numpy(raw)})["sentence_embedding"]
    assert_array_equal(z.numpy(), flow.transform(raw))


def test_a_portable_model_in_half_precision_is_close(tiny_bert: Encoder, sentences, tmp_path):
    raw = tiny_bert.encode(sentences, "first-last")
    flow = fit("flow", raw)
    model = to_sentence_transformer(tiny_bert, "first-last", flow)
    half = reload(model, tmp_path / "m", model_kwargs={"dtype": torch.bfloat16}).encode(sentences)
    whole = flow.transform(raw)
    cosines = (half * whole).sum(1) / np.linalg.norm(half, axis=1) / np.linalg.norm(whole, axis=1)
    assert cosines.min() > 0.99


@pytest.mark.parametrize("name", ["sn", "natsv:2", "whiten:5", "flow"])
def test_the_weights_move_with_the_model(tiny_bert: Encoder, sentences, name):
    calibrator = fit(name, tiny_bert.encode(sentences, 1))
    model = to_sentence_transformer(tiny_bert, 1, calibrator, portable=False)
    model.to("meta")  # a device that every machine has
    assert {tensor.device.type for tensor in model[2].state_dict().values()} == {"meta"}
    # The calibrator itself stays where and as it was.
    assert calibrator.transform(tiny_bert.encode(["cat"], 1)).shape[0] == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("portable", [True, False])
def test_a_gpu_gives_the_same_vectors(tiny_bert: Encoder, sentences, portable):
    raw = tiny_bert.encode(sentences, "first-last")
    flow = fit("flow", raw)
    model = to_sentence_transformer(tiny_bert, "first-last", flow, portable=portable).to("cuda")
    assert_allclose(model.encode(sentences), flow.transform(raw), rtol=0, atol=1e-4)


def test_normalized_and_as_tensors(tiny_bert: Encoder, sentences):
    raw = tiny_bert.encode(sentences, 1)
    flow = fit("flow", raw)
    z = flow.transform(raw)
    for portable in (True, False):
        model = to_sentence_transformer(tiny_bert, 1, flow, portable=portable)
        tensor = model.encode(sentences, convert_to_tensor=True, normalize_embeddings=True)
        assert isinstance(tensor, torch.Tensor)
        assert_allclose(tensor, z / np.linalg.norm(z, axis=1, keepdims=True), rtol=0, atol=1e-5)
        similarities = model.similarity(tensor[:3], tensor[:3])
        assert_allclose(similarities.diagonal(), np.ones(3), atol=1e-5)
        assert model.encode(sentences[0]).shape == (16,)


def test_gradients_pass_through_a_frozen_calibration(tiny_bert: Encoder, sentences):
    raw = tiny_bert.encode(sentences, 1)
    for name in ("whiten:5", "natsv:2", "flow"):
        calibration = Calibration(fit(name, raw))
        assert list(calibration.parameters()) == []
        x = torch.from_numpy(raw.copy()).requires_grad_()
        calibration({"sentence_embedding": x})["sentence_embedding"].square().sum().backward()
        assert x.grad is not None and bool((x.grad != 0).any())


# ----------------------------------------------------------------------------------- refusals


def test_what_cannot_be_exported_says_why(tiny_bert: Encoder, sentences):
    words = WordVectorEncoder(np.zeros((1, 3), np.float32), ["a"], "letters")
    with pytest.raises(ValueError, match="is no transformer"):
        to_sentence_transformer(words, "last")  # type: ignore[arg-type]
    narrow = Standardizer().fit(np.random.default_rng(0).normal(size=(9, 4)))
    for portable in (True, False):
        with pytest.raises(ValueError, match=r"takes vectors of width 4, and .* gives 16"):
            to_sentence_transformer(tiny_bert, 1, narrow, portable=portable)
        with pytest.raises(ValueError, match="not fitted"):
            to_sentence_transformer(tiny_bert, 1, FlowCalibrator(), portable=portable)
    with pytest.raises(ValueError, match="has 3"):
        to_sentence_transformer(tiny_bert, 7)


def test_without_sentence_transformers_the_error_says_what_to_install(monkeypatch, tiny_bert):
    import bertflow_lite

    monkeypatch.setitem(sys.modules, "sentence_transformers.base.modules", None)
    monkeypatch.delitem(sys.modules, "bertflow_lite.export.modules")
    monkeypatch.delattr(bertflow_lite, "st")
    with pytest.raises(ImportError, match=r"pip install 'sentence-transformers>=6'"):
        to_sentence_transformer(tiny_bert, 1)


def test_layer_pooling_says_what_it_needs():
    with pytest.raises(ValueError, match="pooling is 'max'"):
        LayerPooling([1], 4, "max")
    with pytest.raises(ValueError, match="name at least one"):
        LayerPooling([], 4)
    with pytest.raises(ValueError, match="counted from 0"):
        LayerPooling([-1], 4)
    states = {"all_layer_embeddings": [torch.ones(1, 2, 4)], "attention_mask": torch.ones(1, 2)}
    with pytest.raises(ValueError, match="hidden state 1 is asked for; the transformer gives 1"):
        LayerPooling([1], 4)(states)
    pooling = LayerPooling([1], 4)
    with pytest.raises(ValueError, match="output_hidden_states"):
        pooling({"attention_mask": torch.ones(1, 2)})
    flat = {"all_layer_embeddings": [torch.ones(1, 5, 4)] * 2, "attention_mask": torch.ones(2, 3)}
    with pytest.raises(ValueError, match="unpad_inputs=False"):
        pooling(flat)


# ------------------------------------------------------------------------------ real models


@pytest.mark.parametrize("portable", [True, False])
def test_minilm_with_a_flow(minilm: LoadedModel, tmp_path, portable):
    pairs = load_sts("mini-sts").select(range(40))
    encoder = Encoder(minilm)
    raw = encoder.encode(pairs.sentences, 4)
    flow = FlowCalibrator(device="cpu", epochs=2).fit(raw)
    model = to_sentence_transformer(encoder, 4, flow, portable=portable)
    again = reload(model, tmp_path / "m")
    assert_allclose(again.encode(pairs.sentences), flow.transform(raw), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("portable", [True, False])
@pytest.mark.parametrize("width", [None, 32])
def test_smollm2_whitened(portable, width):
    # The mean of its vectors is three times as long as they are spread: hard on float32.
    pairs = load_sts("mini-sts").select(range(40))
    encoder = Encoder(load_model("smollm2", device="cpu"))
    raw = encoder.encode(pairs.sentences, "last2avg")
    whitener = Whitener(width).fit(raw)
    ours = whitener.transform(raw)
    model = to_sentence_transformer(encoder, "last2avg", whitener, portable=portable)
    # The encoder's own rounding, which differs with the batch, is all that is left.
    assert_allclose(model.encode(pairs.sentences), ours, rtol=0, atol=1e-5 * np.abs(ours).max())


# ------------------------------------------------------- what is known of the calibrator


@pytest.mark.parametrize("portable", [True, False])
@pytest.mark.parametrize("name", ["whiten:5", "flow", "sn+natsv:1"])
def test_a_loaded_calibrator_is_exported_for_what_it_was_fitted_for_only(
    tiny_bert: Encoder, tiny_llama: Encoder, sentences, tmp_path, name, portable
):
    raw = tiny_bert.encode(sentences, 1)
    folder = artifacts.save(
        fit(name, raw), tmp_path / "c", encoder=tiny_bert, layers=1, data=sentences
    )
    loaded = artifacts.load(folder)
    with pytest.raises(ValueError, match=r"the calibrator was fitted for layers '1', not 'last2a"):
        to_sentence_transformer(tiny_bert, calibrator=loaded, portable=portable)
    with pytest.raises(ValueError, match=r"was fitted for the encoder .*Export it with what it"):
        to_sentence_transformer(tiny_llama, 1, loaded, portable=portable)
    model = to_sentence_transformer(tiny_bert, 1, loaded, portable=portable)
    assert_allclose(model.encode(sentences), loaded.transform(raw), rtol=0, atol=1e-4)
    if not portable:
        model.save(os.fspath(tmp_path / "m"))
        said = artifacts.read_description(tmp_path / "m" / "2_Calibration")
        for key in ("encoder", "data"):
            assert said[key] == artifacts.read_description(folder)[key]
    anew = loaded.fit(tiny_bert.encode(sentences, "last2avg"))
    to_sentence_transformer(tiny_bert, "last2avg", anew, portable=portable)


def test_data_without_a_place_for_it_is_refused(tiny_bert: Encoder, sentences):
    whitener = Whitener(4).fit(tiny_bert.encode(sentences, 1))
    with pytest.raises(ValueError, match="portable=False"):
        to_sentence_transformer(tiny_bert, 1, whitener, data=sentences)
    with pytest.raises(ValueError, match="a calibrator has a file for it"):
        to_sentence_transformer(tiny_bert, 1, portable=False, data=sentences)


@pytest.mark.parametrize("portable", [True, False])
@pytest.mark.parametrize("name", ["sn", "flow", "flow-no-actnorm", "flow:released-code", "sn+flow"])
def test_dead_dimensions_are_centered_in_the_model_too(
    tiny_bert: Encoder, sentences, tmp_path, name, portable
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
    modules = dense_modules(calibrator) if portable else [Calibration(calibrator)]
    features: dict[str, Any] = {"sentence_embedding": torch.from_numpy(raw)}
    for module in modules:
        features = module(features)
    assert_allclose(features["sentence_embedding"], z, rtol=0, atol=2e-4)
