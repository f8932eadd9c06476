"""Encoding against sentence-transformers: the same model, the same sentences, no cache.

MiniLM and the STS-B test sentences where BERTFLOW_DATA (or the cache) has them, else mini-sts; each
distinct sentence once, at most 512 of them, at most 64 tokens.  Ours in float32 and, where the
processor has bfloat16 products, in bfloat16.  With one thread CPU time is what counts, with two
wall time (idle threads spin, so their CPU time says little); both are stored.  The contestants take
turns, and the ratio is between the medians of one run.  Written to benchmarks/results/encode.json;
the exit status is 1 when a goal is missed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from machine import describe_machine

from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.models import load_model, packaged_path
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.files import write_json

SENTENCES, MAX_LENGTH, ROUNDS = 512, 64, 3
PEER = "sentence-transformers float32"
OURS, OURS_HALF = "bertflow-lite float32", "bertflow-lite bfloat16"
GOALS = {OURS: 1.0, OURS_HALF: 1.5}  # the peer's time over ours, at least
NEAR = 1e-5  # largest difference of a normalized float32 vector's number


def load_sentences() -> tuple[str, list[str]]:
    try:
        name, pairs = "stsb (test)", load_sts("stsb", "test")
    except FileNotFoundError:
        name, pairs = "mini-sts", load_sts("mini-sts")
    return name, list(dict.fromkeys(pairs.sentences))[:SENTENCES]


def has_bfloat16() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return "avx512_bf16" in flags or "amx_bf16" in flags


def make_contestants(sentences: list[str]) -> dict[str, Callable[[], np.ndarray]]:
    from sentence_transformers import SentenceTransformer

    loaded = load_model("minilm", device="cpu")
    theirs = SentenceTransformer(str(packaged_path("minilm")), device="cpu")
    theirs.max_seq_length = MAX_LENGTH
    ours = Encoder(loaded, max_length=MAX_LENGTH, cache=False)
    contestants = {
        PEER: lambda: theirs.encode(sentences, show_progress_bar=False),
        OURS: lambda: ours.encode(sentences, "last"),
    }
    if has_bfloat16():
        half = Encoder(loaded, max_length=MAX_LENGTH, precision="bfloat16", cache=False)
        contestants[OURS_HALF] = lambda: half.encode(sentences, "last")
    return contestants


def measure(contestants: dict[str, Callable], threads: int, n: int) -> list[dict[str, object]]:
    torch.set_num_threads(threads)
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, encode in contestants.items():
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            encode()
            cpu[name].append(time.process_time() - cpu_start)
            wall[name].append(time.perf_counter() - wall_start)
    counted = cpu if threads == 1 else wall
    peer = statistics.median(counted[PEER])
    return [
        {
            "threads": threads,
            "name": name,
            "cpu_seconds": round(statistics.median(cpu[name]), 3),
            "wall_seconds": round(statistics.median(wall[name]), 3),
            "sentences_per_second": round(n / statistics.median(counted[name]), 1),
            "ratio": round(peer / statistics.median(counted[name]), 2),
            "goal": GOALS.get(name),
        }
        for name in contestants
    ]


def normalize(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def main() -> int:
    data, sentences = load_sentences()
    torch.set_num_threads(1)
    contestants = make_contestants(sentences)
    vectors = {name: normalize(encode()) for name, encode in contestants.items()}  # and warm up
    difference = float(np.abs(vectors[OURS] - vectors[PEER]).max())
    result: dict[str, object] = {
        "machine": describe_machine("transformers", "sentence-transformers"),
        "data": data,
        "sentences": len(sentences),
        "max_length": MAX_LENGTH,
        "rounds": ROUNDS,
        "largest_difference": float(f"{difference:.1e}"),
    }
    if OURS_HALF in vectors:
        cosines = (vectors[OURS_HALF] * vectors[PEER]).sum(axis=1)
        result["lowest_cosine_bfloat16"] = round(float(cosines.min()), 4)
    rows = [row for threads in (1, 2) for row in measure(contestants, threads, len(sentences))]
    write_json(Path(__file__).parent / "results" / "encode.json", {**result, "rows": rows})
    for row in rows:
        print(
            f"{row['threads']} thread(s)  {row['name']:30s} {row['sentences_per_second']:7.1f} "
            f"sentences/s  {row['ratio']:5.2f} x the peer's speed"
            + (f"   (goal: {row['goal']:g})" if row["goal"] else "")
        )
    print(f"largest difference of normalized vectors: {difference:.1e} (goal: {NEAR:g})")
    missed = any(row["goal"] is not None and row["ratio"] < row["goal"] for row in rows)
    return int(missed or difference > NEAR)


if __name__ == "__main__":
    raise SystemExit(main())
