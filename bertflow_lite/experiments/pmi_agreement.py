"""How well the cosines of context vectors, raw and calibrated, agree with what they should tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.calibrate import make_calibrator
from bertflow_lite.context_similarity import (
    cosines,
    frequency_direction,
    remove_direction,
    upper,
)
from bertflow_lite.similarity import spearman

__all__ = ["compare_with_references", "make_variants"]

Floats = NDArray[np.float64]

CALIBRATORS = {"standardized": "sn", "whitened": "whiten", "flow": "flow"}


def make_variants(
    h: Floats,
    w: Floats,
    p_word: Floats,
    seed: int,
    calibrators: Sequence[str] = tuple(CALIBRATORS),
) -> dict[str, Floats]:
    """Give the context vectors raw, cleaned of frequency, centered, and calibrated.

    Parameters
    ----------
    h, w : array of shape (n_contexts, dim) and (n_words, dim)
        Context and word vectors.
    p_word : array of shape (n_words,)
        Probability of each word.
    seed : int
        Of the flow.
    calibrators : sequence of str
        Keys of ``CALIBRATORS``.
    """
    x = h.astype(np.float32)
    variants = {
        "raw": h,
        "frequency removed": remove_direction(h, frequency_direction(w, p_word)),
        "centered": h - h.mean(axis=0),
    }
    for name in calibrators:
        calibrator = make_calibrator(CALIBRATORS[name], random_state=seed)
        variants[name] = calibrator.fit(x).transform(x).astype(np.float64)  # type: ignore[union-attr]
    return variants


def compare_with_references(
    variants: dict[str, Floats], references: dict[str, Floats]
) -> dict[str, Any]:
    """Give the Spearman correlation of cosine and dot product with each reference, by variant.

    ``references`` holds, by name, what the similarity of two contexts should tell, for all pairs.
    """
    table = {}
    for name, h in variants.items():
        cosine, dot = upper(cosines(h)), upper(h @ h.T)
        table[name] = {
            "mean cosine": cosine.mean(),
            "cosine": {key: spearman(cosine, ref) for key, ref in references.items()},
            "dot": {key: spearman(dot, ref) for key, ref in references.items()},
        }
    return table
