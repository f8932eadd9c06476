"""A text thinned until all its words are equally frequent, and one thinned at random beside it.

If frequency bends the space of words, it must not bend it where all words are equally frequent.
Thinning also breaks sentences and shortens the text.  Hence the second text: as short and as
broken, but with the frequencies of language.  Rows keep the lengths that they have in the text.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.pretraining.corpus import PackedCorpus, row_lengths

__all__ = ["thin_corpus"]


def thin_corpus(
    corpus: PackedCorpus, tokenizer: Any, each: int, *, equal: bool, seed: int = 0
) -> PackedCorpus:
    """Keep some occurrences of the pieces, in the order of the text, and drop all others.

    Parameters
    ----------
    corpus : PackedCorpus
    tokenizer : PreTrainedTokenizerFast
        That it was packed with.
    each : int
        Occurrences of a piece to keep.  Pieces that occur less often are dropped.
    equal : bool
        Whether every piece that is left occurs equally often.  Otherwise as many occurrences in
        all are drawn from the whole text, whatever their piece.
    seed : int, default 0
        Of the draw.

    Returns
    -------
    PackedCorpus
        In memory.  Its rows are as long as those of the text, drawn at random, whatever sentences
        the pieces come from: so a step reads as much, and rates fall as fast.

    Raises
    ------
    ValueError
        If no piece occurs so often.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> marks = SimpleNamespace(all_special_ids=[0, 1, 2], cls_token_id=1, sep_token_id=2,
    ...                         pad_token_id=0)
    >>> rows = np.array([[1, 7, 5, 7, 6, 5, 7, 2]], np.uint16)
    >>> text = PackedCorpus(rows, np.bincount(rows[0], minlength=8), "text")
    >>> flat = thin_corpus(text, marks, 2, equal=True)
    >>> flat.counts[5:]
    array([2, 0, 2])
    """
    pieces = np.asarray(corpus.rows).ravel()
    pieces = pieces[~np.isin(pieces, tokenizer.all_special_ids)]
    counts = np.bincount(pieces, minlength=len(corpus.counts))
    n = each * int((counts >= each).sum())
    if not n:
        raise ValueError(f"no piece occurs {each} times: keep fewer of each, or use a longer text.")
    random = np.random.default_rng([seed, each])
    if equal:
        kept = _equally_many(pieces, counts, each, random)
    else:
        kept = random.choice(len(pieces), n, replace=False, shuffle=False)
    kept.sort()
    lengths = row_lengths(corpus, tokenizer.pad_token_id)
    sizes = random.permutation(lengths[lengths > 2] - 2)  # less the marks
    text = f"{corpus.fingerprint} thinned 2 {each} {equal} {seed}"
    return PackedCorpus(
        _fill_rows(pieces[kept], sizes, corpus.rows.shape[1], tokenizer),
        np.bincount(pieces[kept], minlength=len(counts)),
        hashlib.sha256(text.encode()).hexdigest()[:16],
    )


def _equally_many(
    pieces: NDArray[Any], counts: NDArray[np.intp], each: int, random: np.random.Generator
) -> NDArray[np.intp]:
    """Places of so many occurrences of each piece that has them, chosen at random."""
    order = np.lexsort((random.random(len(pieces), dtype=np.float32), pieces))
    sorted_pieces = pieces[order]
    number = np.arange(len(order)) - (np.cumsum(counts) - counts)[sorted_pieces]
    return order[(number < each) & (counts[sorted_pieces] >= each)]


def _fill_rows(
    pieces: NDArray[Any], sizes: NDArray[np.intp], length: int, tokenizer: Any
) -> NDArray[Any]:
    """Cut a stream of pieces into rows of these sizes between marks, and pad them."""
    ends = np.cumsum(sizes)
    sizes = sizes[: np.searchsorted(ends, len(pieces)) + 1].copy()
    sizes[-1] -= sizes.sum() - len(pieces)
    rows = np.full((len(sizes), length), tokenizer.pad_token_id, pieces.dtype)
    rows[:, 0] = tokenizer.cls_token_id
    rows[:, 1:-1][np.arange(length - 2) < sizes[:, None]] = pieces
    rows[np.arange(len(sizes)), sizes + 1] = tokenizer.sep_token_id
    return rows
