"""The experiment on weights first: contrasts, shares, placebo, permuted words, and its command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite.cli.common import app
from bertflow_lite.experiments.controls import weights
from bertflow_lite.experiments.controls.runs import System
from bertflow_lite.experiments.controls.statistics import bootstrap_partials, partial_spearman
from bertflow_lite.measures.similarity import spearman

SMALL = "random-bert-32x2"
TEXT = ["the cat sat on the mat .", "a dog ran .", "the end of the day ."]


@pytest.fixture(scope="module")
def pairs() -> bf.SentencePairs:
    return bf.load_sts("mini-sts")


def test_one_pass_gives_what_the_encoder_gives(pairs: bf.SentencePairs, cache_folder: Path) -> None:
    encoder = bf.load_encoder(f"{SMALL}:0", device="cpu", cache=False)
    texts = list(pairs.sentences[:40])
    several = {"equal": None, "idf": encoder.token_weights(texts)}
    found = weights.encode_weightings(encoder, texts, ["1", "last2avg"], several)
    assert list(found) == [(a, b) for b in several for a in ("1", "last2avg")] or len(found) == 4
    for (layers, name), vectors in found.items():
        expected = encoder.encode(texts, layers, weights=several[name])
        assert np.allclose(vectors, expected, atol=1e-5)
    with pytest.raises(ValueError, match="not for 'cls'"):
        weights.encode_weightings(encoder, texts, ["cls"], several)


def test_differences_are_between_the_systems_that_they_name() -> None:
    names = ["equal none", "equal sn", "equal flow", "idf none", "idf sn", "idf flow"]
    found = weights.contrasts(names)
    assert found["+ flow"] == {"equal flow": 1, "equal none": -1}
    assert found["+ idf"] == {"idf none": 1, "equal none": -1}
    assert found["idf - flow"] == {"idf none": 1, "equal flow": -1}
    assert found["idf, + flow"] == {"idf flow": 1, "idf none": -1}
    assert found["idf flow - flow"] == {"idf flow": 1, "equal flow": -1}
    assert found["sn - flow"] == {"equal sn": 1, "equal flow": -1}
    assert all(sum(one.values()) == 0 for one in found.values())


def test_a_placebo_is_as_strong_and_knows_nothing_else(pairs: bf.SentencePairs) -> None:
    other = weights.placebo(pairs.gold, 0.4)
    assert spearman(other, pairs.gold) == pytest.approx(0.4, abs=0.005)
    length = np.array([len(text) for text in pairs.sentences1], float)
    assert abs(partial_spearman(other, length, pairs.gold)) < 0.15


def test_partial_correlations_of_several_systems_are_those_of_one(pairs: bf.SentencePairs) -> None:
    rng = np.random.default_rng(0)
    gold, control = pairs.gold, pairs.gold + rng.normal(size=len(pairs))
    a, b = gold + rng.normal(size=len(gold)), rng.normal(size=len(gold))
    found = bootstrap_partials(gold, {"a": [a, b], "b": [b]}, control, n_resamples=200)
    one, other = (100 * partial_spearman(x, gold, control) for x in (a, b))
    assert found.interval("a").estimate == pytest.approx((one + other) / 2)
    gap = found.interval("a", "b")
    assert gap.low < gap.estimate < gap.high
    assert gap.estimate == pytest.approx((one - other) / 2) and gap.low > 0


def test_permuted_words_keep_their_overlap_and_lose_their_vectors(cache_folder: Path) -> None:
    texts = ["the cat sat", "sat the cat", "it rained"]
    for name in ("glove", f"{SMALL}:0"):
        plain = bf.load_encoder(name, cache=False)
        before = plain.encode(texts, layers="1")
        permuted = weights.permute_vocabulary(bf.load_encoder(name, cache=False))
        assert permuted.fingerprint == f"{plain.fingerprint}-permuted-0"
        after = permuted.encode(texts, layers="1")
        assert not np.allclose(after, before) and not np.allclose(after[0], after[2])
        assert np.allclose(after[0], after[1]) or name != "glove"  # the same words
        assert np.array_equal(bf.load_encoder(name, cache=False).encode(texts, layers="1"), before)


def test_special_tokens_stay_what_they_are(cache_folder: Path) -> None:
    plain, permuted = (bf.load_encoder(f"{SMALL}:0", cache=False) for _ in range(2))
    assert isinstance(plain, bf.Encoder) and isinstance(permuted, bf.Encoder)
    weights.permute_vocabulary(permuted)
    old, new = (one.model.get_input_embeddings().weight for one in (plain, permuted))
    special = plain.tokenizer.all_special_ids
    assert (old[special] == new[special]).all()
    assert (old == new).all(1).sum() < len(special) + 10
    assert np.allclose(old.sum(0).detach(), new.sum(0).detach(), atol=1e-3)  # the same rows


def test_shares_by_hand() -> None:
    points = {"+ flow": 10.0, "+ idf": 8.0, "+ natsv:1": -1.0, "+ whiten": 9.0}
    rows = [
        {"data": "mean", "layers": "4", "what": what, "difference": [value, 0, 0]}
        for what, value in points.items()
    ]
    shares = weights.find_shares({"differences": rows}, "4")
    assert shares == {"flow": 10.0, "+ idf": 80.0, "+ natsv:1": -10.0, "+ whiten": 90.0,
                      "only the flow": 10.0}  # fmt: skip
    with pytest.raises(ValueError, match="no differences for layers '5'"):
        weights.find_shares({"differences": rows}, "5")


def test_two_sets_have_a_mean_with_its_interval(own_cache: Path, pairs: bf.SentencePairs) -> None:
    system = System("glove", ("mean",), 1)
    ((_, one),) = weights.run_weights(system, ["mini-sts"], ["none", "sn"], TEXT)
    assert {row["data"] for row in one["differences"]} == {"mini-sts"}
    two = []
    for value in (1.0, 3.0):
        draws = (value + np.linspace(-1, 1, 101)).tolist()
        row = {"data": "x", "layers": "l", "what": "w", "difference": [value], "draws": draws}
        two.append({"differences": [row], "beside": [], "rows": []})
    mean = weights.put_together(two)["differences"][-1]
    assert mean["data"] == "mean" and mean["difference"] == pytest.approx([2.0, 1.05, 2.95])


def test_the_command_stores_after_each_set_and_goes_on(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = tmp_path / "results"
    monkeypatch.setattr("bertflow_lite.experiments.runs.data_file", lambda _: stored)
    text = tmp_path / "wiki.txt"
    text.write_text("The cat sat. A dog ran! Is it the end?\n", encoding="utf-8")
    command = ["controls", "--what", "weights", "--model", SMALL, "--layers", "1",
               "--data", "mini-sts", "--calibrate", "none,sn,flow", "--seeds", "2",
               "--device", "cpu", "--store", "w"]  # fmt: skip
    missing = CliRunner().invoke(app, command)
    assert missing.exit_code == 1 and "--corpus" in missing.stderr
    command += ["--corpus", str(text)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    run = json.loads((stored / "controls" / "w.json").read_text())
    assert run["how"]["fit_on"] == "the different sentences of the scored split"
    assert run["how"]["sif"]["sentences"] == 3 and len(run["how"]["fingerprint"].split(", ")) == 2
    rows = {(r["weights"], r["calibrator"]): r["all"] for r in run["results"]["rows"]}
    assert set(rows) == {(w, c) for w in weights.WEIGHTS for c in ("none", "sn", "flow")}
    assert len(rows["equal", "none"]) == 2 and len(rows["sif", "none"]) == 1
    gains = {r["what"]: r["difference"] for r in run["results"]["differences"]}
    assert gains["+ idf"][0] == pytest.approx(
        np.mean(rows["idf", "none"]) - np.mean(rows["equal", "none"]), abs=0.01
    )
    assert gains["+ flow"][1] < gains["+ flow"][0] < gains["+ flow"][2]
    given = {row["given"] for row in run["results"]["beside"]}
    assert given == {"tfidf", "tfidf bins", "placebo", "placebo bins", "fewest shared"}

    def fail(*_: object) -> None:
        raise AssertionError("a finished set was measured again")

    monkeypatch.setattr(weights, "encode_weightings", fail)
    assert CliRunner().invoke(app, command).exit_code == 0  # from what is kept


def test_stored_scores_of_weighed_words_come_back(real_data: Path) -> None:
    stored = bf.load_run("controls", "weights-glove")["results"]["rows"]
    old = {(r["weights"], r["calibrator"]): r["all"][0] for r in stored if r["data"] == "sts16"}
    pairs = bf.load_sts("sts16")
    glove = bf.load_encoder("glove")
    counts = glove.token_weights(list(dict.fromkeys(pairs.sentences)))
    equal, idf = (glove.encode(pairs.sentences, weights=w) for w in (None, counts))
    assert bf.score_sts(pairs, equal).all == pytest.approx(old["equal", "none"], abs=1e-3)
    assert bf.score_sts(pairs, idf).all == pytest.approx(old["idf", "none"], abs=1e-3)
