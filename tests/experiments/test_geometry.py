"""The stored runs of the geometry chapter: samples measured anew, and the figures over them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.datasets.word_counts import WordCounts, load_word_counts
from bertflow_lite.encoders.models import PACKAGED_MODELS
from bertflow_lite.encoders.transformer import load_encoder
from bertflow_lite.experiments import geometry as geometry_runs
from bertflow_lite.experiments.geometry import (
    CALIBRATORS,
    encode_without_first,
    measure_space,
)
from bertflow_lite.experiments.runs import load_run
from bertflow_lite.figures import geometry as figures


@pytest.fixture(params=["minilm", "smollm2"])
def run(request):
    try:
        return load_run("geometry", request.param)
    except FileNotFoundError:
        pytest.skip("the run has not been made")


@pytest.fixture(scope="module")
def minilm():
    if PACKAGED_MODELS["minilm"].path() is None:
        pytest.skip("minilm is not installed")
    return load_encoder("minilm")


@pytest.mark.usefixtures("every_layer")  # other tests ask for others of the same sentences
def test_a_layer_measured_anew_gives_the_stored_numbers(minilm):
    pairs = load_sts("mini-sts")
    stored = load_run("geometry", "minilm")
    if stored["results"]["settings"]["sets"]["mini-sts"] != pairs.fingerprint:
        pytest.skip("mini-sts has changed since the run: make it again")
    assert stored["how"]["fingerprint"] == minilm.fingerprint
    layer = stored["results"]["layers"]["mini-sts"][4]
    again = measure_space(minilm.encode(pairs.sentences, 4), pairs, counts=load_word_counts())
    assert again["mean_cosine"] == pytest.approx(layer["mean_cosine"], rel=1e-3)
    assert again["frequency"]["explained"] == pytest.approx(
        layer["frequency"]["explained"], rel=0.01, abs=1e-4
    )
    for name in (
        "effective_rank",
        "iso_score",
        "partition_score",
        "sts",
        "sts_low",
    ):
        assert again[name] == pytest.approx(layer[name], rel=1e-3), name


def test_a_run_is_complete(run):
    results = run["results"]
    assert results["words"]["table1"]["bins"][-1] == [5000, 10000]
    assert len(results["first_token"]) == len(results["layers"]["mini-sts"])
    assert set(results["word_similarity"]["sets"]) == {"wordsim353", "simlex999"}
    for calibrated in results["calibrated"].values():
        for by_calibrator in calibrated.values():
            assert tuple(by_calibrator) == CALIBRATORS
            # Whitening is isotropic by construction on the data that it was fitted on.
            assert by_calibrator["whiten"]["iso_score"] > 0.99


def test_every_figure_of_a_run(run):
    results = run["results"]
    calibrated = results["calibrated"]["mini-sts"]["last2avg"]
    made = [
        figures.plot_table1({"a model": results["words"]["table1"]}),
        figures.plot_word_norms(results["words"]),
        figures.plot_layers(results["layers"]),
        figures.plot_first_token(results["first_token"], results["layers"]["mini-sts"]),
        figures.plot_calibrated(calibrated, x="iso_score"),
        figures.plot_calibrated(calibrated, x="mean_cosine"),
        figures.plot_word_similarity(results["word_similarity"]),
    ]
    for figure in made:
        assert figure.data and figure.layout.title.text
        assert "$" not in figure.layout.to_plotly_json()["title"]["text"]
        assert all(len(trace.x) == len(trace.y) > 0 for trace in figure.data)


def test_figures_refuse_what_they_cannot_draw(run):
    results = run["results"]
    with pytest.raises(ValueError, match="must be one of mean_cosine"):
        figures.plot_calibrated(results["calibrated"]["mini-sts"]["last2avg"], x="cosine")


def test_means_without_the_first_token_agree_with_a_plain_loop(minilm):
    texts = ["A dog barks.", "Two cats sleep on the warm old stove.", "No."]
    means, first, others = encode_without_first(minilm, texts)
    firsts, rests = [], []
    for row, text in enumerate(texts):
        inputs = minilm.tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            state = minilm.model(**inputs, output_hidden_states=True).hidden_states[3][0].numpy()
        assert means[3, row] == pytest.approx(state[1:].mean(axis=0), abs=1e-5)
        norms = np.linalg.norm(state, axis=1)
        firsts.append(norms[0])
        rests.extend(norms[1:])
    assert first[3] == pytest.approx(np.mean(firsts), rel=1e-5)
    assert others[3] == pytest.approx(np.mean(rests), rel=1e-5)


def test_the_whole_run_on_a_few_words_and_sentences(monkeypatch) -> None:
    whole = load_word_counts()
    few = WordCounts(whole.words[:5200], whole.counts[:5200], whole.total, whole.source)
    monkeypatch.setattr(geometry_runs, "load_word_counts", lambda: few)
    monkeypatch.setattr(geometry_runs, "FLOW_STEPS", 5)
    pairs = load_sts("mini-sts").select(range(30))
    results = geometry_runs.run_geometry(
        load_encoder("mini-bert"),
        sets=[pairs],
        layers=("last",),
        calibrators=("none", "whiten", "flow"),
        n_resamples=20,
    )
    json.dumps(results, allow_nan=False)
    stored = load_run("geometry", "minilm")["results"]
    assert set(results) == set(stored)
    assert set(results["words"]) < set(stored["words"])  # it has what no page shows, too
    assert results["words"]["table1"]["n_words"][0] == 100
    assert set(results["word_similarity"]["sets"]) == set(stored["word_similarity"]["sets"])
    assert len(results["layers"]["mini-sts"]) == 5
    assert set(results["calibrated"]["mini-sts"]["last"]) == {"none", "whiten", "flow"}
    assert results["settings"]["n_sentences"] == {"mini-sts": len(set(pairs.sentences))}
