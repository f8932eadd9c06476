"""How often words occur: counts from Wikipedia, their small file, and wordfreq's second opinion.

The counts file (``data/wiki_word_counts.tsv.gz``) holds the 50,000 most frequent words of the
Wikipedia text that the project counts, so that nobody needs the text itself.
"""

from __future__ import annotations

import gzip
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.files import data_file, tidy_path
from bertflow_lite.text import check_sentences

__all__ = [
    "WordCounts",
    "count_words",
    "find_words",
    "load_word_counts",
    "mean_log_frequency",
    "save_word_counts",
]

COUNTS_FILE = "wiki_word_counts.tsv.gz"
# Letters, with apostrophes inside ("don't", "o'clock"), that touch no digit: "1990s" and "19th"
# hold no word. The second + forbids to give letters back, so that "ab3" holds no "a".
WORD = re.compile(r"(?<![^\W_])[^\W\d_]++(?:['’][^\W\d_]++)*+(?!\d)")


@dataclass(frozen=True)
class WordCounts:
    """Words, lower-cased, with their counts, most frequent first and by the alphabet among equals.

    ``total`` counts those that were not kept too; ``source`` says what was counted.
    """

    words: tuple[str, ...]
    counts: NDArray[np.int64]
    total: int
    source: str

    @cached_property
    def rank(self) -> dict[str, int]:
        """Frequency rank of each word: 0 for the most frequent."""
        return {word: rank for rank, word in enumerate(self.words)}

    def log_frequency(self, words: Sequence[str]) -> NDArray[np.float64]:
        """Natural logarithm of each word's share of the text, shape (n,).

        A word that is not in the list is rarer than the last one, and gets that one's frequency: a
        bound from above rather than a guess.
        """
        last = len(self.words) - 1
        ranks = np.array([self.rank.get(word.lower(), last) for word in words], dtype=np.intp)
        return np.asarray(np.log(self.counts[ranks] / self.total))


def find_words(text: str) -> list[str]:
    """Give the words of a text, lower-cased: letters, with apostrophes inside but no final 's."""
    found = WORD.findall(text.lower())
    return [word.replace("’", "'").removesuffix("'s") for word in found]


def count_words(texts: Iterable[str], *, keep: int = 50_000, source: str = "") -> WordCounts:
    """Count the words (`find_words`) of texts, read once; keep the most frequent ones."""
    if keep < 1:
        raise ValueError(f"keep is {keep}; keep at least one word.")
    counter: Counter[str] = Counter()
    for text in texts:
        counter.update(find_words(text))
    if not counter:
        raise ValueError("There is no word in the texts.")
    # Ties are broken by the alphabet, not by where a word was met first: the same words in any
    # order give the same ranks.
    kept = sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:keep]
    words, counts = zip(*kept, strict=True)
    return WordCounts(words, np.array(counts, dtype=np.int64), sum(counter.values()), source)


def save_word_counts(counts: WordCounts, path: str | os.PathLike[str]) -> None:
    """Write counts as gzipped lines ``word<tab>count``; equal counts give equal bytes."""
    lines = [f"# {counts.source}", f"# total\t{counts.total}"]
    lines += [f"{word}\t{n}" for word, n in zip(counts.words, counts.counts.tolist(), strict=True)]
    # mtime=0: the time of writing would otherwise stand in the file.
    Path(path).write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))


def load_word_counts(path: str | os.PathLike[str] | None = None) -> WordCounts:
    """Read a counts file; default: the Wikipedia counts that the package carries."""
    return _read_counts(Path(data_file(COUNTS_FILE) if path is None else path))


@lru_cache(maxsize=4)
def _read_counts(path: Path) -> WordCounts:
    file: IO[str]
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            source, total, *rows = file.read().splitlines()
        words, counts = zip(*(row.split("\t") for row in rows), strict=True)
        numbers = np.array([int(count) for count in counts], dtype=np.int64)
        whole = int(total.removeprefix("# total\t"))
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(
            f"{tidy_path(path)} is not a word-counts file ({error}): gzipped, a line with the "
            "source, a line with the total, then word<tab>count."
        ) from error
    return WordCounts(words, numbers, whole, source.removeprefix("# "))


def mean_log_frequency(sentences: Sequence[str], counts: WordCounts) -> NDArray[np.float64]:
    """Mean log frequency of each sentence's words, shape (n,); natural logarithm."""
    means = np.empty(len(sentences))
    for row, text in enumerate(check_sentences(sentences)):
        words = find_words(text)
        if not words:
            raise ValueError(f"sentence {row} ({text[:40]!r}) has no word to take a frequency of.")
        means[row] = counts.log_frequency(words).mean()
    return means
