"""Saved calibrators: the same vectors after loading; damaged and foreign files are refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from bertflow_lite import artifact_format
from bertflow_lite.artifacts import load, read_description, save
from bertflow_lite.calibrator_state import CALIBRATORS
from bertflow_lite.calibrators import make_calibrator
from bertflow_lite.calibrators.flow_calibrator import FlowCalibrator
from bertflow_lite.calibrators.linear import Standardizer, TopDirectionRemover, Whitener
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder

FILES = ["README.md", "calibrator.json", "calibrator.safetensors"]


def embeddings(n: int = 60, dim: int = 6, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim)) + 3).astype(dtype)


def small_flow(**changes: Any) -> FlowCalibrator:
    return FlowCalibrator(**{"width": 4, "depth": 2, "device": "cpu", **changes})


def repack(folder: Path, change: Any) -> None:
    """Change description or tensors, and write them with digests that are right."""
    description, tensors = artifact_format.read_files(folder)
    for key in ("format", "format_version", "weights", "checksum"):
        description.pop(key)
    change(description, tensors)
    artifact_format.write_files(folder, artifact_format.pack(description, tensors)[1])


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
    folder = save(calibrator, tmp_path_factory.mktemp("saved"))
    loaded = load(folder)
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


def test_the_folder_holds_three_files_and_no_pickle(tmp_path, monkeypatch):
    folder = save(small_flow().fit(embeddings()), tmp_path / "new" / "flow")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert list(folder.parent.iterdir()) == [folder]  # nothing left beside it

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("unpickled something")

    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    load(folder)


def test_names_of_features_and_pipeline_steps_come_back(tmp_path):
    frame = pd.DataFrame(embeddings(), columns=[f"d{i}" for i in range(6)])
    loaded = load(save(Whitener(2).fit(frame), tmp_path / "w"))
    assert list(loaded.feature_names_in_) == list(frame.columns)
    assert loaded.transform(frame).shape == (60, 2)
    pipeline = load(save(make_calibrator("sn+natsv:2").fit(embeddings()), tmp_path / "p"))
    assert list(pipeline.named_steps) == ["standardizer", "topdirectionremover"]


def test_a_flow_fitted_on_a_gpu_loads_anywhere(tmp_path):
    flow = small_flow().fit(embeddings())
    z = flow.transform(embeddings())
    flow.set_params(device="cuda:7", progress=True)  # as on the machine it was fitted on
    folder = save(flow, tmp_path / "flow")
    assert "cuda" not in (folder / "calibrator.json").read_text()
    loaded = load(folder)
    assert loaded.device is None and next(loaded.flow_.parameters()).device.type == "cpu"
    assert not any(parameter.requires_grad for parameter in loaded.flow_.parameters())
    assert_array_equal(loaded.transform(embeddings()), z)


def test_the_methods_of_a_calibrator_do_the_same(tmp_path):
    x = embeddings()
    folder = Whitener(2).fit(x).save(tmp_path / "w", data="noise")
    assert_array_equal(Whitener.load(folder).transform(x), Whitener(2).fit_transform(x))
    with pytest.raises(
        ValueError, match=r"holds a Whitener, not a FlowCalibrator: use bertflow_lite.load_calibr"
    ):
        FlowCalibrator.load(folder)


# ----------------------------------------------------------------------------- what cannot be saved


@pytest.mark.parametrize(
    ("calibrator", "message"),
    [
        (FlowCalibrator(), "not fitted"),
        (StandardScaler().fit(embeddings()), "'StandardScaler' is no calibrator that can be saved"),
        (None, "'NoneType' is no calibrator"),
        (make_pipeline("passthrough"), "no steps that calibrate"),
        (make_pipeline("no-step", Standardizer()), "'no-step' is no calibrator"),
        (make_pipeline(make_pipeline(Standardizer())).fit(embeddings()), "'Pipeline' is no cal"),
        (type("Standardizer", (Standardizer,), {})().fit(embeddings()), "is no calibrator"),
        (small_flow(max_grad_norm=float("inf")).fit(embeddings()), "max_grad_norm=inf cannot be"),
    ],
)
def test_what_cannot_be_saved_leaves_nothing_behind(tmp_path, calibrator, message):
    with pytest.raises(ValueError, match=message):
        save(calibrator, tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_calibrator_is_not_saved(tmp_path):
    whitener = Whitener().fit(embeddings())
    whitener.variances_[0] = np.nan
    with pytest.raises(ValueError, match=r"variances_ holds a value that is not finite"):
        save(whitener, tmp_path / "saved")


# -------------------------------------------------------------------------------- writing is atomic


def test_nothing_is_replaced_unless_asked_for(tmp_path):
    first, second = Standardizer().fit(embeddings()), Whitener().fit(embeddings())
    folder = save(first, tmp_path / "c")
    with pytest.raises(FileExistsError, match=r"overwrite=True"):
        save(second, folder)
    assert isinstance(load(folder), Standardizer)
    save(second, folder, overwrite=True)
    assert isinstance(load(folder), Whitener)
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_files_is_left_alone(tmp_path, overwrite):
    (tmp_path / "thesis.tex").write_text("three years of work")
    with pytest.raises(ValueError, match=r"something else than a saved calibrator \(thesis.tex\)"):
        save(Standardizer().fit(embeddings()), tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "three years of work"


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.chmod", "pathlib.Path.rename"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failed_save_keeps_the_old_calibrator(tmp_path, monkeypatch, failing, error):
    folder = save(Standardizer().fit(embeddings()), tmp_path / "c")
    with monkeypatch.context() as patch:
        module, name = failing.rsplit(".", 1)
        owner = os if module == "os" else Path
        whole, calls = getattr(owner, name), []

        def fail(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            if len(calls) == 2 or name == "chmod":  # rename: the old one is aside by then
                raise error
            return whole(*args, **kwargs)

        patch.setattr(owner, name, fail)
        with pytest.raises(type(error)):
            save(Whitener().fit(embeddings()), folder, overwrite=True)
    assert isinstance(load(folder), Standardizer)
    assert list(tmp_path.iterdir()) == [folder]


# ---------------------------------------------------------------------------------- damage is found


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    flow = small_flow().fit(embeddings())
    return save(flow, tmp_path_factory.mktemp("whole") / "flow", data="noise")


@pytest.fixture(scope="module")
def changeable(whole, tmp_path_factory) -> Path:
    return Path(shutil.copytree(whole, tmp_path_factory.mktemp("changed") / "flow"))


@settings(max_examples=200, deadline=2000)
@given(
    name=st.sampled_from(FILES[1:]),
    places=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_any_changed_byte_is_found(whole, changeable, name, places):
    before = (whole / name).read_bytes()
    content = bytearray(before)
    for place, flip in places:
        content[min(int(place * len(content)), len(content) - 1)] ^= flip
    (changeable / name).write_bytes(bytes(content))
    try:
        if bytes(content) == before:  # flipped there and back
            load(changeable)
        else:
            with pytest.raises(ValueError, match=name.replace(".", r"\.")):
                load(changeable)
    finally:
        (changeable / name).write_bytes(before)


@pytest.mark.parametrize("name", FILES[1:])
def test_every_way_to_cut_or_lengthen_a_file_is_found(whole, tmp_path, name):
    folder = tmp_path / "cut"
    shutil.copytree(whole, folder)
    content = (folder / name).read_bytes()
    for length in {0, 1, 7, 8, len(content) // 2, len(content) - 1}:
        (folder / name).write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"cut or changed.*Save or copy the calibrator again"):
            load(folder)
    for more in (b"\n", b" ", b"\0" * 5):
        (folder / name).write_bytes(content + more)
        with pytest.raises(ValueError, match=r"cut or changed"):
            read_description(folder)
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"holds no {name}"):
        load(folder)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b"9" * 10_000,
        b"null",
        b'"calibrator"',
        b'{"format_version": NaN}',
        b"\xff\xfe{}",
        b'{"format_version": 1e999}',
        b'{"checksum": "\\ud800"}',
        b"{" + b" " * (16 * 2**20) + b"}",
    ],
    ids=["deep", "long-number", "null", "string", "nan", "bytes", "inf", "surrogate", "huge"],
)
def test_hostile_json_is_only_a_value_error(whole, tmp_path, text):
    shutil.copytree(whole, tmp_path / "c")
    (tmp_path / "c" / "calibrator.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"cut or changed"):
        load(tmp_path / "c")


def test_a_missing_folder_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        load(tmp_path / "nowhere")


def test_a_newer_format_says_what_to_do(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "c")
    path = tmp_path / "c" / "calibrator.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 2}))
    with pytest.raises(ValueError, match=r"format 2.*newer.*up to 1.*pip install --upgrade"):
        load(tmp_path / "c")


# ------------------------------------------------------- forged files: digests right, content wrong


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["BERTFLOW_TEST_BOMB"],)


@pytest.mark.parametrize("kind", ["pickle", "torch-zip", "torch-legacy", "npy"])
def test_a_pickle_under_a_false_name_is_refused_and_not_run(whole, tmp_path, monkeypatch, kind):
    exploded = tmp_path / "exploded"
    monkeypatch.setenv("BERTFLOW_TEST_BOMB", str(exploded))
    file = io.BytesIO()
    if kind == "pickle":
        pickle.dump(Bomb(), file)
    elif kind == "npy":
        np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    else:
        torch.save(Bomb(), file, _use_new_zipfile_serialization=kind == "torch-zip")
    folder = tmp_path / "c"
    shutil.copytree(whole, folder)
    with monkeypatch.context() as patch:  # the digest of the forged file is right
        patch.setattr(safetensors.torch, "save", lambda tensors: file.getvalue())
        repack(folder, lambda description, tensors: None)
    with pytest.raises(ValueError, match=r"no safetensors file, whatever its name says"):
        load(folder)
    assert not exploded.exists()


def set_step(**changes: Any) -> Any:
    return lambda description, tensors: description["steps"][0].update(changes)


def set_setting(**changes: Any) -> Any:
    return lambda description, tensors: description["steps"][0]["settings"].update(changes)


def set_tensor(name: str, make: Any) -> Any:
    def change(description: Any, tensors: Any) -> None:
        tensors[name] = make(tensors.get(name))

    return change


FORGED: dict[str, tuple[str, Any, str]] = {
    # name: (calibrator, change, message)
    "no-class": ("whiten:3", set_step(**{"class": None}), "'class' is None"),
    "unknown-class": ("whiten:3", set_step(**{"class": "os.system"}), "no calibrator 'os.system'"),
    "other-class": ("whiten:3", set_step(**{"class": "Standardizer"}), "no setting 'n_comp"),
    "class-of-sklearn": ("sn", set_step(**{"class": "Pipeline"}), "no calibrator 'Pipeline'"),
    "no-settings": ("sn", set_step(settings=[1]), r"'settings' is \[1\]"),
    "unknown-setting": ("flow", set_setting(beam=3), "has no setting 'beam'"),
    "device": ("flow", set_setting(device="cuda"), "has no setting 'device'"),
    "text-for-number": ("flow", set_setting(levels="2"), "'levels' .* wrong type: '2'"),
    "truth-for-number": ("flow", set_setting(depth=True), "'depth' .* wrong type"),
    "number-for-truth": ("flow", set_setting(actnorm=1), "'actnorm' .* wrong type"),
    "fraction": ("flow", set_setting(width=4.0), "'width' .* wrong type"),
    "no-such-permutation": ("flow", set_setting(permutation="odd"), "permutation is 'odd'"),
    "more-levels": ("flow", set_setting(levels=3), "missing|ask for more"),
    "less-depth": ("flow", set_setting(depth=1), "the flow has no tensor"),
    "vast-depth": ("flow", set_setting(depth=10**12), "ask for more tensors than there are"),
    "vast-width": ("flow", set_setting(width=10**9), "ask for more tensors than there are"),
    "vast-levels": ("flow", set_setting(levels=10**12), "missing|ask for more"),
    "negative": ("flow", set_setting(depth=-1), "needs two live dimensions"),
    "no-coupling": ("flow", set_setting(coupling=False), "is missing"),
    "other-k": ("natsv:2", set_setting(k=3), "'directions_' .* must be .*shape \\(3, 6\\)"),
    "width": ("sn", set_step(width_in=7), "'mean_' is .*shape \\(6,\\); it must be"),
    "width-text": ("sn", set_step(width_in="6"), "'width_in' is '6'"),
    "width-out": ("whiten:3", set_step(width_out=6), "another width than 3"),
    "names": ("sn", set_step(feature_names_in=["a"]), "not a list of 6 names"),
    "name-types": ("sn", set_step(feature_names_in=[1] * 6), "not a list of 6 names"),
    "step-name": ("sn", set_step(name=3), "'name' is 3"),
    "training": ("flow", set_step(training=None), "'training' is None"),
    "steps-type": ("sn", lambda d, t: d.update(steps={}), "not a list of steps"),
    "steps-empty": ("sn", lambda d, t: d.update(steps=[]), "not a list of steps"),
    "steps-inner": ("sn", lambda d, t: d.update(steps=["sn"]), "not a list of steps"),
    "pipeline-type": ("sn", lambda d, t: d.update(pipeline="yes"), "neither true nor false"),
    "pipeline-lost": ("sn+natsv:2", lambda d, t: d.update(pipeline=False), "several steps"),
    "pipeline-width": (
        "sn+whiten:3",
        lambda d, t: d.update(steps=d["steps"][::-1]),
        "no setting|missing|has no tensor|of shape",
    ),
    "same-names": (
        "sn+natsv:2",
        lambda d, t: d["steps"][1].update(name="standardizer"),
        "same name",
    ),
    "encoder-type": ("sn", lambda d, t: d.update(encoder="minilm"), "nothing of use .*'encoder'"),
    "encoder-part": ("sn", lambda d, t: d.update(encoder={"name": 3}), "nothing of use"),
    "data-type": ("sn", lambda d, t: d.update(data=["a"]), "nothing of use under 'data'"),
    "missing-tensor": ("sn", lambda d, t: t.pop("0.scale_"), "'scale_' is missing"),
    "extra-tensor": ("sn", set_tensor("0.extra", lambda _: torch.zeros(1)), "no tensor extra"),
    "stray-tensor": ("sn", set_tensor("9.mean_", lambda _: torch.zeros(1)), "belong to no step"),
    "extra-flow": ("flow", set_tensor("0.flow_.x", lambda _: torch.zeros(1)), "no tensor flow_.x"),
    "swapped": (
        "whiten:3",
        lambda d, t: t.update({"0.mean_": t["0.variances_"], "0.variances_": t["0.mean_"]}),
        "of shape",
    ),
    "half": ("sn", set_tensor("0.mean_", lambda t: t.half()), "must be torch.float64"),
    "single": ("sn", set_tensor("0.mean_", lambda t: t.float()), "must be torch.float64"),
    "mixed": (
        "flow",
        set_tensor("0.flow_.steps.0.0.bias", lambda t: t.double()),
        "not all float32 or all float64",
    ),
    "half-flow": ("flow", lambda d, t: t.update(
        {k: v.half() if v.dtype == torch.float32 else v for k, v in t.items()}
    ), "not all float32"),
    "transposed": ("whiten:3", set_tensor("0.directions_", lambda t: t.T.contiguous()), "shape"),
    "nan": ("sn", set_tensor("0.mean_", lambda t: t * float("nan")), "'mean_' holds a value that"),
    "inf-flow": (
        "flow",
        set_tensor("0.flow_.steps.0.0.bias", lambda t: t / 0),
        "holds a value that is not finite",
    ),
    "zero-scale": ("sn", set_tensor("0.scale_", lambda t: t * 0), "not positive"),
    "zero-variance": ("whiten:3", set_tensor("0.variances_", lambda t: t * 0), "not positive"),
    "scalar": ("whiten:3", set_tensor("0.directions_", lambda t: t.sum()), "of shape|positive"),
    "order": (
        "flow",
        set_tensor("0.flow_.steps.0.1.order", lambda t: t * 0 + 99),
        "is no order of the dimensions",
    ),
    "restore": (
        "flow",
        set_tensor("0.flow_.steps.0.1.restore", lambda t: t.flip(0).contiguous()),
        "is no order of the dimensions",
    ),
    "rotation": (
        "flow:recommended",
        set_tensor("0.flow_.steps.0.0.matrix", lambda t: t + 0.1),
        "is no rotation",
    ),
    "unrotated": ("flow:recommended", set_setting(rotation="none"), "is missing|no tensor"),
    "vast-rotation": ("flow", set_setting(rotation="pca"), "is missing|ask for more"),
    "all-dead": ("flow", set_tensor("0.live_", lambda t: t & False), "two live dimensions"),
    "history": ("flow", set_tensor("0.history_.loss", lambda t: t[None]), "of shape"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_calibrator_is_refused(tmp_path, case):
    name, change, message = FORGED[case]
    calibrator = small_flow() if name == "flow" else make_calibrator(name)
    folder = save(calibrator.fit(embeddings()), tmp_path / "c")
    load(folder)
    repack(folder, change)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert str(tmp_path / "c") in str(caught.value)  # says which


def test_the_table_of_classes_is_all_there_is():
    assert set(CALIBRATORS) == {
        "Standardizer", "TopDirectionRemover", "Whitener", "FlowCalibrator",
    }  # fmt: skip


# -------------------------------------------------------------------- what it was fitted for and on


def test_another_encoder_other_layers_or_another_width_is_an_error(
    tiny_bert: Encoder, tiny_llama: Encoder, tmp_path
):
    sentences = ["the cat sat", "a dog ran", "the red tree", "two dogs", "it is not blue"]
    raw = tiny_bert.encode(sentences, "first-last")
    calibrator = Standardizer().fit(raw)
    folder = save(
        calibrator, tmp_path / "c", encoder=tiny_bert, layers="first-last", data=sentences
    )
    assert_array_equal(
        load(folder, encoder=tiny_bert, layers="first-last").transform(raw),
        calibrator.transform(raw),
    )
    load(folder, encoder=tiny_bert, layers=(-1, 1))  # the same by another name
    with pytest.raises(ValueError, match=r"fitted for the encoder .*pass encoder=None"):
        load(folder, encoder=tiny_llama, layers="first-last")
    for layers in ("last", 1, (1, 1), "cls"):
        with pytest.raises(ValueError, match=r"fitted for layers 'first-last', not"):
            load(folder, encoder=tiny_bert, layers=layers)
    with pytest.raises(ValueError, match=r"pass encoder as well"):
        load(folder, layers="last")
    load(folder, encoder=None)
    # Without a note of the encoder, its width is still known.
    narrow = save(Standardizer().fit(embeddings()), tmp_path / "n")
    with pytest.raises(ValueError, match=r"takes vectors of width 6; .* gives 16"):
        load(narrow, encoder=tiny_bert)
    with pytest.raises(ValueError, match=r"takes vectors of width 6, and .* gives 16"):
        save(Standardizer().fit(embeddings()), tmp_path / "x", encoder=tiny_bert, layers=1)
    with pytest.raises(ValueError, match=r"say which layers"):
        save(calibrator, tmp_path / "x", encoder=tiny_bert)
    with pytest.raises(ValueError, match=r"pass encoder as well"):
        save(calibrator, tmp_path / "x", layers=1)


def test_the_description_says_how_it_came_about_and_where_nobody_lives(
    tiny_bert: Encoder, tmp_path
):
    pairs = load_sts("mini-sts")
    raw = tiny_bert.encode(["the cat", "a dog", "one tree", "two"], 1)
    folder = save(
        Standardizer().fit(raw), tmp_path / "c", encoder=tiny_bert, layers=1, data=[pairs, pairs]
    )
    said = read_description(folder)
    assert said["encoder"]["fingerprint"] == tiny_bert.fingerprint
    assert (said["encoder"]["layers"], said["encoder"]["hidden_states"]) == ("1", [1])
    assert said["encoder"]["max_length"] == 24
    assert said["data"]["sentences"] == 4 * len(pairs)
    assert said["data"]["fingerprint"] == f"{pairs.fingerprint} {pairs.fingerprint}"
    assert set(said["versions"]) >= {"python", "bertflow-lite", "torch", "numpy", "scikit-learn"}
    for name in FILES:  # the encoder is a folder of this machine, the data are someone's words
        content = (folder / name).read_bytes()
        assert str(Path(tiny_bert.name).parent).encode() not in content
        assert pairs.sentences1[0].encode() not in content


def test_word_vectors_have_no_layers(tmp_path):
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    encoder = WordVectorEncoder(table, ["a", "b", "c", "d"], "letters")
    folder = save(Standardizer().fit(table), tmp_path / "c", encoder=encoder)
    assert "layers" not in read_description(folder)["encoder"]
    load(folder, encoder=encoder)
    with pytest.raises(ValueError, match=r"fitted for the encoder 'letters'"):
        load(folder, encoder=WordVectorEncoder(table + 1, ["a", "b", "c", "d"], "others"))


def test_the_card_gives_the_measured_numbers_and_code_that_runs(tiny_bert: Encoder, tmp_path):
    sentences = [f"the {a} {b}" for a in ("cat", "dog", "tree") for b in ("sat", "ran", "is", ".")]
    raw = tiny_bert.encode(sentences, "first-last")
    flow = small_flow(epochs=3, batch_size=4).fit(raw)
    folder = save(flow, tmp_path / "this-folder", encoder=tiny_bert, layers="first-last")
    card = (folder / "README.md").read_text()
    assert f"{flow.history_.loss[0]:.3f} bits per dimension at the first step" in card
    assert f"{flow.history_.epoch_loss[-1]:.3f} on average over the last epoch" in card
    for heading in ("# A calibrator", "## How it was fitted", "## How to use it", "## Limits"):
        assert heading in card
    code = card.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"sentences": sentences}
    code = code.replace('"this-folder"', repr(str(folder)))
    code = code.replace(repr(Path(tiny_bert.name).name), repr(tiny_bert.name))
    exec(code, names)
    assert_array_equal(names["calibrated"], flow.transform(raw))
    assert "nulls are lost" not in card
    pipeline = make_calibrator("natsv:1+whiten:4").fit(raw)
    more = save(pipeline, tmp_path / "p", encoder=tiny_bert, layers="first-last")
    limits = (more / "README.md").read_text().split("## Limits")[1]
    assert "nulls are lost" in limits and "keeps fewer dimensions" in limits


def test_a_loaded_calibrator_can_be_fitted_anew_but_not_further(tmp_path):
    x = embeddings()
    loaded = load(save(Standardizer().fit(x), tmp_path / "c"))
    with pytest.raises(ValueError, match=r"was loaded.*cannot be fitted further"):
        loaded.partial_fit(x)
    assert_array_equal(loaded.fit(x + 1).mean_, Standardizer().fit(x + 1).mean_)


def test_words_about_the_data_keep_to_their_cell_of_the_card(tmp_path):
    said = "two lines\n| of |\r\nwords"
    folder = save(Standardizer().fit(embeddings()), tmp_path / "c", data=said)
    assert read_description(folder)["data"] == {"description": said}
    assert "| data | two lines / of / words |\n" in (folder / "README.md").read_text()


def test_sentences_with_line_ends_have_a_fingerprint_of_their_own(tmp_path):
    x = embeddings()
    prints = [
        read_description(save(Standardizer().fit(x), tmp_path / str(i), data=data))["data"]
        for i, data in enumerate((["a\nb", "c"], ["a", "b\nc"]))
    ]
    assert prints[0]["fingerprint"] != prints[1]["fingerprint"]


# ------------------------------------------------------------------------- settings and the fit


@pytest.mark.parametrize(
    ("calibrator", "change", "message"),
    [
        (small_flow(), {"width": 16}, "width was 4 in the fit of this FlowCalibrator and is 16"),
        (small_flow(), {"levels": 1}, "levels was 2"),
        (small_flow(), {"coupling": False}, "coupling was True"),
        (small_flow(), {"rotation": "pca"}, "rotation was 'none'"),
        (small_flow(), {"permutation": "reverse", "random_state": 5}, "'random'|random_state was"),
        (small_flow(), {"epochs": 7}, "epochs was 1"),
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
            save(each, tmp_path / f"{number}")
    assert list(tmp_path.iterdir()) == []
    load(save(fitted.fit(x), tmp_path / "again"))  # as it says
    fitted.set_params(**before).fit(x).set_params(**change).set_params(**before)
    loaded = load(save(fitted, tmp_path / "back"))
    loaded.set_params(**change)  # a loaded one has been fitted, too
    with pytest.raises(ValueError, match="changed since the fit"):
        save(loaded, tmp_path / "more")


def test_steps_that_pass_everything_through_are_left_out(tmp_path):
    x = embeddings()
    pipeline = Pipeline(
        [("a", "passthrough"), ("b", Standardizer()), ("c", None), ("d", Whitener(3))]
    ).fit(x)
    loaded = load(save(pipeline, tmp_path / "c"))
    assert_array_equal(loaded.transform(x), pipeline.transform(x))
    assert list(loaded.named_steps) == ["b", "d"]


@pytest.mark.parametrize("name", ["sn", "flow", "sn+whiten:3"])
def test_what_dead_dimensions_are_centered_by_is_saved(tmp_path, name):
    x = embeddings()
    x[:, 2] = 50
    calibrator = small_flow() if name == "flow" else make_calibrator(name)
    with pytest.warns(UserWarning, match="no spread"):
        calibrator.fit(x)
    loaded = load(save(calibrator, tmp_path / "c"))
    assert_array_equal(loaded.transform(x), calibrator.transform(x))
    z = calibrator.transform(x)
    assert_array_equal(loaded.inverse_transform(z), calibrator.inverse_transform(z))


def test_a_flow_that_an_older_version_saved_leaves_dead_dimensions_as_they_are(tmp_path):
    x = embeddings()
    x[:, 2] = 50
    with pytest.warns(UserWarning, match="no spread"):
        flow = small_flow().fit(x)
    folder = save(flow, tmp_path / "c")
    repack(folder, lambda description, tensors: tensors.pop("0.dead_mean_"))
    loaded = load(folder)
    assert_array_equal(loaded.transform(x)[:, 2], x[:, 2])
    assert_array_equal(loaded.transform(x)[:, :2], flow.transform(x)[:, :2])
    load(save(loaded, tmp_path / "again"))
    repack(folder, set_tensor("0.dead_mean_", lambda _: torch.ones(6, dtype=torch.float64)))
    with pytest.raises(ValueError, match="mean of a dimension that is not dead"):
        load(folder)
    plain = save(small_flow().fit(embeddings()), tmp_path / "plain")  # older versions read this
    assert "0.dead_mean_" not in artifact_format.read_files(plain)[1]


# --------------------------------------------------------- what a loaded calibrator remembers


@pytest.mark.parametrize("name", ["sn", "natsv:1", "whiten:4", "flow", "sn+natsv:1"])
def test_a_loaded_calibrator_remembers_what_it_was_fitted_for(tiny_bert: Encoder, tmp_path, name):
    sentences = [f"the {a} {b}" for a in ("cat", "dog", "tree") for b in ("sat", "ran", "is", ".")]
    raw = tiny_bert.encode(sentences, 1)
    calibrator = small_flow(batch_size=4) if name == "flow" else make_calibrator(name)
    first = save(calibrator.fit(raw), tmp_path / "1", encoder=tiny_bert, layers=1, data=sentences)
    said = read_description(first)
    again = read_description(save(load(save(load(first), tmp_path / "2")), tmp_path / "3"))
    assert (again["encoder"], again["data"]) == (said["encoder"], said["data"])
    # Pickled and copied it still does; what is said anew is taken.
    copied = pickle.loads(pickle.dumps(load(first)))
    other = read_description(save(copied, tmp_path / "4", data="others"))
    assert (other["encoder"], other["data"]) == (said["encoder"], {"description": "others"})
    # Fitted anew, or cloned, or a part of it alone: nothing is known.
    loaded = load(first)
    unknown = [load(first).fit(raw), clone(loaded).fit(raw), make_pipeline(Standardizer(), loaded)]
    if isinstance(loaded, Pipeline):
        unknown = [*unknown[:2], loaded[0], loaded[1], Pipeline(loaded.steps[::-1])]
    else:
        unknown[2].fit(raw)
    for number, each in enumerate(unknown):
        told = read_description(save(each, tmp_path / f"unknown-{number}"))
        assert told["encoder"] is None and told["data"] is None
    assert clone(loaded).get_params().keys() == loaded.get_params().keys()


def test_the_precision_of_the_encoder_is_noted_and_no_matter(tiny_bert: Encoder, tmp_path):
    raw = tiny_bert.encode(["the cat", "a dog", "one tree", "two"], 1)
    folder = save(Standardizer().fit(raw), tmp_path / "c", encoder=tiny_bert, layers=1)
    assert read_description(folder)["encoder"]["precision"] == "float32"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        repack(folder, lambda d, t: d["encoder"].update(precision="bfloat16"))
        load(folder, encoder=tiny_bert, layers=1)
        repack(folder, lambda d, t: d["encoder"].pop("precision"))  # as older versions wrote
        load(folder, encoder=tiny_bert, layers=1)
