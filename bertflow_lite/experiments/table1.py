"""Table 1: norms of word embeddings and distances to their nearest neighbors, by frequency."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tabulate import tabulate

from bertflow_lite.datasets.word_counts import load_word_counts
from bertflow_lite.encoders.models import LoadedModel
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.paper import load_paper_table
from bertflow_lite.experiments.scoring import AnyEncoder, RunOptions
from bertflow_lite.measures.similarity import Floats

BINS = ((0, 100), (100, 500), (500, 5_000), (5_000, 10_000))
KS = (3, 5, 7)
# Scores held at a time: 64 MB, whatever the vocabulary.
_BLOCK_CELLS = 2**24
_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|<\|?reserved.*")


@dataclass(frozen=True)
class WordEmbeddings:
    """The input embedding matrix of a model, and which of its rows are whole words."""

    # Every row that a text can use: special tokens ([CLS], <|im_start|> ...), reserved ones
    # ([unused7] ...) and rows without a token are left out; pieces of words (##ing) and punctuation
    # are in; shape (n_tokens, dim), float32.
    vectors: NDArray[np.float32]
    tokens: tuple[str, ...]  # the token of each row, as the vocabulary writes it; length n_tokens
    words: tuple[str, ...]  # words of one token, most frequent first; length n_words
    rows: NDArray[np.intp]  # row of each word in `vectors`; shape (n_words,)
    # Frequency rank of each word, from 0, among *all* counted words, whether of one token or not;
    # shape (n_words,).
    ranks: NDArray[np.intp]
    n_left_out: int  # rows of the matrix that are not in `vectors`

    @classmethod
    def of(cls, encoder: Encoder | LoadedModel, ranked_words: Sequence[str]) -> WordEmbeddings:
        """Take a model's word embeddings.

        A word counts as one token when the tokenizer turns it, with a space before it as within a
        sentence, into a single token that reads as the word again.  This finds "the" in BERT's
        vocabulary and "Ġthe" in byte-level ones; words that the tokenizer changes (BERT drops
        accents) are not taken.

        The words are to be given most frequent first, none twice.
        """
        tokenizer = encoder.tokenizer
        matrix = encoder.model.get_input_embeddings().weight.detach().float().cpu().numpy()
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        special = set(tokenizer.all_special_ids)
        special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        kept = sorted(
            (i, token)
            for token, i in vocabulary.items()
            if i < len(matrix) and i not in special and not _UNUSED.fullmatch(token)
        )
        row_of = {i: row for row, (i, _) in enumerate(kept)}
        ids = tokenizer([" " + word for word in ranked_words], add_special_tokens=False)[
            "input_ids"
        ]
        found = [
            (rank, word, row_of[token_ids[0]])
            for rank, (word, token_ids) in enumerate(zip(ranked_words, ids, strict=True))
            if len(token_ids) == 1
            and token_ids[0] in row_of
            and tokenizer.decode(token_ids).strip() == word
        ]
        if not found:
            raise ValueError(
                f"None of the {len(ranked_words)} words is a single token of this model."
            )
        ranks, words, rows = zip(*found, strict=True)
        return cls(
            matrix[[i for i, _ in kept]],
            tuple(token for _, token in kept),
            words,
            np.array(rows, dtype=np.intp),
            np.array(ranks, dtype=np.intp),
            len(matrix) - len(kept),
        )

    def up_to(self, rank: int) -> WordEmbeddings:
        """Keep only words below a frequency rank; the vectors stay."""
        n = int(np.searchsorted(self.ranks, rank))
        return replace(self, words=self.words[:n], rows=self.rows[:n], ranks=self.ranks[:n])


@dataclass(frozen=True)
class Neighbors:
    """The k nearest neighbors of some rows, nearest first, by distance and by dot product."""

    # Rows with the smallest l2 distance, and rows with the largest dot product. They differ: a long
    # vector has a large dot product with everything, but lies far from most. Shape (n, k).
    by_distance: NDArray[np.intp]
    by_dot: NDArray[np.intp]
    distance: Floats  # l2 distance to the neighbors by distance; shape (n, k)
    dot: Floats  # dot product with the neighbors by dot product; shape (n, k)


def find_neighbors(
    vectors: NDArray[np.floating[Any]], rows: NDArray[np.integer[Any]], k: int = 7
) -> Neighbors:
    """Find the nearest neighbors of some rows among all rows, exactly.

    A row is never its own neighbor; another row with the same vector is.  Scores are made block
    by block, so that memory does not grow with the number of rows, and found in float32;
    distances and dot products of the neighbors found are computed anew in float64.
    """
    if not 1 <= k < len(vectors):
        raise ValueError(f"k is {k}; it must be from 1 to {len(vectors) - 1}.")
    if len(rows) and (rows.min() < 0 or rows.max() >= len(vectors)):
        raise ValueError(f"A row lies outside the {len(vectors)} vectors.")
    candidates = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32))
    # |a - b|^2 = |a|^2 - 2 (a . b - |b|^2 / 2): the nearest has the largest bracket.
    half_squares = (candidates**2).sum(dim=1) / 2
    size = max(1, _BLOCK_CELLS // len(vectors))
    by_distance, by_dot = np.empty((2, len(rows), k), dtype=np.intp)
    # Distances are to be kept apart from far smaller ones: float64, for the k found only.
    distance, dot = np.empty((2, len(rows), k))
    scores = torch.empty(min(size, max(len(rows), 1)), len(vectors))
    for start in range(0, len(rows), size):
        block = torch.from_numpy(np.asarray(rows[start : start + size], dtype=np.int64))
        part = slice(start, start + len(block))
        out = scores[: len(block)]
        torch.matmul(candidates[block], candidates.T, out=out)
        out[torch.arange(len(block)), block] = -torch.inf  # not its own neighbor
        nearest = [out.topk(k, dim=1).indices]
        nearest.append(out.sub_(half_squares).topk(k, dim=1).indices)
        query = candidates[block].double().unsqueeze(1)
        found = [candidates[index].double() for index in nearest]
        by_dot[part], by_distance[part] = (index.numpy() for index in nearest)
        dot[part] = (query * found[0]).sum(dim=2).numpy()
        distance[part] = (query - found[1]).norm(dim=2).numpy()
    return Neighbors(by_distance, by_dot, distance, dot)


def make_table1(
    words: WordEmbeddings,
    neighbors: Neighbors | None = None,
    *,
    ranks: NDArray[np.intp] | None = None,
    bins: Sequence[tuple[int, int]] = BINS,
    ks: Sequence[int] = KS,
) -> dict[str, Any]:
    """Measure the paper's Table 1.

    A bin holds the words whose rank among all counted words lies in it: frequency belongs to the
    word, not to the vocabulary, so that bins mean the same for every model.  They are then not
    full, since some words are of several tokens; `n_words` says how full.

    Take ``words.up_to`` the last rank, to find no neighbors for nothing. Neighbors are those of
    ``words.rows``; other ranks than ``words.ranks`` can be given, as can other bins of ranks and
    numbers of neighbors.

    Gives, one entry for each of ``bins`` (first rank, and the rank after the last): ``n_words`` of
    one token, and their mean l2 ``norm``; and by k, as a string, ``distance``, the mean l2 distance
    to the k nearest by distance, ``dot``, the mean dot product with the k nearest by dot product,
    and ``distance_dot``, that with the k nearest *by distance*: the other way to read the caption.
    """
    ranks = words.ranks if ranks is None else ranks
    if neighbors is None:
        neighbors = find_neighbors(words.vectors, words.rows, max(ks))
    if neighbors.distance.shape[0] != len(ranks) or neighbors.distance.shape[1] < max(ks):
        raise ValueError(
            f"{len(ranks)} words need {max(ks)} neighbors each; there are neighbors of shape "
            f"{neighbors.distance.shape}."
        )
    members = [np.flatnonzero((ranks >= low) & (ranks < high)) for low, high in bins]
    for (low, high), inside in zip(bins, members, strict=True):
        if not len(inside):
            raise ValueError(f"No word of rank {low} to {high - 1} is a single token.")
    own = words.vectors[words.rows]
    norms = np.linalg.norm(own.astype(np.float64), axis=1)
    also = np.stack([(own * words.vectors[column]).sum(axis=1)
                     for column in neighbors.by_distance.T], axis=1)  # fmt: skip

    def means(values: Floats) -> dict[str, list[float]]:
        return {str(k): [float(values[inside, :k].mean()) for inside in members] for k in ks}

    return {
        "bins": [[int(low), int(high)] for low, high in bins],
        "n_words": [len(inside) for inside in members],
        "norm": [float(norms[inside].mean()) for inside in members],
        "distance": means(neighbors.distance),
        "dot": means(neighbors.dot),
        "distance_dot": means(also.astype(np.float64)),
    }


def run_table1(encoder: AnyEncoder, options: RunOptions | None = None) -> dict[str, Any]:
    """Run Table 1: norms of word embeddings and distances to neighbors, by frequency rank.

    Only the encoder matters, and no option: nothing is drawn at random, and word embeddings have no
    layers.

    Gives ``settings``, and ``table1`` (`make_table1`).
    """
    if not isinstance(encoder, Encoder):
        raise ValueError(f"Table 1 measures a transformer's word embeddings; {encoder.name!r} "
                         "is a table of word vectors without a vocabulary of its own.")  # fmt: skip
    counts = load_word_counts()
    words = WordEmbeddings.of(encoder, counts.words).up_to(BINS[-1][1])
    return {"settings": {"data": {}, "word_counts": counts.source}, "table1": make_table1(words)}


def format_table1(results: dict[str, Any], style: str = "simple") -> str:
    """Lay out Table 1, ours and the paper's line by line."""
    ours, paper = results["table1"], load_paper_table(1)
    lines: list[list[Any]] = [["words of one token", "", *map(str, ours["n_words"])]]

    def add(label: str, mine: Sequence[float], published: Sequence[float]) -> None:
        lines.append([label, "here", *(f"{value:.2f}" for value in mine)])
        lines.append(["", "paper, BERT-base", *(f"{value:.2f}" for value in published)])

    add("mean l2 norm", ours["norm"], paper["mean_l2_norm"])
    for k in map(str, KS):
        add(f"mean l2 distance, k={k}", ours["distance"][k], paper["mean_knn_l2_dist"][k])
    for k in map(str, KS):
        add(f"mean dot product, k={k}", ours["dot"][k], paper["mean_knn_dot_product"][k])
    headers = ["rank of word frequency", "", *(f"[{low}, {high})" for low, high in ours["bins"])]
    return tabulate(lines, headers, tablefmt=style, disable_numparse=True)
