"""A stand-in for the Hugging Face hub on the loopback interface, and what its tests share."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from bertflow_lite import hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TINY = "some-org/tiny-bert"
LARGE = (".safetensors", ".bin", ".parquet")
SOON = 8.0  # seconds within which every failure has to be told


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

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, method: str, file: str) -> list[str | None]:
        return [span for how, what, span in self.seen if (how, what) == (method, file)]


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
    monkeypatch.setattr(hub, "_PAUSE", 0.05)
    running = Hub()
    monkeypatch.setenv("HF_ENDPOINT", running.url)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


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
