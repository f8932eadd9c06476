"""What the tests of pre-training share: a tokenizer of few pieces."""

from __future__ import annotations

from typing import Any

import pytest

import bertflow_lite as bf
from bertflow_lite.encoders.models import LoadedModel


@pytest.fixture(scope="package")
def tokenizer(minilm: LoadedModel) -> Any:
    """Give MiniLM's tokenizer with the pieces of the book's sentences, and letters, alone.

    It cuts these sentences as MiniLM's does. A tiny model's time goes with the number of pieces.
    """
    whole = minilm.tokenizer
    needed = {piece for text in bf.load_sts("mini-sts").sentences for piece in whole.tokenize(text)}
    needed |= {piece for piece in whole.get_vocab() if len(piece.removeprefix("##")) == 1}
    needed = {piece for piece in needed if piece.isascii()} - set(whole.all_special_tokens)
    pieces = [*whole.all_special_tokens, *sorted(needed)]
    return type(whole)(vocab={piece: i for i, piece in enumerate(pieces)}, do_lower_case=True)
