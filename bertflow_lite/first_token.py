"""Is the cone made by one token? Norms of a sentence's first token, and means without it.

In causal language models the first token of any text grows huge after some layers: later tokens
park unneeded attention on it ("attention sinks", Xiao et al. 2024; "massive activations", Sun et
al. 2024).  A mean over tokens then holds mostly this one vector, divided by the sentence's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertflow_lite.encode import Encoder
from bertflow_lite.evaluate import score_sts
from bertflow_lite.geometry import mean_cosine
from bertflow_lite.pairs import SentencePairs

__all__ = ["encode_without_first", "measure_first_token"]

_BATCH = 32


def encode_without_first(
    encoder: Encoder, sentences: Sequence[str]
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """Mean over all tokens but the first, for every hidden state.

    Parameters
    ----------
    encoder : Encoder
        The model; its cache is not used.
    sentences : sequence of str, length n
        Each of two tokens at least, special ones included.

    Returns
    -------
    means : ndarray, shape (n_states, n, dim), float32
        A sentence's mean without its first token.
    first, others : ndarray, shape (n_states,)
        Mean norm of first tokens, and of all others.

    Raises
    ------
    ValueError
        If a sentence is of one token.
    """
    ids = encoder.tokenizer(list(sentences), truncation=True, max_length=encoder.max_length)
    ids = ids["input_ids"]
    lengths = np.array([len(tokens) for tokens in ids])
    if lengths.min() < 2:
        raise ValueError(f"sentence {int(lengths.argmin())} has fewer than two tokens.")
    n_states = encoder.n_layers + 1
    means = np.empty((n_states, len(ids), encoder.dim), dtype=np.float32)
    first, others = np.zeros((2, n_states))
    order = np.argsort(lengths, kind="stable")
    for batch in np.split(order, range(_BATCH, len(order), _BATCH)):
        longest = int(lengths[batch].max())
        padded = torch.full((len(batch), longest), encoder.tokenizer.pad_token_id)
        mask = torch.zeros((len(batch), longest), dtype=torch.long)
        for row, i in enumerate(batch):
            padded[row, : lengths[i]] = torch.tensor(ids[i])
            mask[row, : lengths[i]] = 1
        with torch.inference_mode():
            states = encoder.model(
                input_ids=padded.to(encoder.device),
                attention_mask=mask.to(encoder.device),
                output_hidden_states=True,
            ).hidden_states
        rest = mask.float()
        rest[:, 0] = 0
        for layer, state in enumerate(states):
            state = state.float().cpu()
            norms = state.norm(dim=2)
            first[layer] += float(norms[:, 0].sum())
            others[layer] += float((norms * rest).sum())
            total = (state * rest.unsqueeze(2)).sum(dim=1)
            means[layer, batch] = (total / rest.sum(dim=1, keepdim=True)).numpy()
    return means, first / len(ids), others / (lengths - 1).sum()


def measure_first_token(encoder: Encoder, pairs: SentencePairs) -> list[dict[str, Any]]:
    """Measure every layer without the first token of each sentence.

    Returns
    -------
    list of dict
        For each layer: ``first_norm`` and ``other_norm``, the mean norm of first tokens and of
        all others; ``mean_cosine`` and ``sts`` (Spearman x 100) of means without first tokens.
    """
    texts = list(dict.fromkeys(pairs.sentences))
    row_of = {text: row for row, text in enumerate(texts)}
    rows = [row_of[text] for text in pairs.sentences]
    means, first, others = encode_without_first(encoder, texts)
    return [
        {
            "first_norm": float(first[layer]),
            "other_norm": float(others[layer]),
            "mean_cosine": mean_cosine(x).estimate,
            "sts": score_sts(pairs, x[rows]).all,
        }
        for layer, x in enumerate(means)
    ]
