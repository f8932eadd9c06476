"""Figures about spelling and about the presets: they show the numbers they are given."""

from __future__ import annotations

import numpy as np
import pytest

import bertflow_lite as bf
from bertflow_lite.experiments.scoring import format_results
from bertflow_lite.figures import spelling as figures_lexical
from bertflow_lite.figures.scores import mean_test_scores, preset_dots, score_lines
from bertflow_lite.figures.spelling import draw_figure2, pair_ranks


def test_pair_ranks_move_with_the_slider():
    own = [("It rains.", "It <b>pours</b>."), ("a " * 40, "b")]
    ranks = {"edit distance": [95.0, 3.04], "people": [10.0, np.nan]}
    figure = pair_ranks(own, ranks, ["first", "second"])
    assert list(figure.data[0].y) == ["edit distance", "people"]
    assert list(figure.data[0].x) == [95.0, 10.0]
    steps = figure.layout.sliders[0].steps
    assert [step.label for step in steps] == ["first", "second"]
    assert steps[1].args[0]["x"] == [[3.0, None]]  # nobody rated the second pair
    # Text of a reader is no markup, and long sentences are broken.
    assert figure.layout.title.text == "It rains.<br>It &lt;b&gt;pours&lt;/b&gt;."
    assert steps[1].args[1]["title.text"].count("<br>") == 2
    assert list(figure.layout.yaxis.categoryarray) == ["people", "edit distance"]


@pytest.mark.parametrize(
    ("own", "ranks", "notes"),
    [
        ([], {"people": []}, []),
        ([("a", "b")], {}, []),
        ([("a", "b")], {"people": [1.0, 2.0]}, []),
        ([("a", "b")], {"people": [1.0]}, ["one", "two"]),
    ],
)
def test_pair_ranks_need_as_many_of_each(own, ranks, notes):
    with pytest.raises(ValueError, match="at least one pair and one measure"):
        pair_ranks(own, ranks, notes)


def test_figure_2_can_leave_sentences_out(monkeypatch):
    run = bf.load_run("figure2", "minilm")["results"]
    with_text = draw_figure2(run, data="mini-sts", layers="4")
    assert all(" " in text and "<br>" in text for text in with_text.data[0].text)

    def never(*_):
        raise AssertionError("the set was read")

    monkeypatch.setattr(figures_lexical, "load_text", never)
    without = draw_figure2(run, data="mini-sts", layers="4", texts=False)
    assert all(text.startswith("pair ") for text in without.data[0].text)
    assert list(without.data[0].x) == list(with_text.data[0].x)


ROWS = [
    {"layers": "4", "data": data, "calibrator": calibrator, "seed": seed,
     "wmean": base + 2 * seed, "all": base - 10}
    for data, more in (("stsb", 0.0), ("sts12", 4.0))
    for calibrator, base, seeds in (
        ("none", 40 + more, 1),
        ("whiten", 50 + more, 1),
        ("whiten:8", 52 + more, 1),
        ("flow:paper", 60 + more, 2),
        ("flow:released-code", 58 + more, 2),
        ("flow:recommended", 63 + more, 2),
    )
    for seed in range(seeds)
]  # fmt: skip


def test_test_scores_are_means_over_seeds_then_sets():
    table = mean_test_scores({"rows": ROWS, "widths": {"4": "whiten:8"}})
    assert table["flow:paper"]["4"] == pytest.approx(63)  # 60 and 62; 64 and 66
    assert table["best width"] == table["whiten:8"] == {"4": pytest.approx(54)}
    assert mean_test_scores({"rows": ROWS, "widths": {"4": "whiten:8"}}, "all")["none"]["4"] == 32
    # A width that the embeddings do not have was run whole.
    wide = mean_test_scores({"rows": ROWS, "widths": {"4": "whiten:512"}})
    assert wide["best width"] == wide["whiten"]


def test_preset_dots_are_differences_to_the_papers_preset():
    figure = preset_dots({"toy": {"rows": ROWS, "widths": {"4": "whiten:8"}}}, "title")
    drawn = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}
    assert drawn["recommended"] == ([3.0], ["toy, block 4"])
    assert drawn["whitened"][0] == [-11.0] and drawn["whitened, best width"][0] == [-9.0]
    button = figure.layout.updatemenus[0].buttons[1]
    assert button.label == "all" and button.args[0]["x"][0] == [-10.0]
    assert len(button.args[0]["x"]) == len(figure.data)
    with pytest.raises(ValueError, match="no test runs"):
        preset_dots({})


def test_stored_test_runs_agree_with_the_command_lines_table():
    run = bf.load_run("ablation", "test-glove")["results"]
    table = mean_test_scores(run)
    text = format_results(run["rows"], "wmean", note=", test", average=True)
    for calibrator in ("none", "whiten", "flow:recommended"):
        (line,) = [one for one in text.splitlines() if f" {calibrator} " in one]
        assert line.split()[-1] == f"{table[calibrator]['mean']:.2f}"


def test_score_lines_draw_what_they_are_given():
    figure = score_lines({"a": [("raw", 1.0), ("actnorm", 2.0)], "b": [("raw", 3.0)]}, axis="layer")
    assert list(figure.data[0].y) == [1.0, 2.0] and list(figure.data[0].text) == ["raw", "actnorm"]
    assert figure.data[1].name == "b" and figure.layout.xaxis.title.text == "layer"
    assert figure.layout.xaxis.ticktext == ("raw", "actnorm")
    long = score_lines({"a": [(f"layer {k}", 1.0) for k in range(9)]})
    assert long.layout.xaxis.ticktext is None
    with pytest.raises(ValueError, match="there are 0 lines"):
        score_lines({})
