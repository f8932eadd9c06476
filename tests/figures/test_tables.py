"""Figures 1 and 2 and the picture of Table 6: what they draw is what was measured."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

import bertflow_lite as bf
from bertflow_lite.experiments import figure1 as flow_map
from bertflow_lite.experiments import table6 as lexical_runs
from bertflow_lite.experiments.figure1 import (
    flow_states,
    format_figure1,
    plane_coordinates,
    run_figure1,
)
from bertflow_lite.experiments.scoring import RunOptions
from bertflow_lite.experiments.spelling import score_lexical
from bertflow_lite.experiments.table6 import run_figure2
from bertflow_lite.figures.flows import draw_figure1
from bertflow_lite.figures.spelling import draw_figure2, lexical_scatter

LARGEST = 1_500_000  # bytes of a figure in a page


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(lexical_runs, "FLOW_STEPS", 20)
    monkeypatch.setattr(flow_map, "FLOW_STEPS", 20)
    monkeypatch.setattr(lexical_runs, "score_lexical", partial(score_lexical, n_resamples=20))


@pytest.fixture
def figure1(tiny_bert, quick):
    return run_figure1(tiny_bert)


# Figure 1


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_states_end_in_the_latent(levels):
    x = np.random.default_rng(0).normal(size=(60, 9)).astype(np.float32)
    x[:, 4] = 2.0  # a dead dimension, which the flow leaves alone
    with pytest.warns(UserWarning, match="no spread"):
        flow = bf.FlowCalibrator(levels=levels, epochs=2).fit(x)
    states = flow_states(flow, x)
    live = [0, 1, 2, 3, 5, 6, 7, 8]
    assert np.array_equal(states["embeddings"], x[:, live])
    last = states[f"step {3 * levels}"]
    assert list(states)[-1] == f"step {3 * levels}"
    # The dead dimension passes through at its place; the latent stands in the live ones.
    assert last == pytest.approx(flow.transform(x)[:, live], abs=1e-5)
    # The first actnorm is a shift and a scale of each dimension.
    for before, after in zip(x[:, live].T, states["actnorm 1"].T, strict=True):
        assert np.corrcoef(before, after)[0, 1] == pytest.approx(1, abs=1e-5)


def test_the_plane_keeps_the_origin_and_as_much_as_a_plane_can():
    rng = np.random.default_rng(0)
    cone = rng.normal(size=(200, 5)) * [0.1, 0.1, 0.3, 0.1, 0.1] + [3, 0, 0, 0, 0]
    ball = rng.normal(size=(200, 5))
    (narrow, share), (wide, _) = plane_coordinates([cone, ball])
    # A cone to the right of the origin, in the plane of its mean and its widest direction.
    assert narrow[:, 0].min() > 0.5 and abs(narrow[:, 1]).max() < 0.5
    squares = (cone**2).sum(axis=0)
    assert share >= (squares[0] + squares[2]) / squares.sum()
    # All around it.
    assert all((wide * sign > 0).all(axis=1).any() for sign in ([1, 1], [1, -1], [-1, 1], [-1, -1]))
    for points in (narrow, wide):
        assert (points**2).sum(axis=1).mean() == pytest.approx(1)


def test_planes_turn_as_little_as_they_can():
    x = np.random.default_rng(0).normal(size=(100, 4)) * [4, 3, 1, 1]
    turn = np.array([[0, -1], [1, 0]])
    turned = x.copy()
    turned[:, :2] = x[:, :2] @ turn
    (before, _), (after, _) = plane_coordinates([x, turned])
    assert after == pytest.approx(before, abs=1e-6)


def test_figure_1_moves_every_sentence_from_the_first_state_to_the_last(figure1):
    pairs = bf.load_sts("mini-sts")
    figure = draw_figure1(figure1)
    states = figure1["maps"]["last2avg"]
    steps = figure.layout.sliders[0].steps
    assert len(figure.frames) == len(steps) == len(states) == 8
    assert (steps[0].label, steps[-1].label) == ("raw", "latent")
    for frame, step, state in zip(figure.frames, steps, states, strict=True):
        assert list(step.args[0]) == [frame.name] and list(frame.traces) == [0, 1, 2, 3]
        points = {pair for trace in frame.data[:3] for pair in zip(trace.x, trace.y, strict=True)}
        assert points == set(zip(state["x"], state["y"], strict=True))
        assert frame.data[3].text == (f"mean cosine {state['mean_cosine']:.2f}",)
    groups = figure.data[:3]
    assert [trace.name for trace in groups] == ["rare words", "in between", "frequent words"]
    assert max(groups[0].customdata) <= min(groups[1].customdata)
    assert max(groups[1].customdata) <= min(groups[2].customdata)
    shown = {text.replace("&amp;", "&") for trace in groups for text in trace.text}
    assert shown == {pairs.sentences[row] for row in figure1["row"]}
    assert sum(len(trace.x) for trace in groups) == flow_map.MOST_POINTS
    # Every point is inside the axes, in every state.
    reach = figure.layout.xaxis.range[1]
    assert max(max(map(abs, state[axis])) for state in states for axis in "xy") < reach
    assert len(json.dumps(figure.to_plotly_json(), default=list)) < LARGEST


def test_figure_1_reports_the_mean_cosine_before_and_after(figure1, tiny_bert):
    texts = [*dict.fromkeys(bf.load_sts("mini-sts").sentences)]
    x = tiny_bert.encode(texts, "last2avg").astype(float)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    n = len(unit)
    expected = (np.square(unit.sum(axis=0)).sum() - n) / (n * (n - 1))
    assert figure1["maps"]["last2avg"][0]["mean_cosine"] == pytest.approx(expected, abs=1e-3)
    assert f"{expected:.3f}" in format_figure1(figure1)
    with pytest.raises(ValueError, match="one set, not 2"):
        run_figure1(tiny_bert, RunOptions(data=["mini-sts", "stsb"]))


def test_figure_1_without_the_text_shows_positions(figure1):
    figure1["settings"]["data"]["mini-sts"] = "of another version"
    shown = {text for trace in draw_figure1(figure1).data[:3] for text in trace.text}
    assert shown == {f"sentence {row}" for row in figure1["row"]}
    with pytest.raises(ValueError, match="the run has last2avg, first-last"):
        draw_figure1(figure1, layers="4")


# Figure 2


def test_figure_2_draws_each_pair_once_and_buttons_move_it(tiny_bert, quick):
    pairs = bf.load_sts("mini-sts")
    results = run_figure2(tiny_bert, RunOptions(data=["mini-sts"]))
    figure = draw_figure2(results)
    points = results["sets"]["mini-sts"]
    distance = np.array(points["distance"])
    far, near = figure.data
    assert list(near.customdata) == list(distance[distance <= 4])
    assert list(far.customdata) == list(distance[distance > 4])
    gold, raw, *_ = buttons = figure.layout.updatemenus[0].buttons
    assert [button.label for button in buttons] == ["gold", "raw", "SN", "whitening", "flow"]
    assert list(near.x) == list(gold.args[0]["x"][1]) == list(pairs.gold[distance <= 4])
    cosines = np.array(points["cosines"]["last2avg"]["none"])
    assert raw.args[0]["x"][0] == pytest.approx(cosines[distance > 4], abs=1e-3)
    first_near = int(np.flatnonzero(distance <= 4)[0])
    assert pairs.sentences1[first_near] in near.text[0].replace("&amp;", "&")
    # Each button says its own correlation.
    expected = 100 * bf.spearman(distance, cosines)
    assert f"{expected:.1f} over all pairs" in raw.args[1]["title.text"]
    assert len(json.dumps(figure.to_plotly_json(), default=list)) < LARGEST


def test_marks_stand_at_their_distance_whatever_the_noise():
    distances = np.repeat([0, 1, 4, 5, 30], 50)
    figure = lexical_scatter(distances, {"a": np.linspace(0, 1, 250)})
    for trace in figure.data:
        back = 2 ** np.array(trace.y) - 1
        assert np.abs(back - np.array(trace.customdata)).max() < 0.31
    line = figure.layout.shapes[0].y0
    assert max(figure.data[1].y) < line < min(figure.data[0].y)
    assert not figure.layout.updatemenus


def test_many_pairs_are_sampled_but_correlated_in_full():
    rng = np.random.default_rng(0)
    distances, values = rng.integers(0, 40, 9000), rng.random(9000)
    texts = [(f"{'word ' * 20}{i}", "& <b>") for i in range(9000)]
    figure = lexical_scatter(distances, {"a": values, "b": -values}, texts=texts)
    assert sum(len(trace.x) for trace in figure.data) == 1500
    expected = 100 * bf.spearman(distances, values)
    assert f"{expected:.1f} over all pairs" in figure.layout.title.text
    assert "&lt;b>" in figure.data[0].text[0] or "&lt;b&gt;" in figure.data[0].text[0]
    assert len(json.dumps(figure.to_plotly_json(), default=list)) < LARGEST
    with pytest.raises(ValueError, match="each with 9000 values"):
        lexical_scatter(distances, {"a": values[:5]})
