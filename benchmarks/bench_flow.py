"""The flow's training step and inference against three peers built the same way, on one thread.

Two levels, as in the paper, against nflows and normflows; three levels, the default of the
released code, against the dense form that this code and its PyTorch port use (see `peers.py`).

A training step is forward, backward, clipping (not in the port) and Adam, by the loop that a user
of each would write; ours is `train_flow`.  Inference is data to latent for 256 rows.  What is
measured is the CPU time of the process, so that other load on the machine does not count; the
implementations take turns, and the ratio is between the medians of one run.  Written to
benchmarks/results/flow.json; the exit status is 1 when a goal is missed.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from machine import describe_machine
from peers import DEPTH, DIM, WIDTH, Peer, make_dense, make_nflows, make_normflows

from bertflow_lite.files import write_json
from bertflow_lite.flow import Glow
from bertflow_lite.train import train_flow

OURS = "bertflow-lite"
BATCHES, STEPS, ROUNDS = (32, 256), 20, 9
INFERENCE_ROWS, INFERENCE_ROUNDS = 256, 60
PEERS = {
    2: {"nflows": make_nflows, "normflows": make_normflows},
    3: {"dense": make_dense},
}
# What the ratios shall be: peer's time over ours, at least.
GOALS = {
    ("step", 32, "dense"): 4.0,
    ("step", 256, "dense"): 5.0,
    ("inference", INFERENCE_ROWS, "dense"): 7.0,
    ("step", 32, "normflows"): 1.0,
    ("step", 256, "normflows"): 1.0,
    ("inference", INFERENCE_ROWS, "normflows"): 1.0,
}


def cpu_time(function: Callable, *arguments) -> float:
    started = time.process_time()
    function(*arguments)
    return time.process_time() - started


def take_turns(contestants: dict[str, Callable], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each, called in turn; a first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, function in contestants.items():
            spent = cpu_time(function)
            if number:
                times[name].append(spent)
    return {name: statistics.median(values) for name, values in times.items()}


def compare(levels: int, makers: dict[str, Callable[[int], Peer]], sample: torch.Tensor) -> list:
    ours = Glow(DIM, levels, DEPTH, WIDTH)
    ours.initialize(sample)
    peers = {name: make(levels) for name, make in makers.items()}
    for peer in peers.values():
        peer.model.train()
        peer.log_prob(sample)  # data-dependent initialization
    rows = []
    for batch in BATCHES:
        data = sample.repeat(2, 1)[: STEPS * batch]
        contestants = {OURS: lambda: train_flow(ours, data, batch_size=batch)}  # noqa: B023
        for name, peer in peers.items():
            contestants[name] = lambda peer=peer: peer.train(data, batch)  # noqa: B023
        rows += describe("step", levels, batch, take_turns(contestants, ROUNDS), STEPS)
    contestants = {OURS: lambda: ours(sample[:INFERENCE_ROWS])[0]}
    for name, peer in peers.items():
        peer.model.eval()
        contestants[name] = lambda peer=peer: peer.transform(sample[:INFERENCE_ROWS])
    with torch.inference_mode():
        times = take_turns(contestants, INFERENCE_ROUNDS)
    return rows + describe("inference", levels, INFERENCE_ROWS, times, 1)


def describe(what: str, levels: int, batch: int, times: dict[str, float], calls: int) -> list:
    return [
        {
            "what": what,
            "levels": levels,
            "batch": batch,
            "name": name,
            "cpu_milliseconds": round(1000 * seconds / calls, 3),
            "ratio": round(seconds / times[OURS], 2),
            "goal": GOALS.get((what, batch, name)),
        }
        for name, seconds in times.items()
    ]


def main() -> int:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    sample = 0.3 * torch.randn(4096, DIM, generator=generator) + 0.1
    rows = [row for levels, makers in PEERS.items() for row in compare(levels, makers, sample)]
    machine = describe_machine("nflows", "normflows")
    result = {"machine": machine, "dim": DIM, "steps": STEPS, "rounds": ROUNDS, "rows": rows}
    write_json(Path(__file__).parent / "results" / "flow.json", result)
    for row in rows:
        goal = f"   (goal: {row['goal']:g})" if row["goal"] else ""
        print(
            f"{row['what']:10s} levels {row['levels']}  batch {row['batch']:4d}  "
            f"{row['name']:14s} {row['cpu_milliseconds']:8.3f} ms  {row['ratio']:5.2f} x ours{goal}"
        )
    return int(any(row["goal"] is not None and row["ratio"] < row["goal"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
