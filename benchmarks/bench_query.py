"""What one query of a search costs: encoding it, calibrating its vector, finding the nearest rows.

MiniLM's last block; the sentences of mini-sts and mini-sts-plain are what is searched, and some of
them are asked, one at a time, in one thread.  Their vectors are repeated up to 10,000 rows, for the
product with all of them.  BM25 takes part where bm25s is installed.  The steps take turns, and the
ratio is between the medians of one run.  Written to benchmarks/results/query.json; the exit status
is 1 when a calibrator costs more than encoding does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from bench_encode import ROUNDS
from machine import describe_machine

import bertflow_lite as bf
from bertflow_lite.files import write_json

QUERIES, ROWS, TOP = 64, 10_000, 10
ENCODE = "encoding"
Step = Callable[[int], object]


def make_steps(sentences: list[str]) -> dict[str, Step]:
    """Give each step by its name; it takes the number of the sentence that is asked."""
    encoder = bf.load_encoder("minilm", device="cpu", cache=False)
    vectors = encoder.encode(sentences, layers="last")
    rows = np.resize(vectors, (ROWS, vectors.shape[1]))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    calibrators = {
        "standard normalization": bf.Standardizer().fit(vectors),
        "whitening": bf.Whitener().fit(vectors),
        "the flow": bf.FlowCalibrator(random_state=0).fit(vectors),
    }
    steps: dict[str, Step] = {ENCODE: lambda i: encoder.encode([sentences[i]], layers="last")}
    for name, fitted in calibrators.items():
        steps[name] = lambda i, fitted=fitted: fitted.transform(vectors[i : i + 1])
    steps[f"the {TOP} nearest of {ROWS:,} rows"] = lambda i: np.argpartition(
        rows @ vectors[i], -TOP
    )[-TOP:]
    if find_spec("bm25s"):
        import bm25s

        index = bm25s.BM25()
        index.index(bm25s.tokenize(sentences, show_progress=False), show_progress=False)
        steps[f"BM25 among {len(sentences):,} sentences"] = lambda i: index.retrieve(
            bm25s.tokenize([sentences[i]], show_progress=False), k=TOP, show_progress=False
        )
    return steps


def main() -> int:
    torch.set_num_threads(1)
    pairs = [bf.load_sts(name) for name in ("mini-sts", "mini-sts-plain")]
    sentences = list(dict.fromkeys(text for one in pairs for text in one.sentences))
    steps = make_steps(sentences)
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            start = time.process_time()
            for i in range(QUERIES):
                step(i)
            spent[name].append((time.process_time() - start) / QUERIES)
    seconds = {name: statistics.median(times) for name, times in spent.items()}
    rows = [
        {
            "name": name,
            "cpu_milliseconds": round(1000 * seconds[name], 3),
            "ratio": round(seconds[name] / seconds[ENCODE], 3),
        }
        for name in steps
    ]
    result = {"machine": describe_machine("transformers"), "queries": QUERIES, "rows": rows}
    write_json(Path(__file__).parent / "results" / "query.json", result)
    for row in rows:
        print(f"{row['name']:36s} {row['cpu_milliseconds']:8.3f} ms  {row['ratio']:6.3f}")
    return int(max(seconds[name] for name in list(steps)[1:4]) > seconds[ENCODE])


if __name__ == "__main__":
    raise SystemExit(main())
