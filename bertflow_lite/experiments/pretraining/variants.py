"""Short runs that compare: recipes with each other, and the recipe with one thing changed.

What does each change of the recipe do (`LADDER`, `ASIDES`)?  And what bends the space of words?
Each of `VARIANTS` takes away one suspect.  They start from the same seed and go through the same
steps with the same rates as the first part of a long run, so a difference comes from the change.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm.auto import tqdm

from bertflow_lite.devices import find_device
from bertflow_lite.encoders.language_model import load_language_model
from bertflow_lite.encoders.models import LoadedModel, load_model
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.pretraining.corpus import PackedCorpus, open_corpus, row_lengths
from bertflow_lite.experiments.pretraining.loop import TrainingRun, choose_bf16, save_model
from bertflow_lite.experiments.pretraining.probe import collect_at, measure_terms, select_contexts
from bertflow_lite.experiments.pretraining.recipe import Recipe, find_recipe, unigram_log_p
from bertflow_lite.experiments.pretraining.snapshots import (
    N_TERMS,
    Material,
    calibrated_scores,
    load_validation_pairs,
    measure_words,
    prepare,
)
from bertflow_lite.experiments.runs import KeptResults, provenance, round_numbers, store_run
from bertflow_lite.experiments.scoring import different_sentences, set_name
from bertflow_lite.experiments.table1 import WordEmbeddings
from bertflow_lite.measures.geometry import mean_cosine
from bertflow_lite.measures.similarity import spearman

T = TypeVar("T")
STEPS = (0, 10, 30, 50, 70, 100, 200, 300, 500)
"""Where a variant is measured."""
OF_TOKENS = 6e7
"""Length of the run whose first part a variant is: the rate falls as it does there."""
EACH = 100
"""Occurrences of each piece where all are equally frequent."""
# Of what `compare_recipes` and `train_variant` give: kept results of another one are not used.
COMPARE_FORMAT, FORMAT = 1, 2


@dataclass(frozen=True)
class Variant:
    """One thing that is changed."""

    # What is changed, and what it asks.
    name: str
    why: str
    changes: dict[str, Any] = field(default_factory=dict)  # fields of `Recipe`
    # Whole: the corpus; thinned: as much of it as is left where all words are equally frequent,
    # drawn at random; equal: that text itself (`thin_corpus`); running: rows of running text, cut
    # wherever a row is full.
    text: str = "whole"


def short_run(
    run: TrainingRun,
    points: Sequence[float],
    unit: Literal["step", "tokens"],
    measure: Callable[[], T],
    *,
    share: Callable[[], float],
    name: str,
    progress: bool,
) -> tuple[list[T], float]:
    """Train to some points, and measure at each of them.

    Points count steps or tokens; the last one ends the run. ``share`` gives the share of the run
    that is over, by which the rate falls. Gives what was measured, and the seconds of training.
    """
    found, left, measuring, began = [], sorted(points), 0.0, time.monotonic()
    with tqdm(total=int(left[-1]), unit=unit[:4], unit_scale=True, desc=name,
              disable=not progress) as bar:  # fmt: skip
        while left:
            if (at := getattr(run, unit)) >= left[0]:
                pause = time.monotonic()
                found.append(measure())
                measuring += time.monotonic() - pause
                left = [point for point in left if point > at]
            else:
                run.step_once(share())
                bar.update(getattr(run, unit) - at)
    return found, time.monotonic() - began - measuring


# ---- recipes ------------------------------------------------------------------------------------

_BERT = Recipe(
    waves=False, neighbors=0.0, masked=0.15, masked_last=0.15, learning_rate=1e-3, rows=32,
    most_rows=32, warmup_tokens=1e5, beta2=0.999,
)  # fmt: skip


def tried(trial: Variant) -> Recipe:
    """Give a trial's whole recipe: its changes on top of BERT's settings at a small batch."""
    return dataclasses.replace(_BERT, **trial.changes)


_WAVES: dict[str, Any] = {"waves": True}
_NEIGHBORS = {**_WAVES, "neighbors": 1.2}
_MASKED = {**_NEIGHBORS, "masked": 0.3, "masked_last": 0.3}
LADDER = (
    Variant("the start", "random places, 15 % masked, rate 0.001, bias at log p"),
    Variant("+ waves for places", "one place to the left is the same turn everywhere", _WAVES),
    Variant("+ heads begin at their neighbors", "no search for what matters most", _NEIGHBORS),
    Variant("+ 30 % masked", "twice as many guesses in a step", _MASKED),
)
ASIDES = (
    Variant(
        "start, bias from zero", "BERT's own: frequencies have to be learned", {"bias": "zero"}
    ),
    Variant(
        "start, initial scale 0.06", "attention that is less even at first", {"initial_std": 0.06}
    ),
    Variant("neighbors, rate 0.002", "larger steps", {**_NEIGHBORS, "learning_rate": 2e-3}),
    Variant("neighbors, rate 0.0005", "smaller steps", {**_NEIGHBORS, "learning_rate": 5e-4}),
    Variant("neighbors, no warm-up", "full steps at once", {**_NEIGHBORS, "warmup_tokens": 1.0}),
    Variant(
        "neighbors, 128 rows",
        "a quarter of the steps, with less noise",
        {**_NEIGHBORS, "rows": 128, "most_rows": 128},
    ),
    Variant("neighbors, running text", "full rows, cut sentences", _NEIGHBORS, "running"),
)


def running_text(corpus: PackedCorpus, tokenizer: Any, held_out: int) -> PackedCorpus:
    """Cut the text into full rows, wherever sentences end; the held-out rows stay as they are."""
    rows = np.asarray(corpus.rows[: len(corpus.rows) - held_out])
    pieces = rows[~np.isin(rows, tokenizer.all_special_ids)]
    inner = rows.shape[1] - 2
    whole = len(pieces) // inner
    full = np.empty((whole, inner + 2), rows.dtype)
    full[:, 0], full[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    full[:, 1:-1] = pieces[: whole * inner].reshape(whole, inner)
    return PackedCorpus(
        np.concatenate([full, corpus.rows[len(corpus.rows) - held_out :]]),
        corpus.counts,
        f"{corpus.fingerprint} running",
    )


def compare_recipes(
    corpus: PackedCorpus,
    tokenizer: Any,
    trial: Variant,
    *,
    tokens: float,
    shape: Mapping[str, Any] | None = None,
    points: Sequence[float] = (0, 0.1, 0.25, 0.5, 0.75, 1),
    seed: int = 0,
    device: torch.device | str = "cpu",
    bf16: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Train one recipe for a short while, the rate constant after its rise.

    ``shape`` holds fields of `Recipe` that all trials share, as ``width`` (default: the book's
    model); ``points`` are shares of the tokens after which the held-out loss is measured.

    Gives ``name``, ``why``, ``changes``; ``curve``: list of [step, tokens, held-out loss];
    ``seconds`` of training.
    """
    held_out = corpus.n_held_out  # the same rows, also where the others are cut anew
    if trial.text == "running":
        corpus = running_text(corpus, tokenizer, held_out)
    recipe = dataclasses.replace(tried(trial), **(shape or {}))
    run = TrainingRun(
        corpus, tokenizer, recipe, seed=seed, device=device, bf16=bf16, held_out=held_out
    )
    curve, seconds = short_run(
        run, [point * tokens for point in points], "tokens",
        lambda: [run.step, run.tokens, round(run.held_out_loss(), 4)],
        share=lambda: 0.0, name=trial.name, progress=progress,
    )  # fmt: skip
    what = {"name": trial.name, "why": trial.why, "changes": trial.changes}
    return {**what, "curve": curve, "seconds": round(seconds, 1)}


def run_comparison(
    corpus: str | Path,
    config: str = "mini",
    *,
    tokens: float = 5e5,
    seed: int = 0,
    device: str | None = None,
    bf16: bool | None = None,
    store: str | None = None,
    download: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Train all of `LADDER` and `ASIDES`; what is finished is kept in the cache until it is stored.

    The trials have the shape of the recipe ``config`` (`RECIPES`); ``store`` names the stored run.

    Gives ``settings``; ``ladder``, the number of trials in it; ``recipes``, see `compare_recipes`.
    """
    whole = find_recipe(config)
    shape = {name: getattr(whole, name) for name in ("blocks", "width", "heads", "length")}
    tokenizer = load_model("minilm", device="cpu").tokenizer
    text = open_corpus(corpus, tokenizer, whole.length, download=download, progress=progress)
    place = find_device(device)
    bf16 = choose_bf16(bf16, place)
    settings: dict[str, Any] = {
        "tokens": tokens, "config": config, "shape": shape, "corpus": text.fingerprint,
        "bf16": bf16, "seed": seed, "device": str(place),
    }  # fmt: skip
    # Numbers of another version, or of another meaning, are not used again.
    key = {**settings, "format": COMPARE_FORMAT, "version": version("bertflow-lite")}
    kept = KeptResults("pretrain-compare", key)
    options: dict[str, Any] = {
        "tokens": tokens, "shape": shape, "seed": seed, "device": place, "bf16": bf16,
        "progress": progress,
    }  # fmt: skip
    found = []
    for trial in (*LADDER, *ASIDES):
        name = f"{trial.name} {sorted(dataclasses.asdict(tried(trial)).items())}"

        def train(trial: Variant = trial) -> dict[str, Any]:
            return compare_recipes(text, tokenizer, trial, **options)

        found.append(kept(name, train))
    results = {
        "settings": {
            **settings,
            "base": {**tried(LADDER[0]).as_dict(), **shape},
            "unigram_loss": round(unigram_loss(text), 4),
        },
        "ladder": len(LADDER),
        "recipes": found,
    }
    if store is not None:
        _store(store, config, text, seed, place, results)
        kept.remove()
    return results


def unigram_loss(corpus: PackedCorpus) -> float:
    """Mean -log p(x) of the held-out pieces under the counts of the whole corpus, in nats."""
    rows = corpus.rows[-corpus.n_held_out :]
    pieces = np.bincount(rows.ravel(), minlength=len(corpus.counts)) * (corpus.counts > 0)
    return float(-(pieces @ unigram_log_p(corpus.counts)) / pieces.sum())


def _store(
    name: str, config: str, corpus: PackedCorpus, seed: int, place: torch.device, results: Any,
    **more: Any,
) -> None:  # fmt: skip
    how = provenance(
        model=f"pretrain:{config}", fingerprint="trained from scratch", seed=seed,
        device=str(place), corpus=corpus.fingerprint, **more,
    )  # fmt: skip
    store_run("pretraining", name, how, results)


# ---- one thing changed --------------------------------------------------------------------------


VARIANTS = (
    Variant("as the book's model", "another seed: how much of a curve is chance?"),
    Variant("no weight decay", "are rare words short because they decay?", {"weight_decay": 0.0}),
    Variant("heads at random", "does the gift to the heads matter?", {"neighbors": 0.0}),
    Variant("bias from zero", "BERT's start: does frequency enter the vectors?", {"bias": "zero"}),
    Variant("no bias", "the paper's equation: frequency has no other place", {"bias": "none"}),
    Variant("untied", "push and pull on two vectors", {"tied": False}),
    Variant(
        "thinned text", "as short and broken as the next, frequencies as usual", text="thinned"
    ),
    Variant("equal frequencies", "a world without frequency", text="equal"),
    Variant(
        "equal frequencies, bias from zero",
        "and without a bias that knows which words there are",
        {"bias": "zero"},
        "equal",
    ),
)


def train_variant(
    corpus: PackedCorpus,
    tokenizer: Any,
    variant: Variant,
    material: Material,
    *,
    recipe: Recipe,
    steps: Sequence[int] = STEPS,
    each: int = 100,
    seed: int = 1,
    device: torch.device | str = "cpu",
    bf16: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Train one variant for a short while and measure it on its way.

    The material is that of the *whole* corpus: frequencies are those of the language, whatever text
    is trained on. The last of the steps ends the run; ``each`` is for `thin_corpus`.

    Gives ``name``, ``why``, ``changes``, ``text``; ``n_tokens`` and ``n_pieces`` (different ones)
    of the text; ``snapshots``: a list of what `measure_variant` gives, with ``step``, ``tokens``
    and ``held_out_loss``; ``seconds`` of training.
    """
    text = corpus
    if variant.text != "whole":
        text = thin_corpus(corpus, tokenizer, each, equal=variant.text == "equal")
    changed = dataclasses.replace(recipe, **variant.changes)
    run = TrainingRun(text, tokenizer, changed, seed=seed, device=device, bf16=bf16)

    def measure() -> dict[str, Any]:
        at = {
            "step": run.step,
            "tokens": run.tokens,
            "held_out_loss": round(run.held_out_loss(), 4),
        }
        with tempfile.TemporaryDirectory() as out:
            folder = Path(out, f"step-{run.step:09d}")
            save_model(folder, run.model, tokenizer)
            return at | measure_variant(folder, material, device=device)

    found, seconds = short_run(
        run, steps, "step", measure,
        share=lambda: run.tokens / OF_TOKENS, name=variant.name, progress=progress,
    )  # fmt: skip
    out: dict[str, Any] = round_numbers(
        {
            **dataclasses.asdict(variant),
            "n_tokens": text.n_tokens,
            "n_pieces": int(np.count_nonzero(text.counts)),
            "snapshots": found,
            "seconds": seconds,
        }
    )
    return out


def measure_variant(
    folder: Path, material: Material, *, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """Measure what a variant is about: word norms at both ends, terms, cones and scores.

    Gives ``norm``: rank correlation of a word's norm with its log frequency, ``input`` and
    ``output`` vectors (one and the same where tied), and ``input_mean``, the mean norm;
    ``distance``: that of the distance to its neighbors, input vectors; ``words_cosine`` and
    ``sentences_cosine``; ``terms``: ``log_p_in`` of `measure_terms`; ``sts``: last2avg, by
    calibrator.
    """
    lm = load_language_model(folder, device=device)
    body = LoadedModel(lm.name, lm.model.base_model, lm.tokenizer, lm.fingerprint)
    encoder = Encoder(body, max_length=64, cache=False)
    words = WordEmbeddings.of(encoder, material.words)
    of_words = measure_words(words, material)
    ids = np.array(lm.tokenizer.convert_tokens_to_ids(list(words.words)))
    output = np.linalg.norm(lm.word_vectors.cpu().double().numpy()[ids], axis=1)
    log_count = np.log(material.word_counts[words.ranks])
    vectors = encoder.encode(material.pairs.sentences, "last2avg")
    rows, _ = different_sentences(material.pairs)
    contexts = select_contexts(collect_at(lm, material.held_out, material.places), N_TERMS)
    terms = measure_terms(lm, contexts, material.log_p, material.counts)
    scores = calibrated_scores(vectors, material.pairs)
    return {
        "norm": {
            "input": of_words["norm_log_frequency"]["spearman"],
            "output": spearman(output, log_count),
            "input_mean": of_words["norm"],
        },
        "distance": -of_words["spearman_distance_rank"],
        "words_cosine": of_words["mean_cosine"]["estimate"],
        "sentences_cosine": mean_cosine(vectors[rows]).estimate,
        "terms": terms["log_p_in"],
        "sts": {name: values[0] for name, values in scores.items()},
    }


def run_variants(
    corpus: str | Path,
    config: str = "mini",
    *,
    steps: int = 500,
    data: str = "stsb",
    seed: int = 1,
    device: str | None = None,
    bf16: bool | None = None,
    store: str | None = None,
    download: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Train `VARIANTS`; each is kept in the cache until all are stored.

    Each is trained for so many steps. ``data`` is the set whose validation pairs are scored; the
    rest is as in `run_comparison` and `train_variant`.

    Gives ``settings``; ``variants``, see `train_variant`.
    """
    recipe = find_recipe(config)
    tokenizer = load_model("minilm", device="cpu").tokenizer
    text = open_corpus(corpus, tokenizer, recipe.length, download=download, progress=progress)
    pairs = load_validation_pairs(data, download=download)
    material = prepare(text, tokenizer, pairs, least_pairs=1)
    place = find_device(device)
    bf16 = choose_bf16(bf16, place)
    settings: dict[str, Any] = {
        "recipe": recipe.as_dict(), "each": EACH, "of_tokens": OF_TOKENS,
        "steps": sorted({step for step in STEPS if step < steps} | {steps}),
        "corpus": text.fingerprint, "data": pairs.fingerprint, "set": set_name(pairs),
        "n_words": len(material.words), "bf16": bf16, "seed": seed, "device": str(place),
    }  # fmt: skip
    found, kept = [], []
    for variant in VARIANTS:
        what = {**settings, "variant": dataclasses.asdict(variant), "format": FORMAT}
        what["made_by"] = version("bertflow-lite")
        kept.append(KeptResults("pretrain-variant", what))

        def train(variant: Variant = variant) -> dict[str, Any]:
            return train_variant(
                text, tokenizer, variant, material, recipe=recipe, steps=settings["steps"],
                each=EACH, seed=seed, device=place, bf16=bool(bf16), progress=progress,
            )  # fmt: skip

        found.append(kept[-1](variant.name, train))
    results = {"settings": settings, "variants": found}
    if store is not None:
        more: dict[str, Any] = {"data": {pairs.name: pairs.fingerprint}, "max_length": 64}
        _store(store, config, text, seed, place, results, **more)
        for one in kept:
            one.remove()
    return results


def thin_corpus(
    corpus: PackedCorpus, tokenizer: Any, each: int, *, equal: bool, seed: int = 0
) -> PackedCorpus:
    """Keep some occurrences of the pieces, in the order of the text, and drop all others.

    ``each`` is the number of occurrences of a piece to keep; pieces that occur less often are
    dropped. With ``equal``, every piece that is left occurs equally often; otherwise as many
    occurrences in all are drawn from the whole text, whatever their piece.

    The rows, in memory, are as long as those of the text, drawn at random, whatever sentences the
    pieces come from: so a step reads as much, and rates fall as fast.

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
