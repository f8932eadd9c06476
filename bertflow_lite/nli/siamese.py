"""The network of `nli.fine_tune`: one encoder for both sentences, and a softmax over both.

It is sentence-transformers' `SoftmaxLoss` over `Transformer` and `Pooling`; two things differ.  The
softmax has no bias unless asked.  And on a CPU the sentences of a batch are run in chunks of like
length, with one look-up of the word embeddings: the same numbers for half of the work, since on NLI
half of a batch is padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.sentence_transformer.losses import SoftmaxLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import Tensor
from transformers.utils import logging as transformers_logging

__all__ = ["SiameseLoss", "TrimmedTransformer", "make_siamese"]

N_LABELS = 3
CHUNK_TOKENS = 160  # padded tokens run at once on a CPU: more is padding, fewer is overhead


class SiameseLoss(SoftmaxLoss):
    """Cross-entropy of a softmax over ``[u, v, |u - v|]``.

    Parameters
    ----------
    siamese : SentenceTransformer
        The encoder.
    dim : int
        Width of its embeddings.
    bias : bool, default False
        Give the softmax a bias.
    """

    def __init__(self, siamese: SentenceTransformer, dim: int, *, bias: bool = False) -> None:
        super().__init__(siamese, dim, N_LABELS)
        device = self.classifier.weight.device
        self.classifier = torch.nn.Linear(3 * dim, N_LABELS, bias=bias, device=device)

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Mean loss of a batch: features of premises and hypotheses, labels of shape (batch,)."""
        # Both sentences in one pass: they are of one kind, unlike a query and a document.
        u, v = embed_columns(self.model, sentence_features, separate_first=False)
        logits = self.classifier(torch.cat([u, v, (u - v).abs()], dim=1))
        loss: Tensor = self.loss_fct(logits, labels.view(-1))
        return loss


class TrimmedTransformer(Transformer):
    """A transformer that, when trained on a CPU, runs sentences of like length together."""

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``token_embeddings``, shape (batch, tokens, dim), to the features."""
        ids, mask = features["input_ids"], features["attention_mask"]
        if not self.training or ids.device.type != "cpu":
            return super().forward(features, **kwargs)
        # One look-up for all chunks: its gradient is as large as the vocabulary, each time.
        words = self.auto_model.get_input_embeddings()(ids)
        states = torch.zeros_like(words)
        for rows, longest in chunks(mask.sum(dim=1)):
            part = self.auto_model(
                inputs_embeds=words[rows, :longest], attention_mask=mask[rows, :longest]
            )
            states[rows, :longest] = part.last_hidden_state
        features["token_embeddings"] = states
        return features


def chunks(lengths: Tensor, budget: int = CHUNK_TOKENS) -> Iterator[tuple[Tensor, int]]:
    """Group rows of like length: their numbers, and the longest among them, longest first.

    A group holds as many rows as fit ``budget`` padded tokens, at least one.
    """
    order = lengths.argsort(descending=True, stable=True)
    position = 0
    while position < len(order):
        longest = max(int(lengths[order[position]]), 1)
        size = max(1, budget // longest)
        yield order[position : position + size], longest
        position += size


def make_siamese(folder: Path, *, max_length: int, bias: bool, device: torch.device) -> SiameseLoss:
    """Put a transformers folder, mean pooling and a softmax with new weights together."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # no report that the unused pooler is missing
    try:
        encoder = TrimmedTransformer(str(folder), max_seq_length=max_length)
    finally:
        transformers_logging.set_verbosity(verbosity)
    dim = int(encoder.auto_model.config.hidden_size)
    siamese = SentenceTransformer(modules=[encoder, Pooling(dim, "mean")], device=str(device))
    return SiameseLoss(siamese, dim, bias=bias)
