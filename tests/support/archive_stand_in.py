"""A stand-in for the home of the SentEval archive, and archives to put there."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bertflow_lite.datasets import download

GOOD = {
    "STS/STSBenchmark/sts-test.csv": b"g\tf\ty\t1\t2.5\tit isn't .\tB\ng\tf\ty\t2\t5\tc\tC\n",
    "SICK/SICK_trial.txt": b"pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\ta\tA\t1.5\n",
}
STSB, SICK = GOOD


class Server(ThreadingHTTPServer):
    """Serves `content`; how it misbehaves is set by a test."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = b""
        self.ranges = True
        self.cut_after: list[int] = []  # for the next requests: bytes sent before hanging up
        self.statuses: list[int] = []  # for the next requests: an answer without content
        self.seen: list[str | None] = []  # the Range header of each request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/senteval.tar"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.seen.append(wanted)
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        start = 0
        if wanted and server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(server.content):
                self.send_error(416)
                return
            self.send_response(206)
            total = len(server.content)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        else:
            self.send_response(200)
        body = server.content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cut_after.pop(0)] if server.cut_after else body)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Run a server with a good archive, and an empty cache."""
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    for setting in ("BERTFLOW_DATA", "BERTFLOW_VERIFY"):
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setenv("BERTFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "data_file", lambda name: tmp_path / name)
    (tmp_path / "sts_sha256.txt").write_text("# made by a test\n" + "".join(map(row, GOOD)))
    running = Server()
    running.content = archive(GOOD)
    monkeypatch.setenv("BERTFLOW_STS_URL", running.url)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def row(name: str) -> str:
    content = GOOD[name]
    text = "".join(content.decode().lower().split()).encode()
    return (
        f"{hashlib.sha256(content).hexdigest()} {hashlib.sha256(text).hexdigest()} "
        f"{len(content.splitlines())} {name}\n"
    )


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
