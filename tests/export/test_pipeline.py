"""Saved pipelines and calibrators: the same vectors after loading; what does not fit is refused."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import bertflow_lite as bf
from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import Standardizer, TopDirectionRemover, Whitener
from bertflow_lite.encoders.sentence_encoder import SentenceEncoder
from bertflow_lite.export.pipeline import load, read_about, save
from bertflow_lite.saving import Savable, write_file

TEXTS = [f"the {a} {b}" for a in ("cat", "dog", "tree") for b in ("sat", "ran", "is", ".")]


def embeddings(n: int = 60, dim: int = 6, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim)) + 3).astype(dtype)


def small_flow(**changes: Any) -> FlowCalibrator:
    return FlowCalibrator(**{"width": 4, "depth": 2, "device": "cpu", **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saved.safetensors"


@pytest.fixture
def step(tiny_bert_folder: Path, own_cache: Path) -> SentenceEncoder:
    return SentenceEncoder(str(tiny_bert_folder), layers=(0, -1), max_length=24, device="cpu")


# ---------------------------------------------------------------------------------- the way through

calibrators = st.one_of(
    st.builds(Standardizer),
    st.builds(TopDirectionRemover, k=st.integers(0, 2)),
    st.builds(Whitener, n_components=st.one_of(st.none(), st.integers(1, 3))),
    st.builds(
        small_flow,
        levels=st.integers(1, 4),
        depth=st.integers(1, 3),
        permutation=st.sampled_from(["random", "reverse", "none"]),
        actnorm=st.booleans(),
        coupling=st.booleans(),
        data_init=st.booleans(),
        optimizer=st.sampled_from(["adam", "released-code"]),
        rotation=st.sampled_from(["none", "pca"]),
        noise=st.sampled_from([0.0, 0.5]),
        max_grad_norm=st.one_of(st.none(), st.floats(0.1, 2)),
        random_state=st.integers(0, 9),
        batch_size=st.sampled_from([8, np.int64(16)]),
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(calibrators, min_size=1, max_size=3),
    in_pipeline=st.booleans(),
    dim=st.integers(3, 9),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 99),
)
def test_what_is_loaded_gives_the_same_vectors_bit_for_bit(
    tmp_path_factory, steps, in_pipeline, dim, dtype, seed
):
    x = embeddings(dim=dim, dtype=dtype, seed=seed)
    if len(steps) > 1 or in_pipeline:
        calibrator: Any = Pipeline([(f"step{i}", step) for i, step in enumerate(steps)])
    else:
        calibrator = steps[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nulled directions leave dimensions without spread
        try:
            calibrator.fit(x)
            z = calibrator.transform(x)
        except ValueError:  # too narrow for what comes next: nothing to save
            return
    loaded = load(save(calibrator, tmp_path_factory.mktemp("saved") / "c.safetensors"))
    assert type(loaded) is type(calibrator)
    again = loaded.transform(x)
    assert again.dtype == z.dtype
    assert_array_equal(again, z)
    if hasattr(calibrator, "inverse_transform"):
        assert_array_equal(loaded.inverse_transform(z), calibrator.inverse_transform(z))
    for before, after in zip(
        [step for _, step in getattr(calibrator, "steps", [("", calibrator)])],
        [step for _, step in getattr(loaded, "steps", [("", loaded)])],
        strict=True,
    ):
        of_machine = {"device", "progress"}
        assert type(after) is type(before)
        assert {k: v for k, v in after.get_params().items() if k not in of_machine} == {
            k: v for k, v in before.get_params().items() if k not in of_machine
        }
        if isinstance(before, FlowCalibrator):
            assert after.history_ == before.history_
            if before is steps[0]:  # it saw x itself
                assert after.bits_per_dim(x) == before.bits_per_dim(x)


def test_one_file_is_written_and_no_pickle_read(path, monkeypatch):
    assert save(small_flow().fit(embeddings()), path) == path
    assert list(path.parent.iterdir()) == [path]  # nothing left beside it

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("unpickled something")

    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    load(path)


def test_names_of_features_and_pipeline_steps_come_back(tmp_path):
    frame = pd.DataFrame(embeddings(), columns=[f"d{i}" for i in range(6)])
    loaded = load(save(Whitener(2).fit(frame), tmp_path / "w.safetensors"))
    assert list(loaded.feature_names_in_) == list(frame.columns)
    assert loaded.transform(frame).shape == (60, 2)
    pipeline = make_calibrator("sn+natsv:2").fit(embeddings())
    pipeline = load(save(pipeline, tmp_path / "p.safetensors"))
    assert list(pipeline.named_steps) == ["standardizer", "topdirectionremover"]


def test_a_flow_fitted_on_a_gpu_loads_anywhere(path):
    flow = small_flow().fit(embeddings())
    z = flow.transform(embeddings())
    flow.set_params(device="cuda:7", progress=True)  # as on the machine it was fitted on
    save(flow, path)
    assert b"cuda" not in path.read_bytes()
    loaded = load(path, device="cpu")
    assert loaded.device == "cpu" and next(loaded.flow_.parameters()).device.type == "cpu"
    assert not any(parameter.requires_grad for parameter in loaded.flow_.parameters())
    assert_array_equal(loaded.transform(embeddings()), z)


@pytest.mark.parametrize("name", ["sn", "flow", "sn+whiten:3"])
def test_what_dead_dimensions_are_centered_by_is_saved(path, name):
    x = embeddings()
    x[:, 2] = 50
    calibrator = small_flow() if name == "flow" else make_calibrator(name)
    with pytest.warns(UserWarning, match="no spread"):
        calibrator.fit(x)
    loaded = load(save(calibrator, path))
    assert_array_equal(loaded.transform(x), calibrator.transform(x))
    z = calibrator.transform(x)
    assert_array_equal(loaded.inverse_transform(z), calibrator.inverse_transform(z))


# ----------------------------------------------------------------------- the encoder comes along


@pytest.mark.parametrize("name", ["sn", "flow", "sn+natsv:1"])
def test_a_pipeline_from_sentences_to_vectors(step, path, name, tiny_bert_folder):
    calibrator = small_flow(batch_size=4) if name == "flow" else make_calibrator(name)
    parts = [part for _, part in getattr(calibrator, "steps", [("", calibrator)])]
    pipeline = make_pipeline(step, *parts).fit(TEXTS)
    save(pipeline, path, data=TEXTS)
    loaded = load(path, model=str(tiny_bert_folder), device="cpu")
    assert loaded[0].layers == (0, -1)
    assert_array_equal(loaded.transform(TEXTS), pipeline.transform(TEXTS))
    again = load(save(loaded, path, overwrite=True), model=str(tiny_bert_folder), device="cpu")
    assert_array_equal(again.transform(TEXTS), pipeline.transform(TEXTS))
    # Where the encoder lies is nobody's business, nor are the sentences.
    content = path.read_bytes()
    assert str(tiny_bert_folder.parent).encode() not in content
    assert TEXTS[0].encode() not in content
    assert load(path)[0].model == tiny_bert_folder.name


def test_another_encoder_other_layers_or_another_length_is_an_error(
    step, path, tiny_bert_folder, tiny_llama_folder
):
    save(make_pipeline(step, Standardizer()).fit(TEXTS), path)
    other = load(path, model=str(tiny_llama_folder), device="cpu")
    with pytest.raises(ValueError, match=r"fitted with the encoder 'tiny-bert.* Use what it was"):
        other.transform(TEXTS)
    for changes, said in (({"layers": "last"}, "hidden states"), ({"max_length": 8}, "max_length")):
        loaded = load(path, model=str(tiny_bert_folder), device="cpu")
        loaded[0].set_params(**changes)
        with pytest.raises(ValueError, match=f"was fitted with {said} .*, not .*fit the pipeline"):
            loaded.transform(TEXTS)
        loaded.fit(TEXTS).transform(TEXTS)  # as it says
    same = load(path, model=str(tiny_bert_folder), device="cpu")
    same[0].set_params(layers="embeddings-last")  # the same by another name
    same.transform(TEXTS)
    with pytest.raises(FileNotFoundError):  # only its own name is known
        load(path).transform(TEXTS)


def test_copies_of_a_loaded_pipeline_keep_the_check(step, path, tiny_llama_folder):
    save(make_pipeline(step, Standardizer()).fit(TEXTS), path)
    other = pickle.loads(pickle.dumps(load(path, model=str(tiny_llama_folder), device="cpu")))
    with pytest.raises(ValueError, match="fitted with the encoder"):
        other.transform(TEXTS)
    clone(other).fit(TEXTS).transform(TEXTS)  # what is fitted anew is for the new one


def test_word_vectors_have_no_layers(path):
    sentences = bf.load_sts("mini-sts").sentences[:100]
    pipeline = make_pipeline(SentenceEncoder("glove"), Whitener(16)).fit(sentences)
    loaded = load(save(pipeline, path))
    assert_array_equal(loaded.transform(sentences), pipeline.transform(sentences))
    assert read_about(path)["steps"][0]["facts"]["hidden_states"] is None


def test_a_model_that_names_nothing_is_refused(path):
    save(Standardizer().fit(embeddings()), path)
    with pytest.raises(ValueError, match="no encoder, so that model names nothing"):
        load(path, model="minilm")


# ----------------------------------------------------------------------------- what cannot be saved


@pytest.mark.parametrize(
    ("calibrator", "message"),
    [
        (FlowCalibrator(), "not fitted"),
        (make_pipeline(SentenceEncoder("glove"), Standardizer()), "not fitted"),
        (StandardScaler().fit(embeddings()), "'StandardScaler' cannot be saved; these can"),
        (None, "'NoneType' cannot be saved"),
        (Standardizer, "cannot be saved"),
        (make_pipeline("passthrough"), "no steps that do anything"),
        (make_pipeline("no-step", Standardizer()), "'no-step' cannot be saved|not fitted"),
        (make_pipeline(make_pipeline(Standardizer())).fit(embeddings()), "'Pipeline' cannot"),
        (type("Standardizer", (Standardizer,), {})().fit(embeddings()), "cannot be saved"),
        (small_flow(max_grad_norm=float("inf")).fit(embeddings()), "max_grad_norm=inf cannot be"),
    ],
)
def test_what_cannot_be_saved_leaves_nothing_behind(path, calibrator, message):
    with pytest.raises((ValueError, TypeError), match=message):
        save(calibrator, path)
    assert list(path.parent.iterdir()) == []


def test_a_broken_calibrator_is_not_saved(path):
    whitener = Whitener().fit(embeddings())
    whitener.variances_[0] = np.nan
    with pytest.raises(ValueError, match=r"variances_ holds a value that is not finite"):
        save(whitener, path)


def test_another_ending_or_a_folder_is_refused(tmp_path):
    fitted = Standardizer().fit(embeddings())
    with pytest.raises(ValueError, match=r"must end in .safetensors"):
        save(fitted, tmp_path / "c.pkl")
    (tmp_path / "d.safetensors").mkdir()
    with pytest.raises(ValueError, match="is a folder: name a file"):
        save(fitted, tmp_path / "d.safetensors", overwrite=True)


@pytest.mark.parametrize(
    ("calibrator", "change", "message"),
    [
        (small_flow(), {"width": 16}, "width was 4 in the fit of this FlowCalibrator and is 16"),
        (small_flow(), {"rotation": "pca"}, "rotation was 'none'"),
        (small_flow(random_state=None), {"random_state": 3}, "random_state was None"),
        (TopDirectionRemover(1), {"k": 2}, "k was 1 .* and is 2 now"),
        (Whitener(), {"n_components": 3}, "n_components was None"),
    ],
)
def test_settings_that_were_changed_since_the_fit_are_not_saved(
    tmp_path, calibrator, change, message
):
    x = embeddings()
    fitted = calibrator.fit(x)
    before = fitted.get_params()
    fitted.set_params(**change)
    for number, each in enumerate((fitted, make_pipeline(fitted))):
        with pytest.raises(ValueError, match=f"({message}).*changed since the fit. Fit"):
            save(each, tmp_path / f"{number}.safetensors")
    assert list(tmp_path.iterdir()) == []
    load(save(fitted.fit(x), tmp_path / "again.safetensors"))  # as it says
    fitted.set_params(**before).fit(x).set_params(**change).set_params(**before)
    loaded = load(save(fitted, tmp_path / "back.safetensors"))
    loaded.set_params(**change)  # a loaded one has been fitted, too
    with pytest.raises(ValueError, match="changed since the fit"):
        save(loaded, tmp_path / "more.safetensors")


def test_steps_that_pass_everything_through_are_left_out(path):
    x = embeddings()
    pipeline = Pipeline(
        [("a", "passthrough"), ("b", Standardizer()), ("c", None), ("d", Whitener(3))]
    ).fit(x)
    loaded = load(save(pipeline, path))
    assert_array_equal(loaded.transform(x), pipeline.transform(x))
    assert list(loaded.named_steps) == ["b", "d"]


def test_a_loaded_calibrator_can_be_fitted_anew_but_not_further(path):
    x = embeddings()
    loaded = load(save(Standardizer().fit(x), path))
    with pytest.raises(ValueError, match=r"was loaded.*cannot be fitted further"):
        loaded.partial_fit(x)
    assert_array_equal(loaded.fit(x + 1).mean_, Standardizer().fit(x + 1).mean_)


def test_the_table_of_classes_is_all_there_is():
    assert set(Savable.kinds) == {
        "Standardizer", "TopDirectionRemover", "Whitener", "FlowCalibrator", "SentenceEncoder",
    }  # fmt: skip


# -------------------------------------------------------------------------------- writing is atomic


def test_nothing_is_replaced_unless_asked_for(path):
    first, second = Standardizer().fit(embeddings()), Whitener().fit(embeddings())
    save(first, path)
    with pytest.raises(FileExistsError, match=r"overwrite=True"):
        save(second, path)
    assert isinstance(load(path), Standardizer)
    save(second, path, overwrite=True)
    assert isinstance(load(path), Whitener)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.chmod", "os.replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failed_save_keeps_the_old_calibrator(path, monkeypatch, failing, error):
    save(Standardizer().fit(embeddings()), path)
    with monkeypatch.context() as patch:
        module, name = failing.rsplit(".", 1)

        def fail(*args: Any, **kwargs: Any) -> Any:
            raise error

        patch.setattr(os if module == "os" else Path, name, fail)
        with pytest.raises(type(error)):
            save(Whitener().fit(embeddings()), path, overwrite=True)
    assert isinstance(load(path), Standardizer)
    assert list(path.parent.iterdir()) == [path]


# ------------------------------------------------------------------------------- what it says


def test_the_file_says_how_it_came_about(path):
    pairs = bf.load_sts("mini-sts")
    save(Standardizer().fit(embeddings()), path, data=[pairs, pairs])
    said = read_about(path)
    assert said["data"]["sentences"] == 4 * len(pairs)
    assert said["data"]["fingerprint"] == f"{pairs.fingerprint} {pairs.fingerprint}"
    assert set(said["versions"]) >= {"python", "bertflow-lite", "torch", "numpy", "scikit-learn"}
    assert pairs.sentences1[0].encode() not in path.read_bytes()


def test_the_card_gives_the_measured_numbers_and_code_that_runs(step, tmp_path, tiny_bert_folder):
    flow = small_flow(epochs=3, batch_size=4)
    pipeline = make_pipeline(step, flow).fit(TEXTS)
    path = save(pipeline, tmp_path / "mine.safetensors", card=True)
    card = (tmp_path / "mine.md").read_text()
    assert f"first bits per dim {flow.history_.loss[0]}" in card
    for heading in ("# An encoder with", "## How it was fitted", "## How to use it", "## Limits"):
        assert heading in card
    code = card.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"sentences": TEXTS}
    given = f"{str(path)!r}, model={str(tiny_bert_folder)!r}"
    exec(code.replace("'mine.safetensors'", given), names)
    assert_array_equal(names["vectors"], pipeline.transform(TEXTS))
    alone = save(Whitener(4).fit(embeddings()), tmp_path / "alone.safetensors", card=True)
    said = alone.with_suffix(".md").read_text()
    assert "vectors of width 6 and gives vectors of width 4" in said and "whitening turns" in said
    alone.unlink()
    with pytest.raises(FileExistsError, match=r"alone.md"):
        save(Whitener(4).fit(embeddings()), alone, card=True)


def test_words_about_the_data_keep_to_their_cell_of_the_card(tmp_path):
    said = "two lines\n| of |\r\nwords"
    path = save(Standardizer().fit(embeddings()), tmp_path / "c.safetensors", data=said, card=True)
    assert read_about(path)["data"] == {"description": said}
    assert "| data | two lines / of / words |\n" in path.with_suffix(".md").read_text()


def test_sentences_with_line_ends_have_a_fingerprint_of_their_own(tmp_path):
    fitted = Standardizer().fit(embeddings())
    prints = [
        read_about(save(fitted, tmp_path / f"{i}.safetensors", data=data))["data"]
        for i, data in enumerate((["a\nb", "c"], ["a", "b\nc"]))
    ]
    assert prints[0]["fingerprint"] != prints[1]["fingerprint"]


def test_a_newer_format_says_what_to_do(path, monkeypatch):
    monkeypatch.setattr("bertflow_lite.saving.FORMAT_VERSION", 99)
    write_file(path, {"steps": []}, {})
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"format 99.*newer.*up to 1.*pip install --upgrade"):
        load(path)
