"""Transformers with random weights: what can be had from a network that has learned nothing.

Two kinds of names.  ``random-minilm[:SEED]`` has the shape of the packaged MiniLM.
``random-bert-WIDTHxBLOCKS[:SEED]`` is a BERT of any shape, for instance ``random-bert-768x12:3``.
All use MiniLM's tokenizer, which has BERT's own 30,522 wordpieces.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import torch

from bertflow_lite.encoders.folder import read_tokenizer

__all__ = ["is_random_name", "load_random"]

INITIAL_STD = 0.02  # of every weight in BERT; biases start at 0, layer norms at the identity
_BERT_NAME = re.compile(r"random-bert-(\d+)x(\d+)(?::(\d+))?")
_MINILM_NAME = re.compile(r"random-minilm(?::(\d+))?")


def is_random_name(name: str) -> bool:
    """Whether a model name asks for random weights, well-formed or not."""
    return name.startswith(("random-mini", "random-bert"))


def load_random(name: str, folder: str) -> tuple[Any, Any]:
    """Make a transformer with random weights, and give it the tokenizer of a folder.

    ``random-minilm[:SEED]`` takes the configuration of that folder.  Every weight matrix and
    embedding of ``random-bert-WIDTHxBLOCKS[:SEED]`` is drawn from N(0, 0.02^2), as before BERT's
    training, by a generator of its own that is seeded with the seed and the tensor's name.  So the
    weights are the same on every machine, and a network of few blocks is the beginning of the one
    with more: hidden state k of ``random-bert-384x12`` is the last one of ``random-bert-384xk``.
    """
    from transformers import AutoConfig, AutoModel, BertConfig, BertModel

    tokenizer = read_tokenizer(name, Path(folder))
    if shape := _BERT_NAME.fullmatch(name):
        width, blocks = int(shape[1]), int(shape[2])
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            num_hidden_layers=blocks,
            num_attention_heads=_heads(name, width, blocks),
            intermediate_size=4 * width,
            initializer_range=INITIAL_STD,
            pad_token_id=tokenizer.pad_token_id,
        )
        with torch.random.fork_rng(devices=[]):  # the caller's random state stays as it is
            model = BertModel(config, add_pooling_layer=False)
        _draw(model, int(shape[3] or 0))
    elif shape := _MINILM_NAME.fullmatch(name):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(shape[1] or 0))
            config = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            model = AutoModel.from_config(config, trust_remote_code=False)
    else:
        raise ValueError(
            f"{name!r} is no random model: write random-bert-WIDTHxBLOCKS or random-minilm, and "
            "after a colon the seed, which must be a whole number, as in random-bert-384x6:1."
        )
    return model, tokenizer


def _heads(name: str, width: int, blocks: int) -> int:
    """Heads of 64 dimensions, as all of BERT's sizes have; of 32 where 64 does not divide."""
    if blocks < 1 or width < 32 or width % 32:
        raise ValueError(
            f"{name!r} asks for width {width} and {blocks} blocks; the width must be a multiple of "
            "32 (64 for BERT's own heads), and there must be a block."
        )
    return width // 64 if width % 64 == 0 else width // 32


@torch.no_grad()
def _draw(model: torch.nn.Module, seed: int) -> None:
    for name, tensor in model.named_parameters():
        if tensor.dim() < 2:
            tensor.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)
            continue
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        # Drawn in double: rounding to single hides the last bits, in which processors differ.
        values = torch.empty(tensor.shape, dtype=torch.float64)
        tensor.copy_(values.normal_(0.0, INITIAL_STD, generator=generator))
    padding = model.get_input_embeddings().padding_idx  # type: ignore[operator]
    if padding is not None:
        model.get_input_embeddings().weight[padding] = 0.0  # type: ignore[operator]
