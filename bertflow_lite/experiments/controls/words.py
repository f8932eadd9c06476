"""Encoders that only count words: controls without any network.

`WordCountEncoder` is the bag of words, plain or weighted by TF-IDF; `WeightedWordVectors` averages
word vectors with weights that fall with a word's frequency (SIF, Arora et al. 2017).  Both learn
their weights from sentences alone, as the calibrators do, and no label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.preprocessing import normalize
from tqdm import tqdm

from bertflow_lite.datasets.pairs import fingerprint_of
from bertflow_lite.encoders.models import packaged_path
from bertflow_lite.encoders.pooling import layer_label
from bertflow_lite.encoders.word_vectors import WordVectorEncoder, load_glove
from bertflow_lite.text import check_sentences, split_words

Weighting = Literal["count", "tfidf"]
Projection = Literal["random", "svd"]
WEIGHTINGS: tuple[Weighting, ...] = ("tfidf", "count")


class WordCountEncoder:
    """Sentence vector = how often each word occurs in it, brought down to few dimensions.

    The vector of all words is long and sparse: `similarities` compares it as it is, while `encode`
    multiplies it by a matrix, so that calibrators, which need a dense space, apply.

    ``"count"`` weighs a word by its share of the sentence, so that the vector times a matrix of
    word vectors is their mean; ``"tfidf"`` takes counts times the inverse document frequency over
    the fitted sentences, rows of length 1 (scikit-learn's defaults).

    ``"random"`` projects by a Gaussian random matrix, one random vector for each word, which keeps
    cosines nearly as they are and has learned nothing; ``"svd"`` by the leading singular directions
    of the fitted sentences (latent semantic analysis), which has seen which words go together.

    ``tokenize`` turns a text into words: BERT's wordpieces, for instance.

    Examples
    --------
    >>> texts = ["the cat sat", "the dog sat", "the cat ran off"]
    >>> tfidf = WordCountEncoder("tfidf", dim=2).fit(texts)
    >>> tfidf.similarities(["the cat sat"], ["sat the cat"]).round(6)
    array([1.])
    >>> tfidf.encode(texts).shape
    (3, 2)
    """

    def __init__(
        self,
        weighting: Weighting = "count",
        projection: Projection = "random",
        dim: int = 384,
        *,
        tokenize: Callable[[str], list[str]] = split_words,
        name: str | None = None,
        random_state: int = 0,
    ) -> None:
        if weighting not in ("count", "tfidf"):
            raise ValueError(f"weighting is {weighting!r}; it must be 'count' or 'tfidf'.")
        if projection not in ("random", "svd"):
            raise ValueError(f"projection is {projection!r}; it must be 'random' or 'svd'.")
        self.weighting = weighting
        self.projection = projection
        self.dim = dim
        self.tokenize = tokenize
        self.name = name or f"{weighting}-{projection}"
        self.random_state = random_state
        self.fingerprint = ""
        self.n_words = 0

    def __repr__(self) -> str:
        return f"WordCountEncoder({self.name!r}, dim={self.dim}, n_words={self.n_words})"

    def fit(self, sentences: Sequence[str]) -> Self:
        """Learn the words, their weights and the projection from sentences, shape (n,)."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.random_projection import GaussianRandomProjection

        texts = check_sentences(sentences)
        kind = CountVectorizer if self.weighting == "count" else TfidfVectorizer
        self._counter = kind(tokenizer=self.tokenize, token_pattern=None, lowercase=False)
        rows = self._counter.fit_transform(texts)
        self.n_words = rows.shape[1]
        if self.n_words <= self.dim:
            raise ValueError(
                f"the sentences have {self.n_words} different words; the projection to "
                f"{self.dim} dimensions needs more. Give more sentences, or a smaller dim."
            )
        options = {"n_components": self.dim, "random_state": self.random_state}
        make = GaussianRandomProjection if self.projection == "random" else TruncatedSVD
        self._projector = make(**options).fit(self._weighted(rows))
        words = self._counter.get_feature_names_out().tolist()
        weights = getattr(self._counter, "idf_", np.ones(1)).round(9).tolist()
        how = [self.weighting, self.projection, self.dim, self.random_state, words, weights]
        self.fingerprint = fingerprint_of(how)
        return self

    def counts(self, sentences: Sequence[str]) -> sparse.csr_matrix:
        """Weighted counts, shape (n, n_words); words that the fit did not see are left out."""
        if not self.n_words:
            raise ValueError(f"{self.name!r} has seen no sentences yet: call fit first.")
        return self._weighted(self._counter.transform(check_sentences(sentences)))

    def similarities(
        self, sentences1: Sequence[str], sentences2: Sequence[str]
    ) -> NDArray[np.float64]:
        """Cosine of the sparse vectors, pair by pair, shape (n,); 0 where one is empty."""
        first, second = (
            normalize(self.counts(texts).astype(np.float64)) for texts in (sentences1, sentences2)
        )
        if first.shape != second.shape:
            raise ValueError(f"{first.shape[0]} sentences cannot be paired with {second.shape[0]}.")
        return np.asarray(first.multiply(second).sum(axis=1)).ravel()

    def encode(
        self, sentences: Sequence[str], layers: Any = "mean", *, progress: bool = False
    ) -> Any:
        """Project the weighted counts, shape (n, dim), float32; ``layers`` as for GloVe."""
        rows = self.counts(sentences)
        out = np.ascontiguousarray(self._projector.transform(rows), dtype=np.float32)
        return {layer_label(choice): out for choice in layers} if isinstance(layers, list) else out

    def _weighted(self, rows: sparse.csr_matrix) -> sparse.csr_matrix:
        return normalize(rows.astype(np.float64), "l1") if self.weighting == "count" else rows


class WeightedWordVectors:
    """Sentence vector = weighted sum of the vectors of its n known words, divided by n.

    A word that has a vector but no weight (`sif_weights`, `idf_weights`) gets that of the unseen.
    """

    def __init__(
        self, base: WordVectorEncoder, weights: Mapping[str, float], unseen: float, name: str
    ) -> None:
        self.base = base
        self.weights = dict(weights)
        self.unseen = unseen
        self.name = name
        self.dim = base.dim
        content = [base.fingerprint, unseen, sorted(self.weights.items())]
        self.fingerprint = fingerprint_of(content)

    def __repr__(self) -> str:
        return f"WeightedWordVectors({self.name!r}, dim={self.dim}, n_words={len(self.weights)})"

    def encode(
        self, sentences: Sequence[str], layers: Any = "mean", *, progress: bool = False
    ) -> Any:
        """Average the weighted vectors, shape (n, dim), float32; ``layers`` as for GloVe."""
        texts = check_sentences(sentences)
        row_of, vectors = self.base.row_of, self.base.vectors
        out = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in enumerate(tqdm(texts, desc="encode", disable=not progress)):
            known = [word for word in split_words(text) if word in row_of]
            if known:
                weights = np.array([self.weights.get(word, self.unseen) for word in known])
                out[row] = weights @ vectors[[row_of[word] for word in known]] / len(known)
        return {layer_label(choice): out for choice in layers} if isinstance(layers, list) else out


def sif_weights(sentences: Sequence[str], a: float = 1e-3) -> dict[str, float]:
    """SIF weights a / (a + p(w)), with p(w) the word's share of the sentences' words.

    Arora et al. (2017) take p from a large corpus and a from 1e-4 to 1e-3.  They also remove the
    first singular direction afterwards: put `TopDirectionRemover` behind.  A word that does not
    occur has p = 0, so weight 1.
    """
    if a <= 0:
        raise ValueError(f"a is {a}; it must be positive (1e-3 is usual).")
    counts = Counter(word for text in check_sentences(sentences) for word in split_words(text))
    total = sum(counts.values())
    return {word: a / (a + count / total) for word, count in counts.items()}


def idf_weights(sentences: Sequence[str]) -> dict[str, float]:
    """Inverse document frequency, ln((1 + n) / (1 + n_w)) + 1, with n_w the sentences that have w.

    It is scikit-learn's smoothed form, as in `WordCountEncoder`.  A word that does not occur would
    have the weight ln(1 + n) + 1.
    """
    texts = check_sentences(sentences)
    counts = Counter(word for text in texts for word in set(split_words(text)))
    return {word: float(np.log((1 + len(texts)) / (1 + n)) + 1) for word, n in counts.items()}


def fit_word_encoders(sentences: Sequence[str]) -> list[Any]:
    """Fit the encoders that count words; those over GloVe have its width, 50."""
    from transformers import AutoTokenizer

    wordpieces = AutoTokenizer.from_pretrained(
        packaged_path("minilm"), local_files_only=True, trust_remote_code=False
    )
    glove = load_glove()
    encoders: list[Any] = [
        WordCountEncoder("count", "random"),
        WordCountEncoder("count", "random", tokenize=wordpieces.tokenize, name="pieces-random"),
        WordCountEncoder("count", "svd"),
        WordCountEncoder("tfidf", "random"),
        WordCountEncoder("tfidf", "svd"),
    ]
    for encoder in encoders:
        encoder.fit(sentences)
    unseen = float(np.log(1 + len(sentences)) + 1)
    return [
        *encoders,
        glove,
        WeightedWordVectors(glove, sif_weights(sentences), 1.0, "glove-sif"),
        WeightedWordVectors(glove, idf_weights(sentences), unseen, "glove-idf"),
    ]
