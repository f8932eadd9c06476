"""The flow's training step and inference against three peers built the same way, on one thread.

Peers, all with two levels of three steps of actnorm, permutation and additive coupling (hidden
width 32) at width 768:

* nflows and normflows, two libraries of normalizing flows;
* "dense": a plain re-implementation of the form that the released code and its PyTorch port use,
  where the permutation is a product with a dense matrix and the coupling's inner normalizations
  are passes of their own.

A training step is forward, backward, clipping and Adam, by the loop that a user of each would
write; ours is `train_flow`.  Inference is data to latent.  The implementations take turns, so that
all meet the same load, and the ratio is between the medians of one run.  Written to
benchmarks/results/flow.json.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from machine import describe_machine
from torch import nn

from bertflow_lite.flow import Glow
from bertflow_lite.runs import write_json
from bertflow_lite.train import train_flow

DIM, LEVELS, DEPTH, WIDTH = 768, 2, 3, 32
STEPS, ROUNDS, INFERENCE_ROWS = 30, 15, 256
# What the ratios shall be: peer's time over ours, at least.
TARGETS = {
    ("step", 32, "dense"): 4.0,
    ("step", 256, "dense"): 5.0,
    ("inference", INFERENCE_ROWS, "dense"): 7.0,
    ("step", 32, "normflows"): 1.0,
    ("step", 256, "normflows"): 1.0,
    ("inference", INFERENCE_ROWS, "normflows"): 1.0,
}


def coupling_network(kept: int, moved: int) -> nn.Module:
    last = nn.Linear(WIDTH, moved)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(
        nn.Linear(kept, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), last
    )


class WithContext(nn.Module):
    """nflows hands its networks a context as well."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, context: None = None) -> torch.Tensor:
        return self.network(x)


class DenseActNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, dim))
        self.logs = nn.Parameter(torch.zeros(1, dim))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logs = 3.0 * self.logs
        return (x + self.bias) * torch.exp(logs), logs.sum()


class DenseStep(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = DenseActNorm(dim)
        self.register_buffer("reversal", torch.eye(dim).flip(1))
        half = dim // 2
        self.one, self.two = (nn.Linear(n, WIDTH, bias=False) for n in (half, WIDTH))
        self.norm1, self.norm2 = DenseActNorm(WIDTH), DenseActNorm(WIDTH)
        self.three = nn.Linear(WIDTH, dim - half)
        nn.init.zeros_(self.three.weight)
        nn.init.zeros_(self.three.bias)
        self.logs = nn.Parameter(torch.zeros(1, dim - half))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, log_det = self.norm(x)
        x = x @ self.reversal
        kept, moved = x.chunk(2, dim=1)
        hidden = torch.relu(self.norm1(self.one(kept))[0])
        hidden = torch.relu(self.norm2(self.two(hidden))[0])
        moved = moved + self.three(hidden) * torch.exp(3.0 * self.logs)
        return torch.cat([kept, moved], dim=1), log_det


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            nn.ModuleList(DenseStep(DIM // 2**level) for _ in range(DEPTH))
            for level in range(LEVELS)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total, done = x.new_zeros(()), []
        for number, level in enumerate(self.levels):
            for step in level:
                x, log_det = step(x)
                total = total + log_det
            if number < LEVELS - 1:
                x, finished = x.chunk(2, dim=1)
                done.append(finished)
        return torch.cat([*done, x], dim=1), total

    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        z, log_det = self(x)
        return -0.5 * (z**2 + math.log(2 * math.pi)).sum(dim=1) + log_det


def make_nflows() -> tuple[nn.Module, Callable, Callable]:
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms import (
        ActNorm,
        AdditiveCouplingTransform,
        CompositeTransform,
        MultiscaleCompositeTransform,
        RandomPermutation,
    )

    whole, dim = MultiscaleCompositeTransform(LEVELS), DIM
    for _ in range(LEVELS):
        steps = []
        for _ in range(DEPTH):
            mask = (torch.arange(dim) >= dim // 2).int()
            steps += [
                ActNorm(dim),
                RandomPermutation(dim),
                AdditiveCouplingTransform(
                    mask, lambda kept, moved: WithContext(coupling_network(kept, moved))
                ),
            ]
        whole.add_transform(CompositeTransform(steps), (dim,))
        dim //= 2
    flow = Flow(whole, StandardNormal([DIM]))
    return flow, flow.log_prob, flow.transform_to_noise


def make_normflows() -> tuple[nn.Module, Callable, Callable]:
    import normflows as nf

    bases, flows, merges = [], [], []
    for level in reversed(range(LEVELS)):  # normflows counts from the top
        dim = DIM // 2**level
        steps = []
        for _ in range(DEPTH):
            step = [
                nf.flows.AffineCouplingBlock(
                    coupling_network(dim // 2, dim - dim // 2), scale=False
                ),
                nf.flows.Permute(dim, mode="shuffle"),
                nf.flows.ActNorm(dim),
            ]
            steps.append(nf.flows.Composite(step))
        flows.append(steps)
        top = level == LEVELS - 1
        bases.append(nf.distributions.DiagGaussian(dim if top else dim // 2, trainable=False))
        if not top:
            merges.append(nf.flows.Merge())
    model = nf.MultiscaleFlow(bases, flows, merges, class_cond=False)
    return model, lambda x: model.log_prob(x, None), lambda x: model.inverse_and_log_det(x)[0]


def make_dense() -> tuple[nn.Module, Callable, Callable]:
    model = Dense()
    return model, model.log_prob, lambda x: model(x)[0]


def peer_steps(model: nn.Module, log_prob: Callable, data: torch.Tensor, batch: int) -> None:
    """A plain training loop: as many steps as `train_flow` makes in one epoch over ``data``."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    for start in range(0, len(data) - batch + 1, batch):
        loss = -log_prob(data[order[start : start + batch]]).mean() / (DIM * math.log(2))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def clock(function: Callable, *arguments) -> float:
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started


def main() -> int:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    sample = 0.3 * torch.randn(4096, DIM, generator=generator) + 0.1
    peers = {"nflows": make_nflows(), "normflows": make_normflows(), "dense": make_dense()}
    ours = Glow(DIM, LEVELS, DEPTH, WIDTH)
    ours.initialize(sample)
    for model, log_prob, _ in peers.values():
        model.train()
        log_prob(sample)  # data-dependent initialization, where a peer has it
    rows = []
    for batch in (32, 256):
        data = sample.repeat(4, 1)[: STEPS * batch]
        times: dict[str, list[float]] = {name: [] for name in ("bertflow-lite", *peers)}
        for _ in range(ROUNDS):
            times["bertflow-lite"].append(
                clock(lambda data=data, batch=batch: train_flow(ours, data, batch_size=batch))
            )
            for name, (model, log_prob, _) in peers.items():
                times[name].append(clock(peer_steps, model, log_prob, data, batch))
        rows += summarize("step", batch, times, STEPS)
    for model, _, _ in peers.values():
        model.eval()
    batch = sample[:INFERENCE_ROWS]
    times = {name: [] for name in ("bertflow-lite", *peers)}
    with torch.inference_mode():
        for _ in range(20 * ROUNDS):
            times["bertflow-lite"].append(clock(ours, batch))
            for name, (_, _, transform) in peers.items():
                times[name].append(clock(transform, batch))
    rows += summarize("inference", INFERENCE_ROWS, times, 1)
    write_json(
        Path(__file__).parent / "results" / "flow.json",
        {"machine": describe_machine("nflows", "normflows"), "dim": DIM, "rows": rows},
    )
    missed = 0
    for row in rows:
        goal = TARGETS.get((row["what"], row["batch"], row["name"]))
        missed += goal is not None and row["ratio"] < goal
        print(
            f"{row['what']:10s} batch {row['batch']:4d}  {row['name']:14s} "
            f"{row['milliseconds']:8.3f} ms   {row['ratio']:5.2f} x ours"
            + (f"   (goal: {goal:g})" if goal else "")
        )
    return int(missed > 0)


def summarize(what: str, batch: int, times: dict[str, list[float]], steps: int) -> list[dict]:
    medians = {name: 1000 * statistics.median(values) / steps for name, values in times.items()}
    return [
        {
            "what": what,
            "batch": batch,
            "name": name,
            "milliseconds": round(value, 4),
            "ratio": round(value / medians["bertflow-lite"], 3),
        }
        for name, value in medians.items()
    ]


if __name__ == "__main__":
    raise SystemExit(main())
