"""One look for all figures: a method has its color, mark and dash wherever it is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

import bertflow_lite as bf
from bertflow_lite.figures import controls, geometry, pairs, pmi, scores
from bertflow_lite.figures import pretraining_curves as curves
from bertflow_lite.figures.drawing import draw, lay_out, legend_rows, place_title, whiskers
from bertflow_lite.figures.plots import (
    LOOKS,
    PALETTE,
    Look,
    looks_of,
    make_button,
    make_menu,
    series,
    switch_groups,
)


def test_methods_are_told_apart_without_their_colors() -> None:
    named = {key: look for key, look in LOOKS.items() if key != "natsv:1"}  # a case of natsv
    assert {look.color for look in named.values()} <= set(PALETTE.values())
    marks = [look.mark for look in named.values()]
    assert len(set(marks)) == len(marks)


@pytest.mark.parametrize(
    ("label", "method"),
    [
        ("raw", "none"),
        ("untrained, raw", "none"),
        ("no calibration", "none"),
        ("standardized (SN)", "sn"),
        ("SN + NATSV", "sn+natsv"),
        ("sn+natsv:6", "sn+natsv"),
        ("natsv:10", "natsv"),
        ("whitening", "whiten"),
        ("cosine after whitening", "whiten"),
        ("whitening to a third", "whiten:128"),
        ("whiten:384", "whiten:128"),
        ("flow (target)", "flow"),
        ("flow, batch by batch", "flow"),
        ("paper", "flow"),
        ("paper: BERT-base-flow (target)", "flow"),
        ("flow (NLI), as published", "flow:nli"),
        ("flow, preset recommended", "flow:recommended"),
        ("TF-IDF (idf squared)", "tfidf"),
        ("bag of words", "count"),
        ("people", "people"),
    ],
)
def test_a_label_has_the_look_of_its_method(label: str, method: str) -> None:
    (look,) = looks_of([label]).values()
    wanted = LOOKS[method]
    assert (look.name, look.color, look.mark) == (label, wanted.color, wanted.mark)


def test_different_labels_look_different_and_methods_keep_their_colors() -> None:
    labels = [f"model {k}" for k in range(12)]
    labels += ["raw", "flow", "flow, without noise", "whitened", "TF-IDF"]
    looks = looks_of(labels)
    assert list(looks) == labels
    assert len({(look.color, look.mark) for look in looks.values()}) == len(labels)
    assert looks["flow"].color == looks["flow, without noise"].color == LOOKS["flow"].color
    assert looks["raw"].color == LOOKS["none"].color
    # What names no method leaves the methods' colors alone while there are others.
    one, *others = looks_of(["SBERT", "raw", "flow"]).values()
    assert one.color not in {look.color for look in others}


def test_series_do_not_repeat_soon() -> None:
    assert len({(series(k).color, series(k).mark) for k in range(28)}) == 28


def drawn(fig: go.Figure) -> dict[str, str]:
    """Color of each named trace."""
    found = {}
    for trace in fig.data:
        color = trace.line.color if trace.type == "scatter" and trace.line.color else None
        found[trace.name] = color or trace.marker.color
    return found


METHODS = {"none": ("raw",), "sn": ("standardized", "SN"), "whiten": ("whitened", "whitening"),
           "flow": ("flow",)}  # fmt: skip


def figures_with_methods() -> list[go.Figure]:
    rng = np.random.default_rng(0)
    names = ["raw", "standardized", "whitened", "flow"]
    table = {name: {"stsb": float(k), "sick-r": 1.0} for k, name in enumerate(names)}
    rows = [
        {"layers": layer, "data": "stsb", "calibrator": name, "all": [1.0, 2.0]}
        for name in METHODS
        for layer in ("0", "1")
    ]
    geometry_run = bf.load_run("geometry", "minilm")["results"]["calibrated"]["mini-sts"]
    pretraining = bf.load_run("pretraining", "mini-bert")["results"]
    whiskers_of = {"one": {name: {"a": (10, 8, 13)} for name in names}}
    toy = [{"spread": 0.1, **{name: {"topics": 0.5, "overlap": 0.4} for name in names}}]
    return [
        scores.score_explorer({"one": table}),
        scores.score_intervals(whiskers_of),
        scores.tuning_curves({"m": {"NATSV": {1: 2.0}}}, {"m": {"flow": 3, "raw": 1}}, x_axis="k"),
        pairs.score_dots(table),
        pairs.spectrum_lines({name: rng.uniform(size=4) for name in names}),
        controls.block_lines(rows, methods=tuple(METHODS)),
        geometry.plot_calibrated(next(iter(geometry_run.values())), x="iso_score"),
        pmi.reliance_figure(toy),
        curves.score_curves(pretraining),
        curves.space_explorer(pretraining),
    ]


def test_a_method_has_one_color_in_all_chapters() -> None:
    for number, fig in enumerate(figures_with_methods()):
        colors, met = drawn(fig), 0
        for method, names in METHODS.items():
            for name in names:
                if name in colors:
                    assert colors[name] == LOOKS[method].color, (number, name)
                    met += 1
        assert met >= 2, number


# Menus, titles and legends


def button(label: str) -> dict[str, Any]:
    return make_button(label, {"visible": [True]})


def test_a_menu_is_a_row_where_it_fits_a_phone_and_else_a_list() -> None:
    assert make_menu([]) == make_menu([button("alone")]) == []
    (row,) = make_menu([button("raw"), button("flow")])
    (folded,) = make_menu([button(f"a long name of an encoder {k}") for k in range(3)])
    assert (row["type"], folded["type"]) == ("buttons", "dropdown")
    assert {key: row[key] for key in "xy"} == {key: folded[key] for key in "xy"}


def test_buttons_show_one_group_and_change_the_layout() -> None:
    fig = go.Figure([go.Scatter(y=[k]) for k in range(4)])
    layouts = [{"title.text": "one"}, {"title.text": "two"}]
    first, second = switch_groups(fig, ["a", "b"], layouts=layouts)
    assert [trace.visible for trace in fig.data] == [True, True, False, False]
    assert first["method"] == "update" and second["args"][1] == {"title.text": "two"}
    assert second["args"][0]["visible"] == [False, False, True, True]


def test_a_legend_has_room_for_every_entry_of_the_menu() -> None:
    fig = go.Figure()
    names = [f"a name of which one fits a row {k}" for k in range(6)]
    for k, name in enumerate(names):
        draw(fig, series(k, name), [1], [2], visible=k < 2)
    shown = [[k < 2 for k in range(6)], [True] * 6]
    menu = [make_button(str(k), {"visible": state}) for k, state in enumerate(shown)]
    few = lay_out(go.Figure(fig), "t", height=400, menu=[]).layout.height
    assert few == 400 and legend_rows(names) == 6
    assert lay_out(fig, "t", height=400, menu=menu).layout.height == 400 + 4 * 19


def test_a_long_title_is_broken_for_a_phone_and_makes_room() -> None:
    long = "A title that is much too long for the screen of a telephone"
    assert place_title(long)["text"].count("<br>") == 1
    assert place_title("one<br>two")["text"] == "one<br>two"
    tops = [lay_out(go.Figure(), title).layout.margin.t for title in ("", "short", long)]
    assert tops == sorted(set(tops))


def test_whiskers_reach_to_both_ends_where_there_are_ends() -> None:
    bars = whiskers([(10, 8, 13), (5,)])
    assert bars["array"] == [3, None] and bars["arrayminus"] == [2, None]


def test_a_trace_without_hover_text_is_skipped_and_one_with_it_says_its_name() -> None:
    fig = go.Figure()
    look = Look("flow", "flow", PALETTE["blue"], "star", "dot")
    draw(fig, look, [1], [2], "%{x}", "lines+markers", size=5)
    draw(fig, look, [1], [2])
    first, second = fig.data
    assert first.hovertemplate == "%{x}<extra>%{fullData.name}</extra>"
    assert (first.marker.symbol, first.line.dash, first.marker.size) == ("star", "dot", 5)
    assert second.hoverinfo == "skip" and second.line.dash is None
