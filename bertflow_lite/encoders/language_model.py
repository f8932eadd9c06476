"""A transformer with its prediction head: what it gives a word in a context, and its guesses.

A model's head is ``score(c, x) = h_c . w_x + b_x``.  A causal model has no bias as a rule, and h_c
is the last hidden state.  A masked model sends the hidden state at [MASK] through a small network
first (dense, GELU, LayerNorm) and adds a bias: that network is part of h_c, the bias of the score.
Both are read at one place, the input of the output matrix, so that one code serves both.  The words
of the largest scores at a [MASK] are the model's guesses (`fill_mask`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertflow_lite.devices import find_device
from bertflow_lite.encoders.folder import positions_watched, read_model, stated_limit
from bertflow_lite.encoders.models import load_model, model_folder
from bertflow_lite.encoders.pooling import pad_tokens
from bertflow_lite.text import check_sentences

__all__ = ["LanguageModel", "Prediction", "fill_mask", "load_language_model"]

_BLOCK = 64  # masks whose scores are held at once: 8 MB for BERT's vocabulary in float32


@dataclass(frozen=True)
class LanguageModel:
    """A transformer with its prediction head, frozen, and its tokenizer.

    Attributes
    ----------
    name : str
        The name it was asked for by.
    kind : {"causal", "masked"}
        Predicts the next token from what is left of it, or a [MASK] from both sides.
    model : torch.nn.Module
        A transformers model with its head.
    tokenizer : PreTrainedTokenizerFast
        Its tokenizer, with a padding token.
    fingerprint : str
        As in `LoadedModel`: it covers body, configuration and tokenizer.
    """

    name: str
    kind: str
    model: Any
    tokenizer: Any
    fingerprint: str

    @property
    def word_vectors(self) -> Tensor:
        """The output matrix w, shape (n_vocabulary, dim)."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight.detach()

    @property
    def bias(self) -> Tensor:
        """The bias b, shape (n_vocabulary,); zeros where the head has none."""
        bias: Tensor | None = self.model.get_output_embeddings().bias
        return torch.zeros_like(self.word_vectors[:, 0]) if bias is None else bias.detach()


@dataclass(frozen=True)
class Prediction:
    """A piece for a hole.

    Attributes
    ----------
    token : str
        As the tokenizer writes it; in BERT's vocabulary, ``##`` marks a piece that goes on a word.
    probability : float
        p(x|c), between 0 and 1, summing to 1 over the vocabulary.
    """

    token: str
    probability: float


def load_language_model(
    name: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    download: bool = False,
) -> LanguageModel:
    """Load a model together with its prediction head.

    Parameters
    ----------
    name : str or path
        ``"mini-bert"`` (masked), ``"smollm2"`` (causal), a folder with a transformers model, or a
        hub id.
    device : str or torch.device, optional
        Default: CUDA where there is one, else Apple's MPS, else the CPU.
    download : bool, default False
        Allow a hub id that is not on this machine to be fetched.

    Returns
    -------
    LanguageModel
        In float32.
    """
    name = os.fspath(name)
    loaded = load_model(name, device="cpu", download=download)
    names = loaded.model.config.architectures or ["no architecture"]
    masked = "MaskedLM" in names[0]
    if name == "smollm2":  # its head is its embedding matrix: nothing more to load
        from transformers import AutoModelForCausalLM

        masked = False
        model = AutoModelForCausalLM.from_config(loaded.model.config, trust_remote_code=False)
        model.model = loaded.model
        model.tie_weights()
    elif masked or names[0].endswith(("CausalLM", "LMHeadModel")):
        loader = "AutoModelForMaskedLM" if masked else "AutoModelForCausalLM"
        model = read_model(name, model_folder(name, download=download), loader=loader)
    else:
        raise ValueError(
            f"{name!r} was saved as {names[0]}, which has no language-model head, so it defines no "
            "p(x|c). Two that have one are here: 'mini-bert' (masked) and 'smollm2' (causal). "
            "'bert-base-uncased', or any other masked or causal model, does too."
        )
    kind = "masked" if masked else "causal"
    model = model.eval().requires_grad_(False).to(find_device(device))
    return LanguageModel(name, kind, model, loaded.tokenizer, loaded.fingerprint)


def scores(lm: LanguageModel, h: Tensor) -> Tensor:
    """Scores ``h_c . w_x + b_x`` of all words: log p(x|c), but for a constant of each context."""
    return torch.addmm(lm.bias, h, lm.word_vectors.T)


def head_inputs(lm: LanguageModel, rows: Sequence[Sequence[int]]) -> Tensor:
    """Context vectors at all positions of rows of token ids, shape (n, longest, dim).

    What stands at a padded position means nothing.
    """
    device = lm.word_vectors.device
    ids, mask = pad_tokens(rows, int(lm.tokenizer.pad_token_id))
    caught: list[Tensor] = []

    def catch(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        caught.append(inputs[0])
        return (inputs[0][:, :0],)  # no positions are left: the model computes no logits in vain

    handle = lm.model.get_output_embeddings().register_forward_pre_hook(catch)
    try:
        with torch.inference_mode():
            lm.model(input_ids=ids.to(device), attention_mask=mask.to(device))
    finally:
        handle.remove()
    return caught[0]


def token_batches(
    rows: Iterable[tuple[int, ...]], tokens: int = 1024
) -> Iterator[list[tuple[int, ...]]]:
    """Group rows of token ids, sorted by length, shortest first, into batches of so many tokens.

    A row that is longer is a batch by itself.
    """
    batch: list[tuple[int, ...]] = []
    for row in rows:
        if batch and (len(batch) + 1) * len(row) > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def fill_mask(lm: LanguageModel, sentences: Sequence[str], *, k: int = 5) -> list[list[Prediction]]:
    """Guess the masked pieces of sentences.

    Where a sentence has several masks, each is guessed by itself while the others stay masked:
    the guesses need not go together.

    Parameters
    ----------
    lm : LanguageModel
        A masked one (`load_language_model`).
    sentences : sequence of str
        Each with one or more masks, written as the tokenizer writes them (``[MASK]`` in BERT).
    k : int, default 5
        Guesses for a mask.

    Returns
    -------
    list of lists of Prediction
        One list for each mask, most probable first: the masks of the first sentence from left to
        right, then those of the second, and so on.
    """
    texts = check_sentences(sentences)
    if lm.kind != "masked":
        raise ValueError(
            f"{lm.name!r} predicts the next token from what is left of it, so it fills no masks: "
            "use a masked model, such as 'mini-bert'."
        )
    if lm.tokenizer.mask_token is None:
        raise ValueError(f"the tokenizer of {lm.name!r} has no mask: take a folder that names one.")
    if not 1 <= k <= len(lm.word_vectors):
        raise ValueError(f"k is {k}; it must lie between 1 and {len(lm.word_vectors)}.")
    if not texts:
        return []
    rows = [tuple(row) for row in lm.tokenizer(texts, verbose=False)["input_ids"]]
    most = _most_tokens(lm)
    places = {row: _masks(lm, i, texts[i], row, most) for i, row in enumerate(rows)}
    found: dict[tuple[int, ...], list[list[Prediction]]] = {}
    for batch in token_batches(sorted(places, key=len)):
        states = head_inputs(lm, batch)
        at = [(i, place) for i, row in enumerate(batch) for place in places[row]]
        h = torch.stack([states[i, place] for i, place in at])
        for (i, _), guess in zip(at, _best(lm, h, k), strict=True):
            found.setdefault(batch[i], []).append(guess)
    return [guess for row in rows for guess in found[row]]


def _most_tokens(lm: LanguageModel) -> int | None:
    """Give the tokens that a sentence may have: RoBERTa and its like take two fewer than stated."""
    stated = stated_limit(lm.model, lm.tokenizer)
    row = (int(lm.tokenizer.mask_token_id),) * min(6, stated or 6)
    with positions_watched(lm.model, len(row)) as tables:
        head_inputs(lm, [row])
    limits = [limit for limit in (stated, *tables) if limit]
    return min(limits, default=None)


def _masks(
    lm: LanguageModel, number: int, text: str, row: tuple[int, ...], most: int | None
) -> list[int]:
    """Give the positions of the masks, or say what is wrong with the sentence."""
    if most is not None and len(row) > most:
        raise ValueError(
            f"sentence {number} has {len(row)} tokens; {lm.name!r} takes {most} at most. Cut it."
        )
    places = [i for i, token in enumerate(row) if token == lm.tokenizer.mask_token_id]
    if not places:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise ValueError(
            f"sentence {number} has no mask: {shown!r}. Write {lm.tokenizer.mask_token} in place "
            "of a word."
        )
    return places


def _best(lm: LanguageModel, h: torch.Tensor, k: int) -> list[list[Prediction]]:
    guesses = []
    for part in h.split(_BLOCK):
        with torch.inference_mode():
            best = torch.softmax(scores(lm, part), dim=1).topk(k)
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            if not all(map(math.isfinite, values)):
                raise FloatingPointError(f"the scores of {lm.name!r} are no numbers.")
            tokens = lm.tokenizer.convert_ids_to_tokens(ids)
            guesses.append([Prediction(*pair) for pair in zip(tokens, values, strict=True)])
    return guesses
