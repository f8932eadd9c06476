"""Fitting on embeddings that do not fit in memory: peak memory, and cost against number of rows.

Files of 125,000, 500,000 and 2,000,000 x 768 float32 (up to 6.1 GB; they are removed afterwards)
are made, and calibrators are fitted on each by its path; the flow also writes the transformed rows
to another file.  Each run is a process of its own, so that its peak memory is
its own: the largest resident set, mapped pages included.  CPU time is what cost is judged by; wall
time also depends on what else the machine did.  Written to benchmarks/results/mapped.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

SIZES, DIM = (125_000, 500_000, 2_000_000), 768
KINDS = ("sn", "natsv", "whiten", "flow")
BATCH = 256  # of the flow
MOST_MEMORY = 1000  # MB above the start
MOST_GROWTH = 1.25  # CPU seconds per row of the most rows, over those of the fewest


def peak_megabytes() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage also counts what the process was before it was started
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def measure(kind: str, path: Path, rows: int) -> dict[str, float]:
    """Fit once, in a process that does nothing else."""
    from bertflow_lite import FlowCalibrator, make_calibrator

    calibrator = make_calibrator(kind)
    if isinstance(calibrator, FlowCalibrator):
        calibrator.set_params(batch_size=BATCH, device="cpu")
    calibrator.fit(np.random.default_rng(0).normal(size=(600, DIM)).astype(np.float32))
    result: dict[str, float] = {"start_megabytes": peak_megabytes()}
    wall, cpu = time.perf_counter(), time.process_time()
    calibrator.fit(path)
    result["fit_seconds"] = time.perf_counter() - wall
    result["fit_cpu_seconds"] = time.process_time() - cpu
    if isinstance(calibrator, FlowCalibrator):
        wall, cpu = time.perf_counter(), time.process_time()
        written = calibrator.transform(path, out=path.with_name("z.npy"))
        result["transform_seconds"] = time.perf_counter() - wall
        result["transform_cpu_seconds"] = time.process_time() - cpu
        assert written.shape == (rows, DIM)
        result["steps"] = calibrator.history_.steps
        result["last_loss_bits"] = float(np.mean(calibrator.history_.loss[-20:]))
    result["peak_megabytes"] = peak_megabytes()
    return {name: round(value, 3) for name, value in result.items()}


def make_file(path: Path, rows: int) -> None:
    """Write correlated Gaussian rows away from the origin, one dimension of them constant."""
    rng = np.random.default_rng(0)
    scale = np.geomspace(3, 0.03, DIM).astype(np.float32)
    mean = rng.standard_normal(DIM, dtype=np.float32)
    mix = rng.standard_normal((16, DIM), dtype=np.float32)
    out = np.lib.format.open_memmap(path, "w+", np.float32, (rows, DIM))
    for start in range(0, rows, 50_000):
        size = min(50_000, rows - start)
        block = rng.standard_normal((size, DIM), dtype=np.float32) * scale + mean
        block += rng.standard_normal((size, 16), dtype=np.float32) @ mix
        block[:, 5] = 0.25
        out[start : start + size] = block
    out.flush()


def main() -> int:
    from machine import describe_machine

    from bertflow_lite.files import write_json

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=SIZES)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, path, rows = options.one
        print(json.dumps(measure(kind, Path(path), int(rows))))
        return 0
    needed = (sum(options.rows) + max(options.rows)) * DIM * 4
    with tempfile.TemporaryDirectory(prefix="bench-mapped-") as folder:
        if shutil.disk_usage(folder).free < 1.1 * needed:
            print(f"not run: {folder} has less than the {needed / 1e9:.1f} GB that its files take")
            return 0
        table = []
        for rows in sorted(options.rows):
            make_file(Path(folder) / f"{rows}.npy", rows)
        for kind in options.kinds:
            for rows in sorted(options.rows):
                path = Path(folder) / f"{rows}.npy"
                command = [sys.executable, __file__, "--one", kind, str(path), str(rows)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    raise RuntimeError(done.stderr)
                table.append({"kind": kind, "rows": rows, **json.loads(done.stdout)})
                print(table[-1], flush=True)
    above = max(line["peak_megabytes"] - line["start_megabytes"] for line in table)
    passed = above <= MOST_MEMORY
    print(f"most memory above the start: {above:.0f} MB (at most {MOST_MEMORY})")
    growth = {}
    for kind in options.kinds:
        each = [line["fit_cpu_seconds"] / line["rows"] for line in table if line["kind"] == kind]
        growth[kind] = round(each[-1] / each[0], 3)
        passed = passed and growth[kind] <= MOST_GROWTH
        print(f"{kind:7s} CPU seconds per row, most rows over fewest: {growth[kind]:.2f} "
              f"(at most {MOST_GROWTH})")  # fmt: skip
    result = {
        "machine": describe_machine("numpy", "scikit-learn"),
        "dim": DIM,
        "flow_batch_size": BATCH,
        "most_megabytes_above_start_allowed": MOST_MEMORY,
        "cpu_seconds_per_row_growth": growth,
        "rows": table,
    }
    write_json(options.out / "mapped.json", result)
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
