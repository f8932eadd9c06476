"""The ablation: what is changed, what is measured, and how it is summed up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite.cli.common import app
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.experiments import ablation
from bertflow_lite.experiments.ablation import (
    VARIANTS,
    Variant,
    encode_with_dropout,
    find_variants,
    run_ablation,
    summarize,
)
from bertflow_lite.experiments.scoring import RunOptions, format_results
from bertflow_lite.figures import scores
from bertflow_lite.text import split_words

SMALL = [
    Variant("paper", "start", "as it is"),
    Variant("paper", "layers", "actnorm only", {"coupling": False}),
    Variant("paper", "learning rate", "absurd", {"learning_rate": 1e4}),
    Variant("reference", "none", "none", calibrator="none"),
    Variant("reference", "whiten", "whiten:8", calibrator="whiten:8"),
]


@pytest.fixture
def pairs(monkeypatch):
    """Let every set and split be mini-sts, which comes with the package."""
    mini = bf.load_sts("mini-sts")
    monkeypatch.setattr(ablation, "load_sts", lambda *_, **__: mini)
    return mini


@pytest.fixture
def words(pairs):
    known = sorted({word for sentence in pairs.sentences for word in split_words(sentence)})
    vectors = np.random.default_rng(0).normal(size=(len(known), 20)).astype(np.float32)
    return WordVectorEncoder(vectors, known, "random words")


def test_each_variant_changes_what_it_says_and_nothing_else():
    assert len({variant.key for variant in VARIANTS}) == len(VARIANTS)
    for variant in VARIANTS:
        if variant.start == "reference":
            assert variant.calibrator and not variant.settings
            continue
        start = bf.FlowCalibrator.from_preset(variant.start, random_state=7, device="cpu")
        before, after = start.get_params(), variant.make(7, 100).get_params()
        changed = {name for name in after if after[name] != before[name]}
        assert changed == set(variant.settings)
        assert bool(changed) or variant.dropout or variant.part == "start"


def test_the_released_codes_changes_lead_to_the_paper():
    by = {v.change: v.settings for v in VARIANTS if v.start == "released-code"}
    steps = by["from data, random"] | by["2"] | by["Adam"] | by["32"]
    made = bf.FlowCalibrator.from_preset("released-code", **steps)
    assert made.get_params() == bf.FlowCalibrator.from_preset("paper").get_params()


def test_find_variants_by_part_and_by_key():
    assert {v.part for v in find_variants(["levels"])} == {"start", "levels"}
    single = find_variants(["paper/levels/1"])
    assert [v.key for v in single if v.part != "start"] == ["paper/levels/1"]
    assert not any(v.dropout for v in find_variants())
    assert sum(v.dropout for v in find_variants(dropout=True)) == 2
    with pytest.raises(ValueError, match="no part 'leves'; there are start, initialization"):
        find_variants(["leves"])


def test_a_whitening_wider_than_the_embeddings_is_whole():
    wide = Variant("reference", "whiten", "whiten:64", calibrator="whiten:64")
    assert wide.make(0, 64).n_components is None and wide.make(0, 65).n_components == 64


def test_rows_hold_what_a_calibrator_scores(words, pairs):
    rows = run_ablation(words, ["mean"], SMALL, RunOptions(data=["stsb"], seeds=2))
    assert [row["seed"] for row in rows] == [0, 1, 0, 1, 0, 1, 0, 0]
    raw = words.encode(pairs.sentences)
    by = {(row["change"], row["seed"]): row for row in rows}
    assert by["none", 0]["spearman"] == pytest.approx(bf.score_sts(pairs, raw).all, abs=1e-3)
    assert by["none", 0]["fitted_on"] == 0 and by["none", 0]["bits_per_dim"] is None
    flow = bf.FlowCalibrator(random_state=1, device="cpu").fit(raw)
    expected = bf.score_sts(pairs, flow.transform(raw)).all
    assert by["as it is", 1]["spearman"] == pytest.approx(expected, abs=0.05)
    assert by["as it is", 1]["bits_per_dim"] == pytest.approx(flow.bits_per_dim(raw), abs=0.01)
    assert by["as it is", 1]["fitted_on"] == len(raw)
    white = bf.Whitener(8).fit_transform(raw)
    expected = bf.score_sts(pairs, white).all
    assert by["whiten:8", 0]["spearman"] == pytest.approx(expected, abs=0.05)
    # What diverges is told apart from what is bad.
    assert by["absurd", 0]["spearman"] is None and by["absurd", 0]["bits_per_dim"] is None


def test_few_sentences_are_drawn_anew_for_each_seed(words):
    white = [SMALL[4]]
    few = run_ablation(words, ["mean"], white, RunOptions(data=["stsb"], seeds=2), fit_rows=100)
    assert [row["fitted_on"] for row in few] == [100, 100]
    assert few[0]["spearman"] != few[1]["spearman"]
    every = run_ablation(words, ["mean"], white, RunOptions(data=["stsb"], seeds=2), fit_rows=10**6)
    assert every[0]["spearman"] == pytest.approx(every[1]["spearman"], abs=0.01)


def test_finished_scores_are_not_computed_again(words, caplog):
    kept: dict = {}

    def keep(key, compute):
        return kept.setdefault(key, compute()) if key not in kept else kept[key]

    options = RunOptions(data=["stsb"], keep=keep)
    first = run_ablation(words, ["mean"], SMALL[3:], options)
    (plain,) = [key for key in kept if "reference | none" in key]
    kept[plain]["spearman"] = 12.5
    caplog.set_level("INFO", "bertflow_lite")
    again = run_ablation(words, ["mean"], SMALL[3:], options)
    assert [row["spearman"] for row in again] == [12.5, first[1]["spearman"]]
    assert any("12.5" in message for message in caplog.messages)


def test_unknown_sentences_to_fit_on_are_named(words):
    with pytest.raises(ValueError, match="fit_on is 'dev'; it must be target or train"):
        run_ablation(words, ["mean"], SMALL[3:], RunOptions(data=["stsb"]), fit_on="dev")


def test_the_test_table_has_the_presets_and_the_chosen_width(words, pairs):
    rows = ablation.run_test(words, {"mean": "whiten:8"}, RunOptions(data=["sts12"], seeds=2))
    names = ["none", "sn", "whiten", "whiten:8", *["flow:paper"] * 2, *["flow:released-code"] * 2]
    assert [row["calibrator"] for row in rows] == [*names, *["flow:recommended"] * 2]
    raw = bf.score_sts(pairs, words.encode(pairs.sentences))
    assert rows[0]["wmean"] == pytest.approx(raw.wmean, abs=1e-3)
    text = format_results(rows, "wmean", note=", test", average=True)
    assert "flow:recommended" in text and f"{raw.wmean:.2f}" in text and "±" in text


def row(start, part, change, score, seed=0, data="stsb", layers="4", bits=None):
    return {"start": start, "part": part, "change": change, "layers": layers, "data": data,
            "fit_on": "target", "seed": seed, "fitted_on": 9, "spearman": score,
            "bits_per_dim": bits, "seconds": 2.0}  # fmt: skip


ROWS = [
    row("paper", "start", "as it is", 70.0, 0, bits=-1.0),
    row("paper", "start", "as it is", 72.0, 1, bits=-1.2),
    row("paper", "start", "as it is", 60.0, 0, "sick-r"),
    row("paper", "start", "as it is", 60.0, 1, "sick-r"),
    row("paper", "levels", "1", 71.0, 0),
    row("paper", "levels", "1", 71.0, 1),
    row("paper", "levels", "1", 62.0, 0, "sick-r"),
    row("paper", "levels", "1", 60.0, 1, "sick-r"),
    row("reference", "whiten", "whiten:8", 75.0),
    row("reference", "whiten", "whiten:8", 58.0, data="sick-r"),
    row("reference", "whiten", "whiten", 70.0),
    row("reference", "whiten", "whiten", 62.0, data="sick-r"),
]


def test_effects_are_paired_by_seed_layers_and_set():
    start, levels, eight, _ = summarize(ROWS)
    assert (start.score, start.effect, start.effect_sd) == (65.5, 0, 0)
    assert start.score_sd == pytest.approx(np.std([65, 66], ddof=1))
    assert start.bits == pytest.approx(-1.1)
    # Seed 0: +1 and +2; seed 1: -1 and 0.
    assert levels.effect == pytest.approx(0.5)
    assert levels.effect_sd == pytest.approx(np.std([1.5, -0.5], ddof=1))
    assert levels.by_cell == {"4, stsb": 0, "4, sick-r": 1}
    # Without a random state it stands beside every seed of the start.
    assert (eight.score, eight.score_sd, eight.effect) == (66.5, 0, 1)
    text = ablation.format_effects([start, levels])
    assert "65.50 ± 0.71" in text and "+0.50 ± 1.41" in text


def test_what_diverged_has_no_effect():
    rows = [*ROWS, row("paper", "learning rate", "1", None), row("paper", "learning rate", "1", 3)]
    last = summarize(rows)[-1]
    assert (last.score, last.effect) == (None, None)
    assert "diverged" in ablation.format_effects([last])
    assert not any("learning" in name for name in ablation.average_models({"m": rows}))


def test_a_missing_start_is_named():
    with pytest.raises(ValueError, match="no start 'paper' to compare 'whiten:8'"):
        summarize(ROWS[8:])


def test_means_over_models_count_every_model_once():
    other = [dict(one, spearman=one["spearman"] - 10) for one in ROWS if one["data"] == "stsb"]
    averages = ablation.average_models({"a": ROWS, "b": other})
    assert averages["paper/start/as it is"] == {"a": 65.5, "b": 61.0, "mean": 63.25}
    assert averages["whiten, best on each model"] == {"a": 66.5, "b": 65.0, "mean": 65.75}
    assert averages["whiten, best on each layer choice and set"]["a"] == 68.5
    assert next(iter(averages)) == "whiten, best on each layer choice and set"


def test_best_width_is_that_of_the_mean():
    assert ablation.best_width(ROWS, "4") == "whiten:8"
    with pytest.raises(ValueError, match="layers 'last'"):
        ablation.best_width(ROWS, "last")


def test_dropout_is_fresh_seeded_and_leaves_no_trace(tiny_bert):
    sentences = ["the cat sat", "a red tree ran on the mat", "the cat sat"]
    clean = tiny_bert.encode(sentences, "last")
    state = torch.get_rng_state()
    first = encode_with_dropout(tiny_bert, sentences, ["last", "first-last"], seed=1)
    assert torch.equal(state, torch.get_rng_state()) and not tiny_bert.model.training
    assert list(first) == ["last", "first-last"] and first["last"].shape == clean.shape
    assert not np.allclose(first["last"][0], first["last"][2])
    again = encode_with_dropout(tiny_bert, sentences, ["last"], seed=1)
    assert_array_equal(again["last"], first["last"])
    other = encode_with_dropout(tiny_bert, sentences, ["last"], seed=2)
    assert not np.allclose(other["last"], first["last"])
    assert_array_equal(tiny_bert.encode(sentences, "last"), clean)


def test_with_next_to_no_dropout_the_embeddings_are_the_encoders(tiny_bert):
    for module in tiny_bert.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 1e-12
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    sentences = ["the cat sat", "a red tree ran on the mat", "not it"] * 40
    for layers in ("last2avg", "cls"):
        got = encode_with_dropout(tiny_bert, sentences, [layers])[layers]
        assert_allclose(got, tiny_bert.encode(sentences, layers), atol=1e-5)


def test_a_model_without_dropout_is_refused(tiny_llama, pairs):
    with pytest.raises(ValueError, match="no dropout to leave on"):
        encode_with_dropout(tiny_llama, ["the cat"], ["last"])


def test_word_vectors_have_no_dropout(words):
    variants = find_variants(["encoder dropout"], dropout=True)
    with pytest.raises(ValueError, match="'random words' has no dropout"):
        run_ablation(words, ["mean"], [v for v in variants if v.dropout], RunOptions(data=["stsb"]))


def test_effect_dots_draw_every_effect_once_and_buttons_change_the_model():
    effects = {"a": summarize(ROWS), "b": summarize(ROWS[:8])}
    figure = scores.effect_dots(effects, "title")
    drawn = [(trace.visible, list(trace.x), list(trace.y)) for trace in figure.data]
    assert drawn[0] == (True, [0.5], ["levels: 1"])
    assert drawn[2] == (True, [1.0, 0.5], ["whiten:8", "whiten"])
    assert [trace[0] for trace in drawn] == [True] * 3 + [False] * 3
    assert list(figure.data[0].error_x.array) == [1.41]
    button = figure.layout.updatemenus[0].buttons[1]
    assert button.label == "b" and button.args[0]["visible"] == [False] * 3 + [True] * 3
    assert list(figure.layout.yaxis.categoryarray) == ["whiten", "whiten:8", "levels: 1"]
    assert button.args[1]["yaxis.categoryarray"] == ["levels: 1"]


def test_likelihood_scatter_leaves_out_what_has_no_density():
    figure = scores.likelihood_scatter({"a": summarize(ROWS)})
    assert list(figure.data[0].x) == [-1.1] and list(figure.data[0].y) == [65.5]
    assert not figure.layout.updatemenus
    with pytest.raises(ValueError, match="no effects to draw"):
        scores.likelihood_scatter({})


def test_the_command_names_what_it_does_not_know():
    result = CliRunner().invoke(app, ["ablation", "--model", "glove", "--parts", "leves"])
    assert result.exit_code == 1 and "no part 'leves'" in result.output


@pytest.mark.data
def test_stored_scores_come_back(real_data):
    """Recompute what has no random state, and one flow, on GloVe."""
    stored = bf.load_run("ablation", "glove")["results"]["rows"]
    wanted = [v for v in VARIANTS if v.part in ("none", "sn", "whiten")]
    wanted.append(VARIANTS[0])
    encoder = bf.load_encoder("glove")
    fresh = run_ablation(encoder, ["mean"], wanted, RunOptions(data=["sick-r"], seeds=1))
    assert len(fresh) == len(wanted)
    for new in fresh:
        same = ("start", "part", "change", "layers", "data", "seed")
        (old,) = [one for one in stored if all(one[key] == new[key] for key in same)]
        within = 0.5 if new["start"] == "paper" else 1e-3
        assert new["spearman"] == pytest.approx(old["spearman"], abs=within), new["change"]
