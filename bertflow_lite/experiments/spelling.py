"""Words or meaning?  Edit distance against similarity (Table 6, Figure 2, Section 4.4).

The paper asks whether a cosine looks at the meaning of two sentences or at how many words they
share.  Its yardstick is the Levenshtein distance: how many words must be put in, taken out or
replaced to turn one sentence into the other.  "Words" is what the numbers say: over the words of
SentEval's STS-B validation pairs, distance and gold score correlate by -24.5 (the paper prints
-24.61); over characters by -20.3.

The yardstick measures length as well: two long sentences are many edits apart whatever they say
(on those pairs, distance and length correlate by 0.87).  So the correlation is also given at equal
length, as a partial rank correlation; that of the gold scores is then -53.

`edit_distances` measures, `score_lexical` correlates, `lexical_similarities` gives two
similarities that know nothing but words, to compare with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rapidfuzz.distance import Levenshtein
from scipy.stats import rankdata

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.measures.scores import Interval, interval_ends, resample
from bertflow_lite.measures.similarity import Floats, as_values, spearman
from bertflow_lite.text import check_sentences, split_words

__all__ = ["UNITS", "LexicalScore", "edit_distances", "lexical_similarities", "score_lexical"]

NEAR = 4
"""The largest edit distance of the pairs that the paper's Figure 2 highlights."""


@dataclass(frozen=True)
class LexicalScore:
    """How one similarity goes with edit distance and with gold; Spearman x 100, 95 % intervals."""

    edit_distance: Interval  # Table 6, first column; below 0: fewer edits, more alike
    gold: Interval  # Table 6, second column
    # At equal length: the partial rank correlation, given the words of the longer sentence.
    edit_distance_given_length: Interval
    # At equal gold score: what the similarity owes to edits and not to meaning.
    edit_distance_given_gold: Interval
    # Both held at once: long pairs have large distances, and lower or higher gold scores, so
    # neither alone is enough.
    edit_distance_given_length_and_gold: Interval
    length: Interval  # with the number of words of the longer sentence
    n_pairs: int
    # The same minus those of the baseline, on the same resampled pairs.
    edit_distance_change: Interval | None = None
    edit_distance_given_length_change: Interval | None = None
    edit_distance_given_length_and_gold_change: Interval | None = None
    gold_change: Interval | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return estimates and interval ends as a dictionary that JSON can hold."""
        wanted = ("estimate", "low", "high")
        return {
            name: {end: value[end] for end in wanted} if isinstance(value, dict) else value
            for name, value in asdict(self).items()
            if value is not None
        }


def score_lexical(
    pairs: SentencePairs,
    similarities: ArrayLike,
    distances: ArrayLike,
    *,
    baseline: ArrayLike | None = None,
    n_resamples: int = 1000,
) -> LexicalScore:
    """Correlate a similarity with edit distance and with the gold score (Table 6).

    The distances are from `edit_distances`; ``baseline`` is another similarity (the raw cosine) to
    take the difference to, on the same resampled pairs.
    """
    columns = {
        "similarity": as_values(similarities, "similarities"),
        "distance": as_values(distances, "distances"),
        "gold": pairs.gold,
        "length": word_counts(pairs),
    }
    if baseline is not None:
        columns["baseline"] = as_values(baseline, "baseline")
    for name, column in columns.items():
        if len(column) != len(pairs):
            raise ValueError(f"There are {len(column)} values of {name}, but {len(pairs)} pairs.")
        if name in ("distance", "gold", "baseline"):
            spearman(columns["similarity"], column)  # raises where it is undefined
    found = _measures(columns)
    rng = np.random.default_rng(0)
    draws = [
        _measures({name: column[chosen] for name, column in columns.items()})
        for _, chosen in resample(np.arange(len(pairs)), n_resamples, rng)
    ]
    intervals: dict[str, Interval] = {}
    for name, estimate in found.items():
        low, high = interval_ends(np.concatenate([draw[name] for draw in draws]))
        intervals[name] = Interval(low, high, float(estimate), 0.95, n_resamples, "all")
    return LexicalScore(n_pairs=len(pairs), **intervals)


def lexical_similarities(
    pairs: SentencePairs, fit_on: Sequence[str] | None = None
) -> dict[str, Floats]:
    """Two similarities that see words only: cosines of word counts, plain and weighted by rarity.

    The rarity of words (TF-IDF) is counted in ``fit_on``, by default the sentences of the pairs.

    Gives ``"bag of words"`` and ``"tf-idf"``; 0 for a sentence without any known word.
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


def word_counts(pairs: SentencePairs) -> Floats:
    """Count the words of each pair's longer sentence; words are what blanks stand between."""
    both = zip(pairs.sentences1, pairs.sentences2, strict=True)
    return np.array([max(len(a.split()), len(b.split())) for a, b in both], dtype=np.float64)


def _measures(columns: dict[str, Floats]) -> dict[str, Floats]:
    """Correlations x 100 along the last axis, under the names of `LexicalScore`."""
    unit = {}
    for name, values in columns.items():
        ranks = rankdata(values, axis=-1)
        ranks = ranks - ranks.mean(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            unit[name] = ranks / np.sqrt((ranks**2).sum(axis=-1, keepdims=True))
    # Where all pairs have the same length, there is nothing to hold equal.
    unit["length"] = np.nan_to_num(unit["length"])

    def correlate(a: str, b: str) -> Floats:
        return np.asarray(np.clip((unit[a] * unit[b]).sum(axis=-1), -1, 1))

    def given(one: str, other: str, *held: str) -> Floats:
        """Partial correlation, by the usual recursion; 0 where one of the two is what is held."""
        if not held:
            return correlate(one, other)
        *rest, last = held
        first, second = given(one, last, *rest), given(other, last, *rest)
        left = (1 - first**2) * (1 - second**2)
        above = given(one, other, *rest) - first * second
        found = np.divide(above, np.sqrt(left), out=np.zeros_like(above), where=~(left < 1e-12))
        return np.asarray(np.clip(found, -1, 1))

    def with_distance(similarity: str) -> dict[str, Floats]:
        return {
            "edit_distance": given(similarity, "distance"),
            "edit_distance_given_length": given(similarity, "distance", "length"),
            "edit_distance_given_length_and_gold": given(similarity, "distance", "length", "gold"),
            "gold": correlate(similarity, "gold"),
        }

    out = {
        **with_distance("similarity"),
        "edit_distance_given_gold": given("similarity", "distance", "gold"),
        "length": correlate("similarity", "length"),
    }
    if "baseline" in columns:
        raw = with_distance("baseline")
        out |= {f"{name}_change": out[name] - values for name, values in raw.items()}
    return {name: 100 * values for name, values in out.items()}


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


def edit_distances(
    first: Sequence[str],
    second: Sequence[str],
    unit: str = "words",
    *,
    normalize: bool = False,
    tokenizer: Any = None,
) -> Floats:
    """Levenshtein distance of each sentence in `first` to the same one in `second`.

    ``unit``, a key of `UNITS`, is what an edit puts in, takes out or replaces; case does not count
    (a tokenizer, for ``"wordpieces"``, follows its own rule). With ``normalize`` it is divided by
    the longer sentence's number of units: 0 (the same) to 1 (nothing in common).

    Examples
    --------
    >>> edit_distances(["I like this restaurant"], ["I dislike this restaurant"]).tolist()
    [1.0]
    >>> edit_distances(["Dog bites man."], ["Man bites dog."], "characters").tolist()
    [6.0]
    """
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


def _splitter(unit: str, tokenizer: Any) -> Callable[[str], Sequence[Any]]:
    if unit not in UNITS:
        raise ValueError(f"unit is {unit!r}; it must be one of: {', '.join(UNITS)}.")
    if unit == "wordpieces":
        if tokenizer is None:
            raise ValueError("wordpieces need a tokenizer: pass tokenizer=encoder.tokenizer.")
        return lambda text: list(tokenizer.tokenize(text))
    splitters: dict[str, Callable[[str], Sequence[Any]]] = {
        "words": lambda text: text.lower().split(),
        "words and marks": split_words,
        "words only": lambda text: [w for w in text.lower().split() if _WORD_LIKE.search(w)],
        "characters": str.lower,
    }
    return splitters[unit]
