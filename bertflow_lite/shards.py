"""A folder of embeddings in shards: what it holds, what is missing, and whether it is whole.

Beside each shard, a ``.npy`` file, stands a JSON file with its rows and checksum, written after
it; ``manifest.json`` says what the folder holds, and whether it is complete.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertflow_lite.files import replacing, write_json
from bertflow_lite.streaming import EmbeddingStream
from bertflow_lite.text import check_sentences

__all__ = ["digest_of", "find_missing", "finish", "write_shard"]

logger = logging.getLogger(__name__)


def digest_of(sentences: Sequence[str]) -> str:
    """Give the SHA-256 of all sentences, in order."""
    digest = hashlib.sha256()
    for start in range(0, len(sentences), 65536):
        for text in check_sentences(sentences[start : start + 65536]):
            encoded = text.encode()
            digest.update(f"{len(encoded)}:".encode() + encoded)
    return digest.hexdigest()


def find_missing(folder: Path, path: Path, plan: dict[str, Any]) -> list[int]:
    """Find the shards that are still to be done; make the folder ready for them."""
    joined = path.with_name(path.name + ".json")
    manifest = joined if folder != path and joined.exists() else folder / "manifest.json"
    if manifest.exists():
        there = _read_json(manifest)
        for key, value in plan.items():
            if there.get(key) != value:
                raise ValueError(
                    f"{path} holds embeddings with {key} {there.get(key)!r}, not {value!r}. "
                    "Choose another place, or remove it."
                )
        if manifest is joined and path.exists() and there["sha256"] == _sha256(path):
            return []
    elif path.is_file() or (folder.exists() and any(folder.iterdir())):
        raise ValueError(f"{path} is there, and nothing says what it holds; choose another place.")
    folder.mkdir(parents=True, exist_ok=True)
    for scratch in folder.glob(".shard-*"):  # of a process that was killed as it wrote
        scratch.unlink()
    shards = range(-(-plan["sentences"] // plan["shard_rows"]))
    missing = [number for number in shards if not _is_whole(folder, number)]
    if not missing:
        finish(folder, path, plan)
        return []
    write_json(folder / "manifest.json", {**plan, "complete": False, "shards": []})
    if len(missing) < len(shards):
        logger.warning("%d of %d shards are to be done", len(missing), len(shards))
    return missing


def _is_whole(folder: Path, number: int) -> bool:
    file = _shard_file(folder, number)
    try:
        whole = bool(_read_json(file.with_suffix(".json"))["sha256"] == _sha256(file))
    except (FileNotFoundError, ValueError, KeyError):
        return False
    if not whole:
        logger.warning("%s is not as it was written; it is done again", file.name)
    return whole


def write_shard(
    encoder: Any, sentences: Sequence[str], layers: Any, folder: Path, number: int
) -> None:
    """Encode the sentences of a shard and write them, and then what is known of the file."""
    started = time.perf_counter()
    vectors = encoder.encode(list(sentences), layers)
    file = _shard_file(folder, number)
    with replacing(file) as opened:
        np.save(opened, vectors)
    record = {
        "file": file.name,
        "rows": len(vectors),
        "sha256": _sha256(file),
        "host": socket.gethostname(),
        "seconds": round(time.perf_counter() - started, 3),
    }
    write_json(file.with_suffix(".json"), record)


def finish(folder: Path, path: Path, plan: dict[str, Any]) -> None:
    """Write the manifest of all shards; join them if one file is wanted."""
    files = [_shard_file(folder, i) for i in range(-(-plan["sentences"] // plan["shard_rows"]))]
    records = [_read_json(file.with_suffix(".json")) for file in files]
    write_json(folder / "manifest.json", {**plan, "complete": True, "shards": records})
    if folder == path:
        return
    EmbeddingStream(folder).save(path)
    joined = {**plan, "complete": True, "sha256": _sha256(path), "shards": records}
    write_json(path.with_name(path.name + ".json"), joined)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _shard_file(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:06d}.npy"


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
    except ValueError as error:
        raise ValueError(
            f"{file} was cut or changed ({error}). Remove what was encoded there, and encode anew."
        ) from error
    return content
