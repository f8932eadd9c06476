"""Vectors of tokens alone against the encoder that they come from, and against Model2Vec.

MiniLM and the STS-B test sentences where BERTFLOW_DATA (or the cache) has them, else mini-sts; each
distinct sentence once, at most 512 of them, one thread, CPU time.  The contestants take turns, and
the ratio is between the medians of one run.  All are scored on the whole set.  Model2Vec takes part
where it is installed (``pip install --no-deps model2vec skeletoken``: its extra "distill" asks for
an older transformers, and works with this one too).  Written to benchmarks/results/static.json; the
exit status is 1 when a goal is missed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from bench_encode import ROUNDS, SENTENCES
from machine import describe_machine

from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.models import load_model, packaged_path
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.today import DIM, static_encoders
from bertflow_lite.files import write_json
from bertflow_lite.measures.scores import score_sts

ENCODER, OURS, PEER = "minilm, last block", "bertflow-lite, static", "Model2Vec"
FASTER, NEAR = 20, 0.1  # times the encoder's speed, at least; points of the peer's score, at most
Encode = Callable[[list[str]], np.ndarray]


def make_contestants() -> dict[str, Encode]:
    encoder = Encoder(load_model("minilm", device="cpu"), cache=False)
    static = static_encoders(encoder)[f"each token alone, PCA {DIM}, Zipf"]
    contestants = {ENCODER: lambda texts: encoder.encode(texts, "last"), OURS: static.encode}
    if find_spec("model2vec") and find_spec("skeletoken"):
        from model2vec.distill import distill

        folder = str(packaged_path("minilm"))
        contestants[PEER] = distill(folder, device="cpu", pca_dims=DIM).encode
    return contestants


def main() -> int:
    torch.set_num_threads(1)
    try:
        pairs = load_sts("stsb", "test")
    except FileNotFoundError:
        pairs = load_sts("mini-sts")
    sentences = list(dict.fromkeys(pairs.sentences))[:SENTENCES]
    contestants = make_contestants()
    scores = {
        name: score_sts(pairs, f(list(pairs.sentences))).all for name, f in contestants.items()
    }
    spent: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, encode in contestants.items():
            start = time.process_time()
            encode(sentences)
            spent[name].append(time.process_time() - start)
    seconds = {name: statistics.median(times) for name, times in spent.items()}
    goals = {OURS: FASTER}
    rows = [
        {
            "name": name,
            "score": round(scores[name], 2),
            "sentences_per_second": round(len(sentences) / seconds[name]),
            "ratio": round(seconds[ENCODER] / seconds[name], 1),
            "goal": goals.get(name),
        }
        for name in contestants
    ]
    packages = ("transformers", "model2vec") if PEER in contestants else ("transformers",)
    result = {"machine": describe_machine(*packages), "data": pairs.name, "rows": rows}
    write_json(Path(__file__).parent / "results" / "static.json", result)
    for row in rows:
        print(
            f"{row['name']:24s} {row['score']:6.2f}  {row['sentences_per_second']:8,d} sentences/s "
            f"{row['ratio']:6.1f} x the encoder's speed"
        )
    away = abs(scores[OURS] - scores.get(PEER, scores[OURS]))
    return int(seconds[ENCODER] < FASTER * seconds[OURS] or away > NEAR)


if __name__ == "__main__":
    raise SystemExit(main())
