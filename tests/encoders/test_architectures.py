"""Models of many kinds: each gives what transformers gives for one sentence by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from numpy.testing import assert_allclose

from bertflow_lite.encoders import folder as trial
from bertflow_lite.encoders import transformer as encode
from bertflow_lite.encoders.transformer import load_encoder

SENTENCES = [
    "it rained .",
    "dog",
    "a man who had played the guitar all day put it on a chair , and the dog sat down beside it .",
    "the man sat",
    "the dog sat",
]
SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 32,
    "max_position_embeddings": 64,
}  # fmt: skip
T5 = {"vocab_size": 32, "d_model": 32, "num_layers": 3, "num_heads": 4, "d_kv": 8, "d_ff": 64}
XLNET = {"vocab_size": 32, "d_model": 32, "d_inner": 64, "n_head": 4, "d_head": 8, "n_layer": 3}
# Name to the class of model and of configuration, its sizes where they are called otherwise, and
# the kind of tokenizer.
WITH_A_MASK: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert": ("BertModel", "BertConfig", {}, "bert"),
    "roberta": (
        "RobertaModel", "RobertaConfig", {"pad_token_id": 1, "max_position_embeddings": 66},
        "roberta",
    ),
    "electra": ("ElectraModel", "ElectraConfig", {"embedding_size": 16}, "bert"),
    "deberta": (
        "DebertaV2Model", "DebertaV2Config",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, "bert",
    ),
    "modernbert": ("ModernBertModel", "ModernBertConfig", {"pad_token_id": 0}, "bert"),
    "xlnet": ("XLNetModel", "XLNetConfig", XLNET, "xlnet"),
    "gpt2": ("GPT2Model", "GPT2Config", {}, "gpt"),
    "llama": ("LlamaModel", "LlamaConfig", {"num_key_value_heads": 2}, "gpt"),
    "t5": ("T5Model", "T5Config", T5, "t5"),
    "t5-encoder": ("T5EncoderModel", "T5Config", T5, "t5"),
    "bart": ("BartModel", "BartConfig", SEQ2SEQ, "roberta"),
    "marian": ("MarianModel", "MarianConfig", SEQ2SEQ | {"pad_token_id": 0}, "t5"),
}  # fmt: skip
WITHOUT: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "fnet": ("FNetModel", "FNetConfig", {}, "bert"),
    "convbert": ("ConvBertModel", "ConvBertConfig", {"embedding_size": 32}, "bert"),
    "nystromformer": (
        "NystromformerModel", "NystromformerConfig", {"segment_means_seq_len": 64}, "bert",
    ),
}  # fmt: skip


def make(sizes: dict[str, int], model: str, config: str, own: dict[str, Any]) -> Any:
    given = own if "d_model" in own else sizes | own
    torch.manual_seed(0)
    return getattr(hf, model)(getattr(hf, config)(**given))


def alone(model: Any, tokenizer: Any, sentence: str) -> list[np.ndarray]:
    """Average each hidden state of one sentence, with nothing but transformers."""
    ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    return [state[0].mean(dim=0).numpy() for state in states]


@pytest.mark.parametrize("name", [*WITH_A_MASK, *WITHOUT])
def test_a_sentence_has_the_vector_that_it_has_alone(name, sizes, save, own_cache):
    model_class, config_class, own, kind = (WITH_A_MASK | WITHOUT)[name]
    folder = save(make(sizes, model_class, config_class, own), kind)
    encoder = load_encoder(folder, device="cpu", max_length=48)
    assert encoder.mask_works == (name in WITH_A_MASK)
    model = getattr(hf, model_class).from_pretrained(folder, trust_remote_code=False).eval()
    found = encoder.encode(SENTENCES, list(range(encoder.n_layers + 1)))
    assert encoder.n_layers == 3
    for row, sentence in enumerate(SENTENCES):
        expected = alone(model, encoder.tokenizer, sentence)
        assert len(expected) == len(found)
        for state, vector in enumerate(expected):
            assert_allclose(
                found[str(state)][row], vector, rtol=0, atol=2e-5 * max(1, np.abs(vector).max())
            )


def test_only_equal_lengths_share_a_batch_where_no_mask_works(sizes, save, own_cache):
    folder = save(make(sizes, *WITHOUT["fnet"][:3]))
    encoder = load_encoder(folder, device="cpu", max_length=48)
    seen: list[tuple[int, ...]] = []
    encoder.model.register_forward_pre_hook(
        lambda _, args, given: seen.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    encoder.encode(SENTENCES)
    assert seen == [(1, 25), (3, 5), (1, 3)]
    seen.clear()
    rows = [row for batch in encoder.hidden_states(SENTENCES, batch_size=2) for row in batch.rows]
    assert seen == [(1, 3), (2, 5), (1, 5), (1, 25)] and sorted(rows) == [0, 1, 2, 3, 4]


def test_vectors_of_mixed_batches_are_not_taken_from_an_old_cache(sizes, save, own_cache):
    """Whoever encoded them with an earlier version has wrong ones under the plain name."""
    folder = save(make(sizes, *WITHOUT["fnet"][:3]))
    encoder = load_encoder(folder, device="cpu", max_length=48)
    assert encoder._cache.path.name.startswith(f"{encoder.fingerprint}-len48-float32-equal-")


# ------------------------------------------------------------------------------ what is refused


def clip() -> Any:
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4, "projection_dim": 16}  # fmt: skip
    return hf.CLIPModel(
        hf.CLIPConfig(
            text_config=small | {"vocab_size": 32, "eos_token_id": 1},
            vision_config=small | {"image_size": 16, "patch_size": 8},
            projection_dim=16,
        )
    )


def vit(sizes: dict[str, int]) -> Any:
    sizes.pop("vocab_size")
    return hf.ViTModel(hf.ViTConfig(**sizes, image_size=16, patch_size=8))


def funnel(sizes: dict[str, int]) -> Any:
    return hf.FunnelModel(
        hf.FunnelConfig(
            vocab_size=32, block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=64
        )
    )


def canine(sizes: dict[str, int]) -> Any:
    return hf.CanineModel(hf.CanineConfig(**sizes, num_hash_buckets=64, local_transformer_stride=8))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda sizes: clip(), "CLIPModel.* no text model: beside tokens it wants pixel_values"),
        (vit, "ViTModel.* is no text model: it reads pixel_values, not the tokens"),
        (funnel, r"FunnelModel.* joins or splits .* hidden state \d has \d+ vectors for \d+ tok"),
        (canine, r"CanineModel.* joins or splits .* hidden state \d has \d+ vectors for \d+ tok"),
    ],
)  # fmt: skip
def test_what_gives_no_vector_for_each_token_is_refused(model, words, sizes, save, own_cache):
    with pytest.raises(ValueError, match=words) as caught:
        load_encoder(save(model(sizes)), device="cpu")
    assert "\n" not in str(caught.value)


def test_the_text_part_of_a_model_of_images_is_a_text_model(sizes, save, own_cache):
    text = save(hf.CLIPTextModel(clip().config.text_config), name="text")
    assert load_encoder(text, device="cpu").encode(SENTENCES).shape == (5, 32)
    images = {**sizes, "image_size": 16, "patch_size": 8, "model_type": "clip_vision_model"}
    images.pop("vocab_size")
    config = hf.LlavaConfig(
        text_config={**sizes, "model_type": "llama"}, vision_config=images, image_token_index=31
    )
    encoder = load_encoder(save(hf.LlavaModel(config), "gpt", "both"), device="cpu")
    assert encoder.n_layers == 3 and encoder.encode(SENTENCES).shape == (5, 32)


def test_a_model_whose_vectors_depend_on_the_whole_batch_is_refused(
    tiny_bert_folder, own_cache, monkeypatch
):
    """Normalized over the batch, say; no grouping of sentences helps there."""
    from transformers.models.bert.modeling_bert import BertEmbeddings

    monkeypatch.setattr(trial, "_known", {})  # another test may have loaded this folder
    plain = BertEmbeddings.forward
    monkeypatch.setattr(
        BertEmbeddings, "forward", lambda *a, **k: (x := plain(*a, **k)) - x.mean(0) / 2
    )
    with pytest.raises(ValueError, match="depends on the other sentences in its batch"):
        load_encoder(tiny_bert_folder, device="cpu", max_length=24, cache=False)


def test_an_encoder_may_be_made_smaller_than_its_batch(sizes, save, own_cache, monkeypatch):
    """Of models without a mask, too, a batch holds no more than memory allows."""
    monkeypatch.setitem(encode.BATCH_TOKENS, "cpu", 1)
    encoder = load_encoder(save(make(sizes, *WITHOUT["fnet"][:3])), device="cpu", max_length=48)
    one = np.vstack([encoder.encode([s]) for s in SENTENCES])
    monkeypatch.setitem(encode.BATCH_TOKENS, "cpu", 512)
    encoder._cache.path = None
    assert_allclose(encoder.encode(SENTENCES), one, rtol=0, atol=1e-5)
