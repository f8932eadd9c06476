"""Everything that the chapter on anisotropy shows about one model, measured in one go.

`run_geometry` gives a dict that JSON can hold; the command line stores it, the chapter and
`figures.geometry` read it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.calibrators.linear import principal_directions
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.datasets.word_counts import WordCounts, load_word_counts, mean_log_frequency
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.geometry.words import measure_words, score_words
from bertflow_lite.experiments.runs import round_numbers
from bertflow_lite.experiments.scoring import calibrated, different_sentences, set_name
from bertflow_lite.experiments.table1 import WordEmbeddings
from bertflow_lite.measures.geometry import (
    effective_rank,
    frequency_shares,
    iso_score,
    mean_cosine,
    partition_score,
    sampled_mean_cosine,
    singular_values,
)
from bertflow_lite.measures.scores import bootstrap_interval, score_sts
from bertflow_lite.measures.similarity import Floats, unit_rows

logger = logging.getLogger(__name__)
CALIBRATORS = ("none", "sn", "natsv:1", "natsv:10", "sn+natsv:6", "whiten", "flow")
LAYERS = ("last2avg", "first-last")
# Flows are fitted on few sentences here; one epoch would be as little as 24 steps.
FLOW_STEPS = 500
N_SPECTRUM = 80
VIEWS = ("none", "whiten", "flow")


def run_geometry(
    model: Encoder | str,
    *,
    sets: Sequence[SentencePairs] | None = None,
    layers: Sequence[str] = LAYERS,
    calibrators: Sequence[str] = CALIBRATORS,
    n_resamples: int = 1000,
    views: bool = True,
    random_state: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """Measure a model's word and sentence spaces (Section 2.2, Table 1, and after).

    Every single layer is measured raw, and the ``layers`` calibrated besides, each calibrator
    fitted on the different sentences of the set (by default `default_sets`). The views of the first
    set's sentences need umap-learn.

    Returns
    -------
    dict
        ``words``: Table 1 and the word space; ``word_similarity``: Spearman with ratings, by
        calibration; ``layers``, ``calibrated``: by set, the measures of `measure_space`;
        ``first_token``: the layers of the first set without each sentence's first token;
        ``views``: coordinates; ``settings``: what they depend on.
    """
    if isinstance(model, str):
        from bertflow_lite.encoders.transformer import load_encoder

        loaded = load_encoder(model)
        if not isinstance(loaded, Encoder):
            raise ValueError(f"{model!r} has no layers to measure; give a transformer.")
        model = loaded
    sets = default_sets() if sets is None else list(sets)
    counts = load_word_counts()
    words = WordEmbeddings.of(model, counts.words)
    out: dict[str, Any] = {
        "words": measure_words(words, counts),
        "word_similarity": score_words(model, words, counts, random_state),
        "layers": {},
        "calibrated": {},
        "settings": {
            "sets": {set_name(pairs): pairs.fingerprint for pairs in sets},
            "n_sentences": {set_name(pairs): len(set(pairs.sentences)) for pairs in sets},
            "flow_steps": FLOW_STEPS,
            "random_state": random_state,
            "word_counts": counts.source,
        },
    }
    out["first_token"] = measure_first_token(model, sets[0]) if sets else []
    for pairs in sets:
        logger.info("sentence space on %s", set_name(pairs))
        every = list(range(model.n_layers + 1))
        raw = model.encode(pairs.sentences, [*every, *layers], progress=progress)
        options: dict[str, Any] = {
            "counts": counts,
            "n_resamples": n_resamples,
            "random_state": random_state,
        }
        out["layers"][set_name(pairs)] = [
            measure_space(raw[str(layer)], pairs, **options) for layer in every
        ]
        out["calibrated"][set_name(pairs)] = {
            layer: {
                name: measure_space(
                    _calibrate(raw[layer], pairs, name, random_state),
                    pairs,
                    spectrum=True,
                    **options,
                )
                for name in calibrators
            }
            for layer in layers
        }
        if views and pairs is sets[0]:
            out["views"] = _make_views(raw[layers[0]], pairs, counts, layers[0], random_state)
    rounded: dict[str, Any] = round_numbers(out)
    return rounded


def default_sets(*, most_pairs: int = 1500) -> list[SentencePairs]:
    """mini-sts, and STS-B's validation pairs where the real data is present."""
    sets = [load_sts("mini-sts")]
    try:
        sts = load_sts("stsb", split="dev")
    except FileNotFoundError:
        logger.info("the real STS-B is not here; mini-sts only")
        return sets
    return [*sets, sts if len(sts) <= most_pairs else sts.select(list(range(most_pairs)))]


def measure_space(
    embeddings: NDArray[np.floating[Any]],
    pairs: SentencePairs,
    *,
    counts: WordCounts,
    n_resamples: int = 1000,
    random_state: int = 0,
    spectrum: bool = False,
) -> dict[str, Any]:
    """Measure the space of a set's sentences, and score it on the set.

    Geometry is measured on the set's different sentences, the score on its pairs.

    ``spectrum`` adds the centered singular values, divided by the largest, at up to 80 indices.

    Returns
    -------
    dict
        ``mean_cosine`` (with ``low``, ``high``) over all pairs, ``sampled_cosine`` over 10,000
        random ones, ``effective_rank`` and ``effective_rank_raw`` (not centered), ``iso_score``,
        ``partition_score`` (rows of unit length), ``frequency`` and ``length``
        (`frequency_shares` with mean log word frequency, and with the log of the number of
        words), ``sts``, ``sts_low``, ``sts_high``, and ``sts_centered``: the score after
        subtracting the mean.
    """
    rows, texts = different_sentences(pairs)
    x = embeddings[rows]
    exact, sampled = mean_cosine(x), sampled_mean_cosine(x, random_state=random_state)
    singular = singular_values(x)
    interval = bootstrap_interval(
        pairs, embeddings, n_resamples=n_resamples, random_state=random_state
    )
    centered = embeddings - x.mean(axis=0)
    n_words = np.array([len(text.split()) for text in texts])
    out = {
        "mean_cosine": {"estimate": exact.estimate, "low": exact.low, "high": exact.high},
        "sampled_cosine": {"estimate": sampled.estimate, "low": sampled.low, "high": sampled.high},
        "effective_rank": effective_rank(singular),
        "effective_rank_raw": effective_rank(singular_values(x, center=False)),
        "iso_score": iso_score(x),
        "partition_score": partition_score(unit_rows(x.astype(np.float64))),
        "mean_norm": float(np.linalg.norm(x, axis=1).mean()),
        "frequency": frequency_shares(
            x, mean_log_frequency(texts, counts), n_directions=5
        ).to_dict(),
        "length": frequency_shares(x, np.log(n_words), n_directions=5).to_dict(),
        "sts": interval.estimate,
        "sts_low": interval.low,
        "sts_high": interval.high,
        "sts_centered": bootstrap_interval(pairs, centered, n_resamples=1).estimate,
    }
    if spectrum:
        at = np.unique(np.geomspace(1, len(singular), N_SPECTRUM).round().astype(int))
        out["spectrum"] = {
            "index": at.tolist(),
            "value": (singular[at - 1] / singular[0]).tolist(),
        }
    return out


def _calibrate(
    embeddings: NDArray[np.floating[Any]], pairs: SentencePairs, name: str, random_state: int
) -> NDArray[np.floating[Any]]:
    """Fit on the different sentences of the set, as the paper's "target" setting does."""
    rows, _ = different_sentences(pairs)
    return calibrated(name, embeddings[rows], embeddings, seed=random_state, min_steps=FLOW_STEPS)


def _make_views(
    embeddings: NDArray[np.floating[Any]],
    pairs: SentencePairs,
    counts: WordCounts,
    layer: str,
    random_state: int,
) -> dict[str, Any]:
    """PCA and UMAP coordinates of a set's different sentences, raw, whitened, after the flow."""
    try:
        from umap import UMAP
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the UMAP views need umap-learn: pip install umap-learn, or pass views=False"
        ) from error
    rows, texts = different_sentences(pairs)
    coordinates: dict[str, Any] = {}
    for name in VIEWS:
        x = _calibrate(embeddings, pairs, name, random_state)[rows]
        mean = x.mean(axis=0, dtype=np.float64)
        _, directions = principal_directions(x, mean)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # UMAP says that a seed makes it use one thread
            umap: Floats = UMAP(metric="cosine", random_state=random_state).fit_transform(x)
        pca = (x - mean) @ directions[:2].T
        coordinates[name] = {
            method: {"x": xy[:, 0].tolist(), "y": xy[:, 1].tolist()}
            for method, xy in (("pca", pca), ("umap", umap))
        }
    return {
        "set": set_name(pairs),
        "layer": layer,
        "row": rows,  # in pairs.sentences; the texts are not stored twice
        "log_frequency": mean_log_frequency(texts, counts).tolist(),
        "coordinates": coordinates,
    }


def encode_without_first(
    encoder: Encoder, sentences: Sequence[str]
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """Mean over all tokens but the first, for every hidden state.

    The encoder's cache is not used. A sentence of one token, special ones included, is an error.

    Returns
    -------
    means : ndarray, shape (n_states, n, dim), float32
        A sentence's mean without its first token.
    first, others : ndarray, shape (n_states,)
        Mean norm of first tokens, and of all others.
    """
    ids = encoder.tokenizer(list(sentences), truncation=True, max_length=encoder.max_length)
    lengths = np.array([len(tokens) for tokens in ids["input_ids"]])
    if lengths.min() < 2:
        raise ValueError(f"sentence {int(lengths.argmin())} has fewer than two tokens.")
    n_states = encoder.n_layers + 1
    means = np.empty((n_states, len(lengths), encoder.dim), dtype=np.float32)
    first, others = np.zeros((2, n_states))
    for batch in encoder.hidden_states(sentences):
        rest = batch.mask.float().cpu()
        rest[:, 0] = 0
        for layer, state in enumerate(batch.states):
            state = state.float().cpu()
            norms = state.norm(dim=2)
            first[layer] += float(norms[:, 0].sum())
            others[layer] += float((norms * rest).sum())
            total = (state * rest.unsqueeze(2)).sum(dim=1)
            means[layer, batch.rows] = (total / rest.sum(dim=1, keepdim=True)).numpy()
    return means, first / len(lengths), others / (lengths - 1).sum()


def measure_first_token(encoder: Encoder, pairs: SentencePairs) -> list[dict[str, Any]]:
    """Measure every layer without the first token of each sentence.

    Returns
    -------
    list of dict
        For each layer: ``first_norm`` and ``other_norm``, the mean norm of first tokens and of
        all others; ``mean_cosine`` and ``sts`` (Spearman x 100) of means without first tokens.
    """
    texts = list(dict.fromkeys(pairs.sentences))
    row_of = {text: row for row, text in enumerate(texts)}
    rows = [row_of[text] for text in pairs.sentences]
    means, first, others = encode_without_first(encoder, texts)
    return [
        {
            "first_norm": float(first[layer]),
            "other_norm": float(others[layer]),
            "mean_cosine": mean_cosine(x).estimate,
            "sts": score_sts(pairs, x[rows]).all,
        }
        for layer, x in enumerate(means)
    ]
