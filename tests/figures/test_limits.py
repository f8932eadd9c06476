"""Figures of the limits and of the word weights: what is drawn is what was given."""

from __future__ import annotations

import numpy as np
import pytest

from bertflow_lite.figures.controls import weight_slider
from bertflow_lite.figures.pairs import threshold_bars


def test_threshold_bars_count_the_pairs_above() -> None:
    rng = np.random.default_rng(0)
    cosines, same = rng.uniform(size=200), rng.uniform(size=200) < 0.4
    steps = [0.2, 0.5, 0.8]
    fig = threshold_bars({"raw": cosines, "flow": -cosines}, same, steps, active=1)
    assert len(fig.data) == 6 and len(fig.layout.sliders[0].steps) == 3
    assert [trace.visible for trace in fig.data] == [False, False, True, True, False, False]
    for step, threshold in enumerate(steps):
        for trace, rows in zip(fig.data[2 * step : 2 * step + 2], (same, ~same), strict=True):
            share = 100 * sum(c >= threshold for c in cosines[rows]) / rows.sum()
            assert trace.y[0] == pytest.approx(share, abs=0.05)
            assert trace.y[1] == 0


def test_threshold_bars_refuse_what_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="mean the same"):
        threshold_bars({"raw": [0.1, 0.2]}, [True, True], [0.5])
    with pytest.raises(ValueError, match="'flow' needs 2 cosines"):
        threshold_bars({"raw": [0.1, 0.2], "flow": [0.1]}, [True, False], [0.5])


def test_weight_slider_shows_one_width_at_a_time() -> None:
    widths = {d: {"measured": [1, 0.5, 1 / d], "predicted": [1, 0.4, 2 / d]} for d in (8, 64)}
    fig = weight_slider(widths, [1, 10, 100], others={"TF-IDF": [1, 0.3, 0.1]}, active=1)
    names = [trace.name for trace in fig.data]
    assert names == ["measured", "predicted", "TF-IDF"] * 2
    assert [trace.visible for trace in fig.data] == [False] * 3 + [True] * 3
    assert list(fig.data[3].y) == pytest.approx([1, 0.5, 1 / 64], abs=1e-4)
    assert fig.layout.xaxis.type == "log" and list(fig.data[0].x) == [1, 10, 100]


def test_weight_slider_refuses_lines_that_do_not_fit() -> None:
    full = {"measured": [1, 1, 1], "predicted": [1, 1, 1]}
    with pytest.raises(ValueError, match="3 weights"):
        weight_slider({8: full}, [1, 10, 100], others={"TF-IDF": [1, 0.3]})
    with pytest.raises(ValueError, match="3 weights"):
        weight_slider({8: {**full, "predicted": [1.0]}}, [1, 10, 100])
    with pytest.raises(ValueError, match="no width"):
        weight_slider({}, [1.0])
