"""Sentences in a plane: several spaces laid out together, and how far such a map can be trusted.

UMAP draws what is near in a space near in the plane.  One UMAP for all spaces (`AlignedUMAP`) lets
a sentence move from one space to the next, where separate ones would make all of them jump.  A
plane cannot keep what many directions hold: `make_map` says how much it keeps.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.word_counts import load_word_counts, mean_log_frequency
from bertflow_lite.experiments.runs import round_numbers
from bertflow_lite.experiments.scoring import calibrated, different_sentences
from bertflow_lite.measures.similarity import Floats

FEWEST = 30
JUDGED = 10  # neighbors that the plane is judged by
SHOWN = 5  # neighbors whose numbers and cosines are kept
N_TOPICS = 6


def make_spaces(
    encoder: Any,
    texts: Sequence[str],
    layers: Any,
    weights: str | None = None,
    calibrators: Sequence[str] = ("flow",),
    seed: int = 0,
    progress: bool = False,
) -> dict[str, NDArray[Any]]:
    """Encode sentences: raw, by weighted means, and calibrated by what is fitted on them."""
    raw = encoder.encode(texts, layers, progress=progress)
    spaces = {"none": raw}
    if weights is not None:
        counts = encoder.token_weights(texts, weights)
        spaces[weights] = encoder.encode(texts, layers, weights=counts, progress=progress)
    return spaces | {
        name: calibrated(name, raw, raw, seed=seed, progress=progress) for name in calibrators
    }


def make_map(spaces: Mapping[str, ArrayLike], *, random_state: int = 0) -> dict[str, Any]:
    """Lay out spaces of the same sentences, the first one raw, and measure what a map of it keeps.

    Gives ``height``, where the width is 1000, and for each space, by name: ``x`` and ``y``;
    ``neighbors`` and ``cosines``, the five nearest in the space itself, the nearest first;
    ``kept_on_map``, the share of the ten nearest in the space that are among the ten nearest on the
    map; ``trustworthiness``, near 1 where what is near on the map is near in the space; and
    ``kept_of_raw``, the share of the ten nearest in the first space that are so here.
    """
    from sklearn.manifold import trustworthiness

    arrays = {name: np.asarray(space, dtype=np.float32) for name, space in spaces.items()}
    sizes = {len(space) for space in arrays.values()}
    if len(arrays) < 2 or len(sizes) > 1:
        raise ValueError(f"a map compares two or more spaces of the same sentences: {sizes}.")
    if (n := sizes.pop()) < FEWEST:
        raise ValueError(f"{n} sentences are too few for a map: bring at least {FEWEST}.")
    places = _lay_out(list(arrays.values()), random_state)
    steps: dict[str, Any] = {}
    first: NDArray[Any] | None = None
    for (name, space), place in zip(arrays.items(), places, strict=True):
        near, distances = _neighbors(space, "cosine")
        first = near if first is None else first
        steps[name] = {
            "x": np.rint(place[:, 0]).astype(int),
            "y": np.rint(place[:, 1]).astype(int),
            "neighbors": near[:, :SHOWN],
            "cosines": np.round(1 - distances[:, :SHOWN].astype(float), 3),
            "kept_on_map": shared(near, _neighbors(place, "euclidean")[0]),
            "trustworthiness": float(
                trustworthiness(space, place, n_neighbors=JUDGED, metric="cosine")
            ),
            "kept_of_raw": shared(first, near),
        }
    height = int(np.ceil(max(place[:, 1].max() for place in places)))
    found: dict[str, Any] = round_numbers({"height": height, "steps": steps})
    return found


def shared(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Give the share of the neighbors in ``one`` that are in the same row of ``other``."""
    return float((one[:, :, None] == other[:, None, :]).any(axis=2).mean())


def _neighbors(space: NDArray[Any], metric: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Find each row's nearest others, the nearest first, and their distances."""
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=JUDGED, metric=metric).fit(space)
    distances, near = search.kneighbors()
    return near, distances


def check_umap() -> str:
    """Give the version of umap-learn without importing it; an error says how to get it."""
    try:
        return version("umap-learn")
    except PackageNotFoundError:
        raise ModuleNotFoundError(
            "a map needs umap-learn: pip install 'bertflow-lite[maps]'."
        ) from None


def _lay_out(spaces: Sequence[NDArray[Any]], random_state: int) -> list[Floats]:
    """Give coordinates in a field that is 1000 wide, at one scale, and at least as wide as high."""
    check_umap()
    from umap import AlignedUMAP

    same = {row: row for row in range(len(spaces[0]))}
    umap = AlignedUMAP(metric="cosine", random_state=random_state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a seed makes it use one thread
        umap.fit(list(spaces), relations=[same] * (len(spaces) - 1))
    every = np.concatenate([np.asarray(one, dtype=np.float64) for one in umap.embeddings_])
    # Turned as a whole, so that it is widest from left to right: that changes no distance.
    middle = every - every.mean(axis=0)
    turned = middle @ np.linalg.svd(middle, full_matrices=False)[2].T
    turned -= turned.min(axis=0)
    places: list[Floats] = np.split(1000 * turned / turned.max(), len(spaces))
    return places


def describe_sentences(
    texts: Sequence[str], pairs: SentencePairs | None = None
) -> dict[str, pd.Categorical[Any]]:
    """Sort sentences in the ways that a map can be colored by: a group for each sentence.

    By length and by rarity of their words (each in five groups of about equal size, in order), by
    topic (of the words that sentences share: no model is asked); those of pairs by kind and style,
    where there are such.
    """
    edges, lengths = _fifths(np.array([len(text.split()) for text in texts]))
    names = [f"up to {edges[0]} words"]
    names += [f"{a + 1} to {b}" if b > a + 1 else f"{b}" for a, b in pairwise(edges)]
    names += [f"{edges[-1] + 1} and more"]
    found = {"length": pd.Categorical.from_codes(lengths, pd.Index(names), ordered=True)}
    edges, rarity = _fifths(-mean_log_frequency(texts, load_word_counts()))
    names = ["frequent", *(f"{k}" for k in range(2, len(edges) + 1)), "rare"]
    found["rarity of words"] = pd.Categorical.from_codes(rarity, pd.Index(names), ordered=True)
    found["topic"] = _topics(texts)
    if pairs is not None:
        rows = np.array(different_sentences(pairs)[0]) % len(pairs)
        for name, labels in (("kind of pair", pairs.kinds), ("style", pairs.styles)):
            if labels is not None:
                found[name] = pd.Categorical(labels[rows])
    return found


def _fifths(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Give the edges between fifths of the values, and the fifth of each; fewer, where many tie."""
    edges = np.unique(np.quantile(values, [0.2, 0.4, 0.6, 0.8], method="lower"))
    return edges, np.searchsorted(edges, values)


def _topics(texts: Sequence[str]) -> pd.Categorical[Any]:
    """Name each sentence's topic by the three words that weigh most in it."""
    from sklearn.decomposition import NMF
    from sklearn.feature_extraction.text import TfidfVectorizer

    none = "none of these words"
    tfidf = TfidfVectorizer(stop_words="english", min_df=2)
    try:
        counts = tfidf.fit_transform(texts)
    except ValueError:  # no word occurs twice
        return pd.Categorical([none] * len(texts))
    model = NMF(min(N_TOPICS, *counts.shape), init="nndsvda", random_state=0, max_iter=500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few more steps would change no name
        shares = model.fit_transform(counts)
    words = tfidf.get_feature_names_out()
    tops = [np.argsort(-row)[:3] for row in model.components_]
    names = [", ".join(words[top]) for top in tops]
    # A sentence is of a topic whose name it has a word of.
    shares *= np.stack([counts[:, top].toarray().any(axis=1) for top in tops], axis=1)
    best = np.where(shares.max(axis=1) > 0, shares.argmax(axis=1), len(names))
    labels = np.array([*names, none])[best]
    return pd.Categorical(labels, [*dict.fromkeys(names), none])
