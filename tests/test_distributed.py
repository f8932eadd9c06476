"""Encoding and fitting by several processes: the same as by one, and what stays when one dies."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.pipeline import make_pipeline

from bertflow_lite import FlowCalibrator, Standardizer, Whitener
from bertflow_lite.distributed import WorkerError, encode_sharded, fit_sharded
from bertflow_lite.encoders.models import load_model
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.streaming import EmbeddingStream

pytest.importorskip("accelerate")

# What each process runs: encode, fit, and leave the results for the test to look at.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import numpy as np
from bertflow_lite import FlowCalibrator, Standardizer, Whitener
from bertflow_lite import shards
from bertflow_lite.distributed import encode_sharded, fit_sharded, start_processes

model, folder, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
sentences = json.loads((folder / "sentences.json").read_text())
state = start_processes()
assert state.num_processes == 2
if how != "whole" and state.process_index == 1:
    # The second process dies in its second shard: by an error, or killed outright.
    from bertflow_lite.encode import Encoder
    encode, calls = Encoder.encode, []
    def dies(self, texts, layers):
        calls.append(texts)
        if len(calls) == 2:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise MemoryError("no memory left")
        return encode(self, texts, layers)
    Encoder.encode = dies
stream = encode_sharded(
    model, sentences, folder / "vectors", layers="last", shard_rows=8, max_length=24
)
if how == "whole":
    x = stream.read()
    np.save(folder / f"seen-by-{state.process_index}.npy", x)
    large = EmbeddingStream = type(stream)(folder / "large.npy", window_bytes=16_000)
    settings = dict(width=8, batch_size=16, epochs=2, random_state=3)
    for name, calibrator, data in (
        ("flow", FlowCalibrator(**settings), x),
        ("flow-stream", FlowCalibrator(**settings), large),
        ("sn", Standardizer(), large),
        ("whiten", Whitener(), large),
    ):
        fit_sharded(calibrator, data)
        z = calibrator.transform(x if name == "flow" else large.read())
        history = getattr(calibrator, "history_", None)
        np.savez(
            folder / f"{name}-{state.process_index}.npz", z=z, loss=history.loss if history else []
        )
"""


def sentences(n: int = 67) -> list[str]:
    rng = np.random.default_rng(0)
    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "tree", "red", "blue", "one"]
    return [" ".join(rng.choice(words, rng.integers(1, 12))) for _ in range(n)]


def large(rows: int = 3000) -> np.ndarray:
    rng = np.random.default_rng(1)
    return (rng.normal(size=(rows, 8)) @ rng.normal(size=(8, 8)) + 2).astype(np.float32)


def launch(tmp_path: Path, model: Path, how: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sentences.json").write_text(json.dumps(sentences()))
    np.save(tmp_path / "large.npy", large())
    (tmp_path / "script.py").write_text(SCRIPT)
    # `accelerate launch --cpu` starts one process whatever it is told; `--multi_gpu` starts two
    # on a machine without a GPU too, and they talk through gloo.
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    command += ["--num_processes", "2", "--main_process_port", str(free_port())]
    command += [str(tmp_path / "script.py"), str(model), str(tmp_path), how]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=300, cwd=tmp_path
    )


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory, tiny_bert_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("two")
    done = launch(folder, tiny_bert_folder, "whole")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_two_processes_give_the_embeddings_of_one_in_order(two_processes, tiny_bert_folder):
    encoder = Encoder(load_model(tiny_bert_folder, device="cpu"), max_length=24, cache=False)
    expected = encoder.encode(sentences(), "last")
    for process in (0, 1):
        assert_allclose(np.load(two_processes / f"seen-by-{process}.npy"), expected, atol=1e-5)
    manifest = json.loads((two_processes / "vectors" / "manifest.json").read_text())
    assert manifest["complete"] and manifest["fingerprint"] == encoder.fingerprint
    assert [shard["rows"] for shard in manifest["shards"]] == [8] * 8 + [3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flow", "flow-stream"])
def test_two_processes_fit_the_flow_of_one(two_processes, name):
    x = np.load(two_processes / "seen-by-0.npy") if name == "flow" else large()
    stream = EmbeddingStream(two_processes / "large.npy", window_bytes=16_000)
    alone = FlowCalibrator(width=8, batch_size=16, epochs=2, random_state=3, device="cpu")
    alone.fit(x if name == "flow" else stream)
    for process in (0, 1):
        together = np.load(two_processes / f"{name}-{process}.npz")
        assert len(together["loss"]) == alone.history_.steps > 4
        assert_allclose(together["loss"], alone.history_.loss, atol=1e-3)
        assert_allclose(together["z"], alone.transform(x), atol=1e-2)
    first, second = (np.load(two_processes / f"{name}-{i}.npz")["z"] for i in (0, 1))
    assert_array_equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("sn", Standardizer), ("whiten", Whitener)])
def test_two_processes_share_the_moments(two_processes, name, kind):
    for process in (0, 1):
        z = np.load(two_processes / f"{name}-{process}.npz")["z"]
        assert_allclose(np.abs(z), np.abs(kind().fit_transform(large())), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises", "killed"])
def test_a_worker_that_dies_is_named_and_finished_shards_stay(tmp_path, tiny_bert_folder, how):
    done = launch(tmp_path, tiny_bert_folder, how)
    assert done.returncode != 0
    if how == "raises":
        words = f"worker 1 of 2 on {socket.gethostname()} failed in shard 3 (sentences 24 to 31)"
        assert words in done.stderr and "MemoryError: no memory left" in done.stderr
    # The launcher's own word, which is all that is left of a process that was killed.
    cause = done.stderr[done.stderr.index("Root Cause") :]
    assert f"host      : {socket.getfqdn()}" in cause
    assert "rank      : 1 (local_rank: 1)" in cause
    assert ("SIGKILL" if how == "killed" else "exitcode  : 1 ") in cause
    folder = tmp_path / "vectors"
    assert not list(folder.glob(".shard-*"))
    there = {int(file.stem[-6:]) for file in folder.glob("shard-*.npy")}
    assert 1 in there and 3 not in there
    with pytest.raises(ValueError, match="is not complete"):
        EmbeddingStream(folder)
    # The next run, here in one process, does the rest and nothing twice.
    before = {n: (folder / f"shard-{n:06d}.npy").stat().st_mtime_ns for n in there}
    encoder = Encoder(load_model(tiny_bert_folder, device="cpu"), max_length=24, cache=False)
    stream = encode_sharded(encoder, sentences(), folder, layers="last", shard_rows=8)
    assert_allclose(stream.read(), encoder.encode(sentences(), "last"), atol=1e-5)
    assert before == {n: (folder / f"shard-{n:06d}.npy").stat().st_mtime_ns for n in there}


def test_one_process_by_itself_joins_the_shards_into_one_file(tmp_path, tiny_bert):
    out = tmp_path / "vectors.npy"
    texts = sentences(20)
    stream = encode_sharded(tiny_bert, texts, out, layers="last", shard_rows=7)
    assert_array_equal(stream.read(), np.load(out))
    assert_allclose(np.load(out), tiny_bert.encode(texts, "last"), atol=1e-5)
    assert sorted(p.name for p in tmp_path.glob("vectors*")) == ["vectors.npy", "vectors.npy.json"]
    stamp = out.stat().st_mtime_ns
    encode_sharded(tiny_bert, texts, out, layers="last", shard_rows=7)
    assert out.stat().st_mtime_ns == stamp  # it was there


@pytest.mark.parametrize("harm", ["cut", "changed", "gone", "record gone"])
def test_a_shard_that_is_not_whole_is_done_again(tmp_path, tiny_bert, harm, caplog):
    texts = sentences(20)
    expected = encode_sharded(tiny_bert, texts, tmp_path / "v", layers="last", shard_rows=7).read()
    file = tmp_path / "v" / "shard-000001.npy"
    content = file.read_bytes()
    if harm == "cut":
        file.write_bytes(content[:-5])
    elif harm == "changed":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        (file if harm == "gone" else file.with_suffix(".json")).unlink()
    again = encode_sharded(tiny_bert, texts, tmp_path / "v", layers="last", shard_rows=7)
    assert_allclose(again.read(), expected, atol=1e-6)
    assert "1 of 3 shards are to be done" in caplog.text


def test_another_encoder_and_other_sentences_are_refused(tmp_path, tiny_bert, tiny_llama):
    texts = sentences(9)
    encode_sharded(tiny_bert, texts, tmp_path / "v", layers="last")
    with pytest.raises(ValueError, match="holds embeddings with model"):
        encode_sharded(tiny_llama, texts, tmp_path / "v", layers="last")
    with pytest.raises(ValueError, match="with layers 'last', not '1'"):
        encode_sharded(tiny_bert, texts, tmp_path / "v", layers=1)
    with pytest.raises(ValueError, match="with sentences_sha256"):
        encode_sharded(tiny_bert, ["the cat", *texts[1:]], tmp_path / "v", layers="last")


def test_a_place_that_holds_something_else_is_left_alone(tmp_path, tiny_bert):
    (tmp_path / "letter.txt").write_text("dear")
    np.save(tmp_path / "v.npy", np.ones((2, 2)))
    for out in (tmp_path, tmp_path / "v.npy"):
        with pytest.raises(ValueError, match="nothing says what it holds"):
            encode_sharded(tiny_bert, ["the cat"], out)
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_a_failure_names_worker_host_and_sentences(tmp_path, tiny_bert, monkeypatch):
    monkeypatch.setattr(tiny_bert, "encode", lambda *_: 1 / 0)
    words = rf"worker 0 of 1 on {socket.gethostname()} failed in shard 0 \(sentences 0 to 1\)"
    with pytest.raises(WorkerError, match=words):
        encode_sharded(tiny_bert, ["a", "b"], tmp_path / "v")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sentences": []}, "no sentences"),
        ({"shard_rows": 0}, "shard_rows is 0"),
        ({"layers": ["last"]}, "takes one layer choice"),
    ],
)
def test_bad_arguments_are_named(tmp_path, tiny_bert, changes, message):
    with pytest.raises(ValueError, match=message):
        encode_sharded(**{"encoder": tiny_bert, "sentences": ["a"], "out": tmp_path, **changes})


def test_fit_sharded_alone_is_fit():
    x = large(200)
    settings = {"width": 8, "device": "cpu"}
    alone = FlowCalibrator(**settings).fit(x)
    assert_allclose(fit_sharded(FlowCalibrator(**settings), x).transform(x), alone.transform(x))
    assert_array_equal(fit_sharded(Whitener(), x).variances_, Whitener().fit(x).variances_)
    with pytest.raises(ValueError, match="an iterator cannot be read by several processes"):
        fit_sharded(Whitener(), iter([x]))
    with pytest.raises(ValueError, match="a Pipeline is none of the calibrators"):
        fit_sharded(make_pipeline(Standardizer(), Whitener()), x)
