"""Downloading against a loopback server: resuming, refusing, checking."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import tarfile
import time
from pathlib import Path

import pytest
from archive_stand_in import GOOD, SICK, STSB, Server, archive, server, unsafe

from bertflow_lite.datasets import download
from bertflow_lite.datasets.download import download_sts, fetch
from bertflow_lite.datasets.sts import COUNTS, files_of, load_sts
from bertflow_lite.files import data_file

__all__ = ["server"]  # a fixture


def left_in(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


# --- the transfer ------------------------------------------------------------------------------


def test_fetch_streams_to_a_part_file_and_renames(server: Server, tmp_path: Path) -> None:
    fetch(server.url, tmp_path / "got", progress=False, pause=0)
    assert (tmp_path / "got").read_bytes() == server.content
    assert not (tmp_path / "got.part").exists()


def test_an_interrupted_transfer_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cut_after = [1000, 3000]
    fetch(server.url, tmp_path / "got", progress=False, pause=0)
    assert (tmp_path / "got").read_bytes() == server.content
    assert server.seen == [None, "bytes=1000-", "bytes=4000-"]


def test_a_part_of_an_earlier_run_is_used(server: Server, tmp_path: Path) -> None:
    (tmp_path / "got.part").write_bytes(server.content[:2000])
    fetch(server.url, tmp_path / "got", progress=False, pause=0)
    assert (tmp_path / "got").read_bytes() == server.content
    assert server.seen == ["bytes=2000-"]


def test_a_server_without_ranges_is_read_from_the_start(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.cut_after = [1000]
    fetch(server.url, tmp_path / "got", progress=False, pause=0)
    assert (tmp_path / "got").read_bytes() == server.content
    assert server.seen == [None, "bytes=1000-"]


def test_a_part_longer_than_the_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "got.part").write_bytes(b"x" * (len(server.content) + 5))
    fetch(server.url, tmp_path / "got", progress=False, pause=0)
    assert (tmp_path / "got").read_bytes() == server.content


def test_passing_troubles_are_tried_again(server: Server, tmp_path: Path) -> None:
    server.statuses = [503, 429, 500]
    fetch(server.url, tmp_path / "got", progress=False, pause=0)
    assert len(server.seen) == 4


def test_a_missing_file_is_not_tried_again(server: Server, tmp_path: Path) -> None:
    server.statuses = [404]
    with pytest.raises(FileNotFoundError, match=r"answered 404.*BERTFLOW_STS_URL"):
        fetch(server.url, tmp_path / "got", progress=False, pause=0)
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_not_tried_again(server: Server, tmp_path: Path, status: int) -> None:
    server.statuses = [status]
    with pytest.raises(ConnectionError, match=f"could not be fetched: the server .* {status}"):
        fetch(server.url, tmp_path / "got", progress=False, pause=0)
    assert len(server.seen) == 1
    assert "got" not in left_in(tmp_path)


def test_a_trouble_that_stays_is_told(server: Server, tmp_path: Path) -> None:
    server.statuses = [500] * 4
    with pytest.raises(ConnectionError, match=r"in 4 tries; at the last, the server answered 500"):
        fetch(server.url, tmp_path / "got", progress=False, pause=0)
    assert [name for name in left_in(tmp_path) if name.startswith("got")] == []


def test_a_part_of_another_archive_is_found_out_and_the_next_call_works(
    server: Server, tmp_path: Path
) -> None:
    whole, part = server.content, tmp_path / "cache" / "senteval.tar.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"?" * 600)  # what an older archive left, say
    with pytest.raises(ValueError, match=r"damaged|not accepted"):
        download_sts([STSB], progress=False)
    assert "cache/senteval.tar" not in left_in(tmp_path) and not part.exists()
    server.content = whole
    assert (download_sts([STSB], progress=False) / STSB).read_bytes() == GOOD[STSB]


def test_no_network_is_told_within_seconds(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFLOW_STS_URL", "http://127.0.0.1:9/senteval.tar")
    begun = time.monotonic()
    with pytest.raises(
        ConnectionError, match=r"could not be fetched in 4 tries.*Check the network"
    ):
        load_sts("stsb", download=True, progress=False)
    assert time.monotonic() - begun < 12


def test_a_transfer_that_never_completes_says_how_far_it_came(
    server: Server, tmp_path: Path
) -> None:
    server.cut_after = [100, 100, 100]
    with pytest.raises(ConnectionError, match=rf"3 tries.* 300 of {len(server.content):,} bytes"):
        fetch(server.url, tmp_path / "got", progress=False, pause=0, attempts=3)
    assert (tmp_path / "got.part").stat().st_size == 300
    assert not (tmp_path / "got").exists()


def test_no_server_at_all(server: Server, tmp_path: Path) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(ConnectionError, match="in 2 tries"):
        fetch(server.url, tmp_path / "got", progress=False, pause=0, attempts=2)


def test_progress_is_a_plain_text_bar(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(server.url, tmp_path / "quiet", progress=False)
    assert capsys.readouterr().err == ""
    fetch(server.url, tmp_path / "shown")
    shown = capsys.readouterr()
    assert "senteval.tar" in shown.err
    assert shown.out == ""


# --- the archive -------------------------------------------------------------------------------


@pytest.mark.parametrize("above", ["", "./", "senteval/downstream/"])
def test_the_wanted_files_reach_the_cache_and_nothing_else(
    server: Server, tmp_path: Path, above: str
) -> None:
    others = {"MR/rt.pos": b"x", "STS/STSBenchmark/raw/sts-test.csv": b"raw", "sts-test.csv": b"x"}
    server.content = archive(others | GOOD, above=above)
    folder = download_sts([STSB], progress=False)
    assert left_in(folder) == sorted(GOOD)
    assert (folder / STSB).read_bytes() == GOOD[STSB]
    assert left_in(tmp_path / "cache") in (
        [f"senteval/downstream/{name}" for name in sorted(GOOD)],
        ["senteval.lock", *(f"senteval/downstream/{name}" for name in sorted(GOOD))],
    )


def test_load_sts_downloads_once_and_only_when_asked(server: Server) -> None:
    with pytest.raises(FileNotFoundError, match="download=True"):
        load_sts("stsb")
    assert server.seen == []
    options = {"download": True, "progress": False, "check_counts": False}
    first = load_sts("stsb", **options)  # type: ignore[arg-type]
    again = load_sts("stsb", **options)  # type: ignore[arg-type]
    assert first.source == again.source == "the cache"
    assert first.sentences1 == ("it isn't .", "c")
    assert len(server.seen) == 1


def test_another_text_is_refused_with_both_checksums(server: Server, tmp_path: Path) -> None:
    other = GOOD[STSB].replace(b"isn't", b"is")
    server.content = archive(GOOD | {STSB: other})
    with pytest.raises(ValueError, match=r"sts-test\.csv has SHA-256.*verify='counts'") as caught:
        download_sts([STSB], progress=False)
    assert hashlib.sha256(other).hexdigest() in str(caught.value)
    assert hashlib.sha256(GOOD[STSB]).hexdigest() in str(caught.value)
    # The file that was right is kept, the wrong one and the archive are not.
    kept = [name for name in left_in(tmp_path / "cache") if not name.endswith(".lock")]
    assert kept == [f"senteval/downstream/{SICK}"]


def test_a_wrong_file_of_another_set_is_only_a_warning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.content = archive(GOOD | {STSB: b"other\n"})
    folder = download_sts([SICK], progress=False)
    assert left_in(folder) == [SICK]
    assert "sts-test.csv has 1 lines" in caplog.text


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_counts_accept_another_text_of_the_same_length(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    server.content = archive(GOOD | {STSB: GOOD[STSB].replace(b"isn't", b"is")})
    if how == "environment":
        monkeypatch.setenv("BERTFLOW_VERIFY", "counts")
    folder = download_sts([STSB], verify="counts" if how == "argument" else None, progress=False)
    assert b"it is ." in (folder / STSB).read_bytes()
    assert "accepted by its number of lines" in caplog.text


def test_counts_do_not_accept_a_shorter_file(server: Server) -> None:
    server.content = archive(GOOD | {STSB: GOOD[STSB][:20]})
    with pytest.raises(ValueError, match="has 1 lines that are not blank, where 2 are expected"):
        download_sts([STSB], verify="counts", progress=False)


@pytest.mark.parametrize(
    "change", [(b"isn't", b"isn ' t"), (b"\n", b"\r\n"), (b"it isn't", b"It Isn't")]
)
def test_the_same_text_spaced_or_cased_otherwise_is_accepted(
    server: Server, caplog: pytest.LogCaptureFixture, change: tuple[bytes, bytes]
) -> None:
    caplog.set_level(logging.INFO, logger="bertflow_lite")
    server.content = archive(GOOD | {STSB: GOOD[STSB].replace(*change)})
    download_sts([STSB], progress=False)
    assert "the known text, spaced or cased otherwise" in caplog.text


def test_a_file_that_the_archive_lacks_is_named(server: Server) -> None:
    server.content = archive({SICK: GOOD[SICK]})
    with pytest.raises(ValueError, match=r"sts-test\.csv is missing"):
        download_sts([STSB], progress=False)


@pytest.mark.parametrize("cut", [700, 30])
def test_a_truncated_archive_is_removed_and_the_next_call_works(
    server: Server, tmp_path: Path, cut: int
) -> None:
    whole = server.content
    server.content = whole[:cut]
    with pytest.raises(ValueError, match="damaged or no tar archive"):
        download_sts([STSB, SICK], progress=False)
    server.content = whole
    assert left_in(download_sts([STSB, SICK], progress=False)) == sorted(GOOD)


@pytest.mark.parametrize(
    "member",
    [
        unsafe(f"../../{STSB}"),
        unsafe(f"/tmp/{STSB}"),
        unsafe(f"a/../../{STSB}"),
        unsafe(STSB, tarfile.SYMTYPE),
        unsafe(STSB, tarfile.LNKTYPE),
        unsafe(STSB, size=(1 << 24) + 1),
    ],
    ids=["above", "absolute", "inner", "symbolic link", "hard link", "huge"],
)
def test_unsafe_members_are_refused(
    server: Server, tmp_path: Path, member: tarfile.TarInfo
) -> None:
    server.content = archive({}, member)
    with pytest.raises(ValueError, match="leaves its folder, is a link, or is far too large"):
        download_sts([STSB], progress=False)
    outside = [name for name in left_in(tmp_path) if not name.startswith("cache/senteval.lock")]
    assert outside == ["sts_sha256.txt"]


def test_verify_has_two_values(server: Server) -> None:
    with pytest.raises(ValueError, match="'sha256' or 'counts'"):
        download_sts([STSB], verify="none", progress=False)  # type: ignore[arg-type]


def _one_of_two(results: multiprocessing.Queue[str]) -> None:
    try:
        results.put(",".join(left_in(download_sts([STSB], progress=False))))
    except Exception as error:  # what a process met must reach the test
        results.put(repr(error))


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="needs forked processes"
)
def test_two_processes_do_not_collide(server: Server) -> None:
    forks = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = forks.Queue()
    both = [forks.Process(target=_one_of_two, args=(results,)) for _ in range(2)]
    for process in both:
        process.start()
    assert [results.get(timeout=60) for _ in both] == [",".join(sorted(GOOD))] * 2
    for process in both:
        process.join(timeout=60)
    assert len(server.seen) == 1  # the second found the work done


# --- the real files ------------------------------------------------------------------------------


def test_the_table_lists_every_file_that_is_read() -> None:
    known = download._known_files()
    assert set(known) == {
        f for name in COUNTS for part in COUNTS[name] for f in files_of(name, part)
    }


@pytest.mark.data
def test_the_real_files_pass_the_check_and_load_from_the_cache(
    real_data: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BERTFLOW_DATA", raising=False)
    monkeypatch.setattr(download, "data_file", data_file)  # the real table of checksums
    root = next(real_data.glob("**/downstream"))
    server.content = archive({name: (root / name).read_bytes() for name in download._known_files()})
    for name, counts in COUNTS.items():
        assert len(load_sts(name, "all", download=True, progress=False)) == sum(counts.values())
    assert len(server.seen) == 1
