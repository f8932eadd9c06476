"""Children of a fork server, which imports the slow libraries once: each is there in no time.

The server stays until it is stopped, with all that it has imported.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE = 600  # seconds, only to end what hangs: a busy machine is no failure
CONTEXT = multiprocessing.get_context("forkserver")
# By name, not what is imported here: the server does not know where it lies.
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


def stop() -> None:
    """Stop the server; the next child starts another."""
    kill_all()
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def answer(child: Any, pipe: Connection, seconds: float = PATIENCE) -> Any:
    """Give what a child's function returns, or raise what it raises."""
    try:
        assert pipe.poll(seconds), f"the child did not answer within {seconds} s"
        kind, value = pipe.recv()
    finally:
        child.join(seconds)
    if kind == "error":
        raise value
    return value


def call(function: Callable[..., Any], *arguments: Any, seconds: float = PATIENCE) -> Any:
    """Call a function in a child and give what it returns, or raise what it raises."""
    return answer(*start(function, *arguments), seconds)


def _run(pipe: Connection, function: Callable[..., Any], arguments: Any) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        given = ("answer", function(pipe, *arguments))
    except Exception as error:
        error.add_note(traceback.format_exc())
        given = ("error", error)
    pipe.send(given)


def run_script(
    pipe: Connection, script: Path, arguments: list[str], variables: dict[str, str]
) -> None:
    """Run a script as `python script arguments` does, with these variables of the environment."""
    os.environ.update(variables)
    sys.argv[:] = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")
