"""What is measured of the snapshots of a small BERT: words, sentences, STS, guesses, pictures.

`prepare` gathers what is the same for all snapshots of a run, `measure_snapshot` takes one model
folder, and `measure_run` all of a run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import orthogonal_procrustes
from tqdm import tqdm
from transformers import AutoTokenizer

from bertflow_lite.calibrators.linear import principal_directions
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import OWN_SETS, load_sts
from bertflow_lite.devices import find_device
from bertflow_lite.encoders.language_model import LanguageModel, fill_mask, load_language_model
from bertflow_lite.encoders.models import LoadedModel
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.controls.overlap import word_overlap
from bertflow_lite.experiments.controls.words import WordCountEncoder
from bertflow_lite.experiments.geometry import describe_space, frequency_shares
from bertflow_lite.experiments.pretraining.corpus import PackedCorpus, open_corpus
from bertflow_lite.experiments.pretraining.loop import Training, fingerprint_folder, read_training
from bertflow_lite.experiments.pretraining.probe import (
    NeighborPairs,
    Places,
    collect_at,
    compare_neighbors,
    count_right_neighbors,
    draw_places,
    frequent_pairs,
    measure_gain,
    measure_terms,
    neighbor_places,
    select_contexts,
)
from bertflow_lite.experiments.pretraining.recipe import unigram_log_p
from bertflow_lite.experiments.runs import KeptResults, provenance, round_numbers, store_run
from bertflow_lite.experiments.scoring import calibrated, different_sentences, set_name
from bertflow_lite.experiments.spelling import lexical_similarities
from bertflow_lite.experiments.table1 import BINS, WordEmbeddings, find_neighbors, make_table1
from bertflow_lite.measures.scores import score_similarities, score_sts
from bertflow_lite.measures.similarity import spearman
from bertflow_lite.text import split_words

logger = logging.getLogger(__name__)
Floats = NDArray[np.float64]
FORMAT = 1
"""Part of the key of kept results: another meaning of a number must not read old ones."""
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
N_WORDS = 10_000
N_CONTEXTS = 1200
N_LEFT, CONTEXTS_OF_LEFT = 200, 6
FILM_WORDS, FILM_PAIRS = 300, 75


@dataclass(frozen=True)
class Material:
    """What all snapshots of a run are measured on."""

    counts: NDArray[np.int64]  # of the pieces of the corpus; shape (vocabulary,)
    log_p: NDArray[np.float64]  # their log frequency (`unigram_log_p`); shape (vocabulary,)
    ranks: NDArray[np.intp]  # their frequency rank, marks last; shape (vocabulary,)
    # Whole words of one piece that occur, most frequent first, up to 10,000. Their rank is that
    # among such words: words of several pieces have no count here. The count is the piece's, also
    # where it begins a longer word ("play" in "play ##wright").
    words: tuple[str, ...]
    word_counts: NDArray[np.int64]  # shape (n_words,)
    held_out: NDArray[np.int64]  # rows that were not trained on; shape (n_rows, length)
    # Where masks are put: anywhere, and right of frequent words.
    places: Places
    neighbors: Places
    pairs_of_neighbors: NeighborPairs  # of the training rows
    pairs: SentencePairs  # the STS set
    # Rows of ``words`` in the film: words of three letters or more that mini-sts uses too, so that
    # they are fit for a book, spread over the frequency ranks.
    film_words: NDArray[np.intp]
    # Rows of mini-sts's ``sentences`` in the film; both sentences of a pair.
    film_sentences: NDArray[np.intp]


def prepare(
    corpus: PackedCorpus, tokenizer: Any, pairs: SentencePairs, *, least_pairs: int = 20
) -> Material:
    """Gather what the snapshots of a run are measured on.

    The corpus and the tokenizer are those of the run; ``least_pairs`` is the smallest count of two
    neighbors that are compared.
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
    rows = np.asarray(corpus.rows[len(corpus.rows) - corpus.n_held_out :], dtype=np.int64)
    left = ids[:N_LEFT]
    trained = corpus.rows[: len(corpus.rows) - corpus.n_held_out]
    found = count_right_neighbors(trained, left, len(corpus.counts), marks)
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
        places=draw_places(rows, marks, N_CONTEXTS),
        neighbors=neighbor_places(rows, left, marks, CONTEXTS_OF_LEFT),
        pairs_of_neighbors=frequent_pairs(found, log_p, least=least_pairs),
        pairs=pairs,
        film_words=shown[spread_over(len(shown), FILM_WORDS)].astype(np.intp),
        film_sentences=np.concatenate([of_pair, of_pair + len(film)]),
    )


def measure_snapshot(
    folder: Path, material: Material, *, seeds: Sequence[int] = (0,), device: Any = "cpu"
) -> dict[str, Any]:
    """Measure one snapshot.

    The folder holds a `BertForMaskedLM` with its tokenizer; the seeds are the flows'.

    Gives what `round_numbers` makes ready for JSON: ``fingerprint``; ``words`` (`measure_words`);
    ``sentences``, by layer choice (`measure_sentences`); ``sts``, by layer choice and calibrator
    (`calibrated_scores`); ``gain``, ``terms`` and ``neighbors`` (`probe`); ``guesses``: for each of
    `MASKED_SENTENCES`, the three best pieces and their probabilities; ``film``: ``words`` and
    ``sentences``, each with ``points``, not yet aligned, and ``share``.
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
            "words": make_frame(words.vectors[words.rows], material.film_words),
            "sentences": make_frame(of_film),
        },
    }


def measure_words(words: WordEmbeddings, material: Material) -> dict[str, Any]:
    """Measure the input embeddings of whole words.

    Gives ``n``; ``table1`` (`make_table1`; bins beyond the last word left out); ``norm`` and its
    ``spearman`` and ``pearson`` with log frequency; ``spearman_distance_rank``, of a word's mean
    distance to its seven nearest neighbors and its frequency rank; and what
    `describe_space` gives.
    """
    own = words.vectors[words.rows]
    norms = np.linalg.norm(own.astype(np.float64), axis=1)
    log_frequency = np.log(material.word_counts[words.ranks] / material.counts.sum())
    neighbors = find_neighbors(words.vectors, words.rows)
    bins = [bin for bin in BINS if bin[0] < len(material.words)]
    return {
        "n": len(words.words),
        "table1": make_table1(words, neighbors, bins=bins),
        "norm": float(norms.mean()),
        "norm_log_frequency": {
            "spearman": spearman(norms, log_frequency),
            "pearson": float(np.corrcoef(norms, log_frequency)[0, 1]),
        },
        "spearman_distance_rank": spearman(neighbors.distance.mean(axis=1), words.ranks),
        "frequency": frequency_shares(own, log_frequency, n_directions=3),
        **describe_space(own, N_SPECTRUM),
    }


def measure_sentences(
    vectors: dict[str, NDArray[np.float32]], encoder: Encoder, material: Material
) -> dict[str, Any]:
    """Measure the space of the set's different sentences, by layer choice.

    Gives ``n``; ``norm``; ``frequency`` and ``length``: `frequency_shares` with the mean log
    frequency of a sentence's pieces, and with the log of their number; and what
    `describe_space` gives.
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
            "frequency": frequency_shares(x, log_frequency, n_directions=3),
            "length": frequency_shares(x, log_length, n_directions=3),
            **describe_space(x, N_SPECTRUM),
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
    """
    rows, _ = different_sentences(pairs)
    how: dict[str, Any] = {"min_steps": FLOW_STEPS, "device": "cpu"}
    out: dict[str, list[float]] = {}
    for name in calibrators:
        out[name] = []
        for seed in seeds if "flow" in name else (0,):
            z = calibrated(name, embeddings[rows], embeddings, seed=seed, **how)
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


def make_frame(
    x: ArrayLike, shown: Sequence[int] | NDArray[np.intp] | None = None
) -> dict[str, Floats]:
    """Project a cloud onto its two strongest principal directions: a flat picture.

    Directions and mean are those of all points, shape (n >= 2, dim >= 2); ``shown`` are the rows
    whose coordinates are wanted (default: all).

    Gives ``points``, shape (n, 2), the mean at the origin, and ``share``, shape (2,), of the
    cloud's variance along each of the two.
    """
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or min(rows.shape) < 2:
        raise ValueError(f"the points have shape {rows.shape}; a picture needs two of each.")
    mean = rows.mean(axis=0)
    variances, directions = principal_directions(rows, mean)
    if not variances[0] > 0:
        raise ValueError("all points are equal: there is nothing to see.")
    chosen = rows if shown is None else rows[np.asarray(shown)]
    share = (variances[:2] / variances.sum()).clip(0)
    return {"points": (chosen - mean) @ directions[:2].T, "share": share}


def align_frames(frames: Sequence[ArrayLike]) -> list[Floats]:
    """Turn and mirror each frame towards the next, from the last one backward.

    Frames are of shape (n, 2), row i of each the same point. Distances within a frame, and from the
    origin, stay; so does the last frame.

    Examples
    --------
    >>> square = np.array([[1.0, 0.0], [0.0, 2.0]])
    >>> turned = square @ np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> bool(np.allclose(align_frames([turned, square])[0], square))
    True
    """
    out = [np.asarray(frame, dtype=np.float64) for frame in frames]
    for i in range(len(out) - 2, -1, -1):
        turn, _ = orthogonal_procrustes(out[i], out[i + 1])
        out[i] = out[i] @ turn
    return out


def spread_over(n: int, wanted: int) -> NDArray[np.intp]:
    """Choose positions out of ``n``, dense at first and then ever sparser, as on a log scale.

    At most ``wanted`` of them, rising, with the first and the last position.

    Examples
    --------
    >>> spread_over(100, 8)
    array([ 0,  1,  3,  6, 13, 26, 51, 99])
    >>> spread_over(3, 5)
    array([0, 1, 2])
    """
    if n <= wanted:
        return np.arange(n)
    tries = wanted
    while True:  # near the start several fall on one position: ask for more until enough differ
        found = np.unique(np.geomspace(1, n, tries).round().astype(np.intp)) - 1
        if len(found) >= wanted:
            keep = np.linspace(0, len(found) - 1, wanted).round().astype(np.intp)
            return np.asarray(found[keep])
        tries += max(1, wanted // 20)


def load_validation_pairs(name: str, *, download: bool = False) -> SentencePairs:
    """Load a set's validation pairs; mini-sts where a real set is not on this machine."""
    if name in OWN_SETS:
        return load_sts(name)
    try:
        return load_sts(name, "dev", download=download)
    except FileNotFoundError as error:
        logger.warning("scoring on mini-sts instead: %s", error)
        return load_sts("mini-sts")


def measure_run(
    training: Training,
    corpus: PackedCorpus,
    tokenizer: Any,
    pairs: SentencePairs,
    *,
    seeds: int = 3,
    least_pairs: int = 20,
    resume: bool = True,
    device: Any = "cpu",
    progress: bool = False,
) -> dict[str, Any]:
    """Measure every snapshot of a run.

    Each snapshot's numbers are kept in the cache, by its weights, so that an interrupted call, or
    one while the training still goes on, has to measure only what is new.

    Flows are fitted with so many seeds at the first and the last snapshot, which say how noisy one
    flow is; elsewhere with one.

    Gives ``training``, ``corpus``, ``settings``; ``baselines``: scores without any training;
    ``snapshots``: a list, see `measure_snapshot`, with ``step``, ``tokens``, ``training_loss``,
    ``held_out_loss`` and ``seconds``; ``film``: frames by snapshot, aligned (`align_frames`).
    """
    if training.settings["corpus"] != corpus.fingerprint:
        raise ValueError(
            "the run was trained on another text, or with other rows, than the corpus that is "
            "given: give the one of `pretrain --corpus`."
        )
    material = prepare(corpus, tokenizer, pairs, least_pairs=least_pairs)
    settings = {
        "layers": list(LAYERS),
        "calibrators": list(CALIBRATORS),
        "flow": {"preset": "paper", "min_steps": FLOW_STEPS, "fitted_on": "sentences of the set"},
        "set": set_name(pairs),
        "n_pairs": len(pairs),
        "n_sentences": len(set(pairs.sentences)),
        "least_pairs": least_pairs,
        "n_contexts": len(material.places),
        "n_neighbor_contexts": len(material.neighbors),
        "masked_sentences": list(MASKED_SENTENCES),
    }
    key = {
        **settings, "format": FORMAT, "version": version("bertflow-lite"),
        "corpus": corpus.fingerprint, "data": pairs.fingerprint,
    }  # fmt: skip
    kept = KeptResults("pretraining", key)
    if not resume:
        kept.remove()
    steps = list(training.snapshots)
    measured = []
    for step in tqdm(steps, desc="snapshots", disable=not progress):
        folder = training.snapshots[step]
        n = seeds if step in (steps[0], steps[-1]) else 1

        def compute(folder: Path = folder, n: int = n) -> Any:
            began = time.perf_counter()
            found = measure_snapshot(folder, material, seeds=range(n), device=device)
            return round_numbers({**found, "seconds": time.perf_counter() - began})

        measured.append(kept(f"{fingerprint_folder(folder)}/{n}", compute))
    film = _make_film(measured, material)
    width = int(training.settings["recipe"]["width"])
    loss = {int(entry[0]): entry for entry in training.loss}
    names = ("step", "tokens", "training_loss", "held_out_loss")
    snapshots = [
        dict(zip(names, loss[step], strict=True))
        | {name: part for name, part in found.items() if name != "film"}
        for step, found in zip(steps, measured, strict=True)
    ]
    out: dict[str, Any] = round_numbers(
        {
            "training": training.to_dict(),
            "corpus": {
                "n_tokens": corpus.n_tokens,
                "n_rows": len(corpus.rows),
                "held_out_rows": corpus.n_held_out,
                "n_words": len(material.words),
            },
            "settings": settings,
            "baselines": kept(f"baselines/{width}", lambda: _baselines(pairs, tokenizer, width)),
            "snapshots": snapshots,
        }
    )
    return {**out, "film": film}


def measure_folder(
    run: Path,
    corpus: str | Path,
    *,
    name: str = "mini-bert",
    data: str = "stsb",
    partial: bool = False,
    seeds: int = 3,
    device: str | None = None,
    download: bool = False,
    progress: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Measure the run in a folder (`measure_run`), and store the results.

    ``data`` is the set whose validation pairs are scored; the rest is as in `measure_run`,
    `read_training` and `open_corpus`.
    """
    training = read_training(run, partial=partial)
    pairs = load_validation_pairs(data, download=download)
    last = list(training.snapshots.values())[-1]
    tokenizer = AutoTokenizer.from_pretrained(last, local_files_only=True, trust_remote_code=False)
    length = int(training.settings["recipe"]["length"])
    text = open_corpus(corpus, tokenizer, length, download=download, progress=progress)
    place = find_device(device)
    results = measure_run(
        training, text, tokenizer, pairs, seeds=seeds, device=place, progress=progress, **options
    )
    how = provenance(
        model=name,
        fingerprint=results["snapshots"][-1]["fingerprint"],
        seed=list(range(seeds)),
        device=str(place),
        corpus=text.fingerprint,
        weights=fingerprint_folder(last),
        data={pairs.name: pairs.fingerprint},
        max_length=MAX_LENGTH,
    )
    store_run("pretraining", name, how, results)
    return results


def _baselines(pairs: SentencePairs, tokenizer: Any, width: int) -> dict[str, Any]:
    """Scores (Spearman x 100) of what has learned nothing."""
    lexical = lexical_similarities(pairs)
    lexical["word overlap"] = word_overlap(pairs.sentences1, pairs.sentences2)
    out: dict[str, Any] = {name: score_similarities(pairs, x).all for name, x in lexical.items()}
    bag = WordCountEncoder("count", "random", width, tokenize=tokenizer.tokenize)
    vectors = bag.fit(list(dict.fromkeys(pairs.sentences))).encode(pairs.sentences)
    # One random vector for each piece, and their mean: a BERT's sentence vector before attention
    # and training.
    out["random vectors of pieces"] = calibrated_scores(vectors, pairs)
    rounded: dict[str, Any] = round_numbers(out)
    return rounded


def _make_film(measured: Sequence[dict[str, Any]], material: Material) -> dict[str, Any]:
    """Frames of words and sentences, each turned towards the next; three digits."""
    labels: dict[str, dict[str, Any]] = {
        "words": {
            "word": [material.words[i] for i in material.film_words],
            "rank": material.film_words,
            "count": material.word_counts[material.film_words],
        },
        "sentences": {"set": "mini-sts", "layers": "last2avg", "row": material.film_sentences},
    }
    for name, part in labels.items():
        frames = align_frames([np.array(one["film"][name]["points"]) for one in measured])
        part["x"] = [frame[:, 0] for frame in frames]
        part["y"] = [frame[:, 1] for frame in frames]
        part["share"] = [one["film"][name]["share"] for one in measured]
    rounded: dict[str, Any] = round_numbers(labels, 3)
    return rounded
