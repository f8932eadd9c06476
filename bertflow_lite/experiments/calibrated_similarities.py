"""Pair similarities of an encoder, raw and calibrated, kept on disk.

The controls compare many encoders on the same pairs, and ask several questions of the same
similarities.  So these are computed once and kept: one file for each encoder and target, in the
cache folder.  Embeddings of encoders with random weights are not kept: there are many, and each is
needed once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertflow_lite.calibrate import make_calibrator
from bertflow_lite.datasets import load_sts
from bertflow_lite.evaluate import pair_cosines
from bertflow_lite.layers import layer_label
from bertflow_lite.linear import DeadDimensionWarning
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.paths import cache_dir
from bertflow_lite.similarity import Floats

__all__ = ["Target", "find_similarities", "sts_target"]

logger = logging.getLogger(__name__)

FORMAT = 1  # part of the key: a change of what is kept must not read old files

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Target:
    """Pairs to compare, and the sentences that calibrators are fitted on.

    Attributes
    ----------
    pairs : SentencePairs
        The pairs.
    fitted : tuple of str
        Sentences for the calibrators, repeats included; no label of theirs is used.
    """

    pairs: SentencePairs
    fitted: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """16 hex digits over the pairs and the sentences."""
        content = json.dumps([self.pairs.fingerprint, self.fitted])
        return hashlib.sha256(content.encode("ascii")).hexdigest()[:16]


def sts_target(name: str, split: str | None = None, *, download: bool = False) -> Target:
    """Take an STS set, with calibrators fitted on the sentences of all splits, "flow (target)"."""
    fitted = load_sts(name, "all", download=download).sentences
    return Target(load_sts(name, split, download=download), tuple(fitted))


def find_similarities(
    encoder: Any,
    targets: Sequence[Target],
    layers: Sequence[Any],
    calibrators: Sequence[str],
    *,
    seed: int = 0,
    keep: bool = True,
    progress: bool = False,
) -> dict[Key, Floats]:
    """Cosines of each target's pairs, for each layer choice and calibrator.

    Parameters
    ----------
    encoder : Encoder, WordVectorEncoder or the like
        What has ``encode(sentences, layers=[...])`` and ``fingerprint``.
    targets : sequence of Target
        Their pairs have different names.
    layers : sequence
        Layer choices (`Encoder.encode`).
    calibrators : sequence of str
        Short names (`make_calibrator`); each is fitted anew on each target.
    seed : int, default 0
        Random state of the flows.
    keep : bool, default True
        Read what an earlier call computed, and keep what this one computes.
    progress : bool, default False
        Show a progress bar while encoding.

    Returns
    -------
    dict of (name, layers, calibrator) to ndarray, shape (n_pairs,)

    Raises
    ------
    ValueError
        If two targets have the same name, or as `Encoder.encode`.
    """
    names = [target.pairs.name for target in targets]
    if len(set(names)) < len(names):
        raise ValueError(f"two targets have the same name: {', '.join(names)}.")
    labels = [layer_label(choice) for choice in layers]
    found: dict[Key, Floats] = {}
    missing: dict[str, list[Any]] = {}
    for target in targets:
        name = target.pairs.name
        kept = _read(_path(encoder, target)) if keep else {}
        for label, choice in zip(labels, layers, strict=True):
            for calibrator in calibrators:
                values = kept.get(_entry(label, calibrator, seed))
                if values is not None and len(values) == len(target.pairs):
                    found[name, label, calibrator] = values
                elif choice not in missing.setdefault(name, []):
                    missing[name].append(choice)
    if not any(missing.values()):
        return found
    wanted = [choice for choice in layers if any(choice in some for some in missing.values())]
    todo = [target for target in targets if missing[target.pairs.name]]
    # One call for all targets: sentences that they share are encoded once.
    row_of: dict[str, int] = {}
    for target in todo:
        for text in (*target.fitted, *target.pairs.sentences):
            row_of.setdefault(text, len(row_of))
    vectors = encoder.encode(list(row_of), layers=wanted, progress=progress)
    for target in todo:
        name = target.pairs.name
        fresh: dict[str, Floats] = {}
        fitted, scored = (
            np.array([row_of[text] for text in texts], dtype=np.intp)
            for texts in (target.fitted, target.pairs.sentences)
        )
        for choice in missing[name]:
            label = layer_label(choice)
            for calibrator in calibrators:
                if (name, label, calibrator) not in found:
                    z = _calibrate(vectors[label], fitted, scored, calibrator, seed)
                    values = pair_cosines(target.pairs, z)
                    found[name, label, calibrator] = values
                    fresh[_entry(label, calibrator, seed)] = values
            logger.info("%s, layers %s on %s: done", encoder.name, label, name)
        if keep:
            _add(_path(encoder, target), fresh)
    return found


def _calibrate(vectors: Any, fitted: Any, scored: Any, calibrator: str, seed: int) -> Any:
    model = make_calibrator(calibrator, random_state=seed)
    if model is None:
        return vectors[scored]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadDimensionWarning)
        model.fit(vectors[fitted])
    return model.transform(vectors[scored])


def _entry(label: str, calibrator: str, seed: int) -> str:
    """Name what is kept; the calibrator's settings are in it, so that a new default is seen."""
    model = make_calibrator(calibrator, random_state=seed)
    steps = getattr(model, "steps", [("", model)]) if model is not None else []
    settings = [[type(step).__name__, sorted(step.get_params().items())] for _, step in steps]
    digest = hashlib.sha256(json.dumps(settings, default=str).encode()).hexdigest()[:12]
    return f"{label} {calibrator} {digest}"


def _path(encoder: Any, target: Target) -> Path:
    how = [FORMAT, encoder.fingerprint, getattr(encoder, "max_length", None)]
    how += [str(getattr(encoder, "autocast", None)), target.fingerprint]
    digest = hashlib.sha256(json.dumps(how).encode()).hexdigest()[:24]
    return cache_dir() / "similarities" / f"{digest}.npz"


def _read(path: Path) -> dict[str, Floats]:
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        logger.warning("%s cannot be read and is made again (%s)", path.name, error)
        return {}


def _add(path: Path, fresh: dict[str, Floats]) -> None:
    """Add to a file, atomically; without a cache folder that can be written, do nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=".similarities-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, **(_read(path) | fresh))  # type: ignore[arg-type]
            os.replace(scratch, path)
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
    except OSError as error:
        logger.warning("similarities are not kept (%s)", error)
