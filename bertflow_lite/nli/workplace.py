"""Where a long fine-tuning keeps what it needs to go on, and leaves nothing else behind."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertflow_lite.runs import write_json

__all__ = ["begin_or_go_on", "random_state_kept", "workplace"]


def begin_or_go_on(path: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Begin a run, or make sure that the unfinished one beside it is the same."""
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        now = json.loads(json.dumps(settings))
        differ = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
        if not differ:
            return
        if not overwrite:
            raise ValueError(
                f"an unfinished run lies in {path.parent.name!r}, begun with another "
                f"{', '.join(differ)}. Give the same arguments to finish it, delete that folder, "
                "or say overwrite=True (command line: --overwrite)."
            )
        for entry in path.parent.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
    write_json(path, settings)


@contextlib.contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """Hold a working folder alone; it goes when the work is done, and stays when it is stopped."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"another process is at work in {folder.name!r}: wait for it, or name another folder."
        ) from None
    try:
        yield folder
    finally:
        lock.release()
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Give the process its random states back, which the training library sets for itself."""
    devices = list(range(torch.cuda.device_count()))
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (restored, not used)
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
