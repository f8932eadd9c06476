"""Experiments with controls: encoders that have learned nothing, and what they explain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bertflow_lite.calibrated_similarities import Key, Target, find_similarities
from bertflow_lite.encode import load_encoder
from bertflow_lite.evaluate import score_similarities
from bertflow_lite.random_models import is_random_name
from bertflow_lite.similarity import Floats

__all__ = ["CALIBRATORS", "encoder_scores", "seeded_similarities"]

CALIBRATORS = ("none", "sn", "natsv:1", "whiten", "whiten:128", "flow")


def seeded_similarities(
    model: str,
    targets: Sequence[Target],
    layers: Sequence[Any],
    calibrators: Sequence[str],
    seeds: int,
    *,
    max_length: int = 64,
    device: str | None = None,
    download: bool = False,
    progress: bool = False,
) -> Iterator[tuple[str, dict[Key, Floats]]]:
    """Similarities of a model for seeds 0, 1, ..., one after the other.

    For a random model the seed draws its weights and its flows; for any other, the flows only.
    Parameters as for `find_similarities` and `load_encoder`.

    Yields
    ------
    fingerprint, similarities
        One pair for each seed.
    """
    for seed in range(seeds):
        drawn = is_random_name(model)
        if drawn and ":" in model:
            raise ValueError(f"{model!r} names a seed; leave it out, and say how many seeds.")
        if drawn or seed == 0:
            encoder = load_encoder(
                f"{model}:{seed}" if drawn else model,
                max_length=max_length,
                device=device,
                download=download,
                cache=not drawn,
            )
        yield (
            encoder.fingerprint,
            find_similarities(
                encoder, targets, layers, calibrators, seed=seed, progress=progress
            ),
        )


def encoder_scores(
    targets: Sequence[Target], by_seed: Sequence[dict[Key, Floats]]
) -> list[dict[str, Any]]:
    """Spearman x 100 by set, layers and calibrator: a list over seeds for ``all`` and ``wmean``."""
    rows = []
    pairs_of = {target.pairs.name: target.pairs for target in targets}
    for key in by_seed[0]:
        name, layers, calibrator = key
        scores = [score_similarities(pairs_of[name], one[key]) for one in by_seed]
        rows.append(
            {
                "data": name,
                "layers": layers,
                "calibrator": calibrator,
                "all": [round(score.all, 4) for score in scores],
                "wmean": [round(score.wmean, 4) for score in scores],
            }
        )
    return rows
