"""Models and data sets fetched from a stand-in for the hub on the loopback interface."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_stand_in import TINY, Hub, blobs, nowhere, stand_in, tiny, unfinished
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from bertflow_lite.cli import app
from bertflow_lite.datasets.nli import (
    HUB_PARTS,
    QNLI_FILES,
    load_nli_pairs,
    load_nli_sentences,
    load_qnli,
)
from bertflow_lite.datasets.source import HubFile
from bertflow_lite.encoders.models import load_model
from bertflow_lite.hub import hub_file, hub_model

__all__ = ["nowhere", "stand_in", "tiny"]  # fixtures


# --- models --------------------------------------------------------------------------------------


def test_a_model_is_fetched_once_and_is_the_same(tiny: Hub, tiny_bert_folder: Path) -> None:
    loaded = load_model(TINY, device="cpu", download=True)
    assert loaded.fingerprint == load_model(tiny_bert_folder, device="cpu").fingerprint
    asked = {file for _, file, _ in tiny.seen}
    assert "tf_model.h5" not in asked and "README.md" not in asked
    assert "pytorch_model.bin" not in asked  # safetensors were there
    tiny.seen.clear()
    assert load_model(TINY, device="cpu").fingerprint == loaded.fingerprint
    assert tiny.seen == []
    assert load_model(TINY, device="cpu", download=True).fingerprint == loaded.fingerprint
    assert {file for _, file, _ in tiny.seen} <= {"revision", "tree"}  # nothing is sent again


def test_no_code_and_nothing_of_other_frameworks_is_fetched(tiny: Hub) -> None:
    taken = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    left = {
        "modeling_tiny.py", "tokenization_tiny.py", "rust_model.ot", "flax_model.msgpack",
        "pytorch_model.bin", "training_args.bin", "model.onnx", "onnx/config.json",
        "original/model.safetensors", "consolidated.safetensors", "adapter_model.safetensors",
    }  # fmt: skip
    tiny.content[TINY] |= dict.fromkeys(left, b"import os")
    folder = hub_model(TINY, download=True)
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert taken <= there and not there & left
    assert not {file for _, file, _ in tiny.seen} & left


@pytest.mark.parametrize("file", ["spm.model", "spiece.model", "bpe.codes", "source.spm"])
def test_any_tokenizer_file_comes_along(tiny: Hub, file: str) -> None:
    """As with DeBERTa-v3, which has spm.model and no tokenizer.json."""
    del tiny.content[TINY]["tokenizer.json"]
    tiny.content[TINY][file] = b"pieces"
    assert (hub_model(TINY, download=True) / file).read_bytes() == b"pieces"


def test_the_token_is_sent_to_the_hub_and_never_shown(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for status in (401, 403, 404, 500):
        tiny.failing[TINY] = (status, "")
        with pytest.raises(OSError, match=str(status)) as caught:
            load_model(TINY, download=True)
        assert "hf_secret" not in str(caught.value) + caplog.text


def test_nothing_is_asked_unless_a_download_is(tiny: Hub) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"not in the hub's cache.*download=True.*--download"
    ):
        load_model(TINY)
    assert tiny.seen == []


def test_weights_in_parts_are_fetched_by_their_index(
    tiny: Hub, tiny_bert_folder: Path, tmp_path: Path
) -> None:
    files = tiny.content[TINY]
    tensors = load_file(tiny_bert_folder / "model.safetensors")
    names = sorted(tensors)
    split = {"model-00001-of-00002.safetensors": names[::2]}
    split["model-00002-of-00002.safetensors"] = names[1::2]
    for file, some in split.items():
        save_file({name: tensors[name] for name in some}, tmp_path / file, {"format": "pt"})
        files[file] = (tmp_path / file).read_bytes()
    weight_map = {name: file for file, some in split.items() for name in some}
    index = {"metadata": {"total_size": len(files.pop("model.safetensors"))}}
    files["model.safetensors.index.json"] = json.dumps(index | {"weight_map": weight_map}).encode()
    loaded = load_model(TINY, device="cpu", download=True)
    assert loaded.fingerprint == load_model(tiny_bert_folder, device="cpu").fingerprint
    (hub_model(TINY) / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises((FileNotFoundError, ValueError)):
        load_model(TINY, device="cpu")  # one part is missing
    assert load_model(TINY, device="cpu", download=True).fingerprint == loaded.fingerprint


def test_older_weights_are_taken_where_there_are_no_safetensors(
    tiny: Hub, tiny_bert_folder: Path
) -> None:
    import torch

    written = io.BytesIO()
    torch.save(load_file(tiny_bert_folder / "model.safetensors"), written)
    del tiny.content[TINY]["model.safetensors"]
    tiny.content[TINY]["pytorch_model.bin"] = written.getvalue()
    loaded = load_model(TINY, device="cpu", download=True)
    assert loaded.fingerprint == load_model(tiny_bert_folder, device="cpu").fingerprint


def test_a_broken_connection_is_taken_up_again(
    tiny: Hub, tiny_bert_folder: Path, tmp_path: Path
) -> None:
    whole = tiny.content[TINY]["model.safetensors"]
    tiny.cut_after["model.safetensors"] = [5000, 4000]
    folder = hub_model(TINY, download=True)
    assert (folder / "model.safetensors").read_bytes() == whole
    spans = [span for span in tiny.asked("GET", "model.safetensors") if span]
    first, second = (int(re.findall(r"\d+", span)[0]) for span in spans)
    assert 0 < first <= 5000 and first < second <= 9000
    assert unfinished(tmp_path) == []


def test_a_hub_that_vanishes_midway_leaves_no_half_file_and_the_next_call_completes(
    tiny: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tiny.content[TINY]["model.safetensors"]
    tiny.cut_after["model.safetensors"] = [5000] + [0] * 20
    with pytest.raises(ConnectionError, match=r"the model .* could not be fetched.*network"):
        load_model(TINY, device="cpu", download=True)
    assert unfinished(tmp_path) == []
    assert whole[:5000] not in [content[:5000] for content in blobs(tmp_path)]
    with pytest.raises((FileNotFoundError, ValueError), match=r"download=True|complete"):
        load_model(TINY, device="cpu")  # what has come is not taken for a model
    tiny.cut_after.clear()
    fetched = load_model(TINY, device="cpu", download=True)
    assert hub_model(TINY).joinpath("model.safetensors").read_bytes() == whole
    assert fetched.name == TINY


def test_a_name_that_the_hub_does_not_know(tiny: Hub) -> None:
    with pytest.raises(FileNotFoundError, match=r"model 'some-org/tiny' could not.*Check the name"):
        load_model("some-org/tiny", download=True)
    with pytest.raises(FileNotFoundError, match=r"Did you mean 'minilm'"):
        load_model("minlm")
    with pytest.raises(FileNotFoundError, match=r"'no/such/folder'.*Check the name"):
        load_model("no/such/folder", download=True)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_repository_that_is_no_transformer(tiny: Hub, missing: str) -> None:
    del tiny.content[TINY][missing]
    with pytest.raises(FileNotFoundError, match=r"is no transformer.*config\.json and weights"):
        load_model(TINY, download=True)


def test_a_repository_without_a_tokenizer(tiny: Hub) -> None:
    for file in [file for file in tiny.content[TINY] if "token" in file]:
        del tiny.content[TINY][file]
    with pytest.raises(ValueError, match="tokenizer"):
        load_model(TINY, download=True)


@pytest.mark.parametrize(
    ("status", "code", "kind", "message"),
    [
        (403, "GatedRepo", PermissionError, r"403.*terms to accept.*hf auth login"),
        (403, "", PermissionError, r"403.*HF_TOKEN"),
        (401, "", PermissionError, r"401.*HF_TOKEN"),
        (401, "RepoNotFound", FileNotFoundError, r"401.*Check the name.*HF_TOKEN"),
        (404, "", FileNotFoundError, r"404.*Check the name"),
        (500, "", ConnectionError, r"500.*call again"),
        (503, "", ConnectionError, r"503.*call again"),
    ],
)
def test_answers_of_the_hub_become_advice_soon(
    tiny: Hub, tmp_path: Path, status: int, code: str, kind: type[Exception], message: str
) -> None:
    tiny.failing[TINY] = (status, code)
    with pytest.raises(kind, match=message):
        load_model(TINY, download=True)
    assert tiny.was_told_soon()
    assert blobs(tmp_path) == []


@pytest.mark.parametrize("status", [403, 500])
def test_a_failure_in_the_middle_is_told_as_soon(tiny: Hub, tmp_path: Path, status: int) -> None:
    tiny.failing["model.safetensors"] = (status, "")
    with pytest.raises((PermissionError, ConnectionError), match=f"{status}") as caught:
        load_model(TINY, download=True)
    assert "model.safetensors" in str(caught.value)
    assert tiny.was_told_soon()
    assert unfinished(tmp_path) == []


def test_no_network(tiny: Hub, nowhere: str) -> None:
    with pytest.raises(ConnectionError, match=r"could not be fetched.*network.*folder"):
        load_model(TINY, download=True)
    assert tiny.pauses == []  # the client would try five times more, after 23 seconds in all


@pytest.mark.parametrize("what", ["model", "data"])
def test_a_hub_that_cannot_be_reached_is_asked_once(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Somebody lets connections in and never answers, or breaks off, or takes none."""
    import httpx2 as client

    asked: list[tuple[str, float]] = []

    def unreachable(self: object, method: str, url: str, **options: float) -> None:
        asked.append((str(url), options["timeout"]))
        raise client.ConnectTimeout("timed out")

    monkeypatch.setattr(client.Client, "request", unreachable)
    with pytest.raises(ConnectionError, match=r"timed out. Check the network"):
        load_model(TINY, download=True) if what == "model" else hub_file(
            "nyu-mll/glue", "some.parquet", download=True
        )
    ((url, most),) = asked  # the hub has up to four addresses, and each is given so long
    assert url == tiny.url and 4 * most <= 10


def test_a_hub_that_is_slow_to_answer_is_asked_all_the_same(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch, tiny_bert_folder: Path
) -> None:
    import httpx2 as client

    def slow(self: object, url: str, **options: float) -> None:
        raise client.ReadTimeout("timed out")

    monkeypatch.setattr(client.Client, "head", slow)
    loaded = load_model(TINY, device="cpu", download=True)
    assert loaded.fingerprint == load_model(tiny_bert_folder, device="cpu").fingerprint


def test_a_model_that_was_fetched_needs_no_network(
    tiny: Hub, request: pytest.FixtureRequest
) -> None:
    fingerprint = load_model(TINY, device="cpu", download=True).fingerprint
    request.getfixturevalue("nowhere")
    assert load_model(TINY, device="cpu", download=True).fingerprint == fingerprint


def test_an_offline_client_says_what_forbids_it(tiny: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE"):
        load_model(TINY, download=True)
    assert tiny.seen == []


def test_a_disk_that_cannot_be_written_is_no_trouble_of_the_network(
    tiny: Hub, tmp_path: Path
) -> None:
    (tmp_path / "hub").write_text("a file where the cache should be")
    with pytest.raises(OSError, match="hub") as caught:
        load_model(TINY, download=True)
    assert not isinstance(caught.value, ConnectionError)


def test_the_command_line_says_it_in_one_line(tiny: Hub) -> None:
    tiny.failing[TINY] = (500, "")
    run = CliRunner().invoke(app, ["sts", "--model", TINY, "--download"])
    assert run.exit_code == 1
    assert re.search(r"^error: the model .* could not be fetched .*500.*\n\Z", run.stderr, re.M)


# --- data sets -----------------------------------------------------------------------------------


def parquet(**columns: list[object]) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table(columns), written)
    return written.getvalue()


@pytest.fixture
def data(stand_in: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Put small files on the hub that are laid out as QNLI, SNLI and MNLI are."""
    stand_in.content["nyu-mll/glue"] = {
        "qnli/validation-00000-of-00001.parquet": parquet(
            question=["Who ran?", 'Why "so?'], sentence=["A dog ran.", "It sat."],
            label=[0, 1], idx=[0, 1],
        )
    }  # fmt: skip
    stand_in.content["stanfordnlp/snli"] = {
        HUB_PARTS["snli-train"].file: parquet(
            premise=["A dog  ran. ", "A dog  ran. ", "A cat sat."],
            hypothesis=["It ran.", "It sat.", "A cat sat."],
            label=[0, 2, -1],
        )
    }
    stand_in.content["nyu-mll/multi_nli"] = {
        HUB_PARTS["mnli-train"].file: parquet(
            promptID=[1], premise=["One tree."], hypothesis=["A mat."], label=[1]
        ),
        HUB_PARTS["mnli-dev-matched"].file: parquet(
            promptID=[2], premise=["Two mats."], hypothesis=["Two."], label=[0]
        ),
    }
    sizes = {"snli-train": 2, "mnli-train": 1, "mnli-dev-matched": 1}
    small = {name: HubFile(p.repo, p.file, sizes[name]) for name, p in HUB_PARTS.items()}
    monkeypatch.setattr("bertflow_lite.datasets.nli.HUB_PARTS", small)
    monkeypatch.setitem(QNLI_FILES, "dev", QNLI_FILES["dev"]._replace(pairs=2))
    return stand_in


def test_qnli_is_fetched_only_when_asked_and_once(data: Hub) -> None:
    with pytest.raises(FileNotFoundError, match="download=True"):
        load_qnli()
    assert data.seen == []
    fetched = load_qnli(download=True)
    assert (fetched.source, fetched.gold.tolist()) == ("the hub", [1.0, 0.0])
    assert fetched.sentences2 == ("A dog ran.", "It sat.")
    data.seen.clear()
    again = load_qnli()
    assert (again.source, again.fingerprint) == ("the hub's cache", fetched.fingerprint)
    assert data.seen == []


def test_a_split_that_the_hub_lacks_is_named(data: Hub) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"qnli/train\S+ of the data set 'nyu-mll/glue'.*404"
    ):
        load_qnli("train", download=True)


def test_nli_pairs_of_the_hub(data: Hub) -> None:
    pairs = load_nli_pairs(download=True)
    assert pairs.labels.tolist() == [0, 2, 1, 0]  # the pair without a label is left out
    assert pairs.sources == ("snli-train", "snli-train", "mnli-train", "mnli-dev-matched")
    assert pairs.premises[0] == "A dog  ran. "  # as the file has it
    assert "as in the paper" in pairs.source and "the hub" in pairs.source
    assert load_nli_pairs().fingerprint == pairs.fingerprint


def test_nli_sentences_of_the_hub_are_those_of_the_training_sets(data: Hub) -> None:
    found = load_nli_sentences(download=True)
    assert found.name == "nli"
    assert found.sentences == ("A dog ran.", "It ran.", "It sat.", "One tree.", "A mat.")
    assert data.asked("GET", HUB_PARTS["mnli-dev-matched"].file) == []
    assert load_nli_sentences().source.endswith("(the hub's cache)")


def test_a_corpus_with_another_number_of_pairs_is_refused(
    data: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(QNLI_FILES, "dev", QNLI_FILES["dev"]._replace(pairs=5463))
    with pytest.raises(ValueError, match=r"qnli dev has 2 pairs here.* 5463"):
        load_qnli(download=True)
    monkeypatch.setattr("bertflow_lite.datasets.nli.HUB_PARTS", HUB_PARTS)
    with pytest.raises(ValueError, match=r"snli-train has 2 labeled pairs here.* 549367"):
        load_nli_sentences(download=True)
    assert len(load_nli_sentences(download=True, check_counts=False)) == 5


@pytest.mark.parametrize("label", [3, -2])
def test_a_label_out_of_range_names_its_row(data: Hub, label: int) -> None:
    data.content["stanfordnlp/snli"][HUB_PARTS["snli-train"].file] = parquet(
        premise=["a", "b", "e"], hypothesis=["c", "d", "f"], label=[0, -1, label]
    )
    with pytest.raises(ValueError, match=rf"parquet, row 2: the label '{label}' is none of entail"):
        load_nli_pairs(download=True)


def test_other_columns_or_no_parquet_are_told(data: Hub) -> None:
    file = "qnli/validation-00000-of-00001.parquet"
    data.content["nyu-mll/glue"][file] = parquet(query=["a"], answer=["b"], label=[0])
    with pytest.raises(ValueError, match="has not the columns question, sentence, label"):
        load_qnli(download=True)
    shutil.rmtree(data_cache := Path(hub_cache()))
    assert not data_cache.exists()
    data.content["nyu-mll/glue"][file] = b"<html>a page in place of a file</html>"
    with pytest.raises(ValueError, match=r"validation-00000-of-00001\.parquet is damaged"):
        load_qnli(download=True)


def hub_cache() -> str:
    from huggingface_hub import constants

    return constants.HF_HUB_CACHE


def test_a_broken_transfer_of_a_corpus_is_mended(data: Hub) -> None:
    file = HUB_PARTS["snli-train"].file
    size = len(data.content["stanfordnlp/snli"][file])
    data.cut_after[file] = [size // 2]
    assert len(load_nli_sentences(download=True)) == 5
    assert len(data.asked("GET", file)) == 2


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (500, ConnectionError, "data set 'nyu-mll/glue' .*500"),
        (403, PermissionError, "403.* HF_TOKEN"),
        (404, FileNotFoundError, "qnli/validation.*404"),
    ],
)
def test_failures_for_data_are_told_soon(
    data: Hub, tmp_path: Path, status: int, kind: type[Exception], message: str
) -> None:
    data.failing["nyu-mll/glue"] = (status, "")
    with pytest.raises(kind, match=message):
        load_qnli(download=True)
    assert data.was_told_soon()
    assert blobs(tmp_path) == []


def test_no_network_for_data(data: Hub, nowhere: str) -> None:
    with pytest.raises(ConnectionError, match=f"could not be fetched from {re.escape(nowhere)}"):
        load_nli_pairs(download=True)
    assert data.was_told_soon()
