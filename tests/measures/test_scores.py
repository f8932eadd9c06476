"""Cosine, Spearman and its aggregations, bootstrap intervals, AUC."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.measures.scores import (
    bootstrap_difference,
    bootstrap_interval,
    pair_cosines,
    score_similarities,
    score_sts,
)
from bertflow_lite.measures.similarity import cosine, rank_correlation, spearman

Floats = NDArray[np.float64]
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
matrices = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=numbers)
# Few different values, so that ties are common.
ties = st.lists(st.integers(-3, 3), min_size=2, max_size=12).filter(lambda v: len(set(v)) > 1)


def make_pairs(gold: Floats | list[float], subsets: list[str] | None = None) -> SentencePairs:
    n = len(gold)
    return SentencePairs(
        "sts12",
        "test",
        tuple(f"a{i}" for i in range(n)),
        tuple(f"b{i}" for i in range(n)),
        np.asarray(gold, dtype=np.float64),
        np.array(subsets if subsets is not None else ["one"] * n),
    )


def noisy_pairs(n: int, noise: float, seed: int = 0) -> tuple[SentencePairs, Floats]:
    rng = np.random.default_rng(seed)
    gold = rng.uniform(0, 5, n).round(1)
    return make_pairs(gold), gold + rng.normal(0, noise, n)


# --- cosine ------------------------------------------------------------------------------------


@given(matrices, st.data())
def test_cosine_lies_between_minus_one_and_one(a: Floats, data: st.DataObject) -> None:
    b = data.draw(arrays(np.float64, a.shape, elements=numbers))
    values = cosine(a, b)
    assert values.shape == (len(a),)
    assert np.all(np.abs(values) <= 1)
    np.testing.assert_array_equal(values, cosine(b, a))


@given(matrices, st.data(), st.floats(1e-150, 1e150))
def test_cosine_does_not_see_lengths(a: Floats, data: st.DataObject, scale: float) -> None:
    a = np.where(np.abs(a) < 1e-100, 0.0, a)
    b = data.draw(arrays(np.float64, a.shape, elements=numbers))
    np.testing.assert_allclose(cosine(scale * a, b), cosine(a, b), atol=1e-12)
    np.testing.assert_allclose(cosine(-a, b), -cosine(a, b), atol=1e-12)


@given(matrices)
def test_cosine_of_a_vector_with_itself_is_one_or_zero_for_no_vector(a: Floats) -> None:
    np.testing.assert_allclose(cosine(a, a), (np.abs(a).max(axis=1) > 0).astype(float), atol=1e-12)


def test_cosine_worked_example() -> None:
    a = [[1, 0], [3, 4], [0, 0], [1, 1]]
    b = [[0, 2], [4, 3], [1, 1], [-2, -2]]
    np.testing.assert_allclose(cosine(a, b), [0, 24 / 25, 0, -1], atol=1e-15)


def test_cosine_stays_in_range_at_the_ends_of_floating_point() -> None:
    huge, tiny = np.array([[1e300, 1e300]]), np.array([[5e-324, 5e-324]])
    np.testing.assert_allclose(cosine(huge, tiny), [1.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cosine_takes_tensors_of_any_precision(dtype: torch.dtype) -> None:
    a = torch.tensor([[1.0, 1.0]], dtype=dtype, requires_grad=True)
    values = cosine(a, np.array([[1.0, 0.0]], dtype=np.float16))
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, [np.sqrt(0.5)])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_cosine_names_the_row_that_is_not_finite(bad: float) -> None:
    a, b = np.ones((5, 2)), np.ones((5, 2))
    b[3, 1] = bad
    with pytest.raises(ValueError, match=r"Row 3 of the second array holds NaN or infinity \(1 "):
        cosine(a, b)


def test_cosine_refuses_what_is_not_row_by_row() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(3, 3\)"):
        cosine(np.ones((2, 3)), np.ones((3, 3)))
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        cosine(np.ones(3), np.ones(3))


# --- Spearman ----------------------------------------------------------------------------------


def slow_ranks(values: list[int]) -> Floats:
    """Rank by the definition: 1 + how many are smaller + half of how many others are equal."""
    return np.array(
        [1 + sum(w < v for w in values) + (sum(w == v for w in values) - 1) / 2 for v in values]
    )


@given(ties, st.data())
def test_spearman_is_pearson_of_ranks(x: list[int], data: st.DataObject) -> None:
    y = data.draw(st.lists(st.integers(-3, 3), min_size=len(x), max_size=len(x)))
    assume(len(set(y)) > 1)
    met = spearman(x, y)
    assert met == pytest.approx(np.corrcoef(slow_ranks(x), slow_ranks(y))[0, 1], abs=1e-12)
    assert met == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
    assert met == spearman(y, x)


@given(ties)
def test_spearman_sees_only_the_order(x: list[int]) -> None:
    values = np.array(x, dtype=np.float64)
    assert spearman(values, np.exp(values)) == pytest.approx(1.0)
    assert spearman(values, -(values**3)) == pytest.approx(-1.0)


def test_spearman_of_a_constant_says_why_there_is_none() -> None:
    with pytest.raises(ValueError, match=r"undefined: all 3 values of y are the same"):
        spearman([1, 2, 3], [2, 2, 2])
    with pytest.raises(ValueError, match="undefined"):
        spearman([1], [2])
    with pytest.raises(ValueError, match="undefined"):
        spearman([], [])


def test_spearman_refuses_what_cannot_be_ranked() -> None:
    with pytest.raises(ValueError, match="x has 2 values, but y has 3"):
        spearman([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"Value 1 of x is nan"):
        spearman([1, np.nan], [1, 2])
    with pytest.raises(ValueError, match="1-d"):
        spearman([[1, 2]], [[1, 2]])


# --- the three aggregations --------------------------------------------------------------------


def test_worked_example_of_the_aggregations() -> None:
    # Subset u (4 pairs) is ranked without fault, subset v (2 pairs) upside down. Together, v's
    # similarities all lie above u's, though its gold scores do not.
    pairs = make_pairs([1, 2, 3, 4, 0, 5], ["u"] * 4 + ["v"] * 2)
    score = score_similarities(pairs, [0.1, 0.2, 0.3, 0.4, 0.6, 0.5])
    assert score.by_subset == {"u": pytest.approx(100.0), "v": pytest.approx(-100.0)}
    assert score.mean == pytest.approx(0.0)
    assert score.wmean == pytest.approx(100 * (4 * 1 + 2 * -1) / 6)
    # Ranks of gold 2 3 4 5 1 6, of similarity 1 2 3 4 6 5: squared differences sum to 30.
    assert score.all == pytest.approx(100 * (1 - 6 * 30 / (6 * 35)))
    assert score.n_pairs == 6
    assert str(score) == (
        "all 14.29 · mean 0.00 · wmean 33.33 (Spearman x 100; 6 pairs, 2 subsets)"
    )


@given(
    st.lists(
        st.lists(st.tuples(numbers, numbers), min_size=2, max_size=6).filter(
            lambda rows: all(len({row[side] for row in rows}) > 1 for side in (0, 1))
        ),
        min_size=1,
        max_size=4,
    ),
    st.randoms(use_true_random=False),
)
def test_aggregations_by_hand(groups: list[list[tuple[float, float]]], random: object) -> None:
    rows = [(f"s{i}", s, g) for i, group in enumerate(groups) for s, g in group]
    random.shuffle(rows)  # type: ignore[attr-defined]
    pairs = make_pairs([row[2] for row in rows], [row[0] for row in rows])
    score = score_similarities(pairs, [row[1] for row in rows])
    by_hand = [100 * scipy.stats.spearmanr(*zip(*g, strict=True)).statistic for g in groups]
    sizes = [len(group) for group in groups]
    assert score.mean == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-9)
    weighted = sum(n * r for n, r in zip(sizes, by_hand, strict=True)) / sum(sizes)
    assert score.wmean == pytest.approx(weighted, abs=1e-9)
    assert score.all == pytest.approx(100 * spearman([r[1] for r in rows], pairs.gold))
    if len(groups) == 1:
        assert score.all == pytest.approx(score.mean)


def test_a_score_of_one_subset_says_that_the_three_agree() -> None:
    pairs, similarities = noisy_pairs(50, 1.0)
    score = score_similarities(pairs, similarities)
    assert str(score) == f"all = mean = wmean {score.all:.2f} (Spearman x 100; 50 pairs)"


def test_score_sts_pairs_row_i_with_row_n_plus_i() -> None:
    pairs = make_pairs([5, 3, 0])
    embeddings = np.array([[1, 0], [1, 0], [1, 0], [1, 0], [1, 1], [-1, 0]], dtype=np.float32)
    np.testing.assert_allclose(pair_cosines(pairs, embeddings), [1, np.sqrt(0.5), -1], rtol=1e-7)
    assert score_sts(pairs, embeddings).all == pytest.approx(100)
    assert score_sts(pairs, torch.from_numpy(embeddings)) == score_sts(pairs, embeddings)


def test_wrong_sizes_name_both_numbers() -> None:
    pairs = make_pairs([5, 3, 0])
    with pytest.raises(ValueError, match="There are 3 embeddings, but 3 pairs have 6 sentences"):
        score_sts(pairs, np.ones((3, 2)))
    with pytest.raises(ValueError, match="There are 2 similarities, but 3 pairs"):
        score_similarities(pairs, [1, 2])


def test_an_undefined_subset_is_named() -> None:
    pairs = make_pairs([1, 2, 3, 4], ["u", "u", "v", "v"])
    with pytest.raises(ValueError, match=r"sts12, subset v: .*undefined"):
        score_similarities(pairs, [1, 2, 3, 3])


# --- bootstrap ---------------------------------------------------------------------------------


def test_interval_holds_the_estimate_and_follows_the_seed() -> None:
    pairs, similarities = noisy_pairs(300, 1.5)
    first = bootstrap_interval(pairs, similarities)
    assert first.low < first.estimate < first.high
    assert first.estimate == score_similarities(pairs, similarities).all
    assert first == bootstrap_interval(pairs, similarities)
    assert first != bootstrap_interval(pairs, similarities, random_state=1)
    wide = bootstrap_interval(pairs, similarities, confidence=0.99)
    assert wide.low < first.low < first.high < wide.high
    assert str(first).startswith(f"all {first.estimate:.2f} [{first.low:.2f}, {first.high:.2f}]")
    assert "95% bootstrap interval" in str(first)


def test_interval_is_the_plain_percentile_bootstrap() -> None:
    pairs, similarities = noisy_pairs(60, 1.5)
    rng = np.random.default_rng(5)
    scores = []
    for _ in range(200):
        rows = rng.integers(0, 60, 60)
        scores.append(100 * scipy.stats.spearmanr(similarities[rows], pairs.gold[rows]).statistic)
    low, high = np.quantile(scores, [0.025, 0.975])
    met = bootstrap_interval(pairs, similarities, n_resamples=5000, random_state=5)
    assert met.low == pytest.approx(low, abs=4)  # another draw of the same thing
    assert met.high == pytest.approx(high, abs=4)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    # For normal variables with correlation r, Spearman's is 6/pi asin(r/2).
    truth, hits = 600 / np.pi * np.arcsin(0.7 / 2), 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=150)
        y = 0.7 * x + np.sqrt(1 - 0.49) * rng.normal(size=150)
        met = bootstrap_interval(make_pairs(x), y, n_resamples=300)
        hits += met.low <= truth <= met.high
    assert hits >= 50  # 57 expected


@pytest.mark.parametrize("aggregation", ["mean", "wmean"])
def test_mean_and_wmean_resample_within_subsets(aggregation: str) -> None:
    rng = np.random.default_rng(0)
    gold = rng.uniform(0, 5, 120)
    subsets = ["u"] * 100 + ["v"] * 20
    # Each subset is ranked without fault: so is every resample within it.
    similarities = np.concatenate([gold[:100], gold[100:] + 100])
    pairs = make_pairs(gold, subsets)
    met = bootstrap_interval(pairs, similarities, aggregation=aggregation)  # type: ignore[arg-type]
    assert (met.low, met.high) == (pytest.approx(100), pytest.approx(100))
    noisy = similarities + rng.normal(0, 1, 120)
    met = bootstrap_interval(pairs, noisy, aggregation=aggregation)  # type: ignore[arg-type]
    assert met.estimate == getattr(score_similarities(pairs, noisy), aggregation)
    assert met.low < met.estimate < met.high


def test_difference_is_paired() -> None:
    pairs, a = noisy_pairs(400, 1.5)
    b = a + np.random.default_rng(9).normal(0, 0.3, 400)  # the same errors, and a few more
    met = bootstrap_difference(pairs, a, b)
    assert met.estimate == pytest.approx(
        score_similarities(pairs, a).all - score_similarities(pairs, b).all
    )
    alone = bootstrap_interval(pairs, a)
    assert met.high - met.low < (alone.high - alone.low) / 2
    same = bootstrap_difference(pairs, a, a)
    assert (same.low, same.estimate, same.high) == (0, 0, 0)
    opposite = bootstrap_difference(pairs, b, a)
    assert (opposite.low, opposite.high) == (pytest.approx(-met.high), pytest.approx(-met.low))


def test_bootstrap_takes_embeddings_too() -> None:
    pairs, _ = noisy_pairs(30, 1.0)
    embeddings = np.random.default_rng(1).normal(size=(60, 4))
    expected = bootstrap_interval(pairs, pair_cosines(pairs, embeddings))
    assert bootstrap_interval(pairs, embeddings) == expected
    assert bootstrap_interval(pairs, torch.from_numpy(embeddings)) == expected


def test_large_sets_are_ranked_piece_by_piece_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs, similarities = noisy_pairs(50, 1.0)
    whole = bootstrap_interval(pairs, similarities, n_resamples=100)
    monkeypatch.setattr("bertflow_lite.measures.scores._CELLS", 50 * 7)
    pieces = bootstrap_interval(pairs, similarities, n_resamples=100)
    assert pieces.low == pytest.approx(whole.low, abs=3)
    assert pieces.high == pytest.approx(whole.high, abs=3)


def test_resamples_without_order_are_left_out() -> None:
    pairs = make_pairs([0, 5])
    met = bootstrap_interval(pairs, [0.1, 0.2], n_resamples=50)
    assert (met.low, met.high) == (pytest.approx(100), pytest.approx(100))


def test_bootstrap_refuses_options_out_of_range() -> None:
    pairs, similarities = noisy_pairs(20, 1.0)
    with pytest.raises(ValueError, match="'all', 'mean' or 'wmean'"):
        bootstrap_interval(pairs, similarities, aggregation="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="confidence is 95"):
        bootstrap_interval(pairs, similarities, confidence=95)
    with pytest.raises(ValueError, match="n_resamples is 0"):
        bootstrap_interval(pairs, similarities, n_resamples=0)


def test_bootstrap_ranks_many_resamples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would take minutes: counted, since a clock would measure the load of the machine."""
    ranked: list[int] = []

    def count(x: Floats, y: Floats) -> Floats:
        ranked.append(len(x))
        return rank_correlation(x, y)

    monkeypatch.setattr("bertflow_lite.measures.scores.rank_correlation", count)
    pairs, similarities = noisy_pairs(1379, 1.5)
    bootstrap_interval(pairs, similarities, n_resamples=1000)
    assert sum(ranked) == 1000 and len(ranked) <= 10


# --- AUC ---------------------------------------------------------------------------------------


# --- the real sets -------------------------------------------------------------------------------


@pytest.mark.data
def test_shared_words_on_real_sets(real_data: Path) -> None:
    """Score the share of shared words, which needs no model and so is fixed for good."""
    pairs = load_sts("sts12")
    both = zip(pairs.sentences1, pairs.sentences2, strict=True)
    words = [(set(a.split()), set(b.split())) for a, b in both]
    overlap = [len(a & b) / max(1, len(a | b)) for a, b in words]
    score = score_similarities(pairs, overlap)
    # The three aggregations of one and the same similarity (copies differ a little in spaces).
    assert score.all == pytest.approx(43.04, abs=0.3)
    assert score.mean == pytest.approx(51.52, abs=0.3)
    assert score.wmean == pytest.approx(52.43, abs=0.3)
    assert score.all == pytest.approx(100 * scipy.stats.spearmanr(overlap, pairs.gold).statistic)
