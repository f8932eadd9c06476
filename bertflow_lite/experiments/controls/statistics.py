"""What is left of a gain once a control is taken into account: the statistics of the controls.

A similarity can agree with people because it understands, or because it counts shared words and
gives the rare ones more weight.  The functions here take similarities and gold scores as arrays
and say how far the second explains the first: partial rank correlations, and differences between
systems on the same resampled pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.measures.scores import (
    Aggregation,
    Interval,
    group_pairs,
    interval_ends,
    resample,
    score_similarities,
)
from bertflow_lite.measures.similarity import Floats, as_values, spearman


@dataclass(frozen=True)
class Explained:
    """How a similarity shares its agreement with people with a control; Spearman x 100."""

    # Correlation of the similarity, and of the control, with the gold score.
    gold: float
    control_gold: float
    control: float  # of the similarity with the control
    # Partial correlations with gold: of the similarity given the control, and the other way round.
    gold_given_control: float
    control_gold_given: float
    # With gold, of what is left of the similarity's ranks when the control's are regressed out (the
    # semi-partial correlation).
    residual_gold: float
    # Multiple correlation of the gold ranks with both: what the best weighted sum of the two could
    # reach, its weights fitted on the gold ranks themselves.
    both_gold: float

    def to_dict(self) -> dict[str, float]:
        """Return the numbers, rounded to 4 decimals."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def partial_spearman(x: ArrayLike, y: ArrayLike, given: ArrayLike) -> float:
    """Spearman of x and y with z held fixed: (r_xy - r_xz r_yz) / sqrt((1 - r_xz^2)(1 - r_yz^2)).

    It equals Pearson's correlation between what is left of the ranks of x and of y when the ranks
    of z are regressed out of both by least squares.

    An error, as `spearman` raises, also where z orders the pairs exactly as x or y does, so that
    nothing is left.
    """
    r_xy, r_xz, r_yz = spearman(x, y), spearman(x, given), spearman(y, given)
    left = (1 - r_xz**2) * (1 - r_yz**2)
    if left < 1e-12:
        raise ValueError(
            "The partial correlation is undefined: the given values order the pairs exactly as one "
            "of the other two does (or in reverse), so that nothing is left of it."
        )
    return float(np.clip((r_xy - r_xz * r_yz) / np.sqrt(left), -1.0, 1.0))


def rank_residual(x: ArrayLike, given: ArrayLike) -> Floats:
    """Ranks of x minus their least-squares prediction from the ranks of z; shape (n,), mean 0.

    Raises what `spearman` raises.
    """
    r = spearman(x, given)
    ranks_x, ranks_z = (rankdata(as_values(v, "the values")) for v in (x, given))
    slope = r * ranks_x.std() / ranks_z.std()
    return np.asarray((ranks_x - ranks_x.mean()) - slope * (ranks_z - ranks_z.mean()))


def explained_by(gold: ArrayLike, similarity: ArrayLike, control: ArrayLike) -> Explained:
    """Share a similarity's agreement with people out between itself and a control.

    The control is the simple similarity, such as TF-IDF's cosine; errors are those of
    `partial_spearman`.
    """
    r_g, r_cg = spearman(similarity, gold), spearman(control, gold)
    r_c = spearman(similarity, control)
    given = partial_spearman(similarity, gold, control)
    # The residual of the similarity's ranks, against the gold ranks as they are.
    residual = rank_residual(similarity, control)
    ranks = rankdata(as_values(gold, "gold"))
    left = float(np.corrcoef(residual, ranks)[0, 1])
    both = np.sqrt(r_cg**2 + left**2)  # the two regressors, made orthogonal
    numbers = (r_g, r_cg, r_c, given, partial_spearman(control, gold, similarity), left, both)
    return Explained(*(100 * float(number) for number in numbers))


@dataclass(frozen=True, eq=False)
class BootstrapScores:
    """Scores of several systems on the same resampled pairs."""

    names: tuple[str, ...]
    # Spearman x 100 on the pairs as they are, the mean over a system's seeds; shape (n_systems,).
    estimates: Floats
    resampled: Floats  # the same on each resample; shape (n_systems, n_resamples)
    aggregation: Aggregation

    def interval(self, name: str, minus: str | None = None) -> Interval:
        """95 % percentile interval of a system's score, or of its lead over another one."""
        return self.contrast({name: 1.0} if minus is None else {name: 1.0, minus: -1.0})

    def contrast(self, weights: Mapping[str, float]) -> Interval:
        """95 % percentile interval of a weighted sum of scores, such as a difference of gains."""
        rows = [self._row(name) for name in weights]
        factors = np.array(list(weights.values()))
        drawn = factors @ self.resampled[rows]
        if not np.isfinite(drawn).any():
            raise ValueError(f"No resample has a defined score of {' and '.join(weights)}.")
        low, high = interval_ends(drawn)
        estimate = float(factors @ self.estimates[rows])
        return Interval(low, high, estimate, 0.95, len(drawn), self.aggregation)

    def _row(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"There is no system {name!r}; there are {', '.join(self.names)}.")
        return self.names.index(name)


def bootstrap_systems(
    pairs: SentencePairs,
    systems: Mapping[str, Sequence[ArrayLike]],
    *,
    aggregation: Aggregation = "all",
    n_resamples: int = 1000,
    random_state: int | np.random.Generator | None = 0,
) -> BootstrapScores:
    """Score many systems on the same resampled pairs, so that any two can be compared.

    It does what `scores.bootstrap_difference` does, for all differences at once, and for systems
    with several seeds, whose scores are averaged within each resample.  The interval is about the
    choice of pairs; the seeds are taken as they are.

    A system has an array of similarities for each of its seeds. Pairs are drawn within each subset
    for ``mean`` and ``wmean``.
    """
    if n_resamples < 1 or not systems or not all(len(seeds) for seeds in systems.values()):
        raise ValueError("Give at least one resample, and systems with at least one array each.")
    rng = np.random.default_rng(random_state)
    values = {
        name: [as_values(one, f"the similarities of {name}") for one in seeds]
        for name, seeds in systems.items()
    }
    estimates = [
        np.mean([getattr(score_similarities(pairs, one), aggregation) for one in seeds])
        for seeds in values.values()
    ]
    groups, weights = group_pairs(pairs, aggregation)
    drawn = np.empty((len(values), len(groups), n_resamples))
    for g, rows in enumerate(groups):
        for part, chosen in resample(rows, n_resamples, rng):
            gold = _unit_ranks(pairs.gold[chosen])  # ranked once for all systems
            for s, seeds in enumerate(values.values()):
                scores = [(_unit_ranks(one[chosen]) * gold).sum(axis=1) for one in seeds]
                drawn[s, g, part] = 100 * np.mean(scores, axis=0)
    return BootstrapScores(
        tuple(values), np.array(estimates), np.average(drawn, axis=1, weights=weights), aggregation
    )


def bootstrap_partials(
    gold: ArrayLike,
    systems: Mapping[str, Sequence[ArrayLike]],
    control: ArrayLike,
    *,
    n_resamples: int = 500,
) -> BootstrapScores:
    """Give several systems' partial correlations with gold given a control, times 100.

    All on the same resampled pairs, so that differences have intervals; a system has an array for
    each of its seeds, whose correlations are averaged.
    """
    target, other = as_values(gold, "gold"), as_values(control, "the control")
    values = {name: [as_values(one, name) for one in seeds] for name, seeds in systems.items()}
    estimates = [
        np.mean([100 * partial_spearman(one, target, other) for one in seeds])
        for seeds in values.values()
    ]
    drawn = np.empty((len(values), n_resamples))
    rng = np.random.default_rng(0)
    for part, chosen in resample(np.arange(len(target)), n_resamples, rng):
        g, c = _unit_ranks(target[chosen]), _unit_ranks(other[chosen])
        r_gc = (g * c).sum(axis=1)
        for row, seeds in enumerate(values.values()):
            found = []
            for one in seeds:
                s = _unit_ranks(one[chosen])
                r_sg, r_sc = (s * g).sum(axis=1), (s * c).sum(axis=1)
                found.append((r_sg - r_sc * r_gc) / np.sqrt((1 - r_sc**2) * (1 - r_gc**2)))
            drawn[row, part] = 100 * np.mean(found, axis=0)
    return BootstrapScores(tuple(values), np.array(estimates), drawn, "all")


def _unit_ranks(values: Floats) -> Floats:
    """Ranks along each row, centered and of length 1: their dot product is Spearman's correlation.

    A row of equal values has no order; it gives NaN.
    """
    ranks = rankdata(values, axis=-1) - (values.shape[-1] + 1) / 2
    with np.errstate(invalid="ignore"):
        return np.asarray(ranks / np.sqrt((ranks**2).sum(axis=-1, keepdims=True)))
