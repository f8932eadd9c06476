"""The first steps of a pre-training run again, with one thing changed.

What bends the space of words?  Each variant takes away one suspect.  All start from the same seed
and go through the same steps with the same rates as the first part of a long run, so a difference
comes from the change.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from bertflow_lite.encode import Encoder
from bertflow_lite.geometry import mean_cosine
from bertflow_lite.language_model import load_language_model
from bertflow_lite.models import LoadedModel
from bertflow_lite.pretraining.corpus import PackedCorpus
from bertflow_lite.pretraining.masked_contexts import collect_at, select_contexts
from bertflow_lite.pretraining.masked_probe import measure_terms
from bertflow_lite.pretraining.material import Material
from bertflow_lite.pretraining.peers import Peers
from bertflow_lite.pretraining.recipe import Recipe
from bertflow_lite.pretraining.rounding import round_numbers
from bertflow_lite.pretraining.snapshots import (
    N_TERMS,
    calibrated_scores,
    different_sentences,
    measure_words,
)
from bertflow_lite.pretraining.thinned import thin_corpus
from bertflow_lite.pretraining.training_run import HELD_OUT, TrainingRun
from bertflow_lite.similarity import spearman
from bertflow_lite.word_table import WordEmbeddings

__all__ = ["EACH", "STEPS", "VARIANTS", "Variant", "train_variant"]

STEPS = (0, 10, 30, 50, 70, 100, 200, 300, 500)
"""Where a variant is measured."""
FORMAT = 2
"""Of what `train_variant` gives: kept results of another one are not used."""
EACH = 100
"""Occurrences of each piece in the text where all are equally frequent."""


@dataclass(frozen=True)
class Variant:
    """One thing that is changed.

    Attributes
    ----------
    name, why : str
        What is changed, and what it asks.
    changes : dict
        Fields of `Recipe`.
    text : {"whole", "thinned", "equal"}
        The corpus; as much of it as is left where all words are equally frequent, drawn at random;
        or that text itself (`thin_corpus`).
    """

    name: str
    why: str
    changes: dict[str, Any] = field(default_factory=dict)
    text: str = "whole"


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
    of_tokens: float = 6e7,
    each: int = EACH,
    seed: int = 1,
    device: torch.device | str = "cpu",
    bf16: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Train one variant for a short while and measure it on its way.

    Parameters
    ----------
    corpus, tokenizer
        As `pretrain`.
    variant : Variant
    material : Material
        Of the *whole* corpus: frequencies are those of the language, whatever text is trained on.
    recipe : Recipe
        What the variant changes.
    steps : sequence of int
        Where to measure; the last one ends the run.
    of_tokens : float, default 60 million
        Length of the run whose first part this is: the rate falls as it does there.
    each : int
        See `thin_corpus`.
    seed, device, bf16
        As `pretrain`.
    progress : bool
        Show a progress bar.

    Returns
    -------
    dict
        ``name``, ``why``, ``changes``, ``text``; ``n_tokens`` and ``n_pieces`` (different ones) of
        the text; ``snapshots``: a list of what `measure_variant` gives, with ``step``, ``tokens``
        and ``held_out_loss``; ``seconds`` of training.
    """
    text = corpus
    if variant.text != "whole":
        text = thin_corpus(corpus, tokenizer, each, equal=variant.text == "equal")
    held_out = min(HELD_OUT, len(text.rows) // 10)
    changed = dataclasses.replace(recipe, **variant.changes)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as out:
        run = TrainingRun(
            text, tokenizer, changed, Path(out), seed, torch.device(device), bf16, held_out, Peers()
        )

        def measure(step: int, folder: Path) -> None:
            found.append(
                {
                    "step": step,
                    "tokens": run.tokens,
                    "held_out_loss": run.loss[-1][3],
                    **measure_variant(folder, material, device=device),
                }
            )
            shutil.rmtree(folder)

        began, measuring = time.monotonic(), 0.0
        for _ in tqdm(range(max(steps) + 1), desc=variant.name, disable=not progress):
            if run.step in steps:
                pause = time.monotonic()
                run.snapshot(measure)
                measuring += time.monotonic() - pause
            if run.step < max(steps):
                run.step_once(run.share(of_tokens, None))
    out_dict: dict[str, Any] = round_numbers(
        {
            **dataclasses.asdict(variant),
            "n_tokens": text.n_tokens,
            "n_pieces": int(np.count_nonzero(text.counts)),
            "snapshots": found,
            "seconds": time.monotonic() - began - measuring,
        }
    )
    return out_dict


def measure_variant(
    folder: Path, material: Material, *, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """Measure what a variant is about: word norms at both ends, terms, cones and scores.

    Returns
    -------
    dict
        ``norm``: rank correlation of a word's norm with its log frequency, ``input`` and
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
