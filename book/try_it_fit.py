"""Fit what the page `book/try_it` shows, and store it in data/try_it.

    python book/try_it_fit.py

mini-bert embeds the NLI sentences that `load_nli_sentences` finds. SN, whitening and the paper's
flow are fitted on most of them, without labels, and the weights by rarity are counted there. The
others give random pairs, whose cosines tell a reader whether one cosine is a large one. Two files
are written: `mini-bert.safetensors`, the numbers, and `mini-bert.json`, how they came about and
what each space scores. The book is built from them without torch (`book/try_it_files.py`).
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

import bertflow_lite as bf
from bertflow_lite.datasets.nli import load_nli_sentences
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.runs import provenance
from bertflow_lite.files import write_json

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "data" / "try_it"
MODEL = "mini-bert"
LAYERS = "last2avg"
SEED = 0
FITTED = 45_000  # of the sentences; the others give the random pairs
PAIRS = 200_000
# The average of two layers' outputs has one direction in which nothing varies but rounding.
WHITENED = 255
QUANTILES = np.linspace(0, 1, 1001)
SETS = ("mini-sts", "stsb")


def choose(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Draw the rows to fit on and those left for pairs, both in rising order."""
    order = np.random.default_rng(SEED).permutation(n)
    return np.sort(order[:FITTED]), np.sort(order[FITTED:])


def draw_pairs(n: int) -> NDArray[np.intp]:
    """Draw pairs of different rows below ``n``, shape (2, PAIRS)."""
    generator = np.random.default_rng(SEED)
    first = generator.integers(n, size=PAIRS)
    return np.stack([first, (first + generator.integers(1, n, size=PAIRS)) % n])


def fit(encoder: Encoder, fitted: list[str]) -> tuple[dict[str, Any], bf.TokenWeights]:
    """Fit the three calibrators and weigh the word pieces."""
    embeddings = encoder.encode(fitted, layers=LAYERS, progress=True)
    calibrators: dict[str, Any] = {
        "sn": bf.Standardizer(),
        "whiten": bf.Whitener(WHITENED),
        "flow": bf.FlowCalibrator(random_state=SEED),
    }
    for calibrator in calibrators.values():
        calibrator.fit(embeddings)
    if not calibrators["flow"].live_.all():
        raise ValueError("A dimension is dead: the page's flow expects to move all of them.")
    return calibrators, encoder.token_weights(fitted)


def spaces(
    encoder: Encoder, sentences: list[str], calibrators: dict[str, Any], idf: bf.TokenWeights
) -> dict[str, NDArray[np.float32]]:
    """Embed sentences in each space that the page shows."""
    raw = encoder.encode(sentences, layers=LAYERS)
    weighted = encoder.encode(sentences, LAYERS, weights=idf)
    calibrated = {name: each.transform(raw) for name, each in calibrators.items()}
    return {"raw": raw, "rarity": weighted, **calibrated}


def main() -> None:
    """Fit, measure, and write the two files."""
    start = time.perf_counter()
    encoder = bf.load_encoder(MODEL, device="cpu")
    assert isinstance(encoder, Encoder)
    nli = load_nli_sentences()
    chosen, left = choose(len(nli))
    fitted, others = ([nli.sentences[row] for row in rows] for rows in (chosen, left))
    calibrators, idf = fit(encoder, fitted)

    holding = (1 + FITTED) / np.exp(idf.values.astype(np.float64) - 1) - 1
    arrays: dict[str, NDArray[Any]] = {
        "sn.mean": calibrators["sn"].mean_,
        "sn.scale": calibrators["sn"].scale_,
        "whiten.mean": calibrators["whiten"].mean_,
        "whiten.variances": calibrators["whiten"].variances_,
        "whiten.directions": calibrators["whiten"].directions_.astype(np.float32),
        # How many of the sentences hold a word piece: exact, and the weight follows from it.
        "rarity.holding": np.rint(holding).astype(np.int32),
    }
    for name, tensor in calibrators["flow"].flow_.state_dict().items():
        arrays[f"flow.{name}"] = tensor.numpy()
    first, second = draw_pairs(len(others))
    for name, x in spaces(encoder, others, calibrators, idf).items():
        cosines = bf.cosine(x[first], x[second])
        arrays[f"shares.{name}"] = np.quantile(cosines, QUANTILES).astype(np.float32)

    scores: dict[str, dict[str, float]] = {}
    for name in SETS:
        pairs = bf.load_sts(name)
        embedded = spaces(encoder, list(pairs.sentences), calibrators, idf)
        scores[name] = {key: round(bf.score_sts(pairs, x).all, 1) for key, x in embedded.items()}

    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{MODEL}.safetensors").write_bytes(save(arrays))
    weights = ROOT / "data" / "models" / MODEL / "model.safetensors"
    flow = calibrators["flow"]
    how = provenance(
        model=MODEL,
        fingerprint=encoder.fingerprint,
        seed=SEED,
        device="cpu",
        layers=LAYERS,
        max_length=encoder.max_length,
        weights_sha256=hashlib.sha256(weights.read_bytes()).hexdigest(),
        sentences=nli.name,
        sentences_fingerprint=nli.fingerprint,
        fitted=len(fitted),
        paired=len(others),
        random_pairs=PAIRS,
        whitened=WHITENED,
        flow={key: getattr(flow, key) for key in ("levels", "depth", "width", "permutation")},
        seconds=round(time.perf_counter() - start),
    )
    how["command"] = "python book/try_it_fit.py"
    write_json(OUT / f"{MODEL}.json", {"how": how, "scores": scores})


if __name__ == "__main__":
    main()
