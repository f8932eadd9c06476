"""Guesses for masks, on a small model with random weights: they must be its own softmax."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from bertflow_lite.encoders.language_model import (
    LanguageModel,
    Prediction,
    fill_mask,
    head_inputs,
    load_language_model,
    token_batches,
)

WORDS = ["the", "a", "dog", "cat", "man", "sees", "likes", "old", "new", "runs", "and", "not"]
SENTENCES = [
    "the [MASK] sees a cat",
    "[MASK] man likes the [MASK] and runs",
    "[MASK]",
    "the [MASK] sees a cat",
]
SIZE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 12,
    "initializer_range": 0.5,
}


def save(model: torch.nn.Module, folder: Path, *, mask: bool = True) -> Path:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(names + WORDS)}, "[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    core.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
    said = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    said |= {"mask_token": "[MASK]"} if mask else {}
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=core, **said).save_pretrained(folder)
    return folder


def masked_model() -> BertForMaskedLM:
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=len(WORDS) + 5, **SIZE))
    with torch.no_grad():
        model.cls.predictions.bias.normal_()
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(masked_model(), tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def lm(folder: Path) -> LanguageModel:
    return load_language_model(folder, device="cpu")


def plain(lm: LanguageModel, sentence: str) -> np.ndarray:
    """Give p(x|c) at the masks of one sentence, shape (n_masks, n_vocabulary), by its own pass."""
    ids = lm.tokenizer(sentence, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        p = torch.softmax(lm.model(input_ids=ids).logits[0], dim=1)
    return p[ids[0] == lm.tokenizer.mask_token_id].numpy()


def test_guesses_are_the_softmax_of_each_sentence_alone(lm: LanguageModel) -> None:
    guesses = fill_mask(lm, SENTENCES, k=4)
    wanted = np.concatenate([plain(lm, sentence) for sentence in SENTENCES])
    assert len(guesses) == len(wanted) == 5
    for guess, p in zip(guesses, wanted, strict=True):
        order = np.argsort(-p)[:4]
        assert [one.token for one in guess] == lm.tokenizer.convert_ids_to_tokens(order.tolist())
        np.testing.assert_allclose([one.probability for one in guess], p[order], rtol=1e-4)


def test_all_guesses_of_a_mask_sum_to_one(lm: LanguageModel) -> None:
    (guess,) = fill_mask(lm, ["the [MASK]"], k=len(lm.word_vectors))
    assert sum(one.probability for one in guess) == pytest.approx(1, abs=1e-5)
    assert len({one.token for one in guess}) == len(lm.word_vectors)
    assert guess == sorted(guess, key=lambda one: -one.probability)


def test_several_masks_are_guessed_while_the_others_stay(lm: LanguageModel) -> None:
    first, second = fill_mask(lm, ["the [MASK] likes [MASK]"], k=1)
    ((other,),) = fill_mask(lm, [f"the {first[0].token} likes [MASK]"], k=1)
    assert isinstance(other, Prediction)
    assert other.probability != second[0].probability


def test_no_sentence_gives_no_guess(lm: LanguageModel) -> None:
    assert fill_mask(lm, []) == []


@pytest.mark.parametrize(
    ("sentences", "options", "message"),
    [
        (["the [MASK]", "the dog"], {}, r"sentence 1 has no mask: 'the dog'. Write \[MASK\]"),
        (["the [mask]"], {}, "sentence 0 has no mask"),
        (["the " * 9 + "dog [MASK]"], {}, "sentence 0 has 13 tokens; .* takes 12 at most"),
        ("the [MASK]", {}, "is one string; give a list"),
        (["the [MASK]", None], {}, "sentence 1 is of type NoneType"),
        (["the [MASK]"], {"k": 0}, "k is 0; it must lie between 1 and 17"),
        (["the [MASK]"], {"k": 18}, "k is 18"),
    ],
)
def test_what_cannot_be_filled_is_said(
    lm: LanguageModel, sentences: list[str], options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fill_mask(lm, sentences, **options)


@pytest.mark.parametrize(
    ("kind", "pad", "most"),
    [("Bert", 0, 12), ("Roberta", 0, 11), ("XLMRoberta", 1, 10), ("Camembert", 1, 10),
     ("MPNet", 1, 10), ("Roberta", 3, 8)],
)  # fmt: skip
def test_positions_that_are_kept_for_padding_take_no_tokens(
    tmp_path: Path, kind: str, pad: int, most: int
) -> None:
    """RoBERTa states 12 positions and numbers them from the one after its padding token's id."""
    config = getattr(transformers, f"{kind}Config")
    model = getattr(transformers, f"{kind}ForMaskedLM")(
        config(vocab_size=len(WORDS) + 5, pad_token_id=pad, **SIZE)
    )
    lm = load_language_model(save(model, tmp_path), device="cpu")
    assert len(fill_mask(lm, ["[MASK]" + " dog" * (most - 3)], k=1)) == 1
    with pytest.raises(ValueError, match=f"has {most + 1} tokens; .* takes {most} at most"):
        fill_mask(lm, ["[MASK]" + " dog" * (most - 2)])


def test_a_causal_model_fills_no_masks(tmp_path: Path) -> None:
    config = LlamaConfig(vocab_size=len(WORDS) + 5, **SIZE)
    lm = load_language_model(save(LlamaForCausalLM(config), tmp_path), device="cpu")
    with pytest.raises(ValueError, match=r"predicts the next token.*'mini-bert'"):
        fill_mask(lm, ["the [MASK]"])


def test_a_tokenizer_without_a_mask_is_named(tmp_path: Path) -> None:
    lm = load_language_model(save(masked_model(), tmp_path, mask=False), device="cpu")
    with pytest.raises(ValueError, match="has no mask: take a folder"):
        fill_mask(lm, ["the [MASK]"])


def test_broken_weights_give_an_error_and_no_guess(tmp_path: Path) -> None:
    model = masked_model()
    with torch.no_grad():
        model.cls.predictions.transform.dense.bias[0] = torch.nan
    lm = load_language_model(save(model, tmp_path), device="cpu")
    with pytest.raises(FloatingPointError, match="are no numbers"):
        fill_mask(lm, ["the [MASK]"])


def test_batches_hold_all_rows_in_order(lm: LanguageModel) -> None:
    rows = [(1,), (2,), (3, 3), (4, 4, 4), (5,) * 9]
    batches = list(token_batches(rows, 4))
    assert [row for batch in batches for row in batch] == rows
    assert [len(batch) for batch in batches] == [2, 1, 1, 1]
    states = head_inputs(lm, [(2, 5, 3), (2, 3)])
    assert states.shape == (2, 3, 16)
    torch.testing.assert_close(states[1, :2], head_inputs(lm, [(2, 3)])[0], atol=1e-5, rtol=1e-5)
