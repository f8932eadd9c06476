"""Properties of the book's own sentence pairs, data/mini_sts.tsv."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "data" / "mini_sts.tsv"
COLUMNS = ["id", "style", "kind", "gold", "sentence1", "sentence2"]
STYLES = {"caption", "news", "forum", "definition"}
KINDS = {
    "near-duplicate", "paraphrase", "negation", "role-swap", "number",
    "partial", "same-topic", "word-overlap", "unrelated",
}  # fmt: skip

# Words that do not count as content when two sentences are compared.
STOP_LIST = """
    a an the and or but if so as than that this these those there here
    i i'm i'd i've me my we us our you your he him his she her it its it's they them their
    who whom whose which what when where where's why how
    is are was were be been being am isn't aren't wasn't weren't
    do does did don't doesn't didn't have has had having
    can can't cannot could would wouldn't should will won't may might must ought shall
    to of in on at by for from with without into onto over under up down out off about
    after before behind beside between around across through toward along above below
    near next during while since until because
    not no nor never very too more most much many some any all each every both either
    one someone somebody something anyone anybody nobody nothing other another such
    own same just only also then get got let
    """
STOP = set(STOP_LIST.split())


def words(sentence):
    return re.findall(r"[a-z0-9]+(?:['-][a-z0-9]+)*", sentence.lower())


def content_jaccard(a, b):
    a, b = set(words(a)) - STOP, set(words(b)) - STOP
    return len(a & b) / len(a | b)


def edit_distance(a, b):
    """Levenshtein distance between two lists of words."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (x != y)))
    return row[-1]


@pytest.fixture(scope="module")
def rows():
    with PATH.open(encoding="utf-8", newline="") as f:
        reader = csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE)
        rows = list(reader)
    assert reader.fieldnames == COLUMNS
    return rows


def of_kind(rows, kind):
    return [(r["sentence1"], r["sentence2"]) for r in rows if r["kind"] == kind]


def test_format(rows):
    assert b"\r" not in PATH.read_bytes()
    assert [r["id"] for r in rows] == [f"m{i:03d}" for i in range(1, len(rows) + 1)]
    for r in rows:
        assert set(r) == set(COLUMNS), r
        for s in (r["sentence1"], r["sentence2"]):
            assert s == s.strip()
            assert re.match(r"[A-Z].*[.?]$", s), s
            assert 5 <= len(s.split()) <= 30, s


def test_counts(rows):
    styles = Counter(r["style"] for r in rows)
    kinds = Counter(r["kind"] for r in rows)
    assert len(rows) >= 400
    assert set(styles) == STYLES
    assert min(styles.values()) >= 80
    assert set(kinds) == KINDS
    assert min(kinds.values()) >= 20
    assert kinds["negation"] + kinds["role-swap"] >= 60
    assert kinds["paraphrase"] >= 60


def test_ratings_use_every_step_from_0_to_5(rows):
    assert {r["gold"] for r in rows} == {f"{i / 5:.1f}" for i in range(26)}


def test_no_sentence_appears_twice(rows):
    count = Counter(" ".join(words(r[c])) for r in rows for c in ("sentence1", "sentence2"))
    assert [s for s, n in count.items() if n > 1] == []


def test_paraphrases_share_few_words(rows):
    low = [p for p in of_kind(rows, "paraphrase") if content_jaccard(*p) < 0.15]
    assert len(low) >= 60
    assert all(float(r["gold"]) >= 4 for r in rows if r["kind"] == "paraphrase")


def test_negations_differ_by_one_word(rows):
    for a, b in of_kind(rows, "negation"):
        assert 1 <= edit_distance(words(a), words(b)) <= 2, (a, b)


def test_role_swaps_keep_the_bag_of_words(rows):
    for a, b in of_kind(rows, "role-swap"):
        a, b = words(a), words(b)
        assert a != b
        assert (Counter(a) - Counter(b)).total() <= 2, (a, b)
        assert (Counter(b) - Counter(a)).total() <= 2, (a, b)


def test_overlap_of_words_does_not_give_the_rating_away(rows):
    """Some pairs with much overlap rate low, some with little overlap rate high."""
    same_words = [r for r in rows if content_jaccard(r["sentence1"], r["sentence2"]) > 0.5]
    new_words = [r for r in rows if content_jaccard(r["sentence1"], r["sentence2"]) < 0.15]
    assert sum(float(r["gold"]) < 2.5 for r in same_words) >= 30
    assert sum(float(r["gold"]) >= 4 for r in new_words) >= 60
