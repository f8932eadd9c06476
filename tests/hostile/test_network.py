"""A hub and an archive that misbehave in every way, on the loopback interface."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import socket
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from archive_stand_in import GOOD, SICK, archive, archived, unsafe
from hub_stand_in import TINY, Hub, stand_in, tiny, unfinished
from refusal import helps, must, nothing_left, refuses

import bertflow_lite as bf
from bertflow_lite.datasets.nli import load_qnli
from bertflow_lite.datasets.source import unpack_sts
from bertflow_lite.encoders.models import load_model

__all__ = ["archived", "stand_in", "tiny"]  # fixtures of the modules they come from

Answer = Callable[[BaseHTTPRequestHandler], None]


class Odd(ThreadingHTTPServer):
    """Answers every request as one test says."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                owner.seen += 1
                answer(self)

            do_HEAD = do_GET

        super().__init__(("127.0.0.1", 0), Handler)
        owner = self
        self.seen = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def odd() -> Iterator[Callable[[Answer], Odd]]:
    running: list[tuple[Odd, threading.Thread]] = []

    def start(answer: Answer) -> Odd:
        one = Odd(answer)
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((one, thread))
        return one

    yield start
    for one, thread in running:
        one.shutdown()
        one.server_close()
        thread.join()


def status(code: int) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


def redirect_to_itself(request: BaseHTTPRequestHandler) -> None:
    request.send_response(302)
    request.send_header("Location", request.path)
    request.send_header("Content-Length", "0")
    request.end_headers()


def redirect_to_a_file(request: BaseHTTPRequestHandler) -> None:
    request.send_response(302)
    request.send_header("Location", "file:///etc/hostname")
    request.send_header("Content-Length", "0")
    request.end_headers()


def hang_up(request: BaseHTTPRequestHandler) -> None:
    request.connection.shutdown(socket.SHUT_RDWR)


def say_nothing(request: BaseHTTPRequestHandler) -> None:
    request.connection.settimeout(1)  # some parts of the client have more patience than that
    with contextlib.suppress(TimeoutError):
        request.connection.recv(1)  # ends where the client hangs up


def talk_nonsense(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"\x00\x01\x02 what?\r\n\r\n")


def page(request: BaseHTTPRequestHandler) -> None:
    body = b"<html>Please log in to this wireless network</html>"
    request.send_response(200)
    request.send_header("Content-Type", "text/html")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def shorter_than_it_says(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000000")
    request.end_headers()
    request.wfile.write(b"x" * 100)


ANSWERS: dict[str, Answer] = {
    "403": status(403),
    "404": status(404),
    "410": status(410),
    "500": status(500),
    "redirect-loop": redirect_to_itself,
    "redirect-to-a-local-file": redirect_to_a_file,
    "hangs-up": hang_up,
    "too-slow": say_nothing,
    "no-http": talk_nonsense,
    "a-page-in-its-place": page,
    "ends-too-soon": shorter_than_it_says,
}
FETCHED: dict[str, tuple[str, Callable[[], Any]]] = {
    "a-model": (TINY, lambda: load_model(TINY, device="cpu", download=True)),
    "an-sts-set": ("senteval.tar", lambda: bf.load_sts("stsb", download=True, progress=False)),
    "a-file": ("nyu-mll/glue", lambda: load_qnli(download=True)),
}


@pytest.mark.parametrize("what", FETCHED)
@pytest.mark.parametrize("case", ANSWERS)
def test_a_hub_that_misbehaves(
    case: str, what: str, odd: Callable[[Answer], Odd], stand_in: Hub, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    name, fetch = FETCHED[what]
    running = odd(ANSWERS[case])
    monkeypatch.setenv("HF_ENDPOINT", running.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.5)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    monkeypatch.setattr("huggingface_hub.file_download._ETAG_RETRY_TIMEOUT", 0.5, raising=False)
    monkeypatch.setattr("bertflow_lite.hub._WAIT", 0.5)
    with nothing_left(tmp_path), pytest.raises(OSError, match=name) as caught:
        fetch()
    assert stand_in.was_told_soon(running.seen)
    helps(str(caught.value), "could not be fetched")
    assert re.search(r"HF_TOKEN|Check the network", str(caught.value))
    assert unfinished(tmp_path) == []


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("../../escaped", "x")
    return file.getvalue()


def bomb() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        member = tarfile.TarInfo("zeros")
        member.size = 1 << 24
        tar.addfile(member, io.BytesIO(bytes(member.size)))
    return gzip.compress(file.getvalue())


MUCH = 8 << 20  # bytes; the bomb and the giant are larger
CONTENT: dict[str, tuple[Callable[[], bytes], Any]] = {
    "leaves-its-folder": (
        lambda: archive({}, unsafe(f"../../{SICK}")),
        refuses(ValueError, "leaves its folder", "do not use"),
    ),
    "has-an-absolute-path": (
        lambda: archive({}, unsafe(f"/tmp/{SICK}")),
        refuses(ValueError, "leaves its folder", "do not use"),
    ),
    "has-a-link": (
        lambda: archive({}, unsafe(SICK, tarfile.SYMTYPE)),
        refuses(ValueError, "is a link", "do not use"),
    ),
    "has-a-device": (
        lambda: archive({}, unsafe(SICK, tarfile.CHRTYPE)),
        refuses(ValueError, "link", "do not use"),
    ),
    "has-a-giant": (
        lambda: archive({}, unsafe(SICK, tarfile.REGTYPE, 1 << 25)),
        refuses(ValueError, "far too large"),
    ),
    "is-a-zip-that-escapes": (zipped, refuses(ValueError, "no tar archive", "Delete it")),
    "is-a-bomb": (bomb, refuses(ValueError, "no tar archive", "Delete it")),
    "is-cut": (lambda: archive(GOOD)[:700], refuses(ValueError, "damaged", "fetch it anew")),
    "is-empty": (lambda: b"", refuses(ValueError, "damaged or no tar archive")),
    "has-another-text": (
        lambda: archive(GOOD | {SICK: GOOD[SICK].replace(b"1.5", b"2.5")}),
        refuses(ValueError, "SHA-256", "is expected", "Delete it", "BERTFLOW_DATA"),
    ),
    "lacks-a-file": (lambda: archive({}), refuses(ValueError, "is missing", "not accepted")),
}


@pytest.mark.parametrize("case", CONTENT)
def test_an_archive_that_is_not_what_it_should_be(case: str, archived: Hub, tmp_path: Path) -> None:
    make, expected = CONTENT[case]
    (tmp_path / "senteval.tar").write_bytes(make())
    tracemalloc.start()
    try:
        with pytest.raises(expected.kind) as caught:
            unpack_sts(tmp_path / "senteval.tar", [SICK])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    helps(str(caught.value), *expected.words)
    assert most < MUCH, f"{most / 1e6:.1f} MB were taken to find out"
    kept = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert set(kept) <= {"sts-test.csv"}  # the other file, where it came right
    assert not list(tmp_path.rglob("escaped"))


def test_a_page_in_place_of_the_hub(
    odd: Callable[[Answer], Odd], stand_in: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wireless network that asks for a login answers 200 to everything."""
    monkeypatch.setenv("HF_ENDPOINT", odd(page).url)
    with pytest.raises((OSError, ValueError)) as caught:
        load_model(TINY, device="cpu", download=True)
    helps(str(caught.value), TINY)
    with pytest.raises((OSError, ValueError), match=TINY):
        load_model(TINY, device="cpu")  # and no page is taken for a model afterwards


def test_a_cache_that_cannot_be_written_is_named(
    archived: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "senteval.tar").write_bytes(archive(GOOD))
    monkeypatch.setenv("BERTFLOW_CACHE", str(tmp_path / "file"))
    must(
        refuses(OSError, str(tmp_path / "file")),
        lambda: unpack_sts(tmp_path / "senteval.tar", [SICK]),
        tmp_path,
    )


WITHOUT_ASKING: dict[str, Callable[[], Any]] = {
    "a-model": lambda: load_model("some-org/none"),
    "a-misspelt-model": lambda: load_model("minlm"),
    "an-sts-set": lambda: bf.load_sts("stsb"),
    "qnli": load_qnli,
    "the-list-of-sets": bf.list_datasets,
    "the-list-of-models": bf.list_models,
    "mini-sts": lambda: bf.load_sts("mini-sts"),
    "minilm": lambda: bf.load_encoder("minilm", device="cpu"),
}


@pytest.mark.parametrize("case", WITHOUT_ASKING)
def test_nothing_is_sent_unless_asked(case: str, workplace: Path, no_network: None) -> None:
    try:
        WITHOUT_ASKING[case]()
    except FileNotFoundError as error:
        helps(str(error), "download")
