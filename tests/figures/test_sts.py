"""Figures about pairs: what they draw is what they were given."""

import numpy as np
import pytest

import bertflow_lite as bf
from bertflow_lite.figures import pairs as figures_sts


@pytest.fixture(scope="module")
def pairs():
    return bf.load_sts("mini-sts")


def test_scatter_draws_each_pair_once_and_buttons_hold_the_other_cosines(pairs) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.uniform(-1, 1, (2, len(pairs)))
    figure = figures_sts.similarity_scatter(pairs, {"a": first, "b": second})
    assert sum(len(trace.x) for trace in figure.data) == len(pairs)
    drawn = np.concatenate([trace.y for trace in figure.data])
    assert np.allclose(np.sort(drawn), np.sort(first), atol=1e-4)
    button = figure.layout.updatemenus[0].buttons[1]
    assert button.label == "b"
    switched = np.concatenate(button.args[0]["y"])
    assert np.allclose(np.sort(switched), np.sort(second), atol=1e-4)
    # Every kind of the set has a group of its own color.
    assert set(pairs.kinds) <= set(figures_sts.KIND_GROUPS)


def test_scatter_needs_no_kinds(pairs) -> None:
    plain = bf.SentencePairs(
        "x", "test", pairs.sentences1, pairs.sentences2, pairs.gold, pairs.subsets
    )
    figure = figures_sts.similarity_scatter(plain, {"a": np.zeros(len(pairs))})
    assert len(figure.data) == 1 and not figure.layout.updatemenus


def test_histograms_are_shares_of_all_pairs() -> None:
    figure = figures_sts.cosine_histograms({"x": {"r": [-1.0, 0.0, 1.0], "s": [0.5]}})
    assert [sum(trace.y) for trace in figure.data] == pytest.approx([100, 100], abs=0.01)


def test_contributions_add_up() -> None:
    shares = np.array([5.0, 60.0, 20.0, 10.0, 5.0])
    figure = figures_sts.contribution_bars({"m": shares}, top=2)
    assert list(figure.data[0].x) == ["dim 1", "dim 2", "other 3"]
    assert list(figure.data[0].y) == [60, 20, 20]


def test_spectrum_is_a_share_of_the_variance() -> None:
    figure = figures_sts.spectrum_lines({"a": np.array([3.0, 1.0])})
    assert list(figure.data[0].y) == [75, 25]


def test_score_dots_and_loss_curve_hold_their_numbers() -> None:
    figure = figures_sts.score_dots({"raw": {"stsb": 10.0}, "flow": {"stsb": 50.0}})
    assert [list(t.x) for t in figure.data if t.name] == [[10.0], [50.0]]
    figure = figures_sts.loss_curve([2.0, 1.0], {"Gaussian": 1.5})
    assert list(figure.data[0].y) == [2, 1] and list(figure.data[1].y) == [1.5, 1.5]
