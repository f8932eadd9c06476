"""Would calibration help these embeddings?  What can be measured without labels, and what cannot.

Ratings alone can tell whether rankings get better.  Without them one can still see how anisotropic
a space is, whether there are enough sentences for the calibrator, how much it would change, and
whether two calibrators fitted on different halves agree.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from bertflow_lite.calibrators.base import DeadDimensionWarning, find_live
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import Whitener
from bertflow_lite.measures.geometry import (
    effective_rank,
    iso_score,
    sampled_mean_cosine,
    singular_values,
)
from bertflow_lite.measures.similarity import as_rows, nearest, spearman

__all__ = ["Diagnosis", "diagnose"]

# Up to this mean cosine of random sentences, a space counts as spread out.  Every untuned layer of
# this project's stored runs lies above (0.33 to 0.99), the tuned last layer of minilm at 0.03.  The
# sign holds in one direction only: encoders tuned with a low temperature lie far above as well
# (E5's model card says 0.7 to 1.0), and calibration need not help them.
SPREAD_OUT = 0.2
# Fewer sentences for each dimension than this, and two fits seldom agree.
FEW = 3.0
# Neighbors that two fits on different halves have in common, below which they are called unsteady.
STEADY = 0.5
N_PAIRS = 20_000


@dataclass(frozen=True)
class Diagnosis:
    """Measures without labels, and what they suggest.

    Attributes
    ----------
    n, dim : int
        Different sentences and width.
    live : int
        Dimensions with some spread.
    mean_cosine, mean_cosine_calibrated : float
        Of random pairs of different sentences.
    iso_score, iso_score_calibrated : float
        IsoScore: 0 (one direction) to 1 (all directions alike).
    effective_rank, effective_rank_calibrated : float
        How many directions the spectrum amounts to.
    loudest : float
        Share of the strongest single dimension in the mean cosine, 0 to 1.
    agreement : float
        Spearman between raw and calibrated cosines of the same random pairs: 1 means that
        calibration would change no ranking.
    kept_neighbors : float
        Share of each sentence's 10 nearest neighbors that stay among them.
    steadiness : float
        The same share, between two calibrators that were fitted on different halves.
    advice : tuple of str
        Sentences for people, the honest limit among them.
    """

    n: int
    dim: int
    live: int
    mean_cosine: float
    mean_cosine_calibrated: float
    iso_score: float
    iso_score_calibrated: float
    effective_rank: float
    effective_rank_calibrated: float
    loudest: float
    agreement: float
    kept_neighbors: float
    steadiness: float
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the measures as a dictionary that JSON can hold.

        Returns
        -------
        dict
        """
        return {
            key: round(value, 4) if isinstance(value, float) else value
            for key, value in asdict(self).items()
        }


def diagnose(embeddings: ArrayLike, calibrator: Any, *, random_state: int = 0) -> Diagnosis:
    """Measure a space before and after a calibrator, without labels.

    Parameters
    ----------
    embeddings : array-like or torch tensor, shape (n >= 24, dim)
        Embeddings of different sentences; repeats are left out.
    calibrator : estimator
        A calibrator that is not fitted; it is cloned and fitted here.
    random_state : int, default 0
        Seed of pairs and halves.

    Returns
    -------
    Diagnosis

    Examples
    --------
    A cloud far from the origin, which standardizing brings back to it:

    >>> from bertflow_lite import Standardizer
    >>> cone = np.random.default_rng(0).normal(size=(400, 8)) + 5
    >>> found = diagnose(cone, Standardizer())
    >>> found.mean_cosine > 0.9, abs(found.mean_cosine_calibrated) < 0.05
    (True, True)
    """
    rows = as_rows(embeddings, "the embeddings")  # names a bad row, before sorting moves it
    x = np.unique(rows.astype(np.float32), axis=0)
    if len(x) < 24:
        raise ValueError(f"{len(x)} different sentences are too few to measure; give 24 or more.")
    if random_state < 0:
        raise ValueError(f"random_state is {random_state}; give a whole number from 0 up.")
    rng = np.random.default_rng(random_state)
    x = x[rng.permutation(len(x))]
    half = len(x) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadDimensionWarning)  # the advice says it
        live = int(find_live(x).sum())
        z, one, two = (clone(calibrator).fit(part).transform(x) for part in (x, x[:half], x[half:]))
    probe = rng.choice(len(x), size=min(len(x), 500), replace=False)
    first = rng.integers(len(x), size=N_PAIRS)
    second = (first + rng.integers(1, len(x), size=N_PAIRS)) % len(x)
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    shares = unit.mean(axis=0) ** 2
    total = float(shares.sum())
    measures = {
        "n": len(x),
        "dim": x.shape[1],
        "live": live,
        "mean_cosine": sampled_mean_cosine(x, random_state=random_state).estimate,
        "mean_cosine_calibrated": sampled_mean_cosine(z, random_state=random_state).estimate,
        "iso_score": iso_score(x),
        "iso_score_calibrated": iso_score(z),
        "effective_rank": effective_rank(singular_values(x)),
        "effective_rank_calibrated": effective_rank(singular_values(z)),
        "loudest": float(shares.max() / total) if total > 0 else 0.0,
        "agreement": spearman(_cosines(x, first, second), _cosines(z, first, second)),
        "kept_neighbors": _shared_neighbors(x, z, probe),
        "steadiness": _shared_neighbors(one, two, probe),
    }
    return Diagnosis(**measures, advice=_advise(measures))


def directions_to_learn(calibrator: Any, dim: int) -> int:
    """Give in how many directions a calibrator must learn the spread; 0 if dimension by dimension.

    Some `FEW` different sentences for each are wanted; below one for each, the spread in some of
    them is not seen at all.
    """
    steps = [step for _, step in getattr(calibrator, "steps", [("", calibrator)])]
    widths = [0]
    for step in steps:
        if isinstance(step, FlowCalibrator):
            widths.append(dim)
        elif isinstance(step, Whitener):
            widths.append(step.n_components or dim)
    return max(widths)


def _cosines(x: Any, first: Any, second: Any) -> Any:
    norms = np.linalg.norm(x, axis=1)
    product = np.einsum("ij,ij->i", x[first], x[second])
    return product / np.maximum(norms[first] * norms[second], np.finfo(np.float32).tiny)


def _shared_neighbors(a: Any, b: Any, rows: Any, top: int = 10) -> float:
    """Share of the nearest neighbors of some rows that two spaces have in common."""
    shared = 0
    in_a, in_b = (nearest(space[rows], space, top=top + 1)[0] for space in (a, b))
    for row, one, two in zip(rows, in_a, in_b, strict=True):
        shared += len((set(one) & set(two)) - {row})  # no sentence is its own neighbor
    return shared / (top * len(rows))


def _advise(m: dict[str, Any]) -> tuple[str, ...]:
    said = []
    if m["mean_cosine"] <= SPREAD_OUT:
        said.append(
            f"The space is spread out already: random sentences have a mean cosine of "
            f"{m['mean_cosine']:.2f}. Leave it as it is: encoders that were tuned to compare "
            "sentences look like this, and calibration usually costs them some points."
        )
    else:
        said.append(
            f"Random sentences have a mean cosine of {m['mean_cosine']:.2f}. One cannot tell from "
            "the space alone whether calibration helps: language models look like this, and so do "
            "some encoders that were tuned to compare sentences. What tells is a hundred rated "
            "pairs. Without them, see whether the model card speaks of such tuning, and try "
            "weighting words by rarity first."
        )
    if m["loudest"] > 0.2:
        said.append(f"One dimension alone makes {100 * m['loudest']:.0f} % of that cosine.")
    if m["live"] < m["dim"]:
        dead = m["dim"] - m["live"]
        said.append(f"{dead} of {m['dim']} dimensions hardly vary; they are left as they are.")
    if m["n"] < FEW * m["dim"]:
        said.append(
            f"{m['n']} different sentences are few for {m['dim']} dimensions: prefer SN or "
            "whitening to a small width, or bring more sentences."
        )
    if m["steadiness"] < STEADY:
        said.append(
            f"Two calibrators fitted on different halves agree on only "
            f"{100 * m['steadiness']:.0f} % of the nearest neighbors: the result would depend on "
            "which sentences were at hand."
        )
    said.append(
        "Whether the new order of neighbors is better cannot be known without ratings. A hundred "
        "rated pairs of your own field tell: score them with `evaluate`."
    )
    return tuple(said)
