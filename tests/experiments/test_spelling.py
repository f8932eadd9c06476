"""Edit distance against similarity: published numbers, and independent computations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

import bertflow_lite as bf
from bertflow_lite.encoders.models import PACKAGED_MODELS
from bertflow_lite.experiments import spelling as lexical
from bertflow_lite.experiments import table6 as lexical_runs
from bertflow_lite.experiments import table6 as own_pairs
from bertflow_lite.experiments.scoring import RunOptions
from bertflow_lite.experiments.spelling import (
    UNITS,
    edit_distances,
    lexical_similarities,
    score_lexical,
)
from bertflow_lite.experiments.table6 import (
    CALIBRATORS,
    format_figure2,
    format_table6,
    run_figure2,
    run_table6,
)
from bertflow_lite.text import split_words


@pytest.fixture(scope="module")
def mini():
    return bf.load_sts("mini-sts")


@pytest.fixture
def few(mini, monkeypatch):
    """Quick runs: 20 training steps, 20 resamples."""
    monkeypatch.setattr(lexical_runs, "FLOW_STEPS", 20)
    monkeypatch.setattr(lexical_runs, "score_lexical", partial(score_lexical, n_resamples=20))


# Edit distance


def _by_dynamic_programming(first, second):
    """Wagner and Fischer's table, written from the definition."""
    table = np.zeros((len(first) + 1, len(second) + 1), dtype=int)
    table[:, 0], table[0] = np.arange(len(first) + 1), np.arange(len(second) + 1)
    for i, a in enumerate(first, 1):
        for j, b in enumerate(second, 1):
            table[i, j] = min(
                table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a != b)
            )
    return table[-1, -1]


sentences = st.lists(st.sampled_from(["a", "b", "Cat", "cat.", ",", "don't"]), max_size=9)


@given(sentences, sentences)
def test_distance_is_what_its_definition_says(first, second):
    one, two = " ".join(first), " ".join(second)
    lower = ([w.lower() for w in words] for words in (first, second))
    assert edit_distances([one], [two])[0] == _by_dynamic_programming(*lower)
    marks = _by_dynamic_programming(split_words(one), split_words(two))
    assert edit_distances([one], [two], "words and marks")[0] == marks
    letters = _by_dynamic_programming(one.lower(), two.lower())
    assert edit_distances([one], [two], "characters")[0] == letters
    longest = max(len(one), len(two))
    share = edit_distances([one], [two], "characters", normalize=True)[0]
    assert share == pytest.approx(letters / longest if longest else 0)


@given(sentences, sentences, sentences)
@settings(max_examples=50)
def test_distance_is_a_metric(first, second, third):
    a, b, c = (" ".join(words) for words in (first, second, third))
    ab, bc, ac, ba = edit_distances([a, b, a, b], [b, c, c, a])
    assert ab == ba and ac <= ab + bc
    assert (ab == 0) == (a.lower().split() == b.lower().split())


def test_wordpieces_are_those_of_the_tokenizer(minilm):
    first, second = "Unbelievably flexible.", "Believably inflexible!"
    pieces = minilm.tokenizer([first, second], add_special_tokens=False)["input_ids"]
    assert max(map(len, pieces)) > 3  # or it would be no test of pieces
    found = edit_distances([first], [second], "wordpieces", tokenizer=minilm.tokenizer)
    assert found[0] == _by_dynamic_programming(*pieces)


def test_distance_refuses_what_it_cannot_measure():
    with pytest.raises(ValueError, match="1 first sentences, but 2 second"):
        edit_distances(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="words, words and marks"):
        edit_distances(["a"], ["a"], "letters")
    with pytest.raises(ValueError, match=r"tokenizer=encoder\.tokenizer"):
        edit_distances(["a"], ["a"], "wordpieces")
    with pytest.raises(ValueError, match="one string"):
        edit_distances("a", "b")


@pytest.mark.data
def test_the_published_correlation_is_one_over_words(real_data, minilm):
    pairs = bf.load_sts("stsb", "dev")

    def with_gold(unit, **options):
        d = edit_distances(pairs.sentences1, pairs.sentences2, unit, **options)
        return 100 * bf.spearman(d, pairs.gold), int((d <= 4).sum())

    assert with_gold("words") == (pytest.approx(-24.51, abs=0.005), 369)
    # Table 6 prints -24.61. Of all kinds of edit distance, this one comes nearest.
    off = {"words": abs(with_gold("words")[0] + 24.61)}
    for unit in set(UNITS) - {"words"}:
        found, _ = with_gold(unit, tokenizer=minilm.tokenizer)
        off[unit] = abs(found + 24.61)
    assert min(off, key=off.__getitem__) == "words" and off["words"] < 0.15
    assert with_gold("characters")[0] == pytest.approx(-20.3, abs=0.05)
    assert with_gold("wordpieces", tokenizer=minilm.tokenizer)[0] == pytest.approx(-24.2, abs=0.1)
    # Distance is length, for the most part; at equal length, gold goes with it twice as much.
    d = edit_distances(pairs.sentences1, pairs.sentences2)
    assert bf.spearman(d, lexical.word_counts(pairs)) == pytest.approx(0.868, abs=0.001)
    score = score_lexical(pairs, pairs.gold, d, n_resamples=20)
    assert score.edit_distance_given_length.estimate == pytest.approx(-53.2, abs=0.05)
    # Divided by length it is another statement altogether.
    assert with_gold("words", normalize=True)[0] == pytest.approx(-48.57, abs=0.05)


# Correlations


def test_scores_agree_with_scipy_and_with_regression(mini):
    rng = np.random.default_rng(0)
    d = edit_distances(mini.sentences1, mini.sentences2)
    values = mini.gold - 0.3 * d + rng.normal(size=len(mini))
    score = score_lexical(mini, values, d, n_resamples=50)
    assert score.edit_distance.estimate == pytest.approx(100 * spearmanr(values, d)[0])
    assert score.gold.estimate == pytest.approx(100 * spearmanr(values, mini.gold)[0])
    # A partial correlation is the correlation of what is left after regressing on the third.
    both = zip(mini.sentences1, mini.sentences2, strict=True)
    length = [max(map(len, map(str.split, pair))) for pair in both]
    for held, found in (
        ([mini.gold], score.edit_distance_given_gold),
        ([length], score.edit_distance_given_length),
        ([length, mini.gold], score.edit_distance_given_length_and_gold),
    ):
        design = np.column_stack([np.ones(len(mini)), *map(rankdata, held)])
        left = [y - design @ np.linalg.lstsq(design, y)[0] for y in map(rankdata, (values, d))]
        assert found.estimate == pytest.approx(100 * np.corrcoef(left)[0, 1])
        assert found.low < found.estimate < found.high
    assert score.length.estimate == pytest.approx(100 * spearmanr(values, length)[0])
    for interval in (score.edit_distance, score.gold, score.length):
        assert interval.low < interval.estimate < interval.high
    assert score.edit_distance_change is None and "gold_change" not in score.to_dict()


def test_a_change_is_a_paired_difference(mini):
    d = edit_distances(mini.sentences1, mini.sentences2)
    values, other = lexical_similarities(mini).values()
    score = score_lexical(mini, values, d, baseline=other, n_resamples=50)
    alone = score_lexical(mini, other, d, n_resamples=50)
    expected = score.edit_distance.estimate - alone.edit_distance.estimate
    assert score.edit_distance_change.estimate == pytest.approx(expected)
    same = score_lexical(mini, values, d, baseline=values, n_resamples=50)
    assert (same.gold_change.low, same.gold_change.high) == (0, 0)
    # The same resamples as those of the general functions.
    by_distance = replace(mini, gold=d)
    options = {"n_resamples": 50, "random_state": 0}
    for interval, general in (
        (score.edit_distance, bf.bootstrap_interval(by_distance, values, **options)),
        (score.gold, bf.bootstrap_interval(mini, values, **options)),
        (score.gold_change, bf.bootstrap_difference(mini, values, other, **options)),
    ):
        found, expected = ((i.low, i.estimate, i.high) for i in (interval, general))
        assert found == pytest.approx(expected)


def test_the_gold_score_owes_nothing_to_words(mini):
    d = edit_distances(mini.sentences1, mini.sentences2)
    score = score_lexical(mini, mini.gold, d, n_resamples=20)
    for found in (score.edit_distance_given_gold, score.edit_distance_given_length_and_gold):
        assert (found.low, found.estimate, found.high) == (0, 0, 0)
    # Where all pairs are equally long, there is no length to hold.
    long = mini.select([i for i in range(len(mini)) if lexical.word_counts(mini)[i] == 8])
    d = edit_distances(long.sentences1, long.sentences2)
    score = score_lexical(long, long.gold, d, n_resamples=20)
    assert score.edit_distance_given_length.estimate == pytest.approx(score.edit_distance.estimate)
    assert score.length.estimate == 0
    with pytest.raises(ValueError, match="2 values of distance, but 420 pairs"):
        score_lexical(mini, mini.gold, [1, 2])


def test_similarities_of_words_are_scikit_learns_cosines(mini):
    pairs = mini.select(range(40))
    found = lexical_similarities(pairs, mini.sentences)
    vectorizer = TfidfVectorizer(analyzer=split_words).fit(mini.sentences)
    first, second = map(vectorizer.transform, (pairs.sentences1, pairs.sentences2))
    assert found["tf-idf"] == pytest.approx(np.diag(cosine_similarity(first, second)))
    # Words that the fitted sentences lack: no direction, so cosine 0.
    assert lexical_similarities(pairs, ["zyx"])["bag of words"].tolist() == [0] * 40


# The experiments


def test_table_6_has_every_row_and_goes_on_where_it_stopped(tiny_bert, few):
    kept = {}

    def keep(key, compute):
        assert key not in kept  # each part has a name of its own
        return kept.setdefault(key, compute())

    results = run_table6(tiny_bert, RunOptions(seeds=2, data=["mini-sts"], keep=keep))
    rows = results["sets"]["mini-sts"]["rows"]
    assert len(rows) == len(kept) == 1 + 2 * (len(CALIBRATORS) - 1 + 2) + 2
    flows = [row for row in rows if row["calibrator"] == "flow" and row["layers"] == "last2avg"]
    assert [row["seed"] for row in flows] == [0, 1]
    assert flows[0]["edit_distance"] != flows[1]["edit_distance"]
    assert {row["calibrator"] for row in rows if row["layers"] == ""} == {
        "gold",
        "bag of words",
        "tf-idf",
    }
    # Against its own distance, a similarity of words is -100.
    assert rows[-1]["calibrator"] == "tf-idf"
    assert rows[-1]["units"]["1 - cosine, tf-idf"] == pytest.approx(-100)
    assert rows[1]["units"]["words"] == rows[1]["edit_distance"]["estimate"]
    assert results["settings"]["data"] == {"mini-sts": bf.load_sts("mini-sts").fingerprint}

    def never(key, compute):
        return kept[key]

    again = run_table6(tiny_bert, RunOptions(seeds=2, data=["mini-sts"], keep=never))
    assert again == results
    text = format_table6(results)
    assert "mini-sts test: 420 pairs" in text and "wordpieces / length" in text
    assert "BERT-base-flow" not in text  # the paper's rows are about STS-B
    with pytest.raises(ValueError, match="stsb and mini-sts, not on sts12"):
        run_table6(tiny_bert, RunOptions(data=["sts12"]))


def test_figure_2_and_table_6_agree(tiny_bert, few):
    points = run_figure2(tiny_bert, RunOptions(data=["mini-sts"]))["sets"]["mini-sts"]
    rows = run_table6(tiny_bert, RunOptions(seeds=1, data=["mini-sts"]))["sets"]["mini-sts"]["rows"]
    for row in rows:
        if row["calibrator"] in CALIBRATORS:
            values = points["cosines"][row["layers"]][row["calibrator"]]
            found = 100 * bf.spearman(values, points["distance"])
            # Sentences of unknown words have equal embeddings; rounding makes their pairs tie.
            assert found == pytest.approx(row["edit_distance"]["estimate"], abs=1)


def test_figure_2_says_what_it_shows(tiny_bert, few):
    results = run_figure2(tiny_bert, RunOptions(data=["mini-sts"]))
    assert len(format_figure2(results).splitlines()) == 2 + 2 * len(CALIBRATORS)


def test_own_pairs_are_ranked_among_the_known_ones(tiny_bert, few, mini):
    own = [("the cat sat on the mat", "the cat sat on the mat"), ("a red dog", "two blue trees")]
    table = own_pairs.compare_own_pairs(own, tiny_bert)
    assert table["edit distance"].tolist() == [0, 3]
    for label in CALIBRATORS.values():
        assert table[label][0] == pytest.approx(1, abs=1e-5)
        assert 0 <= table[f"{label} rank"][1] <= table[f"{label} rank"][0] <= 100
    # By hand: the share of mini-sts pairs whose raw cosine is lower.
    vectors = tiny_bert.encode([*mini.sentences, "a red dog", "two blue trees"])
    cosine = bf.cosine(vectors[-2:-1], vectors[-1:])[0]
    share = (bf.pair_cosines(mini, vectors[:-2]) < cosine).mean()
    assert table["raw rank"][1] == pytest.approx(100 * share)
    for wrong in ([], ["ab"], [("a", "b", "c")]):
        with pytest.raises(ValueError, match="a list of pairs"):
            own_pairs.compare_own_pairs(wrong, tiny_bert)


@pytest.mark.usefixtures("every_layer")  # other tests ask for others of the same sentences
@pytest.mark.parametrize("name", ["minilm", "smollm2", "random-minilm"])
def test_a_stored_row_measured_anew(name, mini):
    try:
        stored = bf.load_run("table6", name)
    except FileNotFoundError:
        pytest.skip("the run has not been made")
    if PACKAGED_MODELS["minilm"].path() is None or name == "smollm2":
        wanted, values = "tf-idf", lexical_similarities(mini)["tf-idf"]
    else:
        encoder = bf.load_encoder(name)
        assert stored["how"]["fingerprint"] == encoder.fingerprint
        wanted, values = "none", bf.pair_cosines(mini, encoder.encode(mini.sentences))
    results = stored["results"]
    if results["settings"]["data"]["mini-sts"] != mini.fingerprint:
        pytest.skip("mini-sts has changed since the run: make it again")
    row = next(r for r in results["sets"]["mini-sts"]["rows"] if r["calibrator"] == wanted)
    d = edit_distances(mini.sentences1, mini.sentences2)
    again = lexical.score_lexical(mini, values, d).to_dict()
    given = "edit_distance_given_length"
    for measure in ("edit_distance", "gold", "length", given, f"{given}_and_gold"):
        assert again[measure]["estimate"] == pytest.approx(row[measure]["estimate"], abs=2e-3)
        assert again[measure]["low"] == pytest.approx(row[measure]["low"], abs=0.02)
