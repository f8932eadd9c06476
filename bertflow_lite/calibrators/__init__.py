"""Calibrators: scikit-learn transformers over arrays of embeddings."""

from __future__ import annotations

import difflib
from typing import Any

from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import Standardizer, TopDirectionRemover, Whitener

__all__ = ["make_calibrator"]


def make_calibrator(name: str, *, random_state: int = 0, progress: bool = False) -> Any | None:
    """Make a calibrator by its short name, as the command line writes it.

    Parameters
    ----------
    name : str
        ``"none"`` (gives None), ``"sn"``, ``"natsv"`` or ``"natsv:K"``, ``"sn+natsv:K"``,
        ``"whiten"`` or ``"whiten:WIDTH"``, ``"flow"`` or ``"flow:PRESET"``.
    random_state : int, default 0
        Seed of the flow; the others use none.
    progress : bool, default False
        Progress bar of the flow.

    Returns
    -------
    calibrator or None
        Not fitted; a Pipeline where several are joined by ``+``.

    Raises
    ------
    ValueError
        If the name is none of these; the closest one is offered.

    Examples
    --------
    >>> make_calibrator("whiten:64")
    Whitener(n_components=64)
    >>> make_calibrator("flow:recommended").rotation
    'pca'
    """
    from sklearn.pipeline import make_pipeline

    if "+" in name:
        steps = [
            make_calibrator(part, random_state=random_state, progress=progress)
            for part in name.split("+")
        ]
        steps = [step for step in steps if step is not None]
        return make_pipeline(*steps) if steps else None
    kind, _, setting = name.partition(":")
    try:
        if kind == "none" and not setting:
            return None
        if kind == "sn" and not setting:
            return Standardizer()
        if kind == "natsv":
            return TopDirectionRemover(int(setting or 1))
        if kind == "whiten":
            return Whitener(int(setting) if setting else None)
    except ValueError:
        raise ValueError(f"{name!r}: {setting!r} is not a whole number.") from None
    if kind == "flow":
        return FlowCalibrator.from_preset(
            setting or "paper", random_state=random_state, progress=progress
        )
    known = ("none", "sn", "natsv", "whiten", "flow")
    close = difflib.get_close_matches(kind, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"no calibrator {name!r}; there are {', '.join(known)}.{hint}")
