"""Encoding with dropout left on, as the released code does while it trains the flow.

Its encoder is frozen but in training mode, so that every pass gives a sentence another vector: a
noise on the flow's training data of which the paper says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from bertflow_lite.encode import Encoder, pool
from bertflow_lite.layers import resolve_layers
from bertflow_lite.text import check_sentences

__all__ = ["encode_with_dropout"]

BATCH_TOKENS = 2048  # padded tokens in a batch


def encode_with_dropout(
    encoder: Encoder,
    sentences: Sequence[str],
    layers: Sequence[Any],
    *,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, NDArray[np.float32]]:
    """Encode sentences with the encoder's dropout on; nothing is cached.

    Parameters
    ----------
    encoder : Encoder
        The encoder; it is left in evaluation mode.
    sentences : sequence of str, length n
        The sentences.  A repeated sentence is encoded again, with other units dropped.
    layers : sequence of layer choices
        As in `Encoder.encode`; all come from one pass, with the same units dropped.
    seed : int, default 0
        Seed of what is dropped.  The process's global random state, which dropout draws from, is
        put back at the end.
    progress : bool, default False
        Show a progress bar.

    Returns
    -------
    dict of str to ndarray, shape (n, dim), float32
        By the label of the layer choice.

    Raises
    ------
    ValueError
        If the model has no dropout, so that there is nothing to leave on.
    """
    texts = check_sentences(sentences)
    model, device = encoder.model, encoder.device
    if not any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.modules()):
        raise ValueError(f"{encoder.name!r} has no dropout to leave on.")
    choices = [resolve_layers(choice, encoder.n_layers + 1) for choice in layers]
    ids = encoder.tokenizer(texts, truncation=True, max_length=encoder.max_length)["input_ids"]
    order = np.argsort([-len(tokens) for tokens in ids], kind="stable")
    out = {c.label: np.empty((len(texts), encoder.dim), dtype=np.float32) for c in choices}
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        torch.inference_mode(),
        tqdm(total=len(texts), desc="encode, dropout on", disable=not progress) as bar,
    ):
        torch.manual_seed(seed)
        model.train()
        try:
            start = 0
            while start < len(order):
                rows = order[start : start + max(1, BATCH_TOKENS // len(ids[order[start]]))]
                start += len(rows)
                batch = encoder.tokenizer.pad(
                    {"input_ids": [ids[row] for row in rows]}, return_tensors="pt"
                ).to(device)
                states = model(**batch, output_hidden_states=True).hidden_states
                for choice in choices:
                    vectors = [
                        pool(states[int(slot.split(":")[1])], batch["attention_mask"], slot)
                        for slot in choice.slots
                    ]
                    out[choice.label][rows] = torch.stack(vectors).mean(dim=0).cpu().numpy()
                bar.update(len(rows))
        finally:
            model.eval()
    return out
