"""Folders that are replaced while others read or replace them: every moment is tried."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertflow_lite import Standardizer, Whitener, folders, load_calibrator
from bertflow_lite.folders import put_folder, read_folder


def fill(folder: Path, content: str) -> Path:
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / name).write_text(content)
    return folder


def read(folder: Path) -> str:
    """Give what is written in all three files; anything else than a whole folder is an error."""
    found = {(folder / name).read_text() for name in ("a", "b", "c")}
    if len(found) > 1:
        raise ValueError(f"parts of two folders: {found}")
    return found.pop()


@pytest.fixture(params=[True, False], ids=["locked", "no-lock"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run with the system's lock, and as where there is none."""
    if not request.param:

        @contextlib.contextmanager
        def nothing(parent: Path) -> Iterator[bool]:
            yield False

        monkeypatch.setattr(folders, "alone_in", nothing)
    return bool(request.param)


def moments(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Call ``action`` before and after whatever a writer does to the disk."""
    for owner, name in ((Path, "rename"), (shutil, "rmtree"), (Path, "unlink")):
        whole = getattr(owner, name)

        def watched(*args: Any, whole: Callable[..., Any] = whole, **kwargs: Any) -> Any:
            action()
            result = whole(*args, **kwargs)
            action()
            return result

        monkeypatch.setattr(owner, name, watched)


@pytest.mark.usefixtures("locks")
def test_at_each_moment_of_a_replacement_a_whole_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill(tmp_path / "x", "old")
    seen: list[str] = []
    with monkeypatch.context() as patch:
        moments(patch, lambda: seen.append(read_folder(folder, read)))
        put_folder(fill(tmp_path / ".new", "new"), folder)
    assert seen[0] == "old" and seen[-1] == "new" and len(seen) >= 6
    assert seen == sorted(seen, reverse=True)  # and never the old one again
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.usefixtures("locks")
def test_killed_at_any_moment_a_whole_folder_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "now").mkdir()
    folder = fill(tmp_path / "now" / "x", "old")
    copies: list[Path] = []

    def copy() -> None:
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(tmp_path / "now", copies[-1])

    with monkeypatch.context() as patch:
        moments(patch, copy)
        put_folder(fill(tmp_path / "now" / ".new", "new"), folder)
    assert len(copies) >= 6
    for there in copies:
        assert read_folder(there / "x", read) in ("old", "new")
        put_folder(fill(there / ".next", "next"), there / "x")  # and the next writer can go on
        assert read_folder(there / "x", read) == "next"


@pytest.mark.usefixtures("locks")
@pytest.mark.parametrize("gap", [False, True], ids=["replaced", "replaced-twice-and-gone-between"])
@pytest.mark.parametrize("files_before", range(4))
def test_replaced_while_it_is_read_it_is_read_again(
    files_before: int, gap: bool, tmp_path: Path
) -> None:
    folder = fill(tmp_path / "x", "0")
    calls: list[Path] = []

    def slow_read(place: Path) -> str:
        calls.append(place)
        found = []
        for number, name in enumerate(("a", "b", "c")):
            if len(calls) == 1 and number == files_before:
                put_folder(fill(tmp_path / ".1", "1"), folder)
                if gap:
                    folder.rename(tmp_path / ".x-1234-old")
                    fill(tmp_path / ".2", "2").rename(folder)
            found.append((place / name).read_text())
        if len(set(found)) > 1:
            raise ValueError("parts of two folders")
        return found[0]

    want = {3: "0"}.get(files_before, "2" if gap else "1")
    assert read_folder(folder, slow_read) == want
    assert len(calls) == (1 if files_before in (0, 3) else 2)


def test_what_is_wrong_and_stays_so_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_folder(tmp_path / "nowhere", read)
    folder = fill(tmp_path / "x", "old")
    (folder / "b").write_text("other")
    with pytest.raises(ValueError, match="parts of two"):
        read_folder(folder, read)
    (folder / "b").unlink()
    with pytest.raises(FileNotFoundError):
        read_folder(folder, read)


def test_who_keeps_replacing_cannot_keep_a_reader_for_ever(tmp_path: Path) -> None:
    folder = fill(tmp_path / "x", "0")

    def hopeless(place: Path) -> str:
        put_folder(fill(tmp_path / ".new", "new"), folder)
        raise ValueError("hopeless")

    with pytest.raises(ValueError, match="hopeless"):
        read_folder(folder, hopeless)


@pytest.mark.usefixtures("locks")
def test_many_writers_and_a_reader(tmp_path: Path) -> None:
    folder = fill(tmp_path / "x", "start")
    errors: list[BaseException] = []
    stop = threading.Event()

    def write(number: int) -> None:
        try:
            for turn in range(40):
                put_folder(fill(tmp_path / f".{number}-{turn}", f"{number}-{turn}"), folder)
        except BaseException as error:
            errors.append(error)

    def look() -> None:
        try:
            while not stop.is_set():
                read_folder(folder, read)
        except BaseException as error:
            errors.append(error)

    reader = threading.Thread(target=look)
    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in [reader, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert not errors
    assert read_folder(folder, read).endswith("-39")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_of_many_who_must_not_overwrite_one_saves(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(50, 4))
    fitted = [Standardizer().fit(x), Whitener().fit(x)] * 4
    start = threading.Barrier(len(fitted))
    saved: list[Any] = []

    def save(one: Any) -> None:
        start.wait()
        with contextlib.suppress(FileExistsError):
            one.save(tmp_path / "c")
            saved.append(one)

    threads = [threading.Thread(target=save, args=(one,)) for one in fitted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(saved) == 1
    assert type(load_calibrator(tmp_path / "c")) is type(saved[0])
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
