"""Two kinds of sets that the package gensim carries among its test data: texts, and word pairs.

The Lee documents are 50 short news texts, every two of them rated for similarity by people: Lee,
Pincombe and Welsh (2005), "An empirical evaluation of models of text document similarity". At 50 to
130 words a document is longer than an STS sentence, so the set shows what averaging does to longer
texts. WordSim-353 and SimLex-999 are pairs of words, rated for relatedness and for similarity.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["WORD_SETS", "LeeDocuments", "WordPairs", "gensim_file", "load_lee", "load_word_pairs"]

Floats = NDArray[np.float64]
N_DOCUMENTS = 50
# The corpus is in Windows' Western European letters: its one odd character is a pound sign.
_ENCODING = "cp1252"


@dataclass(frozen=True, eq=False)
class LeeDocuments:
    """Documents and how alike people found them."""

    documents: tuple[str, ...]  # the 50 rated documents
    background: tuple[str, ...]  # 300 news texts of the same kind, not rated: to fit on
    # Mean rating of each two documents, symmetric, 1 on the diagonal; shape (50, 50). People rated
    # from 1 (highly unrelated) to 5 (highly related), about ten of them each pair; the file has the
    # mean divided by 5, so that values lie from 0.2 to 1.
    similarities: Floats

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the two documents of each of the 1,225 pairs, i < j, row by row."""
        return np.triu_indices(len(self), k=1)

    @property
    def ratings(self) -> Floats:
        """Mean rating of each pair, in the order of `pairs`, shape (1225,)."""
        return self.similarities[self.pairs]


def load_lee() -> LeeDocuments:
    """Load the Lee documents out of gensim's test data: its files are read, it is not imported."""
    documents, background = (
        tuple(map(str.strip, gensim_file(name).read_text(_ENCODING).strip().split("\n")))
        for name in ("lee.cor", "lee_background.cor")
    )
    upper = np.triu(np.loadtxt(gensim_file("similarities0-1.txt")))
    similarities = upper + upper.T - np.diag(np.diag(upper))
    return LeeDocuments(documents, background, similarities)


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


def load_word_pairs(name: str) -> WordPairs:
    """Load ``"wordsim353"`` (Finkelstein et al. 2002) or ``"simlex999"`` (Hill et al. 2015)."""
    lines = gensim_file(WORD_SETS[name][0]).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    words1, words2, ratings = zip(*rows, strict=True)
    return WordPairs(name, words1, words2, np.array(ratings, dtype=np.float64))


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
