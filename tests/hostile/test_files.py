"""Disks that are full or closed, files that are cut or changed, processes that are killed."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
import torch
from refusal import contents, helps, must, nothing_left, refuses
from safetensors.torch import load_file, save_file

import bertflow_lite as bf
from bertflow_lite.datasets.nli import load_nli_sentences
from bertflow_lite.encoders.cache import EmbeddingCache
from bertflow_lite.encoders.models import load_model
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.files import replacing

SENTENCES = ["the cat sat", "a dog ran", "it is not blue"]


# --- no room, no permission ----------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 32 kB, where that is allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here; the size limit stands in for it")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("case", children.WRITERS)
def test_a_full_disk_is_told_and_leaves_the_old_file(case: str, small_disk: Path) -> None:
    write = children.WRITERS[case]
    (small_disk / "notes").write_bytes(b"x" * 28_000)
    must(refuses(OSError, "No space left", str(small_disk)), lambda: write(small_disk), small_disk)
    assert (small_disk / "notes").stat().st_size == 28_000


@pytest.mark.parametrize("case", children.WRITERS)
def test_a_file_that_may_not_grow_is_told_and_removed(case: str, tmp_path: Path) -> None:
    write = children.WRITERS[case]
    with nothing_left(tmp_path), pytest.raises(OSError, match="too large") as caught:
        children.call(children.with_room_for, 700, write, tmp_path)
    helps(str(caught.value), str(tmp_path))


@pytest.mark.parametrize("case", children.WRITERS)
def test_a_closed_folder_is_told(case: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    expected = refuses(PermissionError, "Permission denied", str(tmp_path))
    write = children.WRITERS[case]
    must(expected, lambda: children.call(children.as_nobody, write, tmp_path), tmp_path)


@pytest.mark.parametrize("limit", ["full", "closed"])
def test_the_cache_goes_on_without_a_disk(limit: str, tmp_path: Path) -> None:
    if limit == "full":
        children.call(children.with_room_for, 20_000, children.write_cache, tmp_path)
        found = np.empty((1, 8), np.float32)
        assert not EmbeddingCache(tmp_path, "key", 8).read(["0"], "mean:1", found).any()
    else:
        tmp_path.chmod(0o500)
        children.call(children.as_nobody, children.read_and_write_cache, tmp_path)


def test_no_home_folder_says_what_to_set(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become a user without an entry")
    with pytest.raises(FileNotFoundError) as caught:
        children.call(children.without_home, 54321)
    helps(str(caught.value), "no home folder", "BERTFLOW_CACHE")


# --- killed, and side by side --------------------------------------------------------------------


def kill(child: Any, pipe: Any) -> None:
    assert pipe.poll(children.PATIENCE)
    assert pipe.recv() in ("begun", "in the middle")
    os.kill(child.pid, signal.SIGKILL)
    child.join(children.PATIENCE)
    assert child.exitcode == -signal.SIGKILL


def test_killed_in_the_middle_of_a_write_the_old_file_stands(tmp_path: Path) -> None:
    place = tmp_path / "x.json"
    place.write_bytes(b"whole")
    kill(*children.start(children.write_half, place))
    assert place.read_bytes() == b"whole"
    with replacing(place) as file:  # the next run
        file.write(b"anew")
    assert place.read_bytes() == b"anew"


@pytest.mark.parametrize("milliseconds", [0, 1, 3, 7, 20])
def test_a_calibrator_survives_its_writer_being_killed(milliseconds: int, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    bf.save(bf.Standardizer().fit(children.embeddings()), path)
    child, pipe = children.start(children.save_for_ever, path)
    assert pipe.poll(children.PATIENCE)
    child.join(milliseconds / 1000)
    kill(child, pipe)
    assert bf.load(path).transform(children.embeddings()).shape == (200, 8)
    bf.save(bf.Whitener().fit(children.embeddings()), path, overwrite=True)
    assert isinstance(bf.load(path), bf.Whitener)


def test_two_processes_save_one_calibrator(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    bf.save(bf.Standardizer().fit(children.embeddings()), path)
    writers = [children.start(children.save_for_ever, path) for _ in range(2)]
    for _, pipe in writers:
        assert pipe.poll(children.PATIENCE) and pipe.recv() == "begun"
    for _ in range(150):
        bf.load(path)
    for child, _ in writers:
        assert child.is_alive()  # neither met an error
        os.kill(child.pid, signal.SIGKILL)
        child.join(children.PATIENCE)
    bf.load(path)


def test_two_processes_store_one_run(tmp_path: Path) -> None:
    writers = [children.start(children.save_runs, tmp_path, number) for number in (1, 2)]
    while any(child.is_alive() for child, _ in writers):
        if (tmp_path / "sts" / "same.json").exists():
            run = bf.load_run("sts", "same", tmp_path)
            assert run["results"] == [run["how"]["writer"]] * 2000
    assert [pipe.recv()[0] for _, pipe in writers] == ["answer", "answer"]
    assert [path.name for path in (tmp_path / "sts").iterdir()] == ["same.json"]


def test_two_processes_encode_the_same_at_once(tiny_bert_folder: Path, own_cache: Path) -> None:
    ours = bf.load_encoder(tiny_bert_folder, device="cpu", max_length=24).encode(SENTENCES)
    shutil.rmtree(own_cache)
    pipes = [children.start(children.encode, tiny_bert_folder, SENTENCES) for _ in range(2)]
    for child, pipe in pipes:
        assert pipe.poll(children.PATIENCE)
        np.testing.assert_allclose(pipe.recv()[1], ours, atol=1e-6)
        child.join(children.PATIENCE)


# --- cut and changed -----------------------------------------------------------------------------


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def change_json(**changes: Any) -> Callable[[Path], None]:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def drop_tensor(path: Path) -> None:
    tensors = load_file(path)
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, path, {"format": "pt"})


def make_nan(path: Path) -> None:
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name] = torch.full_like(tensors[name], float("nan"))
    save_file(tensors, path, {"format": "pt"})


MODEL_FILES: dict[str, tuple[str, Callable[[Path], None], Any]] = {
    "weights-cut": ("model.safetensors", cut, refuses(ValueError, "complete transformers model")),
    "weights-empty": (
        "model.safetensors",
        lambda path: path.write_bytes(b""),
        refuses(ValueError, "complete transformers model", "weights"),
    ),
    "weights-gone": ("model.safetensors", Path.unlink, refuses(ValueError, "complete", "weights")),
    "weights-without-a-tensor": (
        "model.safetensors",
        drop_tensor,
        refuses(ValueError, "lack 1 tensors", "another model or are cut"),
    ),
    "weights-of-nan": ("model.safetensors", make_nan, refuses(ValueError, "non-finite", "broken")),
    "weights-are-a-page": (
        "model.safetensors",
        lambda path: path.write_text("<html>Not found</html>"),
        refuses(ValueError, "complete transformers model"),
    ),
    "config-cut": ("config.json", cut, refuses(ValueError, "complete", "config.json")),
    "config-gone": ("config.json", Path.unlink, refuses(ValueError, "complete", "config.json")),
    "config-of-another-size": (
        "config.json",
        change_json(hidden_size=32),
        refuses(ValueError, "complete transformers model"),
    ),
    "config-of-no-known-kind": (
        "config.json",
        change_json(model_type="none-such"),
        refuses(ValueError, "complete transformers model", "none-such"),
    ),
    "tokenizer-cut": ("tokenizer.json", cut, refuses(ValueError, "complete", "tokenizer")),
    "tokenizer-gone": ("tokenizer.json", Path.unlink, refuses(ValueError, "complete", "tokenizer")),
}


@pytest.mark.parametrize("case", MODEL_FILES)
def test_a_damaged_model_folder_is_refused(
    case: str, tiny_bert_folder: Path, workplace: Path
) -> None:
    name, damage, expected = MODEL_FILES[case]
    shutil.copytree(tiny_bert_folder, workplace / "model")
    damage(workplace / "model" / name)
    must(
        expected,
        lambda: bf.load_encoder(workplace / "model", max_length=24, cache=False).encode(SENTENCES),
        workplace,
    )


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


class Bomb:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["BERTFLOW_TEST_BOMB"],)


ARRAYS: dict[str, tuple[Callable[[], bytes], Any]] = {
    "cut": (lambda: npy(np.ones((50, 4)))[:-9], refuses(ValueError, "x.npy", "was cut")),
    "header-cut": (lambda: npy(np.ones((50, 4)))[:40], refuses(ValueError, "x.npy", "was cut")),
    "empty": (lambda: b"", refuses((ValueError, EOFError), "x.npy")),
    "text": (lambda: b"1 2 3\n4 5 6\n", refuses(ValueError, "x.npy", "was cut")),
    "one-dimension": (lambda: npy(np.ones(5)), refuses(ValueError, "shape (5,)", "2-d")),
    "a-pickle": (
        lambda: npy(np.array([Bomb()], dtype=object), allow_pickle=True),
        refuses(ValueError, "x.npy", "was cut"),
    ),
    "promises-more-than-it-holds": (
        lambda: npy(np.ones((9, 3))).replace(b"(9, 3)", b"(9e9,)"),
        refuses(ValueError, "x.npy", "was cut"),
    ),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_a_damaged_array_is_refused_and_runs_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTFLOW_TEST_BOMB", str(tmp_path / "exploded"))
    make, expected = ARRAYS[case]
    (tmp_path / "x.npy").write_bytes(make())
    must(expected, lambda: bf.Standardizer().fit(tmp_path / "x.npy"), tmp_path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [b"", b"{", b'{"table": NaN, ', b"\xff\xfe"])
def test_a_cut_run_says_to_make_it_again(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "sts").mkdir()
    (tmp_path / "sts" / "x.json").write_bytes(content)
    must(
        refuses(ValueError, "sts/x", "cut or changed", "again"),
        lambda: bf.load_run("sts", "x", tmp_path),
        tmp_path,
    )


PACKED: dict[str, tuple[Callable[[], bytes], Any]] = {
    "bomb": (
        lambda: gzip.compress(b"a\n" * (1 << 25), 9),
        refuses(ValueError, "hundred times its size", "trust"),
    ),
    "cut": (
        lambda: gzip.compress(b"a cat\n" * 100)[:-12],
        refuses(ValueError, "cut short", "fresh copy"),
    ),
    "not-packed": (lambda: b"a cat\n", refuses(ValueError, "damaged", "fresh copy")),
    "empty": (lambda: b"", refuses(ValueError, "nli_sentences")),
}


@pytest.mark.parametrize("case", PACKED)
def test_a_packed_file_that_is_none_or_swells(case: str, workplace: Path) -> None:
    make, expected = PACKED[case]
    (workplace / "nli").mkdir()
    (workplace / "nli" / "nli_sentences.txt.gz").write_bytes(make())
    must(expected, lambda: load_nli_sentences(data_dir=workplace), workplace)


# --- the cache of another model, length, version -------------------------------------------------


def test_no_vector_comes_out_of_the_cache_of_another_model(
    tiny_bert_folder: Path, workplace: Path
) -> None:
    shutil.copytree(tiny_bert_folder, workplace / "model")
    first = bf.load_encoder(workplace / "model", max_length=24).encode(SENTENCES)
    weights = workplace / "model" / "model.safetensors"
    tensors = {name: t.flip(0).contiguous() for name, t in load_file(weights).items()}
    save_file(tensors, weights, {"format": "pt"})  # the same place and name, another model
    second = bf.load_encoder(workplace / "model", max_length=24).encode(SENTENCES)
    assert not np.allclose(first, second)


def test_no_vector_comes_out_of_the_cache_of_another_length(
    tiny_bert_folder: Path, workplace: Path
) -> None:
    text = ["the cat sat on a mat and the dog ran"]
    long = bf.load_encoder(tiny_bert_folder, max_length=24).encode(text)
    short = bf.load_encoder(tiny_bert_folder, max_length=4).encode(text)
    assert not np.allclose(long, short)


def test_no_vector_comes_out_of_the_cache_of_another_version(tmp_path: Path) -> None:
    old = EmbeddingCache(tmp_path, "key", 8)
    old.write(["a"], "mean:1", children.embeddings(1))
    assert old.path is not None
    old.path.rename(old.path.with_name("key-v0.sqlite"))
    found = np.empty((1, 8), np.float32)
    assert not EmbeddingCache(tmp_path, "key", 8).read(["a"], "mean:1", found).any()


def test_a_vector_of_another_width_in_the_cache_is_not_used(tmp_path: Path) -> None:
    EmbeddingCache(tmp_path, "key", 8).write(["a"], "mean:1", children.embeddings(1))
    found = np.empty((1, 5), np.float32)
    assert not EmbeddingCache(tmp_path, "key", 5).read(["a"], "mean:1", found).any()


def test_a_cache_that_is_no_database_is_set_aside(
    tiny_bert_folder: Path, workplace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = bf.load_encoder(tiny_bert_folder, max_length=24)
    want = encoder.encode(SENTENCES)
    assert isinstance(encoder, Encoder) and encoder._cache.path is not None
    encoder._cache.path.write_bytes(b"no database" * 100)
    with caplog.at_level(logging.WARNING):
        got = bf.load_encoder(tiny_bert_folder, max_length=24).encode(SENTENCES)
    np.testing.assert_allclose(got, want, atol=1e-6)
    helps(caplog.text, "set aside")


# --- names and links -----------------------------------------------------------------------------

NAMES = [
    "with space",
    "mit-Ümlaut-é",
    "雪",
    "☕️",
    "-dash",
    'quote\'s "x"',
    "a.b.c",
    "[x]*",
    "x" * 200,
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_folder_will_do(name: str, tmp_path: Path, own_cache: Path,
                                      tiny_bert_folder: Path) -> None:  # fmt: skip
    place = tmp_path / name
    place.mkdir()
    (place / f"{name}.txt").write_text("the cat\na dog\n", encoding="utf-8")
    shutil.copytree(tiny_bert_folder, place / "model")
    from bertflow_lite.datasets.own_files import read_sentences

    texts = list(read_sentences(place / f"{name}.txt").sentences)
    vectors = bf.load_encoder(place / "model", max_length=24).encode(texts)
    path = bf.save(bf.Standardizer().fit(vectors), place / "saved.safetensors")
    np.testing.assert_array_equal(
        bf.load(path).transform(vectors),
        bf.Standardizer().fit_transform(vectors),
    )
    bf.save(bf.Whitener().fit(vectors), path, overwrite=True)
    assert sorted(each.name for each in place.iterdir()) == sorted(
        [f"{name}.txt", "model", "saved.safetensors"]
    )


def test_links_lead_to_what_they_point_to(tmp_path: Path) -> None:
    x = children.embeddings()
    real, link = tmp_path / "real.safetensors", tmp_path / "link.safetensors"
    bf.save(bf.Standardizer().fit(x), real)
    link.symlink_to(real)
    bf.save(bf.Whitener().fit(x), link, overwrite=True)
    assert link.is_symlink()
    assert isinstance(bf.load(real), bf.Whitener)
    assert isinstance(bf.load(link), bf.Whitener)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "link.safetensors",
        "real.safetensors",
    ]


def test_a_link_to_nowhere_is_where_it_is_saved(tmp_path: Path) -> None:
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "real.safetensors")
    bf.save(bf.Standardizer().fit(children.embeddings()), tmp_path / "link.safetensors")
    assert (tmp_path / "real.safetensors").is_file()


def test_links_in_a_circle(tmp_path: Path) -> None:
    one, two = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    one.symlink_to(two)
    two.symlink_to(one)
    fitted = bf.Standardizer().fit(children.embeddings())
    must(refuses(ValueError, "link", "back to itself"), lambda: bf.save(fitted, one), tmp_path)


def test_a_linked_model_and_cache(
    tiny_bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real-cache").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "real-cache")
    (tmp_path / "model").symlink_to(tiny_bert_folder)
    monkeypatch.setenv("BERTFLOW_CACHE", str(tmp_path / "cache"))
    encoder = bf.load_encoder(tmp_path / "model", max_length=24)
    assert encoder.fingerprint == load_model(tiny_bert_folder).fingerprint
    encoder.encode(SENTENCES)
    assert contents(tmp_path / "real-cache")


# --- the environment -----------------------------------------------------------------------------


def load_stsb() -> Any:
    return bf.load_sts("stsb")


NONSENSE: dict[str, tuple[str, str, Callable[[], Any], Any]] = {
    "data-nowhere": ("BERTFLOW_DATA", "no/such", load_stsb, refuses(FileNotFoundError, "no/such")),
    "data-is-a-file": ("BERTFLOW_DATA", __file__, load_stsb, refuses(FileNotFoundError, "stsb")),
    "data-is-empty": ("BERTFLOW_DATA", "", load_stsb, refuses(FileNotFoundError, "is not set")),
    "data-of-an-unknown-user": (
        "BERTFLOW_DATA", "~no-such-user", load_stsb, refuses(FileNotFoundError, "stsb", "no-such"),
    ),
    "hub-is-none": (
        "HF_ENDPOINT", "nonsense", lambda: load_model("a/b", download=True),
        refuses(ConnectionError, "could not be fetched from nonsense", "HF_ENDPOINT"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NONSENSE)
def test_a_variable_that_is_nonsense(
    case: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, value, action, expected = NONSENSE[case]
    monkeypatch.setenv(name, value)
    must(expected, action, workplace)


def test_a_cache_that_is_a_file_is_a_warning(
    tiny_bert_folder: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    (workplace / "file").write_text("not a folder")
    monkeypatch.setenv("BERTFLOW_CACHE", str(workplace / "file"))
    with nothing_left(workplace), caplog.at_level(logging.WARNING):
        bf.load_encoder(tiny_bert_folder, max_length=24).encode(SENTENCES)
    helps(caplog.text, "cannot be used", "going on without it")
