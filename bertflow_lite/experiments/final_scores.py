"""The test sets, looked at once, when the preset has been chosen on validation sets."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertflow_lite.base import DeadDimensionWarning
from bertflow_lite.calibrate import FlowCalibrator, make_calibrator
from bertflow_lite.datasets import load_sts
from bertflow_lite.encode import Encoder
from bertflow_lite.evaluate import score_sts
from bertflow_lite.experiments.ablation import at_most, encode_fit_and_scored
from bertflow_lite.experiments.partial_runs import Keep, no_keep
from bertflow_lite.word_vectors import WordVectorEncoder

__all__ = ["TEST_DATA", "run_test"]

TEST_DATA = ("stsb", "sick-r", "sts12", "sts13", "sts14", "sts15", "sts16")

PRESETS_SHOWN = ("flow:paper", "flow:released-code", "flow:recommended")


def run_test(
    encoder: Encoder | WordVectorEncoder,
    widths: Mapping[str, str],
    *,
    data: Sequence[str] = TEST_DATA,
    seeds: int = 3,
    download: bool = False,
    progress: bool = False,
    keep: Keep = no_keep,
    report: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Score the three presets and whitening on test splits; fitted on all splits' sentences.

    Parameters
    ----------
    encoder : Encoder or WordVectorEncoder
        From `load_encoder`.
    widths : mapping of str to str
        Layer choice -> the whitening that was best on its validation sets (`best_width`).
    data : sequence of str, default TEST_DATA
        Sets.
    seeds : int, default 3
        Random states 0 to seeds - 1 of the flows.
    download, progress, keep, report
        As in `run_ablation`.

    Returns
    -------
    list of dict
        A row for each score: ``layers``, ``data``, ``calibrator``, ``seed``, ``all``, ``mean``,
        ``wmean`` (`score_sts`), ``bits_per_dim`` (of the test sentences) and ``seconds``.
    """
    rows = []
    for name in data:
        both = encode_fit_and_scored(
            encoder, name, list(widths), split="test", download=download, progress=progress
        )
        pairs = load_sts(name, download=download)
        for layers, (fitted, scored) in both.items():
            best = at_most(widths[layers], encoder.dim)
            for calibrator in dict.fromkeys(("none", "sn", "whiten", best, *PRESETS_SHOWN)):
                for seed in range(seeds if calibrator.startswith("flow") else 1):

                    def compute(
                        calibrator: str = calibrator,
                        seed: int = seed,
                        fitted: Any = fitted,
                        scored: Any = scored,
                        pairs: Any = pairs,
                    ) -> dict[str, Any]:
                        started = time.perf_counter()
                        model = make_calibrator(calibrator, random_state=seed)
                        z = scored
                        if model is not None:
                            with warnings.catch_warnings():
                                warnings.simplefilter("ignore", DeadDimensionWarning)
                                z = model.fit(fitted).transform(scored)
                        score = score_sts(pairs, z)
                        bits = None
                        if isinstance(model, FlowCalibrator):
                            bits = round(model.bits_per_dim(scored), 4)
                        return {
                            "all": round(score.all, 4),
                            "mean": round(score.mean, 4),
                            "wmean": round(score.wmean, 4),
                            "bits_per_dim": bits,
                            "seconds": round(time.perf_counter() - started, 2),
                        }

                    key = f"{name}/{layers}/{calibrator}/{seed}"
                    row = {
                        "layers": layers,
                        "data": name,
                        "calibrator": calibrator,
                        "seed": seed,
                    } | keep(key, compute)
                    report(f"{key}: {row['wmean']}")
                    rows.append(row)
    return rows
