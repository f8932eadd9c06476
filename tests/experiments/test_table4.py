"""Table 4: the AUC's bootstrap against scikit-learn, and the experiment on a tiny encoder."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import bertflow_lite as bf
from bertflow_lite.datasets.nli import NliSentences, fingerprint_with_labels
from bertflow_lite.experiments import table4 as qnli_runs
from bertflow_lite.experiments.scoring import RunOptions
from bertflow_lite.experiments.spelling import lexical_similarities
from bertflow_lite.experiments.table4 import METHODS, auc_interval, format_table4, run_table4


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=2))
def test_auc_by_rows_is_scikit_learns(examples):
    labels, scores = (np.array(column) for column in zip(*examples, strict=True))
    found = qnli_runs._auc_rows(labels[None], scores[None])[0]
    if labels.all() or not labels.any():
        assert not np.isfinite(found)
    else:
        assert found == pytest.approx(100 * roc_auc_score(labels, scores))


def test_interval_is_that_of_resampled_aucs():
    rng = np.random.default_rng(1)
    labels = rng.random(300) < 0.5
    scores, other = labels + rng.normal(size=300), labels + 2 * rng.normal(size=300)
    draws = np.random.default_rng(0).integers(300, size=(200, 300))
    aucs = [100 * roc_auc_score(labels[rows], scores[rows]) for rows in draws]
    found = auc_interval(labels, scores, n_resamples=200)
    assert found == pytest.approx(np.quantile(aucs, [0.025, 0.975]))
    gains = [100 * roc_auc_score(labels[rows], other[rows]) for rows in draws]
    gains = np.subtract(aucs, gains)
    found = auc_interval(labels, scores, other, n_resamples=200)
    assert found == pytest.approx(np.quantile(gains, [0.025, 0.975]))
    assert auc_interval(labels, scores, scores, n_resamples=20) == (0, 0)


def test_interval_covers_the_true_auc_about_as_often_as_it_says():
    # Two unit Gaussians one apart: the AUC is Phi(1 / sqrt 2).
    from scipy.stats import norm

    truth, hits = 100 * norm.cdf(1 / np.sqrt(2)), 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        labels = np.arange(200) < 100
        low, high = auc_interval(labels, labels + rng.normal(size=200), n_resamples=200)
        hits += low < truth < high
    assert 86 <= hits <= 100


@pytest.fixture
def small(monkeypatch):
    """Forty pairs of mini-sts as questions and sentences, and NLI sentences from the rest."""
    pairs = bf.load_sts("mini-sts")
    some = pairs.select(range(40))
    questions = replace(some, name="qnli", gold=some.gold > 2.5)
    nli = NliSentences("nli-sample", pairs.sentences1[100:], "a sample")
    monkeypatch.setattr(qnli_runs, "load_qnli", lambda split, download: questions)
    monkeypatch.setattr(qnli_runs, "load_nli_sentences", lambda download: nli)
    return questions


def test_table_4_has_every_row(tiny_bert, small):
    kept = {}

    def keep(key, compute):
        assert key not in kept
        return kept.setdefault(key, compute())

    results = run_table4(tiny_bert, RunOptions(seeds=2, keep=keep))
    rows = results["rows"]
    assert len(rows) == len(kept) == 2 * (3 + 3 * 2) + 2
    assert {row["method"] for row in rows} == {*METHODS, "bag of words", "tf-idf"}
    raw = next(r for r in rows if (r["layers"], r["method"]) == ("last2avg", "raw"))
    questions = tiny_bert.encode(small.sentences1, "last2avg")
    cosines = bf.cosine(questions, tiny_bert.encode(small.sentences2, "last2avg"))
    assert raw["auc"] == pytest.approx(100 * roc_auc_score(small.gold, cosines), abs=1e-3)
    assert "gain" not in raw
    for row in rows:
        assert row["low"] < row["auc"] < row["high"]
        if "gain" in row and row["layers"] == "last2avg":
            gain = row["gain"]
            assert gain["estimate"] == pytest.approx(row["auc"] - raw["auc"], abs=1e-3)
            assert gain["low"] <= gain["estimate"] <= gain["high"]
    flows = [r for r in rows if r["method"] == "flow (target)" and r["layers"] == "last2avg"]
    assert [r["seed"] for r in flows] == [0, 1]
    # Fitted on QNLI's own texts, each once; on all NLI sentences.
    assert results["fitted_on"] == {"target": len(set(small.sentences)), "nli": 320}
    assert results["settings"]["data"].keys() == {"qnli", "nli-sample"}
    # An interrupted run goes on to the same numbers.
    again = RunOptions(seeds=2, keep=lambda key, compute: kept[key])
    assert run_table4(tiny_bert, again) == results


def test_table_4_stands_beside_the_papers_and_no_calibrator_sees_labels(
    tiny_bert, small, monkeypatch
):
    options = RunOptions(seeds=1, nli_sentences=50)
    results = run_table4(tiny_bert, options)
    assert results["fitted_on"]["nli"] == 50
    text = format_table4(results)
    assert "BERT-large-NLI-flow (target)" in text and "77.09" in text
    assert "flow (NLI), published" in text and "40 pairs" in text
    # With every label turned round, each AUC turns round: nothing was fitted on them.
    turned = replace(small, gold=1 - small.gold)
    monkeypatch.setattr(qnli_runs, "load_qnli", lambda split, download: turned)
    again = run_table4(tiny_bert, options)
    for row, other in zip(results["rows"], again["rows"], strict=True):
        assert row["auc"] + other["auc"] == pytest.approx(100, abs=1e-3)


@functools.cache
def words_of_qnli():
    """Give QNLI and its similarities of words, which are the same for every model."""
    pairs = qnli_runs.load_qnli("dev", download=False)
    return pairs, lexical_similarities(pairs, list(dict.fromkeys(pairs.sentences)))


@pytest.mark.data
@pytest.mark.parametrize("name", ["minilm", "smollm2", "random-minilm"])
def test_a_stored_row_measured_anew(name, real_data):
    try:
        results = bf.load_run("table4", name)["results"]
    except FileNotFoundError:
        pytest.skip("the run has not been made")
    try:
        pairs, similarities = words_of_qnli()
    except FileNotFoundError:
        pytest.skip("QNLI is not beside the STS data")
    assert results["settings"]["data"]["qnli"] == fingerprint_with_labels(pairs)
    assert (results["n_pairs"], results["n_answers"]) == (5463, 2702)
    for method, values in similarities.items():
        row = next(row for row in results["rows"] if row["method"] == method)
        wanted = 100 * roc_auc_score(pairs.gold, values)
        assert row["auc"] == pytest.approx(wanted, abs=1e-3)
