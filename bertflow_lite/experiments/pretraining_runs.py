"""Anisotropy and frequency appear while a small BERT learns: all snapshots of a run, measured.

`measure_run` goes through the snapshots of a run that `run_folder.read_training` has read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bertflow_lite import __version__
from bertflow_lite.datasets import load_sts
from bertflow_lite.evaluate import score_similarities
from bertflow_lite.experiments.bag_of_words import WordCountEncoder
from bertflow_lite.experiments.overlap import word_overlap
from bertflow_lite.experiments.partial_runs import KeptResults
from bertflow_lite.lexical import lexical_similarities
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.pretraining.corpus import PackedCorpus
from bertflow_lite.pretraining.film import align_frames
from bertflow_lite.pretraining.material import Material, prepare
from bertflow_lite.pretraining.rounding import round_numbers
from bertflow_lite.pretraining.run_folder import Training, fingerprint_folder
from bertflow_lite.pretraining.snapshots import (
    CALIBRATORS,
    FLOW_STEPS,
    LAYERS,
    MASKED_SENTENCES,
    calibrated_scores,
    measure_snapshot,
)
from bertflow_lite.pretraining.training_run import HELD_OUT

__all__ = ["load_validation_pairs", "measure_run"]

logger = logging.getLogger(__name__)

FORMAT = 1
"""Part of the key of kept results: another meaning of a number must not read old ones."""


def load_validation_pairs(name: str, *, download: bool = False) -> SentencePairs:
    """Load a set's validation pairs; mini-sts where a real set is not on this machine."""
    if name == "mini-sts":
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

    Parameters
    ----------
    training : Training
        From `read_training`.
    corpus : PackedCorpus
        That it was trained on.
    tokenizer : PreTrainedTokenizerFast
    pairs : SentencePairs
        From `load_validation_pairs`.
    seeds : int, default 3
        Flows at the first and the last snapshot, which say how noisy one flow is; elsewhere one.
    least_pairs : int, default 20
        See `prepare`.
    resume : bool, default True
        Use what is kept.
    device : str or torch.device, default "cpu"
    progress : bool, default False
        Show a progress bar.

    Returns
    -------
    dict
        ``training``, ``corpus``, ``settings``; ``baselines``: scores without any training;
        ``snapshots``: a list, see `measure_snapshot`, with ``step``, ``tokens``,
        ``training_loss``, ``held_out_loss`` and ``seconds``; ``film``: frames by snapshot, aligned
        (`align_frames`).

    Raises
    ------
    ValueError
        If the run was trained on another corpus.
    """
    if training.settings["corpus"] != corpus.fingerprint:
        raise ValueError(
            "the run was trained on another text, or with other rows, than the corpus that is "
            "given: give the one of `pretrain --corpus`."
        )
    held_out = min(HELD_OUT, len(corpus.rows) // 10)
    material = prepare(corpus, tokenizer, pairs, held_out=held_out, least_pairs=least_pairs)
    settings = {
        "layers": list(LAYERS),
        "calibrators": list(CALIBRATORS),
        "flow": {"preset": "paper", "min_steps": FLOW_STEPS, "fitted_on": "sentences of the set"},
        "set": f"{pairs.name}-{pairs.split}" if pairs.name != "mini-sts" else pairs.name,
        "n_pairs": len(pairs),
        "n_sentences": len(set(pairs.sentences)),
        "least_pairs": least_pairs,
        "n_contexts": len(material.places),
        "n_neighbor_contexts": len(material.neighbors),
        "masked_sentences": list(MASKED_SENTENCES),
    }
    key = {
        **settings, "format": FORMAT, "version": __version__, "corpus": corpus.fingerprint,
        "data": pairs.fingerprint,
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
                "held_out_rows": held_out,
                "n_words": len(material.words),
            },
            "settings": settings,
            "baselines": kept(f"baselines/{width}", lambda: _baselines(pairs, tokenizer, width)),
            "snapshots": snapshots,
        }
    )
    return {**out, "film": film}


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
