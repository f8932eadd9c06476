"""Linear calibrators, the flow's rivals in Table 5, as scikit-learn transformers.

`Standardizer` is the paper's SN, `TopDirectionRemover` its NATSV; `Whitener` is the stronger
linear map that came a year later (BERT-whitening, Su et al. 2021).
"""

from __future__ import annotations

import copy
import hashlib
import logging
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin
from sklearn.utils.validation import check_array, check_is_fitted

from bertflow_lite.calibrators.base import (
    RELATIVE_VARIANCE,
    ROUNDING,
    DeadDimensionWarning,
    FloatArray,
    RunningMoments,
    _Calibrator,
    check_varied,
    check_whole,
    live_of,
)
from bertflow_lite.devices import as_array
from bertflow_lite.saving import Arrays

__all__ = ["Standardizer", "TopDirectionRemover", "Whitener"]

logger = logging.getLogger(__name__)


class _MomentCalibrator(_Calibrator):
    """A calibrator that needs only the moments of the embeddings."""

    _full = True  # of the covariances, not only the variances
    _moments: RunningMoments | None = None  # what has been seen; not saved

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from embeddings.

        Parameters
        ----------
        X : array or Tensor, shape (n >= 2, dim); or path of a ``.npy`` file
            Embeddings; finite.  A file or a memory-mapped array that is large is read once, block
            by block: any number of rows fits, and the result is the same.
        y : ignored

        Returns
        -------
        self

        Warns
        -----
        DeadDimensionWarning
            If dimensions have no spread (`Standardizer`), or what comes out is mostly rounding:
            all variance nulled (`TopDirectionRemover`), as many directions kept as there are
            different rows to tell them, or fewer than were asked for (`Whitener`).
        """
        with self._all_or_nothing():
            blocks = self._blocks(X, reset=True, least_rows=2)
            return self._finish(self._sum_up(self._new_moments(), blocks))

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from more embeddings, on top of all those seen since `fit`.

        The order and size of the batches make no difference.  Until two rows that differ have
        been seen, the calibrator counts as not fitted.  `Whitener` and `TopDirectionRemover` find
        the principal directions anew at each call, so large batches are cheaper.

        Parameters
        ----------
        X : array or Tensor, shape (n >= 1, dim); or path of a ``.npy`` file
            Embeddings; finite.
        y : ignored

        Returns
        -------
        self
        """
        begun = self._moments
        if begun is None and hasattr(self, "mean_"):
            raise ValueError(
                f"this {type(self).__name__} was loaded, and the moments it was fitted on are not "
                "stored: it cannot be fitted further. Use fit, or partial_fit on a clone."
            )
        blocks = self._blocks(X, reset=begun is None)
        # A copy: bad input half-way leaves the calibrator as it was.
        moments = copy.copy(begun) if begun else self._new_moments()
        self._moments = self._sum_up(moments, blocks)
        return self._finish(moments) if moments.varied else self

    def _new_moments(self) -> RunningMoments:
        return RunningMoments(full=self._full)

    def _sum_up(self, moments: RunningMoments, blocks: Iterable[FloatArray]) -> RunningMoments:
        checked = False
        for block in blocks:
            if not checked:  # before the work, and at each partial_fit: settings can be changed
                self._check_settings(block.shape[1])
                checked = True
            moments.update(block)
        return moments

    def _finish(self, moments: RunningMoments) -> Self:
        check_varied(moments.count, moments.varied)
        self._moments = moments
        self._learn(moments)
        self._remember_fit()
        return self

    def _check_settings(self, dim: int) -> None:
        """Raise ValueError if a setting does not fit the width."""

    def _learn(self, moments: RunningMoments) -> Self:
        raise NotImplementedError

    @property
    def _matrix(self) -> NDArray[np.float64]:
        """What a centered vector is multiplied by, shape (width out, width in)."""
        raise NotImplementedError


def _whole(short: str, setting: str) -> int:
    try:
        return int(setting)
    except ValueError:
        raise ValueError(f"'{short}:{setting}': {setting!r} is not a whole number.") from None


class Standardizer(OneToOneFeatureMixin, _MomentCalibrator):
    """SN: subtract the mean of each dimension and divide by its standard deviation (Section 4.3).

    Attributes
    ----------
    mean_, scale_ : ndarray, shape (dim,), float64
        What is subtracted and divided by.
    live_ : ndarray of bool, shape (dim,)
        Dimensions with some spread (`find_live`).  The others are only centered: their scale is 1.

    Examples
    --------
    >>> x = np.array([[1.0, 5.0], [3.0, 9.0]])
    >>> Standardizer().fit_transform(x)
    array([[-1., -1.],
           [ 1.,  1.]])

    Batches as they come:

    >>> Standardizer().partial_fit(x[:1]).partial_fit(x[1:]).mean_
    array([2., 7.])
    """

    short = "sn"
    _arrays = ("mean_", "scale_", "live_")
    summary = "SN subtracts the mean of each dimension and divides by its deviation"
    _full = False

    @property
    def _matrix(self) -> NDArray[np.float64]:
        return np.diag(1.0 / self.scale_)

    def _set_arrays(self, width: int, facts: Mapping[str, Any], arrays: Arrays) -> None:
        self.mean_ = arrays.take("mean_", np.float64, (width,))
        self.scale_ = arrays.take("scale_", np.float64, (width,))
        self.live_ = arrays.take("live_", np.bool_, (width,))
        if (self.scale_ <= 0).any():
            raise ValueError("'scale_' holds a deviation that is not positive")

    def _learn(self, moments: RunningMoments) -> Self:
        mean, std = moments.mean, moments.std
        self.live_ = live_of(mean, std, moments.count, stacklevel=5)
        self.mean_ = mean
        self.scale_ = np.where(self.live_, std, 1.0)
        return self

    def _transform(self, x: FloatArray) -> FloatArray:
        return ((x - self.mean_) / self.scale_).astype(x.dtype)

    def inverse_transform(self, X: Any) -> FloatArray:
        """Undo `transform`.

        Parameters
        ----------
        X : array or Tensor, shape (n, dim)
            Calibrated embeddings.

        Returns
        -------
        ndarray, shape (n, dim)
        """
        check_is_fitted(self)
        x = self._check(X, reset=False)
        return (x * self.scale_ + self.mean_).astype(x.dtype)


class TopDirectionRemover(OneToOneFeatureMixin, _MomentCalibrator):
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

    Examples
    --------
    >>> x = np.array([[1.0, 5.0], [3.0, 9.0], [2.0, 8.0]])
    >>> bool(np.linalg.matrix_rank(TopDirectionRemover(1).fit_transform(x), tol=1e-9) == 1)
    True
    """

    short = "natsv"
    _arrays = ("mean_", "directions_")
    summary = "NATSV subtracts the mean and nulls the strongest directions"

    def __init__(self, k: int = 1) -> None:
        self.k = k

    @classmethod
    def _from_short(cls, setting: str, **options: Any) -> Self:
        return cls(_whole(cls.short, setting) if setting else 1)

    @property
    def _matrix(self) -> NDArray[np.float64]:
        identity: NDArray[np.float64] = np.eye(int(self.n_features_in_))
        return identity - self.directions_.T @ self.directions_

    def _set_arrays(self, width: int, facts: Mapping[str, Any], arrays: Arrays) -> None:
        self.mean_ = arrays.take("mean_", np.float64, (width,))
        self.directions_ = arrays.take("directions_", np.float64, (self.k, width))

    def _check_settings(self, dim: int) -> None:
        check_whole("k", self.k)
        if not 0 <= self.k < max(dim, 2):
            raise ValueError(f"k is {self.k}; it must be from 0 to dim - 1 = {dim - 1}.")

    def _learn(self, moments: RunningMoments) -> Self:
        variances, vectors = directions_of(moments.covariance)
        if variances[self.k :].sum() <= RELATIVE_VARIANCE * variances.sum() and len(variances) > 1:
            warnings.warn(
                f"the top {self.k} directions hold all the variance of these {moments.count} rows: "
                "what is left is rounding, and cosines of it mean nothing. Null fewer directions.",
                DeadDimensionWarning,
                stacklevel=4,
            )
        self.mean_ = moments.mean
        self.directions_ = vectors[: self.k]
        return self

    def _transform(self, x: FloatArray) -> FloatArray:
        centered = x - self.mean_
        return (centered - (centered @ self.directions_.T) @ self.directions_).astype(x.dtype)


class Whitener(ClassNamePrefixFeaturesOutMixin, _MomentCalibrator):
    """Whitening: uncorrelated dimensions of variance 1 (Su et al. 2021).

    Parameters
    ----------
    n_components : int, optional
        Keep this many principal directions, strongest first; fewer, with a warning, where fewer
        have a variance above rounding.  Default: all that have.

    Attributes
    ----------
    mean_ : ndarray, shape (dim,), float64
    variances_ : ndarray, shape (n_kept,), float64
        Variance along each kept direction, largest first.
    directions_ : ndarray, shape (n_kept, dim), float64
        The kept directions, unit length.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(100, 4)) * [1, 2, 3, 4] + 5
    >>> whitener = Whitener(n_components=2).fit(x)
    >>> whitener.transform(x).std(axis=0).round(6)
    array([1., 1.])
    >>> list(whitener.get_feature_names_out())
    ['whitener0', 'whitener1']
    """

    short = "whiten"
    _arrays = ("mean_", "variances_", "directions_")
    summary = "whitening turns to the principal directions and gives each variance 1"

    def __init__(self, n_components: int | None = None) -> None:
        self.n_components = n_components

    @classmethod
    def _from_short(cls, setting: str, **options: Any) -> Self:
        return cls(_whole(cls.short, setting) if setting else None)

    @property
    def _matrix(self) -> NDArray[np.float64]:
        return self.directions_ / np.sqrt(self.variances_)[:, None]

    def _set_arrays(self, width: int, facts: Mapping[str, Any], arrays: Arrays) -> None:
        self.mean_ = arrays.take("mean_", np.float64, (width,))
        self.variances_ = arrays.take("variances_", np.float64)
        kept = len(self.variances_)
        if not 1 <= kept <= width or (self.variances_ <= 0).any():
            raise ValueError("'variances_' holds none, too many, or one not positive")
        self.directions_ = arrays.take("directions_", np.float64, (kept, width))

    def _check_settings(self, dim: int) -> None:
        wanted = self.n_components
        if wanted is None:
            return
        check_whole("n_components", wanted)
        if not 1 <= wanted <= dim:
            raise ValueError(f"n_components is {wanted}; it must be from 1 to dim = {dim}.")

    def _new_moments(self) -> RunningMoments:
        return _CountingMoments(full=True)

    def _learn(self, moments: RunningMoments) -> Self:
        variances, directions = directions_of(moments.covariance)
        dim = len(variances)
        usable = int((variances > RELATIVE_VARIANCE * variances[0]).sum())
        wanted = self.n_components or dim
        if usable < wanted:
            logger.info("whitening keeps %d of %d directions: the rest have no variance",
                        usable, dim)  # fmt: skip
        kept = min(usable, wanted)
        if not _warn_of_a_giant(moments.mean, moments.std, kept):
            _warn_of_few_rows(different_rows(moments), self.n_components, kept, dim)
        self.mean_ = moments.mean
        self.variances_ = variances[:kept]
        self.directions_ = directions[:kept]
        return self

    def _transform(self, x: FloatArray) -> FloatArray:
        map_ = self.directions_.T / np.sqrt(self.variances_)
        return ((x - self.mean_) @ map_).astype(x.dtype)

    def inverse_transform(self, X: Any) -> FloatArray:
        """Map back to embeddings.

        Exact for embeddings that lie in the span of the kept directions, as those of the fit do
        when ``n_components`` is not given.

        Parameters
        ----------
        X : array or Tensor, shape (n, n_kept)
            Whitened embeddings.

        Returns
        -------
        ndarray, shape (n, dim)
        """
        check_is_fitted(self)
        z = check_array(as_array(X), dtype=[np.float32, np.float64])
        if z.shape[1] != len(self.variances_):
            raise ValueError(
                f"X has shape {z.shape}; this Whitener gives (n, {len(self.variances_)})."
            )
        back = (z * np.sqrt(self.variances_)) @ self.directions_ + self.mean_
        return back.astype(z.dtype)

    @property
    def _n_features_out(self) -> int:
        return len(self.variances_)


class _CountingMoments(RunningMoments):
    """Moments that also count different rows, up to two more than there are dimensions."""

    prints: frozenset[bytes] = frozenset()  # never changed in place: copies may share it

    def update(self, rows: FloatArray) -> None:
        """Take in rows, shape (n, dim)."""
        super().update(rows)
        prints = set(self.prints)
        for row in rows:
            if len(prints) > rows.shape[1] + 1:
                break
            prints.add(hashlib.blake2b(row.tobytes(), digest_size=16).digest())
        self.prints = frozenset(prints)


def different_rows(moments: RunningMoments) -> int:
    """Count different rows, enough to tell whether they are no more than the dimensions."""
    return len(moments.prints) if isinstance(moments, _CountingMoments) else moments.count


def _warn_of_a_giant(mean: NDArray[np.float64], std: NDArray[np.float64], kept: int) -> bool:
    """Warn where one dimension is so wide that all others are lost in its rounding; say if so."""
    varied = std[std > ROUNDING * np.abs(mean)]
    found = bool(varied.size and np.median(varied) ** 2 <= RELATIVE_VARIANCE * std.max() ** 2)
    if found:
        warnings.warn(
            f"dimension {std.argmax()} varies {std.max() / np.median(varied):.0e} times as much as "
            f"a typical one, so that only {kept} of {len(std)} directions stand out of its "
            "rounding. Divide by the deviations first: Standardizer (sn+whiten).",
            DeadDimensionWarning,
            stacklevel=5,
        )
    return found


def _warn_of_few_rows(different: int, wanted: int | None, kept: int, dim: int) -> None:
    """Warn where the rows cannot tell as many directions as are kept, or as are wanted."""
    said = []
    if wanted is not None and kept < wanted:
        said.append(
            f"n_components is {wanted}, but only {kept} of {dim} directions have any variance, so "
            f"that transform gives {kept} columns."
        )
    if kept >= different - 1:  # a whitened simplex: all corners are equally far apart
        said.append(
            f"There are {different} different rows, and as many directions are kept as they span, "
            f"{kept}: whitened, every two of these rows have the same cosine, bar rounding. Fit on "
            f"many more sentences than the {dim} dimensions, or set n_components far below {kept}."
        )
    if said:
        warnings.warn(" ".join(said), DeadDimensionWarning, stacklevel=5)


def principal_directions(
    x: FloatArray, mean: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Variances, shape (dim,), and unit directions, shape (dim, dim), strongest first."""
    covariance = np.zeros((x.shape[1], x.shape[1]))
    for start in range(0, len(x), 8192):  # a float64 copy of a block, not of everything
        centered = x[start : start + 8192] - mean
        covariance += centered.T @ centered
    return directions_of(covariance / len(x))


def directions_of(
    covariance: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`principal_directions` of embeddings with this covariance, shape (dim, dim)."""
    variances, vectors = np.linalg.eigh(covariance)
    return np.ascontiguousarray(variances[::-1]), np.ascontiguousarray(vectors.T[::-1])
