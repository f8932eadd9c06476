"""The project's own model, as it lies in data/models/mini-bert, and how such a folder is made."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForMaskedLM, AutoTokenizer
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite.cli.common import app
from bertflow_lite.encoders.language_model import (
    LanguageModel,
    check_scores,
    fill_mask,
    load_language_model,
    scores,
)
from bertflow_lite.encoders.models import PACKAGED_MODELS, load_model
from bertflow_lite.experiments.pmi.probe import collect_contexts, word_probabilities
from bertflow_lite.experiments.pretraining.pretraining_card import KNOWN_CORPORA, training_command
from bertflow_lite.experiments.pretraining.publish import finished_run, publish_model
from bertflow_lite.experiments.pretraining.recipe import RECIPES

FILES = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


# ---- the model that is here ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def mini() -> Path:
    path = PACKAGED_MODELS["mini-bert"].path()
    if path is None:
        pytest.fail("data/models/mini-bert is missing: make it with `pretrain-publish`.")
    return path


@pytest.fixture(scope="module")
def lm(mini: Path) -> LanguageModel:
    return load_language_model("mini-bert", device="cpu")


def test_the_folder_is_small_and_holds_numbers_and_text_only(mini: Path) -> None:
    assert sorted(path.name for path in mini.iterdir()) == FILES
    assert sum(path.stat().st_size for path in mini.iterdir()) < 25e6
    with safe_open(mini / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert "cls.predictions.transform.dense.weight" in tensors
    assert not any(name.endswith("decoder.weight") for name in tensors)  # tied: stored once


def test_its_shape_is_the_recipes(mini: Path) -> None:
    config, recipe = json.loads((mini / "config.json").read_text()), RECIPES["mini"]
    assert config["architectures"] == ["BertForMaskedLM"]
    shape = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    assert [config[key] for key in shape] == [recipe.blocks, recipe.width, recipe.heads, 30522]
    assert config["max_position_embeddings"] >= recipe.length


def test_its_tokenizer_is_minilms(mini: Path, minilm) -> None:
    tokenizer = AutoTokenizer.from_pretrained(mini, local_files_only=True)
    assert tokenizer.get_vocab() == minilm.tokenizer.get_vocab()
    assert tokenizer.all_special_ids == minilm.tokenizer.all_special_ids
    texts = [*bf.load_sts("mini-sts").sentences, "Crème brûlée, 東京; ünïcode [MASK]!", ""]
    assert tokenizer(texts)["input_ids"] == minilm.tokenizer(texts)["input_ids"]
    assert tokenizer.model_max_length == RECIPES["mini"].length
    fast = json.loads((mini / "tokenizer.json").read_text(encoding="utf-8"))
    assert fast["padding"] is None and fast["truncation"] is None


def test_it_is_an_encoder(lm: LanguageModel) -> None:
    encoder = bf.load_encoder("mini-bert", device="cpu", cache=False)
    assert (encoder.dim, encoder.n_layers, encoder.max_length) == (256, 4, 64)
    assert encoder.fingerprint == lm.fingerprint
    vectors = encoder.encode(["A cat sat on a mat.", "It rained."], ["last2avg", "cls", 0])
    for states in vectors.values():
        assert states.shape == (2, 256) and states.dtype == np.float32 and np.isfinite(states).all()
    assert next(encoder.model.parameters()).dtype == torch.float32
    with pytest.raises(ValueError, match="takes 3 to 64"):
        bf.load_encoder("mini-bert", max_length=65)


def test_random_mini_has_its_shape_and_other_weights() -> None:
    own, random = (
        {n: p for n, p in load_model(name, device="cpu").model.named_parameters()
         if not n.startswith("pooler.")}
        for name in ("mini-bert", "random-mini")
    )  # fmt: skip
    assert {n: p.shape for n, p in own.items()} == {n: p.shape for n, p in random.items()}
    # More than float16 would change: in an untrained copy, by less than one in a thousand.
    words = "embeddings.word_embeddings.weight"
    assert float((own[words] - random[words]).norm() / random[words].norm()) > 0.01


def test_its_scores_are_the_models_logits(lm: LanguageModel) -> None:
    assert lm.kind == "masked"
    assert lm.word_vectors.dtype == torch.float32
    for sentence in bf.load_sts("mini-sts").sentences[:5]:
        assert check_scores(lm, sentence) < 1e-4


def test_it_has_learned_from_contexts(lm: LanguageModel) -> None:
    """Mean PMI of true pieces, over two guesses without context: its bias, and its own mean."""
    contexts = collect_contexts(lm, bf.load_sts("mini-sts").sentences, n_contexts=600, min_left=1)
    targets = torch.from_numpy(contexts.targets)
    with torch.inference_mode():
        log_p = torch.log_softmax(scores(lm, contexts.h), dim=1)
    log_conditional = log_p.gather(1, targets[:, None])[:, 0].double().numpy()
    by_bias = torch.log_softmax(lm.bias, dim=0)[targets].double().numpy()
    by_mean = np.log(word_probabilities(lm, contexts)[contexts.targets])
    for unigram in (by_bias, by_mean):
        pmi = log_conditional - unigram
        assert pmi.mean() > 0.5
        assert pmi.mean() > 5 * pmi.std(ddof=1) / np.sqrt(len(pmi))


def test_it_fills_masks_with_pieces_that_depend_on_the_context(lm: LanguageModel) -> None:
    texts = ["She drank a cup of [MASK].", "The army lost the [MASK].", "It was [MASK] in 1912."]
    guesses = fill_mask(lm, texts, k=3)
    assert all(0 < one.probability < 1 for guess in guesses for one in guess)
    assert len({tuple(one.token for one in guess) for guess in guesses}) > 1


def test_the_card_tells_how_it_came_about(mini: Path) -> None:
    card = (mini / "README.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", card, re.M))
    assert int(table["updates (steps)"].replace(",", "")) > 0
    assert int(table["word pieces seen"].replace(",", "")) > 0
    first, last = (
        float(table[key].split()[0])
        for key in ("held-out loss before training", "final held-out loss")
    )
    assert 0 < last < first - 0.5
    shown = {key: table.get(key) for key in RECIPES["mini"].as_dict()}
    assert {"width": "256", "blocks": "4", "heads": "4", "length": "64"}.items() <= shown.items()
    for said in ("Wikipedia", "CC BY-SA 3.0", "GFDL", "page ids 12 to 12334", "not for production"):
        assert said in card
    assert "bertflow_lite pretrain --corpus" in card and "pretrain-publish" in card
    (said,) = re.findall(r"sha256 `([0-9a-f]{64})`", card)
    assert said == hashlib.sha256((mini / "model.safetensors").read_bytes()).hexdigest()


def test_commands_take_it_by_name(tmp_path: Path) -> None:
    sentences = tmp_path / "s.txt"
    sentences.write_text("\n".join(bf.load_sts("mini-sts").sentences[:60]), encoding="utf-8")
    model = ("--model", "mini-bert", "--device", "cpu")
    fitted, vectors = tmp_path / "c", tmp_path / "v.npy"
    ran = [
        ("sts", *model, "--data", "mini-sts", "--calibrate", "none,sn", "--json"),
        ("fit", sentences, *model, "--layers", "last", "--calibrate", "sn", "--out", fitted),
        ("encode", sentences, "--with", fitted, "--device", "cpu", "--out", vectors),
    ]
    results = [CliRunner().invoke(app, list(map(str, command))) for command in ran]
    for result in results:
        assert result.exit_code == 0, result.output
    rows = json.loads(results[0].stdout)["results"]
    assert len(rows) == 2 and all(np.isfinite(row["all"]) for row in rows)
    assert np.load(vectors).shape == (60, 256)
    info = json.loads(CliRunner().invoke(app, ["info", "--json"]).stdout)
    (entry,) = [entry for entry in info["models"] if entry["name"] == "mini-bert"]
    assert entry["found"] and "data/models/mini-bert" in entry["where"]


# ---- how such a folder is made ------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny model for a moment, on the book's own sentences."""
    folder = tmp_path_factory.mktemp("pretrained")
    sentences = iter(bf.load_sts("mini-sts").sentences)
    groups = iter(lambda: list(itertools.islice(sentences, 4)), [])
    text = folder / "text.txt"
    text.write_text("\n\n".join(" ".join(group) for group in groups), encoding="utf-8")
    command = ["pretrain", "--corpus", text, "--out", folder / "run", "--config", "tiny"]
    options = ["--tokens", "3000", "--device", "cpu", "--seed", "4", "--no-bf16"]
    done = CliRunner().invoke(app, list(map(str, [*command, *options])))
    assert done.exit_code == 0, done.output
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """Give a copy of it, to be spoilt."""
    ignore = shutil.ignore_patterns("step-*[1-9]*")  # the first snapshot is enough
    return Path(shutil.copytree(trained, tmp_path / "run", ignore=ignore))


def publish(run: Path, out: Path, **options: Any) -> Path:
    return publish_model(run, out, corpus="Sentences of the book", **options)


def test_what_is_published_is_the_final_model(run: Path, tmp_path: Path) -> None:
    out = publish(run, tmp_path / "models" / "mine", machine="a | desk", command="typed this")
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert [path.name for path in out.parent.iterdir()] == ["mine"]  # nothing else is left
    before, after = (
        AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).state_dict()
        for folder in (run / "final", out)
    )
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor.half().float(), rtol=0, atol=0)
    record = json.loads((run / "record.json").read_text())
    card = (out / "README.md").read_text(encoding="utf-8")
    digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    for said in (
        "# mine", "Sentences of the book.", f"| {record['steps']:,} |", f"| {record['tokens']:,} |",
        f"{record['loss'][-1][3]:.3f} nats", "| machine | a / desk |", "typed this", digest,
        "pretrain --corpus TEXT --out RUN --config tiny --tokens 3000 --seed 4 "
        "--no-bf16\n",
        "BERT of 2 blocks, 32 dimensions and 2 heads",
    ):  # fmt: skip
        assert said in card, said
    for key in RECIPES["tiny"].as_dict():
        assert f"| {key} |" in card
    assert bf.load_encoder(out, max_length=32, device="cpu", cache=False).dim == 32
    assert (out / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    one, two = publish(run, tmp_path / "a" / "m"), publish(run, tmp_path / "b" / "m")
    for name in FILES:
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_a_published_model_is_replaced_only_when_asked(run: Path, tmp_path: Path) -> None:
    out = publish(run, tmp_path / "out")
    (out / "README.md").write_text("old")
    with pytest.raises(FileExistsError, match=r"holds a model already.*--overwrite"):
        publish(run, out)
    assert (out / "README.md").read_text() == "old"
    publish(run, out, overwrite=True)
    assert "# out" in (out / "README.md").read_text(encoding="utf-8")
    (out / "thesis.tex").write_text("three years of work")
    with pytest.raises(ValueError, match=r"something else.*thesis.tex"):
        publish(run, out, overwrite=True)
    assert (out / "thesis.tex").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def change(run: Path, **values: Any) -> None:
    record = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps(record | values))


def stopped(run: Path) -> None:
    """Leave what a run leaves that was stopped."""
    record = json.loads((run / "record.json").read_text())
    (run / "record.json").unlink()
    place = run / "unfinished" / "checkpoints" / "step-000000001"
    place.mkdir(parents=True)
    (place / "state.json").write_text(json.dumps(record | {"step": 1}))


SPOILT = {
    "no-run": (lambda run: (run / "settings.json").unlink(), "is no pre-training run"),
    "no-record": (lambda run: (run / "record.json").unlink(), "no checkpoint yet"),
    "stopped": (stopped, "is unfinished: a model is published from the end"),
    "no-final": (lambda run: shutil.rmtree(run / "final"), "is unfinished"),
    "at-work": (lambda run: (run / "unfinished").mkdir(), "is unfinished"),
    "other-seed": (lambda run: change(run, seed=7), "no checkpoint yet"),
    "cut-loss": (lambda run: change(run, loss=[[0, 0, 1.0, 1.0]]), "not of its last step"),
    "cut-record": (
        lambda run: (run / "record.json").write_text('{"recipe'),
        "record.json of the run cannot be read",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_an_unfinished_or_damaged_run_is_refused(case: str, run: Path, tmp_path: Path) -> None:
    spoil, message = SPOILT[case]
    assert finished_run(run).settings["seed"] == 4
    spoil(run)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        publish(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_losses_and_weights_that_are_no_numbers_are_refused(run: Path, tmp_path: Path) -> None:
    loss = json.loads((run / "record.json").read_text())["loss"]
    loss[-1][3] = float("nan")
    kept = (run / "record.json").read_text()
    change(run, loss=loss)
    with pytest.raises(ValueError, match="losses that are no numbers"):
        publish(run, tmp_path / "out")
    (run / "record.json").write_text(kept)
    model = AutoModelForMaskedLM.from_pretrained(run / "final", dtype=torch.float32)
    with torch.no_grad():
        model.cls.predictions.transform.dense.bias[0] = 1e6  # float16 ends at 65,504
    model.save_pretrained(run / "final")
    with pytest.raises(ValueError, match="float16 does not hold"):
        publish(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_corpus_that_is_not_the_books_must_be_described(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the book's: say what the text was"):
        publish_model(run, tmp_path / "out")
    (known,) = KNOWN_CORPORA
    settings = json.loads((run / "settings.json").read_text())
    (run / "settings.json").write_text(json.dumps(settings | {"corpus": known}))
    change(run, corpus=known)
    card = (publish_model(run, tmp_path / "out") / "README.md").read_text(encoding="utf-8")
    assert "page ids 12 to 12334" in card and "CC BY-SA 3.0" in card


def test_the_command(run: Path, tmp_path: Path) -> None:
    command = ["pretrain-publish", "--run", str(run), "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1 and "--corpus" in refused.stderr
    done = CliRunner().invoke(app, [*command, "--corpus", "Own text."])
    assert done.exit_code == 0, done.stderr
    assert all(name in done.stdout for name in FILES)
    again = CliRunner().invoke(app, [*command, "--corpus", "Own text."])
    assert again.exit_code == 1 and "--overwrite" in again.stderr


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({}, "--config mini"),
        ({"learning_rate": 0.002}, "--config mini --learning-rate 0.002"),
        ({"masked": 0.2, "masked_last": 0.2}, "--config mini --masked 0.2"),
        ({"tied": False, "weight_decay": 0.1}, "--config mini --weight-decay 0.1 --no-tied"),
        ({"masked": 0.25, "clip": 2.0}, "no option sets clip, masked: see the recipe"),
    ],
)
def test_the_command_line_of_a_run(
    changed: dict[str, Any], options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES["mini"].as_dict() | changed
    typed = training_command(
        {"recipe": recipe, "tokens": None, "minutes": 7.5, "seed": 2, "bf16": True}
    )
    assert options in typed and "--minutes 7.5 --seed 2 --bf16" in typed
    if "#" not in typed:  # typer knows all that was written
        words = typed.split()[3:]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 1 and "TEXT" in done.stderr
