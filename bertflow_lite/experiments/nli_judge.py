"""What came of fine-tuning: its record, and a judgment by NLI pairs that were kept out of it."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.datasets.nli import NliPairs
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.measures.similarity import Floats

RECORD = "nli.json"  # in a model's folder: how it was made
CLASSIFIER = "classifier.safetensors"  # its softmax's weights, for checks; no embedding needs them


@dataclass
class NliHistory:
    """What happened during fine-tuning, and how well the classes of unseen pairs are told apart."""

    steps: int = 0  # optimizer steps made
    # The loss curve, thinned: a step, and the mean cross-entropy (natural logarithm) over the steps
    # since the point before. An untrained classifier starts at about ln 3 = 1.0986.
    loss: list[tuple[int, float]] = field(default_factory=list)
    # Pairs trained on and held out; no premise of the ones is among the others.
    n_train: int = 0
    n_validation: int = 0
    # Share of held-out pairs classified right, 0 to 1 (None: nothing was held out); what always
    # answering the most frequent class would score; and the accuracy when each hypothesis is given
    # the premise of some other pair. Hypotheses give much of their label away ("nobody",
    # "sleeping"), so the last is what a classifier of both sentences has to beat.
    accuracy: float | None = None
    majority: float | None = None
    without_premise: float | None = None
    validation_loss: float | None = None  # mean cross-entropy on the held-out pairs
    by_source: dict[str, float] = field(default_factory=dict)  # accuracy by the pairs' source
    # Wall and processor time of the training loop, up to the last checkpoint of each stop.
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    # Steps at which a stopped run was taken up again.
    resumed_at: list[int] = field(default_factory=list)


def load_nli_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read how a model was fine-tuned: the settings and the history of `fine_tune`."""
    path = Path(folder) / RECORD
    if not path.is_file():
        raise FileNotFoundError(
            f"the folder {Path(folder).name!r} has no {RECORD}: it was not made by fine_tune "
            "(command line: nli)."
        )
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def judge(encoder: Encoder, pairs: NliPairs, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Classify pairs, and compare with their labels.

    The folder is where `fine_tune` put the model and its classifier.  Gives ``accuracy``,
    ``majority``, ``without_premise``, ``validation_loss`` and ``by_source``, as in `NliHistory`.
    """
    u, v = _embed(encoder, pairs)
    scores = _log_probabilities(u, v, Path(folder))
    labels = np.asarray(pairs.labels)
    right = scores.argmax(axis=1) == labels
    sources = np.asarray(pairs.sources)
    other = np.random.default_rng(0).permutation(len(labels))
    without = _log_probabilities(u[other], v, Path(folder)).argmax(axis=1) == labels
    return {
        "accuracy": float(right.mean()),
        "majority": float(np.bincount(labels).max() / len(labels)),
        "without_premise": float(without.mean()),
        "validation_loss": float(-scores[np.arange(len(labels)), labels].mean()),
        "by_source": {str(s): float(right[sources == s].mean()) for s in np.unique(sources)},
    }


def _embed(encoder: Encoder, pairs: NliPairs) -> tuple[Floats, Floats]:
    both = encoder.encode([*pairs.premises, *pairs.hypotheses], "last")
    u, v = np.split(both.astype(np.float64), 2)
    return u, v


def _log_probabilities(u: Floats, v: Floats, folder: Path) -> Floats:
    from safetensors.numpy import load_file
    from scipy.special import log_softmax

    weights = load_file(folder / CLASSIFIER)
    features = np.hstack([u, v, np.abs(u - v)])
    logits = features @ weights["weight"].T.astype(np.float64) + weights.get("bias", 0.0)
    result: Floats = log_softmax(logits, axis=1)
    return result


Rows = NDArray[np.intp]
SPLIT_SEED = 0  # fixed, so that all seeds of a table are judged on the same pairs


def check_pairs(pairs: NliPairs) -> None:
    """Raise ValueError unless there are pairs, and all labels are 0, 1 or 2."""
    if not len(pairs):
        raise ValueError("there are no pairs to train on.")
    unknown = sorted({int(label) for label in pairs.labels} - {0, 1, 2})
    if unknown:
        raise ValueError(
            f"labels must be 0, 1 or 2; there is {', '.join(map(str, unknown))}. Leave out pairs "
            "on which the annotators did not agree."
        )


def hold_out(pairs: NliPairs, n: int = 2000) -> tuple[Rows, Rows]:
    """Split pairs into those to train on and those to judge by.

    A premise comes with several hypotheses, so whole groups of pairs with the same premise are
    drawn, at random: no premise is on both sides (letter case and punctuation aside).  Every
    source and class gets its share, since a group is passed over once its classes have theirs.

    A few of the ``n`` may be wanting where no group fits any more. Gives the row numbers of both,
    ascending.
    """
    total = len(pairs)
    if not 0 <= n <= total // 2:
        raise ValueError(f"cannot hold out {n} of {total} pairs: 0 to {total // 2} is possible.")
    groups: dict[str, list[int]] = defaultdict(list)
    for row, premise in enumerate(pairs.premises):
        key = "".join(c for c in premise.casefold() if c.isalnum())
        groups[key or premise].append(row)
    cells = list(zip(pairs.sources, (int(label) for label in pairs.labels), strict=True))
    room = {cell: round(n * count / total) for cell, count in Counter(cells).items()}
    members = list(groups.values())
    chosen: list[int] = []
    for i in np.random.default_rng(SPLIT_SEED).permutation(len(members)):
        wanted = Counter(cells[row] for row in members[i])
        if all(room[cell] >= count for cell, count in wanted.items()):
            chosen += members[i]
            for cell, count in wanted.items():
                room[cell] -= count
    held_out = np.array(sorted(chosen), dtype=np.intp)
    return np.setdiff1d(np.arange(total, dtype=np.intp), held_out), held_out


def draw(rows: Rows, limit: int) -> Rows:
    """Draw ``limit`` of some rows at random, all where there are no more; ascending."""
    return np.sort(np.random.default_rng(SPLIT_SEED).permutation(rows)[:limit])


def select_pairs(pairs: NliPairs, rows: Iterable[int]) -> NliPairs:
    """Take some rows, in the order given."""
    rows = [int(row) for row in rows]
    return NliPairs(
        tuple(pairs.premises[i] for i in rows),
        tuple(pairs.hypotheses[i] for i in rows),
        np.asarray(pairs.labels)[rows],
        tuple(pairs.sources[i] for i in rows),
        pairs.source,
    )
