"""An encoder as a scikit-learn step, for pipelines and searches: sentences in, embeddings out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from bertflow_lite.devices import find_device
from bertflow_lite.encoders.models import LoadedModel, load_model
from bertflow_lite.encoders.pooling import LayersArgument, resolve_layers
from bertflow_lite.encoders.transformer import Encoder, load_encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.text import check_sentences

__all__ = ["SentenceEncoder"]


class SentenceEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Frozen encoder as a scikit-learn transformer.

    It holds its settings only.  The model is loaded when it is first needed, once in a process, and
    shared by all copies: `clone`, ``set_params``, pickling and the parallel jobs of a search
    carry names, not weights.  Vectors are cached on disk, so that a search over calibrators or
    layers encodes each sentence once.

    Parameters
    ----------
    model : str or path, default "minilm"
        As in `load_encoder`: a packaged model, a folder with a transformers model, or a hub id.
    layers : str, int or tuple of int, default "last2avg"
        One layer choice, as in `Encoder.encode`.  Word vectors have none and ignore it.
    max_length : int, default 64
        Longest sentence in tokens.
    device : str, optional
        Default: CUDA where there is one, else Apple's MPS, else the CPU.
    precision : {"auto", "float32", "bfloat16", "float16"}, default "auto"
        Autocast type of the forward pass, as in `load_encoder`.
    download : bool, default False
        Allow a hub model that is not on this machine to be fetched.
    cache : bool, default True
        Keep the vectors on disk.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from bertflow_lite import Standardizer
    >>> texts = ["A cat sat.", "A dog ran.", "Prices rose.", "Shares fell."]
    >>> encoder = SentenceEncoder("minilm", layers=4, device="cpu")
    >>> pipeline = make_pipeline(encoder, Standardizer(), LogisticRegression())
    >>> pipeline.fit(texts, ["pets", "pets", "money", "money"]).predict(["The kitten slept."])
    array(['pets'], dtype='<U5')
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "minilm",
        *,
        layers: LayersArgument = "last2avg",
        max_length: int = 64,
        device: str | None = None,
        precision: str = "auto",
        download: bool = False,
        cache: bool = True,
    ) -> None:
        self.model = model
        self.layers = layers
        self.max_length = max_length
        self.device = device
        self.precision = precision
        self.download = download
        self.cache = cache

    def fit(self, X: Sequence[str], y: Any = None) -> SentenceEncoder:
        """Check sentences and settings; nothing is learned.

        Parameters
        ----------
        X : list, array or column of str, length n
            Sentences.
        y : ignored
            For pipelines.

        Returns
        -------
        SentenceEncoder
            Itself.

        Raises
        ------
        ValueError
            If a setting does not fit the model, or ``X`` is not a sequence of well-formed strings.
        FileNotFoundError
            If the model is not on this machine; the message says how to get it.
        """
        check_sentences(X)
        self._open()
        return self

    def transform(self, X: Sequence[str]) -> NDArray[np.float32]:
        """Encode sentences.

        Parameters
        ----------
        X : list, array or column of str, length n
            Sentences.

        Returns
        -------
        ndarray, shape (n, dim), float32
            Row i is the embedding of ``X[i]``; a table after ``set_output``.

        Raises
        ------
        ValueError, FileNotFoundError
            As in `fit`.
        """
        texts = check_sentences(X)
        found: NDArray[np.float32] = self._open().encode(texts, self.layers)
        return found

    def _open(self) -> Encoder | WordVectorEncoder:
        """Give the encoder for the settings as they are now; only the first time is slow."""
        given: Any = self.layers
        if isinstance(given, list):
            raise ValueError(
                f"layers is the list {given!r}; a step has one layer choice. Give a tuple to "
                "average hidden states, and search over several with GridSearchCV."
            )
        name = os.fspath(self.model)
        options: dict[str, Any] = {"max_length": self.max_length, "precision": self.precision}
        if name == "glove":
            return load_encoder(name, device=self.device, **options)
        loaded = _load(name, str(find_device(self.device)), bool(self.download), _stamp(name))
        encoder = Encoder(loaded, cache=self.cache, **options)
        resolve_layers(self.layers, encoder.n_layers + 1)
        return encoder

    @property
    def _n_features_out(self) -> int:
        return self._open().dim

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = False
        return tags


@lru_cache(maxsize=2)
def _load(name: str, device: str, download: bool, stamp: object) -> LoadedModel:
    return load_model(name, device=device, download=download)


def _stamp(name: str) -> object:
    """Give what changes when a folder's files do, so that a model trained anew is loaded anew."""
    folder = Path(name)
    if not folder.is_dir():
        return None
    found = ((file.name, file.stat()) for file in sorted(folder.iterdir()))
    return tuple((file, status.st_mtime_ns, status.st_size) for file, status in found)
