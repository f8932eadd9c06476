"""The normalizing flow: an invertible map from sentence embeddings to a standard Gaussian.

A layer is an invertible function with a cheap log-determinant.  All layers here speak the same
two sentences::

    z, log_det = layer(u)          # forward: data -> latent, the paper's f^-1
    u = layer.inverse(z)           # inverse: latent -> data, the paper's f

Shapes are ``(batch, dim)``.  ``log_det`` is ``log |det dz/du|`` in natural logarithms.  In this
family it is the same for every row (actnorm scales by a learned constant, permutation and additive
coupling keep volume), so it is a single number: the flow can bend the space, but it stretches it
by the same factor everywhere.

`Glow` stacks the layers as the paper does (Section 3.2 and Appendix A): at each level, ``depth``
steps of actnorm, permutation and additive coupling; between levels, half of the dimensions leave
for the latent and the other half goes on.  `Rotation` is ours: an optional first layer.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ActNorm", "AdditiveCoupling", "Glow", "Layer", "Permutation", "Rotation"]

# Glow's code learns log-scales divided by this number, so that one optimizer step moves a scale
# by exp(3 * lr), not exp(lr).  The released BERT-flow code keeps it, and so do we.
LOG_SCALE_FACTOR = 3.0
# Added to a standard deviation before dividing by it in the data-dependent initialization.
STD_EPSILON = 1e-6
# A principal direction whose deviation is this far below the largest is no more than rounding.
RELATIVE_SPREAD = 1e-5


class Layer(nn.Module):
    """An invertible function of vectors with a cheap log-determinant: what every layer can do."""

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Map data to the latent, the paper's f^-1.

        Parameters
        ----------
        u : Tensor, shape (batch, dim)

        Returns
        -------
        z : Tensor, shape (batch, dim)
        log_det : Tensor, shape ()
            ``log |det dz/du|``, the same for every row.
        """
        raise NotImplementedError

    def inverse(self, z: Tensor) -> Tensor:
        """Map the latent back to data, the paper's f.

        Parameters
        ----------
        z : Tensor, shape (batch, dim)

        Returns
        -------
        Tensor, shape (batch, dim)
        """
        raise NotImplementedError

    def initialize(self, sample: Tensor) -> None:
        """Set from data what can be; a layer without such values leaves itself as it is.

        Parameters
        ----------
        sample : Tensor, shape (n, dim)
            At least two rows of what enters the layer.
        """


class ActNorm(Layer):
    """Shift and scale each dimension: ``z = (u + bias) * exp(3 * log_scale)``.

    The *data-dependent initialization* (`initialize`) sets bias and scale so that the sample it is
    given leaves with mean 0 and standard deviation 1 in every dimension.  Without it the layer
    keeps small random values, as the released code does (``paper_vs_code``: the initialization is
    written there but never runs).

    Parameters
    ----------
    dim : int
        Number of dimensions.
    generator : torch.Generator, optional
        Source of the random values that stand until `initialize` is called.
    """

    def __init__(self, dim: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        # TensorFlow's default for a variable of shape (1, dim), which the released code gets.
        limit = math.sqrt(6.0 / (1 + dim))
        self.bias = nn.Parameter(_uniform(dim, limit, generator))
        self.log_scale = nn.Parameter(_uniform(dim, limit, generator))

    @torch.no_grad()
    def initialize(self, sample: Tensor) -> None:
        """Set bias and scale so that a sample leaves with mean 0 and deviation 1."""
        std = sample.std(dim=0, correction=0)
        self.bias.copy_(-sample.mean(dim=0))
        self.log_scale.copy_(-torch.log(std + STD_EPSILON) / LOG_SCALE_FACTOR)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Shift, then scale; ``log_det`` is the sum of the log-scales."""
        log_scale = LOG_SCALE_FACTOR * self.log_scale
        return (u + self.bias) * log_scale.exp(), log_scale.sum()

    def inverse(self, z: Tensor) -> Tensor:
        """Scale back, then shift back."""
        return z * torch.exp(-LOG_SCALE_FACTOR * self.log_scale) - self.bias


class Permutation(Layer):
    """Reorder the dimensions, so that the next coupling moves those that the last one left alone.

    Parameters
    ----------
    dim : int
        Number of dimensions.
    kind : {"random", "reverse", "none"}
        ``"random"`` draws a fixed order (the paper); ``"reverse"`` turns the order round (the
        released code); ``"none"`` keeps it.
    generator : torch.Generator, optional
        Source of the random order.
    """

    order: Tensor
    restore: Tensor

    def __init__(
        self, dim: int, kind: str = "random", generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if kind == "random":
            order = torch.randperm(dim, generator=generator)
        elif kind == "reverse":
            order = torch.arange(dim - 1, -1, -1)
        elif kind == "none":
            order = torch.arange(dim)
        else:
            raise ValueError(f"permutation is {kind!r}; it must be 'random', 'reverse' or 'none'.")
        self.kind = kind
        self.register_buffer("order", order)
        self.register_buffer("restore", torch.argsort(order))

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Reorder the dimensions, which does not change the volume: ``log_det`` is 0."""
        if self.kind == "none":
            return u, u.new_zeros(())
        # Reordering rows of the identity has determinant +1 or -1: the log of its size is 0.
        return u.index_select(1, self.order), u.new_zeros(())

    def inverse(self, z: Tensor) -> Tensor:
        """Put the dimensions back into their first order."""
        return z if self.kind == "none" else z.index_select(1, self.restore)


class Rotation(Layer):
    """Turn the space so that the axes are the principal directions of a sample, strongest first.

    An orthogonal matrix keeps volume, as a permutation does, which it generalizes.  It is set
    once from data (`initialize`) and not trained; until then it is the identity.  With an actnorm
    after it the flow starts as full whitening, which the paper's flow, whose actnorms know the
    dimensions one by one only, must learn.  Neither the paper nor its code has this layer.

    Parameters
    ----------
    dim : int
        Number of dimensions.
    """

    matrix: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(dim))

    @torch.no_grad()
    def initialize(self, sample: Tensor) -> None:
        """Set the axes to the principal directions of a sample, found in float64."""
        sample = sample.cpu().double()  # Apple's GPUs have no float64
        centered = sample - sample.mean(dim=0)
        _, vectors = torch.linalg.eigh(centered.T @ centered / len(sample))
        axes = vectors.flip(1).T  # eigh gives the weakest direction first
        # An eigenvector's sign is arbitrary: make the largest entry positive, on every machine.
        largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))
        self.matrix.copy_(axes * largest.sign())

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate, which keeps volume: ``log_det`` is 0."""
        return u @ self.matrix.T, u.new_zeros(())

    def inverse(self, z: Tensor) -> Tensor:
        """Rotate back: the inverse of an orthogonal matrix is its transpose."""
        return z @ self.matrix


class CouplingNetwork(nn.Module):
    """The function g of Eq. 6: three linear maps, ``dim_in -> width -> width -> dim_out``.

    The first two have no bias; each is followed by an inner `ActNorm` (its log-determinant is of
    no interest, since g need not be invertible) and a ReLU.  The last one starts at zero, so that
    a new coupling is the identity, and has a bias and a learned output scale.
    """

    def __init__(
        self, dim_in: int, dim_out: int, width: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.weight1 = nn.Parameter(_normal(width, dim_in, generator))
        self.norm1 = ActNorm(width, generator)
        self.weight2 = nn.Parameter(_normal(width, width, generator))
        self.norm2 = ActNorm(width, generator)
        self.weight3 = nn.Parameter(torch.zeros(dim_out, width))
        self.bias3 = nn.Parameter(torch.zeros(dim_out))
        self.log_scale3 = nn.Parameter(torch.zeros(dim_out))

    def forward(self, x: Tensor) -> Tensor:
        """Give the shift, shape (batch, dim_in) -> (batch, dim_out)."""
        hidden = _linear_actnorm_relu(x, self.weight1, self.norm1)
        hidden = _linear_actnorm_relu(hidden, self.weight2, self.norm2)
        out = F.linear(hidden, self.weight3, self.bias3)
        return out * torch.exp(LOG_SCALE_FACTOR * self.log_scale3)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Initialize both inner actnorms from ``x``, shape (n >= 2, dim_in)."""
        hidden = F.linear(x, self.weight1)
        self.norm1.initialize(hidden)
        hidden = F.linear(F.relu(self.norm1(hidden)[0]), self.weight2)
        self.norm2.initialize(hidden)


class AdditiveCoupling(Layer):
    """Shift the second half by a function of the first (Eq. 5-8): ``z2 = u2 + g(u1)``.

    The Jacobian is triangular with ones on its diagonal: volume is kept, and the inverse needs no
    inverse of g.  An odd width is split so that the first part is the larger by one.

    Parameters
    ----------
    dim : int
        Number of dimensions, 2 or more.
    width : int
        Width of the hidden layers of g (32 in Table 7).
    generator : torch.Generator, optional
        Source of the initial weights.
    """

    def __init__(self, dim: int, width: int = 32, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.kept = kept_dim(dim)
        self.network = CouplingNetwork(self.kept, dim - self.kept, width, generator)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Add g of the first half to the second (Eq. 5 and 6); ``log_det`` is 0 (Eq. 8)."""
        u1, u2 = u.split([self.kept, u.shape[1] - self.kept], dim=1)
        return torch.cat([u1, u2 + self.network(u1)], dim=1), u.new_zeros(())

    def inverse(self, z: Tensor) -> Tensor:
        """Subtract g of the first half, which the coupling left as it was (Eq. 7)."""
        z1, z2 = z[:, : self.kept], z[:, self.kept :]
        return torch.cat([z1, z2 - self.network(z1)], dim=1)

    def initialize(self, sample: Tensor) -> None:
        """Initialize the actnorms inside g."""
        self.network.initialize(sample[:, : self.kept])


class Split(nn.Module):
    """Between levels: the first half goes on, the second is finished and joins the latent.

    No learned prior stands between the halves (the released code has none either): each part of
    the latent is a standard Gaussian by itself.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.kept = kept_dim(dim)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Cut vectors in two: what goes on (the larger half), and what is finished."""
        going_on, finished = u.split([self.kept, u.shape[1] - self.kept], dim=1)
        return going_on, finished

    def inverse(self, going_on: Tensor, finished: Tensor) -> Tensor:
        """Join the two halves again."""
        return torch.cat([going_on, finished], dim=1)


class Glow(nn.Module):
    """The flow of the paper: levels of (actnorm, permutation, additive coupling) steps.

    Parameters
    ----------
    dim : int
        Embedding width, 2 or more; odd widths are fine.
    levels : int, default 2
        Number of levels (Table 7: 2; the released code's default: 3).  A level needs at least two
        dimensions, so narrow embeddings get fewer levels; `levels` tells how many there are.
    depth : int, default 3
        Steps at each level (Table 7).
    width : int, default 32
        Hidden width of the coupling networks (Table 7).
    permutation : {"random", "reverse", "none"}, default "random"
        See `Permutation`.
    actnorm, coupling : bool, default True
        Leave one of the two layers out, for the ablation.
    rotation : {"none", "pca"}, default "none"
        ``"pca"`` puts a `Rotation` before everything else; `initialize` sets it.
    seed : int, default 0
        Seed of the initial weights and of the random permutations.

    Notes
    -----
    Parameters at width 768: 127,872 with two levels, 151,488 with three.

    Examples
    --------
    >>> flow = Glow(6, levels=2, seed=1)
    >>> u = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    >>> flow.initialize(u)
    >>> z, log_det = flow(u)
    >>> torch.allclose(flow.inverse(z), u, atol=1e-5)
    True
    """

    def __init__(
        self,
        dim: int,
        levels: int = 2,
        depth: int = 3,
        width: int = 32,
        permutation: str = "random",
        *,
        actnorm: bool = True,
        coupling: bool = True,
        rotation: str = "none",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if rotation not in ("none", "pca"):
            raise ValueError(f"rotation is {rotation!r}; it must be 'none' or 'pca'.")
        sizes: dict[str, tuple[Any, int]] = {
            "dim": (dim, 2),
            "levels": (levels, 1),
            "depth": (depth, 1),
            "width": (width, 1),
        }
        for name, (value, least) in sizes.items():
            if not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} is {value!r}; a flow needs a whole {name} >= {least}.")
        generator = torch.Generator().manual_seed(seed)
        self.dim = dim
        self.steps = nn.ModuleList()  # one ModuleList of layers for each level
        self.splits = nn.ModuleList()  # one fewer than levels
        while True:
            first = rotation == "pca" and not self.steps
            layers: list[Layer] = [Rotation(dim)] if first else []
            for _ in range(depth):
                layers += [ActNorm(dim, generator)] if actnorm else []
                layers += [Permutation(dim, permutation, generator)]
                layers += [AdditiveCoupling(dim, width, generator)] if coupling else []
            self.steps.append(nn.ModuleList(layers))
            if len(self.steps) == levels or kept_dim(dim) < 2:
                break
            self.splits.append(Split(dim))
            dim = kept_dim(dim)

    @property
    def levels(self) -> int:
        """Number of levels that were built."""
        return len(self.steps)

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Map embeddings to the latent.

        Parameters
        ----------
        u : Tensor, shape (batch, dim)
            Embeddings.

        Returns
        -------
        z : Tensor, shape (batch, dim)
            The latent: what each level finished, in order, and last what the top level gave.
        log_det : Tensor, shape ()
            ``log |det dz/du|``, the same for every row.
        """
        self._check(u)
        finished: list[Tensor] = []
        log_det = u.new_zeros(())
        for level, layers in enumerate(self.steps):
            for layer in layers:  # type: ignore[attr-defined]
                u, change = layer(u)
                if isinstance(layer, ActNorm):  # the other layers keep volume: nothing to add
                    log_det = log_det + change
            if level < len(self.splits):
                u, done = self.splits[level](u)
                finished.append(done)
        return torch.cat([*finished, u], dim=1), log_det

    def inverse(self, z: Tensor) -> Tensor:
        """Map latents back to embeddings, the paper's f.

        Parameters
        ----------
        z : Tensor, shape (batch, dim)
            Latents, in the flow's float type and on its device.

        Returns
        -------
        Tensor, shape (batch, dim)
        """
        self._check(z)
        finished: list[Tensor] = []
        for split in self.splits:
            count = z.shape[1] - split.kept  # type: ignore[operator]
            finished.append(z[:, :count])
            z = z[:, count:]
        for level in reversed(range(self.levels)):
            if level < len(self.splits):
                z = self.splits[level].inverse(z, finished[level])  # type: ignore[operator]
            for layer in reversed(list(self.steps[level])):  # type: ignore[call-overload]
                z = layer.inverse(z)
        return z

    def log_prob(self, u: Tensor) -> Tensor:
        """Log-density of each embedding (Eq. 4 without the expectation).

        Parameters
        ----------
        u : Tensor, shape (batch, dim)
            Embeddings.

        Returns
        -------
        Tensor, shape (batch,)
            ``log N(z; 0, I) + log |det dz/du|``, natural logarithm.
        """
        z, log_det = self(u)
        return standard_normal_log_prob(z) + log_det

    @torch.no_grad()
    def sample(self, n: int, seed: int = 0) -> Tensor:
        """Draw embeddings: Gaussian latents through the inverse.

        Parameters
        ----------
        n : int
            How many.
        seed : int, default 0
            Seed of the latents.

        Returns
        -------
        Tensor, shape (n, dim)
        """
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(n, self.dim, generator=generator)
        first = self.weight_like()
        return self.inverse(z if first is None else z.to(first))

    @torch.no_grad()
    def initialize(self, sample: Tensor, axes_from: Tensor | None = None) -> None:
        """Data-dependent initialization of rotation and actnorms, in order, from one sample.

        Parameters
        ----------
        sample : Tensor, shape (n, dim)
            Embeddings, at least two rows.  More rows give steadier scales: the whole training
            set is a good choice, one batch is what the paper's source code has in mind.
        axes_from : Tensor, shape (m, dim), optional
            Rows whose principal directions the rotation takes, where they should not be those of
            ``sample`` (which may have noise in it).
        """
        self._check(sample)
        if len(sample) < 2:
            raise ValueError(
                f"the initialization sample has {len(sample)} row(s); it needs at least 2, "
                "since one row has no spread."
            )
        for level, layers in enumerate(self.steps):
            for layer in layers:  # type: ignore[attr-defined]
                if isinstance(layer, Rotation):
                    layer.initialize(sample if axes_from is None else axes_from)
                    sample = _fill_flat(layer(sample)[0])
                    continue
                layer.initialize(sample)
                sample = layer(sample)[0]
            if level < len(self.splits):
                sample = self.splits[level](sample)[0]

    def check_state(self) -> None:
        """Raise ValueError if a permutation or a rotation that was loaded is none."""
        for module in self.modules():
            if isinstance(module, Permutation):
                whole = torch.arange(len(module.order), device=module.order.device)
                orders = torch.equal(module.order.sort().values, whole)
                if not orders or not torch.equal(module.restore, torch.argsort(module.order)):
                    raise ValueError("a permutation is no order of the dimensions")
            elif isinstance(module, Rotation):
                matrix = module.matrix.double()
                if (matrix @ matrix.T - torch.eye(len(matrix)).to(matrix)).abs().max() > 1e-3:
                    raise ValueError("a rotation is none: its inverse would be wrong")

    def weight_like(self) -> Tensor | None:
        """Give some tensor of the flow's device and dtype; None if it holds no real number.

        Returns
        -------
        Tensor or None
        """
        tensors = (*self.parameters(), *self.buffers())
        return next((t for t in tensors if t.is_floating_point()), None)

    def _check(self, x: Tensor) -> None:
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(
                f"the flow was built for shape (batch, {self.dim}) and got {tuple(x.shape)}."
            )
        weight = self.weight_like()
        weight = x if weight is None else weight
        if x.dtype != weight.dtype:
            raise ValueError(
                f"the flow's weights are {weight.dtype} and it got {x.dtype}; convert one of them, "
                "for example by x.float()."
            )


def standard_normal_log_prob(z: Tensor) -> Tensor:
    """Log-density of N(0, I) for each row of ``z``, shape (batch, dim) -> (batch,)."""
    return -0.5 * (z.square().sum(dim=1) + z.shape[1] * math.log(2 * math.pi))


def kept_dim(dim: int) -> int:
    """Size of the first half of ``dim`` dimensions, the larger half when ``dim`` is odd."""
    return (dim + 1) // 2


def _fill_flat(rotated: Tensor) -> Tensor:
    """Give principal directions without spread a large one, so that no actnorm blows them up.

    The output of a layer normalization has such a direction, since it lies in a hyperplane.
    Where there are too few rows to tell what has no spread from what was not seen, refuse.
    """
    std = rotated.std(dim=0, correction=0)
    flat = std <= RELATIVE_SPREAD * std.max()
    if not flat.any():
        return rotated
    if len(rotated) <= rotated.shape[1]:
        raise ValueError(
            f"{len(rotated)} rows have no spread along {int(flat.sum())} of {rotated.shape[1]} "
            "principal directions, and rotation 'pca' would divide by it. Give more rows than "
            "dimensions, add noise (FlowCalibrator's noise), or leave the rotation out."
        )
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(rotated.shape, generator=generator, dtype=rotated.dtype).to(rotated)
    return torch.where(flat, std.max() * noise, rotated)


def _linear_actnorm_relu(x: Tensor, weight: Tensor, norm: ActNorm) -> Tensor:
    """``relu(actnorm(x W^T))``; the product adds the shift itself, and nobody asks for log-det."""
    return F.relu(F.linear(x, weight, norm.bias) * torch.exp(LOG_SCALE_FACTOR * norm.log_scale))


def _uniform(dim: int, limit: float, generator: torch.Generator | None) -> Tensor:
    return (2 * torch.rand(dim, generator=generator) - 1) * limit


def _normal(rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    return 0.05 * torch.randn(rows, columns, generator=generator)
