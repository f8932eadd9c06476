"""Figures over stored runs: a menu entry draws exactly what it names, and nothing of the others."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

from bertflow_lite.figures.scores import (
    score_explorer,
    score_intervals,
    score_panels,
    tuning_curves,
)

TABLES = {
    "one": {"raw": {"a": 10.004, "b": 20.0}, "flow": {"a": 30.0}},
    "two": {"raw": {"a": 11.0, "b": 21.0}, "whitened": {"b": 41.0}},
}
INTERVALS = {
    "one": {"raw": {"a": (10, 8, 13), "b": (20, 19, 21)}, "flow": {"a": (30, 28, 32)}},
    "two": {"raw": {"c": (50,)}, "flow": {"d": (60, 58, 61), "e": (70, 69, 71)}},
}
CURVES = {
    "one": {"NATSV": {1: 5.0, 2: 9.0, 3: 7.0}, "SN + NATSV": {1: 6.0, 2: 4.0, 3: 5.0}},
    "two": {"NATSV": {1: 3.0, 2: 2.0}},
}
LEVELS = {"one": {"flow": 8.0, "raw": 1.0}, "two": {"flow": 4.0}}


def choose(figure: go.Figure, label: str) -> go.Figure:
    """Do what Plotly does in the browser when a menu entry is chosen: restyle, then relayout."""
    (menu,) = figure.layout.updatemenus
    (button,) = (b for b in menu.buttons if b.label == label)
    chosen = go.Figure(figure)
    restyle, *relayout = button.args
    for key, values in restyle.items():
        assert len(values) == len(figure.data), key
        for trace, value in zip(chosen.data, values, strict=True):
            if key.startswith("error_x") and value is None:
                continue
            trace.update({key.replace(".", "_"): value})
    for change in relayout:
        chosen.update_layout({key.replace(".", "_"): value for key, value in change.items()})
    return chosen


def drawn(figure: go.Figure) -> dict[str, dict[str, float]]:
    """Read the scores off a score_explorer: method -> set -> score."""
    return {
        trace.name: {s: x for s, x in zip(trace.y, trace.x, strict=True) if x is not None}
        for trace in figure.data
        if trace.visible is not False
    }


def read_intervals(figure: go.Figure) -> dict[str, dict[str, tuple[float, ...]]]:
    """Read score_intervals back: series -> row -> (score, low, high), or (score,)."""
    rows = figure.layout.yaxis.ticktext
    out: dict[str, dict[str, tuple[float, ...]]] = {}
    for trace in figure.data:
        if trace.mode != "markers" or not trace.visible:
            continue
        for x, y, up, down in zip(
            trace.x, trace.y, trace.error_x.array, trace.error_x.arrayminus, strict=True
        ):
            found = (x,) if up is None else (x, x - down, x + up)
            assert abs(y - round(y)) < 0.5
            out.setdefault(trace.name, {})[rows[round(y)]] = found
    return out


# score_explorer


def test_explorer_opens_with_the_first_table_and_switches_to_the_second() -> None:
    figure = score_explorer(TABLES)
    assert drawn(figure) == {"raw": {"a": 10.0, "b": 20.0}, "flow": {"a": 30.0}}
    assert drawn(choose(figure, "two")) == TABLES["two"]
    assert drawn(choose(choose(figure, "two"), "one")) == drawn(figure)


def test_explorer_keeps_one_look_and_one_scale() -> None:
    figure = score_explorer(TABLES)
    looks = {(t.marker.color, t.marker.symbol) for t in figure.data}
    assert len(looks) == len(figure.data) == 3
    low, high = figure.layout.xaxis.range
    assert low < 10 and high > 41
    # The first set is on top.
    assert list(figure.layout.yaxis.categoryarray) == ["b", "a"]


def test_explorer_of_one_table_has_no_menu() -> None:
    assert not score_explorer({"one": TABLES["one"]}).layout.updatemenus


def test_explorer_needs_a_score() -> None:
    with pytest.raises(ValueError, match="no score to draw"):
        score_explorer({"one": {}})


# score_intervals


def test_intervals_are_drawn_as_given_in_both_entries() -> None:
    figure = score_intervals(INTERVALS)
    assert read_intervals(figure) == INTERVALS["one"]
    assert read_intervals(choose(figure, "two")) == INTERVALS["two"]
    back = choose(choose(figure, "two"), "one")
    assert read_intervals(back) == INTERVALS["one"]
    assert list(back.layout.yaxis.ticktext) == ["a", "b"]


def test_series_that_share_a_row_stand_below_each_other() -> None:
    raw, flow = score_intervals(INTERVALS).data[:2]
    assert raw.y[0] < 0 < flow.y[0]  # the axis points down: raw is above
    second = choose(score_intervals(INTERVALS), "two")
    assert [*second.data[0].y, *second.data[1].y] == [0, 1, 2]


def test_a_line_follows_the_menu() -> None:
    figure = score_intervals(INTERVALS, lines={"one": ("flow", 30.0)})
    assert (figure.data[-1].name, *figure.data[-1].x) == ("flow", 30.0, 30.0)
    assert choose(figure, "two").data[-1].visible is False
    assert choose(choose(figure, "two"), "one").data[-1].visible is True


def test_each_entry_has_its_own_scale_when_asked() -> None:
    one = choose(score_intervals(INTERVALS, same_scale=False), "one")
    two = choose(score_intervals(INTERVALS, same_scale=False), "two")
    assert one.layout.xaxis.range[1] < two.layout.xaxis.range[0]
    same = score_intervals(INTERVALS)
    assert same.layout.xaxis.range == choose(same, "two").layout.xaxis.range == (6, 73)


def test_whiskers_reach_from_low_to_high() -> None:
    trace = score_intervals(INTERVALS).data[0]
    assert (list(trace.error_x.arrayminus), list(trace.error_x.array)) == ([2, 1], [3, 1])
    assert "95 % interval 8.0 to 13.0" in trace.text[0]


def test_an_interval_that_misses_its_score_is_refused() -> None:
    with pytest.raises(ValueError, match="misses its score"):
        score_intervals({"one": {"raw": {"a": (10, 11, 12)}}})


def test_intervals_need_a_score() -> None:
    with pytest.raises(ValueError, match="no score to draw"):
        score_intervals({"one": {"raw": {}}})


# tuning_curves


def test_curves_and_levels_follow_the_menu() -> None:
    figure = tuning_curves(CURVES, LEVELS, x_axis="k")
    by_name = {t.name: t for t in figure.data}
    assert (*by_name["NATSV"].y,) == (5, 9, 7)
    assert (by_name["best NATSV"].x[0], by_name["best NATSV"].y[0]) == (2, 9)
    assert (by_name["best SN + NATSV"].x[0], by_name["best SN + NATSV"].y[0]) == (1, 6)
    assert set(by_name["flow"].y) == {8} and (*by_name["flow"].x,) == (1, 3)
    second = {t.name: t for t in choose(figure, "two").data}
    assert (*second["NATSV"].y,) == (3, 2) and second["best NATSV"].x[0] == 1
    assert (*second["SN + NATSV"].y,) == ()  # this entry has no such curve
    assert set(second["flow"].y) == {4} and set(second["raw"].y) == {None}


@pytest.mark.parametrize(
    ("curves", "levels", "words"),
    [
        ({"one": {}}, {}, "no curve to draw"),
        ({"one": {c: {1: 1.0} for c in "abcd"}}, {}, "at most 3"),
        (CURVES, {"one": dict.fromkeys("abcd", 1.0)}, "at most 3"),
    ],
)
def test_curves_that_cannot_be_told_apart_are_refused(curves, levels, words) -> None:
    with pytest.raises(ValueError, match=words):
        tuning_curves(curves, levels, x_axis="k")


def test_panels_show_every_score_once_on_one_scale():
    figure = score_panels(TABLES, "title", "wmean", lines={"two": 15.0})
    assert [note.text for note in figure.layout.annotations] == ["one", "two"]
    marks = [trace for trace in figure.data if trace.mode == "markers"]
    found = {(trace.xaxis, trace.name): dict(zip(trace.y, trace.x, strict=True)) for trace in marks}
    assert found == {
        ("x", "raw"): {"a": 10.0, "b": 20.0},
        ("x", "flow"): {"a": 30.0},
        ("x2", "raw"): {"a": 11.0, "b": 21.0},
        ("x2", "whitened"): {"b": 41.0},
    }
    # A method stands in the legend once, and all panels have one scale that holds all scores.
    named = [trace.name for trace in marks if trace.showlegend]
    assert named == ["raw", "flow", "whitened"]
    ranges = {figure.layout.xaxis.range, figure.layout.xaxis2.range}
    assert len(ranges) == 1
    low, high = ranges.pop()
    assert low < 10 and high > 41
    (line,) = figure.layout.shapes
    assert (line.x0, line.xref) == (15.0, "x2")


@pytest.mark.parametrize(("tables", "columns"), [({"one": {}}, 2), (TABLES, 0)])
def test_panels_need_a_score_and_a_column(tables, columns):
    with pytest.raises(ValueError, match=r"no score to draw|columns is 0"):
        score_panels(tables, columns=columns)
