"""What the ablation's rows say: effects with their spread, means over models, the test tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tabulate import tabulate

from bertflow_lite.experiments.scoring import format_results

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Effect:
    """What one change does, over all layer choices and sets of some rows.

    Attributes
    ----------
    start, part, change : str
        As in `Variant`.
    score, score_sd : float or None
        Spearman x 100: the mean over layer choices and sets for each seed, then mean and standard
        deviation over seeds.  The deviation is 0 for what has no random state; both are None
        where training diverged on any of them.
    effect, effect_sd : float or None
        The same for the difference to the start with the same seed, layers and set; a reference
        is compared with ``paper``.
    by_cell : dict of str to float
        Effect by ``"layers, set"``, mean over seeds.
    bits : float or None
        Mean bits per dimension of the validation sentences.
    seconds : float
        Mean time of one fit.
    """

    start: str
    part: str
    change: str
    score: float | None
    score_sd: float | None
    effect: float | None
    effect_sd: float | None
    by_cell: dict[str, float]
    bits: float | None
    seconds: float


def summarize(rows: Rows) -> list[Effect]:
    """Compute the effect of every change, in the order of the rows.

    The rows are those of one model and one choice of sentences to fit on (`run_ablation`).
    """
    table: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        table.setdefault((row["start"], row["part"], row["change"]), []).append(row)
    effects = []
    for (start, part, change), mine in table.items():
        base_name = "paper" if start == "reference" else start
        base = {
            (row["layers"], row["data"], row["seed"]): row["spearman"]
            for row in table.get((base_name, "start", "as it is"), [])
        }
        if not base:
            raise ValueError(f"the rows have no start {base_name!r} to compare {change!r} with.")
        seeds = sorted({seed for _, _, seed in base})
        whole = all(row["spearman"] is not None for row in mine)
        scores, changes = [], []
        cells: dict[str, list[float]] = {}
        for seed in seeds if whole else []:
            # What has no random state was measured once: it stands beside every seed.
            with_seed = [row for row in mine if row["seed"] == seed] or mine
            scores.append(np.mean([row["spearman"] for row in with_seed]))
            differences = []
            for row in with_seed:
                difference = row["spearman"] - base[row["layers"], row["data"], seed]
                differences.append(difference)
                cells.setdefault(f"{row['layers']}, {row['data']}", []).append(difference)
            changes.append(np.mean(differences))
        bits = [row["bits_per_dim"] for row in mine if row["bits_per_dim"] is not None]
        effects.append(
            Effect(
                start=start,
                part=part,
                change=change,
                score=_mean(scores),
                score_sd=_sd(scores),
                effect=_mean(changes),
                effect_sd=_sd(changes),
                by_cell={cell: float(np.mean(values)) for cell, values in cells.items()},
                bits=_mean(bits),
                seconds=float(np.mean([row["seconds"] for row in mine])),
            )
        )
    return effects


def format_effects(effects: Sequence[Effect]) -> str:
    """Lay effects out as a table, a row for each change."""
    lines = [
        [
            effect.start,
            effect.part,
            effect.change,
            "diverged" if effect.score is None else _plus_minus(effect.score, effect.score_sd),
            "" if effect.effect is None else _plus_minus(effect.effect, effect.effect_sd, "+"),
            "" if effect.bits is None else f"{effect.bits:.2f}",
            f"{effect.seconds:.1f}",
        ]
        for effect in effects
    ]
    head = ["start", "part", "change", "Spearman x 100, dev", "effect", "bits/dim", "s a fit"]
    return tabulate(lines, head, tablefmt="simple", disable_numparse=True)


def average_models(runs: Mapping[str, Rows]) -> dict[str, dict[str, float]]:
    """Score every calibrator by its mean over models, each the mean over its layers and sets.

    Two rows more are made of whitening at all widths: ``"whiten, best on each model"`` takes on
    every model the one that is best there, ``"whiten, best on each layer choice and set"`` takes it
    anew for each of them. Both look at the scores that they are judged by, so they are upper bounds
    rather than methods.

    Returns
    -------
    dict of str to dict of str to float
        Variant -> model -> mean Spearman x 100, and ``"mean"`` over the models; best first.
        What is missing (or diverged) on some model or cell is left out.
    """
    table: dict[str, dict[str, float]] = {}
    for model, rows in runs.items():
        cells: dict[str, dict[tuple[str, str], list[float | None]]] = {}
        for row in rows:
            name = f"{row['start']}/{row['part']}/{row['change']}"
            where = (row["layers"], row["data"])
            cells.setdefault(name, {}).setdefault(where, []).append(row["spearman"])
        wanted = max(len(by) for by in cells.values())
        means = {
            name: {where: float(np.mean(values)) for where, values in by.items()}  # type: ignore[arg-type]
            for name, by in cells.items()
            if len(by) == wanted and not any(None in values for values in by.values())
        }
        for name, by in means.items():
            table.setdefault(name, {})[model] = float(np.mean(list(by.values())))
        rivals = [
            by for name, by in means.items() if name.rsplit("/", 1)[1].partition(":")[0] == "whiten"
        ]
        if rivals:
            table.setdefault("whiten, best on each model", {})[model] = max(
                float(np.mean(list(by.values()))) for by in rivals
            )
            table.setdefault("whiten, best on each layer choice and set", {})[model] = float(
                np.mean([max(by[where] for by in rivals) for where in rivals[0]])
            )
    whole = {
        name: by | {"mean": float(np.mean(list(by.values())))}
        for name, by in table.items()
        if len(by) == len(runs)
    }
    return dict(sorted(whole.items(), key=lambda item: -item[1]["mean"]))


def format_models(averages: Mapping[str, Mapping[str, float]]) -> str:
    """Lay means over models out as a table."""
    models = list(next(iter(averages.values()))) if averages else []
    lines = [[name, *(f"{by[model]:.2f}" for model in models)] for name, by in averages.items()]
    head = ["calibrator (Spearman x 100, dev)", *models]
    return tabulate(lines, head, tablefmt="simple", disable_numparse=True)


def best_width(rows: Rows, layers: str) -> str:
    """Name the whitening that is best on the mean over the validation sets for a layer choice."""
    scores: dict[str, list[float]] = {}
    for row in rows:
        if row["part"] == "whiten" and row["layers"] == layers:
            scores.setdefault(row["change"], []).append(row["spearman"])
    if not scores:
        raise ValueError(f"no whitening was measured on layers {layers!r}.")
    return max(scores, key=lambda name: float(np.mean(scores[name])))


def format_test(rows: Rows) -> str:
    """Lay test scores out: a row for each layer choice and calibrator, a column for each set."""
    return format_results(rows, "wmean", note=", test", average=True)


def _plus_minus(value: float, spread: float | None, sign: str = "") -> str:
    return f"{value:{sign}.2f}" + (f" ± {spread:.2f}" if spread else "")


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return float(np.mean(values)) if values else None


def _sd(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
