"""What is measured of one snapshot of a small BERT: words, sentences, STS, guesses, pictures.

`material.prepare` gathers what is the same for all snapshots of a run; `measure_snapshot` takes
one model folder.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.base import DeadDimensionWarning
from bertflow_lite.calibrate import FlowCalibrator, make_calibrator
from bertflow_lite.datasets import load_sts
from bertflow_lite.encode import Encoder
from bertflow_lite.evaluate import score_sts
from bertflow_lite.fill_mask import fill_mask
from bertflow_lite.geometry import (
    effective_rank,
    frequency_shares,
    iso_score,
    mean_cosine,
    singular_values,
)
from bertflow_lite.language_model import LanguageModel, load_language_model
from bertflow_lite.models import LoadedModel
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.pretraining.film import make_frame
from bertflow_lite.pretraining.masked_contexts import collect_at, select_contexts
from bertflow_lite.pretraining.masked_probe import compare_neighbors, measure_gain, measure_terms
from bertflow_lite.pretraining.material import Material
from bertflow_lite.similarity import spearman
from bertflow_lite.word_table import BINS, WordEmbeddings, find_neighbors, make_table1

__all__ = [
    "CALIBRATORS",
    "LAYERS",
    "MASKED_SENTENCES",
    "calibrated_scores",
    "different_sentences",
    "measure_snapshot",
    "measure_words",
]

LAYERS = ("last", "last2avg", "first-last")
CALIBRATORS = ("none", "sn", "whiten", "flow")
FLOW_STEPS = 500
"""Fewest training steps of a flow: one epoch of a validation set's sentences has about 90."""

MASKED_SENTENCES = (
    "The capital of [MASK] is Paris.",
    "It is one of the largest cities in the [MASK].",
    "The river flows into the [MASK] sea.",
    "In the second world [MASK], the town was destroyed.",
    "He was born in [MASK] and died in 1954.",
    "The film was directed [MASK] a young woman.",
    "The king and the [MASK] lived in an old castle.",
    "She poured the hot coffee into a [MASK].",
    "The children go to [MASK] by bus.",
    "They [MASK] playing football in the park.",
    "Water freezes when it is very [MASK].",
    "Two plus two is [MASK].",
)
"""What every snapshot completes; the book's own."""

N_GUESSES = 3
N_SPECTRUM = 40
N_TERMS = 300  # contexts whose scores with all pieces are taken apart
MAX_LENGTH = 64


def measure_snapshot(
    folder: Path, material: Material, *, seeds: Sequence[int] = (0,), device: Any = "cpu"
) -> dict[str, Any]:
    """Measure one snapshot.

    Parameters
    ----------
    folder : Path
        A transformers model, `BertForMaskedLM`, with its tokenizer.
    material : Material
        From `material.prepare`.
    seeds : sequence of int, default (0,)
        Of the flows.
    device : str or torch.device, default "cpu"

    Returns
    -------
    dict
        What `round_numbers` makes ready for JSON: ``fingerprint``; ``words`` (`measure_words`);
        ``sentences``, by layer choice (`measure_sentences`); ``sts``, by layer choice and
        calibrator (`calibrated_scores`);
        ``gain``, ``terms`` and ``neighbors`` (`masked_probe`); ``guesses``: for each of
        `MASKED_SENTENCES`, the three best pieces and their probabilities; ``film``: ``words``
        and ``sentences``, each with ``points``, not yet aligned, and ``share``.
    """
    lm = load_language_model(folder, device=device)
    body = LoadedModel(lm.name, lm.model.base_model, lm.tokenizer, lm.fingerprint)
    encoder = Encoder(body, max_length=MAX_LENGTH, cache=False)
    pairs, film = material.pairs, load_sts("mini-sts")
    film_texts = [film.sentences[i] for i in material.film_sentences]
    # One pass for all layer choices and both sets.
    raw = encoder.encode([*pairs.sentences, *film_texts], list(LAYERS))
    of_film = raw["last2avg"][2 * len(pairs) :]
    vectors = {layer: x[: 2 * len(pairs)] for layer, x in raw.items()}
    words = WordEmbeddings.of(encoder, material.words)
    return {
        "fingerprint": lm.fingerprint,
        "words": measure_words(words, material),
        "sentences": measure_sentences(vectors, encoder, material),
        "sts": {
            layer: calibrated_scores(x, pairs, CALIBRATORS, seeds) for layer, x in vectors.items()
        },
        **_probe(lm, material),
        "guesses": [
            [[guess.token, guess.probability] for guess in best]
            for best in fill_mask(lm, MASKED_SENTENCES, k=N_GUESSES)
        ],
        "film": {
            "words": vars(make_frame(words.vectors[words.rows], material.film_words)),
            "sentences": vars(make_frame(of_film)),
        },
    }


def measure_words(words: WordEmbeddings, material: Material) -> dict[str, Any]:
    """Measure the input embeddings of whole words.

    Returns
    -------
    dict
        ``n``; ``table1`` (`make_table1`; bins beyond the last word left out); ``norm`` and its
        ``spearman`` and ``pearson`` with log frequency; ``spearman_distance_rank``, of a word's
        mean distance to its seven nearest neighbors and its frequency rank; and what `_space`
        gives.
    """
    own = words.vectors[words.rows]
    norms = np.linalg.norm(own.astype(np.float64), axis=1)
    log_frequency = np.log(material.word_counts[words.ranks] / material.counts.sum())
    neighbors = find_neighbors(words.vectors, words.rows)
    bins = [bin for bin in BINS if bin[0] < len(material.words)]
    return {
        "n": len(words.words),
        "table1": make_table1(words, neighbors, bins=bins).to_dict(),
        "norm": float(norms.mean()),
        "norm_log_frequency": {
            "spearman": spearman(norms, log_frequency),
            "pearson": float(np.corrcoef(norms, log_frequency)[0, 1]),
        },
        "spearman_distance_rank": spearman(neighbors.distance.mean(axis=1), words.ranks),
        "frequency": frequency_shares(own, log_frequency, n_directions=3).to_dict(),
        **_space(own),
    }


def measure_sentences(
    vectors: dict[str, NDArray[np.float32]], encoder: Encoder, material: Material
) -> dict[str, Any]:
    """Measure the space of the set's different sentences, by layer choice.

    Returns
    -------
    dict of dict
        ``n``; ``norm``; ``frequency`` and ``length``: `frequency_shares` with the mean log
        frequency of a sentence's pieces, and with the log of their number; and what `_space`
        gives.
    """
    rows, texts = different_sentences(material.pairs)
    ids = encoder.tokenizer(
        texts, add_special_tokens=False, truncation=True, max_length=MAX_LENGTH - 2
    )["input_ids"]
    log_frequency = np.array([material.log_p[pieces].mean() for pieces in ids])
    log_length = np.log([len(pieces) for pieces in ids])
    out = {}
    for layer, every in vectors.items():
        x = every[rows]
        out[layer] = {
            "n": len(x),
            "norm": float(np.linalg.norm(x, axis=1).mean()),
            "frequency": frequency_shares(x, log_frequency, n_directions=3).to_dict(),
            "length": frequency_shares(x, log_length, n_directions=3).to_dict(),
            **_space(x),
        }
    return out


def calibrated_scores(
    embeddings: NDArray[np.float32],
    pairs: SentencePairs,
    calibrators: Sequence[str] = CALIBRATORS,
    seeds: Sequence[int] = (0,),
) -> dict[str, list[float]]:
    """Score embeddings on a set, raw and calibrated; Spearman x 100, a list over seeds.

    Calibrators are fitted on the different sentences of the set, without their gold scores.  The
    flow is the paper's preset, trained for 500 steps at least, as in the chapter on anisotropy;
    only it has a seed.

    Parameters
    ----------
    embeddings : ndarray, shape (2 * n_pairs, dim)
        One row for each of ``pairs.sentences``.
    pairs : SentencePairs
    calibrators : sequence of str
        As `make_calibrator` takes them.
    seeds : sequence of int
    """
    rows, _ = different_sentences(pairs)
    out: dict[str, list[float]] = {}
    for name in calibrators:
        out[name] = []
        for seed in seeds if "flow" in name else (0,):
            calibrator: Any = make_calibrator(name, random_state=seed)
            if isinstance(calibrator, FlowCalibrator):
                calibrator.set_params(min_steps=FLOW_STEPS, device="cpu")
            z = embeddings
            if calibrator is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeadDimensionWarning)
                    z = calibrator.fit(embeddings[rows]).transform(embeddings)
            out[name].append(score_sts(pairs, z).all)
    return out


def _probe(lm: LanguageModel, material: Material) -> dict[str, Any]:
    contexts = collect_at(lm, material.held_out, material.places)
    near = collect_at(lm, material.held_out, material.neighbors)
    log_p = material.log_p
    return {
        "gain": measure_gain(lm, contexts, log_p, material.ranks),
        "terms": measure_terms(lm, select_contexts(contexts, N_TERMS), log_p, material.counts),
        "neighbors": compare_neighbors(
            lm, near, material.neighbors.left, material.pairs_of_neighbors, log_p
        ),
    }


def _space(x: NDArray[np.float32]) -> dict[str, Any]:
    """Mean cosine with its interval, effective rank, IsoScore, and at most 40 singular values."""
    cosine, singular = mean_cosine(x), singular_values(x)
    at = np.unique(np.geomspace(1, len(singular), N_SPECTRUM).round().astype(int))
    return {
        "mean_cosine": {"estimate": cosine.estimate, "low": cosine.low, "high": cosine.high},
        "effective_rank": effective_rank(singular),
        "iso_score": iso_score(x),
        "spectrum": {"index": at, "value": singular[at - 1] / singular[0]},
    }


def different_sentences(pairs: SentencePairs) -> tuple[list[int], list[str]]:
    """Row of the first occurrence of each different sentence, and the sentences."""
    first: dict[str, int] = {}
    for row, text in enumerate(pairs.sentences):
        first.setdefault(text, row)
    return list(first.values()), list(first)
