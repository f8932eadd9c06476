"""Wikipedia's first articles, from a stand-in for the hub on the loopback interface."""

from __future__ import annotations

import io
import lzma
import socket
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_stand_in import Hub, stand_in, unfinished
from typer.testing import CliRunner

from bertflow_lite.cli import app
from bertflow_lite.experiments.pretraining import corpus as wikipedia
from bertflow_lite.experiments.pretraining.corpus import (
    clean_article,
    open_corpus,
    read_paragraphs,
    wikipedia_text,
)

__all__ = ["stand_in"]  # a fixture

OURS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "wiki_en_1.txt.xz"
FIRST, SECOND = (
    f"20231101.en/train-{number:05d}-of-00041.parquet" for number in range(2)
)  # fmt: skip

CATS = "The cat (; ) is a small animal that likes\xa0to sleep on a mat in the sun ."
DOGS = "Dogs have been living with people for longer than any other animal has."
ALBEDO = (
    f"{CATS}\n\nHistory \n\n{DOGS}\n{DOGS}\nToo short a line.\n"
    " The item of a list, with as many words as a paragraph would have.\n"
    "A heading with as many words as a paragraph but without a full stop\n"
    "and what begins in the middle of a sentence is not one of them either."
)
LATER = "This article has a page id that is higher than those of all that are wanted."
EXPECTED = [
    "The cat is a small animal that likes to sleep on a mat in the sun.",
    DOGS,
    "A second article says something else about another animal, the horse.",
    "And the third one, of another file, is there as well: it comes last of all.",
]


def shard(**columns: list[Any]) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table(columns), written)
    return written.getvalue()


@pytest.fixture
def dump(stand_in: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Put two files of a dump on the hub; the second one ends what is wanted."""
    monkeypatch.setattr(wikipedia, "_LEAST_ARTICLES", 3)
    stand_in.content[wikipedia.REPO] = {
        FIRST: shard(
            id=["12", "39"], title=["Cat", "Horse"], text=[ALBEDO, f"{EXPECTED[2]}\n{DOGS}"]
        ),
        SECOND: shard(
            id=["12334", "12335"], title=["Third", "Later"], text=[EXPECTED[3], f"{LATER}\n" * 3]
        ),
    }
    return stand_in


def test_the_text_is_that_of_the_wanted_articles(dump: Hub, tmp_path: Path) -> None:
    path = wikipedia_text(download=True)
    assert path.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in EXPECTED)
    assert list(read_paragraphs(path)) == EXPECTED
    assert path.is_relative_to(tmp_path / "cache")
    assert {file for _, file, _ in dump.seen} == {FIRST, SECOND}  # and none of the 39 others


def test_the_second_call_asks_nobody(dump: Hub) -> None:
    path = wikipedia_text(download=True)
    dump.seen.clear()
    assert wikipedia_text() == wikipedia_text(download=True) == path
    path.unlink()  # then it is made again of what the hub's cache has
    assert wikipedia_text().read_text(encoding="utf-8").splitlines() == EXPECTED
    assert dump.seen == []


def test_nothing_is_fetched_unless_asked(dump: Hub) -> None:
    with pytest.raises(FileNotFoundError, match=r"not in the cache.*download=True.*--download"):
        wikipedia_text()
    assert dump.seen == []


def test_a_broken_connection_is_taken_up_again(dump: Hub) -> None:
    dump.cut_after[FIRST] = [2000]
    assert wikipedia_text(download=True).read_text(encoding="utf-8").splitlines() == EXPECTED
    assert dump.asked("GET", FIRST) == [None, "bytes=1024-"]


def test_a_hub_that_vanishes_leaves_no_text_and_finished_files_stay(
    dump: Hub, tmp_path: Path
) -> None:
    dump.cut_after[SECOND] = [100] + [0] * 20
    with pytest.raises(ConnectionError, match=r"train-00001-of-00041\.parquet.*Check the network"):
        wikipedia_text(download=True)
    assert unfinished(tmp_path) == []
    assert [path.suffix for path in (tmp_path / "cache" / "corpus").iterdir()] == [".lock"]
    dump.cut_after.clear()
    dump.seen.clear()
    assert wikipedia_text(download=True).read_text(encoding="utf-8").splitlines() == EXPECTED
    assert dump.asked("GET", FIRST) == dump.asked("HEAD", FIRST) == []


def test_an_interruption_leaves_no_half_text(dump: Hub, tmp_path: Path, monkeypatch) -> None:
    def stop(number: int, *options: bool) -> Path:
        if number:
            raise KeyboardInterrupt
        return fetch(number, *options)

    fetch = wikipedia._shard
    with monkeypatch.context() as patch:
        patch.setattr(wikipedia, "_shard", stop)
        with pytest.raises(KeyboardInterrupt):
            wikipedia_text(download=True)
    assert [path.suffix for path in (tmp_path / "cache" / "corpus").iterdir()] == [".lock"]
    assert wikipedia_text(download=True).read_text(encoding="utf-8").splitlines() == EXPECTED
    assert len(dump.asked("GET", FIRST)) == 1


def test_several_at_once_fetch_once(dump: Hub) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(wikipedia_text(download=True)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and len(set(found)) == 1
    assert len(dump.asked("GET", FIRST)) == len(dump.asked("GET", SECOND)) == 1


def test_no_network(dump: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(ConnectionError, match=r"could not be fetched.*refused.*network"):
        wikipedia_text(download=True)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PAR1 but no more", r"train-00000-of-00041\.parquet.*is damaged.*Delete"),
        (shard(id=["12"], title=["Cat"]), r"has not the columns id and text"),
        (shard(id=["twelve"], text=["A"]), r"is damaged or has not"),
        (shard(id=["12", "99999"], text=["A", "B"]), r"only 1 articles.*order of its ids"),
    ],
)
def test_a_dump_that_is_not_what_it_should_be(dump: Hub, content: bytes, says: str) -> None:
    dump.content[wikipedia.REPO][FIRST] = content
    with pytest.raises(ValueError, match=says):
        wikipedia_text(download=True)


def test_a_file_of_that_name_comes_first(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(wikipedia, "pack_corpus", lambda path, *_, **__: path)
    assert open_corpus("other", None, 32) == Path("other")
    with pytest.raises(FileNotFoundError, match="--download"):
        open_corpus(Path("wikipedia"), None, 32)
    Path("wikipedia").write_text("Text.")
    assert open_corpus("wikipedia", None, 32) == Path("wikipedia")


def test_the_bars_of_the_hub_are_quiet_unless_asked(dump: Hub, capfd) -> None:
    wikipedia_text(download=True)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("command", ["pretrain", "pretrain-compare", "pretrain-measure"])
def test_the_commands_say_what_to_add(
    command: str, dump: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {
        "pretrain": ["--out", "run", "--tokens", "100", "--config", "tiny"],
        "pretrain-compare": ["--tokens", "100", "--config", "tiny"],
        "pretrain-measure": ["--help"],  # needs a trained model: only its option is looked at
    }[command]
    done = CliRunner().invoke(app, [command, "--corpus", "wikipedia", *options])
    if command == "pretrain-measure":
        assert "--download" in done.stdout and "wikipedia" in done.stdout
        return
    assert done.exit_code == 1 and "--download" in done.stderr
    assert dump.seen == []

    def pack(path: Path, *args: Any, **options: Any) -> None:
        raise ValueError(f"{len(list(read_paragraphs(path)))} paragraphs were read")

    monkeypatch.setattr("bertflow_lite.experiments.pretraining.corpus.pack_corpus", pack)
    done = CliRunner().invoke(app, [command, "--corpus", "wikipedia", "--download", *options])
    assert done.stderr.endswith("error: 4 paragraphs were read\n")


def test_the_rules_take_every_paragraph_of_the_books_text() -> None:
    if not OURS.is_file():
        pytest.skip(f"the book's text is not in {OURS.parent}")
    with lzma.open(OURS, "rt", encoding="utf-8") as file:
        lines = [next(file).rstrip("\n") for _ in range(4000)]
    # Beside "( 292)", where a template left a space that the book's text has kept.
    kept = [line for line in lines if "( " not in line]
    assert len(kept) > 3900
    assert clean_article("\n".join(kept)) == kept
