"""Sentences to embeddings: equal to a plain reference, and nothing done twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from transformers import BatchEncoding

from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders import transformer as encode
from bertflow_lite.encoders.models import load_model, packaged_path
from bertflow_lite.encoders.pooling import pool
from bertflow_lite.encoders.transformer import Encoder, load_encoder

SENTENCES = [
    "A man is playing a guitar.",
    "Yes",
    "",
    "The quick brown fox jumps over the lazy dog, and then it runs away across the wide field.",
    "Prices rose 3.5% in 2019 — naïvely 🙂",
    "word " * 100,
]
TINY = ["the cat sat", "a dog ran on the mat .", "red", "one two three", "", "the tree is not blue"]


@pytest.fixture(autouse=True)
def _one_thread():
    """A batch on the CPU grows with the threads; here its size shall be the same everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reference(model, tokenizer, sentence: str, indices: tuple[int, ...], max_length: int):
    """Encode one sentence by itself, with nothing but transformers: no padding, no batch."""
    tokens = tokenizer(sentence, truncation=True, max_length=max_length, return_tensors="pt")
    with torch.no_grad():
        states = model(**tokens, output_hidden_states=True).hidden_states
    return torch.stack([states[i][0].mean(dim=0) for i in indices]).mean(dim=0).numpy()


def count_calls(encoder: Encoder) -> list[int]:
    """Give a list that grows by the batch size with each forward pass."""
    calls: list[int] = []
    encoder.model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    return calls


@pytest.mark.parametrize("max_length", [64, 12])
def test_means_equal_a_plain_reference(minilm, own_cache, max_length):
    choices = {"last": (6,), "last2avg": (6, 5), "first-last": (1, 6), "embeddings-last": (0, 6),
               "4": (4,), "0,2,3": (0, 2, 3)}  # fmt: skip
    encoder = Encoder(minilm, max_length=max_length)
    found = encoder.encode(SENTENCES, list(choices))
    assert list(found) == list(choices)
    for label, indices in choices.items():
        expected = [
            reference(minilm.model, minilm.tokenizer, s, indices, max_length) for s in SENTENCES
        ]
        assert found[label].dtype == np.float32
        assert_allclose(found[label], expected, rtol=0, atol=1e-5)


def test_equals_sentence_transformers(minilm, own_cache):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(packaged_path("minilm")), device="cpu")
    theirs.max_seq_length = 64
    ours = Encoder(minilm).encode(SENTENCES, "last")
    ours /= np.linalg.norm(ours, axis=1, keepdims=True)
    expected = theirs.encode(SENTENCES, normalize_embeddings=True)
    assert_allclose(ours, expected, rtol=0, atol=1e-5)


def test_a_causal_model_equals_the_reference(tiny_llama):
    found = tiny_llama.encode(TINY[:4], "last2avg")
    for row, sentence in zip(found, TINY[:4], strict=True):
        expected = reference(tiny_llama.model, tiny_llama.tokenizer, sentence, (2, 1), 24)
        assert_allclose(row, expected, rtol=0, atol=1e-5)


def test_an_empty_sentence_is_its_special_tokens_or_the_zero_vector(tiny_bert, tiny_llama):
    expected = reference(tiny_bert.model, tiny_bert.tokenizer, "", (2,), 24)
    assert_allclose(tiny_bert.encode([""], "last")[0], expected, atol=1e-5)
    assert_array_equal(tiny_llama.encode(["", "red"], "last")[0], np.zeros(16))
    assert tiny_llama.encode(["", "red"], "last")[1].any()


def test_cls_is_the_first_token(tiny_bert):
    tokens = tiny_bert.tokenizer(TINY[1], return_tensors="pt")
    with torch.no_grad():
        expected = tiny_bert.model(**tokens).last_hidden_state[0, 0]
    assert_allclose(tiny_bert.encode(TINY, "cls")[1], expected, atol=1e-5)
    both = tiny_bert.encode(TINY, ["cls", "last"])
    assert not np.allclose(both["cls"], both["last"])


def test_a_model_without_cls_token_refuses_cls(tiny_llama):
    with pytest.raises(ValueError, match=r"needs a \[CLS\] token"):
        tiny_llama.encode(TINY, ["last", "cls"])


def test_pool_ignores_padding_even_where_it_is_nan():
    states = torch.tensor([[[1.0], [3.0], [torch.nan]], [[torch.nan]] * 3])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert pool(states, mask, "mean:0").tolist() == [[2.0], [0.0]]
    assert pool(states.half(), mask, "mean:0").dtype == torch.float32


@pytest.mark.parametrize("tokens", [1, 8, 10_000])
def test_batching_order_and_repeats_do_not_matter(tiny_bert_folder, own_cache, monkeypatch, tokens):
    monkeypatch.setitem(encode.BATCH_TOKENS, "cpu", tokens)
    encoder = Encoder(load_model(tiny_bert_folder, device="cpu"), max_length=24, cache=False)
    one_by_one = np.vstack([encoder.encode([s]) for s in TINY])
    assert_allclose(encoder.encode(TINY), one_by_one, atol=1e-5)
    order = [3, 0, 5, 3, 1, 2, 4, 0]
    calls = count_calls(encoder)
    assert_allclose(encoder.encode([TINY[i] for i in order]), one_by_one[order], atol=1e-5)
    assert sum(calls) == len(TINY)
    assert (len(calls) == 1) == (tokens == 10_000)


def test_shards_join_in_order(tiny_bert, monkeypatch):
    whole = tiny_bert.encode(TINY)
    monkeypatch.setattr(encode, "SHARD", 2)
    tiny_bert._cache.path.unlink()
    assert_allclose(tiny_bert.encode(TINY), whole, atol=1e-6)


@pytest.mark.parametrize("how", [{}, {"batch_size": 2}, {"batch_tokens": 10}])
def test_hidden_states_are_what_encode_pools(tiny_bert, how):
    longest = []
    met = []
    for rows, ids, mask, states in tiny_bert.hidden_states(TINY, **how):
        assert len(states) == tiny_bert.n_layers + 1 and ids.shape == mask.shape
        assert states[0].shape == (*mask.shape, tiny_bert.dim)
        for layer in (0, -1):
            mean = (states[layer] * mask.unsqueeze(2)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
            pooled = tiny_bert.encode([TINY[row] for row in rows], layer)
            assert_allclose(mean.numpy(), pooled, atol=1e-5)
        longest.append(mask.shape[1])
        met += rows.tolist()
    assert sorted(met) == list(range(len(TINY)))
    assert longest == sorted(longest, reverse="batch_tokens" in how)
    assert (len(longest) == 1) == (not how)


def test_hidden_states_follow_the_mode_of_the_model_and_pass_over_nothing(tiny_bert, tiny_llama):
    tiny_bert.model.train()
    first, again = (next(tiny_bert.hidden_states(TINY)).states[-1] for _ in range(2))
    assert not np.allclose(first, again)
    tiny_bert.model.eval()
    tiny_llama.tokenizer.add_bos_token = False
    texts = ["the cat", "", "a dog"]
    empty = [not ids for ids in tiny_llama.tokenizer(texts)["input_ids"]]
    rows = [row for batch in tiny_llama.hidden_states(texts) for row in batch.rows.tolist()]
    assert sorted(rows) == [row for row in range(3) if not empty[row]]


def test_one_forward_pass_serves_several_choices_and_the_next_run(tiny_bert, tiny_bert_folder):
    calls = count_calls(tiny_bert)
    first = tiny_bert.encode(TINY, ["last2avg", "first-last", (0, 1), "cls"])
    assert len(calls) == 1
    assert list(first) == ["last2avg", "first-last", "0,1", "cls"]
    assert_array_equal(tiny_bert.encode(TINY, "first-last"), first["first-last"])
    assert tiny_bert.encode(TINY, (0, 2)).shape == (6, 16)  # both states are known by now
    again = Encoder(load_model(tiny_bert_folder, device="cpu"), max_length=24)
    calls_again = count_calls(again)
    assert_array_equal(again.encode(TINY, "cls"), first["cls"])
    assert len(calls) == 1 and calls_again == []


def test_only_new_sentences_are_encoded(tiny_bert):
    calls = count_calls(tiny_bert)
    tiny_bert.encode(TINY[:4])
    tiny_bert.encode(TINY)
    assert calls == [4, 2]


def test_an_interrupted_run_keeps_what_it_had(tiny_bert, monkeypatch):
    monkeypatch.setitem(encode.BATCH_TOKENS, "cpu", 1)  # one sentence in a batch
    calls: list[int] = []

    def interrupt(*_):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    hook = tiny_bert.model.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        tiny_bert.encode(TINY)
    hook.remove()
    rest = count_calls(tiny_bert)
    found = tiny_bert.encode(TINY)
    assert len(rest) == len(TINY) - 2
    tiny_bert._cache.path = None
    assert_allclose(found, tiny_bert.encode(TINY), atol=1e-6)


def test_finished_rows_are_kept_from_time_to_time(tiny_bert, monkeypatch):
    monkeypatch.setitem(encode.BATCH_TOKENS, "cpu", 1)
    monkeypatch.setattr(encode, "KEEP_SECONDS", -1.0)
    kept: list[int] = []

    def look(*_):
        out = np.empty((len(TINY), 16), dtype=np.float32)
        kept.append(int(tiny_bert._cache.read(TINY, "mean:2", out).sum()))

    tiny_bert.model.register_forward_pre_hook(look)
    tiny_bert.encode(TINY, "last")
    assert kept == [0, 1, 2, 3, 4, 5]


def test_max_length_cuts_and_has_a_cache_of_its_own(tiny_bert, tiny_bert_folder):
    short = Encoder(load_model(tiny_bert_folder, device="cpu"), max_length=4)
    long = "the cat sat on the mat ."
    assert not np.allclose(tiny_bert.encode([long]), short.encode([long]))
    assert_allclose(short.encode([long]), tiny_bert.encode(["the cat"]), atol=1e-5)


def test_a_changed_max_length_changes_the_cache(tiny_bert, tiny_bert_folder):
    """Else vectors of cut sentences would be given for whole ones, for ever."""
    long = "the cat sat on the mat ."
    tiny_bert.max_length = 4
    cut = tiny_bert.encode([long])
    assert_allclose(cut, tiny_bert.encode(["the cat"]), atol=1e-5)
    whole = Encoder(load_model(tiny_bert_folder, device="cpu"), max_length=24).encode([long])
    assert not np.allclose(cut, whole)
    tiny_bert.max_length = 24
    assert_array_equal(tiny_bert.encode([long]), whole)
    with pytest.raises(ValueError, match="takes 3 to 24"):
        tiny_bert.max_length = 25
    assert tiny_bert.max_length == 24


@pytest.mark.parametrize("fast", [True, False])
def test_cut_sentences_are_counted_in_one_warning(tiny_bert, monkeypatch, caplog, fast):
    if not fast:  # a slow tokenizer does not say what it cut off
        monkeypatch.setattr(BatchEncoding, "encodings", None)
    monkeypatch.setattr(encode, "SHARD", 2)
    tiny_bert.max_length = 8
    fits = "the cat sat on the mat"  # 8 tokens with [CLS] and [SEP]
    texts = [fits, f"{fits} .", f"{fits} . {fits}", "red"]
    tiny_bert.encode([*texts, *texts])
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 4 sentences were cut at 8 tokens; a larger max_length reads more"
    ]
    tiny_bert.encode([*texts, "blue"])  # those that were cut are known by now
    assert len(caplog.records) == 1


def test_no_sentence_of_the_packaged_set_is_cut(minilm, own_cache, caplog):
    encoder = Encoder(minilm, cache=False)
    _, cut = encoder._tokenize(load_sts("mini-sts").sentences)
    assert cut == 0


def test_without_cache_nothing_is_written_and_calls_repeat(tiny_bert_folder, own_cache):
    encoder = Encoder(load_model(tiny_bert_folder, device="cpu"), max_length=24, cache=False)
    calls = count_calls(encoder)
    assert_array_equal(encoder.encode(TINY), encoder.encode(TINY))
    assert len(calls) == 2 and not own_cache.exists()


def test_an_unusable_cache_folder_is_a_warning(tiny_bert, tiny_bert_folder, monkeypatch, caplog):
    expected = tiny_bert.encode(TINY)
    monkeypatch.setenv("BERTFLOW_CACHE", str(tiny_bert_folder / "config.json"))
    encoder = Encoder(load_model(tiny_bert_folder, device="cpu"), max_length=24)
    assert_allclose(encoder.encode(TINY), expected, atol=1e-6)
    assert "going on without it" in caplog.text


def test_weights_are_frozen_and_dropout_is_off_whatever_a_caller_did(tiny_bert):
    expected = tiny_bert.encode(TINY)
    tiny_bert._cache.path = None
    tiny_bert.model.train()
    found = tiny_bert.encode(TINY)
    assert_array_equal(found, expected)
    assert not any(module.training for module in tiny_bert.model.modules())
    assert not any(p.requires_grad for p in tiny_bert.model.parameters())


def test_the_global_random_state_is_left_alone(tiny_bert):
    before = torch.get_rng_state()
    tiny_bert.encode(TINY)
    assert torch.equal(before, torch.get_rng_state())


def test_no_sentence_gives_no_row(tiny_bert):
    assert tiny_bert.encode([]).shape == (0, 16)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ("one string", "one string"),
        (None, "NoneType"),
        (["a", 3], "sentence 1 is of type int"),
        (["a", None], "sentence 1 is of type NoneType"),
        (["a", "b\udcff"], "sentence 1 holds a lone surrogate"),
    ],
)
def test_bad_sentences_are_named(tiny_bert, sentences, message):
    with pytest.raises(ValueError, match=message):
        tiny_bert.encode(sentences)


@pytest.mark.parametrize("layers", ["lastt", 3, (0, -4), [], [()]])
def test_bad_layers_are_named(tiny_bert, layers):
    with pytest.raises(ValueError, match="layers"):
        tiny_bert.encode(TINY, layers)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 2}, "max_length is 2; .* takes 3 to 24"),
        ({"max_length": 25}, "max_length is 25; .* takes 3 to 24"),
        ({"max_length": 24.0}, "max_length is 24.0; give a whole number"),
        ({"max_length": None}, "max_length is None; give a whole number"),
        ({"max_length": True}, "max_length is True; give a whole number"),
        ({"max_length": 24, "precision": "int8"}, "precision is 'int8'"),
    ],
)
def test_bad_settings_are_named(tiny_bert_folder, settings, message):
    with pytest.raises(ValueError, match=message):
        load_encoder(tiny_bert_folder, **settings)


def test_broken_weights_are_named(tiny_bert_folder, tmp_path, own_cache):
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(tiny_bert_folder, tmp_path / "broken"))
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"][:] = torch.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    encoder = load_encoder(folder, max_length=24, device="cpu")
    assert np.isfinite(encoder.encode(TINY, 1)).all()
    with pytest.raises(ValueError, match="non-finite vector in hidden state 2"):
        encoder.encode(TINY, "last")


def test_bfloat16_is_near_float32_and_kept_apart(tiny_bert, tiny_bert_folder):
    exact = tiny_bert.encode(TINY)
    low = load_encoder(tiny_bert_folder, max_length=24, device="cpu", precision="bfloat16")
    found = low.encode(TINY)
    assert found.dtype == np.float32
    assert 0 < np.abs(found - exact).max() < 0.2


@pytest.mark.parametrize("has_units", [False, True])
def test_bfloat16_on_a_cpu_without_its_units_is_said_to_be_slow(
    tiny_bert_folder, monkeypatch, caplog, own_cache, has_units
):
    monkeypatch.setattr("bertflow_lite.devices.computes_in_bfloat16", lambda _: has_units)
    load_encoder(tiny_bert_folder, max_length=24, device="cpu", precision="bfloat16")
    assert ("slower here than 'float32'" in caplog.text) is not has_units
    caplog.clear()
    load_encoder(tiny_bert_folder, max_length=24, device="cpu", precision="float32")
    assert not caplog.text


def test_repr_says_what_it_is(tiny_bert):
    assert "dim=16, n_layers=2, max_length=24, device='cpu'" in repr(tiny_bert)
