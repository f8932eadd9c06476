"""The project's own model, as it lies in data/models/mini-bert."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite.cli.common import app
from bertflow_lite.encoders.language_model import (
    LanguageModel,
    fill_mask,
    load_language_model,
    scores,
)
from bertflow_lite.encoders.models import PACKAGED_MODELS, load_model
from bertflow_lite.experiments.pmi.probe import check_scores, collect_contexts, word_probabilities
from bertflow_lite.experiments.pretraining.recipe import RECIPES, make_masked_model

FILES = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


# ---- the model that is here ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def mini() -> Path:
    path = PACKAGED_MODELS["mini-bert"].path()
    if path is None:
        pytest.fail("data/models/mini-bert is missing: take a fresh copy.")
    return path


@pytest.fixture(scope="module")
def lm(mini: Path) -> LanguageModel:
    return load_language_model("mini-bert", device="cpu")


def test_the_folder_is_small_and_holds_numbers_and_text_only(mini: Path) -> None:
    assert sorted(path.name for path in mini.iterdir()) == FILES
    assert sum(path.stat().st_size for path in mini.iterdir()) < 25e6
    with safe_open(mini / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert "cls.predictions.transform.dense.weight" in tensors
    assert not any(name.endswith("decoder.weight") for name in tensors)  # tied: stored once


def test_its_shape_is_the_recipes(mini: Path) -> None:
    config, recipe = json.loads((mini / "config.json").read_text()), RECIPES["mini"]
    assert config["architectures"] == ["BertForMaskedLM"]
    shape = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    assert [config[key] for key in shape] == [recipe.blocks, recipe.width, recipe.heads, 30522]
    assert config["max_position_embeddings"] >= recipe.length


def test_its_tokenizer_is_minilms(mini: Path, minilm) -> None:
    tokenizer = AutoTokenizer.from_pretrained(mini, local_files_only=True)
    assert tokenizer.get_vocab() == minilm.tokenizer.get_vocab()
    assert tokenizer.all_special_ids == minilm.tokenizer.all_special_ids
    texts = [*bf.load_sts("mini-sts").sentences, "Crème brûlée, 東京; ünïcode [MASK]!", ""]
    assert tokenizer(texts)["input_ids"] == minilm.tokenizer(texts)["input_ids"]
    assert tokenizer.model_max_length == RECIPES["mini"].length
    fast = json.loads((mini / "tokenizer.json").read_text(encoding="utf-8"))
    assert fast["padding"] is None and fast["truncation"] is None


def test_it_is_an_encoder(lm: LanguageModel) -> None:
    encoder = bf.load_encoder("mini-bert", device="cpu", cache=False)
    assert (encoder.dim, encoder.n_layers, encoder.max_length) == (256, 4, 64)
    assert encoder.fingerprint == lm.fingerprint
    vectors = encoder.encode(["A cat sat on a mat.", "It rained."], ["last2avg", "cls", 0])
    for states in vectors.values():
        assert states.shape == (2, 256) and states.dtype == np.float32 and np.isfinite(states).all()
    assert next(encoder.model.parameters()).dtype == torch.float32
    with pytest.raises(ValueError, match="takes 3 to 64"):
        bf.load_encoder("mini-bert", max_length=65)


def test_its_weights_were_trained(mini: Path, minilm) -> None:
    """More than float16 would change: in an untrained copy, by less than one in a thousand."""
    counts = np.zeros(len(minilm.tokenizer), dtype=np.int64)  # they set the bias of the head only
    start = make_masked_model(RECIPES["mini"], minilm.tokenizer, counts, 0).bert.state_dict()
    own = load_model("mini-bert", device="cpu").model.state_dict()
    shared = [name for name in own if not name.startswith("pooler.")]
    assert {name: own[name].shape for name in shared} == {n: t.shape for n, t in start.items()}
    words = "embeddings.word_embeddings.weight"
    assert float((own[words] - start[words]).norm() / start[words].norm()) > 0.01


def test_its_scores_are_the_models_logits(lm: LanguageModel) -> None:
    assert lm.kind == "masked"
    assert lm.word_vectors.dtype == torch.float32
    for sentence in bf.load_sts("mini-sts").sentences[:5]:
        assert check_scores(lm, sentence) < 1e-4


def test_it_has_learned_from_contexts(lm: LanguageModel) -> None:
    """Mean PMI of true pieces, over two guesses without context: its bias, and its own mean."""
    contexts = collect_contexts(lm, bf.load_sts("mini-sts").sentences, n_contexts=600, min_left=1)
    targets = torch.from_numpy(contexts.targets)
    with torch.inference_mode():
        log_p = torch.log_softmax(scores(lm, contexts.h), dim=1)
    log_conditional = log_p.gather(1, targets[:, None])[:, 0].double().numpy()
    by_bias = torch.log_softmax(lm.bias, dim=0)[targets].double().numpy()
    by_mean = np.log(word_probabilities(lm, contexts)[contexts.targets])
    for unigram in (by_bias, by_mean):
        pmi = log_conditional - unigram
        assert pmi.mean() > 0.5
        assert pmi.mean() > 5 * pmi.std(ddof=1) / np.sqrt(len(pmi))


def test_it_fills_masks_with_pieces_that_depend_on_the_context(lm: LanguageModel) -> None:
    texts = ["She drank a cup of [MASK].", "The army lost the [MASK].", "It was [MASK] in 1912."]
    guesses = fill_mask(lm, texts, k=3)
    assert all(0 < one.probability < 1 for guess in guesses for one in guess)
    assert len({tuple(one.token for one in guess) for guess in guesses}) > 1


def test_the_card_tells_how_it_came_about(mini: Path) -> None:
    card = (mini / "README.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", card, re.M))
    assert int(table["updates (steps)"].replace(",", "")) > 0
    assert int(table["word pieces seen"].replace(",", "")) > 0
    first, last = (
        float(table[key].split()[0])
        for key in ("held-out loss before training", "final held-out loss")
    )
    assert 0 < last < first - 0.5
    shown = {key: table.get(key) for key in RECIPES["mini"].as_dict()}
    assert {"width": "256", "blocks": "4", "heads": "4", "length": "64"}.items() <= shown.items()
    for said in ("Wikipedia", "CC BY-SA 3.0", "GFDL", "page ids 12 to 12334", "not for production"):
        assert said in card
    assert "bertflow_lite pretrain --corpus" in card
    (said,) = re.findall(r"sha256 `([0-9a-f]{64})`", card)
    assert said == hashlib.sha256((mini / "model.safetensors").read_bytes()).hexdigest()


def test_commands_take_it_by_name(tmp_path: Path) -> None:
    sentences = tmp_path / "s.txt"
    sentences.write_text("\n".join(bf.load_sts("mini-sts").sentences[:60]), encoding="utf-8")
    model = ("--model", "mini-bert", "--device", "cpu")
    fitted, vectors = tmp_path / "c.safetensors", tmp_path / "v.npy"
    ran = [
        ("sts", *model, "--data", "mini-sts", "--calibrate", "none,sn", "--json"),
        ("fit", sentences, *model, "--layers", "last", "--calibrate", "sn", "--out", fitted),
        ("encode", sentences, "--with", fitted, "--device", "cpu", "--out", vectors),
    ]
    results = [CliRunner().invoke(app, list(map(str, command))) for command in ran]
    for result in results:
        assert result.exit_code == 0, result.output
    rows = json.loads(results[0].stdout)["results"]
    assert len(rows) == 2 and all(np.isfinite(row["all"]) for row in rows)
    assert np.load(vectors).shape == (60, 256)
    info = json.loads(CliRunner().invoke(app, ["info", "--json"]).stdout)
    (entry,) = [entry for entry in info["models"] if entry["name"] == "mini-bert"]
    assert entry["found"] and "data/models/mini-bert" in entry["where"]
