"""The rows of the tables of STS scores: an encoder's layers, calibrated one way, on some sets.

What Tables 2, 3 and 5 share: which rows there are, how one is fitted and scored, how scores over
several seeds are put together and printed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.calibrators.base import DeadDimensionWarning
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.pooling import layer_label
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.files import cache_dir
from bertflow_lite.measures.scores import bootstrap_interval, pair_cosines, score_sts
from bertflow_lite.measures.similarity import Floats

__all__ = [
    "AnyEncoder",
    "EncodedSet",
    "FitOn",
    "Row",
    "StsFitOn",
    "StsResult",
    "Target",
    "default_layers",
    "encode_set",
    "find_similarities",
    "fit_and_score",
    "format_results",
    "merge_seeds",
    "run_sts",
    "score_latents",
    "show_score",
    "sts_target",
]

logger = logging.getLogger(__name__)
AnyEncoder = Encoder | WordVectorEncoder
FitOn = Literal["none", "target", "train", "nli"]
Floats32 = NDArray[np.float32]
AGGREGATIONS = ("all", "mean", "wmean")


@dataclass(frozen=True)
class Row:
    """One row of a table for a layer choice.

    Attributes
    ----------
    label : str
        As printed, for instance ``"flow (target)"``.
    calibrator : str
        As `make_calibrator` takes it.
    fit_on : {"none", "target", "train", "nli"}
        Sentences for the calibrator: those of all splits (the paper's target), of the train
        split only, or NLI sentences.
    """

    label: str
    calibrator: str
    fit_on: FitOn

    @property
    def seeded(self) -> bool:
        """Whether a random state changes the row."""
        return "flow" in self.calibrator


@dataclass(frozen=True)
class EncodedSet:
    """A set's scored pairs, and the embeddings of one layer choice.

    Attributes
    ----------
    pairs : SentencePairs
        The scored pairs (test split).
    scored : ndarray, shape (2 * n_pairs, dim)
        Embeddings of ``pairs.sentences``.
    fit : dict
        Embeddings to fit on: ``"target"`` always; ``"train"`` where the set has such a split.
    """

    pairs: SentencePairs
    scored: Floats32
    fit: dict[str, Floats32]


def default_layers(encoder: AnyEncoder) -> tuple[str, ...]:
    """Give the layer choices that experiments calibrate: ("mean",) for word vectors."""
    return ("last2avg", "first-last") if isinstance(encoder, Encoder) else ("mean",)


def encode_set(
    encoder: AnyEncoder,
    name: str,
    layers: Sequence[str],
    *,
    download: bool = False,
    progress: bool = False,
) -> dict[str, EncodedSet]:
    """Encode a set's test, all and train sentences, for several layer choices in one go.

    Returns
    -------
    dict of str to EncodedSet
        By layer choice.
    """
    pairs = load_sts(name, download=download)
    parts = {"scored": pairs, "target": load_sts(name, "all", download=download)}
    if pairs.name in ("stsb", "sick-r"):  # the others are test sets and nothing else
        parts["train"] = load_sts(name, "train", download=download)
    ends = np.cumsum([2 * len(part) for part in parts.values()])
    sentences = [text for part in parts.values() for text in part.sentences]
    asked: Any = list(layers)
    vectors = encoder.encode(sentences, asked, progress=progress)
    out = {}
    for label, rows in vectors.items():
        by_part = dict(zip(parts, np.split(rows, ends[:-1]), strict=True))
        out[label] = EncodedSet(pairs, by_part.pop("scored"), by_part)
    return out


def score_latents(
    pairs: SentencePairs, latents: NDArray[np.floating[Any]], *, interval: bool
) -> dict[str, float]:
    """Score on a set: Spearman x 100 in three aggregations, and a 95 % interval of "all"."""
    score = score_sts(pairs, latents)
    out = {name: round(getattr(score, name), 4) for name in AGGREGATIONS}
    if interval:
        found = bootstrap_interval(pairs, latents)
        out |= {"low": round(found.low, 4), "high": round(found.high, 4)}
    return out


def fit_and_score(
    row: Row, encoded: EncodedSet, seed: int = 0, *, progress: bool = False
) -> dict[str, Any]:
    """Calibrate a set by a row that is fitted on the set's own sentences, and score it.

    Returns
    -------
    dict
        What `score_latents` gives (the interval with seed 0 only, since it hardly varies), with
        ``fitted_on``, the number of sentences, and for a flow ``bits_per_dim`` on them.
    """
    model = make_calibrator(row.calibrator, random_state=seed, progress=progress)
    if model is None or row.fit_on == "none":
        return score_latents(encoded.pairs, encoded.scored, interval=True) | {"fitted_on": 0}
    embeddings = encoded.fit[row.fit_on]
    fit_quietly(model, embeddings)
    out: dict[str, Any] = score_latents(
        encoded.pairs, model.transform(encoded.scored), interval=seed == 0
    )
    out["fitted_on"] = len(embeddings)
    if isinstance(model, FlowCalibrator):
        out["bits_per_dim"] = round(model.bits_per_dim(embeddings), 4)
    return out


def fit_quietly(model: Any, embeddings: NDArray[np.floating[Any]]) -> None:
    """Fit; dead dimensions, of which minilm's last layer has three, are no news in a table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadDimensionWarning)
        model.fit(embeddings)


def merge_seeds(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put one set's scores with several seeds together.

    Returns
    -------
    dict
        ``all``, ``mean``, ``wmean`` and ``bits_per_dim`` become lists, one entry a seed; the rest
        (interval, ``fitted_on``) is the first seed's.
    """
    out = dict(parts[0])
    for name in (*AGGREGATIONS, "bits_per_dim"):
        if name in out:
            out[name] = [part[name] for part in parts]
    return out


def show_score(values: Sequence[float]) -> str:
    """Print a score, or the mean ± standard deviation of several seeds' scores."""
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


StsFitOn = Literal["target", "train", "test"]


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
    fit_on: StsFitOn = "target",
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
