"""Search: measures against brute force, scikit-learn and all orders of ties; a tiny run."""

from __future__ import annotations

import math
import sys
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import skew
from sklearn.metrics import ndcg_score

import bertflow_lite as bf
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.experiments import search
from bertflow_lite.experiments.search import MEASURES, search_scores


def scores_of_order(order, good):
    """Score one ranking by its plain definition."""
    hits = [place for place, one in enumerate(order[:10], start=1) if one in good]
    ideal = sum(1 / math.log2(place + 1) for place in range(1, min(len(good), 10) + 1))
    return [
        sum(place == 1 for place in hits) / len(good),
        len(hits) / len(good),
        1 / hits[0] if hits else 0,
        sum(1 / math.log2(place + 1) for place in hits) / ideal,
    ]


@given(st.data())
def test_ties_are_the_mean_over_all_their_orders(data):
    values = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=6))
    rows = st.integers(0, len(values) - 1)
    good = data.draw(st.lists(rows, min_size=1, unique=True))
    filler = [2.0] * data.draw(st.integers(0, 12))  # so that places end at ten in the midst of ties
    orders = [
        sorted(order, key=lambda row: -values[row]) for order in permutations(range(len(values)))
    ]
    before = [-1] * len(filler)
    expected = np.mean([scores_of_order(before + order, good) for order in orders], axis=0)
    assert search_scores([values + filler], [good])[0] == pytest.approx(expected)


@given(st.integers(0, 10_000), st.booleans())
def test_ndcg_is_scikit_learns_with_ties_too(seed, coarse):
    rng = np.random.default_rng(seed)
    similarities = rng.normal(size=(3, 30)).round(0 if coarse else 9)
    answers = [rng.choice(30, rng.integers(1, 14), replace=False).tolist() for _ in range(3)]
    truth = np.zeros((3, 30))
    for row, good in enumerate(answers):
        truth[row, good] = 1
    found = search_scores(similarities, answers)[:, MEASURES.index("ndcg@10")]
    assert found.mean() == pytest.approx(ndcg_score(truth, similarities, k=10))


def test_what_no_search_can_be_scored_on_is_said():
    with pytest.raises(ValueError, match="question 1 has no answer"):
        search_scores(np.eye(2), [[0], []])
    with pytest.raises(ValueError, match="there are 1 questions"):
        search_scores(np.eye(2), [[0]])
    with pytest.raises(ValueError, match="not a number"):
        search_scores([[np.nan, 1.0]], [[0]])
    assert (search_scores([[-np.inf, 1.0]], [[1]]) == 1).all()


def test_difference_is_paired_and_its_interval_that_of_resampled_questions():
    rng = np.random.default_rng(3)
    old = rng.random((50, 4))
    assert search.difference(old + 0.25, old)["recall@10"] == pytest.approx([25, 25, 25])
    new = rng.random((50, 4))
    drawn = np.random.default_rng(0).integers(50, size=(1000, 50))
    gains = 100 * (new - old)[drawn, MEASURES.index("ndcg@10")].mean(axis=1)
    expected = [100 * (new - old)[:, 3].mean(), *np.quantile(gains, [0.025, 0.975])]
    assert search.difference(new, old)["ndcg@10"] == pytest.approx(expected)


def test_fusion_looks_at_ranks_alone():
    one, two = np.array([[3.0, 2.0, 1.0]]), np.array([[10.0, 90.0, 90.0]])
    expected = [1 / 61 + 1 / 63, 1 / 62 + 1 / 61.5, 1 / 63 + 1 / 61.5]
    assert search.fuse(one, two)[0] == pytest.approx(expected)
    assert search.fuse(np.exp(one), two) == pytest.approx(search.fuse(one, two))


def test_hubness_counts_how_often_a_sentence_is_among_the_first_ten():
    similarities = np.random.default_rng(0).normal(size=(40, 25)) + np.linspace(0, 1, 25)
    counts = np.zeros(25)
    for row in similarities:
        counts[np.argsort(-row)[:10]] += 1
    found = search.hubness(similarities)
    assert found == pytest.approx({"hubness": skew(counts), "never": (counts == 0).mean()})
    assert search.hubness(similarities + np.linspace(0, 9, 25))["hubness"] > found["hubness"]


def test_threshold_gives_as_many_false_answers_as_asked_for():
    rng = np.random.default_rng(0)
    similarities = rng.normal(size=(4000, 20))
    similarities[:, 0] += 4
    found = search.no_answer(similarities, [[0]] * 4000)
    assert found["false"] == pytest.approx(0.05, abs=0.01)
    lone, best = similarities[1::2, 1:].max(axis=1), similarities[1::2, 0]
    right = (best > lone) & (best > found["threshold"])
    assert found["right"] == pytest.approx(right.mean())
    given_away = search.no_answer(similarities, [[0]] * 4000, threshold=-9.0)
    assert given_away["false"] == 1 and given_away["right"] > found["right"]


def test_bm25_prefers_the_rare_word_and_says_which_package_is_missing(monkeypatch):
    sentences = ["The river is long.", "The Danube is a river.", "Bread and a river."]
    (found,) = search.bm25(["Where is the Danube?"], sentences)
    assert np.argmax(found) == 1
    assert not search.bm25(["the of"], sentences).any()  # nothing but stop words
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ImportError, match=r"bertflow-lite\[search\]"):
        search.bm25(["a"], ["b"])


def test_codes_are_signs_and_steps_of_the_sentences_ranges(monkeypatch):
    rng = np.random.default_rng(0)
    asked, searched = rng.normal(size=(5, 13)), rng.normal(size=(40, 13))
    binary = search.code_similarities(asked, searched, "binary")
    assert (binary == np.where(asked > 0, 1, -1) @ np.where(searched > 0, 1, -1).T).all()
    one, two = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (asked, searched))
    low, step = two.min(axis=0), np.ptp(two, axis=0) / 255
    codes = [np.clip(np.floor((x - low) / step), 0, 255) - 128 for x in (one, two)]
    found = search.code_similarities(asked, searched, "int8")
    assert np.corrcoef(found.ravel(), (codes[0] @ codes[1].T).ravel())[0, 1] > 0.9999
    assert search.code_similarities(asked, searched, "float") == pytest.approx(one @ two.T)
    monkeypatch.setitem(sys.modules, "sentence_transformers.util", None)
    with pytest.raises(ImportError, match=r"bertflow-lite\[search\]"):
        search.code_similarities(asked, searched, "int8")


def made_pairs(n=40):
    """Questions beside their answers, and beside sentences that are none."""
    things = [f"thing{i}" for i in range(n)]
    questions = [f"Where is the {thing}?" for thing in things]
    answers = [f"The {thing} lies in house {i}." for i, thing in enumerate(things)]
    wrong = [answers[(i + 1) % n] for i in range(n)]
    gold = np.repeat([1.0, 0.0], n)
    subsets = np.full(2 * n, "qnli")
    return SentencePairs("qnli", "dev", (*questions, *questions), (*answers, *wrong), gold, subsets)


def test_pairs_become_a_search():
    pairs = made_pairs(3)
    found = search.search_of(pairs, more=("Another one.", pairs.sentences2[0]))
    assert found.questions == list(pairs.sentences1[:3])
    assert found.sentences == [*pairs.sentences2[:3], "Another one."]
    assert found.answers == [[0], [1], [2]]
    with pytest.raises(ValueError, match="rated 2 or more"):
        search.search_of(pairs, 2)


def test_run_on_a_few_questions(monkeypatch):
    monkeypatch.setattr(search, "load_qnli", lambda *_, **__: made_pairs())
    encoder = bf.load_encoder("minilm", device="cpu")
    results = search.run_retrieval(encoder, ["last", "4"], ["sn", "whiten:8"])
    assert (results["n_questions"], results["n_sentences"]) == (40, 40)
    rows = {
        (row["layers"], row["weights"], row["calibrator"], row["system"]): row
        for row in results["rows"]
    }
    assert len(rows) == 2 + 2 * 2 * 3 * 2  # BM25 and minilm; layers, weights, calibrators, systems
    raw, reference = rows["last", "", "none", "alone"], rows["", "", "", "reference"]
    assert [raw[name] for name in MEASURES] == [reference[name] for name in MEASURES]
    assert raw["over"]["reference"]["ndcg@10"] == raw["over"]["raw"]["ndcg@10"] == [0, 0, 0]
    block = rows["4", "", "sn", "alone"]
    gain = block["over"]["raw"]["ndcg@10"]
    expected = block["ndcg@10"] - rows["4", "", "none", "alone"]["ndcg@10"]
    assert gain[0] == pytest.approx(expected, abs=1e-2) and gain[1] <= gain[0] <= gain[2]
    assert rows["", "", "", "bm25"]["recall@1"] == 100  # each question has its own word
    for row in results["compression"]:
        expected = {"float": 4 * row["width"], "int8": row["width"], "binary": row["width"] // 8}
        assert row["bytes"] == expected[row["code"]]
    kept = {(row["space"], row["code"]): row["kept"] for row in results["compression"]}
    assert kept["none", "float"] == 100 > kept["none", "binary"] > 50
    table = search.format_retrieval(results)
    assert "40 questions, 40 sentences" in table and "whiten:8" in table


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.thorough
def test_a_stored_run_comes_out_again(real_data):
    stored = bf.load_run("retrieval", "minilm")
    pairs = search.load_qnli("dev")
    task = search.search_of(pairs.select(range(stored["how"]["first"])))
    assert len(task.questions) == stored["results"]["n_questions"]
    words, reference, raw = stored["results"]["rows"][:3]
    found = search.means(search_scores(search.bm25(task.questions, task.sentences), task.answers))
    assert found == pytest.approx({name: words[name] for name in MEASURES}, abs=1e-2)
    vectors = bf.load_encoder("minilm", device="cpu").encode(task.texts, "last")
    found = search.means(task.scores(vectors))
    assert found == pytest.approx({name: reference[name] for name in MEASURES}, abs=0.1)
    assert {name: raw[name] for name in MEASURES} == {name: reference[name] for name in MEASURES}
