"""Everything that the chapter on anisotropy shows about one model, measured in one go.

Its spaces of words (with Table 1 and the rating of word pairs) and of sentences, layer by layer.
`run_geometry` gives a dict that JSON can hold; the command line stores it, the chapter and
`figures.geometry` read it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertflow_lite.calibrators.base import RELATIVE_VARIANCE
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import Standardizer, TopDirectionRemover, principal_directions
from bertflow_lite.datasets.gensim_sets import WORD_SETS, WordPairs, load_word_pairs
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.datasets.word_counts import (
    WORD,
    WordCounts,
    load_word_counts,
    mean_log_frequency,
)
from bertflow_lite.encoders.models import LoadedModel
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.runs import round_numbers
from bertflow_lite.experiments.scoring import calibrated, different_sentences, set_name
from bertflow_lite.experiments.table1 import (
    BINS,
    WordEmbeddings,
    find_neighbors,
    make_table1,
)
from bertflow_lite.measures.geometry import (
    effective_rank,
    iso_score,
    mean_cosine,
    partition_score,
    singular_values,
)
from bertflow_lite.measures.scores import bootstrap_interval, score_sts
from bertflow_lite.measures.similarity import (
    Floats,
    as_rows,
    as_values,
    cosine,
    spearman,
    unit_rows,
)

logger = logging.getLogger(__name__)
CALIBRATORS = ("none", "sn", "natsv:1", "natsv:10", "sn+natsv:6", "whiten", "flow")
LAYERS = ("last2avg", "first-last")
# Flows are fitted on few sentences here; one epoch would be as little as 24 steps.
FLOW_STEPS = 500
N_SPECTRUM = 80
N_SHOWN_WORDS = 1000


def run_geometry(
    model: Encoder,
    *,
    sets: Sequence[SentencePairs] | None = None,
    layers: Sequence[str] = LAYERS,
    calibrators: Sequence[str] = CALIBRATORS,
    n_resamples: int = 1000,
    random_state: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """Measure a model's word and sentence spaces (Section 2.2, Table 1, and after).

    Every single layer is measured raw, and the ``layers`` calibrated besides, each calibrator
    fitted on the different sentences of the set (by default `default_sets`).

    Gives ``words``: Table 1 and the word space; ``word_similarity``: Spearman with ratings, by
    calibration; ``layers``, ``calibrated``: by set, the measures of `measure_space`;
    ``first_token``: the layers of the first set without each sentence's first token;
    ``settings``: what they depend on.
    """
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
    rounded: dict[str, Any] = round_numbers(out)
    return rounded


def default_sets() -> list[SentencePairs]:
    """mini-sts, and STS-B's validation pairs where the real data is present."""
    sets = [load_sts("mini-sts")]
    try:
        sts = load_sts("stsb", split="dev")
    except FileNotFoundError:
        logger.info("the real STS-B is not here; mini-sts only")
        return sets
    return [*sets, sts]


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

    Gives what `describe_space` gives, ``partition_score`` (rows of unit length), ``frequency`` and
    ``length`` (`frequency_shares` with mean log word frequency, and with the log of the number of
    words), ``sts``, ``sts_low`` and ``sts_high``.
    """
    rows, texts = different_sentences(pairs)
    x = embeddings[rows]
    space = describe_space(x, N_SPECTRUM)
    interval = bootstrap_interval(
        pairs, embeddings, n_resamples=n_resamples, random_state=random_state
    )
    n_words = np.array([len(text.split()) for text in texts])
    out = {
        "partition_score": partition_score(unit_rows(x.astype(np.float64))),
        "frequency": frequency_shares(x, mean_log_frequency(texts, counts), n_directions=5),
        "length": frequency_shares(x, np.log(n_words), n_directions=5),
        "sts": interval.estimate,
        "sts_low": interval.low,
        "sts_high": interval.high,
    }
    if not spectrum:
        del space["spectrum"]
    return space | out


def describe_space(x: NDArray[np.floating[Any]], most: int) -> dict[str, Any]:
    """Mean cosine with its interval, effective rank, IsoScore, and at most so many singular values.

    The singular values are divided by the largest, at indices even on a log scale.
    """
    cosine, singular = mean_cosine(x), singular_values(x)
    at = np.unique(np.geomspace(1, len(singular), most).round().astype(int))
    return {
        "mean_cosine": {"estimate": cosine.estimate, "low": cosine.low, "high": cosine.high},
        "effective_rank": effective_rank(singular),
        "iso_score": iso_score(x),
        "spectrum": {"index": at.tolist(), "value": (singular[at - 1] / singular[0]).tolist()},
    }


def frequency_shares(
    x: ArrayLike, log_frequency: ArrayLike, *, n_directions: int = 10
) -> dict[str, Any]:
    """Share of variance that log frequency explains, in the top directions and in all (3.1).

    Each principal coordinate is regressed on log frequency (for sentences: the mean over their
    words).  Any other number for each row, of which there are three at least, can stand in for it,
    as a control.  Expect 1 / (n - 1) by chance.

    Gives ``variance``, the share of the total variance along each of the top directions, strongest
    first; ``explained``, the share of that variance that log frequency explains: its squared
    correlation with the coordinate; ``top`` and ``all``, the same over the top directions together,
    and over all.

    Examples
    --------
    The first direction is the frequency itself, the second has nothing of it:

    >>> found = frequency_shares([[4.0, 0.0], [0.0, 1.0], [0.0, -1.0], [-4.0, 0.0]], [2, 1, 1, 0])
    >>> [round(share, 6) for share in found["explained"]], round(found["all"], 3)
    ([1.0, 0.0], 0.941)
    """
    rows, f = as_rows(x, "x"), as_values(log_frequency, "log_frequency")
    if len(f) != len(rows):
        raise ValueError(f"There are {len(rows)} embeddings, but {len(f)} frequencies.")
    if f.min() == f.max() or bool((rows == rows[0]).all()):
        raise ValueError("All frequencies or all embeddings are the same: nothing to explain.")
    variances, directions = principal_directions(rows, rows.mean(axis=0))
    variances = variances.clip(0.0)  # rounding can lead just below 0
    f = f - f.mean()  # so that centering the rows as well changes nothing
    covariance = directions @ (rows.T @ f) / len(f)
    explained = covariance**2 / (f @ f / len(f))  # variance along each direction, explained by f
    k = slice(min(n_directions, len(variances)))
    # A direction without variance has nothing to explain; rounding would make up something.
    some = variances > 1e-12 * variances[0]
    shares = np.where(some, explained / np.where(some, variances, 1.0), 0.0)
    return {
        "variance": (variances[k] / variances.sum()).tolist(),
        "explained": shares[k].tolist(),
        "top": float(explained[k].sum() / variances[k].sum()),
        "all": float(explained.sum() / variances.sum()),
    }


def _calibrate(
    embeddings: NDArray[np.floating[Any]], pairs: SentencePairs, name: str, random_state: int
) -> NDArray[np.floating[Any]]:
    """Fit on the different sentences of the set, as the paper's "target" setting does."""
    rows, _ = different_sentences(pairs)
    return calibrated(name, embeddings[rows], embeddings, seed=random_state, min_steps=FLOW_STEPS)


def encode_without_first(
    encoder: Encoder, sentences: Sequence[str]
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """Mean over all tokens but the first, for every hidden state.

    The encoder's cache is not used. A sentence of one token, special ones included, is an error.

    Gives the means, shape (n_states, n, dim), and for each state the mean norm of first tokens, and
    of all others.
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

    Gives, for each layer: ``first_norm`` and ``other_norm``, the mean norm of first tokens and of
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


def measure_words(words: WordEmbeddings, counts: WordCounts) -> dict[str, Any]:
    """Measure Table 1, by our ranks and by wordfreq's, and the word space around it."""
    measured = words.up_to(BINS[-1][1])
    neighbors = find_neighbors(words.vectors, words.rows)
    n = len(measured.words)
    first = type(neighbors)(*(values[:n] for values in vars(neighbors).values()))
    other = {word: rank for rank, word in enumerate(wordfreq_words(50_000))}
    by_wordfreq = np.array([other.get(word, len(other)) for word in words.words], dtype=np.intp)
    own = words.vectors[words.rows]
    norms = np.linalg.norm(own, axis=1)
    f = counts.log_frequency(words.words)
    mean = own.mean(axis=0, dtype=np.float64)
    _, directions = principal_directions(own, mean)
    plane = (own - mean) @ directions[:2].T
    shown = np.unique(np.geomspace(1, len(words.words), N_SHOWN_WORDS).round().astype(int)) - 1
    return {
        "n_left_out": words.n_left_out,
        "n_words": len(words.words),
        "dim": int(own.shape[1]),
        "table1": make_table1(measured, first),
        "table1_wordfreq": make_table1(words, neighbors, ranks=by_wordfreq),
        "space": {
            **describe_space(own, N_SPECTRUM),
            "partition_score": partition_score(own),
            "frequency": frequency_shares(own, f),
        },
        "shown": {
            "word": [words.words[i] for i in shown],
            "rank": words.ranks[shown].tolist(),
            "norm": norms[shown].tolist(),
            "distance": neighbors.distance[shown].mean(axis=1).tolist(),
            "dot": neighbors.dot[shown].mean(axis=1).tolist(),
            "neighbors": [
                " ".join(words.tokens[row] for row in neighbors.by_distance[i, :3]) for i in shown
            ],
            "pca": {"x": plane[shown, 0].tolist(), "y": plane[shown, 1].tolist()},
        },
    }


def wordfreq_words(n: int) -> list[str]:
    """Give the `n` most frequent English words of the wordfreq package, numbers left out.

    wordfreq mixes books, subtitles, news, web, Reddit, Twitter and Wikipedia: a second opinion on
    what is frequent (Table 1 takes Wikipedia's).
    """
    try:
        from wordfreq import top_n_list
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "wordfreq's ranks need the package wordfreq: pip install wordfreq"
        ) from error
    return [word for word in top_n_list("en", 2 * n) if WORD.fullmatch(word)][:n]


def score_words(
    model: Encoder, words: WordEmbeddings, counts: WordCounts, random_state: int
) -> dict[str, Any]:
    """Spearman with ratings by calibration; everything is fitted on the words of one token."""
    fit_on = words.vectors[words.rows].astype(np.float64)
    n = np.array([counts.counts[counts.rank[word]] for word in words.words], dtype=np.float64)
    f = counts.log_frequency(words.words)
    uniform, zipf = WeightedWhitening(fit_on), WeightedWhitening(fit_on, n)
    # As many directions as Mu and Viswanath null for word vectors: about dim / 100.
    nulled = TopDirectionRemover(max(1, fit_on.shape[1] // 100)).fit(fit_on)
    standard = Standardizer().fit(fit_on)
    flow = FlowCalibrator.from_preset("paper", random_state=random_state)
    flow.fit(fit_on.astype(np.float32))
    methods: dict[str, Any] = {
        "none": lambda x: x,
        "centered": lambda x: x - uniform.mean,
        "zipf-centered": lambda x: x - zipf.mean,
        "no frequency direction": lambda x: remove_frequency(fit_on, f, x),
        "sn": standard.transform,
        f"natsv:{nulled.k}": nulled.transform,
        "whiten": uniform.transform,
        "zipf-whiten": zipf.transform,
        "flow": lambda x: flow.transform(x.astype(np.float32)),
    }
    out: dict[str, Any] = {"fitted_on": len(fit_on), "sets": {}}
    for name in WORD_SETS:
        pairs = load_word_pairs(name)
        first, tokens1 = embed_words(model, pairs.words1)
        second, tokens2 = embed_words(model, pairs.words2)
        single = (tokens1 == 1) & (tokens2 == 1)
        scores = {}
        for method, apply in methods.items():
            a, b = apply(first.astype(np.float64)), apply(second.astype(np.float64))
            part = type(pairs)(name, (), (), pairs.ratings[single])
            scores[method] = {
                "all": score_word_pairs(pairs, a, b),
                "one_token": score_word_pairs(part, a[single], b[single]),
            }
        out["sets"][name] = {
            "n_pairs": len(pairs),
            "n_one_token": int(single.sum()),
            "scores": scores,
        }
    return out


def embed_words(
    encoder: Encoder | LoadedModel, words: tuple[str, ...] | list[str]
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Input embeddings of words, with a space before them as within a sentence.

    The tokenizer lower-cases them where it does so with sentences; a word without a token is an
    error.

    A word of several tokens gets the mean of their embeddings; besides comes the number of tokens
    of each.
    """
    matrix = encoder.model.get_input_embeddings().weight.detach().float().cpu().numpy()
    ids = encoder.tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    for word, pieces in zip(words, ids, strict=True):
        if not pieces:
            raise ValueError(f"The tokenizer makes no token of {word!r}.")
    vectors = np.stack([matrix[pieces].mean(axis=0) for pieces in ids])
    return vectors, np.array([len(pieces) for pieces in ids], dtype=np.intp)


def score_word_pairs(pairs: WordPairs, vectors1: ArrayLike, vectors2: ArrayLike) -> float:
    """Spearman x 100 of the cosine of each pair's vectors, shapes (n_pairs, dim), with ratings."""
    return 100 * spearman(cosine(vectors1, vectors2), pairs.ratings)


class WeightedWhitening:
    """Whitening under weights; word frequencies as weights make it Zipfian (Yokoi et al. 2024).

    Subtract the weighted ``mean``, then multiply by ``matrix``: it scales the principal directions
    of the weighted covariance to variance 1, those without variance left out.  Uniform weights
    treat all words alike, so that the tens of thousands of rare ones set the mean and the
    directions; frequencies treat all *occurrences* alike.

    Weights are at least 0, such as word counts; their scale does not matter, and by default they
    are uniform.
    """

    def __init__(self, vectors: ArrayLike, weights: ArrayLike | None = None) -> None:
        rows = as_rows(vectors, "the vectors")
        w = np.ones(len(rows)) if weights is None else as_values(weights, "weights")
        if len(w) != len(rows):
            raise ValueError(f"There are {len(rows)} vectors, but {len(w)} weights.")
        if not len(w) or w.min() < 0 or w.sum() == 0:
            raise ValueError("Weights must be at least 0, and one must be above 0.")
        w = w / w.sum()
        self.mean: Floats = w @ rows
        centered = rows - self.mean
        variances, directions = np.linalg.eigh((centered.T * w) @ centered)
        kept = variances > RELATIVE_VARIANCE * variances[-1]
        if variances[-1] <= 0:
            raise ValueError(f"All {len(rows)} vectors are equal: there is no variance to whiten.")
        self.matrix: Floats = directions[:, kept] / np.sqrt(variances[kept])

    def transform(self, vectors: ArrayLike) -> Floats:
        """Whiten vectors, shape (n, dim) -> (n, n_kept)."""
        return np.asarray((as_rows(vectors, "the vectors") - self.mean) @ self.matrix)


def remove_frequency(
    fit_on: NDArray[np.floating[Any]], log_frequency: ArrayLike, vectors: ArrayLike
) -> Floats:
    """Center vectors and null the one direction along which they move with log frequency.

    Mean and direction are those of the words ``fit_on``: the direction of the regression of the
    embedding on log frequency, that is, the covariance of each dimension with it.
    """
    rows, f = as_rows(fit_on, "fit_on"), as_values(log_frequency, "log_frequency")
    mean = rows.mean(axis=0)
    direction = (rows - mean).T @ (f - f.mean())
    length = np.linalg.norm(direction)
    if length == 0:
        raise ValueError("No dimension goes with log frequency: there is no direction to remove.")
    direction /= length
    centered = as_rows(vectors, "the vectors") - mean
    return np.asarray(centered - np.outer(centered @ direction, direction))
