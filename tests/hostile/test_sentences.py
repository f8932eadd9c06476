"""Sentences of every kind: each gives one finite vector, or an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusal import helps, must, refuses

from bertflow_lite.datasets.own_files import read_sentences
from bertflow_lite.encoders.models import LoadedModel, load_model
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.encoders.word_vectors import WordVectorEncoder

# The words that the tiny models know, too.
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "it", "is", "not", "blue", "."]
VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)


@pytest.fixture(scope="module")
def loaded(tiny_bert_folder: Path, tiny_llama_folder: Path) -> dict[str, LoadedModel]:
    """Load the tiny models once; each test gets an encoder of its own, with an empty cache."""
    folders = {"bert": tiny_bert_folder, "causal": tiny_llama_folder}
    return {name: load_model(folder, device="cpu") for name, folder in folders.items()}


@pytest.fixture(params=["bert", "causal", "word-vectors"])
def encoder(request: pytest.FixtureRequest, loaded: dict[str, LoadedModel], own_cache: Path) -> Any:
    if request.param == "word-vectors":
        return WordVectorEncoder(VECTORS, WORDS, "tiny words")
    return Encoder(loaded[request.param], max_length=24)


ODD: dict[str, list[str]] = {
    "empty": [""],
    "spaces-only": ["   \t  "],
    "no-break-spaces": ["\u00a0\u3000"],
    "one-character": ["a"],
    "ten-thousand-words": ["the cat " * 5000],
    "one-word-of-20000-letters": ["x" * 20000],
    "emoji-only": ["😀🎉👩‍👩‍👧🏳️‍🌈"],
    "right-to-left": ["שלום עולם", "مرحبا بالعالم"],
    "zero-width": ["the\u200b cat\u200d\ufeff\u2060"],
    "control-characters": ["the\x01 cat\x02\x1b[31m\x7f"],
    "direction-override": ["the \u202etac\u202c"],
    "nul": ["the\0 cat"],
    "combining-marks": ["e" + "\u0301" * 500],
    "private-use": ["\ue000\uf8ff\U0010ffff"],
    "not-characters": ["\ufffe\uffff"],
    "replacement-character": ["the \ufffd cat"],
    "mixed-line-ends": ["the\r\ncat\n\rsat\r"],
    "line-separators": ["the\u2028cat\u2029sat\x85on"],
    "tabs": ["the\tcat\tsat"],
    "unbalanced-quotes": ['the "cat', "the 'cat'' \" sat"],
    "markup": ["<b>the</b> &amp; cat"],
    "numbers-as-text": ["1", "3.14", "-0", "1e999"],
    "bert-tokens-as-text": ["[CLS] the [SEP]", "[PAD] [PAD]", "[MASK]", "[UNK]"],
    "chat-tokens-as-text": ["<|im_start|>user", "<|endoftext|>", "<s></s>"],
    "one-sentence": ["the cat sat"],
    "duplicates": ["the cat"] * 50,
    "nothing": [],
}


@pytest.mark.parametrize("case", ODD)
def test_odd_text_gives_one_finite_vector_each(case: str, encoder: Any) -> None:
    sentences = ODD[case]
    vectors = encoder.encode(sentences)
    assert vectors.shape == (len(sentences), encoder.dim) and vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    # Neither its neighbors nor the cache change a vector.
    among = encoder.encode(["the dog ran", *sentences, "it is not blue"])[1:-1]
    np.testing.assert_allclose(among, vectors, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(sentences), vectors, atol=1e-5)


BAD: dict[str, tuple[Callable[[], Any], Any]] = {
    "lone-surrogate": (
        lambda: ["the cat", "a\ud800b"],
        refuses(ValueError, "sentence 1", "lone surrogate", "UTF-8"),
    ),
    "none-among-them": (
        lambda: ["the cat", None],
        refuses(ValueError, "sentence 1", "NoneType", "leave it out"),
    ),
    "nan-among-them": (
        lambda: ["the cat", float("nan")],
        refuses(ValueError, "sentence 1", "float", "leave it out"),
    ),
    "missing-in-a-series": (
        lambda: pd.Series(["the cat", pd.NA]),
        refuses(ValueError, "sentence 1", "not str"),
    ),
    "a-number-among-them": (lambda: ["a", 3], refuses(ValueError, "sentence 1", "int", "not str")),
    "bytes-among-them": (lambda: [b"a"], refuses(ValueError, "sentence 0", "bytes", "not str")),
    "a-list-among-them": (lambda: [["a"]], refuses(ValueError, "sentence 0", "list", "not str")),
    "an-array-of-two-dimensions": (
        lambda: np.array([["a"], ["b"]]),
        refuses(ValueError, "sentence 0", "ndarray"),
    ),
    "one-string": (lambda: "the cat", refuses(ValueError, "one string", "list")),
    "one-bytes": (lambda: b"the cat", refuses(ValueError, "one string", "list")),
    "a-number": (lambda: 3, refuses(ValueError, "of type int", "list")),
    "none": (lambda: None, refuses(ValueError, "NoneType", "list")),
    "a-set": (lambda: {"a", "b"}, refuses(ValueError, "set", "order", "list")),
    "a-pandas-table": (
        lambda: pd.DataFrame({"text": ["a"]}),
        refuses(ValueError, "table", "df['text']"),
    ),
    "a-polars-table": (
        lambda: pytest.importorskip("polars").DataFrame({"text": ["a"]}),
        refuses(ValueError, "table", "df['text']"),
    ),
    "a-dict": (lambda: {"a": 1}, refuses(ValueError, "dict", "order", "list")),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_text_is_named(case: str, encoder: Any, tmp_path: Path) -> None:
    make, expected = BAD[case]
    must(expected, lambda: encoder.encode(make()), tmp_path)


CONTAINERS: dict[str, Callable[[], Any]] = {
    "tuple": lambda: ("the cat", "a dog"),
    "array": lambda: np.array(["the cat", "a dog"]),
    "array-of-objects": lambda: np.array(["the cat", "a dog"], dtype=object),
    "series": lambda: pd.Series(["the cat", "a dog"], index=[7, 3]),
    "series-of-pandas-strings": lambda: pd.Series(["the cat", "a dog"], dtype="string"),
    "polars-series": lambda: pytest.importorskip("polars").Series(["the cat", "a dog"]),
    "generator": lambda: (text for text in ("the cat", "a dog")),
}


@pytest.mark.parametrize("case", CONTAINERS)
def test_any_ordered_container_will_do(case: str, encoder: Any) -> None:
    want = encoder.encode(["the cat", "a dog"])
    np.testing.assert_array_equal(encoder.encode(CONTAINERS[case]()), want)


def test_special_tokens_written_out_count_as_in_transformers(
    minilm: LoadedModel, own_cache: Path
) -> None:
    """A "[SEP]" in a sentence is the token, as in sentence-transformers, and never padding."""
    encoder = Encoder(minilm)
    alone = encoder.encode(["[PAD] the cat"])
    among = encoder.encode(["[PAD] the cat", "a much longer sentence that makes padding needed"])
    np.testing.assert_allclose(among[:1], alone, atol=1e-5)
    assert not np.allclose(alone, encoder.encode(["the cat"]), atol=1e-3)  # it is not dropped


# --- the same, out of files ----------------------------------------------------------------------


def texts(*want: str) -> Callable[[Any], None]:
    def look(found: Any) -> None:
        assert found.sentences == want

    return look


TWO = texts("a b", "c")
FILES: dict[str, tuple[str, bytes, Any]] = {
    # id: (name, content, what must happen)
    "bom": ("s.txt", b"\xef\xbb\xbfa b\nc\n", TWO),
    "crlf": ("s.txt", b"a b\r\nc\r\n", TWO),
    "old-mac-line-ends": ("s.txt", b"a b\rc\r", TWO),
    "mixed-line-ends": ("s.txt", b"a b\r\nc\nd\re", texts("a b", "c", "d", "e")),
    "no-last-line-end": ("s.txt", b"a b\nc", TWO),
    "blank-lines": ("s.txt", b"\n a b \n\n  \t\nc\n\n", TWO),
    "tabs-inside": ("s.txt", b"a\tb\n", texts("a\tb")),
    "line-separators-inside": ("s.txt", "a\x85b\u2028c".encode(), texts("a\x85b\u2028c")),
    "control-characters-inside": ("s.txt", b"a\x1b[31mb", texts("a\x1b[31mb")),
    "unbalanced-quote": ("s.txt", b'a "b\n', texts('a "b')),
    "unbalanced-quote-in-tsv": ("s.tsv", b'sentence\tx\na "b\t1\n"c\t2\n', texts('a "b', '"c')),
    "upper-case-ending": ("S.TXT", b"a b\nc", TWO),
    "emoji": ("s.txt", "😀\n".encode(), texts("😀")),
    "zero-width-only": ("s.txt", "\u200b\n".encode(), texts("\u200b")),
    "numbers-as-text": ("s.csv", b"sentence\n12\n3.5\n", texts("12", "3.5")),
    "missing-cells": ("s.jsonl", b'{"sentence": null}\n{"sentence": "a b"}\n"c"', TWO),
    "nan-cells": ("s.jsonl", b'{"sentence": NaN}\n{"sentence": "a b"}\n"c"', TWO),
    "not-utf-8": (
        "s.txt",
        "ok\ncaf\u00e9\n".encode("latin-1"),
        refuses(ValueError, "line 2", "0xe9", "not UTF-8", "iconv"),
    ),
    "windows-1252": (
        "s.csv",
        "sentence\n\u201cquoted\u201d\n".encode("windows-1252"),
        refuses(ValueError, "line 2", "0x93", "Windows-1252", "Save the file as UTF-8"),
    ),
    "utf-16": ("s.txt", "a\nb".encode("utf-16"), refuses(ValueError, "UTF-16", "Save it as UTF-8")),
    "utf-16-without-bom": (
        "s.txt",
        "a\nb".encode("utf-16-le"),
        refuses(ValueError, "line 1", "NUL", "text file"),
    ),
    "surrogate-bytes": ("s.txt", b"ok\n\xed\xa0\x80\n", refuses(ValueError, "line 2", "UTF-8")),
    "surrogate-in-json": (
        "s.jsonl",
        b'"ok"\n{"sentence": "\\ud83d"}\n',
        refuses(ValueError, "line 2", "surrogate", "anew"),
    ),
    "nul": ("s.txt", b"a\n\0b\n", refuses(ValueError, "line 2", "NUL")),
    "empty-file": ("s.txt", b"", refuses(ValueError, "s.txt", "no sentence")),
    "blank-file": ("s.txt", b"\n \n\t\n", refuses(ValueError, "s.txt", "no sentence")),
    "only-a-header": ("s.csv", b"sentence\n", refuses(ValueError, "no sentence")),
    "empty-table": ("s.csv", b"", refuses(ValueError, "s.csv", "empty")),
    "excel-workbook-named-csv": (
        "s.csv",
        b"PK\x03\x04\x14\x00\x06\x00",
        refuses(ValueError, "workbook", "Save the sheet as CSV"),
    ),
    "old-workbook-named-csv": (
        "s.csv",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        refuses(ValueError, "workbook", "Save the sheet as CSV"),
    ),
    "excel-workbook": ("s.xlsx", b"PK", refuses(ValueError, ".xlsx", "saved as CSV")),
    "packed": ("s.txt", b"\x1f\x8b\x08\x00", refuses(ValueError, "archive", "unpack")),
    "excel-with-semicolons": (
        "s.csv",
        b"sentence;score\na;1\n",
        refuses(ValueError, "no comma", "semicolons", "Excel"),
    ),
    "unbalanced-quote-in-csv": (
        "s.csv",
        b'sentence\n"a\nb\n',
        refuses(ValueError, "Quotation marks", "paired", "TSV"),
    ),
    "two-columns-of-one-name": (
        "s.csv",
        b"sentence,sentence\na,b\n",
        refuses(ValueError, "two columns called 'sentence'", "rename"),
    ),
    "too-few-cells": ("s.csv", b"a,b\nc\n", refuses(ValueError, "line 2", "1 columns", "has 2")),
    "headerless-csv": (
        "s.csv",
        b"A cat sat.\nA dog ran.\n",
        refuses(ValueError, "'A cat sat.'", "--column", "above it", ".txt"),
    ),
    "headerless-tsv": ("s.tsv", b"A cat sat.\nA dog ran.\n", refuses(ValueError, "above it")),
    "quoted-cell-in-tsv": (
        "s.tsv",
        b'id\tsentence\n1\t"He said ""no"" twice."\n',
        refuses(ValueError, "line 2", "quoted", "TSV", ".csv"),
    ),
    "quoted-tab-in-tsv": (
        "s.tsv",
        b'id\tsentence\n1\t"a\tb"\n',
        refuses(ValueError, "line 2", "quoted", "TSV", ".csv"),
    ),
    "quoted-line-end-in-tsv": (
        "s.tsv",
        b'id\tsentence\n1\t"a\nb"\n',
        refuses(ValueError, "line 3", "quoted", "TSV", ".csv"),
    ),
    "all-quoted-tsv": (
        "s.tsv",
        b'"id"\t"sentence"\n"1"\t"a b"\n',
        refuses(ValueError, "line 1", "quoted", "TSV", ".csv"),
    ),
    "quotations-in-tsv": (
        "s.tsv",
        b'id\tsentence\n1\t"Stop!"\n2\t"No," he said, "never."\n',
        texts('"Stop!"', '"No," he said, "never."'),
    ),
    "unknown-columns": ("s.csv", b"a,b\n1,2\n", refuses(ValueError, "'a', 'b'", "--column")),
    "numbers": ("s.jsonl", b'{"sentence": 3}', refuses(ValueError, "row 1", "number", "column")),
    "a-list": (
        "s.jsonl",
        b'{"sentence": ["a"]}',
        refuses(ValueError, "row 1", "no text", "column"),
    ),
    "broken-json": ("s.jsonl", b'"a"\n{a}\n', refuses(ValueError, "line 2", "not JSON")),
    "deep-json": ("s.jsonl", b"[" * 100_000, refuses(ValueError, "line 1", "not JSON")),
    "other-json": ("s.jsonl", b"[1, 2]\n", refuses(ValueError, "line 1", "object", "string")),
    "not-parquet": ("s.parquet", b"PAR1xxxx", refuses(ValueError, "s.parquet", "Parquet")),
    "empty-parquet": ("s.parquet", b"", refuses(ValueError, "s.parquet", "0 bytes")),
    "no-ending": ("s", b"a", refuses(ValueError, "(none)", ".txt")),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_gives_its_sentences_or_says_why_not(case: str, tmp_path: Path) -> None:
    name, content, expected = FILES[case]
    (tmp_path / name).write_bytes(content)
    must(expected, lambda: read_sentences(tmp_path / name), tmp_path)


BLANKS = {
    "s.txt": b"a\n\nb\n",
    "s.csv": b"sentence\na\n\nb\n",
    "two.csv": b"sentence,x\na,1\n,\nb,2\n",
    "s.tsv": b"x\tsentence\n1\ta\n\n2\tb\n",
    "s.jsonl": b'"a"\n\n"b"\n',
    "null.jsonl": b'"a"\n{"sentence": null}\n"b"\n',
}


@pytest.mark.parametrize("name", BLANKS)
def test_a_blank_record_is_kept_or_counted(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(BLANKS[name])
    assert read_sentences(tmp_path / name, keep_empty=True).sentences == ("a", "", "b")
    found = read_sentences(tmp_path / name)
    assert found.sentences == ("a", "b") and found.skipped == 1
    assert found.lines[1] - found.lines[0] == 2


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "d.txt").mkdir()
    must(
        refuses(FileNotFoundError, "no file 'n.txt'"),
        lambda: read_sentences(tmp_path / "n.txt"),
        tmp_path,
    )
    must(refuses(ValueError, "folder", "name a file"), lambda: read_sentences(tmp_path / "d.txt"),
         tmp_path)  # fmt: skip


# --- fuzzed --------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        b"\n",
        b"\r\n",
        b"\r",
        b"\t",
        b",",
        b";",
        b'"',
        b'""',
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b"\\u",
        b"\\ud800",
        b"\0",
        b"\xff",
        b"\xfe\xff",
        b"\xef\xbb\xbf",
        b"\xc3\xa9",
        b"\xed\xa0\x80",
        b"sentence",
        b"text",
        b"null",
        b"NaN",
        b"1e999",
        b"PAR1",
        b"PK\x03\x04",
        b" ",
        b"a",
        "\u2028".encode(),
    ]
)


@settings(max_examples=400, deadline=None, derandomize=True,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(
    content=st.lists(PIECES | st.binary(max_size=6), max_size=25).map(b"".join),
    kind=st.sampled_from([".txt", ".tsv", ".csv", ".jsonl", ".parquet"]),
    keep_empty=st.booleans(),
)
def test_any_file_gives_sentences_that_can_be_encoded_or_an_error_that_helps(
    content: bytes, kind: str, keep_empty: bool, tmp_path: Path
) -> None:
    path = tmp_path / f"s{kind}"
    path.write_bytes(content)
    try:
        found = read_sentences(path, keep_empty=keep_empty)
    except ValueError as error:
        helps(str(error), path.name)
        return
    assert len(found.sentences) == len(found.lines) > 0
    assert list(found.lines) == sorted(set(found.lines))
    WordVectorEncoder(VECTORS, WORDS, "tiny words").encode(found.sentences)
