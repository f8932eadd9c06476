"""One pair of sentences, seen raw and through several calibrators.

A single cosine says little by itself, so each comes with its *percentile*: the share of random
pairs of the background sentences that have a lower cosine in the same space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.measures.similarity import cosine

__all__ = ["Comparison", "PairComparer"]

# What the explorers and the book compare by default: label -> `make_calibrator` name.
CALIBRATORS = {
    "raw": "none",
    "standardized (SN)": "sn",
    "whitened, 128 directions": "whiten:128",
    "flow": "flow:paper",
}


@dataclass(frozen=True)
class Comparison:
    """A pair's cosine in one space, and its percentile (0 to 100) among random background pairs."""

    space: str
    cosine: float
    percentile: float


class PairComparer:
    """Compare sentences in several spaces that were fitted on the same background sentences.

    The sentences are the background: calibrators (label -> name for `make_calibrator`) are fitted
    on them, and 5,000 random pairs of them are the scale. Word vectors take the layers
    ``"mean"``.
    """

    def __init__(
        self,
        encoder: Any,
        sentences: Sequence[str],
        layers: Any = "last2avg",
        calibrators: Mapping[str, str] | None = None,
    ) -> None:
        self._encoder, self._layers = encoder, layers
        texts = list(dict.fromkeys(sentences))
        if len(texts) < 2:
            raise ValueError(f"{len(texts)} different sentences are no background; give more.")
        vectors = encoder.encode(texts, layers)
        rng = np.random.default_rng(0)
        one = rng.integers(len(texts), size=5000)
        two = (one + rng.integers(1, len(texts), size=5000)) % len(texts)
        self._fitted: dict[str, Any] = {}
        self._scale: dict[str, NDArray[np.float64]] = {}
        for label, name in (calibrators or CALIBRATORS).items():
            model = make_calibrator(name)
            z = vectors if model is None else model.fit_transform(vectors)
            self._fitted[label] = model
            self._scale[label] = np.sort(cosine(z[one], z[two]))

    def transform(self, space: str, vectors: ArrayLike) -> Any:
        """Map raw embeddings into one of the spaces."""
        model = self._fitted[space]
        return np.asarray(vectors) if model is None else model.transform(vectors)

    def compare(self, sentence1: str, sentence2: str) -> list[Comparison]:
        """Compare two sentences in every space."""
        for text in (sentence1, sentence2):
            if not text.strip():
                raise ValueError("write two sentences; one of them is empty.")
        vectors = self._encoder.encode([sentence1.strip(), sentence2.strip()], self._layers)
        found = []
        for space, scale in self._scale.items():
            z = self.transform(space, vectors)
            value = float(cosine(z[:1], z[1:])[0])
            below = 100 * float(np.searchsorted(scale, value)) / len(scale)
            found.append(Comparison(space, value, below))
        return found
