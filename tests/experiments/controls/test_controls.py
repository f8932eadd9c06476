"""Controls: random models, partial correlations, kept similarities, overlap, and their runs."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr
from sklearn.linear_model import LinearRegression
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite.encoders.models import load_model, load_random, packaged_path
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.experiments.controls.overlap import (
    contest_share,
    make_swaps,
    run_kinds,
    run_within,
    swap_words,
    within_overlap,
    word_overlap,
)
from bertflow_lite.experiments.controls.runs import (
    System,
    encoder_scores,
    run_pretraining,
    run_rarity,
    run_words,
    seeded_similarities,
)
from bertflow_lite.experiments.controls.statistics import (
    bootstrap_partials,
    bootstrap_systems,
    explained_by,
    partial_spearman,
    rank_residual,
)
from bertflow_lite.experiments.controls.weights import (
    run_influence,
    token_influence,
)
from bertflow_lite.experiments.controls.words import WordCountEncoder, idf_weights
from bertflow_lite.experiments.runs import load_run
from bertflow_lite.experiments.scoring import Target, find_similarities, sts_target
from bertflow_lite.figures import controls as figures_controls
from bertflow_lite.figures import controls as figures_overlap
from bertflow_lite.measures.scores import (
    bootstrap_difference,
    bootstrap_interval,
    score_similarities,
)

SMALL = "random-bert-32x2"
# Of random-bert-32x1:0: the first values of wordpiece 1000.
KNOWN_WEIGHTS = [-0.020721955, -0.011258021, 0.00399768, -0.006347011]


@pytest.fixture(scope="module")
def pairs() -> bf.SentencePairs:
    return bf.load_sts("mini-sts")


@pytest.fixture(scope="module")
def small(cache_folder: Path) -> Encoder:
    return Encoder(load_model(f"{SMALL}:0", device="cpu"), cache=False)


@pytest.fixture(scope="module")
def target(pairs: bf.SentencePairs) -> Target:
    return Target(pairs, tuple(pairs.sentences))


# --- random models -----------------------------------------------------------------------------


def test_few_blocks_are_the_beginning_of_many(pairs: bf.SentencePairs) -> None:
    texts = pairs.sentences[:20]
    two, three = (Encoder(load_model(f"random-bert-64x{k}:5"), cache=False) for k in (2, 3))
    ours, theirs = two.encode(texts, layers=[0, 1, 2]), three.encode(texts, layers=[0, 1, 2])
    for state in ("0", "1", "2"):
        assert np.allclose(ours[state], theirs[state], atol=1e-6)
    assert two.dim == 64 and two.n_layers == 2


def test_weights_are_those_of_bert_before_training() -> None:
    model, tokenizer = load_random("random-bert-64x1:1", str(packaged_path("minilm")))
    assert len(tokenizer) == 30_522 and model.config.num_attention_heads == 1
    for name, tensor in model.named_parameters():
        if tensor.dim() == 2 and tensor.numel() > 10_000:
            assert float(tensor.std()) == pytest.approx(0.02, rel=0.03), name
            assert abs(float(tensor.mean())) < 0.001, name
        elif name.endswith("bias"):
            assert not tensor.any(), name
        elif name.endswith("LayerNorm.weight"):
            assert (tensor == 1).all(), name
    assert not model.get_input_embeddings().weight[tokenizer.pad_token_id].any()


def test_weights_are_the_same_on_every_machine() -> None:
    """Seeds differ, the caller's random state is left alone, and known weights come back."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    folder = str(packaged_path("minilm"))
    first, again, other = (load_random(f"random-bert-32x1{s}", folder)[0] for s in ("", ":0", ":1"))
    assert (torch.get_rng_state() == before).all()
    a, b, c = (m.get_input_embeddings().weight for m in (first, again, other))
    assert (a == b).all() and not (a[1:] == c[1:]).any()
    assert a[1000, :4].tolist() == pytest.approx(KNOWN_WEIGHTS, abs=1e-7)


@pytest.mark.parametrize(
    "name",
    ["random-bert", "random-bert-64", "random-bert-64x1:x", "random-bert-64x2:", "random-bertx"],
)
def test_a_misspelt_random_model_says_how_it_is_written(name: str) -> None:
    with pytest.raises(ValueError, match="random-bert-WIDTHxBLOCKS"):
        load_model(name)


@pytest.mark.parametrize("shape", ["100x2", "64x0", "0x1", "16x1"])
def test_a_shape_that_does_not_fit_is_refused(shape: str) -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        load_model(f"random-bert-{shape}")


# --- statistics --------------------------------------------------------------------------------


def _correlated(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    return z + rng.normal(size=n), 0.5 * z + rng.normal(size=n).round(1), z.round(1)


@settings(max_examples=30, deadline=None)
@given(st.integers(10, 60), st.integers(0, 10_000))
def test_partial_correlation_is_that_of_regression_residuals(n: int, seed: int) -> None:
    x, y, z = _correlated(n, seed)
    ranks = [rankdata(v) for v in (x, y, z)]
    column = ranks[2][:, None]
    left = [r - LinearRegression().fit(column, r).predict(column) for r in ranks[:2]]
    assert partial_spearman(x, y, z) == pytest.approx(np.corrcoef(*left)[0, 1], abs=1e-9)
    assert np.allclose(rank_residual(x, z), left[0], atol=1e-8)


def test_explained_by_against_multiple_regression() -> None:
    x, gold, control = _correlated(500, 1)
    found = explained_by(gold, x, control)
    ranks = np.column_stack([rankdata(x), rankdata(control)])
    r2 = LinearRegression().fit(ranks, rankdata(gold)).score(ranks, rankdata(gold))
    assert found.both_gold == pytest.approx(100 * np.sqrt(r2), abs=1e-6)
    left = rank_residual(x, control)
    assert found.residual_gold == pytest.approx(100 * np.corrcoef(left, rankdata(gold))[0, 1])
    assert found.gold == pytest.approx(100 * spearmanr(x, gold).statistic)
    assert found.control == pytest.approx(100 * spearmanr(x, control).statistic)
    interval = bootstrap_partials(gold, {"x": [x]}, control, n_resamples=300).interval("x")
    low, high = interval.low, interval.high
    assert low < found.gold_given_control < high


def test_a_similarity_that_only_counts_words_has_nothing_left() -> None:
    """Gold follows the control; the similarity is the control with noise: its partial is near 0."""
    rng = np.random.default_rng(0)
    control = rng.normal(size=4000)
    gold, similarity = (control + 0.5 * rng.normal(size=4000) for _ in range(2))
    found = explained_by(gold, similarity, control)
    assert found.gold > 70 and abs(found.gold_given_control) < 5
    assert found.control_gold_given > 50


def test_partial_correlation_with_nothing_left_is_an_error() -> None:
    x, y, _ = _correlated(30, 0)
    with pytest.raises(ValueError, match="nothing is left"):
        partial_spearman(x, y, np.exp(x))


@pytest.mark.parametrize("aggregation", ["all", "wmean"])
def test_bootstrap_of_many_agrees_with_that_of_two(
    pairs: bf.SentencePairs, aggregation: bf.evaluate.Aggregation
) -> None:
    rng = np.random.default_rng(1)
    parts = pairs.select(range(120))
    a, b = (parts.gold + rng.normal(size=len(parts)) for _ in range(2))
    options = {"aggregation": aggregation, "n_resamples": 200, "random_state": 4}
    scores = bootstrap_systems(parts, {"a": [a], "b": [b], "both": [a, b]}, **options)
    for found, expected in (
        (scores.interval("a", "b"), bootstrap_difference(parts, a, b, **options)),
        (scores.interval("b"), bootstrap_interval(parts, b, **options)),
        (scores.contrast({"a": 1.0, "b": -1.0}), bootstrap_difference(parts, a, b, **options)),
    ):
        for end in ("low", "high", "estimate"):
            assert getattr(found, end) == pytest.approx(getattr(expected, end), abs=1e-9)
    mean = (scores.interval("a").estimate + scores.interval("b").estimate) / 2
    assert scores.interval("both").estimate == pytest.approx(mean)
    with pytest.raises(ValueError, match="no system 'c'"):
        scores.interval("c")
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_systems(parts, {})


# --- kept similarities -------------------------------------------------------------------------


def test_similarities_are_those_of_the_steps_by_hand(small: Encoder, target: Target) -> None:
    pairs = target.pairs
    found = find_similarities(small, [target], ["1", "last"], ["none", "sn"], keep=False)
    raw = small.encode(pairs.sentences, layers=["1", "last"])
    for label, x in raw.items():
        assert np.allclose(found["mini-sts", label, "none"], bf.pair_cosines(pairs, x))
        z = bf.Standardizer().fit(small.encode(target.fitted, layers=label)).transform(x)
        assert np.allclose(found["mini-sts", label, "sn"], bf.pair_cosines(pairs, z), atol=1e-6)


def test_similarities_are_kept_and_a_damaged_file_is_made_again(
    small: Encoder, target: Target, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    encode = small.encode

    def count(sentences: list[str], layers: list[str], progress: bool = False) -> object:
        calls.append(list(layers))
        return encode(sentences, layers=layers)

    monkeypatch.setattr(small, "encode", count)
    first = find_similarities(small, [target], ["1"], ["none", "flow"])
    again = find_similarities(small, [target], ["1"], ["none", "flow"])
    assert calls == [["1"]] and all((first[key] == again[key]).all() for key in first)
    more = find_similarities(small, [target], ["1", "last"], ["none"])
    assert calls == [["1"], ["1", "last"]] and set(more) > {("mini-sts", "1", "none")}
    other = find_similarities(small, [target], ["1"], ["flow"], seed=1)
    assert (other["mini-sts", "1", "flow"] != first["mini-sts", "1", "flow"]).any()
    for file in (own_cache / "partial").glob("similarities-*.json"):
        file.write_bytes(file.read_bytes()[:1000])
    repaired = find_similarities(small, [target], ["1"], ["none", "flow"])
    assert all(np.allclose(first[key], repaired[key]) for key in first) and len(calls) == 4


def test_targets_of_one_name_are_refused(small: Encoder, target: Target) -> None:
    with pytest.raises(ValueError, match="same name"):
        find_similarities(small, [target, target], ["last"], ["none"])


# --- overlap -----------------------------------------------------------------------------------


def test_word_overlap_by_hand() -> None:
    first, second = ["The cat sat.", "a b c d", ".", "x"], ["the dog sat!", "d c b a", "!", "y"]
    assert word_overlap(first, second).tolist() == [0.5, 1.0, 1.0, 0.0]
    edit = word_overlap(first, second, "edit")
    assert edit[1] < 1 and edit[0] == 0.5  # cat, and the mark, of four
    with pytest.raises(ValueError, match="jaccard"):
        word_overlap(first, second, "dice")  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=20, max_size=60), st.integers(1, 8))
def test_bins_keep_equal_overlaps_together_and_in_order(values: list[int], bins: int) -> None:
    n = len(values)
    text = tuple("ab" for _ in range(n))
    made = bf.SentencePairs("x", "test", text, text, np.zeros(n), np.full(n, "x"))
    labels = within_overlap(made, values, bins).subsets
    by_label: dict[str, set[int]] = {}
    for value, label in zip(values, labels, strict=True):
        by_label.setdefault(label, set()).add(value)
    assert sum(len(v) for v in by_label.values()) == len(set(values))
    assert len(by_label) <= bins
    ordered = [by_label[label] for label in sorted(by_label)]
    assert all(max(a) < min(b) for a, b in itertools.pairwise(ordered))


def test_within_bins_overlap_itself_says_nothing(pairs: bf.SentencePairs) -> None:
    """Gold made of overlap alone: the overlap scores high over all pairs, near 0 within bins."""
    rng = np.random.default_rng(0)
    overlap = rng.integers(0, 10, size=len(pairs)).astype(float)
    made = bf.SentencePairs(
        "made",
        "test",
        pairs.sentences1,
        pairs.sentences2,
        overlap + rng.normal(size=len(pairs)),
        np.full(len(pairs), "made"),
    )
    similar = overlap + 0.01 * rng.normal(size=len(pairs))
    assert score_similarities(made, similar).all > 90
    assert abs(score_similarities(within_overlap(made, overlap), similar).wmean) < 15


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["the", "cat", "dog", "sat", "Ran,", "mat."]), max_size=9))
def test_a_swap_keeps_the_bag_of_words(words: list[str]) -> None:
    sentence = " ".join(words)
    weights = {"the": 1.0, "cat": 3.0, "dog": 3.0, "sat": 2.0, "ran": 2.5, "mat": 4.0}
    swapped = swap_words(sentence, weights)
    if swapped is not None:
        bags = [Counter(text.lower().replace(",", " ,").replace(".", " .").split())
                for text in (sentence, swapped)]  # fmt: skip
        assert bags[0] == bags[1] and swapped.lower() != sentence.lower()
        changed = [a != b for a, b in zip(sentence.split(), swapped.split(), strict=True)]
        assert sum(changed) == 2


def test_a_counting_encoder_cannot_win_a_contest(pairs: bf.SentencePairs) -> None:
    swaps = make_swaps("mini-sts", least=4.0)
    n = len(swaps) // 2
    assert n > 30 and swaps.sentences1[:n] == swaps.sentences1[n:]
    words = WordCountEncoder("tfidf", dim=32).fit(pairs.sentences)
    cosines = words.similarities(swaps.sentences1, swaps.sentences2)
    assert np.allclose(cosines[n:], 1) and contest_share(cosines[:n], cosines[n:]) < 5
    assert contest_share([1, 2, 3], [0, 2, 4]) == pytest.approx(50)


# --- weights of tokens -------------------------------------------------------------------------


def test_influence_by_hand(small: Encoder) -> None:
    """The token is taken out of the mean of the last hidden states, and nothing else changes."""
    text = "The cat sat on the mat."
    found = token_influence(small, [text], "last")
    ids = small.tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        states = small.model(**ids).last_hidden_state[0].double().numpy()
    whole = states.mean(axis=0)
    turned = []
    for k in range(len(states)):
        part = np.delete(states, k, axis=0).mean(axis=0)
        turned.append(1 - whole @ part / np.linalg.norm(whole) / np.linalg.norm(part))
    assert found.token.tolist() == ids["input_ids"][0].tolist()
    assert np.allclose(found.influence, np.array(turned) / np.mean(turned), atol=1e-3)
    assert found.influence.mean() == pytest.approx(1)


def test_calibrating_a_random_network_weighs_rare_words(small: Encoder, target: Target) -> None:
    rows = run_influence(small, ["1"], target, ["none", "whiten"], n_sentences=60)
    raw, white = (row["rank_correlation"] for row in rows)
    assert abs(raw) < 30 < white - raw
    assert white > 40 and rows[1]["influence"][-1] > rows[1]["influence"][0]


# --- runs --------------------------------------------------------------------------------------


def test_pretraining_compares_on_the_same_pairs(target: Target, own_cache: Path) -> None:
    system, control = System("glove", ("mean",), 2), System(SMALL, ("1",), 2)
    calibrators = ["none", "sn"]
    rows = run_pretraining(system, control, [target], calibrators, n_resamples=50)
    by = {row["calibrator"]: row for row in rows}
    assert by["none"]["lead"][0] > 0 and "gain" not in by["none"]
    for row in rows:
        for name in ("model", "control", "lead"):
            estimate, low, high = row[name]
            assert low <= estimate <= high
        assert row["lead"][0] == pytest.approx(row["model"][0] - row["control"][0], abs=0.02)
    with pytest.raises(ValueError, match="one layer choice"):
        run_pretraining(system, System(SMALL, ("1", "2"), 1), [target], calibrators)


def test_a_seed_in_the_name_is_refused(target: Target) -> None:
    with pytest.raises(ValueError, match="leave it out"):
        list(seeded_similarities(System(f"{SMALL}:1", ("1",), 2), [target], ["none"]))


def test_random_seeds_draw_new_weights(target: Target, own_cache: Path) -> None:
    found = list(seeded_similarities(System(SMALL, ("1",), 2), [target], ["none"]))
    (first, a), (second, b) = found
    assert first != second
    (row,) = encoder_scores([target], [a, b])
    expected = [
        score_similarities(target.pairs, one["mini-sts", "1", "none"]).all for one in (a, b)
    ]
    assert row["all"] == pytest.approx(expected, abs=1e-3) and row["all"][0] != row["all"][1]


def test_words_and_rarity_and_overlap_give_full_rows(target: Target, own_cache: Path) -> None:
    words = run_words([target], ["none", "sn", "whiten:128"])
    names = {row["encoder"] for row in words}
    assert {"tfidf-sparse", "count-svd", "pieces-random", "glove-sif"} <= names
    short = {row["calibrator"] for row in words if row["encoder"] == "glove"}
    assert short == {"none", "sn"}  # 50 dimensions have no 128 directions
    system = System(SMALL, ("1",), 1)
    rarity = run_rarity(system, [target], ["none", "sn"])
    tfidf = next(r["all"][0] for r in words if r["encoder"] == "tfidf-sparse")
    assert {row["by"] for row in rarity} == {"tfidf", "count"}
    assert rarity[0]["control_gold"] == pytest.approx(tfidf, abs=0.01)
    within = run_within(system, [target], ["none", "sn"], n_resamples=20)
    assert len(within) == 3 * 4  # three kinds of overlap; two calibrators, two bags
    kinds = run_kinds(system, ["none"], fit_on="mini-sts")
    bag = [r["auc"] for r in kinds if r["calibrator"] == "count" and r["same"] == "paraphrase"]
    assert max(bag) < 25  # a bag of words takes shared words for shared meaning
    json.dumps([words, rarity, within, kinds], allow_nan=False)


# --- the stored runs ---------------------------------------------------------------------------


def test_stored_scores_of_counted_words_come_back(real_data: Path) -> None:
    stored = load_run("controls", "rarity-random-bert-384x1")["results"]
    target = sts_target("sts16")
    for kind in ("count", "tfidf"):
        encoder = WordCountEncoder(kind, dim=2).fit(target.fitted)
        cosines = encoder.similarities(target.pairs.sentences1, target.pairs.sentences2)
        found = {
            row["control_gold"] for row in stored if (row["by"], row["data"]) == (kind, "sts16")
        }
        assert len(found) == 1
        expected = score_similarities(target.pairs, cosines).all
        assert found.pop() == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_stored_scores_of_a_random_model_come_back(real_data: Path, own_cache: Path) -> None:
    stored = load_run("controls", "random-bert-384x1")["results"]
    target = sts_target("sts16")
    encoder = Encoder(load_model("random-bert-384x1:0", device="cpu"), cache=False)
    found = find_similarities(encoder, [target], ["1"], ["none", "sn", "whiten"], keep=False)
    for row in encoder_scores([target], [found]):
        (old,) = (
            r for r in stored if all(r[key] == row[key] for key in ("data", "layers", "calibrator"))
        )
        # Whitening divides by the square root of small variances: float32 shows in the 3rd digit.
        assert old["all"][0] == pytest.approx(row["all"][0], abs=0.02)


# --- command line and figures ------------------------------------------------------------------


def test_command_line_prints_and_stores(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertflow_lite.cli.common import app
    from bertflow_lite.experiments import runs

    monkeypatch.setattr(runs, "data_file", lambda name: tmp_path / name)
    options = ["controls", "--what", "encoders", "--model", SMALL, "--layers", "1", "--seeds", "2"]
    options += ["--data", "mini-sts", "--calibrate", "none,sn", "--device", "cpu"]
    result = CliRunner().invoke(app, [*options, "--store", "small"])
    assert result.exit_code == 0, result.output
    assert "mini-sts" in result.output
    run = json.loads((tmp_path / "results/controls/small.json").read_text())
    assert run["how"]["model"] == SMALL and len(run["results"]) == 2
    assert len(run["results"][0]["all"]) == 2 and len(run["how"]["fingerprint"].split(", ")) == 2
    result = CliRunner().invoke(app, ["controls", "--what", "nothing"])
    assert result.exit_code == 1 and "must be one of encoders, words" in result.output


def test_figures_have_what_they_show(target: Target, own_cache: Path) -> None:
    system, control = System("glove", ("mean",), 1), System(SMALL, ("1",), 1)
    rows = run_pretraining(system, control, [target], ["none", "sn", "natsv:1"], n_resamples=20)
    fig = figures_controls.lead_dots({"glove": rows}, methods=("sn", "natsv:1"), title="t")
    assert len(fig.data) == 4 and len(fig.layout.updatemenus[0].buttons) == 2
    assert fig.data[0].x[0] == rows[0]["control"][0]
    rarity = run_rarity(control, [target], ["none", "sn"])
    fig = figures_controls.rarity_dots({"random": rarity}, methods=("none", "sn"))
    assert fig.data[0].y[0] == pytest.approx(rarity[0]["gold"], abs=0.01)
    within = run_within(control, [target], ["none", "sn"], n_resamples=20)
    fig = figures_overlap.overlap_bars({"random": within})
    assert fig.data[1].y[0] == next(r["gain"][0] for r in within if "gain" in r)
    kinds = run_kinds(control, ["none"], fit_on="mini-sts")
    fig = figures_overlap.trick_bars({"random": kinds}, methods=("none",))
    assert len(fig.layout.updatemenus[0].buttons) == 8 and fig.data[0].y[0] == kinds[0]["auc"]
    small = Encoder(load_model(f"{SMALL}:0", device="cpu"), cache=False)
    lines = run_influence(small, ["1"], target, ["none"], n_sentences=20)
    fig = figures_overlap.influence_lines({"random": lines}, methods=("none",))
    assert list(fig.data[0].y) == lines[0]["influence"]
    found = find_similarities(small, [target], ["0", "1", "2"], ["none"], keep=False)
    fig = figures_controls.block_lines(encoder_scores([target], [found]), methods=("none",))
    assert list(fig.data[0].x) == [0, 1, 2]
    with pytest.raises(ValueError, match="lead"):
        figures_controls.lead_dots({})
    with pytest.raises(ValueError, match="gain"):
        figures_overlap.overlap_bars({})


def test_idf_weights_and_swaps_of_the_books_set(pairs: bf.SentencePairs) -> None:
    """The words that are swapped are rare ones: the typical swap leaves articles in place."""
    weights = idf_weights(pairs.sentences)
    swapped = [swap_words(text, weights) for text in pairs.sentences1]
    made = [(a, b) for a, b in zip(pairs.sentences1, swapped, strict=True) if b is not None]
    assert len(made) > 300
    moved = [
        x.strip(".,").lower()
        for a, b in made
        for x, y in zip(a.split(" "), b.split(" "), strict=True)
        if x != y
    ]
    assert np.mean([weights.get(word, 6.0) for word in moved]) > 5
