"""A model folder's own code is never run, and nobody is asked whether to run it."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import pytest
import torch
from safetensors.torch import load_file

import bertflow_lite as bf
from bertflow_lite.encoders.language_model import load_language_model
from bertflow_lite.encoders.models import load_model

PACKAGE = Path(bf.__file__).parent


def test_every_reader_of_transformers_is_told_to_trust_no_code() -> None:
    """Where it is not said, transformers asks on the terminal."""
    readers = {"from_pretrained", "from_config"}
    found, untold = 0, []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in readers:
                continue
            found += 1
            told = [word.value for word in node.keywords if word.arg == "trust_remote_code"]
            if not (told and isinstance(told[0], ast.Constant) and told[0].value is False):
                untold.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not untold
    assert found >= 8, "the readers are called otherwise now: look for them by their new names"


# ---------------------------------------------------------------------------- code in the folder


@pytest.fixture
def armed(tiny_bert_folder: Path, workplace: Path) -> Callable[..., tuple[Path, Path]]:
    """Give a function that puts code into a model's folder; it leaves a mark when it is run."""

    def arm(config: dict[str, Any], tokenizer: dict[str, Any]) -> tuple[Path, Path]:
        folder, mark = workplace / "model", workplace / "it-ran"
        shutil.copytree(tiny_bert_folder, folder)
        code = f"open({os.fspath(mark)!r}, 'w').close()\n"
        code += "from transformers import BertConfig, BertModel, PreTrainedTokenizerFast\n"
        code += "class Config(BertConfig):\n    model_type = 'mine'\n"
        code += "class Model(BertModel):\n    config_class = Config\n"
        code += "class Words(PreTrainedTokenizerFast):\n    pass\n"
        (folder / "code_of_mine.py").write_text(code)
        for name, changes in (("config.json", config), ("tokenizer_config.json", tokenizer)):
            path = folder / name
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return folder, mark

    return arm


OWN = {"AutoConfig": "code_of_mine.Config", "AutoModel": "code_of_mine.Model",
       "AutoModelForMaskedLM": "code_of_mine.Model"}  # fmt: skip
UNKNOWN = {"model_type": "mine", "auto_map": OWN}
WORDS = {"tokenizer_class": "Words", "auto_map": {"AutoTokenizer": [None, "code_of_mine.Words"]}}
ELSEWHERE = {"model_type": "mine", "auto_map": {"AutoConfig": "somebody/else--far.Config"}}
CODE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "of-the-model": (UNKNOWN, {}, "code_of_mine.py"),
    "of-both": (UNKNOWN, WORDS, "code_of_mine.py"),
    "in-another-repository": (ELSEWHERE, {}, "somebody/else/far.py"),
}


@pytest.mark.parametrize("load", [load_model, load_language_model, bf.load_encoder])
@pytest.mark.parametrize("case", CODE)
def test_a_folder_that_needs_its_own_code_is_refused(case, load, armed, monkeypatch, capsys):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked on the terminal"))
    config, tokenizer, file = CODE[case]
    folder, mark = armed(config, tokenizer)
    with pytest.raises(ValueError, match=f"needs Python code of its own .*{file}.* never run"):
        load(folder, device="cpu")
    assert not mark.exists() and not capsys.readouterr().out


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_what_transformers_knows_is_loaded_without_the_code(
    with_tokenizer, armed, tiny_bert_folder, workplace, own_cache
):
    known = WORDS | {"tokenizer_class": "PreTrainedTokenizerFast"}
    folder, mark = armed({"auto_map": OWN}, known if with_tokenizer else {})
    loaded = load_model(folder, device="cpu")
    assert type(loaded.model).__module__.startswith("transformers.")
    assert loaded.fingerprint == load_model(tiny_bert_folder, device="cpu").fingerprint
    # Nor does the code, or the wish for it, go along with what is made of the model.
    encoder = bf.load_encoder(folder, device="cpu", max_length=24)
    bf.to_sentence_transformer(encoder, 1).save(os.fspath(workplace / "exported"))
    written = [path.read_bytes() for path in (workplace / "exported").rglob("*.json")]
    assert written and not any(b"code_of_mine" in content for content in written)
    assert not mark.exists()


def test_the_command_line_asks_nothing_and_does_not_wait(armed, workplace):
    folder, mark = armed(UNKNOWN, WORDS)
    (workplace / "s.txt").write_text("the cat sat\n")
    (workplace / "stdin").write_text("y\n" * 100)
    command = ["encode", "s.txt", "--model", str(folder), "--out", "x.npy"]
    cache = workplace / "cache"
    child, pipe = children.start(children.run_command, command, workplace, cache, None, "utf-8")
    assert pipe.poll(children.PATIENCE) and pipe.recv() == "begun"
    assert children.answer(child, pipe) == 1
    said = (workplace / "stderr").read_text()
    assert not mark.exists() and not (workplace / "x.npy").exists()
    assert (workplace / "stdout").read_text() == "" and "code_of_mine.py" in said
    assert "[y/N]" not in said


# -------------------------------------------------------------------------- other kinds of folders


class Thing:
    """What a pickle may hold beside weights."""


def pickled(folder: Path) -> None:
    tensors: dict[str, Any] = dict(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    torch.save(tensors | {"more": Thing()}, folder / "pytorch_model.bin")


def moved(folder: Path) -> None:
    inside = folder / "0_Transformer"
    inside.mkdir()
    for path in [path for path in folder.iterdir() if path.is_file()]:
        path.rename(inside / path.name)
    (folder / "modules.json").write_text("[]")


def other_framework(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / name)

    return change


def googles(folder: Path) -> None:
    """Change it to the form of the first BERT: no tokenizer.json, and the configuration renamed."""
    for path in folder.iterdir():
        path.unlink()
    for name in ("bert_config.json", "bert_model.ckpt.index", "bert_model.ckpt.meta"):
        (folder / name).write_text("{}")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n")


def pieces(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "t5"}))
    (folder / "spiece.model").write_bytes(b"pieces")


FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickled": (pickled, r"\.bin file holds Python objects .* model\.safetensors"),
    "in-a-folder-inside": (moved, "lies in a folder inside it: name '.*0_Transformer' instead"),
    "tensorflow": (other_framework("tf_model.h5"), r"another framework \(tf_model\.h5\)"),
    "flax": (other_framework("flax_model.msgpack"), r"another framework \(flax_model"),
    "checkpoint": (googles, r"another framework \(bert_model\.ckpt\.index\)"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_of_another_kind_is_called_what_it_is(case, tiny_bert_folder, workplace):
    change, words = FOLDERS[case]
    folder = workplace / "model"
    shutil.copytree(tiny_bert_folder, folder)
    change(folder)
    with pytest.raises(ValueError, match=words) as caught:
        load_model(folder, device="cpu")
    said = str(caught.value)
    assert "weights_only" not in said and "tiktoken" not in said and "\n" not in said


def test_a_missing_sentencepiece_is_named(tiny_bert_folder, workplace, monkeypatch):
    folder = workplace / "model"
    shutil.copytree(tiny_bert_folder, folder)
    pieces(folder)
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "sentencepiece" else find(name)
    )
    with pytest.raises(ValueError, match=r"spiece\.model.*pip install sentencepiece"):
        load_model(folder, device="cpu")
