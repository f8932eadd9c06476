"""Stored runs: numbers together with how they came about.

A run is a JSON file under ``data/results/<table>/<name>.json``.  The command line writes it; the
book reads it.  It names model and fingerprint, data and fingerprints, settings, seed, versions,
device, date and command, so that every number in the book can be traced and made again.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertflow_lite.files import data_file, write_json
from bertflow_lite.saving import package_versions

__all__ = ["load_run", "provenance", "round_numbers", "store_run", "typed_command"]


def provenance(
    *, model: str, fingerprint: str, seed: int | list[int], device: str, **settings: Any
) -> dict[str, Any]:
    """Say how a run came about.

    Parameters
    ----------
    model, fingerprint : str
        The encoder's name and the digest of its weights.
    seed : int or list of int
        Random state(s) of the run.
    device : str
        Where it ran, for instance ``"cpu"``.
    **settings
        Whatever else the numbers depend on: layers, presets, data fingerprints.

    Returns
    -------
    dict
        Also with versions, machine, threads, date and the command that was typed.
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

    Parameters
    ----------
    arguments : sequence of str
        What follows the program's name.

    Returns
    -------
    str

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
    """Write a run to ``<folder>/<table>/<name>.json``.

    Parameters
    ----------
    table, name : str
        What was measured, and on which model (or other distinction).
    how : mapping
        From `provenance`.
    results : JSON-able
        The numbers.
    folder : Path, optional
        Default: ``data/results`` of the project.

    Returns
    -------
    Path
        The file written.
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

    Raises
    ------
    FileNotFoundError
        If there is no such run; the message names those there are.

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

    Parameters
    ----------
    value : dict, list, tuple, array or number
        What `json` can hold, arrays and NumPy numbers besides.
    digits : int, default 5

    Returns
    -------
    dict, list or number

    Raises
    ------
    ValueError
        If a number is not finite: a stored run has no NaN.

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
