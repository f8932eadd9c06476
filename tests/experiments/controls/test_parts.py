"""The gain taken apart: words, halves, spectrum, holes, frequency, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite.cli.common import app
from bertflow_lite.encoders.word_vectors import WordVectorEncoder
from bertflow_lite.experiments.controls import parts
from bertflow_lite.experiments.controls.weights import encode_weightings

SMALL = "random-bert-32x2"


@pytest.fixture(scope="module")
def pairs() -> bf.SentencePairs:
    return bf.load_sts("mini-sts").select(range(120))


def rows_of(pairs: bf.SentencePairs) -> tuple[list[str], np.ndarray]:
    texts = list(dict.fromkeys(pairs.sentences))
    return texts, np.array([texts.index(one) for one in pairs.sentences])


def test_of_a_bag_of_words_nothing_is_left(pairs: bf.SentencePairs) -> None:
    glove = bf.load_encoder("glove")
    texts, rows = rows_of(pairs)
    both = texts + list(dict.fromkeys(bf.load_sts("mini-sts-plain").sentences))
    x, n = glove.encode(both), len(texts)
    counts = parts.count_tokens(glove, both)
    assert np.allclose(counts @ np.asarray(glove.vectors), x, atol=1e-5)  # it is one
    noise = np.random.default_rng(0).normal(size=x.shape) * x.std(axis=0)
    for space, least, most in ((x, 99.9, 100), (x + noise, 20, 60)):
        foretold = parts.foretell_by_words(space, x, counts, n)[:n]
        found = parts.Parts(pairs, rows, 1).bag(space[:n], foretold)
        share, values = found[0]["value"], {row["what"]: row["value"] for row in found[1:]}
        assert least < share <= most
    assert values["words none"][0] > values["rest none"][0] + 10  # the rest is noise for the most
    gains = [values[f"{part}: + flow"][0] for part in ("words", "whole")]
    assert values["gain of words - of whole"][0] == pytest.approx(gains[0] - gains[1], abs=0.02)


def test_halves_share_no_sentence(pairs: bf.SentencePairs) -> None:
    names = np.full(9, "linked")
    linked = bf.SentencePairs(
        "linked", "all", list("aabcdefgh"), list("bccdefghi"), np.arange(9.0), names
    )
    assert len(set(parts.split_pairs(linked, 0))) == 1  # one chain: it cannot be cut
    first = parts.split_pairs(pairs, 0)
    assert abs(first.mean() - 0.5) < 0.02
    assert not set(pairs.select(first).sentences) & set(pairs.select(~first).sentences)
    assert (first != parts.split_pairs(pairs, 1)).any()


def test_each_half_is_scored_by_its_own_fit_and_by_the_others(pairs: bf.SentencePairs) -> None:
    texts, rows = rows_of(pairs)
    x = bf.load_encoder("glove").encode(texts)
    values = {r["what"]: r["value"][0] for r in parts.Parts(pairs, rows, 1).halves(x)}
    first = parts.split_pairs(pairs, 0)
    own, other = [], []
    for half in (first, ~first):
        z = {
            name: bf.Whitener().fit(x[np.unique(rows.reshape(2, -1)[:, of])]).transform(x)[rows]
            for name, of in (("own", half), ("other", ~half))
        }
        for scores, name in ((own, "own"), (other, "other")):
            cosines = bf.pair_cosines(pairs, z[name])[half]
            scores.append(bf.score_similarities(pairs.select(half), cosines).all)
    assert values["whiten seen"] == pytest.approx(np.mean(own), abs=0.01)
    assert values["whiten others"] == pytest.approx(np.mean(other), abs=0.01)
    gap = values["whiten seen"] - values["whiten others"]
    assert values["whiten, seen - others"] == pytest.approx(gap, abs=0.02)
    assert values["repeats"] == pytest.approx(values["flow, repeats"] - values["flow"], abs=0.02)


def test_couplings_alone_decorrelate_though_they_keep_volume() -> None:
    mixed = np.random.default_rng(0).normal(size=(1000, 2)) @ [[3, 0], [2.9, 1 / 3]]
    cloud = mixed.astype(np.float32)
    flow = bf.FlowCalibrator(actnorm=False, levels=1, epochs=20).fit(cloud)
    z = flow.transform(cloud)
    before, after = parts.describe(cloud), parts.describe(z)
    assert before["top_share"] > 0.98 and before["correlation"] > 0.6
    assert after["top_share"] < 0.75 and after["effective_rank"] > before["effective_rank"] + 0.3
    determinants = [np.linalg.det(np.cov(one.T)) for one in (cloud, parts.affine_part(cloud, z)[0])]
    assert determinants[1] == pytest.approx(determinants[0], rel=0.3)


def test_spectrum_of_known_clouds(pairs: bf.SentencePairs) -> None:
    texts, rows = rows_of(pairs)
    x = bf.load_encoder("glove").encode(texts)
    found = {row["what"]: row for row in parts.Parts(pairs, rows, 1).spectrum(x)}
    white = found["whiten"]
    assert white["effective_rank"] == pytest.approx(50) and white["correlation"] < 1e-6
    assert white["top_share"] == pytest.approx(1 / 50) and white["straight"] == pytest.approx(1)
    assert found["none"]["mean_cosine"] > 0.8 and abs(white["mean_cosine"]) < 0.02
    # A scale for each coordinate leaves their correlations as they are.
    assert found["actnorm only"]["correlation"] == pytest.approx(found["none"]["correlation"])
    assert found["actnorm only"]["straight"] == pytest.approx(1)


def test_the_middle_of_two_draws_of_a_gaussian_is_inside_its_shell() -> None:
    cloud = np.random.default_rng(1).normal(size=(500, 60)).astype(np.float32)
    for row in parts.measure_holes(cloud, n_points=400):
        assert row["length"] == pytest.approx(np.sqrt(0.5), abs=0.03), row["space"]
        assert 0.8 < row["nearest"] < 1 and row["likelier"] > 0.95, row["space"]


def test_equal_lengths_forget_what_length_a_word_has(pairs: bf.SentencePairs) -> None:
    known = bf.load_encoder("glove")
    words, vectors = list(known.row_of)[:20_000], np.asarray(known.vectors[:20_000])
    factors = np.random.default_rng(0).uniform(0.1, 10, size=(len(vectors), 1))
    glove, scaled = (
        WordVectorEncoder(np.asarray(x, np.float32), words, name)
        for x, name in ((vectors, "some"), (vectors * factors, "scaled"))
    )
    texts = list(pairs.sentences[:30])
    plain, equal = (
        [
            encode_weightings(one, texts, ["mean"], {"equal": None}, equal_lengths=unit)
            for one in (glove, scaled)
        ]
        for unit in (False, True)
    )
    assert np.allclose(*(one["mean", "equal"] for one in equal), atol=1e-5)
    assert not np.allclose(*(one["mean", "equal"] for one in plain), atol=0.1)


def test_the_command_asks_all_questions_of_one_set(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertflow_lite.experiments.runs.data_file", lambda _: tmp_path)
    command = ["controls", "--what", "parts", "--model", SMALL, "--layers", "1", "--seeds", "1",
               "--data", "mini-sts", "--device", "cpu", "--store", "p"]  # fmt: skip
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    run = json.loads((tmp_path / "controls" / "p.json").read_text())
    assert list(run["results"]) == [
        "halves",
        "spectrum",
        "holes",
        "frequency",
    ]  # no other sentences
    assert run["how"]["cpu_seconds"] > 0 and "different sentences" in run["how"]["fit_on"]
    frequency = {row["what"]: row for row in run["results"]["frequency"]}
    # After a layer normalization that nobody trained, all states are equally long.
    assert frequency["length of a state, by the frequency of its token"]["spread"] < 0.01
    assert abs(frequency["equal lengths"]["value"][0]) < 0.1
