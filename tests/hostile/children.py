"""What hostile cases do in a process of its own, to be limited, interrupted or killed there."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from fork_server import CONTEXT, PATIENCE, answer, call, kill_all, start, stop

import bertflow_lite as bf
from bertflow_lite.encoders.cache import EmbeddingCache
from bertflow_lite.files import replacing

__all__ = ["CONTEXT", "PATIENCE", "answer", "call", "kill_all", "start", "stop"]

NOBODY = 65534


def embeddings(rows: int = 200, dim: int = 8) -> Any:
    return np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)


# --- a disk with no room, a folder that cannot be written ----------------------------------------


def with_room_for(pipe: Connection, size: int, write: Callable[[Path], None], place: Path) -> None:
    """Write in a process whose files can hold no more than ``size`` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    write(place)


def as_nobody(pipe: Connection, write: Callable[[Path], None], place: Path) -> None:
    """Write as a user with no rights (who runs as root may write anywhere)."""
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    write(place)


def without_home(pipe: Connection, uid: int) -> str:
    """Ask for the cache as a user who has no entry and no HOME."""
    for name in ("HOME", "XDG_CACHE_HOME", "BERTFLOW_CACHE"):
        os.environ.pop(name, None)
    os.setuid(uid)
    from bertflow_lite.files import cache_dir, tidy_path

    assert tidy_path("/somewhere/else") == "/somewhere/else"
    return str(cache_dir())


def write_calibrator(place: Path) -> None:
    wide = np.random.default_rng(0).normal(size=(200, 400))
    bf.save(bf.Standardizer().fit(wide), place / "c.safetensors", overwrite=True)


def write_stream(place: Path) -> None:
    x = embeddings(4000)
    bf.Standardizer().fit(x).transform(x, out=place / "x.npy")


def write_run(place: Path) -> None:
    from bertflow_lite.experiments.runs import store_run

    store_run("sts", "name", {"model": "none"}, list(range(5000)), place)


def write_cache(place: Path) -> None:
    cache = EmbeddingCache(place, "key", 8)
    cache.write([str(i) for i in range(2000)], "mean:1", embeddings(2000))


def read_and_write_cache(place: Path) -> None:
    cache = EmbeddingCache(place / "embeddings", "key", 8)
    assert not cache.read(["0"], "mean:1", np.empty((1, 8), np.float32)).any()
    write_cache(place / "embeddings")


WRITERS = {"calibrator": write_calibrator, "stream": write_stream, "run": write_run}


# --- processes that are killed, and processes side by side ---------------------------------------


def write_half(pipe: Connection, place: Path) -> None:
    """Write the first half of a file, say so, and wait to be killed."""
    with replacing(place) as file:
        file.write(b"half")
        file.flush()
        pipe.send("in the middle")
        time.sleep(600)


def save_for_ever(pipe: Connection, folder: Path) -> None:
    """Save a calibrator over and over, until killed."""
    calibrator = bf.Standardizer().fit(embeddings())
    pipe.send("begun")
    while True:
        bf.save(calibrator, folder, overwrite=True)


def save_runs(pipe: Connection, folder: Path, number: int) -> None:
    from bertflow_lite.experiments.runs import store_run

    for _ in range(30):
        store_run("sts", "same", {"writer": number}, [number] * 2000, folder)


def fit_until_interrupted(pipe: Connection, rows: int) -> dict[str, Any]:
    """Fit a flow for ever; give what is left of it after Ctrl-C."""
    flow = bf.FlowCalibrator(levels=1, depth=1, width=4, epochs=100_000)
    x = embeddings(rows)
    try:
        pipe.send("begun")
        flow.fit(x)
    except KeyboardInterrupt:
        z = flow.transform(x) if hasattr(flow, "flow_") else None
        return {
            "steps": flow.history_.steps if z is not None else 0,
            "finite": z is None or bool(np.isfinite(z).all()),
        }
    raise AssertionError("the fit ended by itself")


# --- forks and spawns ----------------------------------------------------------------------------


def fit_and_transform(pipe: Connection) -> Any:
    return bf.FlowCalibrator(levels=1, depth=1, width=4).fit_transform(embeddings())


def send_fit(pipe: Connection) -> None:
    pipe.send(fit_and_transform(pipe))


def encode(pipe: Connection, folder: Path, sentences: list[str]) -> Any:
    return bf.load_encoder(folder, device="cpu", max_length=24).encode(sentences)


# --- the command line ----------------------------------------------------------------------------


def run_command(
    pipe: Connection,
    arguments: list[str],
    folder: Path,
    cache: Path,
    out: Connection | None,
    encoding: str,
) -> int:
    """Run a command with real streams: errors to ``stderr`` in the folder, output to ``out``.

    A file ``stdin`` in the folder is what a user would type.
    """
    os.chdir(folder)
    os.environ["BERTFLOW_CACHE"] = str(cache)
    os.environ.pop("BERTFLOW_DATA", None)
    errors = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 2)
    if (folder / "stdin").exists():
        os.dup2(os.open(folder / "stdin", os.O_RDONLY), 0)
        sys.stdin = sys.__stdin__ = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    output = os.open(folder / "stdout", os.O_WRONLY | os.O_CREAT) if out is None else out.fileno()
    os.dup2(output, 1)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    from bertflow_lite.cli.common import app

    try:
        pipe.send("begun")
        app(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    except KeyboardInterrupt:
        code = 130  # what a shell shows for it
    sys.stdout.flush()
    return code


def run_setup_as_nobody(pipe: Connection, source: str, folder: Path) -> bool:
    """Run the setup cell where nothing can be written; say whether the cache has given up."""
    os.chdir(folder)
    if os.getuid() == 0:
        os.setuid(NOBODY)
    exec(source, {})
    cache = EmbeddingCache(folder / "cache" / "embeddings", "key", 8)
    cache.write(["a"], "mean:1", embeddings(1))
    return cache.path is None
