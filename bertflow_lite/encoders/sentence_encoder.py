"""An encoder as a scikit-learn step, for pipelines and searches: sentences in, embeddings out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from bertflow_lite.devices import find_device
from bertflow_lite.encoders.models import LoadedModel, load_model
from bertflow_lite.encoders.pooling import LayersArgument, resolve_layers
from bertflow_lite.encoders.token_weights import TokenWeights, check_kind
from bertflow_lite.encoders.transformer import Encoder, load_encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.saving import Arrays, Savable, typed
from bertflow_lite.text import check_sentences

__all__ = ["SentenceEncoder"]


class SentenceEncoder(ClassNamePrefixFeaturesOutMixin, Savable, TransformerMixin, BaseEstimator):
    """Frozen encoder as a scikit-learn transformer.

    It holds its settings, and what each token counts where ``weights`` asks for that.  The model is
    loaded when it is first needed, once in a process, and shared by all copies: `clone`,
    ``set_params``, pickling and the parallel jobs of a search carry names, not the model.  Vectors
    are cached on disk, so that a search over calibrators or layers encodes each sentence once.
    (With ``weights``, once for each set of sentences that it is fitted on.)

    Parameters
    ----------
    model : str or path, default "minilm"
        As in `load_encoder`: a packaged model, a folder with a transformers model, or a hub id.
    layers : str, int or tuple of int, default "last2avg"
        One layer choice, as in `Encoder.encode`.  Word vectors have none and ignore it.
    weights : {"idf", "idf-1", "sif"}, optional
        Weigh the tokens of the mean by their rarity in the sentences of the fit, as
        `Encoder.token_weights` finds it; by default all tokens count the same.
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

    Attributes
    ----------
    weights_ : TokenWeights
        Where ``weights`` is given: what each token counts.

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

    _not_saved = ("device", "download", "cache")
    # What is known of the encoder that a saved pipeline was fitted with.
    _of_the_fit: dict[str, Any] | None = None

    def __init__(
        self,
        model: str | os.PathLike[str] = "minilm",
        *,
        layers: LayersArgument = "last2avg",
        weights: str | None = None,
        max_length: int = 64,
        device: str | None = None,
        precision: str = "auto",
        download: bool = False,
        cache: bool = True,
    ) -> None:
        self.model = model
        self.layers = layers
        self.weights = weights
        self.max_length = max_length
        self.device = device
        self.precision = precision
        self.download = download
        self.cache = cache

    def fit(self, X: Sequence[str], y: Any = None) -> SentenceEncoder:
        """Check sentences and settings, and count how rare tokens are where ``weights`` asks.

        Parameters
        ----------
        X : list, array or column of str, length n
            Sentences.
        y : ignored

        Returns
        -------
        SentenceEncoder
        """
        texts = check_sentences(X)
        for name in ("_of_the_fit", "weights_"):  # a new fit may be for another encoder
            self.__dict__.pop(name, None)
        encoder = self.open()
        if self.weights is not None:
            self.weights_ = encoder.token_weights(texts, self.weights)
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
        """
        texts = check_sentences(X)
        weights = self.fitted_weights()
        found: NDArray[np.float32] = self.open().encode(texts, self.layers, weights=weights)
        return found

    def fitted_weights(self) -> TokenWeights | None:
        """Give what each token counts, or None where all count the same.

        Returns
        -------
        TokenWeights or None
        """
        if self.weights is None:
            return None
        check_is_fitted(self, "weights_")
        if self.weights_.kind != self.weights:
            raise ValueError(
                f"the step was fitted with weights {self.weights_.kind!r}, not {self.weights!r}: "
                "fit it anew."
            )
        return self.weights_

    def open(self) -> Encoder | WordVectorEncoder:
        """Give the encoder for the settings as they are now; only the first time is slow.

        Returns
        -------
        Encoder or WordVectorEncoder
        """
        given: Any = self.layers
        if isinstance(given, list):
            raise ValueError(
                f"layers is the list {given!r}; a step has one layer choice. Give a tuple to "
                "average hidden states, and search over several with GridSearchCV."
            )
        if self.weights is not None:
            check_kind(self.weights)
        name = os.fspath(self.model)
        options: dict[str, Any] = {"max_length": self.max_length, "precision": self.precision}
        if name == "glove":
            words = load_encoder(name, device=self.device, **options)
            self._check_fit(words)
            return words
        loaded = _load(name, str(find_device(self.device)), bool(self.download), _stamp(name))
        encoder = Encoder(loaded, cache=self.cache, **options)
        choice = resolve_layers(self.layers, encoder.n_layers + 1)
        if self.weights is not None and choice.pooling != "mean":
            raise ValueError("layers 'cls' takes one token; weights need a choice that averages.")
        self._check_fit(encoder)
        return encoder

    def _check_fit(self, encoder: Encoder | WordVectorEncoder) -> None:
        """Refuse another encoder, or other layers, than a saved pipeline was fitted with."""
        saved = self._of_the_fit
        if saved is None:
            return
        now = self._describe(encoder)
        way_out = "Use what it was fitted with, or fit the pipeline anew."
        if now["fingerprint"] != saved["fingerprint"]:
            raise ValueError(
                f"the pipeline was fitted with the encoder {saved['name']!r} (fingerprint "
                f"{saved['fingerprint']}), not with {now['name']!r} ({now['fingerprint']}). "
                f"{way_out}"
            )
        for key, what in (
            ("hidden_states", "hidden states"),
            ("pooling", "pooling"),
            ("weights", "weights"),
            ("max_length", "max_length"),
        ):
            if now[key] != saved[key]:
                raise ValueError(
                    f"the pipeline was fitted with {what} {saved[key]}, not {now[key]}. {way_out}"
                )

    def _describe(self, encoder: Encoder | WordVectorEncoder) -> dict[str, Any]:
        """Say which encoder this is, as JSON can hold it."""
        described: dict[str, Any] = {
            "name": _own_name(encoder.name),
            "fingerprint": encoder.fingerprint,
            "n_features_out": encoder.dim,
            "hidden_states": None,
            "pooling": None,
            "weights": self.weights,
            "max_length": None,
        }
        if isinstance(encoder, Encoder):
            choice = resolve_layers(self.layers, encoder.n_layers + 1)
            described |= {
                "hidden_states": sorted(choice.indices),
                "pooling": choice.pooling,
                "max_length": encoder.max_length,
            }
        return described

    def _get_settings(self) -> dict[str, Any]:
        settings = super()._get_settings()
        settings["model"] = _own_name(os.fspath(self.model))
        return settings

    @classmethod
    def _from_settings(cls, settings: Mapping[str, Any]) -> Self:
        kinds: dict[str, tuple[type, ...]] = {
            "model": (str,),
            "weights": (str, type(None)),
            "max_length": (int,),
            "precision": (str,),
        }
        for name, value in settings.items():
            if name == "layers":
                parts = value if isinstance(value, list) else [value]
                if not parts or any(type(part) not in (str, int) for part in parts):
                    raise ValueError(f"the setting 'layers' is of the wrong type: {value!r}")
            elif name not in kinds or type(value) not in kinds[name]:
                raise ValueError(f"a SentenceEncoder has no setting {name!r} of {value!r}")
        if settings.get("weights") is not None:
            check_kind(settings["weights"])
        layers = settings.get("layers", "last2avg")
        return cls(**{**settings, "layers": tuple(layers) if isinstance(layers, list) else layers})

    def _get_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        weights = self.fitted_weights()
        arrays = {} if weights is None else {"token_weights": weights.values}
        return self._describe(self.open()), arrays

    def _set_state(self, facts: Mapping[str, Any], arrays: Arrays) -> None:
        states = typed(facts, "hidden_states", list, type(None))
        if states is not None and any(type(state) is not int for state in states):
            raise ValueError(f"'hidden_states' is {states!r}; it must be a list of int")
        self._of_the_fit = {
            "name": typed(facts, "name", str),
            "fingerprint": typed(facts, "fingerprint", str),
            "n_features_out": typed(facts, "n_features_out", int),
            "hidden_states": states,
            "pooling": typed(facts, "pooling", str, type(None)),
            "weights": typed(facts, "weights", str, type(None)),
            "max_length": typed(facts, "max_length", int, type(None)),
        }
        if self._of_the_fit["weights"] != self.weights:
            raise ValueError(
                f"'weights' is {self._of_the_fit['weights']!r}, and the setting {self.weights!r}"
            )
        if self.weights is not None:
            self.weights_ = TokenWeights(arrays.take("token_weights", np.float32), self.weights)

    @property
    def _fitted_width(self) -> int:
        saved = self._of_the_fit
        return int(self.open().dim if saved is None else saved["n_features_out"])

    @property
    def _n_features_out(self) -> int:
        return self.open().dim

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = self.weights is not None
        return tags


def _own_name(name: str) -> str:
    """Of a folder only its own name: where it lies is nobody's business."""
    return os.path.basename(os.path.abspath(name)) if os.path.isdir(name) else name


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
