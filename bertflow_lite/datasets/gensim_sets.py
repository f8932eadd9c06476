"""Two kinds of sets that the package gensim carries among its test data: texts, and word pairs.

The Lee documents are 50 short news texts, every two of them rated for similarity by people: Lee,
Pincombe and Welsh (2005), "An empirical evaluation of models of text document similarity". At 50 to
130 words a document is longer than an STS sentence, so the set shows what averaging does to longer
texts. WordSim-353 and SimLex-999 are pairs of words, rated for relatedness and for similarity.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.datasets.pairs import fingerprint_of
from bertflow_lite.files import tidy_path

__all__ = ["WORD_SETS", "LeeDocuments", "WordPairs", "gensim_file", "load_lee", "load_word_pairs"]

Floats = NDArray[np.float64]

N_DOCUMENTS = 50
N_BACKGROUND = 300
_FILES = ("lee.cor", "lee_background.cor", "similarities0-1.txt")
# The corpus is in Windows' Western European letters: its one odd character is a pound sign.
_ENCODING = "cp1252"


@dataclass(frozen=True, eq=False)
class LeeDocuments:
    """Documents and how alike people found them.

    Attributes
    ----------
    documents : tuple of str
        The 50 rated documents.
    background : tuple of str
        300 further news texts of the same kind, not rated: to fit a calibrator on.
    similarities : ndarray, shape (50, 50)
        Mean rating of each two documents, symmetric, 1 on the diagonal. People rated from 1
        (highly unrelated) to 5 (highly related), about ten of them each pair; the file has the
        mean divided by 5, so that values lie from 0.2 to 1.
    source : str
        Where the set was found.
    """

    documents: tuple[str, ...]
    background: tuple[str, ...]
    similarities: Floats
    source: str = ""

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        return f"LeeDocuments({len(self)} documents, {len(self.background)} for background)"

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the two documents of each of the 1,225 pairs, i < j, row by row."""
        return np.triu_indices(len(self), k=1)

    @property
    def ratings(self) -> Floats:
        """Mean rating of each pair, in the order of `pairs`, shape (1225,)."""
        return self.similarities[self.pairs]

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over the texts and ratings; the same on every machine."""
        return fingerprint_of(["lee", self.documents, self.background, self.similarities.tolist()])


def load_lee(folder: str | os.PathLike[str] | None = None) -> LeeDocuments:
    """Load the Lee documents from a folder with their three files, by default gensim's test data.

    Only the files are read: gensim is not imported, and its own requirements need not be installed.
    """
    paths = [gensim_file(name) if folder is None else Path(folder) / name for name in _FILES]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise FileNotFoundError(
            f"The folder has no {', '.join(missing)}. They come with the package gensim: leave out "
            "`folder` and run `pip install --no-deps gensim`."
        )
    documents, background = (
        _read_documents(path, count)
        for path, count in zip(paths, (N_DOCUMENTS, N_BACKGROUND), strict=False)
    )
    similarities = _read_similarities(paths[2])
    source = "the package gensim" if folder is None else "folder"
    return LeeDocuments(documents, background, similarities, source)


def _read_documents(path: Path, count: int) -> tuple[str, ...]:
    lines = path.read_bytes().decode(_ENCODING, errors="replace").split("\n")
    documents = tuple(line.strip() for line in lines if line.strip())
    if len(documents) != count:
        raise ValueError(
            f"{path.name} has {len(documents)} documents instead of {count}: install gensim again "
            "(pip install --force-reinstall --no-deps gensim)."
        )
    return documents


def _read_similarities(path: Path) -> Floats:
    """Read the upper triangle that the file has, and mirror it."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), start=1):
        try:
            values = [float(text) for text in line.split()]
        except ValueError:
            values = []
        if len(values) != N_DOCUMENTS or not all(0 <= value <= 1 for value in values):
            raise ValueError(
                f"{path.name}, line {number}: {N_DOCUMENTS} numbers from 0 to 1 are expected."
            )
        rows.append(values)
    if len(rows) != N_DOCUMENTS:
        raise ValueError(f"{path.name} has {len(rows)} rows of ratings instead of {N_DOCUMENTS}.")
    upper = np.triu(np.array(rows))
    return upper + upper.T - np.diag(np.diag(upper))


# Set: its file in gensim's test data, and its number of pairs.
WORD_SETS = {
    "wordsim353": ("wordsim353.tsv", 353),  # relatedness: coffee and cup rate high
    "simlex999": ("simlex999.txt", 999),  # similarity proper: coffee and cup rate low
}


@dataclass(frozen=True)
class WordPairs:
    """Word pairs, spelled as in the file, with people's mean ratings from 0 to 10 (more alike)."""

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
    """Find a file of gensim's test data, without importing gensim."""
    spec = importlib.util.find_spec("gensim")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "test" / "test_data" / name
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"{name} comes with the package gensim, which is not installed (or lacks its test data). "
        "Run: pip install --no-deps gensim"
    )
