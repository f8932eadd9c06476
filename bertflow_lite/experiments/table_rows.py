"""The rows of the tables of STS scores: an encoder's layers, calibrated one way, on some sets.

What Tables 2, 3 and 5 share: which rows there are, how one is fitted and scored, how scores over
several seeds are put together and printed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.calibrate import FlowCalibrator, make_calibrator
from bertflow_lite.datasets import load_sts
from bertflow_lite.encode import Encoder
from bertflow_lite.evaluate import bootstrap_interval, score_sts
from bertflow_lite.experiments.nli_flow import NLI_FORMS, NliForm, fit_nli_flow
from bertflow_lite.experiments.partial_runs import Keep, no_keep
from bertflow_lite.linear import DeadDimensionWarning
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.word_vectors import WordVectorEncoder

__all__ = [
    "NLI_FORMS",
    "AnyEncoder",
    "EncodedSet",
    "FitOn",
    "Keep",
    "NliForm",
    "Row",
    "default_layers",
    "encode_set",
    "fit_and_score",
    "fit_nli_flow",
    "merge_seeds",
    "no_keep",
    "score_latents",
    "show_score",
]

logger = logging.getLogger(__name__)

AnyEncoder = Encoder | WordVectorEncoder
FitOn = Literal["none", "target", "train", "nli"]
Floats32 = NDArray[np.float32]
AGGREGATIONS = ("all", "mean", "wmean")


@dataclass(frozen=True)
class Row:
    """One row of a table for a layer choice.

    Attributes
    ----------
    label : str
        As printed, for instance ``"flow (target)"``.
    calibrator : str
        As `make_calibrator` takes it.
    fit_on : {"none", "target", "train", "nli"}
        Sentences for the calibrator: those of all splits (the paper's target), of the train
        split only, or NLI sentences.
    """

    label: str
    calibrator: str
    fit_on: FitOn

    @property
    def seeded(self) -> bool:
        """Whether a random state changes the row."""
        return "flow" in self.calibrator


@dataclass(frozen=True)
class EncodedSet:
    """A set's scored pairs, and the embeddings of one layer choice.

    Attributes
    ----------
    pairs : SentencePairs
        The scored pairs (test split).
    scored : ndarray, shape (2 * n_pairs, dim)
        Embeddings of ``pairs.sentences``.
    fit : dict
        Embeddings to fit on: ``"target"`` always; ``"train"`` where the set has such a split.
    """

    pairs: SentencePairs
    scored: Floats32
    fit: dict[str, Floats32]


def default_layers(encoder: AnyEncoder) -> tuple[str, ...]:
    """Give the layer choices that experiments calibrate: ("mean",) for word vectors."""
    return ("last2avg", "first-last") if isinstance(encoder, Encoder) else ("mean",)


def encode_set(
    encoder: AnyEncoder,
    name: str,
    layers: Sequence[str],
    *,
    download: bool = False,
    progress: bool = False,
) -> dict[str, EncodedSet]:
    """Encode a set's test, all and train sentences, for several layer choices in one go.

    Returns
    -------
    dict of str to EncodedSet
        By layer choice.
    """
    pairs = load_sts(name, download=download)
    parts = {"scored": pairs, "target": load_sts(name, "all", download=download)}
    if pairs.name in ("stsb", "sick-r"):  # the others are test sets and nothing else
        parts["train"] = load_sts(name, "train", download=download)
    ends = np.cumsum([2 * len(part) for part in parts.values()])
    sentences = [text for part in parts.values() for text in part.sentences]
    asked: Any = list(layers)
    vectors = encoder.encode(sentences, asked, progress=progress)
    out = {}
    for label, rows in vectors.items():
        by_part = dict(zip(parts, np.split(rows, ends[:-1]), strict=True))
        out[label] = EncodedSet(pairs, by_part.pop("scored"), by_part)
    return out


def score_latents(
    pairs: SentencePairs, latents: NDArray[np.floating[Any]], *, interval: bool
) -> dict[str, float]:
    """Score on a set: Spearman x 100 in three aggregations, and a 95 % interval of "all"."""
    score = score_sts(pairs, latents)
    out = {name: round(getattr(score, name), 4) for name in AGGREGATIONS}
    if interval:
        found = bootstrap_interval(pairs, latents)
        out |= {"low": round(found.low, 4), "high": round(found.high, 4)}
    return out


def fit_and_score(
    row: Row, encoded: EncodedSet, seed: int = 0, *, progress: bool = False
) -> dict[str, Any]:
    """Calibrate a set by a row that is fitted on the set's own sentences, and score it.

    Returns
    -------
    dict
        What `score_latents` gives (the interval with seed 0 only, since it hardly varies), with
        ``fitted_on``, the number of sentences, and for a flow ``bits_per_dim`` on them.
    """
    model = make_calibrator(row.calibrator, random_state=seed, progress=progress)
    if model is None or row.fit_on == "none":
        return score_latents(encoded.pairs, encoded.scored, interval=True) | {"fitted_on": 0}
    embeddings = encoded.fit[row.fit_on]
    fit_quietly(model, embeddings)
    out: dict[str, Any] = score_latents(
        encoded.pairs, model.transform(encoded.scored), interval=seed == 0
    )
    out["fitted_on"] = len(embeddings)
    if isinstance(model, FlowCalibrator):
        out["bits_per_dim"] = round(model.bits_per_dim(embeddings), 4)
    return out


def fit_quietly(model: Any, embeddings: NDArray[np.floating[Any]]) -> None:
    """Fit; dead dimensions, of which minilm's last layer has three, are no news in a table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadDimensionWarning)
        model.fit(embeddings)


def merge_seeds(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put one set's scores with several seeds together.

    Returns
    -------
    dict
        ``all``, ``mean``, ``wmean`` and ``bits_per_dim`` become lists, one entry a seed; the rest
        (interval, ``fitted_on``) is the first seed's.
    """
    out = dict(parts[0])
    for name in (*AGGREGATIONS, "bits_per_dim"):
        if name in out:
            out[name] = [part[name] for part in parts]
    return out


def show_score(values: Sequence[float]) -> str:
    """Print a score, or the mean ± standard deviation of several seeds' scores."""
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"
