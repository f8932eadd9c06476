"""What raw and calibrated cosines make of a handful of pairs that a reader makes up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bertflow_lite.datasets import load_sts
from bertflow_lite.evaluate import pair_cosines
from bertflow_lite.experiments.lexical_runs import CALIBRATORS, fit_calibrator
from bertflow_lite.experiments.table_rows import AnyEncoder, default_layers
from bertflow_lite.lexical import edit_distances
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.similarity import cosine

__all__ = ["compare_own_pairs"]


def compare_own_pairs(
    own: Sequence[tuple[str, str]],
    encoder: AnyEncoder,
    *,
    layers: str = "",
    reference: SentencePairs | None = None,
    unit: str = "words and marks",
    random_state: int = 0,
) -> pd.DataFrame:
    """Show what each similarity makes of the reader's own pairs.

    Raw and calibrated cosines fill different ranges, so beside each cosine stands its rank: the
    share of the reference pairs that are less alike by the same measure.

    Parameters
    ----------
    own : sequence of (str, str)
        The pairs, such as ``[("I like this restaurant", "I dislike this restaurant")]``.
    encoder : Encoder or WordVectorEncoder
        From `load_encoder`.
    layers : str, default ""
        A layer choice; empty: the encoder's first default one.
    reference : SentencePairs, optional
        Pairs to rank among; their sentences fit the calibrators. Default: mini-sts.
    unit : str, default "words and marks"
        A key of `UNITS`.
    random_state : int, default 0
        Seed of the flow.

    Returns
    -------
    pandas.DataFrame
        A row for each pair: both sentences, ``edit distance``, and for each of `CALIBRATORS` its
        cosine and ``... rank`` in percent.

    Raises
    ------
    ValueError
        If there is no pair, or an entry is not two sentences.
    """
    if not len(own) or any(isinstance(pair, str) or len(pair) != 2 for pair in own):
        raise ValueError(
            "own must be a list of pairs of sentences, such as [('I like it', 'I dislike it')]."
        )
    pairs = load_sts("mini-sts") if reference is None else reference
    first, second = [pair[0] for pair in own], [pair[1] for pair in own]
    tokenizer = getattr(encoder, "tokenizer", None)
    table: dict[str, Any] = {
        "sentence 1": first,
        "sentence 2": second,
        "edit distance": edit_distances(first, second, unit, tokenizer=tokenizer),
    }
    texts = [*pairs.sentences, *first, *second]
    vectors = encoder.encode(texts, layers or default_layers(encoder)[0])
    fit_rows, n = 2 * len(pairs), len(own)
    for calibrator, label in CALIBRATORS.items():
        z = vectors
        if calibrator != "none":
            z = fit_calibrator(calibrator, vectors[:fit_rows], random_state).transform(vectors)
        known = np.sort(pair_cosines(pairs, z[:fit_rows]))
        values = cosine(z[fit_rows : fit_rows + n], z[fit_rows + n :])
        table[label] = values
        table[f"{label} rank"] = 100 * np.searchsorted(known, values) / len(known)
    return pd.DataFrame(table)
