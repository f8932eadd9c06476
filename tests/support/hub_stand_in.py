"""A stand-in for the Hugging Face hub on the loopback interface, and what its tests share."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TINY = "some-org/tiny-bert"
LARGE = (".safetensors", ".bin", ".parquet", ".tar")
# A failure is told at once: after so few requests, and so few seconds that the client would pause.
REQUESTS, PAUSES = 40, 40.0


class Hub(ThreadingHTTPServer):
    """Speaks as much of the hub's protocol as a download takes; a test says how it misbehaves."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content: dict[str, dict[str, bytes]] = {}  # repository -> file -> content
        self.spoilt: dict[str, bytes] = {}  # file -> what is sent in its place
        self.failing: dict[str, tuple[int, str]] = {}  # file or repository -> status, error code
        self.cut_after: dict[str, list[int]] = {}  # file -> bytes sent to the next requests
        self.seen: list[tuple[str, str, str | None]] = []  # method, file, Range
        self.pauses: list[float] = []  # seconds that the client would have waited between them

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, method: str, file: str) -> list[str | None]:
        return [span for how, what, span in self.seen if (how, what) == (method, file)]

    def was_told_soon(self, requests: int | None = None) -> bool:
        """Say whether the client gave up in time; counted, since a clock would measure the load."""
        asked = len(self.seen) if requests is None else requests
        print(f"{asked} requests, pauses of {sum(self.pauses):.1f} s in all")  # where a test fails
        return asked <= REQUESTS and sum(self.pauses) <= PAUSES


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer(self) -> None:
        hub, wanted = self.server, self.headers.get("Range")
        asked = re.match(r"/api/(?:model|dataset)s/(.+?)/(revision|tree)/([^/?]+)", self.path)
        if asked is not None:
            self.describe(*map(unquote, asked.groups()))
            return
        found = re.fullmatch(r"/(cdn/)?(?:datasets/)?(.+?)/resolve/([^/]+)/(.+)", self.path)
        if found is None:
            self.refuse(404, "")
            return
        stored, repo, revision, file = (part and unquote(part) for part in found.groups())
        hub.seen.append((self.command, file, wanted))
        for failing in (repo, file):
            if failing in hub.failing:
                self.refuse(*hub.failing[failing])
                return
        if repo not in hub.content:
            self.refuse(401, "RepoNotFound")
        elif revision not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound")
        elif file not in hub.content[repo]:
            self.refuse(404, "EntryNotFound")
        elif file.endswith(LARGE) and not stored:
            self.redirect(hub.content[repo][file])
        else:
            self.give(hub.content[repo][file], file, wanted)

    def describe(self, repo: str, what: str, revision: str) -> None:
        """Tell a repository's commit, or list its files."""
        hub = self.server
        hub.seen.append((self.command, what, None))
        if repo in hub.failing:
            self.refuse(*hub.failing[repo])
        elif repo not in hub.content:
            self.refuse(401, "RepoNotFound")
        elif revision not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound")
        elif what == "revision":
            files = [{"rfilename": file} for file in hub.content[repo]]
            self.give_json({"id": repo, "sha": COMMIT, "siblings": files})
        else:
            self.give_json([entry(*item) for item in hub.content[repo].items()])

    def give_json(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def redirect(self, content: bytes) -> None:
        """Send to another address, as the hub does for large files."""
        self.send_response(302)
        self.send_header("Location", f"{self.server.url}/cdn{self.path}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Etag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Linked-Size", str(len(content)))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def give(self, content: bytes, file: str, wanted: str | None) -> None:
        blob = b"blob %d\0" % len(content) + content
        sent = self.server.spoilt.get(file, content)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        body = sent[start:]
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(sent) - 1}/{len(sent)}")
        self.send_header("ETag", f'"{hashlib.sha1(blob).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cuts = self.server.cut_after.get(file)
        self.wfile.write(body[: cuts.pop(0)] if cuts else body)


def entry(file: str, content: bytes) -> dict[str, Any]:
    """Describe a file as the hub lists it."""
    found = {"type": "file", "path": file, "size": len(content)}
    blob = b"blob %d\0" % len(content) + content
    large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return (
        found
        | {"oid": hashlib.sha1(blob).hexdigest()}
        | ({"lfs": large} if file.endswith(LARGE) else {})
    )


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Run an empty hub, with an empty cache of the hub's client, an empty one of ours, no data."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("BERTFLOW_DATA", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BERTFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    # The client counts what came by blocks of 10 MB; the test's files are smaller than one.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1024)
    running = Hub()
    # It tries again for half a minute, with pauses that are only written down.
    hasty = SimpleNamespace(sleep=running.pauses.append)
    for module in ("file_download", "utils._http"):
        monkeypatch.setattr(f"huggingface_hub.{module}.time", hasty, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", running.url)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Point the hub's client to an address where nobody answers, and nobody can begin to."""
    with socket.socket() as taken:  # bound, but not listened to
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield address


@pytest.fixture
def tiny(stand_in: Hub, tiny_bert_folder: Path) -> Hub:
    """Put the tiny BERT on the hub, beside the same weights for another framework."""
    files = {path.name: path.read_bytes() for path in tiny_bert_folder.iterdir()}
    stand_in.content[TINY] = files | {"tf_model.h5": b"x" * 100, "README.md": b"# tiny"}
    return stand_in


def blobs(tmp_path: Path) -> list[bytes]:
    """Return the content of every file in the hub's cache, half-written ones included."""
    stored = (tmp_path / "hub").rglob("blobs/*")
    return [path.read_bytes() for path in stored if path.is_file()]


def unfinished(tmp_path: Path) -> list[str]:
    return [p.name for p in (tmp_path / "hub").rglob("*") if "incomplete" in p.name]
