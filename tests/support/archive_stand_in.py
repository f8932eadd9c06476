"""The SentEval archive on a stand-in for the hub, and archives to put in its place."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from hub_stand_in import Hub, stand_in

from bertflow_lite.datasets import source
from bertflow_lite.datasets.source import ARCHIVE

__all__ = ["GOOD", "SICK", "STSB", "archive", "archived", "put", "stand_in", "unsafe"]

GOOD = {
    "STS/STSBenchmark/sts-test.csv": b"g\tf\ty\t1\t2.5\tit isn't .\tB\ng\tf\ty\t2\t5\tc\tC\n",
    "SICK/SICK_trial.txt": b"pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\ta\tA\t1.5\n",
}
STSB, SICK = GOOD


@pytest.fixture
def archived(stand_in: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Put a good archive on the hub, whose files are the known ones."""
    monkeypatch.setattr(source, "data_file", lambda name: tmp_path / name)
    (tmp_path / "sts_sha256.txt").write_text("# made by a test\n" + "".join(map(row, GOOD)))
    put(stand_in, archive(GOOD))
    return stand_in


def put(hub: Hub, content: bytes) -> None:
    hub.content[ARCHIVE.repo] = {ARCHIVE.file: content}


def row(name: str) -> str:
    content = GOOD[name]
    text = "".join(content.decode().lower().split()).encode()
    return f"{hashlib.sha256(content).hexdigest()} {hashlib.sha256(text).hexdigest()} {name}\n"


def archive(files: dict[str, bytes], *extra: tarfile.TarInfo, above: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(above + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in extra:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def unsafe(name: str, kind: bytes = tarfile.REGTYPE, size: int = 1) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    member.size = size if kind == tarfile.REGTYPE else 0
    return member
