"""Properties of the pairs that were made as the public sets were, data/mini_sts_plain.tsv."""

import csv
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from bertflow_lite.datasets.sts import COUNTS, load_sts
from bertflow_lite.experiments.controls.overlap import word_overlap

PATH = Path(__file__).resolve().parents[2] / "data" / "mini_sts_plain.tsv"
COLUMNS = ["id", "style", "gold", "first_rating", "second_rating", "sentence1", "sentence2"]
STYLES = {"caption": 150, "news": 100, "forum": 80, "definition": 70}


def words(sentence):
    return " ".join(re.findall(r"[a-z0-9]+", sentence.lower()))


@pytest.fixture(scope="module")
def rows():
    with PATH.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows = list(reader)
    assert reader.fieldnames == COLUMNS
    return rows


@pytest.fixture(scope="module")
def sentences(rows):
    return [row[column] for row in rows for column in ("sentence1", "sentence2")]


@pytest.fixture(scope="module")
def ratings(rows):
    return {c: np.array([float(row[c]) for row in rows]) for c in COLUMNS[2:5]}


def test_format_and_styles(rows):
    assert b"\r" not in PATH.read_bytes()
    assert [row["id"] for row in rows] == [f"p{i:03d}" for i in range(1, len(rows) + 1)]
    assert Counter(row["style"] for row in rows) == STYLES
    for row in rows:
        assert set(row) == set(COLUMNS), row
        for text in (row["sentence1"], row["sentence2"]):
            assert text == text.strip() and "  " not in text
            # A headline has no full stop.
            assert re.match(r"[A-Z0-9].*" + (r"\w$" if row["style"] == "news" else r"[.?]$"), text)


def test_about_ten_words_a_sentence(sentences):
    lengths = [len(text.split()) for text in sentences]
    assert 9 <= np.mean(lengths) <= 12
    assert min(lengths) >= 5 and max(lengths) <= 20


def test_the_pairs_of_each_style_and_the_grades_are_mixed(rows, ratings):
    """The order of the file tells nothing: not the style of a pair, and not its rating."""
    order = np.arange(len(rows))
    assert abs(spearmanr(order, ratings["gold"]).statistic) < 0.15
    for style in STYLES:
        places = np.array([i for i, row in enumerate(rows) if row["style"] == style])
        assert abs(places.mean() / (len(rows) - 1) - 0.5) < 0.1


def test_gold_is_the_mean_of_two_ratings(ratings):
    first, second = ratings["first_rating"], ratings["second_rating"]
    assert ratings["gold"] == pytest.approx((first + second) / 2, abs=1e-9)
    assert min(first.min(), second.min()) == 0 and max(first.max(), second.max()) == 5


def test_the_scale_is_filled(ratings):
    grades, counts = np.unique(np.floor(ratings["gold"] + 0.5), return_counts=True)
    assert grades.tolist() == [0, 1, 2, 3, 4, 5]
    assert counts.min() >= 30


def test_the_two_ratings_agree(ratings):
    first, second = ratings["first_rating"], ratings["second_rating"]
    assert not np.array_equal(first, second)  # else there were not two
    assert spearmanr(first, second).statistic > 0.85
    assert np.abs(first - second).mean() < 0.6


def test_overlap_tells_of_the_rating_what_it_tells_in_public_sets(rows, ratings):
    """From STS12 to STS16 it correlates at 49 to 70 (x 100), on STS-B at 56, on SICK-R at 58.

    50 to 60 was aimed at; with the ratings, it became 61.
    """
    overlap = word_overlap([r["sentence1"] for r in rows], [r["sentence2"] for r in rows])
    assert 0.49 <= spearmanr(overlap, ratings["gold"]).statistic <= 0.7
    for column in ("first_rating", "second_rating"):
        assert 0.49 <= spearmanr(overlap, ratings[column]).statistic <= 0.7
    # With exceptions both ways.
    gold = ratings["gold"]
    assert ((overlap < 0.3) & (gold >= 4)).sum() >= 20
    assert ((overlap > 0.3) & (gold < 2)).sum() >= 15


def test_no_sentence_appears_twice(sentences):
    count = Counter(words(text) for text in sentences)
    count.update({words(text) for text in load_sts("mini-sts").sentences})
    assert [text for text, n in count.items() if n > 1] == []


@pytest.mark.data
@pytest.mark.parametrize("name", COUNTS)
def test_no_sentence_is_that_of_a_public_set(real_data: Path, sentences, name):
    public = load_sts(name, "all" if name in ("stsb", "sick-r") else None).sentences
    assert {words(text) for text in sentences}.isdisjoint(words(text) for text in public)
