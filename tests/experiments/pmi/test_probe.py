"""The probe, on small models with random weights: the algebra must hold for any weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.language_model import (
    LanguageModel,
    load_language_model,
    scores,
)
from bertflow_lite.experiments.pmi import probe as lm_probe
from bertflow_lite.experiments.pmi import probe as pmi_probe
from bertflow_lite.experiments.pmi.probe import (
    Contexts,
    check_scores,
    collect_contexts,
    log_partition,
    moments,
    regress,
    word_probabilities,
)
from bertflow_lite.figures import pmi as figures

WORDS = [
    *("the", "a", "dog", "cat", "man", "house", "water", "is", "was", "in", "of", "red", "sees"),
    *("likes", "old", "new", "runs", "sits", "and", "not"),
]
SENTENCES = [
    "the dog sees a cat in the house",
    "a man likes the old house and the new dog",
    "the cat is not in the water",
    "the dog sees a red cat and runs",
]


def _tokenizer(folder: Path, *, masked: bool) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    core = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(special + WORDS)}, unk_token="[UNK]")
    )
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if masked:
        core.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=core, **names).save_pretrained(folder)


@pytest.fixture(scope="module", params=["masked", "causal"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    size = {"vocab_size": 25, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if request.param == "masked":
        model = BertForMaskedLM(BertConfig(**size, intermediate_size=32, initializer_range=0.5))
        with torch.no_grad():
            model.cls.predictions.bias.normal_()  # a fresh model's is zero, and would test nothing
    else:
        model = LlamaForCausalLM(
            LlamaConfig(
                **size, intermediate_size=32, tie_word_embeddings=True, initializer_range=0.5
            )
        )
    model.save_pretrained(place)
    _tokenizer(place, masked=request.param == "masked")
    return place


@pytest.fixture(scope="module")
def lm(folder: Path) -> LanguageModel:
    return load_language_model(folder, device="cpu")


@pytest.fixture(scope="module")
def contexts(lm: LanguageModel) -> Contexts:
    return collect_contexts(lm, SENTENCES, min_left=2, batch_tokens=32)


def test_scores_are_the_models_logits(lm: LanguageModel) -> None:
    assert check_scores(lm, SENTENCES[0]) < 1e-5
    assert (lm.bias.abs().max() > 0) == (lm.kind == "masked")


def test_masked_head_by_hand(lm: LanguageModel, contexts: Contexts) -> None:
    if lm.kind == "causal":
        pytest.skip("a causal model has no transform")
    text = contexts.texts[3]
    ids = torch.tensor([lm.tokenizer.convert_tokens_to_ids(text.split())])
    assert (ids == lm.tokenizer.mask_token_id).sum() == 1
    head, hidden = lm.model.cls.predictions, lm.model.bert(input_ids=ids).last_hidden_state
    h = torch.nn.functional.gelu(head.transform.dense(hidden[ids == lm.tokenizer.mask_token_id]))
    h = head.transform.LayerNorm(h)
    torch.testing.assert_close(contexts.h[3:4], h, atol=1e-5, rtol=1e-5)
    embedding = lm.model.bert.embeddings.word_embeddings.weight
    torch.testing.assert_close(scores(lm, h), h @ embedding.T + head.bias, atol=1e-5, rtol=1e-5)


def test_contexts_equal_one_plain_pass_each(lm: LanguageModel, contexts: Contexts) -> None:
    assert len(set(contexts.texts)) == len(contexts)
    for i in range(0, len(contexts), 5):
        ids = torch.tensor([lm.tokenizer.convert_tokens_to_ids(contexts.texts[i].split())])
        masked = ids[0] == lm.tokenizer.mask_token_id
        logits = lm.model(input_ids=ids).logits[0]
        wanted = logits[masked][0] if lm.kind == "masked" else logits[-1]
        torch.testing.assert_close(scores(lm, contexts.h[i : i + 1])[0], wanted, atol=1e-4, rtol=0)


def test_targets_are_what_stands_there(lm: LanguageModel, contexts: Contexts) -> None:
    assert {SENTENCES[i] for i in contexts.sentences} == set(SENTENCES)
    for text, target in zip(contexts.texts, contexts.targets, strict=True):
        word = lm.tokenizer.convert_ids_to_tokens(int(target))
        if lm.kind == "masked":
            whole = text.replace("[MASK]", word)
            assert whole in [f"[CLS] {s} [SEP]" for s in SENTENCES]
        else:
            assert any(f"{s} ".startswith(f"{text} {word} ") for s in SENTENCES)


def test_draw_is_seeded_and_limited(lm: LanguageModel) -> None:
    first, again, other = (
        collect_contexts(lm, SENTENCES, n_contexts=8, seed=seed) for seed in (0, 0, 1)
    )
    assert len(first) == 8
    assert first.texts == again.texts != other.texts
    assert torch.equal(first.h, again.h)


def test_no_context_is_an_error(lm: LanguageModel) -> None:
    with pytest.raises(ValueError, match="no sentence has more than"):
        collect_contexts(lm, ["dog"], min_left=5)


def test_probabilities_and_partition(
    lm: LanguageModel, contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_probe, "BLOCK", 7)  # several blocks, the last one short
    logits = scores(lm, contexts.h).double()
    p = torch.softmax(logits, dim=1).mean(dim=0).numpy()
    np.testing.assert_allclose(word_probabilities(lm, contexts), p, rtol=1e-4)
    np.testing.assert_allclose(
        log_partition(lm, contexts), np.log(np.exp(logits.numpy()).sum(axis=1)), rtol=1e-5
    )


@pytest.mark.parametrize("weights", ["pairs", "joint"])
@pytest.mark.parametrize("center", [False, True])
def test_moments_and_regression(
    lm: LanguageModel, contexts: Contexts, weights: str, center: bool
) -> None:
    p_word = word_probabilities(lm, contexts)
    found = moments(lm, contexts, p_word, weights=weights, center_words=center)
    s = scores(lm, contexts.h).double().numpy()
    if center:
        s -= s.mean(axis=1, keepdims=True)
    log_z = np.log(np.exp(s).sum(axis=1, keepdims=True))
    p = np.exp(s - log_z)
    log_p = np.broadcast_to(np.log(p_word), s.shape)
    columns = [s, s - log_z - log_p, log_p, np.broadcast_to(log_z, s.shape)]
    flat = np.stack([c.ravel() for c in columns])
    weight = np.ones(s.size) if weights == "pairs" else p.ravel()
    np.testing.assert_allclose(found.mean, np.average(flat, axis=1, weights=weight), atol=1e-4)
    np.testing.assert_allclose(
        found.covariance, np.cov(flat, aweights=weight, bias=True), atol=1e-3
    )
    assert found.largest_gap < 1e-5

    for terms in (("PMI",), ("PMI", "log p(x)"), lm_probe.TERMS):
        x = flat[[1 + lm_probe.TERMS.index(term) for term in terms]].T
        expected = LinearRegression().fit(x, flat[0], sample_weight=weight)
        result = regress(found, terms)
        np.testing.assert_allclose(list(result["coefficients"].values()), expected.coef_, atol=1e-3)
        assert result["r2"] == pytest.approx(expected.score(x, flat[0], weight), abs=1e-3)
    assert list(result["coefficients"].values()) == pytest.approx([1, 1, 1], abs=1e-3)


def test_bad_arguments(lm: LanguageModel, contexts: Contexts) -> None:
    p_word = word_probabilities(lm, contexts)
    with pytest.raises(ValueError, match="must be 'pairs' or 'joint'"):
        moments(lm, contexts, p_word, weights="both")
    with pytest.raises(ValueError, match="must be positive"):
        moments(lm, contexts, p_word[1:])
    with pytest.raises(ValueError, match="choose from"):
        regress(moments(lm, contexts, p_word), ["pmi"])


def test_model_without_a_head_is_refused(tmp_path: Path) -> None:
    BertModel(
        BertConfig(vocab_size=25, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                   intermediate_size=16)
    ).save_pretrained(tmp_path)  # fmt: skip
    _tokenizer(tmp_path, masked=True)
    with pytest.raises(ValueError, match=r"no language-model head.*'mini-bert' \(masked\)"):
        load_language_model(tmp_path)


@pytest.mark.usefixtures("minilm")
def test_minilm_has_no_head() -> None:
    with pytest.raises(ValueError, match=r"'minilm' was saved as BertModel.*'smollm2' \(causal\)"):
        load_language_model("minilm")


def test_run_probe_of_the_packaged_masked_model() -> None:
    pytest.importorskip("wordfreq")
    result = pmi_probe.run_probe(
        "mini-bert", sentences=load_sts("mini-sts").sentences[:40], n_contexts=60, n_pairs_of=30,
        device="cpu",
    )  # fmt: skip
    json.dumps(result, allow_nan=False)
    assert result["model"]["kind"] == "masked" and result["contexts"]["n"] == 60
    assert (result["model"]["n_vocabulary"], result["model"]["dim"]) == (30522, 256)
    assert result["scores"]["largest_gap_to_logits"] < 1e-4
    fits = result["regression"]["joint"]["fits"]
    assert fits["PMI + log p(x) + lambda_c"]["r2"] == pytest.approx(1, abs=1e-4)
    assert all("[MASK]" in one["name"] for one in result["neighbors"]["contexts"])


def test_head_that_was_not_saved_is_refused(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=25, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text().replace("BertModel", "BertForMaskedLM")
    (tmp_path / "config.json").write_text(text)
    _tokenizer(tmp_path, masked=True)
    with pytest.raises(ValueError, match=r"lack .* tensors of a .*ForMaskedLM"):
        load_language_model(tmp_path)


def test_run_probe(folder: Path) -> None:
    pytest.importorskip("wordfreq")
    result = pmi_probe.run_probe(str(folder), sentences=SENTENCES, n_pairs_of=20, device="cpu")
    json.dumps(result, allow_nan=False)
    fits = result["regression"]["pairs"]["fits"]
    assert fits["PMI + log p(x) + lambda_c"]["r2"] == pytest.approx(1, abs=1e-4)
    assert result["frequency"]["n_words"] == len(WORDS)
    neighbors = {one["name"]: one for one in result["neighbors"]["words"]}
    figures.scatter_figure(result["scatter"])
    figures.frequency_figure(result["frequency"])
    shown = figures.neighbors_figure(result["neighbors"]["contexts"], "context")
    assert len(shown.layout.updatemenus[0].buttons) == len(result["neighbors"]["contexts"])
    best = neighbors["dog"]["dot"]
    assert [v for _, v in best] == sorted((v for _, v in best), reverse=True)


def test_word_tokens() -> None:
    class Vocabulary:
        def __init__(self, *tokens: str) -> None:
            self.tokens = tokens

        def __len__(self) -> int:
            return len(self.tokens)

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [self.tokens[i] for i in ids]

    assert pmi_probe.word_tokens(Vocabulary("dog", "Ġdog", "Ġ", "ĠÃ©", "ĠThe", "Ġa1")) == {"dog": 1}
    assert pmi_probe.word_tokens(Vocabulary("[CLS]", "dog", "##ing", "Dog", "9")) == {"dog": 1}


def test_sample_sentences_is_seeded() -> None:
    first, source = pmi_probe.sample_sentences(10)
    assert first == pmi_probe.sample_sentences(10)[0] and len(set(first)) == 10
    assert source.startswith("mini-sts")
