"""Experiment: what each token weighs in a sentence's vector, raw and calibrated.

It asks for the mechanism behind the controls: does a calibrator do what a mean with weights that
grow with rarity does?
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertflow_lite.calibrate import make_calibrator
from bertflow_lite.encode import Encoder
from bertflow_lite.evaluate import score_sts
from bertflow_lite.experiments.calibrated_similarities import Target
from bertflow_lite.experiments.token_weights import (
    TokenInfluence,
    encode_weighted,
    token_idf,
    token_influence,
)
from bertflow_lite.linear import DeadDimensionWarning
from bertflow_lite.similarity import Floats, spearman

__all__ = ["run_influence", "run_pooling"]

IDF_BINS = 8
_SEED = 0


def run_pooling(
    encoder: Encoder, layers: Sequence[str], targets: Sequence[Target]
) -> list[dict[str, Any]]:
    """Score the raw mean of the tokens, and the mean with weights that grow with rarity.

    No calibrator is involved.  The weights are inverse document frequencies of the tokens over the
    target's sentences.

    Returns
    -------
    list of dict
        For each set and layers, Spearman x 100: ``equal`` weights, ``idf`` weights, and ``idf^2``;
        ``all`` and ``wmean``.
    """
    rows = []
    for target in targets:
        idf = token_idf(encoder, target.fitted)
        texts = list(dict.fromkeys(target.pairs.sentences))
        row_of = {text: row for row, text in enumerate(texts)}
        wanted = np.array([row_of[text] for text in target.pairs.sentences])
        for choice in layers:
            row: dict[str, Any] = {"data": target.pairs.name, "layers": choice}
            for name, weights in (("equal", np.ones_like(idf)), ("idf", idf), ("idf^2", idf**2)):
                score = score_sts(
                    target.pairs, encode_weighted(encoder, texts, choice, weights)[wanted]
                )
                row[name] = [round(score.all, 2), round(score.wmean, 2)]
            rows.append(row)
    return rows


def run_influence(
    encoder: Encoder,
    layers: Sequence[str],
    target: Target,
    calibrators: Sequence[str],
    *,
    n_sentences: int = 300,
) -> list[dict[str, Any]]:
    """Measure each token's influence on the calibrated vector, against the token's rarity.

    Parameters
    ----------
    encoder, layers, target, calibrators
        The calibrators are fitted on the target's sentences, with random state 0.
    n_sentences : int, default 300
        Sentences of the scored pairs, drawn with a fixed seed, that are looked at.

    Returns
    -------
    list of dict
        For each layers and calibrator: ``rank_correlation``, Spearman x 100 between influence and
        inverse document frequency within a sentence, averaged over sentences; ``idf``, the mean
        of it in bins of equally many tokens, and ``influence``, the mean in each bin, where 1 is a
        token like any other of its sentence; ``special``, that of [CLS], [SEP] and the like, which
        are in no bin.
    """
    idf = token_idf(encoder, target.fitted)
    texts = sorted(set(target.pairs.sentences))
    rng = np.random.default_rng(_SEED)
    chosen = rng.choice(len(texts), size=min(n_sentences, len(texts)), replace=False)
    sentences = [texts[i] for i in chosen]
    vectors = encoder.encode(list(target.fitted), layers=list(layers))
    special = np.array(sorted(encoder.tokenizer.all_special_ids))
    rows = []
    for choice in layers:
        for name in calibrators:
            model = make_calibrator(name, random_state=_SEED)
            if model is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeadDimensionWarning)
                    model.fit(vectors[choice])
            found = token_influence(
                encoder, sentences, choice, None if model is None else model.transform
            )
            row: dict[str, Any] = {"data": target.pairs.name, "layers": choice, "calibrator": name}
            rows.append(row | _summarize(found, idf, special))
    return rows


def _summarize(found: TokenInfluence, idf: Floats, special: Any) -> dict[str, Any]:
    ordinary = ~np.isin(found.token, special)
    rarity = idf[found.token]
    by_sentence = []
    for one in np.unique(found.sentence):
        rows = ordinary & (found.sentence == one)
        if len(set(rarity[rows])) > 1:
            by_sentence.append(spearman(rarity[rows], found.influence[rows]))
    order = np.argsort(rarity[ordinary], kind="stable")
    bins = np.array_split(order, IDF_BINS)
    return {
        "rank_correlation": round(100 * float(np.mean(by_sentence)), 2),
        "idf": [round(float(rarity[ordinary][rows].mean()), 3) for rows in bins],
        "influence": [round(float(found.influence[ordinary][rows].mean()), 3) for rows in bins],
        "special": round(float(found.influence[~ordinary].mean()), 3)
        if (~ordinary).any()
        else None,
    }
