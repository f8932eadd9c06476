"""The script of the page on several devices, with one process and with two."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fork_server
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import bertflow_lite as bf

SCRIPT = Path(__file__).resolve().parents[2] / "book" / "several_devices.py"
SENTENCES = [f"the {a} {b}" for a in ("cat", "dog", "red tree", "mat") for b in ("sat", "ran", ".")]
SENTENCES += ["one", "two dogs and three cats"]  # no multiple of two processes


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(autouse=True)
def _no_server_is_left() -> Iterator[None]:
    yield
    fork_server.stop()


def run_forked(arguments: list[str], processes: int, variables: dict[str, str]) -> None:
    """Start the processes as a launcher does, but as children that have all libraries already."""
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    variables |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    started = [
        fork_server.start(
            fork_server.run_script,
            SCRIPT,
            arguments,
            variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(processes)
    ]
    for child, pipe in started:
        fork_server.answer(child, pipe)


def run_launched(arguments: list[str], processes: int, variables: dict[str, str]) -> None:
    """Start them by torch's launcher, as `accelerate launch` does; one needs none."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
        command += [f"--master-port={free_port()}"]
    done = subprocess.run(
        [*command, str(SCRIPT), *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("run", "processes"),
    [
        pytest.param(run_forked, 2, id="2"),
        pytest.param(run_launched, 2, id="2-launched", marks=pytest.mark.thorough),
        pytest.param(run_launched, 1, id="1", marks=pytest.mark.thorough),
    ],
)
def test_the_script_gives_what_one_process_gives(run, processes, tiny_bert_folder, tmp_path):
    pytest.importorskip("accelerate")
    source = tmp_path / "sentences.txt"
    source.write_text("\n".join(SENTENCES), encoding="utf-8")
    arguments = [str(source), str(tiny_bert_folder), "1", "24"]
    run(arguments, processes, {"BERTFLOW_CACHE": str(tmp_path / "cache")})
    assert len(list(tmp_path.glob("sentences.[0-9].npy"))) == processes
    encoder = bf.load_encoder(tiny_bert_folder, max_length=24, device="cpu", cache=False)
    raw = encoder.encode(SENTENCES, 1)
    found = np.load(source.with_suffix(".npy"))
    assert_allclose(found, raw, atol=1e-5)
    flow = bf.load(source.with_suffix(".safetensors"), device="cpu")
    assert_array_equal(flow.transform(found), np.load(source.with_suffix(".calibrated.npy")))
    assert_allclose(
        flow.transform(raw), bf.FlowCalibrator(device="cpu").fit(raw).transform(raw), atol=1e-3
    )
