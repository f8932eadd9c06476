"""The files of a saved calibrator: how they are written, and how any damage is found.

``calibrator.json`` carries the digest of ``calibrator.safetensors`` and, as ``checksum``, its own:
that of the same text without the checksum.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from bertflow_lite.folders import read_folder

__all__ = ["CARD", "DESCRIPTION", "FORMAT_VERSION", "WEIGHTS", "pack", "read_files", "write_files"]

FORMAT = "bertflow-lite calibrator"
FORMAT_VERSION = 1
WEIGHTS, DESCRIPTION, CARD = "calibrator.safetensors", "calibrator.json", "README.md"
LARGEST_DESCRIPTION = 16 * 2**20  # bytes; a real one has a few thousand
CHANGED = "{} was cut or changed since it was written. Save or copy the calibrator again."


def pack(
    content: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give the description with format, digests and checksum, and the bytes of both files."""
    weights = safetensors.torch.save(dict(tensors))
    description: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **content,
        "weights": {"file": WEIGHTS, "bytes": len(weights), "sha256": _sha256(weights)},
    }
    description["checksum"] = _sha256(_to_json(description))
    return description, {WEIGHTS: weights, DESCRIPTION: _to_json(description)}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into an existing folder and wait until the disk has them."""
    for name, content in files.items():
        with open(folder / name, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def read_files(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the description and the tensors, and check that both files are as they were written.

    Raises
    ------
    FileNotFoundError
        If the folder or one of the files is missing.
    ValueError
        If one was cut or changed, is none of ours, or was written by a newer version.
    """
    return read_folder(folder, _read_whole)


def _read_whole(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {os.fspath(folder)!r} with a calibrator.")
    for name in (DESCRIPTION, WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{os.fspath(folder)!r} holds no {name}: it is no saved calibrator, or not all of "
                "one. Save or copy it again."
            )
    description = _read_description(folder / DESCRIPTION)
    return description, _read_weights(folder / WEIGHTS, description["weights"])


def _read_description(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        raw = file.read(LARGEST_DESCRIPTION + 1)
    description: dict[str, Any] = {}
    whole = False
    # No JSON, no UTF-8, a NaN, brackets without end: all of them mean that the file was changed.
    with contextlib.suppress(ValueError, RecursionError):
        parsed = json.loads(raw) if len(raw) <= LARGEST_DESCRIPTION else None
        if isinstance(parsed, dict):
            description = parsed
            whole = _is_whole(parsed, raw)
    version = description.get("format_version")
    if type(version) is int and version > FORMAT_VERSION:
        raise ValueError(
            f"{path} is of format {version}, written by a newer bertflow-lite; this one reads up "
            f"to {FORMAT_VERSION}. Run: pip install --upgrade bertflow-lite"
        )
    if not whole:
        raise ValueError(CHANGED.format(path))
    if description.get("format") != FORMAT or version != FORMAT_VERSION:
        raise ValueError(f"{path} does not describe a calibrator of this package.")
    for key, fields in (
        ("weights", {"bytes": int, "sha256": str}),
        ("encoder", {"name": str, "fingerprint": str, "dim": int}),
        ("data", {"description": str}),
    ):
        part = description.get(key)
        if part is None and key != "weights":
            continue
        if not isinstance(part, dict) or any(type(part.get(f)) is not t for f, t in fields.items()):
            raise ValueError(f"{path} says nothing of use under {key!r}: {part!r}.")
    return description


def _is_whole(description: dict[str, Any], raw: bytes) -> bool:
    """Whether the checksum is right and the bytes are those that we would write.

    The second finds what a JSON reader does not see: a changed blank, a key that comes twice.
    """
    content = {key: value for key, value in description.items() if key != "checksum"}
    checksum = description.get("checksum")
    return checksum == _sha256(_to_json(content)) and raw == _to_json(description)


def _read_weights(path: Path, expected: dict[str, Any]) -> dict[str, Tensor]:
    if path.stat().st_size != expected["bytes"]:
        raise ValueError(CHANGED.format(path))
    raw = path.read_bytes()
    if _sha256(raw) != expected["sha256"]:
        raise ValueError(CHANGED.format(path))
    try:
        return safetensors.torch.load(raw)
    except (SafetensorError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"{path} is no safetensors file, whatever its name says, and is not read: a pickle or "
            f"an archive in its place could run code ({error})."
        ) from error


def _to_json(content: Any) -> bytes:
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
