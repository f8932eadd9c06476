"""Does a similarity see more than shared words?  Pairs whose word overlap is held fixed.

Where all pairs of a comparison share equally many words, counting words does not help.  Three ways
to get there: compare within bins of overlap (`within_overlap`), compare pairs of pairs with the
same overlap (`matched_accuracy`), and put a paraphrase against the same sentence with two words
swapped, which shares all its words (`swap_words`, `contest_share`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertflow_lite.lexical import edit_distances
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.similarity import Floats, as_values
from bertflow_lite.text import split_words

__all__ = [
    "OVERLAPS",
    "Overlap",
    "contest_share",
    "matched_accuracy",
    "swap_words",
    "within_overlap",
    "word_overlap",
]

Overlap = Literal["jaccard", "edit"]
OVERLAPS: tuple[Overlap, ...] = ("jaccard", "edit")


def word_overlap(first: Sequence[str], second: Sequence[str], kind: Overlap = "jaccard") -> Floats:
    """Measure how many words two sentences share, pair by pair, from 0 to 1; shape (n,).

    Parameters
    ----------
    first, second : sequence of str, length n
        The sentences of the pairs.
    kind : {"jaccard", "edit"}, default "jaccard"
        ``"jaccard"``: size of the intersection over size of the union of the two sets of words,
        punctuation left out; order does not count.  ``"edit"``: 1 minus the Levenshtein distance
        over words, divided by the longer sentence's length; order counts.
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

    Parameters
    ----------
    pairs : SentencePairs
    overlap : array-like, shape (n_pairs,)
        From `word_overlap`.
    bins : int, default 10
        Number of bins, as equal in size as ties allow: pairs of equal overlap stay together.
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


def matched_accuracy(
    gold: ArrayLike,
    overlap: ArrayLike,
    similarities: Mapping[str, ArrayLike],
    *,
    least_gap: float = 1.0,
    tolerance: float = 0.0,
    min_overlap: float = 0.0,
) -> tuple[dict[str, float], int]:
    """Count how often, of two pairs with the same overlap, the one rated higher gets more.

    All pairs of pairs are taken whose overlaps differ by at most ``tolerance`` and whose gold
    scores differ by at least ``least_gap``.

    Parameters
    ----------
    gold, overlap : array-like, shape (n_pairs,)
    similarities : mapping of str to array-like, shape (n_pairs,)
        By system.
    least_gap : float, default 1.0
        Smallest difference of gold scores.
    tolerance : float, default 0.0
        Largest difference of overlaps.
    min_overlap : float, default 0.0
        Leave out pairs that share less: most pairs without a shared word are just unrelated.

    Returns
    -------
    shares : dict of str to float
        Percent of pairs of pairs in the right order, a tie counting half; 50 is guessing.
    n : int
        Number of pairs of pairs.

    Raises
    ------
    ValueError
        If there is no such pair of pairs.
    """
    ratings, shared = as_values(gold, "gold"), as_values(overlap, "the overlap")
    kept = np.flatnonzero(shared >= min_overlap)
    order = kept[np.argsort(shared[kept], kind="stable")]
    last = np.searchsorted(shared[order], shared[order] + tolerance + 1e-12, side="right")
    values = {name: as_values(one, name) for name, one in similarities.items()}
    right, n = dict.fromkeys(values, 0.0), 0
    for position, row in enumerate(order):
        others = order[position + 1 : last[position]]
        gap = ratings[row] - ratings[others]
        others, gap = others[np.abs(gap) >= least_gap], gap[np.abs(gap) >= least_gap]
        n += len(others)
        for name, one in values.items():
            sign = np.sign(one[row] - one[others]) * np.sign(gap)
            right[name] += float((sign + 1).sum() / 2)
    if n == 0:
        raise ValueError("No two pairs have the same overlap and gold scores that far apart.")
    return {name: 100 * count / n for name, count in right.items()}, n


def swap_words(sentence: str, weights: Mapping[str, float]) -> str | None:
    """Exchange the two words of a sentence with the largest weights, keeping all else in place.

    With weights that grow with rarity (`idf_weights`) these are mostly content words.  The result
    has the same bag of words.  Nobody has rated it: mostly it says something else or nothing
    sensible, but "cats and dogs" becomes "dogs and cats".

    Parameters
    ----------
    sentence : str
    weights : mapping of str to float
        Weight of each lower-cased word; words that are not in it, or hold no letter, stay.

    Returns
    -------
    str or None
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
