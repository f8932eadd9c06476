"""Nearest neighbors of Table 1 against the matrix product they need: time ratio, and memory.

10,000 queries x 30,522 vectors x 768 dimensions, the size of BERT-base. The two are timed in turn,
several times over, so that both meet the same load; the ratio is of the fastest of each.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
import torch

from bertflow_lite.experiments.table1 import find_neighbors

N_QUERIES, N_VECTORS, DIM, K, ROUNDS = 10_000, 30_522, 768, 7, 3
MOST_TIME, MOST_MEMORY = 1.5, 1.0  # times the product's; GB above the start


def product_alone(vectors: np.ndarray, rows: np.ndarray, size: int = 512) -> None:
    candidates = torch.from_numpy(vectors)
    out = torch.empty(size, len(vectors))
    for start in range(0, len(rows), size):
        block = torch.from_numpy(rows[start : start + size])
        torch.matmul(candidates[block], candidates.T, out=out[: len(block)])


def seconds(function, *arguments) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def main() -> int:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(N_VECTORS, DIM)).astype(np.float32)
    rows = rng.permutation(N_VECTORS)[:N_QUERIES].astype(np.int64)
    find_neighbors(vectors, rows[:10], K)  # warm up
    product_alone(vectors, rows[:10])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = [
        (seconds(product_alone, vectors, rows), seconds(find_neighbors, vectors, rows, K))
        for _ in range(ROUNDS)
    ]
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    product, ours = (min(column) for column in zip(*times, strict=True))
    print(f"product alone {product:6.2f} s   neighbors {ours:6.2f} s   "
          f"ratio {ours / product:.2f} (at most {MOST_TIME})   "
          f"memory {memory:.2f} GB above the start (at most {MOST_MEMORY})   "
          f"threads {torch.get_num_threads()}")  # fmt: skip
    return int(ours > MOST_TIME * product or memory > MOST_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
