"""Word counts, their file, ranks, and the frequency of sentences."""

from __future__ import annotations

import gzip
from collections import Counter

import numpy as np
import pytest

from bertflow_lite.datasets.word_counts import (
    WordCounts,
    count_words,
    find_words,
    load_word_counts,
    mean_log_frequency,
    save_word_counts,
)
from bertflow_lite.experiments.geometry import wordfreq_words

TEXTS = ["The cat, the dog and the 2nd cat.", "A dog's life: 1990s, don't!", ""]


def test_count_words_agrees_with_counting_by_hand():
    counts = count_words(TEXTS, source="a test")
    assert dict(zip(counts.words, counts.counts.tolist(), strict=True)) == {
        "the": 3, "cat": 2, "dog": 2, "a": 1, "and": 1, "don't": 1, "life": 1,
    }  # fmt: skip
    assert counts.words[:4] == ("the", "cat", "dog", "a")  # ties: by the alphabet
    assert counts.total == 11
    assert counts.rank["dog"] == 2


def test_ranks_do_not_depend_on_the_order_of_texts():
    assert count_words(TEXTS).words == count_words(TEXTS[::-1]).words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("12 345 -- !", []),
        ("ab3 3ab 19th 1990s", []),
        ("a_b", ["a", "b"]),
        ("O’Hara's O'Hara", ["o'hara", "o'hara"]),
        ("'quoted' ''twice''", ["quoted", "twice"]),
        ("naïve ÉTÉ Straße 日本", ["naïve", "été", "straße", "日本"]),
        ("well-known", ["well", "known"]),
    ],
)
def test_find_words(text, words):
    assert find_words(text) == words


def test_the_most_frequent_are_kept_and_the_others_count():
    counts = count_words(TEXTS, keep=2)
    assert counts.words == ("the", "cat")
    assert counts.total == 11  # what was not kept counts too


def test_saved_counts_come_back_and_equal_counts_give_equal_bytes(tmp_path):
    counts = count_words(TEXTS, source="a test")
    save_word_counts(counts, tmp_path / "a.tsv.gz")
    save_word_counts(counts, tmp_path / "b.tsv.gz")
    back = load_word_counts(tmp_path / "a.tsv.gz")
    assert (back.words, back.counts.tolist()) == (counts.words, counts.counts.tolist())
    assert (back.total, back.source) == (11, "a test")
    assert (tmp_path / "a.tsv.gz").read_bytes() == (tmp_path / "b.tsv.gz").read_bytes()


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(b""), gzip.compress(b"# x\n# total\t3\nword\tthree\n")]
)
def test_a_broken_counts_file_is_named(tmp_path, content):
    path = tmp_path / "broken.tsv.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.tsv\.gz is not a word-counts file"):
        load_word_counts(path)


def test_the_packaged_counts_are_wikipedias_most_frequent_words():
    counts = load_word_counts()
    assert len(counts.words) == 50_000
    assert counts.words[:5] == ("the", "of", "and", "in", "to")
    assert counts.counts.sum() < counts.total == 15_126_845
    assert "Wikipedia" in counts.source and "CC BY-SA" in counts.source
    # Zipf's law: the log count falls about as fast as the log rank rises.
    slope = np.polyfit(np.log(np.arange(100, 10_000) + 1), np.log(counts.counts[100:10_000]), 1)[0]
    assert -1.3 < slope < -0.8


def test_log_frequency_of_known_and_unknown_words():
    counts = WordCounts(("b", "a"), np.array([6, 2]), 10, "")
    assert counts.log_frequency(["B", "a", "zzz"]) == pytest.approx(np.log([0.6, 0.2, 0.2]))
    assert mean_log_frequency(["a b, B!"], counts) == pytest.approx(np.log([0.2, 0.6, 0.6]).mean())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: count_words([]), "no word"),
        (lambda: count_words(["a"], keep=0), "keep is 0"),
        (lambda: mean_log_frequency(["1 + 1"], load_word_counts()), "sentence 0 .* has no word"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_wordfreq_gives_a_second_opinion():
    pytest.importorskip("wordfreq")
    words = wordfreq_words(5000)
    assert len(set(words)) == 5000
    assert not any(Counter(word)["1"] for word in words)
    assert len(set(words[:100]) & set(load_word_counts().words[:100])) > 60
