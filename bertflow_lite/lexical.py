"""Words or meaning?  Edit distance against similarity (Table 6, Figure 2, Section 4.4).

The paper asks whether a cosine looks at the meaning of two sentences or at how many words they
share.  Its yardstick is the Levenshtein distance: how many words must be put in, taken out or
replaced to turn one sentence into the other.  "Words" is what the numbers say: over the words of
SentEval's STS-B validation pairs, distance and gold score correlate by -24.5 (the paper prints
-24.61); over characters by -20.3.

`edit_distances` measures, `score_lexical` correlates, `lexical_similarities` gives two
similarities that know nothing but words, to compare with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap

from bertflow_lite.evaluate import Interval, bootstrap_difference, bootstrap_interval
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.similarity import Floats, as_values, rank_correlation
from bertflow_lite.text import check_sentences, split_words

__all__ = [
    "NEAR",
    "UNITS",
    "LexicalScore",
    "edit_distances",
    "lexical_similarities",
    "score_lexical",
]

NEAR = 4
"""The largest edit distance of the pairs that the paper's Figure 2 highlights."""

_WORD_LIKE = re.compile(r"\w")

UNITS: dict[str, str] = {
    "words": "what stands between spaces: the paper's, on SentEval's text, which has its "
    "punctuation set apart",
    "words and marks": "words and single punctuation marks: for text as people type it",
    "words only": "what stands between spaces and holds a letter or a digit",
    "characters": "characters, spaces included",
    "wordpieces": "the encoder's own tokens",
}
"""What an edit changes: the names that `edit_distances` takes, and what each means."""


@dataclass(frozen=True)
class LexicalScore:
    """How one similarity goes with edit distance and with gold; Spearman x 100, 95 % intervals.

    Parameters
    ----------
    edit_distance : Interval
        With edit distance (Table 6, first column). Below 0: fewer edits, more alike.
    gold : Interval
        With the gold score (Table 6, second column).
    edit_distance_given_gold : Interval
        With edit distance once the gold score is accounted for (partial rank correlation): what
        the similarity owes to words and not to meaning. The gold score's own is 0.
    n_pairs : int
        Number of pairs.
    edit_distance_change, gold_change : Interval or None
        The first two minus those of the baseline, on the same resampled pairs.
    """

    edit_distance: Interval
    gold: Interval
    edit_distance_given_gold: Interval
    n_pairs: int
    edit_distance_change: Interval | None = None
    gold_change: Interval | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return estimates and interval ends as a dictionary that JSON can hold."""
        wanted = ("estimate", "low", "high")
        return {
            name: {end: value[end] for end in wanted} if isinstance(value, dict) else value
            for name, value in asdict(self).items()
            if value is not None
        }


def edit_distances(
    first: Sequence[str],
    second: Sequence[str],
    unit: str = "words",
    *,
    normalize: bool = False,
    tokenizer: Any = None,
) -> Floats:
    """Levenshtein distance of each sentence in `first` to the same one in `second`.

    Parameters
    ----------
    first, second : sequence of str, length n
        The sentences of the pairs. Case does not count (a tokenizer follows its own rule).
    unit : str, default "words"
        What an edit puts in, takes out or replaces: a key of `UNITS`.
    normalize : bool, default False
        Divide by the longer sentence's number of units: 0 (the same) to 1 (nothing in common).
    tokenizer : transformers tokenizer, optional
        For ``unit="wordpieces"``: `Encoder.tokenizer`.

    Returns
    -------
    ndarray of float64, shape (n,)
        In units (whole numbers), or from 0 to 1.

    Raises
    ------
    ValueError
        If the lengths differ, the unit is unknown, or wordpieces lack their tokenizer.

    Examples
    --------
    >>> edit_distances(["I like this restaurant"], ["I dislike this restaurant"]).tolist()
    [1.0]
    >>> edit_distances(["Dog bites man."], ["Man bites dog."], "characters").tolist()
    [6.0]
    """
    # Imported here: the package should import where only the rest of it is used.
    from rapidfuzz.distance import Levenshtein

    one, two = check_sentences(first), check_sentences(second)
    if len(one) != len(two):
        raise ValueError(
            f"There are {len(one)} first sentences, but {len(two)} second ones; a pair needs both."
        )
    split = _splitter(unit, tokenizer)
    measure = Levenshtein.normalized_distance if normalize else Levenshtein.distance
    return np.array(
        [measure(split(a), split(b)) for a, b in zip(one, two, strict=True)], dtype=np.float64
    )


def score_lexical(
    pairs: SentencePairs,
    similarities: ArrayLike,
    distances: ArrayLike,
    *,
    baseline: ArrayLike | None = None,
    n_resamples: int = 1000,
    random_state: int = 0,
) -> LexicalScore:
    """Correlate a similarity with edit distance and with the gold score (Table 6).

    Parameters
    ----------
    pairs : SentencePairs
        The pairs.
    similarities : array-like, shape (n_pairs,)
        Such as the cosines of raw or of calibrated embeddings.
    distances : array-like, shape (n_pairs,)
        From `edit_distances`.
    baseline : array-like, shape (n_pairs,), optional
        Another similarity (the raw cosine) to take the difference to.
    n_resamples : int, default 1000
        Bootstrap resamples of the pairs.
    random_state : int, default 0
        Seed of the resamples.

    Returns
    -------
    LexicalScore

    Raises
    ------
    ValueError
        If a length is wrong, a value is not finite, or a correlation is undefined because all
        values of one side are the same.
    """
    values, edits = as_values(similarities, "similarities"), as_values(distances, "distances")
    if len(edits) != len(pairs):
        raise ValueError(f"There are {len(edits)} distances, but {len(pairs)} pairs.")
    # The bootstrap correlates with whatever stands in the place of the gold score.
    by_distance = replace(pairs, gold=edits)
    options: dict[str, Any] = {"n_resamples": n_resamples, "random_state": random_state}
    changes: dict[str, Interval] = {}
    if baseline is not None:
        changes = {
            "edit_distance_change": bootstrap_difference(by_distance, values, baseline, **options),
            "gold_change": bootstrap_difference(pairs, values, baseline, **options),
        }
    return LexicalScore(
        edit_distance=bootstrap_interval(by_distance, values, **options),
        gold=bootstrap_interval(pairs, values, **options),
        edit_distance_given_gold=_partial_interval(
            values, edits, pairs.gold, n_resamples, random_state
        ),
        n_pairs=len(pairs),
        **changes,
    )


def lexical_similarities(
    pairs: SentencePairs, fit_on: Sequence[str] | None = None
) -> dict[str, Floats]:
    """Two similarities that see words only: cosines of word counts, plain and weighted by rarity.

    Parameters
    ----------
    pairs : SentencePairs
        The pairs.
    fit_on : sequence of str, optional
        Sentences that the rarity of words (TF-IDF) is counted in; default: those of the pairs.

    Returns
    -------
    dict
        ``"bag of words"`` and ``"tf-idf"``, each an array of shape (n_pairs,); 0 for a sentence
        without any known word.
    """
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    texts, n = list(fit_on) if fit_on is not None else pairs.sentences, len(pairs)
    out: dict[str, Floats] = {}
    for name, kind in (("bag of words", CountVectorizer), ("tf-idf", TfidfVectorizer)):
        vectorizer = kind(tokenizer=split_words, lowercase=False, token_pattern=None)
        counts = vectorizer.fit(texts).transform(pairs.sentences).astype(np.float64)
        norms = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
        products = np.asarray(counts[:n].multiply(counts[n:]).sum(axis=1)).ravel()
        scale = norms[:n] * norms[n:]
        out[name] = np.divide(products, scale, out=np.zeros(n), where=scale > 0)
    return out


def _splitter(unit: str, tokenizer: Any) -> Callable[[str], Sequence[Any]]:
    if unit not in UNITS:
        raise ValueError(f"unit is {unit!r}; it must be one of: {', '.join(UNITS)}.")
    if unit == "wordpieces":
        if tokenizer is None:
            raise ValueError("wordpieces need a tokenizer: pass tokenizer=encoder.tokenizer.")
        return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])
    splitters: dict[str, Callable[[str], Sequence[Any]]] = {
        "words": lambda text: text.lower().split(),
        "words and marks": split_words,
        "words only": lambda text: [w for w in text.lower().split() if _WORD_LIKE.search(w)],
        "characters": str.lower,
    }
    return splitters[unit]


def _partial(similarity: Floats, distance: Floats, gold: Floats, axis: int = -1) -> Floats:
    """Rank correlation of the first two, given the third: r_sd.g of the usual formula, x 100."""
    sd, sg, dg = (
        rank_correlation(a, b)
        for a, b in ((similarity, distance), (similarity, gold), (distance, gold))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(100 * (sd - sg * dg) / np.sqrt((1 - sg**2) * (1 - dg**2)))


def _partial_interval(
    similarity: Floats, distance: Floats, gold: NDArray[np.float64], n: int, seed: int
) -> Interval:
    """95 % percentile interval of the partial correlation over resampled pairs."""
    estimate = float(_partial(similarity, distance, gold))
    if not np.isfinite(estimate):  # the similarity, or the distance, is the gold score
        return Interval(0.0, 0.0, 0.0, 0.95, n, "all")
    drawn = bootstrap(
        (similarity, distance, gold),
        _partial,
        paired=True,
        vectorized=True,
        n_resamples=n,
        batch=max(1, 2_000_000 // len(gold)),
        method="percentile",
        random_state=seed,
    ).bootstrap_distribution
    low, high = np.quantile(drawn[np.isfinite(drawn)], [0.025, 0.975])
    return Interval(float(low), float(high), estimate, 0.95, n, "all")
