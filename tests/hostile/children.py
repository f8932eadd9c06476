"""What hostile cases do in a process of its own, to be limited, interrupted or killed there.

A fork server imports the slow libraries once; each child is then there in no time.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertflow_lite as bf
from bertflow_lite.encoders.cache import EmbeddingCache
from bertflow_lite.files import replacing

NOBODY = 65534
PATIENCE = 600  # seconds, only to end what hangs: a busy machine is no failure
CONTEXT = multiprocessing.get_context("forkserver")
# By name, not this module: the server does not know where it lies.
PRELOAD = [
    "bertflow_lite.cli",
    "bertflow_lite.figures.plots",
    "transformers.models.bert.modeling_bert",
]
PRELOAD += [f"bertflow_lite.{name}" for name in ("export.pipeline", "encoders.transformer")]
CONTEXT.set_forkserver_preload(PRELOAD)
_STARTED: list[Any] = []


def start(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Connection]:
    """Start a child; its end of the pipe is the function's first argument."""
    ours, theirs = CONTEXT.Pipe()
    child = CONTEXT.Process(target=_run, args=(theirs, function, arguments), daemon=True)
    child.start()
    _STARTED.append(child)
    theirs.close()
    return child, ours


def kill_all() -> None:
    """Kill the children that are left: of a test that failed, they would slow all others."""
    while _STARTED:
        child = _STARTED.pop()
        if child.is_alive():
            child.kill()
            child.join(PATIENCE)


def call(function: Callable[..., Any], *arguments: Any, seconds: float = PATIENCE) -> Any:
    """Call a function in a child and give what it returns, or raise what it raises."""
    child, pipe = start(function, *arguments)
    try:
        assert pipe.poll(seconds), f"the child did not answer within {seconds} s"
        kind, value = pipe.recv()
    finally:
        child.join(seconds)
    if kind == "error":
        raise value
    return value


def _run(pipe: Connection, function: Callable[..., Any], arguments: Any) -> None:
    torch.set_num_threads(1)
    try:
        answer = ("answer", function(pipe, *arguments))
    except Exception as error:
        error.add_note(traceback.format_exc())
        answer = ("error", error)
    pipe.send(answer)


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
    """Run a command with real streams: errors to ``stderr`` in the folder, output to ``out``."""
    os.chdir(folder)
    os.environ["BERTFLOW_CACHE"] = str(cache)
    os.environ.pop("BERTFLOW_DATA", None)
    errors = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 2)
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
