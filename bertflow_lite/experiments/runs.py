"""Stored runs: numbers together with how they came about; and what an unfinished run left behind.

A run is a JSON file under ``data/results/<table>/<name>.json``.  The command line writes it; the
book reads it.  It names model and fingerprint, data and fingerprints, settings, seed, versions,
device, date and command, so that every number in the book can be traced and made again.

A run that was interrupted goes on from what it had finished: `KeptResults` keeps the parts of an
experiment, `begin_or_go_on` and `workplace` hold the folder of a training.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import logging
import math
import platform
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from bertflow_lite.files import cache_dir, data_file, write_json
from bertflow_lite.saving import package_versions

__all__ = ["load_run"]

logger = logging.getLogger(__name__)
T = TypeVar("T")


def provenance(
    *, model: str, fingerprint: str, seed: int | list[int], device: str, **settings: Any
) -> dict[str, Any]:
    """Say how a run came about: model, fingerprint, seed(s), device, and what else it depends on.

    With versions, machine, threads, date and the command that was typed.
    """
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {
        "model": model,
        "fingerprint": fingerprint,
        "seed": seed,
        **settings,
        "device": f"{device} ({name})",
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version()} | package_versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": typed_command(sys.argv[1:]),
    }


def typed_command(arguments: Sequence[str]) -> str:
    """Write a command line as it can be typed anywhere: paths of this machine lose their folder.

    Examples
    --------
    >>> typed_command(["table", "3", "--model", "/home/me/nli-model", "--data", "mini-sts"])
    'python -m bertflow_lite table 3 --model nli-model --data mini-sts'
    """
    out = ["python -m bertflow_lite"]
    for argument in arguments:
        option, equals, value = (
            argument.partition("=") if argument.startswith("-") else ("", "", argument)
        )
        path = Path(value)
        # A hub id has a slash too, and names the same thing on every machine.
        local = "/" in value or "\\" in value
        if local and (path.is_absolute() or value[0] in ".~" or path.exists() or path.suffix):
            value = path.name
        out.append(shlex.quote(f"{option}{equals}{value}"))
    return " ".join(out)


def store_run(
    table: str, name: str, how: Mapping[str, Any], results: Any, folder: Path | None = None
) -> Path:
    """Write a run (`provenance`, numbers) to ``<folder>/<table>/<name>.json``, and give the file.

    The name is that of the model, or another distinction; the folder is by default the project's
    ``data/results``.
    """
    folder = folder or data_file("results")
    path = folder / table / f"{name.replace('/', '--')}.json"
    write_json(path, {"table": table, "how": dict(how), "results": results})
    return path


def load_run(table: str, name: str, folder: Path | None = None) -> dict[str, Any]:
    """Read a stored run.

    Parameters
    ----------
    table, name : str
        What was measured, and on which model (or other distinction).
    folder : Path, optional
        Default: ``data/results`` of the project.

    Returns
    -------
    dict
        ``table``; ``how`` (see `provenance`); ``results``, the numbers.

    Examples
    --------
    >>> run = load_run("sts", "glove")
    >>> run["how"]["model"]
    'glove'
    """
    folder = folder or data_file("results")
    path = folder / table / f"{name.replace('/', '--')}.json"
    if not path.exists():
        there = sorted(f"{p.parent.name}/{p.stem}" for p in folder.glob("*/*.json"))
        raise FileNotFoundError(
            f"no stored run {table}/{path.stem}. There are: {', '.join(there) or 'none'}."
        )
    try:
        run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"the stored run {table}/{path.stem} was cut or changed ({error}). Make it again, or "
            "take a fresh copy."
        ) from error
    return run


def round_numbers(value: Any, digits: int = 5) -> Any:
    """Turn arrays and NumPy numbers into lists and plain numbers of so many significant digits.

    A number that is not finite is an error: a stored run has no NaN.

    Examples
    --------
    >>> round_numbers({"a": np.array([1.2345678, 2.0]), "n": np.int64(7)}, 3)
    {'a': [1.23, 2.0], 'n': 7}
    """
    if isinstance(value, dict):
        return {str(key): round_numbers(item, digits) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return round_numbers(value.tolist(), digits)
    if isinstance(value, (list, tuple)):
        return [round_numbers(item, digits) for item in value]
    if isinstance(value, (float, np.floating)):
        if not math.isfinite(value):
            raise ValueError(f"a measured number is {value}: look at how it came about.")
        return float(f"{value:.{digits}g}")
    return int(value) if isinstance(value, np.integer) else value


class Keep(Protocol):
    """A function that computes a part of an experiment, unless it was computed before."""

    def __call__(self, key: str, compute: Callable[[], T], /) -> T:
        """Give the value of the part named ``key``."""
        ...


def no_keep(key: str, compute: Callable[[], T], /) -> T:
    """Compute, and keep nothing."""
    return compute()


class KeptResults:
    """Finished parts of one experiment, in a file of the cache folder until it is complete.

    The file is written whole after each part (to a file beside it, then renamed), so a process
    that is stopped or killed loses the part it was at and nothing else.  Where the cache cannot
    be written, a warning says so and the work goes on.

    The settings are all that the numbers depend on, as JSON can hold it: encoder fingerprint,
    seeds, layers, data, versions. Other settings mean another file. The folder is ``partial`` in
    the cache by default.
    """

    def __init__(
        self, experiment: str, settings: dict[str, Any], folder: Path | None = None
    ) -> None:
        text = json.dumps(settings, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path = (folder or cache_dir() / "partial") / f"{experiment}-{digest}.json"
        self._parts: dict[str, Any] = {}
        self._writable = True
        self._before = (0.0, 0.0)
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["settings"] == settings:
                self._parts = dict(content["parts"])
                self._before = (float(content["seconds"]), float(content["cpu_seconds"]))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s cannot be read (%s): starting anew", self.path.name, error)
        self._settings = settings
        self._started = (time.perf_counter(), time.process_time())
        self.found = len(self._parts)

    def __call__(self, key: str, compute: Callable[[], T], /) -> T:
        """Give the part's value: from the file, or computed now and put there."""
        if key not in self._parts:
            # As JSON gives it back, so that a first run and a resumed one have the same values.
            self._parts[key] = json.loads(json.dumps(compute(), allow_nan=False))
            self._write()
        value: T = self._parts[key]
        return value

    @property
    def seconds(self) -> float:
        """Wall time so far; of interrupted starts, up to their last finished part."""
        return self._before[0] + time.perf_counter() - self._started[0]

    @property
    def cpu_seconds(self) -> float:
        """Processor time of this process, all threads together, counted as `seconds` is.

        On a machine that others use too, it says better how much work the experiment is.
        """
        return self._before[1] + time.process_time() - self._started[1]

    def remove(self) -> None:
        """Forget everything: the experiment is complete, or is to start anew."""
        self._parts, self.found, self._before = {}, 0, (0.0, 0.0)
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        if not self._writable:
            return
        try:
            content = {
                "settings": self._settings,
                "seconds": self.seconds,
                "cpu_seconds": self.cpu_seconds,
                "parts": self._parts,
            }
            write_json(self.path, content)
        except OSError as error:
            self._writable = False
            logger.warning(
                "%s cannot be written (%s): an interruption would lose finished rows",
                self.path.name,
                error,
            )


def begin_or_go_on(path: Path, settings: dict[str, Any], overwrite: bool) -> None:
    """Begin a run, or make sure that the one in the folder is the same.

    The settings, kept at ``path``, are all that the result depends on. With ``overwrite`` it begins
    anew where another run lies, and the folders beside ``path`` go; else the error names what
    differs.
    """
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        now = json.loads(json.dumps(settings))
        differ = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
        if not differ:
            return
        if not overwrite:
            values = [(key, before.get(key), now.get(key)) for key in differ]
            what = ", ".join(
                key if isinstance(old, dict) else f"{key} ({old}, now {new})"
                for key, old, new in values
            )
            raise ValueError(
                f"another run lies in {path.parent.name!r}, begun with another {what}. Give the "
                "same arguments to go on with it, name another folder, or say overwrite=True "
                "(command line: --overwrite) to replace it."
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
def stop_requested() -> Iterator[threading.Event]:
    """Note Ctrl-C and SIGTERM instead of acting at once: a step is never left half done.

    A second one acts at once.

    The event is set when the process was asked to stop; outside the main thread it never is.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}

    def stop(*_: Any) -> None:
        event.set()
        for kind, handler in before.items():
            signal.signal(kind, handler)

    for kind in before:
        signal.signal(kind, stop)
    try:
        yield event
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
