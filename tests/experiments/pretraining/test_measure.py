"""Measuring the snapshots of a pre-training run: counts, guesses, pictures, and going on."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite.cli.common import app
from bertflow_lite.encoders.language_model import LanguageModel, load_language_model
from bertflow_lite.experiments.pmi.probe import Contexts
from bertflow_lite.experiments.pretraining import loop, probe, snapshots
from bertflow_lite.experiments.pretraining.corpus import pack_corpus
from bertflow_lite.experiments.pretraining.loop import fingerprint_folder, read_training
from bertflow_lite.experiments.pretraining.probe import (
    Places,
    collect_at,
    compare_neighbors,
    draw_places,
    held_out_r2,
    measure_gain,
    measure_terms,
    neighbor_places,
    select_contexts,
)
from bertflow_lite.experiments.pretraining.recipe import RECIPES, make_masked_model, unigram_log_p
from bertflow_lite.experiments.pretraining.snapshots import align_frames, make_frame, spread_over
from bertflow_lite.experiments.runs import round_numbers, store_run

TINY = RECIPES["tiny"]
MARKS = np.array([0, 1, 2])


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    sentences = bf.load_sts("mini-sts").sentences
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    parts = [" ".join(sentences[i : i + 4]) for i in range(0, len(sentences), 4)]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(text, tokenizer):
    return pack_corpus(text, tokenizer, length=TINY.length)


@pytest.fixture(scope="module")
def run(corpus, tokenizer, tmp_path_factory) -> Path:
    """Train for three steps: snapshots 0, 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    done = loop.pretrain(corpus, tokenizer, folder, recipe=TINY, tokens=1000)
    assert done.steps == 3
    return folder


@pytest.fixture(scope="module")
def pairs() -> bf.SentencePairs:
    """Take every second pair of mini-sts."""
    return bf.load_sts("mini-sts").select(range(0, 420, 2))


@pytest.fixture
def small(monkeypatch) -> None:
    """Measure with little of everything."""
    monkeypatch.setattr(snapshots, "N_CONTEXTS", 60)
    monkeypatch.setattr(snapshots, "N_LEFT", 20)
    monkeypatch.setattr(snapshots, "N_TERMS", 20)
    monkeypatch.setattr(snapshots, "FLOW_STEPS", 1)


@pytest.fixture(scope="module")
def untrained(corpus, tokenizer) -> LanguageModel:
    model = make_masked_model(TINY, tokenizer, corpus.counts, seed=0).eval().requires_grad_(False)
    return LanguageModel("untrained", "masked", model, tokenizer, "")


# ---- counting -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 8), min_size=6, max_size=6), min_size=1, max_size=12),
    st.lists(st.integers(3, 8), unique=True, max_size=5),
)
def test_neighbors_are_counted_as_a_dictionary_counts_them(rows, left) -> None:
    slow: Counter[tuple[int, int]] = Counter()
    for row in rows:
        for a, x in itertools.pairwise(row):
            if a in left and x not in MARKS:
                slow[a, x] += 1
    array, chosen = np.array(rows, dtype=np.uint16), np.array(left, dtype=np.int64)
    fast = probe.count_right_neighbors(array, chosen, 9, MARKS)
    assert fast.shape == (len(left), 9)
    assert {(left[i], x): n for (i, x), n in np.ndenumerate(fast) if n} == slow


def test_blocks_of_rows_add_up(corpus, monkeypatch) -> None:
    left = np.argsort(-corpus.counts)[:5]
    whole = probe.count_right_neighbors(corpus.rows, left, len(corpus.counts), MARKS)
    monkeypatch.setattr(probe, "_BLOCK", 7)
    parts = probe.count_right_neighbors(corpus.rows, left, len(corpus.counts), MARKS)
    assert whole.sum() > 100
    assert_array_equal(whole, parts)


@pytest.mark.parametrize(
    ("left", "says"), [([5, 5], "differ"), ([1], "none may be a mark"), ([9], "outside")]
)
def test_left_pieces_are_checked(left, says) -> None:
    with pytest.raises(ValueError, match=says):
        probe.count_right_neighbors(np.zeros((1, 3)), np.array(left), 9, MARKS)


def test_pmi_of_pairs_by_hand() -> None:
    counts = np.array([[0, 30, 10], [5, 0, 25]])
    log_p = np.log([0.2, 0.5, 0.3])
    pairs = probe.frequent_pairs(counts, log_p, least=10)
    assert list(zip(pairs.left, pairs.piece, strict=True)) == [(0, 1), (0, 2), (1, 2)]
    expected = np.log([0.75 / 0.5, 0.25 / 0.3, 25 / 30 / 0.3])
    assert_allclose(pairs.pmi, expected)


# ---- contexts and guesses -----------------------------------------------------------------------


def test_places_are_pieces_and_differ(corpus, tokenizer) -> None:
    marks = np.array(tokenizer.all_special_ids)
    rows = np.asarray(corpus.rows[-40:], dtype=np.int64)
    places = draw_places(rows, marks, 100)
    assert len(places) == len(set(zip(places.row, places.position, strict=True))) == 100
    assert not np.isin(rows[places.row, places.position], marks).any()
    every = draw_places(rows, marks, 10**6)
    assert len(every) == (~np.isin(rows, marks)).sum()
    with pytest.raises(ValueError, match="nothing but marks"):
        draw_places(np.zeros((2, 3), dtype=np.int64), np.array([0]), 5)


def test_places_right_of_neighbors(corpus, tokenizer) -> None:
    marks = np.array(tokenizer.all_special_ids)
    rows = np.asarray(corpus.rows, dtype=np.int64)
    left = np.array([tokenizer.convert_tokens_to_ids(word) for word in ("the", "a", "zebra")])
    places = neighbor_places(rows, left, marks, 4)
    assert_array_equal(rows[places.row, places.position - 1], left[places.left])
    assert not np.isin(rows[places.row, places.position], marks).any()
    assert_array_equal(np.bincount(places.left, minlength=3), [4, 4, 0])
    assert len(neighbor_places(rows, left[2:], marks, 4)) == 0


def test_a_context_vector_gives_the_models_own_logits(corpus, tokenizer, untrained) -> None:
    rows = np.asarray(corpus.rows[-40:], dtype=np.int64)
    places = draw_places(rows, np.array(tokenizer.all_special_ids), 9)
    found = collect_at(untrained, rows, places, batch_tokens=70)
    for i, (row, position) in enumerate(zip(places.row, places.position, strict=True)):
        seen = torch.from_numpy(rows[row : row + 1].copy())
        seen[0, position] = tokenizer.mask_token_id
        with torch.inference_mode():
            mask = (seen != tokenizer.pad_token_id).long()
            logits = untrained.model(seen, attention_mask=mask).logits[0, position]
        ours = untrained.word_vectors @ found.h[i] + untrained.bias
        assert_allclose(ours.numpy(), logits.numpy(), atol=1e-5)
        assert found.targets[i] == rows[row, position]
    assert set(found.texts) == {""}
    assert len(select_contexts(found, 4)) == 4 and len(select_contexts(found, 40)) == 9
    causal = LanguageModel("x", "causal", untrained.model, tokenizer, "")
    with pytest.raises(ValueError, match="masked model"):
        collect_at(causal, rows, places)


def test_a_model_without_weights_knows_frequencies_only(corpus, tokenizer) -> None:
    model = make_masked_model(TINY, tokenizer, corpus.counts, seed=0).eval()
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.zero_()  # the output weights, too
    lm = LanguageModel("zero", "masked", model.requires_grad_(False), tokenizer, "")
    rows = np.asarray(corpus.rows[-40:], dtype=np.int64)
    places = draw_places(rows, np.array(tokenizer.all_special_ids), 80)
    contexts = collect_at(lm, rows, places)
    log_p = unigram_log_p(corpus.counts)
    ranks = np.argsort(np.argsort(-corpus.counts, kind="stable"))
    gain = measure_gain(lm, contexts, log_p, ranks)
    assert gain["pmi"] == pytest.approx(0, abs=1e-5)
    assert_allclose(gain["by_frequency"]["pmi"], 0, atol=1e-5)
    assert gain["loss"] == pytest.approx(gain["unigram_loss"], abs=1e-5)
    assert gain["unigram_loss"] == pytest.approx(-log_p[contexts.targets].mean())
    assert sum(gain["by_frequency"]["n"]) == 80
    terms = measure_terms(lm, contexts, log_p, corpus.counts)
    assert terms["pairs"]["shares"]["log p(x)"] == pytest.approx(1, abs=1e-5)
    assert terms["pairs"]["r2_without_pmi"] == pytest.approx(1, abs=1e-5)
    assert terms["log_p_in"]["bias_slope"] == pytest.approx(1, abs=1e-5)
    assert terms["log_p_in"]["vectors_slope"] == pytest.approx(0, abs=1e-6)


def test_the_gain_is_the_loss_of_transformers(corpus, tokenizer, untrained) -> None:
    rows = np.asarray(corpus.rows[-40:], dtype=np.int64)
    places = draw_places(rows, np.array(tokenizer.all_special_ids), 12)
    losses, firsts = [], []
    for row, position in zip(places.row, places.position, strict=True):
        seen = torch.from_numpy(rows[row : row + 1].copy())
        labels = torch.full_like(seen, -100)
        labels[0, position] = seen[0, position]
        seen[0, position] = tokenizer.mask_token_id
        with torch.inference_mode():
            mask = (seen != tokenizer.pad_token_id).long()
            found = untrained.model(seen, attention_mask=mask, labels=labels)
        losses.append(float(found.loss))
        firsts.append(int(found.logits[0, position].argmax()) == int(labels[0, position]))
    log_p = unigram_log_p(corpus.counts)
    ranks = np.argsort(np.argsort(-corpus.counts, kind="stable"))
    gain = measure_gain(untrained, collect_at(untrained, rows, places), log_p, ranks)
    assert gain["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert gain["accuracy"] == np.mean(firsts)
    assert gain["error"] == pytest.approx(
        np.std(-np.array(losses) - log_p[rows[places.row, places.position]], ddof=1) / 12**0.5,
        rel=1e-4,
    )


def test_terms_add_up_for_any_model(corpus, tokenizer, untrained) -> None:
    rows = np.asarray(corpus.rows[-40:], dtype=np.int64)
    places = draw_places(rows, np.array(tokenizer.all_special_ids), 30)
    contexts = collect_at(untrained, rows, places)
    log_p = unigram_log_p(corpus.counts)
    terms = measure_terms(untrained, contexts, log_p, corpus.counts)
    for weights in ("pairs", "joint"):
        assert sum(terms[weights]["shares"].values()) == pytest.approx(1, abs=1e-4)
        assert terms[weights]["largest_gap"] < 1e-4
        assert 0.5 < terms[weights]["r2_without_pmi"] < 1
    assert terms["log_p_in"]["r2_of_vectors"] is None  # too few frequent pieces in so small a text
    every = measure_terms(untrained, contexts, log_p, corpus.counts, least=1)
    assert every["log_p_in"]["r2_of_vectors"] < 0.1  # random vectors know of no frequency


def perfect_guesser(p: np.ndarray) -> LanguageModel:
    """Make a model whose context vectors are its log probabilities."""
    head = SimpleNamespace(weight=torch.eye(p.shape[1]), bias=None)
    model = SimpleNamespace(get_output_embeddings=lambda: head)
    return LanguageModel("perfect", "masked", model, None, "")


def test_a_model_that_knows_the_bigrams_agrees_with_them() -> None:
    rng = np.random.default_rng(0)
    p_of = rng.dirichlet(np.full(30, 0.5), size=8).clip(1e-6)
    p_of /= p_of.sum(axis=1, keepdims=True)
    log_p = np.log(p_of.mean(axis=0))
    left = np.repeat(np.arange(8), 3)
    left[-2:] = 0  # the last left piece keeps one context, and cannot be split into halves
    h = torch.from_numpy(np.log(p_of[left]) + rng.normal(size=(24, 1))).float()
    contexts = Contexts(h, [""] * 24, np.zeros(24, dtype=int), np.zeros(24, dtype=int))
    a, x = (grid.ravel() for grid in np.indices((8, 30)))
    pairs = probe.NeighborPairs(a, x, np.log(p_of[a, x]) - log_p[x])
    found = compare_neighbors(perfect_guesser(p_of), contexts, left, pairs, log_p)
    assert found["n_pairs"] == 7 * 30 and found["n_left"] == 7 and found["n_contexts"] == 23
    for name in ("spearman", "pearson", "slope", "spearman_halves"):
        assert found[name] == pytest.approx(1, abs=1e-3), name
    assert abs(found["spearman_rarity"]) < 0.5
    shuffled = probe.NeighborPairs(a, x, rng.permutation(pairs.pmi))
    wrong = compare_neighbors(perfect_guesser(p_of), contexts, left, shuffled, log_p)
    assert abs(wrong["spearman"]) < 0.2
    few = probe.NeighborPairs(a[:2], x[:2], pairs.pmi[:2])
    with pytest.raises(ValueError, match="only 2 pairs"):
        compare_neighbors(perfect_guesser(p_of), contexts, left, few, log_p)


def test_held_out_r2_tells_signal_from_noise() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6))
    assert held_out_r2(x, x @ np.arange(6.0) + 3) == pytest.approx(1)
    assert -0.2 < held_out_r2(x, rng.normal(size=400)) < 0.1


# ---- the film -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 99), st.lists(st.floats(-7, 7), min_size=1, max_size=5), st.booleans())
def test_a_turned_copy_is_turned_back(seed: int, angles: list[float], mirror: bool) -> None:
    last = np.random.default_rng(seed).normal(size=(12, 2)) * [3, 1]
    frames = []
    for angle in angles:
        turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        frames.append(last @ turn * ([1, -1] if mirror else [1, 1]))
    for frame in align_frames([*frames, last]):
        assert_allclose(frame, last, atol=1e-9)


def test_aligning_keeps_distances_and_the_last_frame() -> None:
    frames = list(np.random.default_rng(0).normal(size=(4, 20, 2)))
    aligned = align_frames(frames)
    assert_array_equal(aligned[-1], frames[-1])
    for before, after in zip(frames, aligned, strict=True):
        assert_allclose(before @ before.T, after @ after.T, atol=1e-12)
    jump = sum(np.linalg.norm(a - b) for a, b in itertools.pairwise(frames))
    assert sum(np.linalg.norm(a - b) for a, b in itertools.pairwise(aligned)) < jump


def test_a_frame_is_the_plane_of_most_variance() -> None:
    x = np.random.default_rng(0).normal(size=(500, 4)) * [5, 3, 1, 1] + 7
    frame = make_frame(x, [3, 1])
    assert_allclose(frame["share"], np.array([25, 9]) / 36, atol=0.04)
    centered = x[[3, 1], :2] - x[:, :2].mean(axis=0)
    assert_allclose(np.abs(frame["points"]), np.abs(centered), atol=0.6)
    with pytest.raises(ValueError, match="all points are equal"):
        make_frame(np.ones((5, 3)))
    with pytest.raises(ValueError, match="needs two of each"):
        make_frame(np.ones((5, 1)))


@given(st.integers(2, 3000), st.integers(2, 400))
def test_positions_spread_over_a_log_scale(n: int, wanted: int) -> None:
    found = spread_over(n, wanted)
    assert len(found) == min(n, wanted)
    assert found[0] == 0 and found[-1] == n - 1
    assert (np.diff(found) > 0).all()


# ---- a whole run --------------------------------------------------------------------------------


def test_every_snapshot_is_measured(run, corpus, tokenizer, pairs, small, own_cache) -> None:
    training = read_training(run)
    found = snapshots.measure_run(training, corpus, tokenizer, pairs, seeds=2, least_pairs=3)
    json.dumps(found, allow_nan=False)
    assert [one["step"] for one in found["snapshots"]] == [0, 1, 2, 3]
    assert [one["held_out_loss"] for one in found["snapshots"]] == pytest.approx(
        [entry[3] for entry in training.loss], rel=1e-4
    )
    assert found["training"]["finished"] and found["training"]["steps"] == 3
    first, second = found["snapshots"][:2]
    assert first["fingerprint"] != second["fingerprint"]
    assert first["words"]["table1"]["bins"] == [[0, 100], [100, 500], [500, 5000]]
    assert set(first["sentences"]) == set(first["sts"]) == {"last", "last2avg", "first-last"}
    for layer, one in first["sentences"].items():
        assert one["n"] == found["settings"]["n_sentences"]
        assert len(one["frequency"]["explained"]) == 3
        assert one["mean_cosine"]["low"] < one["mean_cosine"]["estimate"] < 1
        assert len(one["spectrum"]["value"]) <= 40 and one["spectrum"]["value"][0] == 1
        assert {name: len(x) for name, x in first["sts"][layer].items()} == {
            "none": 1, "sn": 1, "whiten": 1, "flow": 2,
        }  # fmt: skip
        assert len(second["sts"][layer]["flow"]) == 1
    assert len(first["guesses"]) == len(found["settings"]["masked_sentences"]) == 12
    assert all(len(best) == 3 and 0 < best[0][1] < 1 for best in first["guesses"])
    assert first["gain"]["n"] == 60 and first["neighbors"]["n_pairs"] > 20
    assert 0 < found["baselines"]["word overlap"] < 100
    assert set(found["baselines"]["random vectors of pieces"]) == {"none", "sn", "whiten", "flow"}
    words = found["film"]["words"]
    assert len(words["x"]) == len(words["share"]) == 4
    assert len(words["x"][0]) == len(words["word"]) == len(words["rank"]) == 300
    assert all(len(word) > 2 for word in words["word"]) and words["rank"] == sorted(words["rank"])
    assert len(found["film"]["sentences"]["y"][3]) == len(found["film"]["sentences"]["row"]) == 150
    assert "points" not in json.dumps(found)


def test_raw_scores_are_those_of_the_encoder(
    run, corpus, tokenizer, pairs, small, own_cache
) -> None:
    known = snapshots.prepare(corpus, tokenizer, pairs, least_pairs=3)
    folder = read_training(run).snapshots[3]
    found = snapshots.measure_snapshot(folder, known)
    x = bf.load_encoder(str(folder), device="cpu").encode(pairs.sentences, "first-last")
    assert found["sts"]["first-last"]["none"][0] == pytest.approx(bf.score_sts(pairs, x).all)
    lm = load_language_model(folder, device="cpu")
    row = tokenizer.convert_tokens_to_ids(list(known.words[:100]))
    norms = lm.word_vectors[row].norm(dim=1)
    assert found["words"]["table1"]["norm"][0] == pytest.approx(float(norms.mean()), rel=1e-5)
    assert_array_equal(corpus.counts[row], known.word_counts[:100])
    assert found["fingerprint"] == lm.fingerprint


def test_what_was_measured_is_not_measured_again(
    run, corpus, tokenizer, pairs, small, own_cache, monkeypatch
) -> None:
    training = read_training(run)
    two = {step: training.snapshots[step] for step in (0, 1)}
    training = dataclasses.replace(training, snapshots=two)
    options = {"seeds": 1, "least_pairs": 3}
    measure, seen = snapshots.measure_snapshot, []

    def stop_at_second(folder, *args, **kwargs):
        seen.append(folder.name)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return measure(folder, *args, **kwargs)

    monkeypatch.setattr(snapshots, "measure_snapshot", stop_at_second)
    with pytest.raises(KeyboardInterrupt):
        snapshots.measure_run(training, corpus, tokenizer, pairs, **options)
    first = snapshots.measure_run(training, corpus, tokenizer, pairs, **options)
    assert seen == [f"step-{step:09d}" for step in (0, 1, 1)]
    monkeypatch.setattr(snapshots, "measure_snapshot", None)
    monkeypatch.setattr(snapshots, "_baselines", None)
    assert snapshots.measure_run(training, corpus, tokenizer, pairs, **options) == first
    with pytest.raises(TypeError):
        snapshots.measure_run(training, corpus, tokenizer, pairs, resume=False, **options)


def test_a_folder_is_known_by_its_head_too(run, tmp_path: Path) -> None:
    folders = list(read_training(run).snapshots.values())
    assert len({fingerprint_folder(folder) for folder in folders}) == len(folders)
    assert fingerprint_folder(folders[-1]) == fingerprint_folder(run / "final")


def test_an_unfinished_run_is_measured_on_demand(corpus, tokenizer, tmp_path: Path) -> None:
    def stop_at(step: int, _: Path) -> None:
        if step == 2:
            signal.raise_signal(signal.SIGINT)

    folder = tmp_path / "run"
    with pytest.raises(FileNotFoundError, match="no pre-training run"):
        read_training(folder)
    with pytest.raises(KeyboardInterrupt):
        loop.pretrain(corpus, tokenizer, folder, recipe=TINY, tokens=1000, on_snapshot=stop_at)
    with pytest.raises(ValueError, match="unfinished: let it end"):
        read_training(folder)
    training = read_training(folder, partial=True)
    assert not training.finished and training.steps == 2
    assert list(training.snapshots) == [0, 1, 2]


def test_another_corpus_is_refused(run, corpus, tokenizer, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("Something else was written here. " * 40)
    other = pack_corpus(tmp_path / "other.txt", tokenizer, length=TINY.length)
    with pytest.raises(ValueError, match="another text"):
        snapshots.measure_run(read_training(run), other, tokenizer, bf.load_sts("mini-sts"))


def test_too_small_a_corpus_is_refused(tokenizer, tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text("A cat sat on the mat. " * 40)
    corpus = pack_corpus(tmp_path / "small.txt", tokenizer, length=TINY.length)
    with pytest.raises(ValueError, match="only 6 words occur"):
        snapshots.prepare(corpus, tokenizer, bf.load_sts("mini-sts"))


def test_mini_sts_stands_in_for_a_missing_set(tmp_path, own_cache, monkeypatch, caplog) -> None:
    monkeypatch.setenv("BERTFLOW_DATA", str(tmp_path))
    assert snapshots.load_validation_pairs("stsb").name == "mini-sts"
    assert "scoring on mini-sts instead" in caplog.text


def test_real_validation_pairs(real_data) -> None:
    pairs = snapshots.load_validation_pairs("stsb")
    assert (pairs.name, pairs.split, len(pairs)) == ("stsb", "dev", 1500)


def test_numbers_are_rounded_and_must_be_finite() -> None:
    content = {"a": np.float32(0.123456), 1: (np.arange(2), None, True, "x")}
    assert round_numbers(content) == {"a": 0.12346, "1": [[0, 1], None, True, "x"]}
    with pytest.raises(ValueError, match="number is nan"):
        round_numbers([math.nan])


def test_the_command(run, text, tmp_path, small, own_cache, monkeypatch) -> None:
    run = shutil.copytree(run, tmp_path / "run")
    for step in (1, 2):
        shutil.rmtree(run / "snapshots" / f"step-{step:09d}")
    monkeypatch.setattr(snapshots, "store_run", partial(store_run, folder=tmp_path))
    out = tmp_path / "pretraining" / "tiny.json"
    command = ["pretrain-measure", "--run", str(run), "--corpus", str(text), "--data", "mini-sts"]
    command += ["--seeds", "1", "--least-pairs", "3", "--device", "cpu", "--name", "tiny"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "norm ~ log p" in done.stdout and len(done.stdout.splitlines()) == 4
    stored = json.loads(out.read_text())
    assert stored["table"] == "pretraining" and stored["how"]["model"] == "tiny"
    assert stored["how"]["weights"] == fingerprint_folder(run / "final")
    assert str(tmp_path) not in out.read_text()
    command[2] = str(tmp_path)
    wrong = CliRunner().invoke(app, command)
    assert wrong.exit_code == 1 and "no pre-training run" in wrong.stderr


def test_places_have_a_length() -> None:
    one = np.array([0])
    assert len(Places(one, one, one)) == 1
