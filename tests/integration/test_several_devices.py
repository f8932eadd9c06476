"""The script of the page on several devices, with one process and with two."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_the_script_gives_what_one_process_gives(processes, tiny_bert_folder, tmp_path):
    pytest.importorskip("accelerate")
    source = tmp_path / "sentences.txt"
    source.write_text("\n".join(SENTENCES), encoding="utf-8")
    # As `accelerate launch` does it, without its questions about this machine.
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={processes}"]
        command += [f"--master-port={free_port()}"]
    place = {"BERTFLOW_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [*command, str(SCRIPT), str(source), str(tiny_bert_folder), "1", "24"],
        env=os.environ | place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
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
