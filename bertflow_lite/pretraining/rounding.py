"""Fewer digits: a stored run holds no digit that is not known, and stays small."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["round_numbers"]


def round_numbers(value: Any, digits: int = 5) -> Any:
    """Turn arrays and NumPy numbers into lists and plain numbers of so many significant digits.

    Parameters
    ----------
    value : dict, list, tuple, array or number
        What `json` can hold, arrays and NumPy numbers besides.
    digits : int, default 5

    Returns
    -------
    dict, list or number

    Raises
    ------
    ValueError
        If a number is not finite: a stored run has no NaN.

    Examples
    --------
    >>> round_numbers({"a": np.array([1.2345678, 2.0]), "n": np.int64(7)}, 3)
    {'a': [1.23, 2.0], 'n': 7}
    """
    if isinstance(value, dict):
        return {str(key): round_numbers(item, digits) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return round_numbers(value.tolist(), digits)
    if isinstance(value, (list, tuple)):
        return [round_numbers(item, digits) for item in value]
    if isinstance(value, (float, np.floating)):
        if not math.isfinite(value):
            raise ValueError(f"a measured number is {value}: look at how it came about.")
        return float(f"{value:.{digits}g}")
    return int(value) if isinstance(value, np.integer) else value
