"""FlowCalibrator: BERT-flow as a scikit-learn transformer, and calibrators by name."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bertflow_lite.calibrators.base import (
    DeadDimensionWarning,
    FloatArray,
    RunningMoments,
    _Calibrator,
    check_number,
    check_truth,
    check_varied,
    check_whole,
    live_of,
)
from bertflow_lite.devices import find_device
from bertflow_lite.files import MappedRows, map_rows
from bertflow_lite.flow import Glow, kept_dim
from bertflow_lite.saving import Arrays, typed
from bertflow_lite.text import did_you_mean
from bertflow_lite.train import (
    FlowHistory,
    NonFiniteLossError,
    bits_per_dim,
    check_clipping,
    shuffled_batches,
    train_flow,
)

__all__ = ["PRESETS", "FlowCalibrator"]

logger = logging.getLogger(__name__)
# Rows that pass through the flow at once when it is not being trained.
TRANSFORM_ROWS = 4096
PRESETS: dict[str, dict[str, Any]] = {
    # Section 3.2, Appendix B and Table 7.
    "paper": {},
    # What the released code runs by default.  It sums the losses of the two sentences of a pair,
    # each a mean over 32 pairs, and clips that sum's gradient at 1: the same as clipping the
    # gradient of the mean over 64 sentences at 0.5, since its optimizer ignores the scale.
    "released-code": {
        "levels": 3,
        "permutation": "reverse",
        "data_init": False,
        "optimizer": "released-code",
        "batch_size": 64,
        "max_grad_norm": 0.5,
    },
    # Chosen by `python -m bertflow_lite ablation` on validation sets: the paper's flow, started as
    # whitening, with noise that keeps it from blowing up directions of little variance.
    "recommended": {"rotation": "pca", "noise": 0.7, "init_rows": 16384},
}
"""Settings of `FlowCalibrator` by name, where they differ from its defaults, the paper's."""


class FlowCalibrator(OneToOneFeatureMixin, _Calibrator):
    """Map embeddings to a standard Gaussian latent by a normalizing flow (Section 3, Eq. 4).

    ``fit`` needs no labels.  ``transform`` is the paper's f^-1, ``inverse_transform`` its f.
    The defaults are the paper's (Table 7 and Appendix B, target data); `from_preset` has others.

    Parameters
    ----------
    levels, depth, width : int, default 2, 3, 32
        Size of the flow (`Glow`).
    permutation : {"random", "reverse", "none"}, default "random"
        Reordering between couplings.
    actnorm, coupling : bool, default True
        Leave a layer out, for the ablation.
    rotation : {"none", "pca"}, default "none"
        ``"pca"`` turns the space to its principal directions first (`Rotation`); neither the paper
        nor its code does.
    noise : float, default 0.0
        Gaussian noise on the embeddings while fitting, never in ``transform``, as a multiple of a
        typical dimension's standard deviation: directions of little variance are then not blown
        up (`bertflow_lite.calibrators.flow_calibrator`).
    data_init : bool, default True
        Initialize rotation and actnorms from data before training.
    init_rows : int, default 4096
        Largest number of rows, drawn at random, that the initialization looks at.
    epochs : int, default 1
        Passes over the data.
    min_steps : int, default 0
        Train for more epochs where ``epochs`` of them give fewer optimizer steps than this: small
        data sets then get enough training.
    batch_size : int, default 32
        Sentences in a training batch.
    learning_rate : float, default 1e-3
        Constant learning rate.
    optimizer : {"adam", "released-code"}, default "adam"
        See `train_flow`.
    max_grad_norm : float or None, default 1.0
        Gradient clipping; more than 0.  None clips nothing.
    random_state : int, None, numpy.random.Generator or numpy.random.RandomState, default 0
        Seed of initial weights, permutations, initialization rows and batch order.  Only a number
        makes a fit repeatable: of a generator a number is drawn, and None is another one at each
        fit.  ``seed_`` tells which.
    device : str, optional
        Where the flow runs; default: the GPU if there is one, else the CPU.
    progress : bool, default False
        Show a progress bar while fitting.

    Attributes
    ----------
    flow_ : Glow
        The trained flow, over the live dimensions.
    live_ : ndarray of bool, shape (dim,)
        Dimensions with some spread.  The others are only centered, so that a constant does not
        dominate cosines.
    dead_mean_ : ndarray, shape (dim,), float64
        What is subtracted from the others; 0 in live dimensions.
    seed_ : int
        The seed of this fit: ``random_state``, or what was drawn for it.
    history_ : FlowHistory
        Loss of each step, in bits per dimension.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = (rng.normal(size=(500, 8)) * 3 + 7).astype(np.float32)
    >>> flow = FlowCalibrator(random_state=0).fit(x)
    >>> z = flow.transform(x)
    >>> z.shape, bool(abs(z.mean()) < 0.1), bool(abs(z.std() - 1) < 0.1)
    ((500, 8), True, True)
    >>> bool(np.allclose(flow.inverse_transform(z), x, atol=1e-4))
    True
    """

    short = "flow"
    summary = "BERT-flow maps to a standard Gaussian by an invertible network"
    _arrays = ("live_", "dead_mean_")
    _least_features = 2

    def __init__(
        self,
        levels: int = 2,
        depth: int = 3,
        width: int = 32,
        permutation: str = "random",
        *,
        actnorm: bool = True,
        coupling: bool = True,
        rotation: str = "none",
        noise: float = 0.0,
        data_init: bool = True,
        init_rows: int = 4096,
        epochs: int = 1,
        min_steps: int = 0,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        optimizer: str = "adam",
        max_grad_norm: float | None = 1.0,
        random_state: int | np.random.Generator | np.random.RandomState | None = 0,
        device: str | None = None,
        progress: bool = False,
    ) -> None:
        self.levels = levels
        self.depth = depth
        self.width = width
        self.permutation = permutation
        self.actnorm = actnorm
        self.coupling = coupling
        self.rotation = rotation
        self.noise = noise
        self.data_init = data_init
        self.init_rows = init_rows
        self.epochs = epochs
        self.min_steps = min_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.max_grad_norm = max_grad_norm
        self.random_state: Any = random_state
        self.device = device
        self.progress = progress

    @classmethod
    def from_preset(cls, name: str, **changes: Any) -> Self:
        """Make a calibrator with the settings of a preset.

        Parameters
        ----------
        name : {"paper", "released-code", "recommended"}
            ``"paper"``: Table 7.  ``"released-code"``: three levels, channel reversal, no
            data-dependent initialization, its own optimizer.  ``"recommended"``: the paper's flow
            with a rotation to principal directions first, and noise while fitting; what does best
            on validation sets.
        **changes
            Settings that replace the preset's.

        Returns
        -------
        FlowCalibrator
            Not fitted.
        """
        if name not in PRESETS:
            hint = did_you_mean(name, PRESETS)
            raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}.{hint}")
        return cls(**{**PRESETS[name], **changes})

    @classmethod
    def _from_short(cls, setting: str, **options: Any) -> Self:
        return cls.from_preset(setting or "paper", **options)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the flow to embeddings by maximum likelihood (Eq. 4).

        Parameters
        ----------
        X : array or Tensor, shape (n >= 2, dim >= 2); or path of a ``.npy`` file
            Embeddings; finite.  A file or a memory-mapped array that is large stays on disk: it
            is read once to find the live dimensions, then row by row for each batch, so that any
            number of rows fits, and the result is that of the same array in memory.
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If fewer than two dimensions have any spread, the input is not finite, a setting is of
            the wrong type or out of range.  The calibrator is then as it was before the call.
        NonFiniteLossError, OutOfMemoryError, KeyboardInterrupt
            If training diverges, a batch does not fit in memory, or somebody interrupts.  The flow
            as it was after the last whole step is kept and can be used.
        """
        with self._all_or_nothing():
            return self._fit(X)

    def _fit(self, X: Any) -> Self:
        self._check_settings()
        seed = draw_seed(self.random_state)
        device = find_device(self.device)
        found = map_rows(X)
        moments = RunningMoments()
        for block in self._blocks(X if found is None else found, reset=True, least_rows=2):
            moments.update(block)
            x = block  # the whole, unless it lies on disk
        check_varied(moments.count, moments.varied)
        live = live_of(moments.mean, moments.std, moments.count, stacklevel=5)
        # float64 for float64, but not on Apple's GPUs, which have none.
        double = x.dtype == np.float64 and device.type != "mps"
        dtype = torch.float64 if double else torch.float32
        generator = torch.Generator().manual_seed(seed)
        first_rows = torch.randperm(moments.count, generator=generator)[: self.init_rows]
        if isinstance(found, MappedRows):
            on_disk = found
            live = _varies(live, on_disk.take(first_rows.numpy()))

            def take(rows: Tensor) -> Tensor:
                part = np.ascontiguousarray(on_disk.take(rows.numpy())[:, live])
                return torch.from_numpy(part).to(device, dtype)
        else:
            live = _varies(live, x[first_rows.numpy()])
            data = torch.from_numpy(np.ascontiguousarray(x[:, live])).to(device, dtype)

            def take(rows: Tensor) -> Tensor:
                return data[rows.to(device)]

        sample = take(first_rows)
        dead_mean = np.where(live, 0.0, moments.mean)
        steps = max(1, moments.count // self.batch_size)
        epochs = max(self.epochs, -(-self.min_steps // steps)) if self.epochs else 0
        flow = self._new_flow(int(live.sum()), seed).to(device, dtype)
        spread = float(sample.std(dim=0, correction=0).median())
        if epochs and spread < self.learning_rate:  # Adam's first steps are of that size
            warnings.warn(
                f"the embeddings' typical deviation is {spread:.0e}, less than one step "
                f"(learning_rate {self.learning_rate:g}), so training may lead nowhere. Lower "
                "learning_rate, or multiply embeddings that small by a constant first.",
                RuntimeWarning,
                stacklevel=3,
            )
        batch_size = min(self.batch_size, moments.count)
        batches = shuffled_batches(take, moments.count, batch_size, seed)
        noisy_sample = sample
        if self.noise:
            noisy_sample, batches = add_noise(sample, batches, self.noise, seed=seed)
        if self.data_init:
            flow.initialize(noisy_sample, axes_from=sample)
        history = FlowHistory()
        fitted = {"live_": live, "dead_mean_": dead_mean, "seed_": seed, "history_": history}
        try:
            train_flow(
                flow,
                batches,
                epochs=epochs,
                learning_rate=self.learning_rate,
                optimizer=self.optimizer,
                max_grad_norm=self.max_grad_norm,
                seed=seed,
                progress=self.progress,
                steps=steps,
                history=history,
            )
        except (KeyboardInterrupt, NonFiniteLossError, MemoryError) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            if interrupted or history.steps:
                reason = "interrupted" if interrupted else "training failed"
                logger.warning("%s: the flow after %d steps is kept", reason, history.steps)
                self._keep(flow, **fitted)
            raise
        return self._keep(flow, **fitted)

    def _new_flow(self, dim: int, seed: int) -> Glow:
        return Glow(
            dim,
            self.levels,
            self.depth,
            self.width,
            self.permutation,
            actnorm=self.actnorm,
            coupling=self.coupling,
            rotation=self.rotation,
            seed=seed,
        )

    def _check_settings(self) -> None:
        """Raise ValueError if a setting is of the wrong type or out of range."""
        for name in ("levels", "depth", "width", "batch_size"):
            check_whole(name, getattr(self, name), 1)
        for name, least in (("init_rows", 2), ("epochs", 0), ("min_steps", 0)):
            check_whole(name, getattr(self, name), least)
        for name in ("actnorm", "coupling", "data_init"):
            check_truth(name, getattr(self, name))
        for name in ("noise", "learning_rate"):
            check_number(name, getattr(self, name))
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise ValueError(f"noise is {self.noise!r}; it must be a number from 0 up.")
        check_clipping(self.max_grad_norm)

    def _keep(self, flow: Glow, **fitted: Any) -> Self:
        self.__dict__.update(fitted, flow_=flow.eval().requires_grad_(False))
        self._remember_fit()
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "flow_")

    def _get_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        facts, arrays = super()._get_state()
        history = self.history_
        facts["training"] = {
            "steps": history.steps,
            "epochs": len(history.epoch_loss),
            "first_bits_per_dim": float(history.loss[0]) if history.loss else None,
            "last_bits_per_dim": float(history.epoch_loss[-1]) if history.epoch_loss else None,
            "seconds": float(history.seconds),
        }
        return facts, arrays

    def _get_arrays(self) -> dict[str, NDArray[Any]]:
        arrays = super()._get_arrays()
        for name, value in self.flow_.state_dict().items():
            arrays[f"flow_.{name}"] = value.detach().cpu().numpy()
        for name in ("loss", "epoch_loss"):
            arrays[f"history_.{name}"] = np.array(getattr(self.history_, name), dtype=np.float64)
        return arrays

    def _set_arrays(self, width: int, facts: Mapping[str, Any], arrays: Arrays) -> None:
        self.live_ = arrays.take("live_", np.bool_, (width,))
        self.dead_mean_ = arrays.take("dead_mean_", np.float64, (width,))
        if self.dead_mean_[self.live_].any():
            raise ValueError("'dead_mean_' holds a mean of a dimension that is not dead")
        self.seed_ = check_whole("random_state", self.random_state)
        seconds = typed(typed(facts, "training", dict), "seconds", int, float)
        self.history_ = FlowHistory(
            loss=arrays.take("history_.loss", np.float64).tolist(),
            epoch_loss=arrays.take("history_.epoch_loss", np.float64).tolist(),
            seconds=seconds,
        )
        names = [name for name in arrays.left if name.startswith("flow_.")]
        self._check_settings()
        dim, size = int(self.live_.sum()), sum(arrays.left[name].size for name in names)
        _check_two(self.live_)
        # Settings that ask for far more than the file holds must not eat the memory first: each
        # step has a permutation, two arrays, and each coupling a weight of width x width.
        n_levels, rest = 1, dim
        while n_levels < self.levels and kept_dim(rest) >= 2:
            n_levels, rest = n_levels + 1, kept_dim(rest)
        if (
            2 * n_levels * self.depth > len(names)
            or (self.coupling and self.width**2 > size)
            or (self.rotation != "none" and dim**2 > size)
        ):
            raise ValueError("the flow's settings ask for more arrays than there are")
        flow = self._new_flow(dim, self.seed_)
        floats = {arrays.left[name].dtype for name in names if arrays.left[name].dtype.kind == "f"}
        if floats - {np.dtype(np.float32), np.dtype(np.float64)} or len(floats) > 1:
            raise ValueError("the flow's arrays are not all float32 or all float64")
        flow = flow.to(torch.float64 if np.dtype(np.float64) in floats else torch.float32)
        state = {}
        for name, like in flow.state_dict().items():
            wanted = like.numpy()
            taken = arrays.take(f"flow_.{name}", wanted.dtype, wanted.shape)
            state[name] = torch.from_numpy(taken)
        flow.load_state_dict(state)
        flow.check_state()
        self.flow_ = flow.eval().requires_grad_(False)

    def _transform(self, x: FloatArray) -> FloatArray:
        return self._map(x, lambda part: self.flow_(part)[0], -self.dead_mean_)

    def inverse_transform(self, X: Any) -> FloatArray:
        """Map latents back to embeddings.

        Parameters
        ----------
        X : array or Tensor, shape (n, dim)
            Latents; finite.

        Returns
        -------
        ndarray, shape (n, dim)
            float64 for float64 input, else float32.
        """
        check_is_fitted(self)
        z = self._check(X, reset=False)
        return self._map(z, lambda part: self.flow_.inverse(part), self.dead_mean_)

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Log-density of each embedding over the live dimensions (Eq. 4 without the mean).

        Parameters
        ----------
        X : array or Tensor, shape (n, dim)
            Embeddings; finite.

        Returns
        -------
        ndarray of float64, shape (n,)
            Natural logarithms.
        """
        check_is_fitted(self)
        x = self._check(X, reset=False)
        parts = self._tensor(x[:, self.live_]).split(TRANSFORM_ROWS)
        with torch.inference_mode():
            return torch.cat([self.flow_.log_prob(part) for part in parts]).double().cpu().numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-density per embedding (larger is better).

        Parameters
        ----------
        X : array or Tensor, shape (n, dim)
            Embeddings; finite.
        y : ignored

        Returns
        -------
        float
            In natural logarithms.
        """
        return float(self.score_samples(X).mean())

    def bits_per_dim(self, X: Any) -> float:
        """Mean negative log-density in bits per live dimension (smaller is better).

        Parameters
        ----------
        X : array or Tensor, shape (n, dim)
            Embeddings; finite.

        Returns
        -------
        float
        """
        check_is_fitted(self)
        x = self._check(X, reset=False)
        return bits_per_dim(self.flow_, self._tensor(x[:, self.live_]))

    def _map(
        self, x: FloatArray, function: Callable[[Tensor], Tensor], shift: NDArray[np.float64]
    ) -> FloatArray:
        """Map the live dimensions by ``function``, and add ``shift`` to the dead ones."""
        out = x.copy()
        dead = np.flatnonzero(~self.live_)
        out[:, dead] = x[:, dead] + shift[dead]
        parts = self._tensor(x[:, self.live_]).split(TRANSFORM_ROWS)
        with torch.inference_mode():
            out[:, self.live_] = torch.cat([function(part) for part in parts]).cpu().numpy()
        if not np.isfinite(out).all():
            row = int(np.flatnonzero(~np.isfinite(out).all(axis=1))[0])
            warnings.warn(
                f"row {row} maps to a non-finite value: it lies far outside the data that the "
                "flow was fitted on.",
                RuntimeWarning,
                stacklevel=3,
            )
        return out

    def _tensor(self, x: FloatArray) -> Tensor:
        first = self.flow_.weight_like()
        first = torch.zeros(()) if first is None else first
        return torch.from_numpy(np.ascontiguousarray(x)).to(first)


def draw_seed(random_state: Any) -> int:
    """Give the seed that a ``random_state`` stands for, as in scikit-learn.

    But None takes fresh randomness of the machine, never NumPy's global state.
    """
    if random_state is None:
        random_state = np.random.default_rng()
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    return check_whole("random_state", random_state)


# A smaller sample is repeated, each time with other noise, to this many rows or more: what the
# noise alone spans, the directions that few sentences leave empty, is then well measured, too.
SAMPLE_ROWS = 2048


def add_noise(
    sample: Tensor, batches_of: Callable[[int], Iterator[Tensor]], noise: float, *, seed: int
) -> tuple[Tensor, Callable[[int], Iterator[Tensor]]]:
    """Add fresh Gaussian noise to the sample and, whenever they are asked for, to the batches.

    Its deviation, the same in all directions, is ``noise`` times a typical (the median) dimension's
    standard deviation: a few dimensions of a language model can be a hundred times wider than all
    others.  The rows come in the order in which they would have come without.
    """
    size = noise * float(sample.std(dim=0, correction=0).median())

    def batches(epoch: int) -> Iterator[Tensor]:
        generator = _generator(seed, epoch + 1)
        for batch in batches_of(epoch):
            yield _noisy(batch, size, generator)

    sample = sample.repeat(-(-SAMPLE_ROWS // len(sample)), 1)
    return _noisy(sample, size, _generator(seed, 0)), batches


def _generator(seed: int, epoch: int) -> torch.Generator:
    # Far from the seeds beside it, and the same on every device: the noise is drawn on the CPU.
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch * 7_919 + 17) % 2**63)


def _noisy(rows: Tensor, size: float, generator: torch.Generator) -> Tensor:
    return rows + size * torch.randn(rows.shape, generator=generator, dtype=rows.dtype).to(rows)


def _varies(live: NDArray[np.bool_], sample: FloatArray) -> NDArray[np.bool_]:
    """Leave out, with a warning, what is constant among the rows that initialize the flow.

    A dimension that varies in a few other rows only would be scaled up by its rounding.
    """
    steady = np.flatnonzero(live & (sample == sample[0]).all(axis=0))
    if steady.size:
        warnings.warn(
            f"{steady.size} of {len(live)} dimensions vary in so few rows that none is among the "
            f"{len(sample)} drawn for the initialization; they are centered, their scale left "
            f"unchanged: {', '.join(map(str, steady[:10]))}.",
            DeadDimensionWarning,
            stacklevel=5,
        )
    live = live.copy()
    live[steady] = False
    _check_two(live)
    return live


def _check_two(live: NDArray[np.bool_]) -> None:
    if live.sum() < 2:
        raise ValueError(
            f"only {live.sum()} of {len(live)} dimensions has any spread; the flow needs two."
        )
