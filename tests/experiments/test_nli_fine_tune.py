"""Siamese fine-tuning on NLI: it learns, it can be stopped anywhere, and it says what is wrong."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from typer.testing import CliRunner

from bertflow_lite.cli.common import app
from bertflow_lite.datasets.nli import LABELS, NliPairs
from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.encoders.models import load_model
from bertflow_lite.encoders.transformer import Encoder, load_encoder
from bertflow_lite.experiments import nli_judge
from bertflow_lite.experiments.nli_fine_tune import cut_blocks, fine_tune, run_nli
from bertflow_lite.experiments.nli_judge import (
    CLASSIFIER,
    check_pairs,
    draw,
    hold_out,
    load_nli_record,
    select_pairs,
)
from bertflow_lite.experiments.table8 import run_table8
from bertflow_lite.measures.scores import score_sts

# The vocabulary of the tiny models (conftest.py), but for the two words that give labels away.
FILL = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "tree", "one", "two", "three", "and"]
FAST = {"learning_rate": 3e-3, "max_length": 24, "device": "cpu"}
OPTIONS = {"epochs": 2, "validation": 40, "batch_size": 16, "seed": 3, **FAST}  # 26 steps


def toy_pairs(n: int = 240, seed: int = 0, longest: int = 8) -> NliPairs:
    """Pairs whose label the hypothesis gives away: it has "red", "blue", or neither."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)

    def sentence(extra: str) -> str:
        return " ".join([*rng.choice(FILL, size=rng.integers(2, longest + 1)), extra]).strip()

    premises = tuple(f"{sentence('')} {i}" for i in range(n))
    hypotheses = tuple(sentence(("red", "blue", "")[label]) for label in labels)
    return NliPairs(premises, hypotheses, labels, ("a", "b") * (n // 2), "a toy")


SHORT = toy_pairs(longest=3)  # learned in few steps


@pytest.fixture(scope="module")
def tuned(tiny_bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    """Fine-tune the tiny BERT on the toy, without a stop."""
    out = tmp_path_factory.mktemp("nli") / "tuned"
    options = FAST | {"learning_rate": 8e-3}
    history = fine_tune(
        tiny_bert_folder, SHORT, out, epochs=6, validation=40, batch_size=8, **options
    )
    return out, history


@pytest.fixture(scope="module")
def plain(tiny_bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    """Fine-tune with the options of all runs that are stopped, or begun anew."""
    out = tmp_path_factory.mktemp("nli") / "plain"
    return out, fine_tune(tiny_bert_folder, toy_pairs(), out, **OPTIONS)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors") | load_file(folder / CLASSIFIER)


def assert_same(one: Path, other: Path) -> None:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


def test_learns(tuned) -> None:
    _, history = tuned
    assert history.n_train + history.n_validation == 240 and 35 <= history.n_validation <= 40
    assert history.steps == 6 * 26  # a last batch that is not full counts
    first, last = history.loss[0][1], np.mean([loss for _, loss in history.loss[-10:]])
    assert 0.7 < first < 1.8 and last < 0.5 * first
    # 39 pairs: two threads instead of one move this by one or two of them.
    assert history.accuracy > history.majority + 0.2 and history.majority < 0.6
    # The toy's hypotheses give everything away, so that another's premise does not matter.
    assert history.without_premise > 0.7
    assert history.validation_loss < 0.7 and set(history.by_source) == {"a", "b"}
    assert history.seconds > 0 and history.resumed_at == []


def test_folder_is_a_plain_model(tuned, own_cache: Path) -> None:
    out, history = tuned
    assert {p.name for p in out.iterdir()} >= {"config.json", "model.safetensors", "nli.json"}
    assert not list(out.parent.glob(".*"))  # nothing unfinished is left beside it
    encoder = load_encoder(out, max_length=24, device="cpu")
    assert isinstance(encoder, Encoder) and encoder.n_layers == 2
    record = load_nli_record(out)
    assert record["fingerprint"] == encoder.fingerprint != record["start_fingerprint"]
    assert record["history"]["accuracy"] == history.accuracy
    assert record["base"].startswith("tiny-bert") and "/" not in json.dumps(record["base"])
    vectors = encoder.encode(["the cat sat", "a dog"], ["cls", "last", "last2avg", 0])
    assert len(vectors) == 4


def test_accuracy_by_hand(tuned, own_cache: Path) -> None:
    """The reported accuracy is that of the classifier in the folder on the held-out pairs."""
    from sentence_transformers import SentenceTransformer

    out, history = tuned
    held_out = select_pairs(SHORT, hold_out(SHORT, 40)[1])
    model = SentenceTransformer(str(out), device="cpu")  # a plain folder: mean pooling is added
    u, v = (torch.tensor(model.encode(list(x))) for x in (held_out.premises, held_out.hypotheses))
    matrix = load_file(out / CLASSIFIER)
    assert matrix.keys() == {"weight"}  # no bias, as in the papers
    logits = torch.cat([u, v, (u - v).abs()], 1) @ matrix["weight"].T
    right = (logits.argmax(1).numpy() == held_out.labels).mean()
    assert right == pytest.approx(history.accuracy)
    encoder = load_encoder(out, max_length=24, device="cpu")
    ours = nli_judge._log_probabilities(*nli_judge._embed(encoder, held_out), out)
    np.testing.assert_allclose(ours, torch.log_softmax(logits, 1), atol=1e-4)


@pytest.mark.parametrize("stop_at", [7, 13, 18])  # within an epoch, at its end, in the second
def test_stopped_and_resumed_is_undisturbed(
    plain, tiny_bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    """Ctrl-C after some step, then the same call again: the same weights as without it."""
    from bertflow_lite.experiments import nli_fine_tune as nli_trainer

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    whole, history = plain

    class Stopping(nli_trainer._Watch):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            if state.global_step == stop_at:
                signal.raise_signal(signal.SIGINT)
            super().on_step_end(args, state, control, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(nli_trainer, "_Watch", Stopping)
        with pytest.raises(KeyboardInterrupt, match=f"step {stop_at} of 26"):
            fine_tune(tiny_bert_folder, toy_pairs(), tmp_path / "stopped", **OPTIONS)
    assert not (tmp_path / "stopped").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = fine_tune(tiny_bert_folder, toy_pairs(), tmp_path / "stopped", **OPTIONS)
    assert again.resumed_at == [stop_at]
    assert_same(whole, tmp_path / "stopped")
    assert again.accuracy == history.accuracy
    assert [step for step, _ in again.loss] == [step for step, _ in history.loss]
    np.testing.assert_allclose([x for _, x in again.loss], [x for _, x in history.loss], atol=1e-3)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.thorough
def test_killed_and_resumed(plain, tiny_bert_folder: Path, tmp_path: Path) -> None:
    """Kill the process outright: the same call goes on from the last whole checkpoint."""
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[3])\n"
        "from test_nli_fine_tune import OPTIONS, toy_pairs\n"
        "from bertflow_lite.experiments import nli_fine_tune as nli\n"
        "class Killed(nli._Watch):\n"
        "    def on_step_end(self, args, state, control, **kwargs):\n"
        "        if state.global_step == 17:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        super().on_step_end(args, state, control, **kwargs)\n"
        "nli._Watch = Killed\n"
        "nli.fine_tune(sys.argv[1], toy_pairs(), sys.argv[2], checkpoint_steps=5, **OPTIONS)\n"
    )
    out = tmp_path / "killed"
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", script, str(tiny_bert_folder), str(out), here]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert not out.exists()
    torn = tmp_path / ".killed.unfinished" / "checkpoints" / "checkpoint-20"
    torn.mkdir()  # as if killed while writing it
    (torn / "trainer_state.json").write_text('{"global')
    history = fine_tune(tiny_bert_folder, toy_pairs(), out, **OPTIONS)
    assert history.resumed_at == [15]
    assert_same(plain[0], out)


def test_unfinished_run_of_other_settings(plain, tiny_bert_folder: Path, tmp_path: Path) -> None:
    work = tmp_path / ".out.unfinished"
    work.mkdir()
    (work / "settings.json").write_text('{"seed": 7}')
    (work / "checkpoints").mkdir()
    options = {"epochs": 1, "validation": 0, "batch_size": 64, **FAST}
    with pytest.raises(ValueError, match=r"begun with another .*seed.*overwrite"):
        fine_tune(tiny_bert_folder, toy_pairs(), tmp_path / "out", **options)
    shutil.copytree(plain[0], tmp_path / "out")  # of a finished run
    with pytest.raises(ValueError, match="exists already"):
        fine_tune(tiny_bert_folder, toy_pairs(), tmp_path / "out", **options)
    record = load_nli_record(tmp_path / "out")
    history = fine_tune(tiny_bert_folder, toy_pairs(), tmp_path / "out", overwrite=True, **options)
    assert history.accuracy is None and history.n_validation == 0
    assert load_nli_record(tmp_path / "out")["fingerprint"] != record["fingerprint"]


def test_seed_and_random_state(plain, tiny_bert_folder: Path, tmp_path: Path) -> None:
    """The seed alone decides; the random states of the process stay as they were."""
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    numpy_state = np.random.get_state
    before = torch.get_rng_state(), numpy_state()[1].tolist(), random.getstate()
    fine_tune(tiny_bert_folder, toy_pairs(), tmp_path / "again", **OPTIONS)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == numpy_state()[1].tolist() and before[2] == random.getstate()
    assert_same(plain[0], tmp_path / "again")


@pytest.mark.parametrize("keep", [1, 2])
def test_cut_blocks_keeps_hidden_states(tiny_bert: Encoder, own_cache: Path, keep: int) -> None:
    sentences = ["the cat sat on the mat .", "a dog", "one two three"]
    cut = Encoder(cut_blocks(load_model_of(tiny_bert), keep), max_length=24, cache=False)
    assert cut.n_layers == keep and tiny_bert.n_layers == 2
    states = [*range(keep + 1)]
    ours, whole = cut.encode(sentences, states), tiny_bert.encode(sentences, states)
    for state in ours:
        np.testing.assert_array_equal(ours[state], whole[state])
    assert (cut.fingerprint == tiny_bert.fingerprint) == (keep == 2)


def load_model_of(encoder: Encoder):
    return load_model(encoder.name, device="cpu")


def test_cut_model_can_be_saved_and_tuned_without_a_network(
    tiny_bert_folder: Path, tmp_path: Path, own_cache, no_network: None
) -> None:
    """No library may ask anybody about a model that lies in a folder."""
    options = {"validation": 40, "batch_size": 32, "keep_blocks": 1, "limit": 100, **FAST}
    history = fine_tune(tiny_bert_folder, toy_pairs(), tmp_path / "cut", **options)
    assert history.n_train == 100 and history.steps == 4
    assert load_encoder(tmp_path / "cut", max_length=24).n_layers == 1
    assert load_nli_record(tmp_path / "cut")["keep_blocks"] == 1


def test_cut_blocks_refuses(tiny_bert: Encoder, tiny_llama: Encoder) -> None:
    for keep in (0, 3):
        with pytest.raises(ValueError, match="2 blocks"):
            cut_blocks(load_model_of(tiny_bert), keep)
    with pytest.raises(ValueError, match="not built like BERT"):
        cut_blocks(load_model_of(tiny_llama), 1)


def test_gradients_are_the_librarys(tiny_bert_folder: Path) -> None:
    """Without dropout, rows of like length give the loss and gradients of plain SoftmaxLoss."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import SoftmaxLoss

    from bertflow_lite.experiments.nli_fine_tune import make_siamese

    ours = make_siamese(tiny_bert_folder, max_length=24, bias=True, device=torch.device("cpu"))
    plain = SentenceTransformer(str(tiny_bert_folder), device="cpu")
    theirs = SoftmaxLoss(plain, 16, 3)
    theirs.classifier.load_state_dict(ours.classifier.state_dict())
    for module in (*ours.modules(), *theirs.modules()):
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for model in (ours.model, plain):  # attention reads its rate from the configuration
        for module in model.modules():
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.0
    pairs = toy_pairs(64)
    labels = torch.tensor(pairs.labels)
    losses = []
    for loss in (ours, theirs):
        loss.train()
        features = [loss.model.preprocess(list(x)) for x in (pairs.premises, pairs.hypotheses)]
        value = loss(features, labels)
        value.backward()
        losses.append(value.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    gradients = [
        {n.split("model.")[-1]: p.grad for n, p in loss.named_parameters() if p.grad is not None}
        for loss in (ours, theirs)
    ]
    assert gradients[0].keys() == gradients[1].keys() and len(gradients[0]) > 30
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-3, atol=1e-6)


@given(st.data())
def test_hold_out(data: st.DataObject) -> None:
    """Sizes, classes and sources are right, and no premise is on both sides."""
    n_groups = data.draw(st.integers(60, 120))
    premises = [f"Premise {i}" for i in range(n_groups) for _ in range(3)]
    labels = [label for _ in range(n_groups) for label in (0, 1, 2)]
    sources = ["one" if i < 90 else "two" for i in range(3 * n_groups)]
    order = data.draw(st.permutations(range(3 * n_groups)))
    pairs = select_pairs(
        NliPairs(tuple(premises), tuple(premises), np.array(labels), tuple(sources), "toy"), order
    )
    wanted = data.draw(st.integers(9, n_groups))
    train, held_out = hold_out(pairs, wanted)
    assert sorted([*train, *held_out]) == list(range(3 * n_groups))
    assert wanted - 9 <= len(held_out) <= wanted + 3
    assert not {pairs.premises[i] for i in train} & {pairs.premises[i] for i in held_out}
    counts = np.bincount(pairs.labels[held_out], minlength=3)
    assert counts.max() - counts.min() <= 2
    share = sum(pairs.sources[i] == "one" for i in held_out) / len(held_out)
    assert abs(share - 90 / (3 * n_groups)) < 0.2
    again = hold_out(pairs, wanted)
    np.testing.assert_array_equal(held_out, again[1])


def test_draw_is_a_sample_and_nested() -> None:
    rows = np.arange(5, 105)
    some, more = draw(rows, 20), draw(rows, 50)
    assert set(some) < set(more) < set(rows) and list(some) == sorted(some) and len(some) == 20
    np.testing.assert_array_equal(draw(rows, 1000), rows)


def test_premises_are_the_same_in_other_type() -> None:
    premises = ("A dog , ran .", "a dog, ran.") * 30 + ("The cat sat .",) * 40
    labels = np.array([0] * 100)
    pairs = NliPairs(premises, premises, labels, ("s",) * 100, "toy")
    train, held_out = hold_out(pairs, 50)
    assert {premises[i] for i in held_out} == {"The cat sat ."} and len(train) == 60


@pytest.mark.parametrize("n", [-1, 121])
def test_hold_out_refuses(n: int) -> None:
    with pytest.raises(ValueError, match="0 to 120 is possible"):
        hold_out(toy_pairs(), n)


def test_bad_pairs_and_arguments(tiny_bert_folder: Path, tmp_path: Path) -> None:
    pairs = toy_pairs(60)
    bad = NliPairs(pairs.premises, pairs.hypotheses, pairs.labels - 1, pairs.sources, "toy")
    with pytest.raises(ValueError, match=r"labels must be 0, 1 or 2; there is -1"):
        fine_tune(tiny_bert_folder, bad, tmp_path / "x", validation=0, **FAST)
    with pytest.raises(ValueError, match="no pairs"):
        check_pairs(NliPairs((), (), np.array([], dtype=int), (), ""))
    for name, value in (("epochs", 0), ("batch_size", 0), ("learning_rate", 0.0)):
        with pytest.raises(ValueError, match=name):
            fine_tune(tiny_bert_folder, pairs, tmp_path / "x", **FAST | {name: value})
    with pytest.raises(ValueError, match="max_length"):
        fine_tune(tiny_bert_folder, pairs, tmp_path / "x", **FAST | {"max_length": 99})
    with pytest.raises(FileNotFoundError, match=r"nli\.json"):
        load_nli_record(tiny_bert_folder)
    assert list(tmp_path.iterdir()) == []


def test_diverging_run_is_an_error(tiny_bert_folder: Path, tmp_path: Path) -> None:
    options = {"validation": 0, "batch_size": 8, "device": "cpu", "max_length": 24}
    with pytest.raises(FloatingPointError, match="learning rate"):
        fine_tune(
            tiny_bert_folder, toy_pairs(), tmp_path / "x", learning_rate=1e38, epochs=9, **options
        )


def test_one_process_at_a_time(tiny_bert_folder: Path, tmp_path: Path) -> None:
    from filelock import FileLock

    work = tmp_path / ".x.unfinished"
    work.mkdir()
    with FileLock(work / "lock"), pytest.raises(ValueError, match="another process"):
        fine_tune(tiny_bert_folder, toy_pairs(), tmp_path / "x", validation=0, **FAST)


def test_environment_is_left_alone(tuned) -> None:
    assert not [name for name in os.environ if name.startswith("ACCELERATE")]


# The command nli, and Table 8.


@pytest.fixture(scope="module")
def models(tiny_bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Fine-tune the tiny BERT with two seeds."""
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 4):
        run_nli(
            str(tiny_bert_folder),
            folder / f"seed{seed}",
            pairs=toy_pairs(),
            sts="mini-sts",
            max_length=24,
            device="cpu",
            seed=seed,
            validation=0,
            batch_size=64,
            learning_rate=3e-3,
        )
    return [folder / "seed0", folder / "seed4"]


def nli_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the toy in the form of a file of NLI pairs, and name its folder."""
    pairs = toy_pairs()
    columns = zip(pairs.sources, pairs.premises, pairs.hypotheses, pairs.labels, strict=True)
    lines = ["source\tpremise\thypothesis\tlabel"]
    lines += ["\t".join([*texts, LABELS[label]]) for *texts, label in columns]
    (tmp_path / "data" / "nli").mkdir(parents=True)
    with gzip.open(tmp_path / "data" / "nli" / "nli_pairs.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    monkeypatch.setenv("BERTFLOW_DATA", str(tmp_path / "data"))


def test_command(
    tiny_bert_folder: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nli_folder(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    arguments = ["nli", "--model", str(tiny_bert_folder), "--out", "tuned", "--keep-blocks", "1"]
    arguments += ["--validation", "40", "--max-length", "24", "--sts", "mini-sts", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--device", "cpu"])
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert str(tmp_path) not in result.stdout
    results = content["results"]
    assert results["record"]["history"]["n_train"] > 195
    assert len(results["blocks"]) == 3  # the whole model's hidden states
    assert results["sts"]["before"]["last"] == results["blocks"][1]
    pairs = load_sts("mini-sts")
    vectors = load_encoder("tuned", max_length=24, device="cpu").encode(pairs.sentences, "last")
    assert results["sts"]["after"]["last"] == pytest.approx(score_sts(pairs, vectors).all, abs=1e-3)
    assert content["how"]["data"].keys() == {"mini-sts test", "nli"}
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 1 and "'tuned' exists already" in again.stderr


def test_command_stopped(
    tiny_bert_folder: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertflow_lite.experiments import nli_fine_tune as nli_runs

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("stopped after step 3 of 9")

    nli_folder(tmp_path, monkeypatch)
    monkeypatch.setattr(nli_runs, "fine_tune", stopped)
    out = str(tmp_path / "x")
    arguments = ["nli", "--model", str(tiny_bert_folder), "--out", out, "--sts", "mini-sts"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 130
    assert result.stderr == (
        "stopped after step 3 of 9; the same command goes on from the last checkpoint\n"
    )


def test_table8(models: list[Path], own_cache: Path) -> None:
    results = run_table8(models, data="mini-sts", layers=("last2avg",), max_length=24, device="cpu")
    rows = {row["row"]: row for row in results["rows"]}
    assert list(rows) == [
        "mean of the last layer",
        "last2avg",
        "last2avg + flow (target)",
        "last2avg + flow (target), first model, flow's seed alone",
    ]
    pairs = load_sts("mini-sts")
    for folder, value in zip(models, rows["last2avg"]["values"], strict=True):
        raw = load_encoder(folder, max_length=24, device="cpu").encode(pairs.sentences)
        assert value == pytest.approx(score_sts(pairs, raw).all, abs=1e-3)
    for row in rows.values():
        assert len(row["values"]) == 2
        assert row["mean"] == pytest.approx(np.mean(row["values"]), abs=1e-3)
        assert row["std"] == pytest.approx(np.std(row["values"], ddof=1), abs=1e-3)
        assert row["median"] == pytest.approx(np.median(row["values"]), abs=1e-3)
    flow, alone = rows["last2avg + flow (target)"], list(rows.values())[-1]
    assert flow["values"][0] == alone["values"][0] != alone["values"][1] != flow["values"][1]
    assert [model["seed"] for model in results["models"]] == [0, 4]
    assert str(models[0]) not in json.dumps(results)
    json.dumps(results, allow_nan=False)


def test_table8_refuses(models: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="different seeds"):
        run_table8(models[:1], data="mini-sts")
    with pytest.raises(ValueError, match="different seeds"):
        run_table8([models[0], models[0]], data="mini-sts")
    other = tmp_path / "other"
    other.mkdir()
    record = json.loads((models[1] / "nli.json").read_text())
    (other / "nli.json").write_text(json.dumps(record | {"learning_rate": 1.0}))
    with pytest.raises(ValueError, match=r"more than their seed: learning_rate is 0\.003, 1\.0"):
        run_table8([models[0], other], data="mini-sts")
    with pytest.raises(FileNotFoundError, match=r"nli\.json"):
        run_table8([tmp_path, models[0]])
