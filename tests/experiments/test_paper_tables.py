"""Tables from the command line: what they hold, what they print, how they are resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import bertflow_lite as bf
from bertflow_lite.cli.common import app
from bertflow_lite.cli.tables import EXPERIMENTS, find_experiment
from bertflow_lite.encoders.models import PACKAGED_MODELS
from bertflow_lite.experiments import table1 as table1_experiment
from bertflow_lite.experiments import table5 as baseline_table
from bertflow_lite.experiments import tables2_3 as sts_tables
from bertflow_lite.experiments.runs import KeptResults, typed_command
from bertflow_lite.experiments.scoring import Row, RunOptions, encode_set, fit_and_score, run_sts
from bertflow_lite.experiments.table1 import Neighbors, run_table1
from bertflow_lite.experiments.table8 import format_table8
from bertflow_lite.experiments.tables2_3 import ConvergedFlow, choose_sentences, fit_nli_flow

needs_glove = pytest.mark.skipif(
    PACKAGED_MODELS["glove"].path() is None, reason="glove is not installed"
)
MINI = ["--model", "glove", "--data", "mini-sts", "--seeds", "2", "--threads", "1"]


@pytest.fixture(autouse=True)
def few_nli_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the NLI corpus, which not every machine has: sentences of mini-sts."""
    texts = tuple(dict.fromkeys(bf.load_sts("mini-sts").sentences))[:100]
    some = SimpleNamespace(sentences=texts, fingerprint="0" * 16, source="a test")
    monkeypatch.setattr("bertflow_lite.datasets.nli.load_nli_sentences", lambda **_: some)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resample less, and let a flow converge in two passes, where numbers do not matter."""
    few = partial(bf.bootstrap_interval, n_resamples=50)
    monkeypatch.setattr("bertflow_lite.experiments.scoring.bootstrap_interval", few)
    monkeypatch.setattr(ConvergedFlow, "most_epochs", 2)


@pytest.fixture
def results_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("bertflow_lite.experiments.runs.data_file", lambda _: tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def glove():
    return bf.load_encoder("glove")


@pytest.fixture(scope="module")
def cloud() -> np.ndarray:
    """A correlated, shifted cloud: something for a flow to learn."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 8)) @ rng.normal(size=(8, 8))
    return (np.tanh(x) + 3).astype(np.float32)


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


# Table 2


@pytest.mark.usefixtures("quick")
@needs_glove
def test_table2_is_stored_and_printed_beside_the_paper(results_folder: Path, own_cache) -> None:
    result = invoke("table", "2", *MINI, "--data", "mini-sts")
    assert result.exit_code == 0, result.output
    run = json.loads((results_folder / "table2" / "glove.json").read_text())
    how, rows = run["how"], run["results"]["rows"]
    assert how["model"] == "glove" and how["seconds"] > 0 and how["threads"] == 1
    assert how["data"] == {"mini-sts": bf.load_sts("mini-sts").fingerprint}
    assert [row["row"] for row in rows] == [
        "raw",
        "whitening",
        "whitening to a third",
        "flow (NLI), 0.15 epoch at 2e-5",
        "flow (NLI), to convergence",
        "flow (target)",
    ]
    assert rows[2]["calibrator"] == "whiten:16"  # a third of 50
    for row in rows:
        scores = row["scores"]["mini-sts"]
        once = "flow" not in row["row"] or row["row"].endswith("convergence")
        assert len(scores["wmean"]) == (1 if once else 2)
        assert scores["low"] < scores["all"][0] < scores["high"]
    assert f"{rows[0]['scores']['mini-sts']['wmean'][0]:.2f}" in result.stdout
    assert not list((own_cache / "partial").glob("*"))  # complete: nothing is left over


@needs_glove
def test_rows_are_what_run_sts_gives(glove) -> None:
    """The older way to score shares no code with the tables but the calibrators and the score."""
    encoded = encode_set(glove, "mini-sts", ["mean"])["mean"]
    for name in ("none", "whiten", "flow"):
        (peer,) = run_sts(glove, ["mini-sts"], ["mean"], [name])
        mine = fit_and_score(Row("x", name, "none" if name == "none" else "target"), encoded)
        assert mine["all"] == pytest.approx(peer["all"], abs=1e-4)
        assert (mine["low"], mine["high"]) == pytest.approx((peer["low"], peer["high"]), abs=1e-4)
        assert mine["fitted_on"] == peer["fitted_on"]


@pytest.mark.usefixtures("quick")
@needs_glove
def test_a_transformer_has_the_paper_s_rows(tiny_bert) -> None:
    results = sts_tables.run_table2(tiny_bert, RunOptions(seeds=1, layers=["1"], data=["mini-sts"]))
    rows = [(row["layers"], row["row"]) for row in results["rows"] if "model" not in row]
    assert [row for row in rows if row[1] == "raw"] == [
        (layer, "raw") for layer in ("cls", "last", "last2avg", "first-last", "1")
    ]
    assert {layer for layer, row in rows if row == "flow (target)"} == {
        "last", "last2avg", "first-last", "1",
    }  # fmt: skip
    assert results["rows"][0]["model"] == "glove"
    gains = sts_tables.flow_gains(results)
    by_row = {(r["layers"], r["row"]): sts_tables.mean_scores(r) for r in results["rows"]}
    difference = by_row["1", "flow (target)"]["mini-sts"] - by_row["1", "raw"]["mini-sts"]
    assert gains["1"].average == pytest.approx(difference)
    text = sts_tables.format_table2(results)
    assert f"{gains['1'].average:+.2f}" in text and "its text: +5.88" in text


@pytest.mark.data
@pytest.mark.slow
def test_train_only_is_a_row_where_there_is_a_train_split(real_data: Path, tiny_bert) -> None:
    encoded = encode_set(tiny_bert, "STS-B", ["last"])["last"]
    assert len(encoded.fit["train"]) == 2 * 5749
    assert len(encoded.fit["target"]) == 2 * (5749 + 1500 + 1379)
    assert encoded.fit["target"][:5749] == pytest.approx(encoded.fit["train"][:5749], abs=1e-6)
    assert "train" not in encode_set(tiny_bert, "sts16", ["last"])["last"].fit


@pytest.mark.usefixtures("quick")
def test_a_causal_model_has_no_cls_row_and_nli_rows_are_left_out_where_there_is_no_nli(
    tiny_llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(**_: object) -> None:
        raise FileNotFoundError("not here")

    monkeypatch.setattr("bertflow_lite.datasets.nli.load_nli_sentences", missing)
    results = sts_tables.run_table2(tiny_llama, RunOptions(seeds=1, data=["mini-sts"]))
    assert "left out" in results["settings"]["nli"]
    assert not [row for row in results["rows"] if row["fit_on"] == "nli"]
    assert results["settings"]["layers"] == ["last", "last2avg", "first-last"]


@pytest.mark.usefixtures("quick")
@needs_glove
def test_table3_wants_a_transformer_and_shows_published_rows(glove, tiny_bert) -> None:
    with pytest.raises(ValueError, match="fine-tuned"):
        sts_tables.run_table3(glove)
    results = sts_tables.run_table3(tiny_bert, RunOptions(seeds=1, data=["mini-sts"]))
    assert results["settings"]["layers"] == ["last", "last2avg"]
    results["settings"]["data"] = {"stsb": "", "sick-r": ""}  # the published columns of these
    for row in results["rows"]:
        row["scores"] = dict.fromkeys(["stsb", "sick-r"], row["scores"]["mini-sts"])
    text = sts_tables.format_table3(results)
    for published in ("InferSent - GloVe", "USE", "SRoBERTa-large-NLI", "81.18"):
        assert published in text


# flow (NLI)


def test_the_published_schedule_hardly_moves_a_flow_on_a_small_corpus(cloud) -> None:
    start = bf.FlowCalibrator(epochs=0).fit(cloud)
    published = fit_nli_flow(cloud, form="published")
    converged = fit_nli_flow(cloud, form="converged")
    assert published.history_.steps == round(0.15 * len(cloud)) // 32
    moved = start.bits_per_dim(cloud) - published.bits_per_dim(cloud)
    assert abs(moved) < 0.1 * (start.bits_per_dim(cloud) - converged.bits_per_dim(cloud))


def test_convergence_keeps_the_best_flow_on_held_out_rows(cloud) -> None:
    flow = ConvergedFlow(batch_size=32, random_state=3).fit(cloud)
    bits = flow.held_out_bits_
    held_out = cloud[np.random.default_rng(3).permutation(len(cloud))[: len(cloud) // 10]]
    assert flow.bits_per_dim(held_out) == pytest.approx(min(bits), abs=1e-6)
    assert len(bits) > 2 and min(bits) < bits[0]
    gains = -np.diff(np.minimum.accumulate(bits))
    assert (gains[:-1] >= flow.least_gain).all()  # it went on while that paid ...
    assert gains[-1] < flow.least_gain or len(bits) == 31  # ... and no longer
    again = ConvergedFlow(batch_size=32, random_state=3).fit(cloud)
    assert again.held_out_bits_ == bits


def test_too_little_nli_or_another_form_is_an_error(cloud) -> None:
    with pytest.raises(ValueError, match="give 20 or more"):
        fit_nli_flow(cloud[:10], form="converged")
    with pytest.raises(ValueError, match="must be one of published, converged"):
        fit_nli_flow(cloud, form="full")  # type: ignore[arg-type]


def test_a_large_corpus_is_drawn_from_the_same_way_each_time() -> None:
    texts = [str(i) for i in range(100)]
    assert choose_sentences(texts) == texts
    some = choose_sentences(texts, 30)
    assert len(set(some)) == 30 and some == choose_sentences(texts, 30)


# Table 5


def halves(name: str, split: str, **_: object) -> bf.SentencePairs:
    """Make mini-sts into a set with a validation split, for machines without the real sets."""
    pairs = bf.load_sts("mini-sts")
    if split == "all":
        return pairs
    return pairs.select(np.arange(len(pairs)) % 2 == (split == "test"))


@needs_glove
def test_what_is_tuned_is_best_on_validation_and_never_sees_test_scores(
    glove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline_table, "load_sts", halves)
    rows = {
        row["row"]: row for row in baseline_table.run_table5(glove, RunOptions(seeds=1))["rows"]
    }
    tuned = [row for row in rows.values() if "chosen" in row]
    assert [len(row["dev_curve"]) for row in tuned] == [20, 20, 2]
    for row in tuned:
        curve = row["dev_curve"]
        assert curve[str(row["chosen"])] == max(curve.values())
        assert row["dev"] == [pytest.approx(max(curve.values()), abs=1e-3)]
    flow = rows.pop("flow (target)")
    assert "flow_lead" not in flow
    for row in rows.values():  # paired: the difference of two scores, in a narrower interval
        lead = row["flow_lead"]
        difference = flow["test"]["all"][0] - row["test"]["all"][0]
        assert lead["estimate"] == pytest.approx(difference, abs=1e-3)
        assert lead["low"] <= lead["estimate"] <= lead["high"]
    close, own = rows["whitening, full"]["flow_lead"], rows["whitening, full"]["test"]
    assert close["high"] - close["low"] < own["high"] - own["low"]

    def shuffled(name: str, split: str, **_: object) -> bf.SentencePairs:
        pairs = halves(name, split)
        if split == "test":
            np.random.default_rng(0).shuffle(pairs.gold)
        return pairs

    monkeypatch.setattr(baseline_table, "load_sts", shuffled)
    other = {
        row["row"]: row for row in baseline_table.run_table5(glove, RunOptions(seeds=1))["rows"]
    }
    assert other.keys() - rows.keys() == {"flow (target)"}  # the tuned value is part of the name
    assert other["raw"]["test"]["all"] != rows["raw"]["test"]["all"]


@needs_glove
@pytest.mark.parametrize("family", ["natsv", "sn+natsv", "whiten"])
def test_tuning_from_one_fit_is_tuning_from_many(family: str, glove) -> None:
    pairs = bf.load_sts("mini-sts")
    x = glove.encode(pairs.sentences)
    scores = baseline_table.tune(family, [1, 7, 20], x, pairs, x)
    for value, score in scores.items():
        peer = bf.make_calibrator(f"{family}:{value}").fit_transform(x)
        assert score == pytest.approx(bf.score_sts(pairs, peer).all, abs=1e-3)


# Interruption


def test_finished_parts_come_back_and_other_settings_are_another_run(tmp_path: Path) -> None:
    calls = []

    def part(value: float) -> float:
        calls.append(value)
        return value

    kept = KeptResults("t", {"seed": 0}, tmp_path)
    assert kept("a", lambda: part(1.5)) == 1.5
    again = KeptResults("t", {"seed": 0}, tmp_path)
    assert again.found == 1 and again("a", lambda: part(2.5)) == 1.5
    assert again("b", lambda: part(3.5)) == 3.5
    assert KeptResults("t", {"seed": 1}, tmp_path).found == 0
    assert calls == [1.5, 3.5]
    assert again.seconds > 0
    again.remove()
    assert KeptResults("t", {"seed": 0}, tmp_path).found == 0 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["", "{", '{"settings": {"seed": 0}}', "[]"])
def test_a_damaged_file_means_a_new_start(damage: str, tmp_path: Path) -> None:
    kept = KeptResults("t", {"seed": 0}, tmp_path)
    kept("a", lambda: 1)
    kept.path.write_text(damage)
    again = KeptResults("t", {"seed": 0}, tmp_path)
    assert again.found == 0 and again("a", lambda: 2) == 2


def test_a_full_disk_is_a_warning_once(tmp_path: Path, monkeypatch, caplog) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("bertflow_lite.experiments.runs.write_json", full)
    kept = KeptResults("t", {}, tmp_path)
    assert [kept("a", lambda: 1), kept("b", lambda: 2), kept("a", lambda: 3)] == [1, 2, 1]
    assert caplog.text.count("no space left") == 1


@pytest.mark.thorough  # the next test stops a run in its own process
@needs_glove
def test_a_killed_run_goes_on_where_it_was(own_cache: Path, results_folder: Path) -> None:
    command = ["table", "2", *MINI, "--seeds", "5", "--no-store"]
    process = subprocess.Popen(
        [sys.executable, "-m", "bertflow_lite", *command],
        env={**os.environ, "BERTFLOW_CACHE": str(own_cache), "BERTFLOW_DATA": str(own_cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    done: dict[str, object] = {}
    while len(done) < 4 and process.poll() is None:
        time.sleep(0.02)
        for path in (own_cache / "partial").glob("table2-*.json"):
            done = json.loads(path.read_text())["parts"]
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, process.stderr.read().decode()

    (left,) = (own_cache / "partial").glob("table2-*.json")
    done = json.loads(left.read_text())["parts"]
    computed: list[str] = []
    real = KeptResults.__call__

    def watch(self, key, compute):
        return real(self, key, lambda: computed.append(key) or compute())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptResults, "__call__", watch)
        result = invoke(*command, "--json")
    assert result.exit_code == 0, result.output
    assert f"going on from {len(done)} finished parts" in result.stderr
    assert computed and not done.keys() & set(computed)
    resumed = json.loads(result.stdout)["results"]
    assert not left.exists()
    whole = json.loads(invoke(*command, "--json").stdout)["results"]
    assert whole["rows"] == resumed["rows"]


@pytest.mark.usefixtures("quick")
@needs_glove
def test_a_stopped_run_goes_on_where_it_was(own_cache: Path, monkeypatch) -> None:
    """Ctrl-C is exit 130; what was finished lies in a file already, as a kill would leave it."""
    real, calls, at_once = sts_tables.fit_and_score, [], []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            (left,) = (own_cache / "partial").glob("table2-*.json")
            at_once.append(left.read_text())
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(sts_tables, "fit_and_score", interrupted)
    command = ["table", "2", *MINI, "--seeds", "1", "--no-store", "--json"]
    assert invoke(*command).exit_code == 130
    (left,) = (own_cache / "partial").glob("table2-*.json")
    kept = left.read_text()
    assert [kept] == at_once
    done = json.loads(kept)["parts"]
    assert len(done) == 2
    computed: list[str] = []
    keep = KeptResults.__call__

    def watch(self, key, compute):
        return keep(self, key, lambda: computed.append(key) or compute())

    with monkeypatch.context() as patch:
        patch.setattr(KeptResults, "__call__", watch)
        resumed = invoke(*command)
    assert resumed.exit_code == 0 and "going on from 2 finished parts" in resumed.stderr
    assert computed and not done.keys() & set(computed)
    assert not left.exists()
    left.write_text(kept)
    anew = invoke(*command, "--no-resume")
    assert anew.exit_code == 0 and "going on" not in anew.stderr
    rows = [json.loads(result.stdout)["results"]["rows"] for result in (resumed, anew)]
    assert rows[0] == rows[1]


# The command line and the registry


def test_every_experiment_can_be_imported() -> None:
    assert list(EXPERIMENTS) == [
        "table1", "table2", "table3", "table4", "table5", "table6", "table8", "figure1", "figure2",
    ]  # fmt: skip
    for one in EXPERIMENTS.values():
        functions = one.load()
        assert callable(functions.run) and callable(functions.format)
        assert (functions.draw is not None) == one.name.startswith("figure")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["table", "7", "--model", "glove"], "the preset 'paper'"),
        (["table", "9", "--model", "glove"], "there are 1, 2, 3, 4, 5, 6, 8"),
        (["figure", "3", "--model", "glove"], "there are 1, 2"),
        (["table", "1", "--model", "glove"], "word vectors"),
        (["table", "2", "--model", "minlm"], "Did you mean 'minilm'"),
        (["table", "2", "--model", "glove", "--data", "stbs"], "Did you mean 'stsb'"),
        (["table", "2", "--model", "glove", "--model", "minilm"], "about one model"),
        (["table", "2", "--model", "glove", "--out", "x.html"], "the ending must be"),
        (["figure", "1", "--model", "glove", "--out", "x.md"], "the ending must be"),
        (["table", "2", "--model", "glove", "--out", "no/such/x.md"], "there is no folder"),
        (["table", "5", "--model", "glove", "--nli-sentences", "99"], "has no flow (NLI)"),
    ],
)
@needs_glove
def test_errors_are_one_line_with_advice(arguments: list[str], says: str, own_cache) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 1 and result.stderr.startswith("error: ")
    assert says in result.stderr and "Traceback" not in result.output


@needs_glove
def test_all_runs_what_makes_sense_and_says_what_failed(own_cache, monkeypatch) -> None:
    from bertflow_lite.cli import tables as commands

    ran = []

    def stand_in(kind: str, number: int, options: dict) -> None:
        ran.append(f"{kind}{number}")
        if number == 4:
            raise FileNotFoundError("QNLI is not here")

    monkeypatch.setattr(commands, "_measure", stand_in)
    result = invoke("all", "--model", "glove")
    assert result.exit_code == 1
    assert "QNLI is not here" in result.stderr and "not done" in result.stderr
    assert ran == ["table2", "table4", "table5", "table6", "figure1", "figure2"]
    ran.clear()
    assert invoke("all", "--model", "a", "--model", "b").exit_code == 0
    assert ran == ["table8"]


@pytest.mark.usefixtures("quick")
@needs_glove
def test_a_table_is_written_in_three_formats(tmp_path: Path, own_cache, monkeypatch) -> None:
    command = ["table", "2", *MINI, "--seeds", "1", "--no-store", "--out"]
    found: dict[str, object] = {}
    keep = KeptResults.__call__

    def once(self, key, compute):
        """Compute a part for the first format alone."""
        if key not in found:
            found[key] = keep(self, key, compute)
        return found[key]

    monkeypatch.setattr(KeptResults, "__call__", once)
    for ending, start in (("json", "{"), ("md", "| layers"), ("tex", r"\begin{tabular}")):
        path = tmp_path / f"t.{ending}"
        assert invoke(*command, str(path)).exit_code == 0, ending
        assert path.read_text(encoding="utf-8").startswith(start), ending


@pytest.mark.usefixtures("quick")
def test_a_folder_is_stored_by_its_last_part(
    tiny_bert_folder: Path, results_folder: Path, own_cache, monkeypatch
) -> None:
    command = ["table", "3", "--model", str(tiny_bert_folder), "--data", "mini-sts"]
    command += ["--seeds", "1", "--max-length", "24"]
    monkeypatch.setattr(sys, "argv", ["bertflow-lite", *command])
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    text = (results_folder / "table3" / f"{tiny_bert_folder.name}.json").read_text()
    assert json.loads(text)["how"]["model"] == tiny_bert_folder.name
    assert str(tiny_bert_folder.parent) not in text


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("--model bert-base-uncased", "--model bert-base-uncased"),
        ("--model org/model", "--model org/model"),
        ("--model /data/x/my-model", "--model my-model"),
        ("--model=/data/x/my-model", "--model=my-model"),
        ("--model ./runs/my-model/", "--model my-model"),
        ("--out ~/tables/t.md", "--out t.md"),
        ("--out tables/t.md", "--out t.md"),
        ("--data stsb,sick-r --seeds 3", "--data stsb,sick-r --seeds 3"),
    ],
)
def test_a_stored_command_names_no_folder_of_this_machine(typed: str, written: str) -> None:
    assert typed_command(typed.split()) == f"python -m bertflow_lite {written}"


def test_table1_is_the_one_of_the_geometry_run(monkeypatch, thorough: bool) -> None:
    if PACKAGED_MODELS["minilm"].path() is None:
        pytest.skip("minilm is not installed")
    run = bf.load_run("geometry", "minilm")["results"]["words"]
    stored, encoder = run["table1"], bf.load_encoder("minilm", cache=False)
    bins = len(stored["bins"]) if thorough else 2
    some = sum(stored["n_words"][:bins])
    real = table1_experiment.find_neighbors

    def neighbors_of_some(vectors, rows, k):
        """Find those of the most frequent words; all others get neighbors at distance 0."""
        assert len(vectors) == len(encoder.tokenizer) - run["n_left_out"]
        found = vars(real(vectors, rows[:some], k)).values()
        return Neighbors(*(np.pad(one, ((0, len(rows) - some), (0, 0))) for one in found))

    monkeypatch.setattr(table1_experiment, "find_neighbors", neighbors_of_some)
    mine = run_table1(encoder)["table1"]
    assert mine["bins"] == stored["bins"] and mine["n_words"] == stored["n_words"]
    assert mine["norm"] == pytest.approx(stored["norm"], rel=1e-4)
    for name in ("distance", "dot"):
        for k, values in mine[name].items():
            assert values[:bins] == pytest.approx(stored[name][k][:bins], rel=1e-3)
    text = find_experiment("table", 1).load().format({"table1": mine})
    assert "1.45" in text and f"{mine['norm'][0]:.2f}" in text


def test_table8_shows_both_ours_and_the_paper_s() -> None:
    rows = [{"row": "mean", "values": [1.0, 2.0, 6.0], "mean": 3.0, "std": 2.65, "median": 2.0}]
    text = format_table8({"models": [{}] * 3, "rows": rows})
    assert "3.00 ± 2.65" in text and "2.00" in text
    assert "81.10 ± 0.55" in text and "81.35" in text
