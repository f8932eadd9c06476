"""Figures of a small BERT that learns: what is drawn is what was measured."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

import bertflow_lite as bf
from bertflow_lite.figures import pretraining_curves as curves
from bertflow_lite.figures import pretraining_curves as sentences
from bertflow_lite.figures import pretraining_curves as variants
from bertflow_lite.figures import pretraining_film as films
from bertflow_lite.figures.plots import PALETTE
from bertflow_lite.figures.pretraining_curves import recipe_curves
from bertflow_lite.figures.pretraining_panels import Line, Panel, stack_panels, step_places

STEPS = [0, 1, 10, 100]
LAYERS = ["last", "last2avg", "first-last"]


def space(rng: np.random.Generator) -> dict[str, Any]:
    value = [1.0, *sorted(rng.uniform(0, 1, 3), reverse=True)]
    return {
        "frequency": {"variance": [*rng.uniform(size=3)], "explained": [*rng.uniform(size=3)]},
        "length": {"variance": [*rng.uniform(size=3)], "explained": [*rng.uniform(size=3)]},
        "mean_cosine": {"estimate": rng.uniform(), "low": 0.0, "high": 1.0},
        "effective_rank": rng.uniform(1, 30),
        "spectrum": {"index": [1, 2, 5, 9], "value": value},
    }


def snapshot(step: int, rng: np.random.Generator) -> dict[str, Any]:
    def by_bin() -> list[float]:
        return [*rng.uniform(size=2)]

    shares = {"PMI": rng.uniform(), "log p(x)": rng.uniform(), "lambda_c": rng.uniform()}
    several = 3 if step in (STEPS[0], STEPS[-1]) else 1
    return {
        "step": step,
        "tokens": 900_000 * step,
        "words": {
            **space(rng),
            "norm_log_frequency": {"spearman": rng.uniform(-1, 1)},
            "spearman_distance_rank": rng.uniform(-1, 1),
            "table1": {
                "bins": [[0, 100], [100, 500]],
                "norm": by_bin(),
                "distance": {k: by_bin() for k in "357"},
                "dot": {k: by_bin() for k in "357"},
            },
        },
        "sentences": {layer: space(rng) for layer in LAYERS},
        "sts": {
            layer: {
                name: [*rng.uniform(30, 70, several if name == "flow" else 1)]
                for name in ("none", "sn", "whiten", "flow")
            }
            for layer in LAYERS
        },
        "gain": {
            "loss": rng.uniform(3, 7),
            "unigram_loss": 7.1,
            # The rarest pieces are met at the last step only; one of them alone, without error.
            "by_frequency": {
                "bins": [[0, 100], [10_000, None]] if step == STEPS[-1] else [[0, 100]],
                "pmi": [0.01 * step, 2.0][: 2 if step == STEPS[-1] else 1],
                "error": [0.1, None][: 2 if step == STEPS[-1] else 1],
            },
        },
        "terms": {
            "pairs": {"shares": shares},
            "joint": {"shares": {name: share / 2 for name, share in shares.items()}},
            "log_p_in": {"bias_slope": 1.0, "vectors_slope": 0.1, "r2_of_vectors": rng.uniform()},
        },
        "neighbors": {"spearman": rng.uniform(), "spearman_halves": 0.9, "spearman_rarity": 0.3},
        "guesses": [[["the", 0.5], ["<", 0.004 + step / 1000], ["##s", 0.2]], [["a", 0.1]] * 3],
    }


@pytest.fixture
def run() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "settings": {
            "layers": LAYERS,
            "calibrators": ["none", "sn", "whiten", "flow"],
            "set": "stsb-dev",
            "masked_sentences": ["A [MASK] & a dog.", "It is [MASK]."],
        },
        "baselines": {
            "tf-idf": 60.0,
            "random vectors of pieces": {"none": [40.0], "flow": [58.0, 60.0, 62.0]},
        },
        "snapshots": [snapshot(step, rng) for step in STEPS],
        "film": {
            "words": {
                "word": ["the", "cat", "<b>"],
                "rank": [0, 10, 99],
                "count": [1000, 100, 1],
                "x": [[*rng.normal(size=3)] for _ in STEPS],
                "y": [[*rng.normal(size=3)] for _ in STEPS],
                "share": [[0.1 * (k + 1), 0.004] for k in range(len(STEPS))],
            },
            "sentences": {
                "set": "mini-sts",
                "row": [2, 0],
                "x": [[1.0, -1.0] for _ in STEPS],
                "y": [[0.0, 0.0] for _ in STEPS],
                "share": [[0.5, 0.0] for _ in STEPS],
            },
        },
    }


def trace(fig: go.Figure, name: str, panel: int = 1) -> Any:
    axis = "y" if panel == 1 else f"y{panel}"
    (found,) = [t for t in fig.data if t.name == name and (t.yaxis or "y") == axis]
    return found


def after(fig: go.Figure, button: str) -> go.Figure:
    """Press a button of a figure's menu, as the page does."""
    (menu,) = fig.layout.updatemenus
    (found,) = [b for b in menu.buttons if b.label == button]
    values, *layout = copy.deepcopy(found.args)
    out = go.Figure(fig)
    for key, per_trace in values.items():
        for each, value in zip(out.data, per_trace, strict=True):
            each[key] = value
    for key, value in (layout[0] if layout else {}).items():
        out.layout[key] = value
    return out


def test_step_zero_stands_apart_at_the_left() -> None:
    assert step_places([0, 1, 10, 1000]) == [-0.7, 0, 1, 3]
    fig = stack_panels([Panel("a", "b", [Line("c", [3, 2, 1])])], [0, 1, 20], [0, 9, 180])
    assert fig.layout.xaxis.ticktext == ("0", "1", "10")
    assert list(fig.data[0].x)[:2] == list(fig.layout.xaxis.tickvals)[:2]
    (shape,) = fig.layout.shapes
    assert fig.data[0].x[0] < shape.x0 < fig.data[0].x[1]
    without = stack_panels([Panel("a", "b", [Line("c", [2, 1])])], [1, 20], [9, 180])
    assert without.layout.xaxis.ticktext == ("1", "10") and not without.layout.shapes


def test_panels_do_not_overlap_and_keep_their_heights() -> None:
    line = Line("a long name of a line", [1.0, 2.0])
    panels = [
        Panel("one", "x", [line] * 6, rows=2),
        Panel("two", "x", [line]),
        Panel("three", "x", [line]),
    ]
    fig = stack_panels(panels, [0, 1], [0, 1], menu=True)
    domains = [fig.layout[name].domain for name in ("yaxis", "yaxis2", "yaxis3")]
    assert domains[0][1] == 1 and domains[2][0] == pytest.approx(0, abs=1e-9)
    heights = [high - low for low, high in domains]
    assert heights[0] == pytest.approx(2 * heights[1]) and heights[1] == pytest.approx(heights[2])
    assert domains[0][0] > domains[1][1] > domains[1][0] > domains[2][1]
    inner = fig.layout.height - fig.layout.margin.t - fig.layout.margin.b
    assert heights[1] * inner == pytest.approx(150)
    assert [a.text for a in fig.layout.annotations] == ["<b>one</b>", "<b>two</b>", "<b>three</b>"]


def test_line_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="'c' has 3 values for 2 snapshots"):
        stack_panels([Panel("a", "b", [Line("c", [3, 2, 1])])], [0, 1], [0, 9])


def test_word_curves_show_table_1_and_turn_the_rank_around(run) -> None:
    fig = curves.word_curves(run)
    words = [s["words"] for s in run["snapshots"]]
    assert list(trace(fig, "norm").y) == [w["norm_log_frequency"]["spearman"] for w in words]
    # A distance that falls with the rank rises with the frequency.
    assert list(trace(fig, "distance to neighbors").y) == [
        -w["spearman_distance_rank"] for w in words
    ]
    for place, name in enumerate(("0–99", "100–499")):
        assert list(trace(fig, name, 2).y) == [w["table1"]["norm"][place] for w in words]
        assert list(trace(fig, name, 3).y) == [w["table1"]["distance"]["3"][place] for w in words]
    dots = after(fig, "3 largest dot products")
    assert list(trace(dots, "100–499", 3).y) == [w["table1"]["dot"]["3"][1] for w in words]
    assert "dot products" in dots.layout.annotations[2].text
    assert fig.layout.yaxis3.title.text == "distance"
    assert dots.layout.yaxis3.title.text == "dot product"
    assert list(trace(dots, "100–499", 2).y) == list(trace(fig, "100–499", 2).y)
    assert trace(fig, "0–99", 2).text[2] == "step 10, 9.0 million pieces"
    for name, of in (("of all variance", "variance"), ("frequency in it", "explained")):
        assert list(trace(fig, name, 5).y) == [w["frequency"][of][0] for w in words]


def test_meaning_curves_leave_gaps_where_no_piece_was_met(run) -> None:
    fig = curves.meaning_curves(run)
    assert list(trace(fig, "0–99", 2).y) == [0, 0.01, 0.1, 1]
    assert list(trace(fig, "10,000+", 2).y) == [None, None, None, 2]
    assert list(trace(fig, "10,000+", 2).error_y.array) == [None, None, None, None]
    assert set(trace(fig, "frequencies only").y) == {7.1}
    assert set(trace(fig, "rarity alone", 3).y) == {0.3}
    assert list(trace(fig, "with the corpus", 3).y) == [
        s["neighbors"]["spearman"] for s in run["snapshots"]
    ]


def test_term_curves_change_the_weights(run) -> None:
    fig = curves.term_curves(run)
    joint = after(fig, "weighted by p(x|c)")
    for name, term in (("PMI", "PMI"), ("log p(x)", "log p(x)"), ("λ", "lambda_c")):
        shares = [s["terms"]["pairs"]["shares"][term] for s in run["snapshots"]]
        assert list(trace(fig, name, 2).y) == shares
        assert list(trace(joint, name, 2).y) == [share / 2 for share in shares]
    assert len(trace(fig, "R² from vectors").y) == len(STEPS)
    for one in run["snapshots"]:  # a corpus with too few words has none
        one["terms"]["log_p_in"]["r2_of_vectors"] = None
    assert "R² from vectors" not in [t.name for t in curves.term_curves(run).data]


@pytest.mark.parametrize(
    ("button", "layer"),
    [("last two (last2avg)", "last2avg"), ("last", "last"), ("first and last", "first-last")],
)
def test_space_explorer_shows_the_chosen_layers(run, button, layer) -> None:
    fig = after(sentences.space_explorer(run), button)
    spaces = [s["sentences"][layer] for s in run["snapshots"]]
    assert list(trace(fig, "sentences", 2).y) == [s["mean_cosine"]["estimate"] for s in spaces]
    assert list(trace(fig, "frequency in it", 3).y) == [
        s["frequency"]["explained"][0] for s in spaces
    ]
    assert list(trace(fig, "length in it", 3).y) == [s["length"]["explained"][0] for s in spaces]
    assert list(trace(fig, "sentences", 4).y) == [s["effective_rank"] for s in spaces]
    assert list(trace(fig, "raw", 5).y) == pytest.approx(
        [s["sts"][layer]["none"][0] for s in run["snapshots"]], abs=1e-3
    )


def test_score_curves_average_seeds_and_subtract_raw(run) -> None:
    fig = after(sentences.score_curves(run), "last")
    scores = [s["sts"]["last"] for s in run["snapshots"]]
    flow = trace(fig, "flow")
    assert list(flow.y) == pytest.approx([np.mean(s["flow"]) for s in scores], abs=1e-3)
    assert flow.error_y.array[0] == pytest.approx(np.std(scores[0]["flow"], ddof=1), abs=1e-3)
    assert flow.error_y.array[1] is None
    assert list(trace(fig, "flow", 2).y) == pytest.approx(
        [np.mean(s["flow"]) - s["none"][0] for s in scores], abs=2e-3
    )
    assert [set(trace(fig, name).y) for name in ("TF-IDF", "random", "random, flow")] == [
        {60.0}, {40.0}, {60.0},
    ]  # fmt: skip
    assert fig.layout.annotations[0].text == "<b>STS-B, validation</b>"


@pytest.mark.parametrize(
    "draw",
    [
        curves.word_curves,
        curves.meaning_curves,
        curves.term_curves,
        sentences.space_explorer,
        sentences.score_curves,
        sentences.spectrum_lines,
    ],
)
def test_run_without_snapshots_is_refused(run, draw) -> None:
    run["snapshots"] = []
    with pytest.raises(ValueError, match="no snapshot"):
        draw(run)


# ---- recipes ------------------------------------------------------------------------------------


@pytest.fixture
def recipes() -> dict[str, Any]:
    return {
        "settings": {"unigram_loss": 7.2},
        "recipes": [
            {"name": name, "why": "", "changes": {}, "seconds": 1.0,
             "curve": [[0, 0, 7.3], [10, 80_000, 7.2 - k / 10], [20, 160_000, 7 - k / 10]]}
            for k, name in enumerate(("BERT's own", "waves", "neighbors"))
        ],
    }  # fmt: skip


def test_recipe_curves_draw_a_line_each(recipes) -> None:
    fig = recipe_curves(recipes)
    *lines, level = fig.data
    assert [line.name for line in lines] == ["BERT's own", "waves", "neighbors"]
    assert list(lines[1].x) == [0, 80_000, 160_000]
    assert list(lines[1].y) == pytest.approx([7.3, 7.1, 6.9])
    assert list(lines[1].customdata) == [0, 10, 20]
    assert set(level.y) == {7.2} and level.line.dash == "dash"
    assert len({(line.line.color, line.line.dash) for line in fig.data}) == 4
    assert {line.line.dash for line in lines} == {"solid"}
    recipes["ladder"] = 2
    assert [line.line.dash for line in recipe_curves(recipes).data][:3] == ["solid", "solid", "dot"]


def test_many_recipes_can_be_told_apart(recipes) -> None:
    recipes["recipes"] = [{**recipes["recipes"][0], "name": str(k)} for k in range(12)]
    fig = recipe_curves(recipes)
    assert len({(line.line.color, line.line.dash) for line in fig.data}) == 13


def test_a_recipe_that_begins_far_above_comes_in_from_above(recipes) -> None:
    before = recipe_curves(recipes).layout.yaxis.range
    high = {"name": "high", "why": "", "curve": [[0, 0, 99.0], [9, 10**6, before[0] + 0.1]]}
    fig = recipe_curves({**recipes, "recipes": [*recipes["recipes"], high]})
    assert fig.layout.yaxis.range == before
    ends = [curve["curve"][-1][2] for curve in recipes["recipes"]]
    assert before[0] < min(ends) <= max(ends) < before[1]


def test_recipe_curves_need_something_to_draw(recipes) -> None:
    del recipes["settings"]["unigram_loss"]
    assert len(recipe_curves(recipes).data) == 3
    recipes["recipes"][1]["curve"] = [[0, 0, 7.3]]
    with pytest.raises(ValueError, match="'waves' has no point"):
        recipe_curves(recipes)
    recipes["recipes"] = []
    with pytest.raises(ValueError, match="no recipe"):
        recipe_curves(recipes)


# ---- films --------------------------------------------------------------------------------------


def test_film_of_words_has_a_frame_for_each_step(run) -> None:
    fig = films.space_film(run)
    assert [frame.name for frame in fig.frames] == ["0", "1", "10", "100"]
    steps = fig.layout.sliders[0].steps
    assert [step.args[0][0] for step in steps] == [frame.name for frame in fig.frames]
    assert list(fig.data[0].x) == list(fig.frames[0].data[0].x)
    film = run["film"]["words"]
    for k, frame in enumerate(fig.frames):
        x, y = np.array(frame.data[0].x), np.array(frame.data[0].y)
        assert (x**2 + y**2).mean() == pytest.approx(1, abs=1e-2)
        ratio = x / np.array(film["x"][k])
        assert ratio == pytest.approx(y / np.array(film["y"][k]), rel=0.05)
        assert ratio == pytest.approx(ratio[0], rel=0.05) and ratio[0] > 0
    assert fig.frames[1].data[1].text == ("directions: 20 % and < 1 % of the variance",)
    assert list(fig.data[0].marker.color) == [3, 2, 0]
    assert fig.data[0].text[2] == "&lt;b&gt;"


def test_film_of_sentences_takes_its_rows(run) -> None:
    fig = films.space_film(run, "sentences", texts=["a", "b", "c"], color=[1.0, 2.0, 3.0])
    assert list(fig.data[0].text) == ["c", "a"]
    assert list(fig.data[0].marker.color) == [3, 1]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"of": "letters"}, "must be 'words' or 'sentences'"),
        ({"of": "sentences"}, "give texts and color"),
        ({"of": "sentences", "texts": ["a"], "color": [1.0]}, "has more sentences"),
        ({"of": "sentences", "texts": ["a"] * 3, "color": [1.0]}, "3 texts and 1 colors"),
    ],
)
def test_film_says_what_it_lacks(run, how, says) -> None:
    with pytest.raises(ValueError, match=says):
        films.space_film(run, **how)


def test_guesses_open_at_the_last_step_and_are_escaped(run) -> None:
    fig = films.guess_slider(run)
    bars, holes, written = fig.data
    assert list(holes.text) == ["A ____ &amp; a dog.", "It is ____."]
    assert fig.layout.sliders[0].active == len(STEPS) - 1
    assert "<b>&lt;</b> 10 %" in written.text[0] and "<b>the</b> 50 %" in written.text[0]
    assert list(bars.x) == [0.5, 0.1]
    first = fig.frames[0]
    assert first.name == "0" and "<b>&lt;</b> < 1 %" in first.data[1].text[0]
    assert list(first.traces) == [0, 2]


def test_spectra_of_some_steps_with_the_first_and_the_last(run) -> None:
    run["snapshots"][3]["words"]["spectrum"]["value"][-1] = 0.0
    fig = sentences.spectrum_lines(run, every=2)
    assert [line.name for line in fig.data] == ["step 0", "step 1", "step 100"]
    assert fig.data[2].y[-1] is None  # no zero on a log axis
    changed = after(fig, "sentences, last")
    assert list(changed.data[1].y) == run["snapshots"][1]["sentences"]["last"]["spectrum"]["value"]
    assert len({line.line.color for line in fig.data}) == 3
    assert fig.layout.legend.yref == "container"  # below, whatever room it needs


# ---- variants -----------------------------------------------------------------------------------


def variants_run(rng: np.random.Generator) -> dict[str, Any]:
    names = dict.fromkeys(name for group in variants.GROUPS.values() for _, name, _ in group)
    return {
        "variants": [
            {
                "name": name,
                "snapshots": [
                    {
                        "step": step,
                        "tokens": 100 * step,
                        "norm": {"input": rng.uniform(-1, 1), "output": rng.uniform(-1, 1)},
                        "terms": {"vectors_slope": rng.uniform()},
                        "words_cosine": rng.uniform(),
                        "sts": {"none": rng.uniform(30, 60), "flow": rng.uniform(60, 80)},
                    }
                    for step in STEPS
                ],
            }
            for name in names
        ]
    }


def test_variants_are_drawn_a_group_at_a_time() -> None:
    run = variants_run(np.random.default_rng(0))
    of = {one["name"]: one["snapshots"] for one in run["variants"]}
    fig = variants.variant_curves(run)
    norms, slopes, *_, gains = (fig.data[i : i + 3] for i in range(0, 15, 3))
    assert [line.name for line in norms] == ["from log p", "from zero", "none"]
    assert list(norms[2].y) == [one["norm"]["input"] for one in of["no bias"]]
    assert list(slopes[1].y) == [one["terms"]["vectors_slope"] for one in of["bias from zero"]]
    assert gains[0].y[0] == pytest.approx(
        of[variants.BASE][0]["sts"]["flow"] - of[variants.BASE][0]["sts"]["none"], abs=0.006
    )
    untied = after(fig, "vectors")
    assert [line.name for line in untied.data[:3]] == ["tied", "input", "output"]
    assert "%{fullData.name}" in untied.data[2].hovertemplate  # the new name
    assert list(untied.data[1].y) == [one["norm"]["input"] for one in of["untied"]]
    assert list(untied.data[2].y) == [one["norm"]["output"] for one in of["untied"]]
    # What belongs to one end is not drawn for the other.
    assert set(untied.data[4].y) == {None} == set(untied.data[14].y)
    assert None not in untied.data[5].y and None not in untied.data[13].y


def test_two_starts_are_drawn_over_their_common_steps(run) -> None:
    short = copy.deepcopy(run)
    short["snapshots"] = short["snapshots"][1:3]
    for one in short["snapshots"]:
        one["words"]["frequency"]["explained"][0] = 0.5
    fig = variants.start_curves({"whole": run, "short": short}, layer="last")
    assert [line.name for line in fig.data] == ["whole", "short"] * 6
    shown = run["snapshots"][1:3]
    assert list(fig.data[4].y) == [one["words"]["frequency"]["explained"][0] for one in shown]
    assert list(fig.data[5].y) == [0.5, 0.5]
    assert list(fig.data[8].y) == [one["sts"]["last"]["none"][0] for one in shown]
    gains = [np.mean(one["sts"]["last"]["flow"]) - one["sts"]["last"]["none"][0] for one in shown]
    np.testing.assert_allclose(fig.data[10].y, gains, atol=0.006)
    assert fig.data[0].line.dash != fig.data[1].line.dash
    with pytest.raises(ValueError, match="no common step"):
        variants.start_curves({"whole": run, "none": {"snapshots": []}})


def test_a_run_without_a_variant_is_refused() -> None:
    run = variants_run(np.random.default_rng(0))
    run["variants"] = [one for one in run["variants"] if one["name"] != "untied"]
    with pytest.raises(ValueError, match="no variant 'untied'"):
        variants.variant_curves(run)


# ---- the stored run -----------------------------------------------------------------------------


def test_figures_of_the_stored_run_hold_only_finite_numbers() -> None:
    results = bf.load_run("pretraining", "mini-bert")["results"]
    texts = bf.load_sts("mini-sts").sentences
    figures = [
        curves.word_curves(results),
        curves.meaning_curves(results),
        curves.term_curves(results),
        sentences.space_explorer(results),
        sentences.score_curves(results),
        films.space_film(results),
        films.space_film(results, "sentences", texts=texts, color=[float(len(s)) for s in texts]),
        films.guess_slider(results),
        sentences.spectrum_lines(results),
        variants.variant_curves(bf.load_run("pretraining", "variants")["results"]),
        variants.start_curves(
            {
                name: bf.load_run("pretraining", name)["results"]
                for name in ("mini-bert", "bias-from-zero")
            }
        ),
    ]
    for fig in figures:
        text = fig.to_json()
        assert "NaN" not in text and "Infinity" not in text and "bdata" not in text
        assert len(text) < 400_000
        colors = {t.line.color for t in fig.data if t.type == "scatter" and t.mode != "text"}
        assert colors - {None} <= set(PALETTE.values())


def test_stored_run_shows_a_model_that_learned() -> None:
    results = bf.load_run("pretraining", "mini-bert")["results"]
    assert results["training"]["finished"]
    first, *_, last = results["snapshots"]
    assert first["step"] == 0 and last["step"] == results["training"]["steps"]
    # The untrained model knows frequencies and nothing of contexts.
    assert abs(first["gain"]["pmi"]) < 0.1 < 3 < last["gain"]["pmi"]
    assert abs(first["neighbors"]["spearman"]) < 0.05
    assert abs(first["words"]["norm_log_frequency"]["spearman"]) < 0.05
    for one in results["snapshots"]:
        for layer in results["settings"]["layers"]:
            assert 30 < one["sts"][layer]["none"][0] < one["sts"][layer]["flow"][0] < 80
