"""One thing changed in the first steps of pre-training: texts thinned, biases, measurements."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite.cli.common import app
from bertflow_lite.experiments.pretraining import snapshots, variants
from bertflow_lite.experiments.pretraining.corpus import PackedCorpus, pack_corpus
from bertflow_lite.experiments.pretraining.loop import TrainingRun, save_model
from bertflow_lite.experiments.pretraining.recipe import RECIPES, Recipe, make_masked_model
from bertflow_lite.experiments.pretraining.snapshots import prepare
from bertflow_lite.experiments.pretraining.variants import (
    STEPS,
    VARIANTS,
    Variant,
    thin_corpus,
    train_variant,
)

TINY = RECIPES["tiny"]
MARKS = SimpleNamespace(
    all_special_ids=[0, 1, 2, 3], cls_token_id=1, sep_token_id=2, pad_token_id=0
)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n".join(bf.load_sts("mini-sts").sentences), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(text, tokenizer) -> PackedCorpus:
    return pack_corpus(text, tokenizer, length=TINY.length)


@pytest.fixture(scope="module")
def material(corpus, tokenizer):
    some = bf.load_sts("mini-sts").select(range(0, 420, 4))
    return prepare(corpus, tokenizer, some, least_pairs=1)


@pytest.fixture
def small(monkeypatch) -> None:
    """Measure with little of everything."""
    monkeypatch.setattr(variants, "N_TERMS", 20)
    monkeypatch.setattr(snapshots, "FLOW_STEPS", 1)


def packed(pieces: list[int]) -> PackedCorpus:
    """Rows of eight, not all of them full, as `pack_corpus` makes them."""
    sizes = itertools.cycle([6, 2, 5, 6, 1])
    parts, rest = [], pieces
    while rest:
        size = next(sizes)
        parts, rest = [*parts, rest[:size]], rest[size:]
    rows = [[1, *part, 2, *[0] * (6 - len(part))] for part in parts]
    array = np.array(rows, np.uint16)
    return PackedCorpus(array, np.bincount(pieces, minlength=12), "a text")


def words_of(corpus: PackedCorpus) -> list[int]:
    return [int(i) for i in corpus.rows.ravel() if i > 3]


@given(st.lists(st.integers(4, 11), min_size=1, max_size=60), st.integers(1, 4), st.booleans())
def test_a_thinned_text_is_a_part_of_the_text(pieces: list[int], each: int, equal: bool) -> None:
    often = [piece for piece, n in Counter(pieces).items() if n >= each]
    if not often:
        with pytest.raises(ValueError, match=f"no piece occurs {each} times"):
            thin_corpus(packed(pieces), MARKS, each, equal=equal)
        return
    thin = thin_corpus(packed(pieces), MARKS, each, equal=equal)
    kept = words_of(thin)
    rest = iter(pieces)
    assert all(piece in rest for piece in kept)  # in the order of the text
    assert len(kept) == each * len(often) == thin.n_tokens
    assert Counter(kept) == Counter({i: int(n) for i, n in enumerate(thin.counts) if n})
    if equal:
        assert Counter(kept) == dict.fromkeys(often, each)
    for row in thin.rows:  # a mark, pieces, a mark, padding
        assert row[0] == 1
        assert (row > 3).sum() == np.flatnonzero(row == 2)[0] - 1
        assert (row[np.flatnonzero(row == 2)[0] + 1 :] == 0).all()
    lengths = [Counter((corpus.rows > 3).sum(1).tolist()) for corpus in (thin, packed(pieces))]
    lengths[0][int((thin.rows[-1] > 3).sum())] -= 1  # the last one is what is left
    assert lengths[0] <= lengths[1]


def test_thinning_is_decided_by_its_seed(corpus, tokenizer) -> None:
    one, same, other = (
        thin_corpus(corpus, tokenizer, 3, equal=True, seed=seed) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one.rows, same.rows)
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert not np.array_equal(one.rows, other.rows)


def test_a_bias_starts_where_the_recipe_says(corpus, tokenizer) -> None:
    run = {}
    for bias, tied in itertools.product(("log p", "zero", "none"), (True, False)):
        recipe = dataclasses.replace(TINY, bias=bias, tied=tied)
        model = make_masked_model(recipe, tokenizer, corpus.counts, 0)
        start = model.get_output_embeddings().bias.detach().clone()
        assert bool(start.any()) == (bias == "log p")
        training = TrainingRun(corpus, tokenizer, recipe)
        for _ in range(3):
            training.step_once(0.0)
        moved = training.model.get_output_embeddings().bias.detach()
        assert torch.equal(moved, start) == (bias == "none")
        run[bias, tied] = training.running
    assert run["log p", True] < run["zero", True] - 1  # frequencies are known, or not yet


def test_an_unknown_bias_is_refused() -> None:
    with pytest.raises(ValueError, match="bias='unigram': give one of 'log p', 'zero', 'none'"):
        Recipe(bias="unigram")


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_holds_each_weight_once(corpus, tokenizer, tmp_path: Path, tied) -> None:
    model = make_masked_model(dataclasses.replace(TINY, tied=tied), tokenizer, corpus.counts, 0)
    save_model(tmp_path / "model", model, tokenizer)
    weights = (tmp_path / "model" / "model.safetensors").stat().st_size
    needed = 2 * sum(p.numel() for p in model.parameters())
    assert needed <= weights < 1.02 * needed + 20_000


@pytest.mark.parametrize("kind", ["whole", "thinned", "equal"])
def test_a_variant_is_measured_on_its_way(corpus, tokenizer, material, kind, small) -> None:
    variant = Variant("small", "to see", {"tied": kind != "thinned"}, kind)
    options = {"recipe": TINY, "steps": (0, 2), "each": 5}
    found = train_variant(corpus, tokenizer, variant, material, **options)
    assert [one["step"] for one in found["snapshots"]] == [0, 2]
    first, last = found["snapshots"][0], found["snapshots"][-1]
    assert first["tokens"] == 0 < last["tokens"]
    for one in found["snapshots"]:
        assert -1 <= one["norm"]["input"] <= 1
        assert (one["norm"]["input"] == one["norm"]["output"]) == variant.changes["tied"]
        assert set(one["sts"]) == {"none", "sn", "whiten", "flow"}
    if kind == "equal":
        assert found["n_tokens"] == 5 * found["n_pieces"]
        again = train_variant(corpus, tokenizer, variant, material, **options)
        assert again["snapshots"] == found["snapshots"]


def test_the_command_keeps_what_is_finished(
    text: Path, tokenizer, monkeypatch, own_cache, small
) -> None:
    few = (VARIANTS[0], VARIANTS[-1])
    few_pieces = SimpleNamespace(tokenizer=tokenizer)  # a step takes as long as there are pieces
    monkeypatch.setattr(variants, "load_model", lambda *_, **__: few_pieces)
    monkeypatch.setattr(variants, "VARIANTS", few[:1])
    monkeypatch.setattr(variants, "EACH", 5)
    command = ["pretrain-variants", "--corpus", str(text), "--config", "tiny", "--steps", "1"]
    command += ["--data", "mini-sts", "--device", "cpu"]
    runner = CliRunner()
    first = runner.invoke(app, command)
    assert first.exit_code == 0, first.output
    monkeypatch.setattr(variants, "VARIANTS", few)
    trained = []
    real = variants.train_variant

    def train(*args, **options):
        trained.append(args[2].name)
        return real(*args, **options)

    monkeypatch.setattr(variants, "train_variant", train)
    whole = runner.invoke(app, command)
    assert whole.exit_code == 0, whole.output
    assert trained == [few[1].name]  # the first one was kept
    assert all(variant.name in whole.output for variant in few)


def test_the_stored_run_is_whole() -> None:
    run = bf.load_run("pretraining", "variants")
    found = run["results"]["variants"]
    assert [one["name"] for one in found] == [variant.name for variant in VARIANTS]
    assert all(one["changes"] == v.changes for one, v in zip(found, VARIANTS, strict=True))
    assert run["results"]["settings"]["steps"] == list(STEPS)
    for one in found:
        assert [snapshot["step"] for snapshot in one["snapshots"]] == list(STEPS)
        assert one["snapshots"][-1]["held_out_loss"] < one["snapshots"][0]["held_out_loss"]
    equal = next(one for one in found if one["text"] == "equal")
    thinned = next(one for one in found if one["text"] == "thinned")
    each = run["results"]["settings"]["each"]
    assert equal["n_tokens"] == thinned["n_tokens"] == each * equal["n_pieces"]


def test_the_bias_decides_where_frequency_goes() -> None:
    """What chapter 14 says of the two starts, on the stored runs."""
    ours = bf.load_run("pretraining", "mini-bert")["results"]
    zero = bf.load_run("pretraining", "bias-from-zero")["results"]
    recipes = [one["training"]["recipe"] for one in (ours, zero)]
    assert recipes[1]["bias"] == "zero"
    assert {**recipes[1], "bias": "log p"} == {**recipes[0], "bias": "log p"}
    assert ours["training"]["seed"] == zero["training"]["seed"]
    assert ours["corpus"] == zero["corpus"]
    at = [
        {one["step"]: one for one in run["snapshots"] if one["step"] <= 1000}
        for run in (ours, zero)
    ]
    assert list(at[0]) == list(at[1])
    for step, one in at[1].items():  # the same rows in the same order
        assert one["tokens"] == at[0][step]["tokens"]
    norms = [[one["words"]["norm_log_frequency"]["spearman"] for one in run.values()] for run in at]
    assert min(norms[1]) < -0.5 < -0.2 < min(norms[0])
    slopes = [run[100]["terms"]["log_p_in"]["vectors_slope"] for run in at]
    assert slopes[0] < 0.1 < 0.8 < slopes[1]
    flows = [run[1000]["sts"]["last2avg"]["flow"][0] for run in at]
    assert abs(flows[0] - flows[1]) < 2
    loud = [[one["words"]["frequency"]["explained"][0] for one in run.values()] for run in at]
    assert max(loud[0]) < 0.13 and loud[1][-1] > 0.8
    assert min(one["words"]["frequency"]["explained"][0] for s, one in at[1].items() if s > 200) > (
        0.75
    )


def test_without_frequencies_norms_know_nothing_of_them() -> None:
    """What chapter 14 says of the text in which all words are equally frequent."""
    found = bf.load_run("pretraining", "variants")["results"]["variants"]
    by_name = {one["name"]: one["snapshots"] for one in found}
    for name in ("equal frequencies", "equal frequencies, bias from zero"):
        assert max(abs(one["norm"]["input"]) for one in by_name[name]) < 0.05
    whole, *others = (by_name[name] for name in ("as the book's model", "thinned text"))
    for other in (*others, by_name["equal frequencies"]):  # a step reads as much
        assert other[-1]["tokens"] == pytest.approx(whole[-1]["tokens"], rel=0.01)
    falls = {
        name: by_name[name][0]["sts"]["none"] - min(one["sts"]["none"] for one in by_name[name][:4])
        for name in by_name
    }
    assert falls["as the book's model"] < 1 < falls["equal frequencies, bias from zero"]
    assert falls["equal frequencies, bias from zero"] < 0.6 * falls["bias from zero"]
    assert max(one["sts"]["none"] for one in by_name["thinned text"]) > 58
