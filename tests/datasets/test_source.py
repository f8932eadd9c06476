"""The archive of the STS files: fetched from a stand-in for the hub, unpacked, checked."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import tarfile
from pathlib import Path

import pytest
from archive_stand_in import GOOD, SICK, STSB, archive, archived, put, stand_in, unsafe
from hub_stand_in import Hub

from bertflow_lite.datasets import source
from bertflow_lite.datasets.source import ARCHIVE, unpack_sts
from bertflow_lite.datasets.sts import COUNTS, files_of, load_sts
from bertflow_lite.files import data_file

__all__ = ["archived", "stand_in"]  # fixtures


def left_in(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def unpack(archived: Hub, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Give a function that unpacks what an archive holds."""

    def do(content: bytes, *needed: str) -> Path:
        (tmp_path / "senteval.tar").write_bytes(content)
        return unpack_sts(tmp_path / "senteval.tar", needed)

    return do


@pytest.mark.parametrize("above", ["", "./", "senteval/downstream/"])
def test_the_wanted_files_reach_the_cache_and_nothing_else(
    unpack, tmp_path: Path, above: str
) -> None:
    others = {"MR/rt.pos": b"x", "STS/STSBenchmark/raw/sts-test.csv": b"raw", "sts-test.csv": b"x"}
    folder = unpack(archive(others | GOOD, above=above), STSB)
    assert (folder / STSB).read_bytes() == GOOD[STSB]
    kept = [f"senteval/downstream/{name}" for name in sorted(GOOD)]
    assert left_in(tmp_path / "cache") == kept


def test_load_sts_downloads_once_and_only_when_asked(
    archived: Hub, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FileNotFoundError, match="download=True"):
        load_sts("stsb")
    assert archived.seen == []
    options = {"download": True, "progress": False, "check_counts": False}
    first = load_sts("stsb", **options)  # type: ignore[arg-type]
    assert len(archived.asked("GET", ARCHIVE.file)) == 1
    archived.seen.clear()
    again = load_sts("stsb", **options)  # type: ignore[arg-type]
    assert first.source == again.source == "the cache"
    assert first.sentences1 == ("it isn't .", "c")
    assert archived.seen == []
    assert capfd.readouterr().err == ""  # no bar where none is wanted


def test_a_broken_transfer_of_the_archive_is_taken_up_again(archived: Hub) -> None:
    archived.cut_after[ARCHIVE.file] = [2000]
    pairs = load_sts("stsb", download=True, progress=False, check_counts=False)
    assert len(pairs) == 2
    assert archived.asked("GET", ARCHIVE.file) == [None, "bytes=1024-"]


def test_another_text_is_refused_with_both_checksums(unpack, tmp_path: Path) -> None:
    other = GOOD[STSB].replace(b"isn't", b"is")
    with pytest.raises(ValueError, match=r"sts-test\.csv has SHA-256.*BERTFLOW_DATA") as caught:
        unpack(archive(GOOD | {STSB: other}), STSB)
    assert hashlib.sha256(other).hexdigest() in str(caught.value)
    assert hashlib.sha256(GOOD[STSB]).hexdigest() in str(caught.value)
    # The file that was right is kept, the wrong one is not.
    assert left_in(tmp_path / "cache") == [f"senteval/downstream/{SICK}"]


def test_a_wrong_file_of_another_set_is_only_a_warning(
    unpack, caplog: pytest.LogCaptureFixture
) -> None:
    assert left_in(unpack(archive(GOOD | {STSB: b"other\n"}), SICK)) == [SICK]
    assert "sts-test.csv has SHA-256" in caplog.text


@pytest.mark.parametrize(
    "change", [(b"isn't", b"isn ' t"), (b"\n", b"\r\n"), (b"it isn't", b"It Isn't")]
)
def test_the_same_text_spaced_or_cased_otherwise_is_accepted(
    unpack, caplog: pytest.LogCaptureFixture, change: tuple[bytes, bytes]
) -> None:
    caplog.set_level(logging.INFO, logger="bertflow_lite")
    unpack(archive(GOOD | {STSB: GOOD[STSB].replace(*change)}), STSB)
    assert "the known text, spaced or cased otherwise" in caplog.text


def test_a_file_that_the_archive_lacks_is_named(unpack) -> None:
    with pytest.raises(ValueError, match=r"sts-test\.csv is missing"):
        unpack(archive({SICK: GOOD[SICK]}), STSB)


@pytest.mark.parametrize("cut", [520, 30])
def test_a_damaged_archive_is_named_and_deleting_it_helps(archived: Hub, cut: int) -> None:
    options = {"download": True, "progress": False, "check_counts": False}
    whole = archive(GOOD)
    # Of the right size and with the right name in the cache: only the content is wrong.
    archived.spoilt[ARCHIVE.file] = whole[:cut] + bytes(range(1, 256)) * (len(whole) // 200)
    archived.spoilt[ARCHIVE.file] = archived.spoilt[ARCHIVE.file][: len(whole)]
    with pytest.raises(ValueError, match=r"Delete (it|\S+)") as caught:
        load_sts("stsb", **options)  # type: ignore[arg-type]
    said = str(caught.value)
    (damaged,) = (Path(word).expanduser() for word in said.split() if "blobs" in word)
    damaged.unlink()
    archived.spoilt.clear()
    assert len(load_sts("stsb", **options)) == 2  # type: ignore[arg-type]


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
def test_unsafe_members_are_refused(unpack, tmp_path: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(ValueError, match="leaves its folder, is a link, or is far too large"):
        unpack(archive({}, member), STSB)
    assert left_in(tmp_path) == ["senteval.tar", "sts_sha256.txt"]


def _one_of_two(content: Path, results: multiprocessing.Queue[str]) -> None:
    try:
        results.put(",".join(left_in(unpack_sts(content, [STSB]))))
    except Exception as error:  # what a process met must reach the test
        results.put(repr(error))


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="needs forked processes"
)
def test_two_processes_do_not_collide(archived: Hub, tmp_path: Path) -> None:
    (tmp_path / "senteval.tar").write_bytes(archive(GOOD))
    forks = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = forks.Queue()
    options = (tmp_path / "senteval.tar", results)
    both = [forks.Process(target=_one_of_two, args=options) for _ in range(2)]
    for process in both:
        process.start()
    found = [results.get(timeout=600) for _ in both]
    for process in both:
        process.join(timeout=600)
    # The first to finish may still see a scratch file of the other.
    assert all(set(GOOD) <= set(one.split(",")) for one in found)
    assert left_in(tmp_path / "cache" / "senteval" / "downstream") == sorted(GOOD)


# --- the real files ------------------------------------------------------------------------------


def test_the_table_lists_every_file_that_is_read() -> None:
    known = source._known_files()
    assert set(known) == {
        f for name in COUNTS for part in COUNTS[name] for f in files_of(name, part)
    }


@pytest.mark.data
def test_the_real_files_pass_the_check_and_load_from_the_cache(
    real_data: Path, archived: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BERTFLOW_DATA", raising=False)
    monkeypatch.setattr(source, "data_file", data_file)  # the real table of checksums
    root = next(real_data.glob("**/downstream"))
    put(archived, archive({name: (root / name).read_bytes() for name in source._known_files()}))
    for name, counts in COUNTS.items():
        assert len(load_sts(name, "all", download=True, progress=False)) == sum(counts.values())
    assert len(archived.asked("GET", ARCHIVE.file)) == 1
