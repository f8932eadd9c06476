"""Peak memory: a flow fitted on 100,000 x 768, and 20,000 sentences encoded with MiniLM.

Each runs in a process of its own, whose largest resident set is what counts (Linux's VmHWM, or
getrusage elsewhere): Python and torch are part of it, and so is the input.  What the process held
before the work began is stored beside it.  The sentences are those of mini-sts, each with a number
before it, so that all are distinct.  Written to benchmarks/results/memory.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

ROWS, DIM, SENTENCES = 100_000, 768, 20_000


def peak_megabytes() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage also counts what the process was before it was started
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def fit_flow(rows: int) -> dict[str, float]:
    from bertflow_lite import FlowCalibrator

    x = np.random.default_rng(0).standard_normal((rows, DIM), dtype=np.float32)
    FlowCalibrator(batch_size=256, device="cpu").fit(x[:600])  # what is loaded on first use
    start = peak_megabytes()
    FlowCalibrator(batch_size=256, device="cpu").fit(x)
    return {"input_megabytes": x.nbytes / 1e6, "start_megabytes": start}


def encode(n: int) -> dict[str, float]:
    from bertflow_lite.datasets.sts import load_sts
    from bertflow_lite.encoders.models import load_model
    from bertflow_lite.encoders.transformer import Encoder

    known = list(dict.fromkeys(load_sts("mini-sts").sentences))
    sentences = [f"{number} {known[number % len(known)]}" for number in range(n)]
    encoder = Encoder(load_model("minilm", device="cpu"), cache=False)
    encoder.encode(sentences[:64])
    start = peak_megabytes()
    vectors = encoder.encode(sentences)
    return {"output_megabytes": vectors.nbytes / 1e6, "start_megabytes": start}


WORK = {"flow fit": (fit_flow, ROWS), "encode": (encode, SENTENCES)}


def main() -> int:
    from machine import describe_machine

    from bertflow_lite.files import write_json

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, size = options.one
        found = WORK[name][0](int(size))
        found["peak_megabytes"] = peak_megabytes()
        print(json.dumps({key: round(value, 1) for key, value in found.items()}))
        return 0
    rows = []
    for name, (_, size) in WORK.items():
        command = [sys.executable, __file__, "--one", name, str(size)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        rows.append({"name": name, "rows": size, **json.loads(done.stdout.splitlines()[-1])})
        print(rows[-1], flush=True)
    machine = describe_machine("transformers", "numpy")
    result = {"machine": machine, "dim": DIM, "rows": rows}
    write_json(Path(__file__).parent / "results" / "memory.json", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
