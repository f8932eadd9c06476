"""The trial at loading: tokenizer against model, and what a configuration claims."""

from __future__ import annotations

import json

import numpy as np
import pytest
import transformers as hf

from bertflow_lite.encoders import folder as trial
from bertflow_lite.encoders.models import load_model
from bertflow_lite.encoders.transformer import Encoder, load_encoder

LONG = "the guitar " * 99


@pytest.fixture
def forget(monkeypatch):
    monkeypatch.setattr(trial, "_known", {})


OFFSETS = {
    "roberta": (hf.RobertaModel, hf.RobertaConfig, "roberta", 64),  # two rows are for other ends
    "mpnet": (hf.MPNetModel, hf.MPNetConfig, "roberta", 64),
    "camembert": (hf.CamembertModel, hf.CamembertConfig, "roberta", 64),
    "bert": (hf.BertModel, hf.BertConfig, "bert", 66),
    "gpt2": (hf.GPT2Model, hf.GPT2Config, "gpt", 66),
    "opt": (hf.OPTModel, hf.OPTConfig, "gpt", 66),  # two rows more than it says
}


@pytest.mark.parametrize("name", OFFSETS)
def test_a_sentence_of_as_many_tokens_as_are_allowed_is_encoded(name, sizes, save, own_cache):
    model, config, kind, usable = OFFSETS[name]
    pad = {"pad_token_id": 1} if kind == "roberta" else {}
    sizes |= {"ffn_dim": 64, "word_embed_proj_dim": 32} if name == "opt" else {}
    folder = save(model(config(**sizes, **pad, max_position_embeddings=66)), kind)
    encoder = load_encoder(folder, device="cpu", max_length=usable)
    assert np.isfinite(encoder.encode([LONG])).all()
    with pytest.raises(ValueError, match=f"max_length is {usable + 1}; .* takes 3 to {usable} tok"):
        encoder.max_length = usable + 1


def test_no_limit_is_no_number_of_tokens(sizes, save, own_cache):
    """XLNet writes -1 for the positions that it does not have, and T5 nothing."""
    config = hf.XLNetConfig(vocab_size=32, d_model=32, n_layer=2, n_head=4, d_head=8, d_inner=64)
    encoder = load_encoder(save(hf.XLNetModel(config), "xlnet"), device="cpu", max_length=150)
    assert encoder.encode([LONG]).shape == (1, 32)


def test_a_vocabulary_larger_than_the_table_is_refused(sizes, save, own_cache):
    sizes["vocab_size"] = 20
    with pytest.raises(
        ValueError, match=r"numbers its tokens up to 24, and the model has 20 embed"
    ):
        load_encoder(save(hf.BertModel(hf.BertConfig(**sizes))), device="cpu")


def test_an_added_token_without_a_row_is_refused_and_padding_needs_none(sizes, save, own_cache):
    sizes["vocab_size"] = 23  # as many as the tokenizer's words
    model = hf.GPT2Model(hf.GPT2Config(**sizes))
    padded = save(model, "gpt", "padded", pad_token="<fill>")
    encoder = load_encoder(padded, device="cpu")
    assert encoder.tokenizer.pad_token_id == 23
    both = encoder.encode(["dog", "the man sat down"], "last")
    assert np.allclose(both[0], encoder.encode(["dog"], "last")[0], atol=1e-5)
    with pytest.raises(ValueError, match="numbers its tokens up to 23, and the model has 23"):
        load_encoder(save(model, "gpt", "named", mask_token="<hole>"), device="cpu")


@pytest.mark.parametrize(
    ("kind", "model", "words"),
    [
        ("xlnet", "bert", "does not put its <cls> there"),
        ("t5", "bert", r"needs a \[CLS\] token"),
        ("gpt-cls", "gpt2", "sees nothing of the sentence"),
    ],
)
def test_cls_is_refused_where_the_first_token_is_none(kind, model, words, sizes, save, own_cache):
    made = {"bert": (hf.BertModel, hf.BertConfig), "gpt2": (hf.GPT2Model, hf.GPT2Config)}[model]
    encoder = load_encoder(save(made[0](made[1](**sizes)), kind), device="cpu")
    assert encoder.encode(["dog"], "last").any()
    with pytest.raises(ValueError, match=words):
        encoder.encode(["dog"], ["last", "cls"])


def test_a_tokenizer_without_its_post_processor_is_refused_cls(sizes, save, own_cache):
    folder = save(hf.BertModel(hf.BertConfig(**sizes)))
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}))
    with pytest.raises(ValueError, match=r"does not put its \[CLS\] there"):
        load_encoder(folder, device="cpu").encode(["dog"], "cls")


def test_it_is_made_once_for_a_fingerprint(tiny_bert_folder, own_cache, monkeypatch, forget):
    made: list[str] = []
    plain = trial._try
    monkeypatch.setattr(trial, "_try", lambda name, *a: made.append(name) or plain(name, *a))
    loaded = load_model(tiny_bert_folder, device="cpu")
    first = Encoder(loaded, max_length=24)
    Encoder(load_model(tiny_bert_folder, device="cpu"), max_length=24)
    assert len(made) == 1
    assert Encoder(loaded, max_length=24)._trial is first._trial
