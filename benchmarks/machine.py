"""What a benchmark ran on: processor, threads, versions and date."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import version
from pathlib import Path

import torch


def describe_machine(*packages: str) -> dict[str, object]:
    """Say what a benchmark ran on; ``packages`` are named beside torch."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "processor": model,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("bertflow-lite", "torch", *packages)},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
