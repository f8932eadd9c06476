"""Maximum-likelihood training of a flow (Eq. 4), reported in bits per dimension.

The loss is ``-log p(u) / (dim ln 2)``, averaged over a batch.  Embeddings are real numbers, so p is
a density: it can exceed 1, and the bits per dimension can be negative without anything being wrong.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from bertflow_lite.devices import OutOfMemoryError, is_out_of_memory
from bertflow_lite.flow import Glow

__all__ = ["FlowHistory", "NonFiniteLossError", "ReleasedCodeAdam", "bits_per_dim", "train_flow"]

logger = logging.getLogger(__name__)


class NonFiniteLossError(FloatingPointError):
    """The training loss or its gradient became NaN or infinite; the message names the step."""


@dataclass
class FlowHistory:
    """What happened during training.

    Attributes
    ----------
    loss : list of float
        Bits per dimension of each batch, before its step.
    epoch_loss : list of float
        Mean of ``loss`` over each epoch.
    seconds : float
        Wall time of the training loop.
    """

    loss: list[float] = field(default_factory=list)
    epoch_loss: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def steps(self) -> int:
        """Number of optimizer steps made."""
        return len(self.loss)


def bits_per_dim(flow: Glow, data: Tensor, batch_size: int = 4096) -> float:
    """Mean negative log-density in bits per dimension, the loss of Eq. 4 in other units.

    Parameters
    ----------
    flow : Glow
        The flow.
    data : Tensor, shape (n, dim)
        Embeddings, on the flow's device and in its float type.
    batch_size : int, default 4096
        Rows that pass through the flow at once.

    Returns
    -------
    float
        Nats / (dim log 2).  It can be negative: a density may exceed 1.
    """
    with torch.inference_mode():
        total = sum(float(flow.log_prob(part).double().sum()) for part in data.split(batch_size))
    return -total / (len(data) * data.shape[1] * math.log(2))


def train_flow(
    flow: Glow,
    data: Tensor | Callable[[int], Iterable[Tensor]],
    *,
    epochs: int = 1,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    optimizer: str = "adam",
    max_grad_norm: float | None = 1.0,
    seed: int = 0,
    progress: bool = False,
    steps: int | None = None,
    history: FlowHistory | None = None,
) -> FlowHistory:
    """Train ``flow`` in place on ``data`` by maximum likelihood.

    Parameters
    ----------
    flow : Glow
        The flow; initialize its actnorms first (`Glow.initialize`) if that is wanted.
    data : Tensor, shape (n, dim), or function of the epoch's number
        Embeddings, on the flow's device and in its dtype; or what gives the batches of an epoch,
        Tensors of shape (batch, dim), for data that does not fit in memory.
    epochs : int, default 1
        Passes over the data (the paper: 1 on the target sentences); 0 leaves the flow as it is.
    batch_size : int, default 32
        Sentences in a batch.  The last, incomplete batch of an epoch is dropped, as in the
        released code; data smaller than one batch make one batch.  Where ``data`` is a function,
        it decides.
    learning_rate : float, default 1e-3
        Constant, as in Appendix B for target data.
    optimizer : {"adam", "released-code"}, default "adam"
        Plain Adam, or `ReleasedCodeAdam`.
    max_grad_norm : float or None, default 1.0
        Gradients are clipped to this Euclidean norm, which is more than 0.  None clips nothing.
    seed : int, default 0
        Seed of the batch order.
    progress : bool, default False
        Show a progress bar.
    steps : int, optional
        Steps in an epoch, for the progress bar, where ``data`` is a function.
    history : FlowHistory, optional
        Filled as training goes, for the caller who is interrupted.

    Returns
    -------
    FlowHistory

    Raises
    ------
    NonFiniteLossError, OutOfMemoryError
        When a batch's loss or gradient is not finite, or there is no memory for it.  The flow
        keeps the weights from before that step, which are finite.
    ValueError
        For empty data, or settings that make no sense.
    """
    n_rows = len(data) if isinstance(data, Tensor) else 1
    if epochs < 0 or batch_size < 1 or not learning_rate > 0 or not n_rows:
        raise ValueError(
            f"epochs is {epochs}, batch_size {batch_size}, learning_rate {learning_rate} and the "
            f"number of rows {n_rows}; epochs must be 0 or more, the others more than 0."
        )
    check_clipping(max_grad_norm)
    parameters = [p for p in flow.parameters() if p.requires_grad]
    history = FlowHistory() if history is None else history
    if not parameters or epochs == 0:
        return history
    batches_of: Callable[[int], Iterable[Tensor]]
    if isinstance(data, Tensor):
        batch_size = min(batch_size, n_rows)
        steps = n_rows // batch_size
        batches_of = shuffled_batches(data.__getitem__, n_rows, batch_size, seed)
    else:
        batches_of = data
    scale = 1 / (flow.dim * math.log(2))
    flat = FlatParameters(parameters)
    step_optimizer = _make_optimizer(optimizer, [flat.vector], learning_rate)
    clip_at = math.inf if max_grad_norm is None else max_grad_norm
    started = time.perf_counter()
    total = steps and epochs * steps
    bar = tqdm(total=total, desc="flow", unit="step", disable=not progress)
    with one_thread_if_small(parameters[0].device, batch_size * flow.dim), flat, bar:
        for epoch in range(epochs):
            before = history.steps
            for batch in batches_of(epoch):
                try:
                    loss = -flow.log_prob(batch).mean() * scale  # Eq. 4, its sign turned
                    loss.backward()
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    raise OutOfMemoryError(
                        f"no memory on {batch.device} for a batch of {len(batch)} rows at step "
                        f"{history.steps}; lower batch_size."
                    ) from error
                flat.take_gradients()
                norm = torch.nn.utils.clip_grad_norm_([flat.vector], clip_at)
                value = loss.item()
                if not (math.isfinite(value) and math.isfinite(norm)):
                    raise NonFiniteLossError(
                        f"the loss is {value} and its gradient's norm {norm:g} at step "
                        f"{history.steps} (epoch {epoch}, batch {history.steps - before}). Lower "
                        f"learning_rate (now {learning_rate:g}), or look for outliers and nearly "
                        "constant dimensions in the data."
                    )
                step_optimizer.step()
                history.loss.append(value)
                history.seconds = time.perf_counter() - started
                bar.update()
                bar.set_postfix(bits=f"{value:.3f}", refresh=False)
            if history.steps == before:
                raise ValueError("there are fewer rows than one batch; lower batch_size.")
            history.epoch_loss.append(sum(history.loss[before:]) / (history.steps - before))
    logger.info("flow: %d steps in %.1f s", history.steps, history.seconds)
    return history


def check_clipping(max_grad_norm: Any) -> None:
    """Raise ValueError unless the norm is None or more than 0.

    A negative one turns every gradient round, so that training climbs; at 0 nothing is learned.
    """
    if max_grad_norm is None:
        return
    number = isinstance(max_grad_norm, Real) and not isinstance(max_grad_norm, bool)
    if not (number and max_grad_norm > 0):
        raise ValueError(
            f"max_grad_norm is {max_grad_norm!r}; it must be a number more than 0, or None to clip "
            "nothing."
        )


def shuffled_batches(
    take: Callable[[Tensor], Tensor], n_rows: int, batch_size: int, seed: int
) -> Callable[[int], Iterator[Tensor]]:
    """Give what makes the batches of an epoch: each row once, in random order, taken by ``take``.

    The last, incomplete batch is left out.
    """
    generator = torch.Generator().manual_seed(seed)

    def batches(epoch: int) -> Iterator[Tensor]:
        order = torch.randperm(n_rows, generator=generator)
        for start in range(0, n_rows - batch_size + 1, batch_size):
            yield take(order[start : start + batch_size])

    return batches


class ReleasedCodeAdam(torch.optim.Optimizer):
    """The optimizer of the released code: Adam as BERT's code writes it.

    No bias correction (so the first steps are about three times larger than Adam's), eps 1e-6,
    and weight decay 0.01 taken off every parameter directly, biases and scales included.

    Parameters
    ----------
    params : iterable of Tensor
        What to train.
    lr : float
        Learning rate, constant.
    """

    def __init__(self, params: list[torch.nn.Parameter], lr: float) -> None:
        defaults = {"lr": lr, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "decay": 0.01}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter once.

        Parameters
        ----------
        closure : None
            Torch's place for a function that computes the loss again; not used.
        """
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                    state["square"] = torch.zeros_like(p)
                mean, square = state["mean"], state["square"]
                mean.lerp_(p.grad, 1 - group["beta1"])
                square.lerp_(p.grad.square(), 1 - group["beta2"])
                update = mean / (square.sqrt() + group["eps"]) + group["decay"] * p
                p.sub_(group["lr"] * update)


def _make_optimizer(
    name: str, parameters: list[torch.nn.Parameter], learning_rate: float
) -> torch.optim.Optimizer:
    if name == "adam":
        # The fused kernel updates all tensors in one call: the flow has dozens of small ones.
        fused = parameters[0].device.type in ("cpu", "cuda")
        return torch.optim.Adam(parameters, lr=learning_rate, fused=fused)
    if name == "released-code":
        return ReleasedCodeAdam(parameters, lr=learning_rate)
    raise ValueError(f"optimizer is {name!r}; it must be 'adam' or 'released-code'.")


@contextlib.contextmanager
def one_thread_if_small(device: torch.device, numbers: int) -> Iterator[None]:
    """Use one CPU thread for small batches, and put the caller's thread count back at the end.

    A batch of 32 x 768 is so little work that handing it to a second thread costs more than it
    saves, and on a busy machine many times more.
    """
    before = torch.get_num_threads()
    small = device.type == "cpu" and numbers < 1_000_000
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if small:
            torch.set_num_threads(before)


class FlatParameters:
    """The trained parameters as one ``vector``, for as long as training lasts.

    A context: inside it each parameter is a view of its stretch of ``vector``, which is what the
    optimizer sees; afterwards each has memory of its own again.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.vector = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))

    def __enter__(self) -> None:
        stretches = self.vector.detach().split([p.numel() for p in self.parameters])
        for parameter, stretch in zip(self.parameters, stretches, strict=True):
            parameter.grad = None
            parameter.data = stretch.view_as(parameter)

    def __exit__(self, *_: object) -> None:
        for parameter in self.parameters:  # memory of their own again
            parameter.data = parameter.data.clone()

    def take_gradients(self) -> None:
        """Move the gradients of the parts into that of the vector."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.vector.grad = torch.cat([part.flatten() for part in parts])
        for parameter in self.parameters:
            parameter.grad = None
