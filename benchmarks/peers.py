"""The flow, built by hand and from other libraries: what bench_flow.py times against ours.

All have ``depth`` steps of actnorm, permutation and additive coupling (hidden width 32) at each
level, half of the dimensions leaving between levels.  Each maker gives a `Peer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM, DEPTH, WIDTH = 768, 3, 32
LEARNING_RATE = 1e-3
LOG_SCALE_FACTOR = 3.0


@dataclass
class Peer:
    """A flow to be timed: its model, log-density (batch,), map to the latent, and optimizer."""

    model: nn.Module
    log_prob: Callable[[Tensor], Tensor]
    transform: Callable[[Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    clip: bool = True

    def train(self, data: Tensor, batch: int) -> None:
        """One epoch of a plain training loop: as many steps as `train_flow` makes."""
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
        for start in range(0, len(data) - batch + 1, batch):
            loss = -self.log_prob(data[order[start : start + batch]]).mean() / (DIM * math.log(2))
            self.optimizer.zero_grad()
            loss.backward()
            if self.clip:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()


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

    def forward(self, x: Tensor, context: None = None) -> Tensor:
        return self.network(x)


def make_nflows(levels: int) -> Peer:
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms import (
        ActNorm,
        AdditiveCouplingTransform,
        CompositeTransform,
        MultiscaleCompositeTransform,
        RandomPermutation,
    )

    def network(kept: int, moved: int) -> nn.Module:
        return WithContext(coupling_network(kept, moved))

    whole, dim = MultiscaleCompositeTransform(levels), DIM
    for _ in range(levels):
        steps = []
        for _ in range(DEPTH):
            # 1: is moved.  nflows lets the first half go and works on with the second.
            mask = (torch.arange(dim) < dim // 2).int()
            steps += [ActNorm(dim), RandomPermutation(dim)]
            steps += [AdditiveCouplingTransform(mask, network)]
        whole.add_transform(CompositeTransform(steps), (dim,))
        dim //= 2
    flow = Flow(whole, StandardNormal([DIM]))
    return Peer(flow, flow.log_prob, flow.transform_to_noise, _adam(flow))


def make_normflows(levels: int) -> Peer:
    import normflows as nf

    bases, flows, merges = [], [], []
    for level in reversed(range(levels)):  # normflows counts from the top
        dim = DIM // 2**level
        steps = []
        for _ in range(DEPTH):
            network = coupling_network(dim // 2, dim - dim // 2)
            step = [
                nf.flows.AffineCouplingBlock(network, scale=False),
                nf.flows.Permute(dim, mode="shuffle"),
                nf.flows.ActNorm(dim),
            ]
            steps.append(nf.flows.Composite(step))
        flows.append(steps)
        top = level == levels - 1
        bases.append(nf.distributions.DiagGaussian(dim if top else dim // 2, trainable=False))
        if not top:
            merges.append(nf.flows.Merge())
    model = nf.MultiscaleFlow(bases, flows, merges, class_cond=False)

    def log_prob(x: Tensor) -> Tensor:
        return model.log_prob(x, None)

    def transform(x: Tensor) -> Tensor:
        return torch.cat(model.inverse_and_log_det(x)[0], dim=1)

    return Peer(model, log_prob, transform, _adam(model))


class ChannelNorm(nn.Module):
    """Actnorm over the channels of an image, initialized from the first batch it meets."""

    initialized: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.log_scale = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.register_buffer("initialized", torch.tensor(False))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.initialized.item():
            with torch.no_grad():
                std = x.std(dim=0, correction=0, keepdim=True)
                self.bias.copy_(-x.mean(dim=0, keepdim=True))
                self.log_scale.copy_(-torch.log(std + 1e-6) / LOG_SCALE_FACTOR)
                self.initialized.fill_(True)
        log_scale = LOG_SCALE_FACTOR * self.log_scale
        return (x + self.bias) * torch.exp(log_scale), log_scale.sum()


class DenseStep(nn.Module):
    """Actnorm, reversal as a product with a dense matrix, additive coupling; all on images."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.norm = ChannelNorm(channels)
        reversal = torch.eye(channels).flip(1)[:, :, None, None]
        self.reversal = nn.Parameter(reversal, requires_grad=False)
        self.conv1, self.norm1 = nn.Conv2d(half, WIDTH, 1, bias=False), ChannelNorm(WIDTH)
        self.conv2, self.norm2 = nn.Conv2d(WIDTH, WIDTH, 1, bias=False), ChannelNorm(WIDTH)
        self.conv3 = nn.Conv2d(WIDTH, half, 1)
        self.log_scale3 = nn.Parameter(torch.zeros(1, half, 1, 1))
        nn.init.normal_(self.conv1.weight, 0, 0.05)
        nn.init.normal_(self.conv2.weight, 0, 0.05)
        nn.init.zeros_(self.conv3.weight)
        nn.init.zeros_(self.conv3.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, log_det = self.norm(x)
        kept, moved = F.conv2d(x, self.reversal).chunk(2, dim=1)
        hidden = torch.relu_(self.norm1(self.conv1(kept))[0])
        hidden = torch.relu_(self.norm2(self.conv2(hidden))[0])
        moved = moved + self.conv3(hidden) * torch.exp(LOG_SCALE_FACTOR * self.log_scale3)
        return torch.cat([kept, moved], dim=1), log_det


class Dense(nn.Module):
    """The form of the released code and its PyTorch port, written anew from its description.

    An embedding is an image of one pixel with 768 channels, the linear maps are convolutions
    of size 1, the reversal is one of them with a fixed dense matrix, and the coupling's inner
    normalizations are passes of their own.
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            nn.ModuleList(DenseStep(DIM // 2**level) for _ in range(DEPTH))
            for level in range(levels)
        )

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Give latent and log-density, shapes (batch, 768) and (batch,)."""
        x, total, done = u[:, :, None, None], u.new_zeros(len(u)), []
        for number, level in enumerate(self.levels):
            for step in level:
                x, log_det = step(x)
                total = total + log_det
            if number < len(self.levels) - 1:
                x, finished = x.chunk(2, dim=1)
                total = total + _prior(finished)
                done.append(finished)
        return torch.cat([*done, x], dim=1).flatten(1), total + _prior(x)


class PlainAdam(torch.optim.Optimizer):
    """The released code's Adam, tensor by tensor: no bias correction, weight decay 0.01."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": LEARNING_RATE, "decay": 0.01})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["mean"] = 0.9 * state["mean"] + 0.1 * p.grad
                state["square"] = 0.999 * state["square"] + 0.001 * p.grad**2
                update = state["mean"] / (torch.sqrt(state["square"]) + 1e-6)
                p.sub_(group["lr"] * (update + group["decay"] * p))


def make_dense(levels: int) -> Peer:
    """The dense form, trained as the PyTorch port trains it: with `PlainAdam`, not clipped."""
    model = Dense(levels)
    optimizer = PlainAdam([p for p in model.parameters() if p.requires_grad])
    return Peer(model, lambda u: model(u)[1], lambda u: model(u)[0], optimizer, clip=False)


def _prior(x: Tensor) -> Tensor:
    zeros = torch.zeros_like(x)
    return torch.distributions.Normal(zeros, torch.exp(zeros)).log_prob(x).sum(dim=(1, 2, 3))


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
