"""Judge a fine-tuned encoder by the NLI pairs that were kept out of its training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from bertflow_lite.encode import Encoder
from bertflow_lite.nli.data import NliPairs
from bertflow_lite.similarity import Floats

__all__ = ["CLASSIFIER", "classify", "judge"]

CLASSIFIER = "classifier.safetensors"  # its softmax's weights, for checks; no embedding needs them


def classify(
    encoder: Encoder, pairs: NliPairs, folder: str | os.PathLike[str], *, progress: bool = False
) -> Floats:
    """Log-probabilities of the three classes, by the classifier that fine-tuning left.

    Parameters
    ----------
    encoder : Encoder
        The fine-tuned model.
    pairs : NliPairs
        Pairs to classify; their labels are not looked at.
    folder : path
        Where `fine_tune` put the model and its classifier.
    progress : bool, default False
        Show a progress bar.

    Returns
    -------
    ndarray of float64, shape (n_pairs, 3)
    """
    u, v = _embed(encoder, pairs, progress)
    return _log_probabilities(u, v, Path(folder))


def judge(
    encoder: Encoder, pairs: NliPairs, folder: str | os.PathLike[str], *, progress: bool = False
) -> dict[str, Any]:
    """Classify pairs, and compare with their labels; the arguments are those of `classify`.

    Returns
    -------
    dict
        ``accuracy``, ``majority``, ``without_premise``, ``validation_loss`` and ``by_source``, as
        in `NliHistory`.
    """
    u, v = _embed(encoder, pairs, progress)
    scores = _log_probabilities(u, v, Path(folder))
    labels = np.asarray(pairs.labels)
    right = scores.argmax(axis=1) == labels
    sources = np.asarray(pairs.sources)
    other = np.random.default_rng(0).permutation(len(labels))
    without = _log_probabilities(u[other], v, Path(folder)).argmax(axis=1) == labels
    return {
        "accuracy": float(right.mean()),
        "majority": float(np.bincount(labels).max() / len(labels)),
        "without_premise": float(without.mean()),
        "validation_loss": float(-scores[np.arange(len(labels)), labels].mean()),
        "by_source": {str(s): float(right[sources == s].mean()) for s in np.unique(sources)},
    }


def _embed(encoder: Encoder, pairs: NliPairs, progress: bool) -> tuple[Floats, Floats]:
    both = encoder.encode([*pairs.premises, *pairs.hypotheses], "last", progress=progress)
    u, v = np.split(both.astype(np.float64), 2)
    return u, v


def _log_probabilities(u: Floats, v: Floats, folder: Path) -> Floats:
    from safetensors.numpy import load_file
    from scipy.special import log_softmax

    weights = load_file(folder / CLASSIFIER)
    features = np.hstack([u, v, np.abs(u - v)])
    logits = features @ weights["weight"].T.astype(np.float64) + weights.get("bias", 0.0)
    result: Floats = log_softmax(logits, axis=1)
    return result
