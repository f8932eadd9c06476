"""Prompts, text given twice, and static vectors: which tokens are pooled, and what is stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite.cli.common import app
from bertflow_lite.experiments import today
from bertflow_lite.experiments.today import WAYS, StaticEncoder, Way, encode_ways

TEXTS = ["A man {0} sat", "It rained all day", "a"]


@pytest.fixture(scope="module")
def bert(cache_folder: Path) -> bf.Encoder:
    encoder = bf.load_encoder("mini-bert", device="cpu", cache=False)
    assert isinstance(encoder, bf.Encoder)
    return encoder


@pytest.fixture(scope="module")
def causal(cache_folder: Path) -> bf.Encoder:
    encoder = bf.load_encoder("smollm2", device="cpu", cache=False, max_length=128)
    assert isinstance(encoder, bf.Encoder)
    return encoder


def read(encoder: bf.Encoder, way: Way, text: str) -> list[str]:
    """Give the tokens that are pooled, as text."""
    whole = way.template.format(text)
    spans = encoder.tokenizer(whole, return_offsets_mapping=True)["offset_mapping"]
    return [whole[slice(*spans[i])].strip() for i in today._pooled(way, text, spans)]


@pytest.mark.parametrize("text", TEXTS)
def test_only_the_tokens_of_a_copy_are_pooled(causal: bf.Encoder, text: str) -> None:
    first, second = WAYS["twice, first copy"], WAYS["twice, second copy"]
    assert " ".join(read(causal, second, text)).replace(" ", "") == text.replace(" ", "")
    assert read(causal, first, text) == read(causal, second, text)
    whole = second.template.format(text)
    spans = causal.tokenizer(whole, return_offsets_mapping=True)["offset_mapping"]
    kept = today._pooled(second, text, spans)
    assert kept == list(range(len(spans) - len(kept), len(spans)))  # the end, and nothing else
    assert set(kept).isdisjoint(today._pooled(first, text, spans))


def test_the_last_token_of_the_prompt_is_pooled(causal: bf.Encoder, bert: bf.Encoder) -> None:
    assert read(causal, WAYS["prompt, last token"], "A cat sat.") == ['"']
    assert read(bert, Way("{0}", "last"), "the cat sat") == ["sat"]  # not [SEP]
    found = encode_ways(causal, ["A cat sat."], ["last"], WAYS)["last", "prompt, last token"]
    ((_, _, _, states),) = causal.hidden_states(
        [WAYS["prompt, mean"].template.format("A cat sat.")]
    )
    assert np.allclose(found[0], states[-1][0, -1].numpy(), atol=1e-4)


def test_a_first_copy_knows_nothing_of_the_second(causal: bf.Encoder) -> None:
    ways = {
        "alone": Way("Rewrite the sentence: {0}", 0),
        "first": WAYS["twice, first copy"],
        "second": WAYS["twice, second copy"],
    }
    found = encode_ways(causal, ["A man sat", "It rained all day"], ["15"], ways)
    alone, first, second = (found["15", name] for name in ways)
    assert np.allclose(alone, first, rtol=1e-3, atol=1e-2)
    assert not np.allclose(first, second, rtol=1e-1, atol=1e-1)


def test_the_plain_mean_is_the_encoders_own(bert: bf.Encoder) -> None:
    texts = ["the cat sat on the mat.", "a dog ran", "the end of the day"]
    ways = {name: WAYS[name] for name in ("mean", "mean, idf")}
    found = encode_ways(bert, texts, ["last2avg", "1"], ways)
    counts = bert.token_weights(texts)
    for layers in ("last2avg", "1"):
        assert np.allclose(found[layers, "mean"], bert.encode(texts, layers), atol=1e-5)
        weighed = bert.encode(texts, layers, weights=counts)
        assert np.allclose(found[layers, "mean, idf"], weighed, atol=1e-5)
    short = bf.load_encoder("mini-bert", device="cpu", cache=False, max_length=8)
    assert isinstance(short, bf.Encoder)
    with pytest.raises(ValueError, match="would be cut off"):
        encode_ways(short, texts, ["last"], WAYS)


def test_a_token_alone_has_the_encoders_reduced_vector(cache_folder: Path) -> None:
    bert = bf.load_encoder("random-bert-32x1:0", device="cpu", cache=False)
    assert isinstance(bert, bf.Encoder)
    vectors = today.token_vectors(bert)
    tokens = bert.tokenizer.convert_ids_to_tokens(range(len(vectors)))
    words = ["rain", "music"]
    ids = bert.tokenizer.convert_tokens_to_ids(words)
    assert np.allclose(vectors[ids], bert.encode(words, "last"), atol=1e-4)
    small = today.reduce_vectors(vectors, tokens, 16)
    static = StaticEncoder(small, bert.tokenizer, "static")
    assert static.dim == 16 and np.allclose(static.encode(words), small[ids])
    assert np.allclose(static.encode(["rain music"])[0], small[ids].mean(axis=0), atol=1e-5)
    # A rotation and a shift: distances between tokens are kept as far as 16 directions can.
    whole = today.reduce_vectors(vectors, tokens, bert.dim)
    gaps = [np.linalg.norm(x[ids[0]] - x[ids[1]]) for x in (vectors, whole, small)]
    assert gaps[1] == pytest.approx(gaps[0], rel=1e-3) and gaps[2] < gaps[1]


def test_weights_follow_the_order_of_the_vocabulary() -> None:
    weights = today.zipf_weights(["[PAD]", "[unused1]", "the", "cat", "giraffe"])
    shares = np.array([1 / 2, 1 / 3, 1 / 4, 1 / 5]) / (1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)
    assert np.allclose(weights[[0, 2, 3, 4]], 1e-4 / (1e-4 + shares), rtol=1e-5)


def test_gains_are_over_the_same_way_and_leads_over_the_first() -> None:
    pairs = bf.load_sts("mini-sts").select(np.arange(60))
    texts = list(dict.fromkeys(pairs.sentences))
    rng = np.random.default_rng(0)
    vectors = {("last", name): rng.normal(size=(len(texts), 4)).astype("f") for name in "ab"}
    rows = {(r["way"], r["calibrator"]): r for r in today.compare(pairs, vectors, ["none", "sn"])}
    level = {key: row["all"][0] for key, row in rows.items()}
    assert rows["b", "sn"]["gain"][0] == pytest.approx(
        level["b", "sn"] - level["b", "none"], abs=0.02
    )
    assert rows["b", "sn"]["lead"][0] == pytest.approx(
        level["b", "sn"] - level["a", "none"], abs=0.02
    )
    assert rows["a", "none"]["gain"] is None and rows["a", "none"]["lead"] is None
    by_row = [texts.index(text) for text in pairs.sentences]
    score = bf.score_sts(pairs, vectors["last", "b"][by_row])
    assert level["b", "none"] == pytest.approx(score.all, abs=0.01)


def test_the_command_stores_and_says_what_is_wrong(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertflow_lite.experiments.runs.data_file", lambda _: tmp_path)
    command = ["today", "--what", "prompts", "--model", "random-bert-32x2", "--data", "mini-sts",
               "--some", "30", "--calibrate", "none,sn", "--device", "cpu",
               "--store", "p"]  # fmt: skip
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    run = json.loads((tmp_path / "today" / "p.json").read_text())
    assert len(run["results"]) == 2 * len(WAYS) and run["how"]["pairs"] == 30
    assert run["how"]["ways"]["twice, second copy"]["pooled"] == 1
    for wrong, said in (
        (["--what", "x"], "prompts or static"),
        (["--model", "glove"], "transformer"),
    ):
        failed = CliRunner().invoke(app, [*command, *wrong])
        assert failed.exit_code == 1 and said in failed.stderr


def test_stored_scores_of_input_vectors_come_back(real_data: Path) -> None:
    run = bf.load_run("today", "static-minilm")
    old = {(r["way"], r["calibrator"]): r["all"][0] for r in run["results"] if r["data"] == "sts16"}
    pairs = bf.load_sts("sts16")
    encoder = bf.load_encoder("minilm", device="cpu", cache=False)
    assert isinstance(encoder, bf.Encoder) and encoder.fingerprint == run["how"]["fingerprint"]
    table = encoder.model.get_input_embeddings().weight.detach().numpy()
    static = StaticEncoder(table, encoder.tokenizer, "input vectors")
    score = bf.score_sts(pairs, static.encode(pairs.sentences)).all
    assert score == pytest.approx(old["input vectors", "none"], abs=0.01)


@pytest.mark.slow
@pytest.mark.thorough
def test_stored_scores_of_prompts_come_back(real_data: Path) -> None:
    run = bf.load_run("today", "prompts-smollm2")
    old = {(r["way"], r["calibrator"]): r["all"][0] for r in run["results"] if r["data"] == "stsb"}
    how = run["how"]
    pairs = today.draw(bf.load_sts("stsb"), how["pairs"])
    assert pairs.fingerprint == how["data"]["stsb"]
    encoder = bf.load_encoder(
        "smollm2", device="cpu", cache=False, max_length=how["max_length"],
        precision=how["precision"].removeprefix("torch."),
    )  # fmt: skip
    assert isinstance(encoder, bf.Encoder)
    ways = {name: WAYS[name] for name in ("mean", "last token")}
    vectors = encode_ways(encoder, list(dict.fromkeys(pairs.sentences)), how["layers"], ways)
    for row in today.compare(pairs, vectors, ["none"]):
        # Processors round bfloat16 in their own ways.
        assert row["all"][0] == pytest.approx(old[row["way"], "none"], abs=1.0)
