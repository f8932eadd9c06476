"""Paper against released code: what each part of the flow does to the validation scores.

From two starts, the presets ``paper`` and ``released-code``, one thing is changed at a time; the
linear calibrators stand beside them.  Everything is scored on validation splits (STS-B dev, SICK-R
trial), so that a preset can be chosen from these numbers and the test sets are left alone
(`run_ablation`).  What was chosen is then scored on the test splits, once (`run_test`).  What the
rows say: `summarize` gives effects with their spread, `average_models` means over models.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tabulate import tabulate
from tqdm import tqdm

from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.pooling import pool, resolve_layers
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.paper import SETS
from bertflow_lite.experiments.scoring import (
    AnyEncoder,
    RunOptions,
    bits_per_dim,
    encode_parts,
    fit_calibrator,
    scores,
    seeds_for,
    transform,
)
from bertflow_lite.measures.scores import score_sts
from bertflow_lite.train import NonFiniteLossError

logger = logging.getLogger(__name__)
DATA = ("stsb", "sick-r")
"""The sets that have a validation split."""
TEST_DATA = tuple(SETS)
"""The sets of the test, which are the paper's seven."""
# How sentences for the calibrator are chosen; never their labels.
FIT_ON: dict[str, tuple[str, ...]] = {
    "target": ("all",),  # the paper's
    "train+dev": ("train", "dev"),  # without the test split's sentences
}
Floats32 = NDArray[np.float32]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Variant:
    """One calibrator of the ablation."""

    # The preset that is changed: paper, released-code; or reference, a calibrator that is no flow.
    start: str
    part: str  # what is changed, for instance ``"permutation"``; ``"start"`` for the preset itself
    change: str  # what it is changed to, in words
    # Settings of `FlowCalibrator` that differ from the preset's.
    settings: Mapping[str, Any] = field(default_factory=dict)
    calibrator: str = ""  # for a reference: its name as `make_calibrator` takes it
    # Fit on embeddings that the encoder makes with dropout on, as the released code does; one draw
    # of what is dropped serves all seeds of the flow.
    dropout: bool = False

    @property
    def key(self) -> str:
        """Name it in one string."""
        return f"{self.start}/{self.part}/{self.change}"

    @property
    def seeded(self) -> bool:
        """Whether a random state changes it."""
        return self.start != "reference"

    def make(self, seed: int, dim: int) -> Any | None:
        """Make the calibrator, unfitted, for embeddings of width ``dim``; None for raw ones."""
        if self.calibrator:
            return make_calibrator(at_most(self.calibrator, dim))
        return FlowCalibrator.from_preset(
            self.start, random_state=seed, device="cpu", **self.settings
        )


def at_most(calibrator: str, dim: int) -> str:
    """Read the width of a whitening as "at most so many": narrow embeddings are whitened whole."""
    kind, _, setting = calibrator.partition(":")
    return kind if kind == "whiten" and setting and int(setting) >= dim else calibrator


def _variants() -> Iterator[Variant]:
    yield Variant("paper", "start", "as it is")
    changes: list[tuple[str, str, dict[str, Any]]] = [
        ("initialization", "none", {"data_init": False}),
        ("initialization", "from 32 sentences", {"init_rows": 32}),
        ("permutation", "reversal", {"permutation": "reverse"}),
        ("permutation", "none", {"permutation": "none"}),
        ("levels", "1", {"levels": 1}),
        ("levels", "3", {"levels": 3}),
        ("depth", "1", {"depth": 1}),
        ("depth", "6", {"depth": 6}),
        ("layers", "actnorm only", {"coupling": False}),
        ("layers", "coupling only", {"actnorm": False}),
        ("optimizer", "released code's", {"optimizer": "released-code"}),
        ("optimizer", "no clipping", {"max_grad_norm": None}),
        ("batch", "64", {"batch_size": 64}),
        ("learning rate", "2e-5", {"learning_rate": 2e-5}),
        ("learning rate", "5e-3", {"learning_rate": 5e-3}),
        ("epochs", "0", {"epochs": 0}),
        ("epochs", "3", {"epochs": 3}),
        ("epochs", "10", {"epochs": 10}),
        ("rotation", "PCA", {"rotation": "pca"}),
        ("noise", "0.7", {"noise": 0.7}),
    ]
    for size in (0.5, 0.7, 1.0):
        both = {"rotation": "pca", "noise": size, "init_rows": 16384}
        changes += [("rotation + noise", f"PCA, {size:g}, 0 epochs", both | {"epochs": 0})]
    both = {"rotation": "pca", "noise": 0.7, "init_rows": 16384}
    changes += [
        ("rotation + noise", "PCA, 0.7", both),
        ("rotation + noise", "PCA, 0.7, batch 128", both | {"batch_size": 128}),
    ]
    for part, change, settings in changes:
        yield Variant("paper", part, change, settings)
    yield Variant("paper", "encoder dropout", "on", dropout=True)
    yield Variant("released-code", "start", "as it is")
    changes = [
        ("initialization", "from data", {"data_init": True}),
        ("permutation", "random", {"permutation": "random"}),
        ("permutation", "none", {"permutation": "none"}),
        ("levels", "2", {"levels": 2}),
        ("optimizer", "Adam", {"optimizer": "adam"}),
        ("batch", "32", {"batch_size": 32, "max_grad_norm": 1.0}),
        ("epochs", "3", {"epochs": 3}),
        ("initialization + permutation", "from data, random",
         {"data_init": True, "permutation": "random"}),
    ]  # fmt: skip
    for part, change, settings in changes:
        yield Variant("released-code", part, change, settings)
    yield Variant("released-code", "encoder dropout", "on", dropout=True)
    for name in ("none", "sn", "natsv:1", "natsv:10"):
        yield Variant("reference", name.partition(":")[0], name, calibrator=name)
    for width in (32, 48, 64, 96, 128, 192, 256, 384):
        yield Variant("reference", "whiten", f"whiten:{width}", calibrator=f"whiten:{width}")
    yield Variant("reference", "whiten", "whiten", calibrator="whiten")


VARIANTS: tuple[Variant, ...] = tuple(_variants())
"""What the ablation can measure."""


def find_variants(parts: Sequence[str] = (), *, dropout: bool = False) -> list[Variant]:
    """Give the variants of some parts, with their starts; of all parts where none is named.

    A part is a name (``"permutation"``) or a single variant (``"paper/levels/1"``). Those with
    dropout, which encode anew and take minutes, come where they are asked for.
    """
    known = {variant.part for variant in VARIANTS} | {variant.key for variant in VARIANTS}
    unknown = [part for part in parts if part not in known]
    if unknown:
        names = ", ".join(dict.fromkeys(variant.part for variant in VARIANTS))
        raise ValueError(f"the ablation has no part {unknown[0]!r}; there are {names}.")
    wanted = {*parts, "start"}
    return [
        variant
        for variant in VARIANTS
        if (not parts or variant.part in wanted or variant.key in wanted)
        and (dropout or not variant.dropout)
    ]


def run_ablation(
    encoder: AnyEncoder,
    layers: Sequence[str],
    variants: Sequence[Variant],
    options: RunOptions | None = None,
    *,
    fit_on: str = "target",
    fit_rows: int | None = None,
) -> list[dict[str, Any]]:
    """Fit and score every variant on every layer choice and set.

    The options' sets need a validation split; by default they are `DATA`. Calibrators are fitted on
    the sentences that `FIT_ON` names; with ``fit_rows``, on so many of them only, drawn anew for
    each seed: how a calibrator does where there is little data.

    Gives a row for each score: ``start``, ``part``, ``change``, ``layers``, ``data``, ``fit_on``,
    ``fitted_on`` (number of sentences), ``seed``, ``spearman`` (x 100, on the validation split;
    None where training diverged), ``bits_per_dim`` (of the validation sentences; None for what has
    no density) and ``seconds`` to fit.
    """
    options = options or RunOptions()

    @functools.lru_cache(maxsize=1)
    def dropped(name: str) -> dict[str, Floats32]:  # one pass for all layers and seeds
        if not isinstance(encoder, Encoder):
            raise ValueError(f"{encoder.name!r} has no dropout: leave that variant out.")
        sentences = _sentences(name, fit_on, options.download)
        return encode_with_dropout(encoder, sentences, layers, progress=options.progress)

    def compute(
        variant: Variant, seed: int, name: str, label: str, fitted: Floats32, scored: Floats32
    ) -> dict[str, Any]:
        rows_to_fit = dropped(name)[label] if variant.dropout else fitted
        if fit_rows is not None:
            rng = np.random.default_rng(seed)
            rows_to_fit = rows_to_fit[rng.permutation(len(rows_to_fit))[:fit_rows]]
        return fit_variant(variant, seed, name, rows_to_fit, scored)

    rows = []
    for name in options.data or DATA:
        encoded = encode_fit_and_scored(encoder, name, layers, options, fit_on=fit_on)
        for label, (fitted, scored) in encoded.items():
            for variant in variants:
                random = variant.seeded or fit_rows is not None
                for seed in range(options.seeds if random else 1):
                    one = functools.partial(compute, variant, seed, name, label, fitted, scored)
                    what = {"start": variant.start, "part": variant.part, "change": variant.change}
                    what |= {"layers": label, "data": name, "fit_on": fit_on}
                    rows.append(options.row(one, **what, seed=seed))
                    logger.info("%s", rows[-1])
    return rows


def encode_fit_and_scored(
    encoder: AnyEncoder,
    name: str,
    layers: Sequence[str],
    options: RunOptions,
    *,
    fit_on: str = "target",
    split: str = "dev",
) -> dict[str, tuple[Floats32, Floats32]]:
    """Encode the sentences to fit on and those of the scored split, repeats included.

    Shapes (n_fit, dim) and (n_scored, dim), by the label of the layer choice.
    """
    if fit_on not in FIT_ON:
        raise ValueError(f"fit_on is {fit_on!r}; it must be {' or '.join(FIT_ON)}.")
    parts = {
        "fit": _sentences(name, fit_on, options.download),
        "score": load_sts(name, split, download=options.download).sentences,
    }
    encoded = encode_parts(encoder, parts, layers, progress=options.progress)
    return {label: (one["fit"], one["score"]) for label, one in encoded.items()}


def fit_variant(
    variant: Variant, seed: int, data: str, fitted: Floats32, scored: Floats32
) -> dict[str, Any]:
    """Fit one variant on ``fitted`` and score it on the validation pairs of ``data``."""
    started = time.perf_counter()
    model = variant.make(seed, fitted.shape[1])
    score: float | None = None
    bits: float | None = None
    try:
        fit_calibrator(model, fitted)
    except NonFiniteLossError:
        pass
    else:
        score = round(score_sts(load_sts(data, "dev"), transform(model, scored)).all, 4)
        bits = bits_per_dim(model, scored)
    return {
        "fitted_on": len(fitted) if model is not None else 0,
        "spearman": score,
        "bits_per_dim": bits,
        "seconds": round(time.perf_counter() - started, 2),
    }


def _sentences(name: str, fit_on: str, download: bool) -> tuple[str, ...]:
    parts = (load_sts(name, split, download=download).sentences for split in FIT_ON[fit_on])
    return tuple(sentence for part in parts for sentence in part)


def encode_with_dropout(
    encoder: Encoder,
    sentences: Sequence[str],
    layers: Sequence[Any],
    *,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, NDArray[np.float32]]:
    """Encode sentences with the encoder's dropout on; nothing is cached.

    All layer choices come from one pass, with the same units dropped; a repeated sentence is
    encoded again, with others dropped. The encoder is left in evaluation mode, and the process's
    random state, which dropout draws from, as it was.

    Shape (n, dim), by the label of the layer choice.
    """
    model, device = encoder.model, encoder.device
    if not any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.modules()):
        raise ValueError(f"{encoder.name!r} has no dropout to leave on.")
    choices = [resolve_layers(choice, encoder.n_layers + 1) for choice in layers]
    out = {c.label: np.zeros((len(sentences), encoder.dim), dtype=np.float32) for c in choices}
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        tqdm(total=len(sentences), desc="encode, dropout on", disable=not progress) as bar,
    ):
        torch.manual_seed(seed)
        model.train()
        try:
            for rows, _, mask, states in encoder.hidden_states(sentences, batch_tokens=2048):
                for choice in choices:
                    vectors = [
                        pool(states[int(slot.split(":")[1])], mask, slot) for slot in choice.slots
                    ]
                    out[choice.label][rows] = torch.stack(vectors).mean(dim=0).cpu().numpy()
                bar.update(len(rows))
        finally:
            model.eval()
    return out


PRESETS_SHOWN = ("flow:paper", "flow:released-code", "flow:recommended")


def run_test(
    encoder: AnyEncoder, widths: Mapping[str, str], options: RunOptions | None = None
) -> list[dict[str, Any]]:
    """Score the three presets and whitening on test splits; fitted on all splits' sentences.

    ``widths`` names, for each layer choice, the whitening that was best on its validation sets
    (`best_width`). The default sets are `TEST_DATA`.

    Gives a row for each score: ``layers``, ``data``, ``calibrator``, ``seed``, ``all``, ``mean``,
    ``wmean`` (`score_sts`), ``bits_per_dim`` (of the test sentences) and ``seconds``.
    """
    options = options or RunOptions()

    def compute(
        pairs: SentencePairs, calibrator: str, seed: int, fitted: Floats32, scored: Floats32
    ) -> dict[str, Any]:
        started = time.perf_counter()
        model = fit_calibrator(calibrator, fitted, seed=seed)
        return {
            **scores(pairs, transform(model, scored), interval=False),
            "bits_per_dim": bits_per_dim(model, scored),
            "seconds": round(time.perf_counter() - started, 2),
        }

    rows = []
    for name in options.data or TEST_DATA:
        encoded = encode_fit_and_scored(encoder, name, list(widths), options, split="test")
        pairs = load_sts(name, download=options.download)
        for layers, (fitted, scored) in encoded.items():
            best = at_most(widths[layers], encoder.dim)
            for calibrator in dict.fromkeys(("none", "sn", "whiten", best, *PRESETS_SHOWN)):
                for seed in seeds_for(calibrator, options.seeds):
                    one = functools.partial(compute, pairs, calibrator, seed, fitted, scored)
                    what = {"layers": layers, "data": name, "calibrator": calibrator, "seed": seed}
                    rows.append(options.row(one, **what))
                    logger.info("%s", rows[-1])
    return rows


# ---- what the rows say ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """What one change does, over all layer choices and sets of some rows."""

    # As in `Variant`.
    start: str
    part: str
    change: str
    # Spearman x 100: the mean over layer choices and sets for each seed, then mean and standard
    # deviation over seeds. The deviation is 0 for what has no random state; both are None where
    # training diverged on any of them.
    score: float | None
    score_sd: float | None
    # The same for the difference to the start with the same seed, layers and set; a reference is
    # compared with ``paper``.
    effect: float | None
    effect_sd: float | None
    by_cell: dict[str, float]  # effect by ``"layers, set"``, mean over seeds
    bits: float | None  # mean bits per dimension of the validation sentences
    seconds: float  # mean time of one fit


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

    Gives variant -> model -> mean Spearman x 100, and ``"mean"`` over the models; best first. What
    is missing (or diverged) on some model or cell is left out.
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


def best_width(rows: Rows, layers: str) -> str:
    """Name the whitening that is best on the mean over the validation sets for a layer choice."""
    scores: dict[str, list[float]] = {}
    for row in rows:
        if row["part"] == "whiten" and row["layers"] == layers:
            scores.setdefault(row["change"], []).append(row["spearman"])
    if not scores:
        raise ValueError(f"no whitening was measured on layers {layers!r}.")
    return max(scores, key=lambda name: float(np.mean(scores[name])))


def _plus_minus(value: float, spread: float | None, sign: str = "") -> str:
    return f"{value:{sign}.2f}" + (f" ± {spread:.2f}" if spread else "")


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return float(np.mean(values)) if values else None


def _sd(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
