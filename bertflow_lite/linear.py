"""Linear calibrators, the flow's rivals in Table 5, as scikit-learn transformers.

`Standardizer` is the paper's SN, `TopDirectionRemover` its NATSV; `Whitener` is the stronger
linear map that came a year later (BERT-whitening, Su et al. 2021).
"""

from __future__ import annotations

import logging
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

__all__ = ["DeadDimensionWarning", "Standardizer", "TopDirectionRemover", "Whitener", "find_live"]

logger = logging.getLogger(__name__)

FloatArray = NDArray[np.floating[Any]]

# A dimension is dead when its spread is this far below the typical one ...
RELATIVE_SPREAD = 1e-6
# ... or is no more than the rounding of float32 around its mean.
ROUNDING = 8 * float(np.finfo(np.float32).eps)
# A principal direction is dropped when its variance is this far below the largest; no dimension
# with a deviation this far below the largest counts as typical.
RELATIVE_VARIANCE = 1e-10


class DeadDimensionWarning(UserWarning):
    """Some dimensions have no spread; the message names them."""


def find_live(x: FloatArray) -> NDArray[np.bool_]:
    """Find the dimensions that have some spread, and warn about the others.

    A dead dimension says nothing about a sentence, but a calibrator that divides by its standard
    deviation blows it up: the last layer of all-MiniLM-L6-v2 has three with a deviation of 1e-32.

    Parameters
    ----------
    x : ndarray, shape (n, dim)
        Embeddings.

    Returns
    -------
    ndarray of bool, shape (dim,)
        True for a dimension to calibrate.

    Raises
    ------
    ValueError
        If no dimension has any spread, that is, if all rows are (nearly) equal.
    """
    mean, std = mean_std(x)
    # The median stands above a few dimensions of huge spread; what is as good as nothing beside
    # the largest is left out of it, so that it also stands when most dimensions are dead.
    typical = np.median(std[std >= RELATIVE_VARIANCE * std.max()])
    live: NDArray[np.bool_] = std > np.maximum(RELATIVE_SPREAD * typical, ROUNDING * np.abs(mean))
    if not live.any():
        raise ValueError(
            f"all {len(x)} rows are (nearly) equal: there is no spread to calibrate. "
            "Give embeddings of sentences that differ."
        )
    if not live.all():
        dead = np.flatnonzero(~live)
        names = ", ".join(map(str, dead[:10])) + (", ..." if len(dead) > 10 else "")
        warnings.warn(
            f"{len(dead)} of {x.shape[1]} dimensions have (nearly) no spread and are carried "
            f"through unchanged: {names}.",
            DeadDimensionWarning,
            stacklevel=3,
        )
    return live


def mean_std(x: FloatArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and (biased) standard deviation of each column, in float64."""
    mean = x.mean(axis=0, dtype=np.float64)
    # Column blocks keep the float64 copy small.
    std = np.empty_like(mean)
    for start in range(0, x.shape[1], 64):
        part = slice(start, start + 64)
        std[part] = np.sqrt(np.mean((x[:, part] - mean[part]) ** 2, axis=0))
    return mean, std


def to_numpy(x: Any) -> Any:
    """Turn a torch tensor, on any device and of any float type, into an array; else give x."""
    if not hasattr(x, "detach"):
        return x
    x = x.detach().cpu()
    return (x if x.dtype.itemsize == 8 else x.float()).numpy()  # NumPy has no bfloat16


class _Calibrator(TransformerMixin, BaseEstimator):
    """Input checks that all calibrators share: finite floats; rows to fit on that differ."""

    _least_features = 1

    def _check(self, x: Any, *, reset: bool) -> FloatArray:
        checked: FloatArray = validate_data(
            self,
            to_numpy(x),
            reset=reset,
            dtype=[np.float32, np.float64],
            ensure_min_samples=2 if reset else 1,
            ensure_min_features=self._least_features if reset else 1,
        )
        if reset and (checked == checked[0]).all():
            raise ValueError(
                f"all {len(checked)} rows are equal: there is no spread to calibrate. "
                "Give embeddings of at least two different sentences."
            )
        return checked

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32", "float64"]
        return tags


class Standardizer(OneToOneFeatureMixin, _Calibrator):
    """SN: subtract the mean of each dimension and divide by its standard deviation (Section 4.4).

    Attributes
    ----------
    mean_, scale_ : ndarray, shape (dim,), float64
        What is subtracted and divided by; 0 and 1 in dead dimensions.
    live_ : ndarray of bool, shape (dim,)
        Dimensions with some spread (`find_live`).

    Examples
    --------
    >>> x = np.array([[1.0, 5.0], [3.0, 9.0]])
    >>> Standardizer().fit_transform(x)
    array([[-1., -1.],
           [ 1.,  1.]])
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn mean and standard deviation from embeddings, shape (n >= 2, dim)."""
        x = self._check(X, reset=True)
        self.live_ = find_live(x)
        mean, std = mean_std(x)
        self.mean_ = np.where(self.live_, mean, 0.0)
        self.scale_ = np.where(self.live_, std, 1.0)
        return self

    def transform(self, X: Any) -> FloatArray:
        """Standardize embeddings, shape (n, dim)."""
        check_is_fitted(self)
        x = self._check(X, reset=False)
        return ((x - self.mean_) / self.scale_).astype(x.dtype)

    def inverse_transform(self, X: Any) -> FloatArray:
        """Undo `transform`."""
        check_is_fitted(self)
        x = self._check(X, reset=False)
        return (x * self.scale_ + self.mean_).astype(x.dtype)


class TopDirectionRemover(OneToOneFeatureMixin, _Calibrator):
    """NATSV: subtract the mean and null the top k singular directions (Mu and Viswanath 2018).

    The nulled directions are gone for good, so there is no inverse.

    Parameters
    ----------
    k : int, default 1
        Number of directions to null; fewer than dim.

    Attributes
    ----------
    mean_ : ndarray, shape (dim,), float64
    directions_ : ndarray, shape (k, dim), float64
        The nulled directions, unit length, strongest first.
    """

    def __init__(self, k: int = 1) -> None:
        self.k = k

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the top directions of embeddings, shape (n >= 2, dim)."""
        x = self._check(X, reset=True)
        if not 0 <= self.k < max(x.shape[1], 2):
            raise ValueError(f"k is {self.k}; it must be from 0 to dim - 1 = {x.shape[1] - 1}.")
        self.mean_ = x.mean(axis=0, dtype=np.float64)
        _, vectors = principal_directions(x, self.mean_)
        self.directions_ = vectors[: self.k]
        return self

    def transform(self, X: Any) -> FloatArray:
        """Subtract the mean and what lies along the top directions; shape (n, dim)."""
        check_is_fitted(self)
        x = self._check(X, reset=False)
        centered = x - self.mean_
        return (centered - (centered @ self.directions_.T) @ self.directions_).astype(x.dtype)


class Whitener(ClassNamePrefixFeaturesOutMixin, _Calibrator):
    """Whitening: uncorrelated dimensions of variance 1 (Su et al. 2021).

    Parameters
    ----------
    n_components : int, optional
        Keep this many principal directions, strongest first.  Default: all whose variance is
        above rounding.

    Attributes
    ----------
    mean_ : ndarray, shape (dim,), float64
    variances_ : ndarray, shape (n_kept,), float64
        Variance along each kept direction, largest first.
    directions_ : ndarray, shape (n_kept, dim), float64
        The kept directions, unit length.
    """

    def __init__(self, n_components: int | None = None) -> None:
        self.n_components = n_components

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find directions and variances of embeddings, shape (n >= 2, dim)."""
        x = self._check(X, reset=True)
        wanted = self.n_components
        if wanted is not None and not 1 <= wanted <= x.shape[1]:
            raise ValueError(f"n_components is {wanted}; it must be from 1 to dim = {x.shape[1]}.")
        self.mean_ = x.mean(axis=0, dtype=np.float64)
        variances, directions = principal_directions(x, self.mean_)
        usable = int((variances > RELATIVE_VARIANCE * variances[0]).sum())
        if usable < min(wanted or x.shape[1], x.shape[1]):
            logger.info("whitening keeps %d of %d directions: the rest have no variance",
                        usable, x.shape[1])  # fmt: skip
        kept = min(usable, wanted or usable)
        self.variances_ = variances[:kept]
        self.directions_ = directions[:kept]
        return self

    def transform(self, X: Any) -> FloatArray:
        """Whiten embeddings, shape (n, dim) -> (n, n_kept)."""
        check_is_fitted(self)
        x = self._check(X, reset=False)
        return ((x - self.mean_) @ self._map()).astype(x.dtype)

    def inverse_transform(self, X: Any) -> FloatArray:
        """Map back to embeddings, shape (n, n_kept) -> (n, dim).

        Exact for embeddings that lie in the span of the kept directions, as those of the fit do
        when ``n_components`` is not given.
        """
        check_is_fitted(self)
        z = check_array(to_numpy(X), dtype=[np.float32, np.float64])
        if z.shape[1] != len(self.variances_):
            raise ValueError(
                f"X has shape {z.shape}; this Whitener gives (n, {len(self.variances_)})."
            )
        back = (z * np.sqrt(self.variances_)) @ self.directions_ + self.mean_
        return back.astype(z.dtype)

    def _map(self) -> NDArray[np.float64]:
        return self.directions_.T / np.sqrt(self.variances_)

    @property
    def _n_features_out(self) -> int:
        return len(self.variances_)


def principal_directions(
    x: FloatArray, mean: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Variances, shape (dim,), and unit directions, shape (dim, dim), strongest first."""
    covariance = np.zeros((x.shape[1], x.shape[1]))
    for start in range(0, len(x), 8192):  # a float64 copy of a block, not of everything
        centered = x[start : start + 8192] - mean
        covariance += centered.T @ centered
    variances, vectors = np.linalg.eigh(covariance / len(x))
    return variances[::-1], vectors.T[::-1]
