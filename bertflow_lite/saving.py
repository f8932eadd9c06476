"""One file for whatever can say its own state: settings and arrays, never code (safetensors).

A class says its state and takes it back (`Savable`); what is here knows bytes only.  A SHA-256 over
all of them finds a file that was cut or changed.  It is no signature: trust a file as you trust its
source.  Even a forged one runs no code, since classes come from a fixed table and arrays are plain
numbers, and whatever does not fit (a shape, a range, a name, a size) is refused.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from bertflow_lite.files import replacing

__all__ = ["Arrays", "Savable", "describe", "make_again", "read_file", "write_file"]

FORMAT = "bertflow-lite"
FORMAT_VERSION = 1
PACKAGES = ("bertflow-lite", "torch", "transformers", "numpy", "scipy", "scikit-learn")
LARGEST_HEADER = 16 * 2**20  # bytes of JSON; a real one has a few thousand
# Whose classes a file may name; one that somebody derives of them it may not.
ROOMS = (f"{__package__}.calibrators.", f"{__package__}.encoders.")
# What JSON gives for a setting of each annotation (an int will do for a float).
JSON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
}


class Arrays:
    """The arrays of one object out of a file; what is taken must be of the right type and shape."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.left = dict(arrays)

    def take(self, name: str, dtype: Any, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Take one out; ``shape`` None is any length of one dimension."""
        if name not in self.left:
            raise ValueError(f"the array {name!r} is missing")
        array = self.left.pop(name)
        fits = array.ndim == 1 if shape is None else array.shape == shape
        if array.dtype != np.dtype(dtype) or not fits:
            raise ValueError(
                f"the array {name!r} is {array.dtype} of shape {array.shape}; it must be "
                f"{np.dtype(dtype)} of shape {shape or '(n,)'}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"the array {name!r} holds a value that is not finite")
        return array.copy()  # writable, whatever the file's bytes were


class Savable:
    """A class whose fitted objects can be put into a file and made again.

    A subclass says its state in `_get_state` and takes it back in `_set_state`.  Those of
    `ROOMS` register themselves; a file can name no other class.
    """

    kinds: ClassVar[dict[str, type[Savable]]] = {}
    # Settings that belong to the machine or the screen.
    _not_saved: ClassVar[tuple[str, ...]] = ("device", "progress")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith(ROOMS) and not cls.__name__.startswith("_"):
            Savable.kinds[cls.__name__] = cls

    def _get_settings(self) -> dict[str, Any]:
        """Give the settings as JSON can hold them."""
        named: dict[str, Any] = self.get_params(deep=False)  # type: ignore[attr-defined]
        return {name: value for name, value in named.items() if name not in self._not_saved}

    @classmethod
    def _from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Make an object that is not fitted; ValueError for a setting of the wrong type."""
        known = inspect.signature(cls).parameters
        for name, value in settings.items():
            if name not in known or name in cls._not_saved:
                raise ValueError(f"a {cls.__name__} has no setting {name!r} that can be saved")
            kinds = [JSON_TYPES.get(part, ()) for part in str(known[name].annotation).split(" | ")]
            if type(value) not in {each for group in kinds for each in group}:  # a bool is no int
                raise ValueError(f"the setting {name!r} is of the wrong type: {value!r}")
        return cls(**settings)

    def _get_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Give what the fit has found: facts as JSON can hold them, and arrays by name."""
        raise NotImplementedError

    def _set_state(self, facts: Mapping[str, Any], arrays: Arrays) -> None:
        """Take back what `_get_state` gave; ValueError for anything that does not fit."""
        raise NotImplementedError


def describe(step: Any) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Take a fitted object apart: its class, settings and facts, and its arrays."""
    kind = type(step).__name__
    if Savable.kinds.get(kind) is not type(step):
        raise ValueError(
            f"{step if isinstance(step, str) else kind!r} cannot be saved; these can, alone or as "
            f"the steps of a Pipeline: {', '.join(Savable.kinds)}."
        )
    settings = {}
    for name, value in step._get_settings().items():
        value = value.item() if isinstance(value, np.generic) else value
        many = value if isinstance(value, tuple | list) else [value]
        if not all(isinstance(one, str | int | float | None) for one in many) or any(
            isinstance(one, float) and not math.isfinite(one) for one in many
        ):
            raise ValueError(
                f"the setting {name}={value!r} cannot be saved: it must be a finite number, a "
                "truth value, a string or None."
            )
        settings[name] = value
    facts, arrays = step._get_state()
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(
                f"{kind}.{name} holds a value that is not finite: this {kind} is broken. Fit it "
                "anew."
            )
    return {"class": kind, "settings": settings, "facts": facts}, arrays


def make_again(described: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Make a fitted object of what `describe` gave, or of what claims to be that."""
    if not isinstance(described, dict):
        raise ValueError("a step is no mapping")
    kind, settings, facts = (described.get(key) for key in ("class", "settings", "facts"))
    if not isinstance(kind, str) or kind not in Savable.kinds:
        raise ValueError(f"there is no class {kind!r}; there are {', '.join(Savable.kinds)}")
    if not isinstance(settings, dict) or not isinstance(facts, dict):
        raise ValueError(f"the {kind} says nothing of its settings or its fit")
    step = Savable.kinds[kind]._from_settings(settings)
    own = Arrays(arrays)
    step._set_state(facts, own)
    if own.left:
        raise ValueError(f"a {kind} has no array {', '.join(sorted(own.left)[:5])}")
    return step


def typed(facts: Mapping[str, Any], key: str, *types: type) -> Any:
    """Give ``facts[key]``; ValueError unless it is of one of the types."""
    value = facts.get(key)
    if type(value) not in types:
        wanted = " or ".join(kind.__name__ for kind in types)
        raise ValueError(f"{key!r} is {value!r}; it must be of type {wanted}")
    return value


def write_file(
    path: str | os.PathLike[str], content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> Path:
    """Write a description and its arrays as one file, which appears when it is complete."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    said = json.dumps(
        {"format": FORMAT, "format_version": FORMAT_VERSION, **content},
        ensure_ascii=False,
        allow_nan=False,
    )
    with replacing(path) as file:
        file.write(to_bytes(whole, {"bertflow_lite": said, "sha256": _digest(said, whole)}))
        file.flush()
        os.fsync(file.fileno())  # the name must not be on the disk before the content is
    return Path(path)


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read what `write_file` wrote, once it is found whole.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it was cut or changed, is none of ours, or was written by a newer version.
    """
    name = os.fspath(path)
    if not os.path.isfile(name):
        what = "a folder, where one file is expected" if os.path.isdir(name) else "not there"
        raise FileNotFoundError(f"{name!r} is {what}: name the .safetensors file that was saved.")
    changed = (
        f"{name!r} is no file that bertflow-lite saved, or was cut or changed since. Save or copy "
        "it again."
    )
    try:
        with safe_open(name, "np") as file:
            head = file.metadata() or {}
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        said = head["bertflow_lite"]
        content = json.loads(said) if len(said) <= LARGEST_HEADER else None
    # Also what NumPy has no type for, and brackets without end.
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(changed) from error
    if not isinstance(content, dict):
        raise ValueError(changed)
    number = content.get("format_version")
    if type(number) is int and number > FORMAT_VERSION:
        raise ValueError(
            f"{name!r} is of format {number}, written by a newer bertflow-lite; this one reads up "
            f"to {FORMAT_VERSION}. Run: pip install --upgrade bertflow-lite"
        )
    if _digest(said, arrays) != head.get("sha256") or content.get("format") != FORMAT:
        raise ValueError(changed)
    return content, arrays


def package_versions() -> dict[str, str]:
    """Give the versions of the packages that numbers may depend on."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def join(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Put the arrays of several objects under one roof: ``"<number>.<name>"``."""
    return {f"{n}.{name}": array for n, part in enumerate(parts) for name, array in part.items()}


def part(arrays: dict[str, NDArray[Any]], number: int) -> dict[str, NDArray[Any]]:
    """Take the arrays of one object out again."""
    mark = f"{number}."
    names = [name for name in arrays if name.startswith(mark)]
    return {name.removeprefix(mark): arrays.pop(name) for name in names}


def _digest(said: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(said.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
