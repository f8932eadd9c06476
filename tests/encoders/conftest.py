"""Tiny random models of many architectures, as folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = "it rained a man who had played the guitar all day put on chair and dog sat down beside . ,"
# What each kind of tokenizer puts around a sentence, and how it calls its special tokens.
KINDS: dict[str, tuple[list[str], str | None, dict[str, str]]] = {
    "bert": (
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
        "[CLS] $A [SEP]",
        {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    ),
    "roberta": (
        ["<s>", "<pad>", "</s>", "<unk>"],
        "<s> $A </s>",
        {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"},
    ),
    "t5": (
        ["<pad>", "</s>", "<unk>"],
        "$A </s>",
        {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"},
    ),
    "xlnet": (
        ["<unk>", "<cls>", "<sep>", "<pad>"],
        "$A <sep> <cls>",
        {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<cls>", "sep_token": "<sep>"},
    ),
    "gpt": (["<unk>", "<end>"], None, {"unk_token": "<unk>", "eos_token": "<end>"}),
    "gpt-cls": (
        ["<unk>", "<cls>"],
        "<cls> $A",
        {"unk_token": "<unk>", "cls_token": "<cls>", "pad_token": "<unk>"},
    ),
}
SIZES = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


@pytest.fixture
def sizes() -> dict[str, int]:
    """Give what makes most models tiny."""
    return dict(SIZES)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Give a function that saves a model with large random weights and a tokenizer of a kind."""

    def write(model: Any, kind: str = "bert", name: str = "model", **options: Any) -> Path:
        folder = tmp_path / name
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for tensor in model.parameters():
                if tensor.dim() > 1:  # large, so that a wrong vector is far from the right one
                    tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
        model.eval().save_pretrained(folder)
        special, template, names = KINDS[kind]
        ids = {word: i for i, word in enumerate([*special, *WORDS.split()])}
        tokenizer = Tokenizer(models.WordLevel(ids, unk_token=names["unk_token"]))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        if template is not None:
            around = [(word, ids[word]) for word in template.split() if word != "$A"]
            tokenizer.post_processor = processors.TemplateProcessing(template, None, around)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **options)
        fast.save_pretrained(folder)
        return folder

    return write
