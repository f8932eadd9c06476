"""What a masked language model would write where a sentence has a hole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bertflow_lite.language_model import LanguageModel, head_inputs, scores, token_batches
from bertflow_lite.text import check_sentences

__all__ = ["Prediction", "fill_mask"]

_BLOCK = 64  # masks whose scores are held at once: 8 MB for BERT's vocabulary in float32


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


def fill_mask(
    lm: LanguageModel, sentences: Sequence[str], *, k: int = 5, batch_tokens: int = 1024
) -> list[list[Prediction]]:
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
    batch_tokens : int, default 1024
        Padded tokens in a batch.

    Returns
    -------
    list of lists of Prediction
        One list for each mask, most probable first: the masks of the first sentence from left to
        right, then those of the second, and so on.

    Raises
    ------
    ValueError
        If the model is a causal one or its tokenizer has no mask, a sentence has no mask or is too
        long for the model, or k does not lie between 1 and the size of the vocabulary.

    Examples
    --------
    >>> from bertflow_lite.language_model import load_language_model
    >>> lm = load_language_model("mini-bert", device="cpu")
    >>> guesses = fill_mask(lm, ["She plays the [MASK].", "The [MASK] is [MASK]."], k=3)
    >>> [len(guess) for guess in guesses]
    [3, 3, 3]
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
    places = {row: _masks(lm, i, texts[i], row) for i, row in enumerate(rows)}
    found: dict[tuple[int, ...], list[list[Prediction]]] = {}
    for batch in token_batches(sorted(places, key=len), batch_tokens):
        states = head_inputs(lm, batch)
        at = [(i, place) for i, row in enumerate(batch) for place in places[row]]
        h = torch.stack([states[i, place] for i, place in at])
        for (i, _), guess in zip(at, _best(lm, h, k), strict=True):
            found.setdefault(batch[i], []).append(guess)
    return [guess for row in rows for guess in found[row]]


def _masks(lm: LanguageModel, number: int, text: str, row: tuple[int, ...]) -> list[int]:
    """Give the positions of the masks, or say what is wrong with the sentence."""
    limits = (
        getattr(lm.model.config, "max_position_embeddings", None),
        lm.tokenizer.model_max_length,
    )
    most = min(limit for limit in limits if limit is not None)
    if len(row) > most:
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
