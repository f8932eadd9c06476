"""Context vectors at masked places of rows that a masked model was never trained on.

One piece is masked at a time, as the theory has it (Section 2.1 of the paper).  Contexts are rows
of pieces rather than sentences, so that nothing is lost by writing pieces as text and splitting
them again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bertflow_lite.language_model import LanguageModel, head_inputs
from bertflow_lite.lm_probe import Contexts

__all__ = ["Places", "collect_at", "draw_places", "neighbor_places", "select_contexts"]

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Places:
    """Where to put a mask.

    Attributes
    ----------
    row, position : ndarray of int, shape (n,)
        Row, and place in it.
    left : ndarray of int, shape (n,)
        For `neighbor_places`, which of the left pieces stands left of it; else all -1.
    """

    row: NDArray[np.intp]
    position: NDArray[np.intp]
    left: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.row)


def draw_places(rows: Rows, marks: NDArray[np.int64], n: int, seed: int = 0) -> Places:
    """Draw places at random, each at most once, never on a mark.

    Parameters
    ----------
    rows : ndarray of int, shape (n_rows, length)
    marks : ndarray of int
        Ids that are never masked.
    n : int
        Number of places; all there are, if these are fewer.
    seed : int, default 0

    Raises
    ------
    ValueError
        If there is no place at all.
    """
    row, position = np.nonzero(~np.isin(rows, marks))
    if not len(row):
        raise ValueError("the rows hold nothing but marks: there is no place for a mask.")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(row))[:n])
    return Places(row[chosen], position[chosen], np.full(len(chosen), -1))


def neighbor_places(
    rows: Rows, left: NDArray[np.int64], marks: NDArray[np.int64], most: int, seed: int = 0
) -> Places:
    """Draw places right of given pieces, at most so many for each.

    Parameters
    ----------
    rows, marks, seed
        As in `draw_places`.
    left : ndarray of int, shape (n_left,)
        The pieces.
    most : int
        Places for each of them.
    """
    place = np.full(int(max(rows.max(), left.max(), marks.max())) + 1, -1)
    place[left] = np.arange(len(left))
    row, before = np.nonzero((place[rows[:, :-1]] >= 0) & ~np.isin(rows[:, 1:], marks))
    which = place[rows[row, before]]
    order = np.random.default_rng(seed).permutation(len(row))
    kept = [order[which[order] == k][:most] for k in range(len(left))]
    chosen = np.concatenate([*kept, np.empty(0, np.intp)]).astype(np.intp)
    return Places(row[chosen], before[chosen] + 1, which[chosen])


def collect_at(
    lm: LanguageModel, rows: Rows, places: Places, *, batch_tokens: int = 1024
) -> Contexts:
    """Mask each place by itself and keep the context vector there.

    Parameters
    ----------
    lm : LanguageModel
        A masked one.
    rows : ndarray of int, shape (n_rows, length)
    places : Places
    batch_tokens : int, default 1024
        Padded pieces in a batch.

    Returns
    -------
    Contexts
        Without texts: those of a corpus are not to be stored.

    Raises
    ------
    ValueError
        If the model is no masked one.
    """
    if lm.kind != "masked":
        raise ValueError(f"{lm.name!r} predicts the next token; masks need a masked model.")
    mask = int(lm.tokenizer.mask_token_id)
    lengths = (rows != int(lm.tokenizer.pad_token_id)).sum(axis=1)[places.row]
    order = np.argsort(-lengths, kind="stable")
    h = torch.empty(len(places), lm.word_vectors.shape[1])
    start = 0
    while start < len(order):
        part = order[start : start + max(1, batch_tokens // int(lengths[order[start]]))]
        start += len(part)
        seen = rows[places.row[part]]
        seen[np.arange(len(part)), places.position[part]] = mask
        states = head_inputs(
            lm, [row[:n].tolist() for row, n in zip(seen, lengths[part], strict=True)]
        )
        at = torch.from_numpy(places.position[part].astype(np.int64)).to(states.device)
        h[torch.from_numpy(part)] = states[torch.arange(len(part)), at].float().cpu()
    targets = rows[places.row, places.position].astype(np.int_)
    return Contexts(
        h.to(lm.word_vectors.device), [""] * len(places), targets, places.row.astype(np.int_)
    )


def select_contexts(contexts: Contexts, n: int) -> Contexts:
    """Keep the first ``n`` contexts of an even spread over all."""
    at = np.unique(np.linspace(0, len(contexts) - 1, min(n, len(contexts))).round().astype(int))
    return Contexts(
        contexts.h[torch.from_numpy(at).to(contexts.h.device)],
        [contexts.texts[i] for i in at],
        contexts.targets[at],
        contexts.sentences[at],
    )
