"""Word similarity as people rate it (WordSim-353, SimLex-999), and word-level whitening."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertflow_lite.linear import RELATIVE_VARIANCE
from bertflow_lite.paths import tidy_path
from bertflow_lite.similarity import Floats, as_rows, as_values, cosine, spearman
from bertflow_lite.word_table import _HasVocabulary

__all__ = [
    "WORD_SETS",
    "WeightedWhitening",
    "WordPairs",
    "embed_words",
    "load_word_pairs",
    "remove_frequency",
    "score_word_pairs",
]

# Set: its file in gensim's test data, and its number of pairs.
WORD_SETS = {
    "wordsim353": ("wordsim353.tsv", 353),  # relatedness: coffee and cup rate high
    "simlex999": ("simlex999.txt", 999),  # similarity proper: coffee and cup rate low
}


@dataclass(frozen=True)
class WordPairs:
    """Word pairs with people's ratings.

    Attributes
    ----------
    name : str
        A key of `WORD_SETS`.
    words1, words2 : tuple of str
        The words, spelled as in the file.
    ratings : ndarray, shape (n_pairs,)
        Mean rating from 0 to 10, higher for more alike.
    """

    name: str
    words1: tuple[str, ...]
    words2: tuple[str, ...]
    ratings: Floats

    def __len__(self) -> int:
        return len(self.ratings)


def load_word_pairs(name: str, path: str | os.PathLike[str] | None = None) -> WordPairs:
    """Load WordSim-353 (Finkelstein et al. 2002) or SimLex-999 (Hill et al. 2015).

    The gensim package carries both among its test data.  Only the file is read: gensim is not
    imported, and its own requirements need not be installed.

    Parameters
    ----------
    name : {"wordsim353", "simlex999"}
        Which set.
    path : path, optional
        The file, where it lies elsewhere: word, word, rating, separated by tabs.

    Raises
    ------
    FileNotFoundError
        If gensim is not installed; the message says how to get it.
    ValueError
        For an unknown name, a malformed line, or, in gensim's file, a wrong number of pairs.
    """
    key = name.lower().replace("-", "").replace("_", "")
    if key not in WORD_SETS:
        raise ValueError(f"There is no word set {name!r}; there are {', '.join(WORD_SETS)}.")
    file, n_expected = WORD_SETS[key]
    source = gensim_file(file) if path is None else Path(path)
    rows = []
    for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            first, second, rating = line.split("\t")
            rows.append((first, second, float(rating)))
        except ValueError:
            raise ValueError(
                f"{source.name}, line {number}: {line!r} is not word, word, rating, separated by "
                "tabs."
            ) from None
    if path is None and len(rows) != n_expected:
        raise ValueError(
            f"{tidy_path(source)} has {len(rows)} pairs instead of {n_expected}: install gensim "
            "again (pip install --force-reinstall --no-deps gensim)."
        )
    words1, words2, ratings = zip(*rows, strict=True)
    return WordPairs(key, words1, words2, np.array(ratings))


def gensim_file(name: str) -> Path:
    spec = importlib.util.find_spec("gensim")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "test" / "test_data" / name
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"{name} comes with the package gensim, which is not installed (or lacks its test data). "
        "Run: pip install --no-deps gensim"
    )


def embed_words(
    encoder: _HasVocabulary, words: tuple[str, ...] | list[str]
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Input embeddings of words, with a space before them as within a sentence.

    Parameters
    ----------
    encoder : Encoder or LoadedModel
        Whatever has ``model`` and ``tokenizer``.
    words : sequence of str
        The words; the tokenizer lower-cases them where it does so with sentences.

    Returns
    -------
    vectors : ndarray, shape (n, dim), float32
        A word of several tokens gets the mean of their embeddings.
    n_tokens : ndarray of int, shape (n,)
        Tokens of each word.

    Raises
    ------
    ValueError
        If a word has no token.
    """
    matrix = encoder.model.get_input_embeddings().weight.detach().float().cpu().numpy()
    ids = encoder.tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    for word, pieces in zip(words, ids, strict=True):
        if not pieces:
            raise ValueError(f"The tokenizer makes no token of {word!r}.")
    vectors = np.stack([matrix[pieces].mean(axis=0) for pieces in ids])
    return vectors, np.array([len(pieces) for pieces in ids], dtype=np.intp)


def score_word_pairs(pairs: WordPairs, vectors1: ArrayLike, vectors2: ArrayLike) -> float:
    """Spearman x 100 of the cosine of each pair's vectors, shapes (n_pairs, dim), with ratings."""
    return 100 * spearman(cosine(vectors1, vectors2), pairs.ratings)


class WeightedWhitening:
    """Whitening under weights; word frequencies as weights make it Zipfian (Yokoi et al. 2024).

    Subtract the weighted mean, then scale the principal directions of the weighted covariance to
    variance 1.  Uniform weights treat all words alike, so that the tens of thousands of rare ones
    set the mean and the directions; frequencies treat all *occurrences* alike.

    Parameters
    ----------
    vectors : array-like, shape (n, dim)
        Word embeddings to fit on.
    weights : array-like, shape (n,), optional
        At least 0, such as word counts; their scale does not matter.  Default: uniform.

    Attributes
    ----------
    mean : ndarray, shape (dim,)
        The weighted mean.
    matrix : ndarray, shape (dim, n_kept)
        What centered vectors are multiplied by.  Directions without variance are dropped.

    Raises
    ------
    ValueError
        If a weight is negative, all are zero, the lengths differ, or there is no variance.
    """

    def __init__(self, vectors: ArrayLike, weights: ArrayLike | None = None) -> None:
        rows = as_rows(vectors, "the vectors")
        w = np.ones(len(rows)) if weights is None else as_values(weights, "weights")
        if len(w) != len(rows):
            raise ValueError(f"There are {len(rows)} vectors, but {len(w)} weights.")
        if not len(w) or w.min() < 0 or w.sum() == 0:
            raise ValueError("Weights must be at least 0, and one must be above 0.")
        w = w / w.sum()
        self.mean: Floats = w @ rows
        centered = rows - self.mean
        variances, directions = np.linalg.eigh((centered.T * w) @ centered)
        kept = variances > RELATIVE_VARIANCE * variances[-1]
        if variances[-1] <= 0:
            raise ValueError(f"All {len(rows)} vectors are equal: there is no variance to whiten.")
        self.matrix: Floats = directions[:, kept] / np.sqrt(variances[kept])

    def transform(self, vectors: ArrayLike) -> Floats:
        """Whiten vectors, shape (n, dim) -> (n, n_kept)."""
        return np.asarray((as_rows(vectors, "the vectors") - self.mean) @ self.matrix)


def remove_frequency(
    fit_on: NDArray[np.floating[Any]], log_frequency: ArrayLike, vectors: ArrayLike
) -> Floats:
    """Center vectors and null the one direction along which they move with log frequency.

    Parameters
    ----------
    fit_on : ndarray, shape (n, dim)
        Word embeddings from which mean and direction are taken.
    log_frequency : array-like, shape (n,)
        Log frequency of those words. The direction is that of the regression of the embedding on
        it: the covariance of each dimension with log frequency.
    vectors : array-like, shape (m, dim)
        What to change.

    Returns
    -------
    ndarray, shape (m, dim)

    Raises
    ------
    ValueError
        If no dimension goes with frequency.
    """
    rows, f = as_rows(fit_on, "fit_on"), as_values(log_frequency, "log_frequency")
    mean = rows.mean(axis=0)
    direction = (rows - mean).T @ (f - f.mean())
    length = np.linalg.norm(direction)
    if length == 0:
        raise ValueError("No dimension goes with log frequency: there is no direction to remove.")
    direction /= length
    centered = as_rows(vectors, "the vectors") - mean
    return np.asarray(centered - np.outer(centered @ direction, direction))
