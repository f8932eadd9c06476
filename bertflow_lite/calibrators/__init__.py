"""Calibrators: scikit-learn transformers over arrays of embeddings."""

from __future__ import annotations

from typing import Any

from sklearn.pipeline import make_pipeline

from bertflow_lite.calibrators import linear
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.text import did_you_mean

__all__ = ["CALIBRATORS", "make_calibrator"]

CALIBRATORS: dict[str, Any] = {
    cls.short: cls for cls in (*(getattr(linear, name) for name in linear.__all__), FlowCalibrator)
}
"""The calibrators by the short names that the command line writes."""


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

    Examples
    --------
    >>> make_calibrator("whiten:64")
    Whitener(n_components=64)
    >>> make_calibrator("flow:recommended").rotation
    'pca'
    """
    if "+" in name:
        steps = [
            make_calibrator(part, random_state=random_state, progress=progress)
            for part in name.split("+")
        ]
        steps = [step for step in steps if step is not None]
        return make_pipeline(*steps) if steps else None
    kind, _, setting = name.partition(":")
    if kind == "none" and not setting:
        return None
    if kind in CALIBRATORS:
        return CALIBRATORS[kind]._from_short(setting, random_state=random_state, progress=progress)
    known = ("none", *CALIBRATORS)
    hint = did_you_mean(kind, known)
    raise ValueError(f"no calibrator {name!r}; there are {', '.join(known)}.{hint}")
