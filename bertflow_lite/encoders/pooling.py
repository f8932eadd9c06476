"""Which hidden states make a sentence embedding: names, indices, and how they are pooled.

Indices are those of transformers' ``hidden_states``: 0 is the embedding layer, k the output of
block k, -1 the last.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

__all__ = ["LAYER_NAMES", "LayerChoice", "LayersArgument"]


def pad_tokens(rows: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    """Make a batch of token ids and its mask (1 for a token, 0 for padding on the right)."""
    longest = max(1, *map(len, rows))
    ids = torch.full((len(rows), longest), padding, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[i, : len(row)] = 1
    return ids, mask


def pool(states: Tensor, mask: Tensor, slot: str, weights: Tensor | None = None) -> Tensor:
    """Pool a hidden state, shape (batch, tokens, dim), over its tokens: (batch, dim), float32.

    ``mask``, shape (batch, tokens), is 1 for a token and 0 for padding, the slot ``"mean:k"`` or
    ``"cls:k"``.  ``weights``, of the mask's shape and at least 0, are what each token counts in the
    mean; by default all count the same.  A sentence without any token that counts gives the zero
    vector.
    """
    how = mask if weights is None else mask * weights
    return POOLINGS[slot.partition(":")[0]](states.float(), how)


def _mean(states: Tensor, weights: Tensor) -> Tensor:
    weight = weights.unsqueeze(2).to(states.dtype)
    # torch.where, not the product alone: an all-padding row may hold NaN, and NaN times 0 is NaN.
    total = torch.where(weight > 0, states * weight, 0.0).sum(dim=1)
    whole = weight.sum(dim=1)
    return total / torch.where(whole > 0, whole, 1.0)


def _first(states: Tensor, mask: Tensor) -> Tensor:
    return states[:, 0]


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mean": _mean, "cls": _first}
"""Names of `LayerChoice.pooling`, and what each does with states and mask."""


LayersArgument = str | int | tuple[int, ...]
"""A layer choice: a name, a hidden state, or several hidden states to average."""
LAYER_NAMES: dict[str, tuple[int, ...]] = {
    "cls": (-1,),
    "last": (-1,),
    "last2avg": (-1, -2),  # as the paper says
    "first-last": (1, -1),  # as its code does
    "embeddings-last": (0, -1),  # as SimCSE did until January 2022, and the PyTorch port
}
"""Layer choices that have a name; the hidden states that each one averages."""


@dataclass(frozen=True)
class LayerChoice:
    """One way to make a sentence vector.

    Attributes
    ----------
    label : str
        The name or the indices, as given.
    pooling : {"mean", "cls"}
        Mean over the tokens that the attention mask keeps, [CLS] and [SEP] included; or the
        first token, [CLS].
    indices : tuple of int
        Hidden states to average, counted from 0.
    """

    label: str
    pooling: str
    indices: tuple[int, ...]

    @property
    def slots(self) -> list[str]:
        """What is pooled for this choice, one entry for each hidden state."""
        return [f"{self.pooling}:{index}" for index in self.indices]


def resolve_layers(layers: LayersArgument, n_states: int) -> LayerChoice:
    """Turn a key of `LAYER_NAMES`, an index or a tuple of indices to average into a `LayerChoice`.

    The command line's ``"4"`` and ``"1,6"`` are understood too.  ``n_states`` is the number of
    hidden states of the model: its blocks plus one.

    Examples
    --------
    >>> resolve_layers("first-last", 7)
    LayerChoice(label='first-last', pooling='mean', indices=(1, 6))
    """
    if isinstance(layers, str) and layers not in LAYER_NAMES:
        try:
            numbers = tuple(int(part) for part in layers.split(","))
        except ValueError:
            close = difflib.get_close_matches(layers, LAYER_NAMES, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"unknown layers {layers!r}: give one of {', '.join(LAYER_NAMES)}, an index, or a "
                f"tuple of indices.{hint}"
            ) from None
        return resolve_layers(numbers, n_states)
    label = layer_label(layers)
    if isinstance(layers, str):
        indices = LAYER_NAMES[layers]
    else:
        indices = layers if isinstance(layers, tuple) else (layers,)
    if not indices:
        raise ValueError("layers is an empty tuple: name at least one hidden state.")
    if not all(isinstance(index, Integral) for index in indices):
        raise ValueError(f"layers {label!r} holds something that is not a whole number.")
    for index in indices:
        if not -n_states <= index < n_states:
            raise ValueError(
                f"layers {label!r} asks for hidden state {index}; this model has {n_states} "
                f"(0 is the embedding layer, {n_states - 1} the last block)."
            )
    counted = tuple(int(index) % n_states for index in indices)
    return LayerChoice(label, "cls" if label == "cls" else "mean", counted)


def layer_label(layers: LayersArgument) -> str:
    """Name a layer choice as the keys of ``encode``'s dict do: the name, or ``"1,6"``."""
    return ",".join(map(str, layers)) if isinstance(layers, tuple) else str(layers)
