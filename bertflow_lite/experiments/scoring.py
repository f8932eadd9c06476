"""What every experiment can be told, and one way to fit a calibrator and to score with it.

`RunOptions` says how to run; `open_kept` finds an interrupted run again.  `calibrated` fits on some
embeddings and maps others, `scores` scores them.  Above these stand what Tables 2, 3 and 5 share
(`Row`, `EncodedSet`), the command ``sts`` (`run_sts`), and the similarities that the controls look
at from many sides and that are kept on disk (`find_similarities`).
"""

from __future__ import annotations

import functools
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.calibrators.base import DeadDimensionWarning
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.datasets.pairs import SentencePairs, fingerprint_of
from bertflow_lite.datasets.sts import OWN_SETS, load_sts
from bertflow_lite.encoders.pooling import layer_label
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.experiments.runs import Keep, KeptResults, no_keep
from bertflow_lite.measures.scores import bootstrap_interval, pair_cosines, score_sts
from bertflow_lite.measures.similarity import Floats
from bertflow_lite.saving import package_versions

logger = logging.getLogger(__name__)
FitOn = Literal["none", "target", "train", "nli"]
Floats32 = NDArray[np.float32]
AGGREGATIONS = ("all", "mean", "wmean")
AnyEncoder = Encoder | WordVectorEncoder


@dataclass(frozen=True)
class RunOptions:
    """How to run a table or a figure; each experiment uses what makes sense for it."""

    seeds: int = 3  # flows are fitted with random states 0 to seeds - 1 (`seeds_for`)
    layers: Sequence[str] = ()  # layer choices beside the experiment's own
    data: Sequence[str] | None = None  # names of sets; default: the experiment's own
    # Fit flow (NLI) on this many NLI sentences, drawn at random (`choose_sentences`), where there
    # are more; by default on all, up to 300,000.
    nli_sentences: int | None = None
    download: bool = False
    progress: bool = False
    keep: Keep = no_keep  # gives finished parts back after an interruption

    def choices(self, *own: str) -> list[str]:
        """Layer choices: the experiment's own, then those that were asked for besides."""
        return list(dict.fromkeys([*own, *self.layers]))

    def row(self, compute: Callable[[], dict[str, Any]], **what: Any) -> dict[str, Any]:
        """Give a row of a table: what it is about, and what is computed or was kept of it."""
        return what | self.keep(" | ".join(map(str, what.values())), compute)


def seeds_for(calibrator: str, seeds: int) -> range:
    """Give the random states to fit a calibrator with: one only, where none changes it."""
    return range(seeds if "flow" in calibrator else 1)


def open_kept(experiment: str, encoder: AnyEncoder, options: RunOptions) -> KeptResults:
    """Open what an interrupted run of the same experiment with the same settings left behind."""
    settings = {
        "fingerprint": encoder.fingerprint,
        "max_length": getattr(encoder, "max_length", None),
        "precision": str(getattr(encoder, "autocast", None)),
        "device": encoder.device.type,
        "seeds": options.seeds,
        "layers": list(options.layers),
        "data": list(options.data) if options.data is not None else None,
        "versions": package_versions(),
    }
    if options.nli_sentences is not None:
        settings["nli_sentences"] = options.nli_sentences
    return KeptResults(experiment, settings)


def fit_calibrator(
    calibrator: Any, fit_on: NDArray[Any], *, seed: int = 0, progress: bool = False, **settings: Any
) -> Any:
    """Fit a calibrator.

    Dead dimensions, of which minilm's last layer has three, are no news in a table: no warning.

    A calibrator is given by its short name (`make_calibrator`), or made already; ``settings``, such
    as ``min_steps``, are for flows only.

    Gives None for ``"none"``, the raw embeddings.
    """
    if isinstance(calibrator, str):
        calibrator = make_calibrator(calibrator, random_state=seed, progress=progress)
    if isinstance(calibrator, FlowCalibrator):
        calibrator.set_params(**settings)
    if calibrator is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeadDimensionWarning)
            calibrator.fit(fit_on)
    return calibrator


def transform(model: Any, embeddings: NDArray[Any]) -> NDArray[Any]:
    """Map embeddings by a fitted calibrator; None leaves them raw."""
    return embeddings if model is None else np.asarray(model.transform(embeddings))


def calibrated(
    calibrator: Any, fit_on: NDArray[Any], embeddings: NDArray[Any], **options: Any
) -> NDArray[Any]:
    """Fit a calibrator on some embeddings (`fit_calibrator`) and map others by it."""
    return transform(fit_calibrator(calibrator, fit_on, **options), embeddings)


def bits_per_dim(model: Any, embeddings: NDArray[Any]) -> float | None:
    """Give a flow's bits per dimension of embeddings; None for what has no density."""
    return round(model.bits_per_dim(embeddings), 4) if isinstance(model, FlowCalibrator) else None


def scores(pairs: SentencePairs, latents: NDArray[Any], *, interval: bool) -> dict[str, float]:
    """Score on a set: Spearman x 100 in three aggregations, and a 95 % interval of "all"."""
    score = score_sts(pairs, latents)
    out = {name: round(getattr(score, name), 4) for name in AGGREGATIONS}
    if interval:
        found = bootstrap_interval(pairs, latents)
        out |= {"low": round(found.low, 4), "high": round(found.high, 4)}
    return out


def show_score(values: Sequence[float]) -> str:
    """Print a score, or the mean ± standard deviation of several seeds' scores."""
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def encode_parts(
    encoder: Any,
    parts: Mapping[str, Sequence[str]],
    layers: Sequence[Any],
    *,
    progress: bool = False,
) -> dict[str, dict[str, Floats32]]:
    """Encode several lists of sentences in one call, so that what they share is encoded once.

    Gives arrays of shape (n, dim), by the label of the layer choice, then by part.
    """
    ends = np.cumsum([len(part) for part in parts.values()])[:-1]
    sentences = [text for part in parts.values() for text in part]
    vectors = encoder.encode(sentences, list(layers), progress=progress)
    return {
        label: dict(zip(parts, np.split(rows, ends), strict=True))
        for label, rows in vectors.items()
    }


def different_sentences(pairs: SentencePairs) -> tuple[list[int], list[str]]:
    """Row of the first occurrence of each different sentence, and the sentences."""
    first: dict[str, int] = {}
    for row, text in enumerate(pairs.sentences):
        first.setdefault(text, row)
    return list(first.values()), list(first)


def set_name(pairs: SentencePairs) -> str:
    """Name a set and its split; those that come with the package have one only."""
    return pairs.name if pairs.name in OWN_SETS else f"{pairs.name}-{pairs.split}"


@dataclass(frozen=True)
class Row:
    """One row of a table for a layer choice."""

    label: str  # as printed, for instance "flow (target)"
    calibrator: str  # as `make_calibrator` takes it
    # Sentences for the calibrator: those of all splits (the paper's target), of the train split
    # only, or NLI sentences.
    fit_on: FitOn


@dataclass(frozen=True)
class EncodedSet:
    """A set's scored pairs (test split), and the embeddings of one layer choice."""

    pairs: SentencePairs
    scored: Floats32  # of ``pairs.sentences``, shape (2 * n_pairs, dim)
    fit: dict[str, Floats32]  # "target" always; "train" where the set has such a split


def encode_set(
    encoder: AnyEncoder,
    name: str,
    layers: Sequence[str],
    *,
    download: bool = False,
    progress: bool = False,
) -> dict[str, EncodedSet]:
    """Encode a set's test, all and train sentences, for several layer choices in one go."""
    pairs = load_sts(name, download=download)
    parts = {
        "scored": pairs.sentences,
        "target": load_sts(name, "all", download=download).sentences,
    }
    if pairs.name in ("stsb", "sick-r"):  # the others are test sets and nothing else
        parts["train"] = load_sts(name, "train", download=download).sentences
    encoded = encode_parts(encoder, parts, layers, progress=progress)
    return {
        label: EncodedSet(pairs, by_part.pop("scored"), by_part)
        for label, by_part in encoded.items()
    }


def fit_and_score(
    row: Row, encoded: EncodedSet, seed: int = 0, *, progress: bool = False
) -> dict[str, Any]:
    """Calibrate a set by a row that is fitted on the set's own sentences, and score it.

    Gives what `scores` gives (the interval with seed 0 only, since it hardly varies), with
    ``fitted_on``, the number of sentences, and for a flow ``bits_per_dim`` on them.
    """
    if "none" in (row.fit_on, row.calibrator):
        return scores(encoded.pairs, encoded.scored, interval=True) | {"fitted_on": 0}
    fit_on = encoded.fit[row.fit_on]
    model = fit_calibrator(row.calibrator, fit_on, seed=seed, progress=progress)
    z = transform(model, encoded.scored)
    out: dict[str, Any] = scores(encoded.pairs, z, interval=seed == 0)
    out["fitted_on"] = len(fit_on)
    if (bits := bits_per_dim(model, fit_on)) is not None:
        out["bits_per_dim"] = bits
    return out


def merge_seeds(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put one set's scores with several seeds together.

    ``all``, ``mean``, ``wmean`` and ``bits_per_dim`` become lists, one entry a seed; the rest
    (interval, ``fitted_on``) is the first seed's.
    """
    out = dict(parts[0])
    for name in (*AGGREGATIONS, "bits_per_dim"):
        if name in out:
            out[name] = [part[name] for part in parts]
    return out


def group_seeds(
    rows: Sequence[dict[str, Any]], method: str
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Put the rows together that differ in their seed only: of the same layers and method."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["layers"], row[method]), []).append(row)
    return groups


def run_sts(
    encoder: AnyEncoder,
    data: Sequence[str],
    layers: Sequence[str],
    calibrators: Sequence[str],
    *,
    split: str | None = None,
    fit_on: Literal["target", "train", "test"] = "target",
    seeds: int = 1,
    progress: bool = False,
    download: bool = False,
) -> Iterator[dict[str, Any]]:
    """Score an encoder; results come one by one, as they are done.

    One forward pass serves all layer choices. The default split is the set's test split.
    Calibrators are fitted on sentences, never on labels: on those of all splits (the paper's
    "target"), of the train split only, or of the scored split only ("test").

    Gives one score: ``data``, ``split``, ``layers``, ``calibrator``, ``seed``; what `scores` gives;
    ``n_pairs``; ``fitted_on``, the sentences that the calibrator saw, repeats included;
    ``bits_per_dim``, the flow's loss on them; ``dead_dimensions`` and ``seconds`` of the fit.
    """
    for name in data:
        pairs = load_sts(name, split, download=download)
        fitted = pairs.sentences
        if fit_on != "test":
            wanted = "all" if fit_on == "target" else "train"
            fitted = load_sts(name, wanted, download=download).sentences
        parts = {"fit": fitted, "score": pairs.sentences}
        for label, vectors in encode_parts(encoder, parts, layers, progress=progress).items():
            for calibrator in calibrators:
                for seed in seeds_for(calibrator, seeds):
                    started = time.perf_counter()
                    model = fit_calibrator(calibrator, vectors["fit"], seed=seed, progress=progress)
                    z = transform(model, vectors["score"])
                    seconds = time.perf_counter() - started
                    yield {
                        "data": pairs.name,
                        "split": pairs.split,
                        "layers": label,
                        "calibrator": calibrator,
                        "seed": seed,
                        **scores(pairs, z, interval=True),
                        "n_pairs": len(pairs),
                        "fitted_on": len(fitted) if model is not None else 0,
                        "bits_per_dim": bits_per_dim(model, vectors["fit"]),
                        "dead_dimensions": int(np.sum(~getattr(model, "live_", np.True_))),
                        "seconds": round(seconds, 4),
                    }


def format_results(
    rows: Sequence[Mapping[str, Any]],
    aggregation: str = "all",
    style: str = "simple",
    *,
    note: str = "",
    average: bool = False,
) -> str:
    """Lay scores out as a table: a row for each layers and calibrator, a column for each set.

    The aggregation (all, mean or wmean) is named in the table's corner, with a note where one is
    given; the style is one of tabulate's, such as ``"github"`` or ``"latex_booktabs"``. A last
    column can hold the average over the sets.

    Gives Spearman x 100; where there are several seeds, their mean ± standard deviation.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation is {aggregation!r}; it must be 'all', 'mean' or 'wmean'.")
    sets = list(dict.fromkeys(row["data"] for row in rows))
    table: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        by_set = table.setdefault((row["layers"], row["calibrator"]), {})
        by_set.setdefault(row["data"], []).append(row[aggregation])
    lines = []
    for key, by_set in table.items():
        lines.append([*key, *(show_score(by_set[name]) if name in by_set else "" for name in sets)])
        if average:
            lines[-1].append(f"{np.mean([np.mean(values) for values in by_set.values()]):.2f}")
    headers = ["layers", f"calibrator ({aggregation}, Spearman x 100{note})", *sets]
    headers += ["mean"] * average
    return tabulate(lines, headers, tablefmt=style, disable_numparse=True)


Key = tuple[str, str, str]


@dataclass(frozen=True)
class Target:
    """Pairs to compare, and the sentences that calibrators are fitted on."""

    pairs: SentencePairs
    fitted: tuple[str, ...]  # repeats included; no label of theirs is used

    @property
    def fingerprint(self) -> str:
        """16 hex digits over the pairs and the sentences."""
        return fingerprint_of([self.pairs.fingerprint, self.fitted])


def sts_target(name: str, *, download: bool = False) -> Target:
    """Take an STS set, with calibrators fitted on the sentences of all splits, "flow (target)"."""
    fitted = load_sts(name, "all", download=download).sentences
    return Target(load_sts(name, download=download), tuple(fitted))


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
    """Cosines of each target's pairs, by its name, layer choice and calibrator.

    Each calibrator is fitted anew on each target; targets need different names. With ``keep``, what
    an earlier call computed is read, and what this one computes is kept.
    """
    names = [target.pairs.name for target in targets]
    if len(set(names)) < len(names):
        raise ValueError(f"two targets have the same name: {', '.join(names)}.")
    row_of: dict[str, int] = {}
    for target in targets:
        for text in (*target.fitted, *target.pairs.sentences):
            row_of.setdefault(text, len(row_of))

    @functools.cache
    def vectors() -> dict[str, Floats32]:
        """Encode all in one call, if something is missing: what targets share is encoded once."""
        found: dict[str, Floats32] = encoder.encode(
            list(row_of), layers=list(layers), progress=progress
        )
        return found

    def measure(target: Target, label: str, calibrator: str) -> list[float]:
        x = vectors()[label]
        fitted, scored = (
            x[[row_of[text] for text in texts]] for texts in (target.fitted, target.pairs.sentences)
        )
        values = pair_cosines(target.pairs, calibrated(calibrator, fitted, scored, seed=seed))
        logger.info("%s, %s %s on %s: done", encoder.name, label, calibrator, target.pairs.name)
        return values.tolist()

    how = {
        "fingerprint": encoder.fingerprint,
        "max_length": getattr(encoder, "max_length", None),
        "precision": str(getattr(encoder, "autocast", None)),
        "seed": seed,
        "versions": package_versions(),
    }
    found: dict[Key, Floats] = {}
    for target in targets:
        settings = how | {"target": target.fingerprint}
        kept: Keep = KeptResults("similarities", settings) if keep else no_keep
        for label in map(layer_label, layers):
            for calibrator in calibrators:
                compute = functools.partial(measure, target, label, calibrator)
                values = np.array(kept(f"{label} {calibrator}", compute))
                found[target.pairs.name, label, calibrator] = values
    return found
