"""Experiments: one encoder, some layer choices, some calibrators, some STS sets, scored.

Every table of STS scores in the paper is a choice of these four.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from tabulate import tabulate

from bertflow_lite.calibrate import FlowCalibrator, make_calibrator
from bertflow_lite.datasets import load_sts
from bertflow_lite.encode import Encoder
from bertflow_lite.evaluate import bootstrap_interval, score_sts
from bertflow_lite.linear import DeadDimensionWarning
from bertflow_lite.word_vectors import WordVectorEncoder

__all__ = ["FitOn", "StsResult", "format_results", "run_sts"]

FitOn = Literal["target", "train", "test"]


@dataclass(frozen=True)
class StsResult:
    """One score: an encoder's layer choice, calibrated one way, on one set, with one seed.

    ``all``, ``mean`` and ``wmean`` are Spearman x 100 (`score_sts`); ``low`` and ``high`` a 95 %
    bootstrap interval of ``all``.  ``fitted_on`` counts the sentences that the calibrator saw,
    repeats included; ``bits_per_dim`` is the flow's loss on them, None for other calibrators.
    """

    data: str
    split: str
    layers: str
    calibrator: str
    seed: int
    all: float
    mean: float
    wmean: float
    low: float
    high: float
    n_pairs: int
    fitted_on: int
    bits_per_dim: float | None
    dead_dimensions: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as a dictionary that JSON can hold."""
        return {
            key: round(value, 4) if isinstance(value, float) else value
            for key, value in asdict(self).items()
        }


def run_sts(
    encoder: Encoder | WordVectorEncoder,
    data: Sequence[str],
    layers: Sequence[str],
    calibrators: Sequence[str],
    *,
    split: str | None = None,
    fit_on: FitOn = "target",
    seeds: int = 1,
    progress: bool = False,
    download: bool = False,
) -> Iterable[StsResult]:
    """Score an encoder; results come one by one, as they are done.

    Parameters
    ----------
    encoder : Encoder or WordVectorEncoder
        From `load_encoder`.
    data : sequence of str
        Names of STS sets (`load_sts`).
    layers : sequence of str
        Layer choices (`Encoder.encode`); all come from one forward pass.
    calibrators : sequence of str
        Short names (`make_calibrator`).
    split : str, optional
        Split to score; default: the set's test split.
    fit_on : {"target", "train", "test"}, default "target"
        Sentences for the calibrator, never their labels: those of all splits (the paper's
        "target"), of the train split only, or of the scored split only.
    seeds : int, default 1
        Flows are fitted with random states 0 to seeds - 1; the others do not vary.
    progress : bool, default False
        Progress bars while encoding and fitting.
    download : bool, default False
        Allow a missing data set to be fetched from its public home.

    Yields
    ------
    StsResult
    """
    for name in data:
        scored = load_sts(name, split, download=download)
        if fit_on == "test":
            fitted = scored.sentences
        else:
            wanted = "all" if fit_on == "target" else "train"
            fitted = load_sts(name, wanted, download=download).sentences
        # One call, so that a sentence in both is encoded once even without a cache.
        asked: Any = list(layers)
        both = encoder.encode([*fitted, *scored.sentences], asked, progress=progress)
        for label, embeddings in both.items():
            to_fit, to_score = embeddings[: len(fitted)], embeddings[len(fitted) :]
            for calibrator in calibrators:
                for seed in range(seeds if "flow" in calibrator else 1):
                    started = time.perf_counter()
                    model = make_calibrator(calibrator, random_state=seed, progress=progress)
                    z, dead = to_score, 0
                    if model is not None:
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore", DeadDimensionWarning)
                            model.fit(to_fit)
                        z = model.transform(to_score)
                        dead = int((~model.live_).sum()) if hasattr(model, "live_") else 0
                    seconds = time.perf_counter() - started
                    score = score_sts(scored, z)
                    interval = bootstrap_interval(scored, z)
                    yield StsResult(
                        data=scored.name,
                        split=scored.split,
                        layers=label,
                        calibrator=calibrator,
                        seed=seed,
                        all=score.all,
                        mean=score.mean,
                        wmean=score.wmean,
                        low=interval.low,
                        high=interval.high,
                        n_pairs=score.n_pairs,
                        fitted_on=len(fitted) if model is not None else 0,
                        bits_per_dim=model.bits_per_dim(to_fit)
                        if isinstance(model, FlowCalibrator)
                        else None,
                        dead_dimensions=dead,
                        seconds=seconds,
                    )


def format_results(
    results: Sequence[StsResult], aggregation: str = "all", style: str = "simple"
) -> str:
    """Lay results out as a table: a row for each layers and calibrator, a column for each set.

    Parameters
    ----------
    results : sequence of StsResult
    aggregation : {"all", "mean", "wmean"}, default "all"
        The number shown; it is named in the table's corner.
    style : str, default "simple"
        A table format of the tabulate package, such as ``"github"`` or ``"latex_booktabs"``.

    Returns
    -------
    str
        Spearman x 100; where there are several seeds, their mean ± standard deviation.
    """
    if aggregation not in ("all", "mean", "wmean"):
        raise ValueError(f"aggregation is {aggregation!r}; it must be 'all', 'mean' or 'wmean'.")
    sets = list(dict.fromkeys(r.data for r in results))
    rows = list(dict.fromkeys((r.layers, r.calibrator) for r in results))
    cells = []
    for layers, calibrator in rows:
        line = [layers, calibrator]
        for name in sets:
            values = [
                getattr(r, aggregation)
                for r in results
                if (r.layers, r.calibrator, r.data) == (layers, calibrator, name)
            ]
            spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
            line.append(f"{np.mean(values):.2f}{spread}" if values else "")
        cells.append(line)
    headers = ["layers", f"calibrator ({aggregation}, Spearman x 100)", *sets]
    return tabulate(cells, headers, tablefmt=style, disable_numparse=True)
