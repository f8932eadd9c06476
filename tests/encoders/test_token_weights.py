"""Weights of tokens in the mean: by hand, as properties, in the cache, saved and exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

import bertflow_lite as bf
from bertflow_lite.encoders.pooling import pool
from bertflow_lite.encoders.token_weights import KINDS, TokenWeights, count_weights
from bertflow_lite.encoders.transformer import Encoder

TEXTS = ["the cat sat on the mat", "a dog ran", "the red cat", "the the the", "it is not blue"]


@pytest.fixture
def encoder(tiny_bert_folder: Path, own_cache: Path) -> Encoder:
    found = bf.load_encoder(tiny_bert_folder, max_length=24, device="cpu")
    assert isinstance(found, Encoder)
    return found


# --- the weights themselves --------------------------------------------------------------------


def test_each_kind_by_hand() -> None:
    """Token 0 is special and in all three; 1 is in two, and three times in all; 3 is in none."""
    rows = [[0, 1, 1, 2, 0], [0, 1, 0], [0, 2, 0]]
    idf = count_weights(rows, 4, "idf", special=[0]).values
    assert_allclose(idf, [1, np.log(4 / 3) + 1, np.log(4 / 3) + 1, np.log(4) + 1], rtol=1e-6)
    less = count_weights(rows, 4, "idf-1", special=[0]).values
    assert_allclose(less, idf - 1, atol=1e-6)
    sif = count_weights(rows, 4, "sif", special=[0]).values
    assert_allclose(sif, [0, 1e-3 / (1e-3 + 3 / 5), 1e-3 / (1e-3 + 2 / 5), 1], rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=2, max_size=12),
    st.sampled_from(["idf", "idf-1", "sif"]),
)
def test_the_rarer_the_heavier(rows: list[list[int]], kind: str) -> None:
    if kind == "idf-1" and all(set(row) == set(range(11)) for row in rows):
        return
    values = count_weights(rows, 11, kind).values
    held = [sum(token in row for row in rows) for token in range(11)]
    often = [sum(row.count(token) for row in rows) for token in range(11)]
    order = np.argsort(often if kind == "sif" else held, kind="stable")
    assert (np.diff(values[order]) <= 1e-6).all()
    assert values[10] == values.max() and np.isfinite(values).all() and values.min() >= 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "shape"),
        ([[1.0]], "shape"),
        (3.0, "shape"),
        ([1.0, np.nan], "finite"),
        ([1.0, np.inf], "finite"),
        ([1.0, -0.1], "from 0 to 1,000,000"),
        ([1.0, 2e6], "from 0 to 1,000,000"),
        ([0.0, 0.0], "all token weights are 0"),
        (["a"], "must be numbers"),
        ([[1.0], [1.0, 2.0]], "must be numbers"),
        (None, "finite|shape"),
    ],
)
def test_what_is_no_weights_is_refused(values: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TokenWeights(values)  # type: ignore[arg-type]


def test_equal_values_are_equal_weights_and_nobody_changes_them() -> None:
    given_values = np.array([1.0, 2.0])
    weights = TokenWeights(given_values)
    before = weights.fingerprint
    given_values[0] = 9
    assert weights == TokenWeights([1, 2], "other") and hash(weights) == hash(TokenWeights([1, 2]))
    assert weights != TokenWeights([1, 3]) and weights != [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        weights.values[0] = 5
    assert weights.fingerprint == before and len(before) == 16


# --- the mean ----------------------------------------------------------------------------------

numbers = st.floats(-1e3, 1e3, width=32)


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float32, (2, 5, 3), elements=numbers), st.integers(0, 5), st.integers(1, 5))
def test_equal_weights_give_the_plain_mean_exactly(states: np.ndarray, n: int, m: int) -> None:
    mask = (torch.arange(5)[None] < torch.tensor([[n], [m]])).long()
    x = torch.from_numpy(states)
    plain = pool(x, mask, "mean:1")
    assert torch.equal(pool(x, mask, "mean:1", torch.ones(2, 5)), plain)
    assert torch.equal(pool(x, mask, "mean:1", torch.full((2, 5), 4.0)), plain)
    assert n or not plain[0].any()


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float32, (1, 4, 3), elements=numbers),
    hnp.arrays(np.float32, (1, 4), elements=st.floats(0, 100, width=32)),
)
def test_the_weighted_mean_is_that_of_numpy(states: np.ndarray, weights: np.ndarray) -> None:
    found = pool(
        torch.from_numpy(states), torch.ones(1, 4).long(), "mean:1", torch.from_numpy(weights)
    ).numpy()[0]
    if weights.sum() < 1e-30:  # none that counts
        assert np.isfinite(found).all()
        return
    expected = np.average(states[0].astype(float), axis=0, weights=weights[0].astype(float))
    assert_allclose(found, expected, atol=1e-2)
    assert (found <= states[0].max(axis=0) + 1e-2).all()


def test_padding_that_is_not_a_number_does_not_count() -> None:
    states = torch.tensor([[[1.0], [float("nan")]]])
    found = pool(states, torch.tensor([[1, 0]]), "mean:0", torch.tensor([[0.5, 3.0]]))
    assert found.tolist() == [[1.0]]


def test_a_sentence_of_tokens_that_do_not_count_is_zero(encoder: Encoder) -> None:
    values = np.ones(len(encoder.tokenizer))
    values[encoder.tokenizer(TEXTS[3])["input_ids"]] = 0
    vectors = encoder.encode(TEXTS, 1, weights=TokenWeights(values))
    assert not vectors[3].any() and vectors[[0, 1, 2, 4]].any(axis=1).all()
    sif = encoder.token_weights(TEXTS, "sif")
    assert not encoder.encode([""], 1, weights=sif).any()  # [CLS] and [SEP] alone


@pytest.mark.parametrize("layers", [1, "last2avg", "first-last"])
def test_the_encoder_weighs_by_hand(encoder: Encoder, layers: bf.encoders.pooling.LayersArgument):
    weights = encoder.token_weights(TEXTS)
    found = encoder.encode(TEXTS, layers, weights=weights)
    choice = bf.encoders.pooling.resolve_layers(layers, encoder.n_layers + 1)
    for row, text in enumerate(TEXTS):
        (batch,) = encoder.hidden_states([text])
        counts = weights.values[batch.ids[0].numpy()]
        states = np.mean([batch.states[i][0].numpy() for i in choice.indices], axis=0)
        assert_allclose(found[row], counts @ states / counts.sum(), atol=1e-5)


def test_weights_are_counted_as_the_encoder_reads(encoder: Encoder) -> None:
    weights = encoder.token_weights(TEXTS)
    the, cls, tree = encoder.tokenizer.convert_tokens_to_ids(["the", "[CLS]", "tree"])
    assert weights.kind == "idf" and len(weights.values) == len(encoder.tokenizer)
    assert weights.values[cls] == 1
    assert weights.values[the] == pytest.approx(np.log(6 / 4) + 1)
    assert weights.values[tree] == pytest.approx(np.log(6) + 1) == weights.values.max()
    encoder.max_length = 3  # what is cut off is not read, so not counted
    assert encoder.token_weights(TEXTS).values[the] == pytest.approx(np.log(6 / 4) + 1)
    mat = encoder.tokenizer.convert_tokens_to_ids("mat")
    assert encoder.token_weights(TEXTS).values[mat] == pytest.approx(np.log(6) + 1)


# --- the cache ---------------------------------------------------------------------------------


def test_the_cache_keeps_weighted_and_equal_vectors_apart(encoder: Encoder) -> None:
    first, second = encoder.token_weights(TEXTS), encoder.token_weights(TEXTS, "sif")
    runs = []
    run = encoder._run
    encoder._run = lambda *a: runs.append(1) or run(*a)  # type: ignore
    found = [encoder.encode(TEXTS, 1, weights=w) for w in (None, first, second)]
    done = len(runs)
    assert done >= 3
    again = [encoder.encode(TEXTS, 1, weights=w) for w in (second, None, first)]
    assert len(runs) == done  # all three came from the cache
    for one, other in zip([found[2], found[0], found[1]], again, strict=True):
        assert_array_equal(one, other)
    assert not np.allclose(found[0], found[1]) and not np.allclose(found[1], found[2])
    same = TokenWeights(first.values.copy(), "by another name")
    assert_array_equal(encoder.encode(TEXTS, 1, weights=same), found[1])
    assert len(runs) == done


# --- what is refused ---------------------------------------------------------------------------


def test_mistakes_are_named(encoder: Encoder) -> None:
    weights = encoder.token_weights(TEXTS)
    with pytest.raises(ValueError, match="found for another encoder"):
        encoder.encode(TEXTS, 1, weights=TokenWeights([1.0, 2.0]))
    with pytest.raises(ValueError, match="token_weights finds"):
        encoder.encode(TEXTS, 1, weights=weights.values)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="'cls' takes one token"):
        encoder.encode(TEXTS, [1, "cls"], weights=weights)
    with pytest.raises(ValueError, match="Did you mean 'idf'"):
        encoder.token_weights(TEXTS, "idff")
    with pytest.raises(ValueError, match="one string"):
        encoder.token_weights("the cat")


def test_word_vectors_weigh_their_words() -> None:
    words = bf.WordVectorEncoder(np.eye(3, dtype=np.float32), ["a", "cat", "sat"], "three words")
    weights = words.token_weights(["a cat", "a", "a"])
    heavy = np.log(4 / 2) + 1
    expected = [[1 / (1 + heavy), heavy / (1 + heavy), 0], [0, 0, 0]]
    assert_allclose(words.encode(["A cat.", "dog"], weights=weights), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="found for another encoder"):
        words.encode(["a"], weights=TokenWeights([1.0]))


# --- as a step: fitted, cloned, saved, exported --------------------------------------------------


@pytest.fixture
def step(tiny_bert_folder: Path, own_cache: Path) -> bf.SentenceEncoder:
    return bf.SentenceEncoder(
        tiny_bert_folder, layers=1, weights="idf", max_length=24, device="cpu"
    )


def test_a_step_fits_the_weights_on_its_sentences(step, encoder: Encoder) -> None:
    with pytest.raises(NotFittedError):
        step.transform(TEXTS)
    found = step.fit(TEXTS).transform(TEXTS)
    assert_array_equal(found, encoder.encode(TEXTS, 1, weights=encoder.token_weights(TEXTS)))
    other = step.fit(TEXTS[:2]).transform(TEXTS)
    assert not np.allclose(found, other)
    assert not hasattr(clone(step), "weights_")
    step.set_params(weights="sif")
    with pytest.raises(ValueError, match="fitted with weights 'idf', not 'sif'"):
        step.transform(TEXTS)
    plain = clone(step).set_params(weights=None).fit(TEXTS).transform(TEXTS)
    assert_array_equal(plain, encoder.encode(TEXTS, 1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": "tfidf"}, "Did you mean 'idf'"),
        ({"weights": 1}, "no token weights 1"),
        ({"layers": "cls"}, "takes one token"),
    ],
)
def test_mistakes_of_a_step_are_named_by_fit(step, changes, words) -> None:
    with pytest.raises(ValueError, match=words):
        step.set_params(**changes).fit(TEXTS)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_saved_pipeline_weighs_as_before(step, tmp_path, tiny_bert_folder, kind) -> None:
    pipeline = make_pipeline(step.set_params(weights=kind), bf.Standardizer()).fit(TEXTS)
    path = bf.save(pipeline, tmp_path / "p.safetensors", card=True)
    loaded = bf.load(path, model=str(tiny_bert_folder), device="cpu")
    assert_array_equal(loaded.transform(TEXTS), pipeline.transform(TEXTS))
    assert loaded[0].weights_ == pipeline[0].weights_ and loaded[0].weights == kind
    assert f"weights='{kind}'" in path.with_suffix(".md").read_text(encoding="utf-8")
    again = bf.load(bf.save(loaded, path, overwrite=True), model=str(tiny_bert_folder))
    assert_array_equal(again.transform(TEXTS), pipeline.transform(TEXTS))
    loaded[0].set_params(weights=None)
    with pytest.raises(ValueError, match=f"fitted with weights {kind}, not None"):
        loaded.transform(TEXTS)


def test_weights_of_another_vocabulary_in_a_file_are_refused(step, tmp_path, tiny_bert_folder):
    from bertflow_lite.saving import read_file, write_file

    path = bf.save(make_pipeline(step, bf.Standardizer()).fit(TEXTS), tmp_path / "p.safetensors")
    content, arrays = read_file(path)
    write_file(path, content, arrays | {"0.token_weights": np.ones(3, np.float32)})
    loaded = bf.load(path, model=str(tiny_bert_folder), device="cpu")
    with pytest.raises(ValueError, match="weights for 3 tokens"):
        loaded.transform(TEXTS)


@pytest.mark.parametrize("layers", [1, "last", "first-last"])
def test_sentence_transformers_own_module_weighs_alike(step, tmp_path, layers) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    pipeline = make_pipeline(step.set_params(layers=layers, weights="sif"), bf.Whitener(4))
    ours = pipeline.fit(TEXTS).transform(TEXTS)
    model = bf.to_sentence_transformer(pipeline)
    kinds = [type(module).__name__ for module in model]
    assert kinds.index("WordWeights") == kinds.index("Pooling") - 1
    assert_allclose(model.encode(TEXTS), ours, rtol=0, atol=1e-5 * max(1, np.abs(ours).max()))
    model.save(str(tmp_path / "model"))
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    with pytest.raises(ValueError, match="brings its own"):
        bf.to_sentence_transformer(pipeline, weights=pipeline[0].weights_)


def test_a_search_may_choose_the_weights(step) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    texts, pets = TEXTS * 4, [text == TEXTS[1] for text in TEXTS * 4]
    search = GridSearchCV(
        make_pipeline(step, LogisticRegression()),
        {"sentenceencoder__weights": [None, *KINDS]},
        cv=2,
        error_score="raise",
    )
    assert search.fit(texts, pets).best_score_ > 0.7
    assert len(search.cv_results_["params"]) == 1 + len(KINDS)
