"""The cache: what goes in comes out, also with two processes, a killed writer and a bad file."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from bertflow_lite.encoders import cache as cache_module
from bertflow_lite.encoders.cache import EmbeddingCache

DIM = 4
# Subprocesses run the module alone: the package would take seconds to import.
PREAMBLE = f"""
import runpy, sys, time
from pathlib import Path
import numpy as np
EmbeddingCache = runpy.run_path({cache_module.__file__!r})["EmbeddingCache"]
cache = EmbeddingCache(Path(sys.argv[1]), "key", {DIM})
def vectors(numbers): return np.repeat(np.array(numbers, dtype=np.float32)[:, None], {DIM}, axis=1)
"""


def start(folder: Path, code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PREAMBLE + code, str(folder), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def fetch(cache: EmbeddingCache, texts: list[str], slot: str = "mean:1"):
    out = np.full((len(texts), cache.dim), -1, dtype=np.float32)
    return cache.read(texts, slot, out), out


def rows(*numbers: int) -> tuple[list[str], str, np.ndarray]:
    """Give what `EmbeddingCache.write` takes: the texts "1", "2" ... with vectors of 1, 2 ..."""
    return [str(i) for i in numbers], "mean:1", np.repeat(np.float32(numbers)[:, None], DIM, axis=1)


@pytest.fixture
def cache(tmp_path: Path) -> EmbeddingCache:
    return EmbeddingCache(tmp_path, "key", DIM)


def test_bytes_come_back_as_they_went_in(cache):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(1500, DIM)).astype(np.float32)  # more than one look-up batch
    vectors[0] = [-0.0, np.finfo(np.float32).tiny / 8, np.finfo(np.float32).max, 1 / 3]
    texts = ["", "näïve 🙂", "\x00", *map(str, range(1497))]
    cache.write(texts, "mean:1", vectors)
    found, out = fetch(cache, texts)
    assert found.all() and out.tobytes() == vectors.tobytes()


def test_unknown_texts_keep_their_rows(cache):
    cache.write(*rows(1, 3))
    found, out = fetch(cache, ["1", "2", "3"])
    assert_array_equal(found, [True, False, True])
    assert_array_equal(out[:, 0], [1, -1, 3])


def test_slots_keys_and_widths_do_not_mix(cache, tmp_path):
    cache.write(*rows(1))
    assert not fetch(cache, ["1"], "mean:2")[0].any()
    assert not fetch(cache, ["1"], "cls:1")[0].any()
    assert not fetch(EmbeddingCache(tmp_path, "other", DIM), ["1"])[0].any()
    assert not fetch(EmbeddingCache(tmp_path, "key", DIM + 1), ["1"])[0].any()
    assert fetch(EmbeddingCache(tmp_path, "key", DIM), ["1"])[0].all()


def test_a_second_write_replaces_the_first(cache):
    cache.write(["a"], "mean:1", np.zeros((1, DIM), np.float32))
    cache.write(["a"], "mean:1", np.ones((1, DIM), np.float32))
    assert_array_equal(fetch(cache, ["a"])[1], np.ones((1, DIM)))


def test_no_folder_means_no_cache(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    cache = EmbeddingCache(None, "key", DIM)
    cache.write(*rows(1))
    assert not fetch(cache, ["1"])[0].any()
    assert list(tmp_path.iterdir()) == []


def test_reading_makes_no_file(cache, tmp_path):
    assert not fetch(cache, ["1"])[0].any()
    assert list(tmp_path.iterdir()) == []


def test_two_processes_write_and_a_third_reads(cache, tmp_path):
    code = """
first = int(sys.argv[2])
for i in range(first, first + 40):
    cache.write([str(i)], "mean:1", vectors([i]))
"""
    writers = [start(tmp_path, code, 0), start(tmp_path, code, 1000)]
    texts, _, vectors = rows(*range(40), *range(1000, 1040))
    while any(writer.poll() is None for writer in writers):
        found, out = fetch(cache, texts)
        assert_array_equal(out[found], vectors[found])
    assert [writer.wait() for writer in writers] == [0, 0]
    found, out = fetch(cache, texts)
    assert found.all()
    assert_array_equal(out, vectors)


def test_a_killed_writer_leaves_what_it_had_finished_and_nothing_half_done(cache, tmp_path):
    code = """
cache.write(["1", "2"], "mean:1", vectors([1, 2]))
with cache._connection() as db:
    db.execute("PRAGMA cache_size = 1")  # so that the unfinished rows reach the disk
    for i in range(3, 3000):
        db.execute("INSERT INTO vectors VALUES (?, 'mean:1', ?)", (str(i).encode(), bytes(16)))
    print("in the middle", flush=True)
    time.sleep(600)
"""
    writer = start(tmp_path, code)
    assert writer.stdout.readline() == "in the middle\n"
    assert cache.path.with_name(f"{cache.path.name}-journal").exists()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    found, out = fetch(cache, ["1", "2"])
    assert found.all()
    assert_array_equal(out[:, 0], [1, 2])
    with sqlite3.connect(cache.path) as db:
        assert db.execute("SELECT count(*) FROM vectors").fetchone() == (2,)
    cache.write(*rows(4))
    assert fetch(cache, ["4"])[0].all()


@pytest.mark.parametrize("damage", ["not sqlite", "overwritten inside"])
@pytest.mark.parametrize("first", ["read", "write"])
def test_a_damaged_file_is_set_aside_with_a_warning(cache, tmp_path, caplog, damage, first):
    cache.write(*rows(*range(200)))
    content = bytearray(cache.path.read_bytes())
    content[0 if damage == "not sqlite" else 100 :] = b"junk" * 5000
    cache.path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        if first == "read":
            assert not fetch(cache, ["1"])[0].any()
        else:
            cache.write(*rows(1))
    assert "set aside and a new one is begun" in caplog.text
    assert cache.path.with_suffix(".damaged").read_bytes() == content
    cache.write(*rows(1))
    assert fetch(cache, ["1"])[0].all()


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    cache = EmbeddingCache(tmp_path / "file" / "embeddings", "key", DIM)
    cache.write(*rows(1))
    cache.write(*rows(2))
    assert not fetch(cache, ["1"])[0].any()
    assert caplog.text.count("going on without it") == 1


def test_a_full_disk_is_a_warning(cache, tmp_path, monkeypatch, caplog):
    cache.write(*rows(1))
    connect = sqlite3.connect

    def limited(*arguments, **options):
        db = connect(*arguments, **options)
        db.execute("PRAGMA max_page_count = 3")  # SQLite then says that the disk is full
        return db

    monkeypatch.setattr(sqlite3, "connect", limited)
    cache.write(*rows(*range(2, 2000)))
    assert "full" in caplog.text and "going on without it" in caplog.text
    monkeypatch.undo()
    assert fetch(EmbeddingCache(tmp_path, "key", DIM), ["1"])[0].all()


def test_a_number_of_vectors_other_than_of_texts_is_an_error(cache):
    with pytest.raises(ValueError, match="zip"):
        cache.write(["a", "b"], "mean:1", np.zeros((1, DIM), np.float32))
