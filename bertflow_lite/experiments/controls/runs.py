"""Experiments with controls: encoders that have learned nothing, and what they explain.

Each function gives rows that JSON can hold; ``python -m bertflow_lite controls`` stores them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.encoders.models import is_random_name
from bertflow_lite.encoders.pooling import layer_label
from bertflow_lite.encoders.transformer import load_encoder
from bertflow_lite.encoders.word_vectors import load_glove
from bertflow_lite.experiments.controls.statistics import (
    bootstrap_partials,
    bootstrap_systems,
    explained_by,
)
from bertflow_lite.experiments.controls.words import WEIGHTINGS, WordCountEncoder, fit_word_encoders
from bertflow_lite.experiments.scoring import Key, Target, find_similarities
from bertflow_lite.measures.scores import Interval, score_similarities
from bertflow_lite.measures.similarity import Floats

CALIBRATORS = ("none", "sn", "natsv:1", "whiten", "whiten:128", "flow")
"""What every control is measured with, unless its vectors are too short."""


@dataclass(frozen=True)
class System:
    """A model, its layer choices, and how many seeds are averaged.

    For a random model the seed draws its weights and its flows; for any other, the flows only.
    """

    model: str
    layers: tuple[str, ...]
    seeds: int


def seeded_similarities(
    system: System,
    targets: Sequence[Target],
    calibrators: Sequence[str],
    *,
    max_length: int = 64,
    device: str | None = None,
    download: bool = False,
    progress: bool = False,
) -> Iterator[tuple[str, dict[Key, Floats]]]:
    """Similarities of a system for seeds 0, 1, ..., one after the other, with its fingerprint.

    Parameters as for `find_similarities` and `load_encoder`.
    """
    drawn = is_random_name(system.model)
    if drawn and ":" in system.model:
        raise ValueError(f"{system.model!r} names a seed; leave it out, and say how many seeds.")
    for seed in range(system.seeds):
        if drawn or seed == 0:
            encoder = load_encoder(
                f"{system.model}:{seed}" if drawn else system.model,
                max_length=max_length,
                device=device,
                download=download,
                cache=not drawn,
            )
        found = find_similarities(
            encoder, targets, list(system.layers), calibrators, seed=seed, progress=progress
        )
        yield encoder.fingerprint, found


def find_fingerprints(system: System, *, device: str | None = None, download: bool = False) -> str:
    """Give the digests of a system's weights, one for each that its seeds draw, by commas."""
    names = [system.model]
    if is_random_name(system.model):
        names = [f"{system.model}:{seed}" for seed in range(system.seeds)]
    encoders = (load_encoder(n, device=device, download=download, cache=False) for n in names)
    return ", ".join(encoder.fingerprint for encoder in encoders)


def encoder_scores(
    targets: Sequence[Target], by_seed: Sequence[dict[Key, Floats]]
) -> list[dict[str, Any]]:
    """Spearman x 100 by set, layers and calibrator: a list over seeds for ``all`` and ``wmean``."""
    rows = []
    pairs_of = {target.pairs.name: target.pairs for target in targets}
    for key in by_seed[0]:
        name, layers, calibrator = key
        head = {"data": name, "layers": layers, "calibrator": calibrator}
        rows.append(head | score_seeds(pairs_of[name], [one[key] for one in by_seed]))
    return rows


def score_seeds(pairs: SentencePairs, seeds: Sequence[Floats]) -> dict[str, Any]:
    """Score the similarities of each seed: Spearman x 100, ``all`` and ``wmean``."""
    scores = [score_similarities(pairs, one) for one in seeds]
    return {how: [round(getattr(score, how), 3) for score in scores] for how in ("all", "wmean")}


def run_words(
    targets: Sequence[Target], calibrators: Sequence[str] = CALIBRATORS
) -> list[dict[str, Any]]:
    """Score encoders that count words, as sparse vectors and, calibrated, as dense ones.

    Gives rows of `encoder_scores` with the encoder's name in ``encoder`` and its width in ``dim``;
    sparse ones are called ``count-sparse`` and so on, and cannot be calibrated.
    """
    rows = []
    for target in targets:
        pairs = target.pairs
        for encoder in fit_word_encoders(target.fitted):
            if isinstance(encoder, WordCountEncoder) and encoder.projection == "random":
                sparse = encoder.similarities(pairs.sentences1, pairs.sentences2)
                name = encoder.name.replace("random", "sparse")
                for row in encoder_scores([target], [{(pairs.name, "mean", "none"): sparse}]):
                    rows.append({"encoder": name, "dim": encoder.n_words, **row})
            usable = [name for name in calibrators if fits(name, encoder.dim)]
            found = find_similarities(encoder, [target], ["mean"], usable)
            for row in encoder_scores([target], [found]):
                rows.append({"encoder": encoder.name, "dim": encoder.dim, **row})
    return rows


def fits(calibrator: str, dim: int) -> bool:
    """Whether vectors of a width have the directions that a calibrator is to keep."""
    kind, _, width = calibrator.partition(":")
    return kind != "whiten" or int(width or 0) <= dim


def run_pretraining(
    system: System,
    control: System,
    targets: Sequence[Target],
    calibrators: Sequence[str],
    *,
    n_resamples: int = 500,
    **options: Any,
) -> list[dict[str, Any]]:
    """Compare a model with one that has learned nothing, set by set, at equal calibration.

    The control has one layer choice; ``"none"`` is among the calibrators, and one that a model's
    vectors are too short for is left out. The options are those of `seeded_similarities`.

    Gives, for each set, layer choice and calibrator: ``model`` and ``control``, Spearman x 100 with
    interval, ``lead`` (model minus control, the same calibrator), ``gain`` and ``control_gain``
    (calibrated minus raw), each [estimate, low, high] over the same resampled pairs.
    """
    if len(control.layers) != 1:
        raise ValueError(f"The control needs one layer choice, not {len(control.layers)}.")
    ours = gather_similarities(system, targets, calibrators, **options)
    theirs = gather_similarities(control, targets, calibrators, **options)
    rows = []
    for target in targets:
        name = target.pairs.name
        systems = {
            f"{who} {layers} {calibrator}": values
            for who, found in (("model", ours), ("control", theirs))
            for (data, layers, calibrator), values in found.items()
            if data == name
        }
        scores = bootstrap_systems(target.pairs, systems, n_resamples=n_resamples)
        there = layer_label(control.layers[0])
        for data, layers, calibrator in ours:
            if data != name:
                continue
            a, b = f"model {layers} {calibrator}", f"control {there} {calibrator}"
            row: dict[str, Any] = {"data": name, "layers": layers, "calibrator": calibrator}
            row["model"] = to_triple(scores.interval(a))
            if b in systems:
                row["control"] = to_triple(scores.interval(b))
                row["lead"] = to_triple(scores.interval(a, b))
            if calibrator != "none":
                raw, raw_b = f"model {layers} none", f"control {there} none"
                row["gain"] = to_triple(scores.interval(a, raw))
                if b in systems:
                    row["control_gain"] = to_triple(scores.interval(b, raw_b))
            rows.append(row)
    return rows


def run_rarity(
    system: System, targets: Sequence[Target], calibrators: Sequence[str], **options: Any
) -> list[dict[str, Any]]:
    """Ask how far TF-IDF, and the plain bag of words, explain a model's similarities.

    Gives, for each set, layer choice, calibrator and explaining similarity (``by``: ``"tfidf"`` or
    ``"count"``, sparse cosines fitted on the same sentences): the numbers of `Explained`, all pairs
    together, averaged over seeds; for TF-IDF also ``interval``, of ``gold_given_control``, for the
    first seed.
    """
    found = gather_similarities(system, targets, calibrators, **options)
    rows = []
    for target in targets:
        pairs = target.pairs
        for by in WEIGHTINGS:
            words = WordCountEncoder(by, dim=2).fit(target.fitted)
            simple = words.similarities(pairs.sentences1, pairs.sentences2)
            for (name, layers, calibrator), seeds in found.items():
                if name != pairs.name:
                    continue
                parts = [explained_by(pairs.gold, one, simple).to_dict() for one in seeds]
                mean = {key: round(float(np.mean([p[key] for p in parts])), 3) for key in parts[0]}
                row: dict[str, Any] = {"data": name, "layers": layers, "calibrator": calibrator}
                row |= {"by": by, **mean}
                if by == "tfidf":
                    first = {"first seed": seeds[:1]}
                    drawn = bootstrap_partials(pairs.gold, first, simple, n_resamples=300)
                    row["interval"] = to_triple(drawn.interval("first seed"))[1:]
                rows.append(row)
    return rows


def gather_similarities(
    system: System, targets: Sequence[Target], calibrators: Sequence[str], **options: Any
) -> dict[Key, list[Floats]]:
    """Collect the similarities of all seeds; of one, where the seed changes nothing.

    Parameters as for `seeded_similarities`.  A calibrator that GloVe is too short for is left out.
    """
    if system.model == "glove":
        calibrators = [name for name in calibrators if fits(name, load_glove().dim)]
    gathered: dict[Key, list[Floats]] = {}
    for _, found in seeded_similarities(system, targets, calibrators, **options):
        for key, values in found.items():
            seeds = gathered.setdefault(key, [])
            if is_random_name(system.model) or "flow" in key[2] or not seeds:
                seeds.append(values)
    return gathered


def to_triple(interval: Interval) -> list[float]:
    """Write an interval as [estimate, low, high], rounded to 2 decimals."""
    return [round(value, 2) for value in (interval.estimate, interval.low, interval.high)]
