"""A transformer with its prediction head: context vectors, word vectors, and the scores they give.

A model's head is ``score(c, x) = h_c . w_x + b_x``.  A causal model has no bias as a rule, and h_c
is the last hidden state.  A masked model sends the hidden state at [MASK] through a small network
first (dense, GELU, LayerNorm) and adds a bias: that network is part of h_c, the bias of the score.
Both are read at one place, the input of the output matrix, so that one code serves both.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertflow_lite.models import PACKAGED_MODELS, find_device, load_model, packaged_path

__all__ = [
    "LanguageModel",
    "check_scores",
    "head_inputs",
    "load_language_model",
    "scores",
    "token_batches",
]


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

    Raises
    ------
    ValueError
        If the model was saved without a prediction head (as ``minilm`` was), or is of another
        kind.
    FileNotFoundError
        If the model is not on this machine.

    Examples
    --------
    >>> lm = load_language_model("mini-bert", device="cpu")
    >>> lm.kind, tuple(lm.word_vectors.shape)
    ('masked', (30522, 256))
    """
    name = os.fspath(name)
    loaded = load_model(name, device="cpu", download=download)
    names = loaded.model.config.architectures or ["no architecture"]
    masked = "MaskedLM" in names[0]
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    if name == "smollm2":  # its head is its embedding matrix: nothing more to load
        model, masked = AutoModelForCausalLM.from_config(loaded.model.config), False
        model.model = loaded.model
        model.tie_weights()
    elif masked or names[0].endswith(("CausalLM", "LMHeadModel")):
        loader: Any = AutoModelForMaskedLM if masked else AutoModelForCausalLM
        place = packaged_path(name) if name in PACKAGED_MODELS else name
        model, info = loader.from_pretrained(
            place, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
        if info["missing_keys"]:
            raise ValueError(
                f"{name!r} lacks weights of its prediction head: {sorted(info['missing_keys'])}."
            )
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
    """Scores ``h_c . w_x + b_x`` of all words in some contexts.

    Parameters
    ----------
    lm : LanguageModel
    h : Tensor, shape (n, dim)
        Context vectors (`head_inputs`).

    Returns
    -------
    Tensor, shape (n, n_vocabulary)
        Natural logarithms of p(x|c), but for a constant of each context.
    """
    return torch.addmm(lm.bias, h, lm.word_vectors.T)


def check_scores(lm: LanguageModel, sentence: str) -> float:
    """Largest difference between the model's own logits and `scores`, over one sentence.

    Parameters
    ----------
    lm : LanguageModel
    sentence : str

    Returns
    -------
    float
        Rounding only, if the head is what this module takes it for.
    """
    tokens = lm.tokenizer(sentence, return_tensors="pt")["input_ids"].to(lm.word_vectors.device)
    with torch.inference_mode():
        logits = lm.model(input_ids=tokens).logits[0]
        h = head_inputs(lm, [tuple(tokens[0].tolist())])[0]
        return float((logits - scores(lm, h)).abs().max())


def head_inputs(lm: LanguageModel, rows: Sequence[Sequence[int]]) -> Tensor:
    """Context vectors at all positions of some rows of tokens.

    Parameters
    ----------
    lm : LanguageModel
    rows : sequence of sequences of int, length n
        Token ids; shorter rows are padded on the right, and the padding is hidden from attention.

    Returns
    -------
    Tensor, shape (n, length of the longest, dim)
        On the model's device.  What stands at a padded position means nothing.
    """
    device = lm.word_vectors.device
    length = max(map(len, rows))
    ids = torch.full((len(rows), length), int(lm.tokenizer.pad_token_id))
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
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
    """Group rows of tokens, sorted by length, into batches.

    Parameters
    ----------
    rows : iterable of tuples of int
        In order of their length, shortest first.
    tokens : int, default 1024
        Padded tokens in a batch, at most; a longer row is a batch by itself.

    Yields
    ------
    list of tuples of int

    Examples
    --------
    >>> list(token_batches([(1,), (2, 3), (4, 5)], 4))
    [[(1,), (2, 3)], [(4, 5)]]
    """
    batch: list[tuple[int, ...]] = []
    for row in rows:
        if batch and (len(batch) + 1) * len(row) > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
