"""Rows of the PMI runs: ranked neighbors, shortened contexts, numbers as JSON holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["plain", "ranked", "shorten"]

Floats = NDArray[np.float64]


def ranked(
    name: str, names: Sequence[str], score: Floats, pmi: Floats, k: int = 8
) -> dict[str, Any]:
    """Give the k nearest by dot product and by PMI, each once, best first."""

    def top(values: Floats) -> list[list[Any]]:
        best: dict[str, float] = {}
        for i in np.argsort(-values):
            best.setdefault(names[i], float(values[i]))
            if len(best) == k:
                break
        return [[n, v] for n, v in best.items()]

    return {"name": name, "dot": top(score), "pmi": top(pmi)}


def shorten(text: str, length: int = 60) -> str:
    """Put a context on one line and keep its end, which is what predicts the next word."""
    text = " ".join(text.split())
    return text if len(text) <= length else "..." + text[-length:]


def plain(value: Any) -> Any:
    """Turn arrays and NumPy numbers into lists and floats of 6 significant digits."""
    convert: Callable[[Any], Any] = plain
    if isinstance(value, dict):
        return {str(key): convert(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [convert(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}")
    return int(value) if isinstance(value, np.integer) else value
