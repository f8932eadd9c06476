"""Does a similarity see more than shared words?  Pairs whose word overlap is held fixed.

Where all pairs of a comparison share equally many words, counting words does not help.  Two ways to
get there: compare within bins of overlap (`within_overlap`), and put a paraphrase against the same
sentence with two words swapped, which shares all its words (`swap_words`, `contest_share`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import roc_auc_score

from bertflow_lite.datasets.nli import load_qnli
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.experiments.controls.runs import System, gather_similarities, to_triple
from bertflow_lite.experiments.controls.statistics import bootstrap_systems
from bertflow_lite.experiments.controls.words import WEIGHTINGS, WordCountEncoder, idf_weights
from bertflow_lite.experiments.scoring import Target, sts_target
from bertflow_lite.experiments.spelling import edit_distances
from bertflow_lite.measures.similarity import Floats, as_values, spearman
from bertflow_lite.text import split_words

Overlap = Literal["jaccard", "edit"]
OVERLAPS: tuple[Overlap, ...] = ("jaccard", "edit")


def word_overlap(first: Sequence[str], second: Sequence[str], kind: Overlap = "jaccard") -> Floats:
    """Measure how many words two sentences share, pair by pair, from 0 to 1; shape (n,).

    ``"jaccard"``: size of the intersection over size of the union of the two sets of words,
    punctuation left out; order does not count. ``"edit"``: 1 minus the Levenshtein distance over
    words, divided by the longer sentence's length; order counts.
    """
    if kind == "edit":
        return 1 - edit_distances(first, second, "words and marks", normalize=True)
    if kind != "jaccard":
        raise ValueError(f"kind is {kind!r}; it must be 'jaccard' or 'edit'.")
    shares = []
    for texts in zip(first, second, strict=True):
        a, b = ({word for word in split_words(text) if word[0].isalnum()} for text in texts)
        shares.append(len(a & b) / len(a | b) if a | b else 1.0)
    return np.array(shares)


def within_overlap(pairs: SentencePairs, overlap: ArrayLike, bins: int = 10) -> SentencePairs:
    """Give the same pairs, with bins of like overlap for subsets.

    `score_sts` on the result gives, as ``wmean``, the correlation with gold within bins, averaged
    over pairs: what a similarity knows beyond (coarsely measured) overlap.

    The bins are as equal in size as ties allow: pairs of equal overlap stay together.
    """
    values = as_values(overlap, "the overlap")
    if len(values) != len(pairs) or bins < 1:
        raise ValueError(
            f"There are {len(values)} overlaps, {len(pairs)} pairs and {bins} bins; "
            "each pair needs one overlap, and there must be a bin."
        )
    edges = np.unique(np.quantile(values, np.arange(1, bins) / bins, method="lower"))
    index = np.searchsorted(edges, values, side="left")
    return replace(pairs, subsets=np.array([f"overlap {i:02d}" for i in index]))


def swap_words(sentence: str, weights: Mapping[str, float]) -> str | None:
    """Exchange the two words of a sentence with the largest weights, keeping all else in place.

    With weights that grow with rarity (`idf_weights`) these are mostly content words.  The result
    has the same bag of words.  Nobody has rated it: mostly it says something else or nothing
    sensible, but "cats and dogs" becomes "dogs and cats".

    Words that have no weight (by their lower-cased form), or hold no letter, stay.

    None where there are no two different words to swap, or only neighbors.

    Examples
    --------
    >>> swap_words("A dog bites the man.", {"a": 1, "dog": 4, "bites": 3, "the": 1, "man": 4})
    'A man bites the dog.'
    """
    parts = sentence.split(" ")
    bare = [part.strip(".,;:!?\"'()").lower() for part in parts]
    ranked = sorted(
        (i for i, word in enumerate(bare) if word in weights and word.isalpha()),
        key=lambda i: (-weights[bare[i]], i),
    )
    for position, i in enumerate(ranked):
        for j in ranked[position + 1 :]:
            if bare[i] != bare[j] and abs(i - j) > 1:
                core_i, core_j = (parts[k].strip(".,;:!?\"'()") for k in (i, j))
                parts[i] = parts[i].replace(core_i, core_j, 1)
                parts[j] = parts[j].replace(core_j, core_i, 1)
                return " ".join(parts)
    return None


def contest_share(wins: ArrayLike, losses: ArrayLike) -> float:
    """Percent of rows in which the first value is the larger one, a tie counting half."""
    first, second = as_values(wins, "the first values"), as_values(losses, "the second values")
    difference: NDArray[np.float64] = np.sign(first - second)
    # Equal vectors have a cosine of 1 up to rounding: such differences are ties.
    difference[np.abs(first - second) < 1e-6] = 0
    return float(100 * (difference + 1).mean() / 2)


TRICKS = ("negation", "role-swap", "number", "word-overlap")
"""Kinds of mini-sts whose pairs share most words and differ in meaning."""
SAME = ("near-duplicate", "paraphrase")
"""Kinds whose pairs mean the same: with most words shared, and with few."""
Systems = dict[tuple[str, str], list[Floats]]


def run_overlap(
    system: System, targets: Sequence[Target], calibrators: Sequence[str], **options: Any
) -> dict[str, list[dict[str, Any]]]:
    """Run all four comparisons; parameters are those of `run_within`."""
    return {
        "within": run_within(system, targets, calibrators, **options),
        "kinds": run_kinds(system, calibrators, **options),
        "answers": run_answers(system, calibrators, **options),
        "swaps": run_swaps(system, calibrators, **options),
    }


def run_within(
    system: System,
    targets: Sequence[Target],
    calibrators: Sequence[str],
    *,
    n_resamples: int = 300,
    **options: Any,
) -> list[dict[str, Any]]:
    """Score a model within bins of word overlap.

    ``"none"`` is to be among the calibrators; the options are those of `seeded_similarities`.

    Gives, for each set, layers, calibrator and kind of ``overlap`` (`word_overlap`'s, and TF-IDF's
    cosine, which also holds the rarity of the shared words fixed): ``plain``, Spearman x 100 over
    all pairs; ``within``, the mean over bins, as [estimate, low, high]; ``gain``, calibrated minus
    raw, of ``within``; ``plain_gain``.
    """
    rows = []
    for target, systems in _per_target(system, targets, calibrators, options):
        pairs = target.pairs
        overlaps: dict[str, Floats] = {
            kind: word_overlap(pairs.sentences1, pairs.sentences2, kind) for kind in OVERLAPS
        }
        # Bins of equal TF-IDF hold fixed how rare the shared words are, and not only how many.
        overlaps |= {"tfidf": systems["sparse", "tfidf"][0]}
        for kind, overlap in overlaps.items():
            binned = within_overlap(pairs, overlap)
            named = {f"{layers} {name}": values for (layers, name), values in systems.items()}
            scores = bootstrap_systems(binned, named, aggregation="wmean", n_resamples=n_resamples)
            for layers, name in systems:
                label, raw = f"{layers} {name}", f"{layers} none"
                row: dict[str, Any] = {"data": pairs.name, "layers": layers, "calibrator": name}
                row["overlap"] = kind
                row["plain"] = _mean(spearman(one, pairs.gold) for one in named[label])
                row["within"] = to_triple(scores.interval(label))
                if raw in named and raw != label:
                    row["gain"] = to_triple(scores.interval(label, raw))
                    before = _mean(spearman(one, pairs.gold) for one in named[raw])
                    row["plain_gain"] = round(row["plain"] - before, 2)
                rows.append(row)
    return rows


def run_kinds(
    system: System, calibrators: Sequence[str], *, fit_on: str = "stsb", **options: Any
) -> list[dict[str, Any]]:
    """Measure, on mini-sts, pairs that mean the same against pairs that only share words.

    Calibrators are fitted on the sentences of another set, ``fit_on``: the 840 of mini-sts are too
    few for some, and so nothing of mini-sts is used but to measure.

    Gives, for each layers, calibrator, kind of equal meaning (``same``) and trick: ``auc``, the
    chance in percent that a pair of equal meaning gets more than one of the trick; 50 is guessing.
    ``spearman`` is the model's score on all of mini-sts.
    """
    pairs = load_sts("mini-sts")
    kinds = np.asarray(pairs.kinds)
    target = Target(pairs, tuple(load_sts(fit_on, "all").sentences))
    rows = []
    for _, systems in _per_target(system, [target], calibrators, options):
        for (layers, name), values in systems.items():
            total = _mean(spearman(one, pairs.gold) for one in values)
            for same in SAME:
                for trick in TRICKS:
                    kept = np.isin(kinds, [same, trick])
                    alike = kinds[kept] == same
                    share = 100 * np.mean([roc_auc_score(alike, one[kept]) for one in values])
                    row = {"layers": layers, "calibrator": name, "spearman": total}
                    rows.append({**row, "same": same, "trick": trick, "auc": round(share, 2)})
    return rows


def run_answers(system: System, calibrators: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    """Measure QNLI's validation set: AUC of the cosine, overall and within bins of overlap.

    Gives, for each layers and calibrator: ``auc`` and ``within``, the mean of the bins' AUC,
    weighted by pairs; calibrators are fitted on the questions and sentences themselves.
    """
    pairs = load_qnli(download=bool(options.get("download")))
    target = Target(pairs, tuple(dict.fromkeys(pairs.sentences)))
    overlap = word_overlap(pairs.sentences1, pairs.sentences2)
    binned = within_overlap(pairs, overlap).subsets
    rows = []
    for _, systems in _per_target(system, [target], calibrators, options):
        for (layers, name), values in systems.items():
            plain = 100 * np.mean([roc_auc_score(pairs.gold, one) for one in values])
            within = np.mean([_binned_auc(pairs.gold, one, binned) for one in values])
            row = {"layers": layers, "calibrator": name, "auc": round(float(plain), 2)}
            rows.append({**row, "within": round(float(within), 2), "n_pairs": len(pairs)})
    return rows


def make_swaps(name: str = "stsb", least: float = 4.5, *, download: bool = False) -> SentencePairs:
    """Make contests between a paraphrase and the same sentence with two words exchanged.

    From each pair of the test split rated ``least`` or more, (a, b), come two pairs: (a, b) with
    gold 1, and (a, a') with gold 0, where a' is a with its two rarest words exchanged
    (`swap_words`).  Nobody rated (a, a'): the label says how the pair was made.  The first half of
    the result are the (a, b), the second half the (a, a'), in the same order.
    """
    pairs = load_sts(name, download=download)
    weights = idf_weights(load_sts(name, "all", download=download).sentences)
    kept, swapped = [], []
    for row in np.flatnonzero(pairs.gold >= least):
        other = swap_words(pairs.sentences1[row], weights)
        if other is not None and pairs.sentences1[row] != pairs.sentences2[row]:
            kept.append(int(row))
            swapped.append(other)
    first = tuple(pairs.sentences1[row] for row in kept)
    second = tuple(pairs.sentences2[row] for row in kept)
    return SentencePairs(
        f"{name}-swaps",
        "test",
        first + first,
        second + tuple(swapped),
        np.repeat([1.0, 0.0], len(kept)),
        np.full(2 * len(kept), name),
    )


def run_swaps(system: System, calibrators: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    """Count how often a paraphrase beats the sentence with two words exchanged (`make_swaps`).

    An encoder that only counts words never finds the swapped sentence less than identical.

    Gives, for each layers and calibrator: ``wins``, the percent of contests that the paraphrase
    wins, and ``n_contests``.
    """
    download = bool(options.get("download"))
    pairs = make_swaps(download=download)
    target = Target(pairs, sts_target("stsb", download=download).fitted)
    n = len(pairs) // 2
    rows = []
    for _, systems in _per_target(system, [target], calibrators, options):
        for (layers, calibrator), values in systems.items():
            wins = np.mean([contest_share(one[:n], one[n:]) for one in values])
            row = {"layers": layers, "calibrator": calibrator, "wins": round(float(wins), 2)}
            rows.append({**row, "n_contests": n})
    return rows


def _per_target(
    system: System, targets: Sequence[Target], calibrators: Sequence[str], options: dict[str, Any]
) -> Iterator[tuple[Target, Systems]]:
    """Give each target with the similarities of the model and of the sparse bags of words."""
    found = gather_similarities(system, targets, calibrators, **options)
    for target in targets:
        pairs = target.pairs
        systems: Systems = {
            (layers, calibrator): values
            for (name, layers, calibrator), values in found.items()
            if name == pairs.name
        }
        for weighting in WEIGHTINGS:
            words = WordCountEncoder(weighting, dim=2).fit(target.fitted)
            simple = words.similarities(pairs.sentences1, pairs.sentences2)
            systems["sparse", weighting] = [simple]
        yield target, systems


def _binned_auc(labels: Floats, values: Floats, bins: NDArray[np.str_]) -> float:
    """Mean of the bins' AUC, weighted by pairs; a bin with one label only is left out."""
    scores, weights = [], []
    for one in np.unique(bins):
        rows = bins == one
        if len(set(labels[rows])) == 2:
            scores.append(100 * roc_auc_score(labels[rows], values[rows]))
            weights.append(int(rows.sum()))
    return float(np.average(scores, weights=weights))


def _mean(correlations: Iterator[float]) -> float:
    return round(100 * float(np.mean(list(correlations))), 2)
