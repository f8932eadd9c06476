"""How much more often two pieces stand side by side than chance would have it: PMI in the corpus.

A language model's ``log p(x|c) - log p(x)`` is the PMI of a piece and a whole context, which no
corpus is large enough to count.  What can be counted is the PMI of a piece ``x`` and its left
neighbor ``a``:

    PMI(a, x) = log (n(a, x) / n(a, any)) - log p(x)

The model's counterpart is its mean ``p(x|c)`` over contexts ``c`` in which ``a`` stands left of the
mask.  Here is the counting.  Neighbors are pieces of one row, also where a sentence ends between
them; marks and padding are nobody's neighbor.  Nothing is smoothed but p(x): pairs met seldom are
to be left out.
"""

from __future__ import annotations

import hashlib
import logging
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.atomic import replacing
from bertflow_lite.paths import cache_dir
from bertflow_lite.pretraining.corpus import PackedCorpus

__all__ = [
    "NeighborCounts",
    "NeighborPairs",
    "count_right_neighbors",
    "frequent_pairs",
    "neighbor_counts",
    "unigram_log_p",
]

logger = logging.getLogger(__name__)

_BLOCK = 65536
"""Rows counted at once."""


@dataclass(frozen=True)
class NeighborCounts:
    """How often pieces stand to the right of some others.

    Attributes
    ----------
    left : ndarray of int64, shape (n_left,)
        The left pieces.
    counts : ndarray of int64, shape (n_left, vocabulary)
        How often each piece stands right of each of them.
    """

    left: NDArray[np.int64]
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class NeighborPairs:
    """Pairs of neighbors that are frequent enough, and their PMI.

    Attributes
    ----------
    left : ndarray of int64, shape (n_pairs,)
        Position of the left piece in `NeighborCounts.left`.
    piece : ndarray of int64, shape (n_pairs,)
        The right piece.
    pmi : ndarray of float64, shape (n_pairs,)
        In nats.
    """

    left: NDArray[np.int64]
    piece: NDArray[np.int64]
    pmi: NDArray[np.float64]


def unigram_log_p(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log of each piece's share of the text, half a count added to every piece.

    It is also where the bias of the output layer starts (`recipe.make_masked_model`).

    Parameters
    ----------
    counts : ndarray of int, shape (vocabulary,)

    Returns
    -------
    ndarray of float64, shape (vocabulary,)
        Natural logarithms.

    Examples
    --------
    >>> np.exp(unigram_log_p(np.array([3, 0, 0]))).round(3)
    array([0.778, 0.111, 0.111])
    """
    smooth = counts + 0.5
    return np.asarray(np.log(smooth / smooth.sum()))


def count_right_neighbors(
    rows: NDArray[Any], left: NDArray[np.int64], vocabulary: int, marks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Count what stands right of some pieces.

    Parameters
    ----------
    rows : ndarray of int, shape (n_rows, length)
        Read block by block, so they may be mapped from disk.
    left : ndarray of int, shape (n_left,)
        The left pieces, none twice and none a mark.
    vocabulary : int
        Number of pieces.
    marks : ndarray of int
        Ids that are no neighbors: begin, end, padding and the like.

    Returns
    -------
    ndarray of int64, shape (n_left, vocabulary)

    Raises
    ------
    ValueError
        If a left piece comes twice, is a mark or lies outside the vocabulary.

    Examples
    --------
    >>> rows = np.array([[0, 5, 6, 5, 6, 1], [0, 6, 5, 1, 2, 2]])
    >>> count_right_neighbors(rows, np.array([5]), 7, np.array([0, 1, 2]))
    array([[0, 0, 0, 0, 0, 0, 2]])
    """
    if len(np.unique(left)) < len(left) or np.isin(left, marks).any():
        raise ValueError("the left pieces must differ, and none may be a mark.")
    if len(left) and not 0 <= left.min() <= left.max() < vocabulary:
        raise ValueError(f"a left piece lies outside the vocabulary of {vocabulary} pieces.")
    place = np.full(vocabulary, -1)
    place[left] = np.arange(len(left))
    is_piece = np.ones(vocabulary, dtype=bool)
    is_piece[marks] = False
    out = np.zeros(len(left) * vocabulary, np.int64)
    for start in range(0, len(rows), _BLOCK):
        block = np.asarray(rows[start : start + _BLOCK], dtype=np.int64)
        first, second = place[block[:, :-1]], block[:, 1:]
        kept = (first >= 0) & is_piece[second]
        out += np.bincount(first[kept] * vocabulary + second[kept], minlength=len(out))
    return out.reshape(len(left), vocabulary)


def neighbor_counts(
    corpus: PackedCorpus, left: NDArray[np.int64], marks: NDArray[np.int64], *, leave_out: int = 0
) -> NeighborCounts:
    """Count what stands right of some pieces in a packed corpus, or read it from the cache.

    Parameters
    ----------
    corpus : PackedCorpus
    left, marks
        As in `count_right_neighbors`.
    leave_out : int, default 0
        Rows at the end that are not counted.

    Returns
    -------
    NeighborCounts
    """
    rows = corpus.rows[: len(corpus.rows) - leave_out]
    vocabulary = len(corpus.counts)
    how = f"right 1 {corpus.fingerprint} {len(rows)} {left.tolist()} {sorted(marks.tolist())}"
    digest = hashlib.sha256(how.encode()).hexdigest()[:16]
    path = cache_dir() / "corpus" / f"right-neighbors-{digest}.npz"
    counts = _read(path, len(left), vocabulary)
    if counts is None:
        counts = count_right_neighbors(rows, left, vocabulary, marks)
        try:
            with replacing(path) as file:
                code = np.flatnonzero(counts)
                np.savez_compressed(file, code=code, count=counts.ravel()[code])
        except OSError as error:
            logger.warning("the counts of neighbors are not kept (%s)", error)
    return NeighborCounts(left, counts)


def _read(path: Path, n_left: int, vocabulary: int) -> NDArray[np.int64] | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            out = np.zeros(n_left * vocabulary, np.int64)
            out[stored["code"]] = stored["count"]
            return out.reshape(n_left, vocabulary)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile) as error:
        logger.warning("%s cannot be read and is made again (%s)", path.name, error)
        return None


def frequent_pairs(
    found: NeighborCounts, log_p: NDArray[np.float64], *, least: int = 20
) -> NeighborPairs:
    """PMI of the pairs that were met often enough.

    Parameters
    ----------
    found : NeighborCounts
    log_p : ndarray, shape (vocabulary,)
        From `unigram_log_p`.
    least : int, default 20
        Smallest count of a pair.  The PMI of a pair that was met n times is known to about
        1 / sqrt(n) nats.

    Returns
    -------
    NeighborPairs
        Ordered by left piece, then by right piece.
    """
    left, piece = np.nonzero(found.counts >= max(least, 1))
    total = found.counts.sum(axis=1)
    log_conditional = np.log(found.counts[left, piece] / total[left])
    return NeighborPairs(
        left.astype(np.int64), piece.astype(np.int64), log_conditional - log_p[piece]
    )
