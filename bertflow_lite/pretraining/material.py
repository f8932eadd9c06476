"""What all snapshots of a pre-training run are measured on, gathered once.

All frequencies are those of the training corpus, as the paper counts Wikipedia for a BERT that has
read Wikipedia.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.datasets import load_sts
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.pretraining.corpus import PackedCorpus
from bertflow_lite.pretraining.corpus_pmi import (
    NeighborPairs,
    frequent_pairs,
    neighbor_counts,
    unigram_log_p,
)
from bertflow_lite.pretraining.film import spread_over
from bertflow_lite.pretraining.masked_contexts import Places, draw_places, neighbor_places
from bertflow_lite.text import split_words

__all__ = ["Material", "prepare"]

N_WORDS = 10_000
N_CONTEXTS = 1200
N_LEFT, CONTEXTS_OF_LEFT = 200, 6
FILM_WORDS, FILM_PAIRS = 300, 75


@dataclass(frozen=True)
class Material:
    """What all snapshots of a run are measured on.

    Attributes
    ----------
    counts : ndarray of int64, shape (vocabulary,)
        Of the pieces of the corpus.
    log_p : ndarray, shape (vocabulary,)
        Their log frequency (`unigram_log_p`).
    ranks : ndarray of int, shape (vocabulary,)
        Their frequency rank, marks last.
    words : tuple of str
        Whole words of one piece that occur, most frequent first, up to 10,000.  Their rank is that
        among such words: words of several pieces have no count here.  The count is the piece's,
        also where it begins a longer word ("play" in "play ##wright").
    word_counts : ndarray of int64, shape (n_words,)
    held_out : ndarray of int64, shape (n_rows, length)
        Rows that were not trained on.
    places, neighbors : Places
        Where masks are put: anywhere, and right of frequent words.
    pairs_of_neighbors : NeighborPairs
        Of the training rows.
    pairs : SentencePairs
        The STS set.
    film_words : ndarray of int
        Rows of ``words`` in the film: words of three letters or more that mini-sts uses too, so
        that they are fit for a book, spread over the frequency ranks.
    film_sentences : ndarray of int
        Rows of mini-sts's ``sentences`` in the film; both sentences of a pair.
    """

    counts: NDArray[np.int64]
    log_p: NDArray[np.float64]
    ranks: NDArray[np.intp]
    words: tuple[str, ...]
    word_counts: NDArray[np.int64]
    held_out: NDArray[np.int64]
    places: Places
    neighbors: Places
    pairs_of_neighbors: NeighborPairs
    pairs: SentencePairs
    film_words: NDArray[np.intp]
    film_sentences: NDArray[np.intp]


def prepare(
    corpus: PackedCorpus,
    tokenizer: Any,
    pairs: SentencePairs,
    *,
    held_out: int,
    least_pairs: int = 20,
    seed: int = 0,
) -> Material:
    """Gather what the snapshots of a run are measured on.

    Parameters
    ----------
    corpus : PackedCorpus
        That the run was trained on.
    tokenizer : PreTrainedTokenizerFast
        Of the run.
    pairs : SentencePairs
        The STS set to score on.
    held_out : int
        Rows at the end of the corpus that were not trained on.
    least_pairs : int, default 20
        Smallest count of two neighbors that are compared.
    seed : int, default 0
        Of the draws of places.

    Returns
    -------
    Material

    Raises
    ------
    ValueError
        If the corpus is too small to measure with.
    """
    marks = np.array(sorted(tokenizer.all_special_ids), dtype=np.int64)
    pieces = np.delete(np.arange(len(corpus.counts)), marks)
    order = np.append(pieces[np.argsort(-corpus.counts[pieces], kind="stable")], marks)
    ranks = np.empty(len(order), dtype=np.intp)
    ranks[order] = np.arange(len(order))
    tokens = tokenizer.convert_ids_to_tokens(order.tolist())
    is_word = [t.isascii() and t.isalpha() and t.islower() for t in tokens]
    ids = np.array([i for i, w in zip(order, is_word, strict=True) if w and corpus.counts[i]])
    ids = ids[:N_WORDS].astype(np.int64)
    if len(ids) < 100:
        raise ValueError(f"only {len(ids)} words occur in the corpus: measure with a larger one.")
    words = tuple(tokenizer.convert_ids_to_tokens(ids.tolist()))
    log_p = unigram_log_p(corpus.counts)
    rows = np.asarray(corpus.rows[len(corpus.rows) - held_out :], dtype=np.int64)
    left = ids[:N_LEFT]
    found = neighbor_counts(corpus, left, marks, leave_out=held_out)
    film = load_sts("mini-sts")
    fit = {word for text in film.sentences for word in split_words(text)}
    shown = np.array([i for i, word in enumerate(words) if word in fit and len(word) > 2])
    of_pair = np.linspace(0, len(film) - 1, min(FILM_PAIRS, len(film))).round().astype(np.intp)
    return Material(
        counts=corpus.counts,
        log_p=log_p,
        ranks=ranks,
        words=words,
        word_counts=corpus.counts[ids],
        held_out=rows,
        places=draw_places(rows, marks, N_CONTEXTS, seed),
        neighbors=neighbor_places(rows, left, marks, CONTEXTS_OF_LEFT, seed),
        pairs_of_neighbors=frequent_pairs(found, log_p, least=least_pairs),
        pairs=pairs,
        film_words=shown[spread_over(len(shown), FILM_WORDS)].astype(np.intp),
        film_sentences=np.concatenate([of_pair, of_pair + len(film)]),
    )
