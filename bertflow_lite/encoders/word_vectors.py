"""Averages of GloVe word vectors: the baseline that BERT's averages lose to (Table 2)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from bertflow_lite.encoders.models import packaged_path
from bertflow_lite.encoders.pooling import layer_label
from bertflow_lite.encoders.token_weights import TokenWeights, count_weights
from bertflow_lite.text import check_sentences, split_words

__all__ = ["WordVectorEncoder"]


class WordVectorEncoder:
    """Sentence vector = mean of the vectors of its words; words without a vector are left out.

    Parameters
    ----------
    vectors : ndarray, shape (n_words, dim), float32
        One row for each word; it may be a read-only memory map.
    words : sequence of str, length n_words
        The words, most frequent first.
    name : str
        What to call it.

    Examples
    --------
    >>> encoder = WordVectorEncoder(np.eye(3, dtype=np.float32), ["a", "cat", "sat"], "three words")
    >>> encoder.encode(["A cat.", "unknown"])
    array([[0.5, 0.5, 0. ],
           [0. , 0. , 0. ]], dtype=float32)
    """

    # What every encoder says of itself, beside name, dim, fingerprint and encode.
    default_layers: tuple[str, ...] = ("mean",)
    has_cls = False
    device = torch.device("cpu")

    def __init__(self, vectors: NDArray[np.float32], words: Sequence[str], name: str) -> None:
        self.name = name
        self.vectors = vectors
        self.row_of = {word: row for row, word in enumerate(words)}
        self.dim = int(vectors.shape[1])
        digest = hashlib.sha256("\n".join(words).encode())
        digest.update(np.ascontiguousarray(vectors).data)
        self.fingerprint = digest.hexdigest()[:16]

    def __repr__(self) -> str:
        return f"WordVectorEncoder({self.name!r}, dim={self.dim}, n_words={len(self.row_of)})"

    def encode(
        self,
        sentences: Sequence[str],
        layers: Any = "mean",
        *,
        weights: TokenWeights | None = None,
        progress: bool = False,
    ) -> Any:
        """Average the word vectors of each sentence.

        Parameters
        ----------
        sentences : sequence of str, length n
            The sentences.
        layers : str, default "mean"
            Word vectors have one layer only: whatever is asked for, the mean comes back, so that
            the same code serves both kinds of encoder.  A list gives a dict, as for `Encoder`.
        weights : TokenWeights, optional
            What each word counts in the mean (`token_weights`); by default all count the same.
        progress : bool, default False
            Show a progress bar.

        Returns
        -------
        ndarray, shape (n, dim), float32
            A sentence of unknown words only gives the zero vector.
        """
        texts = check_sentences(sentences)
        if weights is not None and len(weights.values) != len(self.vectors):
            raise ValueError(
                f"there are weights for {len(weights.values)} tokens, and {self.name!r} has "
                f"{len(self.vectors)}: they were found for another encoder."
            )
        out = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, known in enumerate(tqdm(self._rows(texts), desc="encode", disable=not progress)):
            if not known:
                continue
            if weights is None:
                out[row] = self.vectors[known].mean(axis=0)
            elif (counts := weights.values[known]).any():
                out[row] = counts @ self.vectors[known] / counts.sum()
        return {layer_label(choice): out for choice in layers} if isinstance(layers, list) else out

    def token_weights(self, sentences: Sequence[str], kind: str = "idf") -> TokenWeights:
        """Find weights by rarity, as `Encoder.token_weights` does; the tokens are known words.

        Parameters
        ----------
        sentences : sequence of str
            The sentences to count in.
        kind : {"idf", "idf-1", "sif"}, default "idf"
            See `Encoder.token_weights`.

        Returns
        -------
        TokenWeights
        """
        return count_weights(self._rows(check_sentences(sentences)), len(self.vectors), kind)

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the row of each known word of each text."""
        return [[self.row_of[w] for w in split_words(t) if w in self.row_of] for t in texts]


@lru_cache(maxsize=1)
def load_glove() -> WordVectorEncoder:
    """Load GloVe 6B, 50-d, 400,000 words, from its package."""
    import pandas as pd

    folder = packaged_path("glove")
    vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    words = pd.read_parquet(folder / "glove_6B_index.parquet")["index"].astype(str).tolist()
    return WordVectorEncoder(vectors, words, "glove")
