import contextlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertflow_lite.datasets.own_files import read_pairs, read_sentences

SENTENCES = ["A cat sleeps.", 'He said "no.', "Größe, naïve, 猫", "tab is not here"]


def write(tmp_path, kind, sentences):
    path = tmp_path / f"some sentences{kind}"
    if kind == ".txt":
        path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    elif kind == ".tsv":
        path.write_text("id\tsentence\n" + "".join(f"{i}\t{s}\n" for i, s in enumerate(sentences)))
    elif kind == ".csv":
        import csv

        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text", "id"], *([s, 1] for s in sentences)])
    elif kind == ".jsonl":
        path.write_text("".join(json.dumps({"sentence": s, "id": 1}) + "\n" for s in sentences))
    else:
        pq.write_table(pa.table({"sentence": sentences, "id": [1] * len(sentences)}), path)
    return path


@pytest.mark.parametrize("kind", [".txt", ".tsv", ".csv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_sentences(tmp_path, kind):
    found = read_sentences(write(tmp_path, kind, SENTENCES))
    assert list(found.sentences) == SENTENCES
    assert found.skipped == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"fine\nna\xefve\n", ["line 2", "0xef", "ï", "UTF-8"]),
        ("a\nb\n".encode("utf-16"), ["UTF-16", "UTF-8"]),
        (b"a\nb\0c\n", ["line 2", "NUL"]),
        (b"", ["no sentence"]),
        (b"\n \n\t\n", ["no sentence"]),
    ],
)
def test_text_that_is_none_is_refused(tmp_path, content, words):
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^x|\.txt|\.tsv") as error:
        read_sentences(path)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_bom_line_ends_and_inner_separators(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeffone\r\ntwo\u2028still two\r\n\r\nthree".encode())
    found = read_sentences(path)
    assert found.sentences == ("one", "two\u2028still two", "three")
    assert found.lines == (1, 2, 4)
    assert found.skipped == 1
    kept = read_sentences(path, keep_empty=True)
    assert kept.sentences == ("one", "two\u2028still two", "", "three")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.xlsx", "a", ["xlsx", "Excel", "CSV"]),
        ("x", "a", ["(none)", ".txt"]),
        ("x.csv", 'a,b\n"x,1\n', ["line", "Quotation"]),
        ("x.csv", "a,b\n1,2,3\n", ["line 2", "3 columns"]),
        ("x.csv", "", ["empty"]),
        ("x.csv", "a,b\nx,y\n", ["--column"]),
        ("x.tsv", "a\ta\nx\ty\n", ["two columns", "'a'"]),
        ("x.jsonl", '{"sentence": "a"}\n{"sentence": \n', ["line 2", "JSON"]),
        ("x.jsonl", "[1, 2]\n", ["line 1", "object"]),
        ("x.jsonl", '{"sentence": 3}\n', ["row 1", "number"]),
        ("x.jsonl", "[" * 100_000, ["line 1", "JSON"]),
        ("x.parquet", "PAR1 but no more", ["Parquet"]),
    ],
)
def test_broken_tables_are_refused(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=r"^x|\.txt|\.tsv") as error:
        read_sentences(path)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_missing_file_folder_and_column(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.txt"):
        read_sentences(tmp_path / "nothing.txt")
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(ValueError, match="folder"):
        read_sentences(tmp_path / "folder.txt")
    path = write(tmp_path, ".tsv", SENTENCES)
    with pytest.raises(ValueError, match="no column 'nope'; it has id, sentence"):
        read_sentences(path, column="nope")
    with pytest.raises(ValueError, match="plain text"):
        read_sentences(write(tmp_path, ".txt", SENTENCES), column="sentence")


@pytest.mark.parametrize(
    "content",
    [
        "sentence1\tsentence2\tscore\nA b\tC d\t2.5\nE\tF\t\nG\tH\t4\n",
        "Score\tS1\tS2\n2.5\tA b\tC d\n\tE\tF\n4\tG\tH\n",
        "A b\tC d\t2.5\nE\tF\t\nG\tH\t4\n",
        "2.5\tA b\tC d\n\tE\tF\n4\tG\tH\n",
    ],
)
def test_pairs_with_and_without_header(tmp_path, content):
    path = tmp_path / "mine.tsv"
    path.write_text(content)
    pairs = read_pairs(path)
    assert pairs.sentences == ["A b", "G", "C d", "H"]
    assert pairs.gold.tolist() == [2.5, 4.0]
    assert pairs.name == "mine"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("sentence1\tsentence2\tscore\na\tb\t2,5\n", ["row 2", "2,5", "decimal comma"]),
        ("sentence1\tsentence2\tscore\na\tb\thigh\n", ["row 2", "'high'"]),
        ("sentence1\tsentence2\tscore\na\tb\tnan\n", ["row 2", "'nan'"]),
        ("sentence1\tsentence2\tscore\na\tb\t\n", ["no rated pair"]),
        ("sentence1\tsentence2\tscore\n\t\t3\n", ["row 2", "missing"]),
        ("one\ttwo\tscore\na\tb\t1\n", ["first sentence", "--columns"]),
        ("a\tb\n", ["sentence1"]),
        ("1\t2\t3\n", ["which"]),
    ],
)
def test_broken_pairs_are_refused(tmp_path, content, words):
    path = tmp_path / "x.tsv"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"^x|\.txt|\.tsv") as error:
        read_pairs(path)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_pairs_from_named_columns_and_parquet(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"l": ["a", "b"], "r": ["c", "d"], "g": [1.0, np.nan]}), path)
    pairs = read_pairs(path, columns=["l", "r", "g"])
    assert pairs.sentences == ["a", "c"]
    with pytest.raises(ValueError, match="no column 'z'"):
        read_pairs(path, columns=["l", "r", "z"])
    with pytest.raises(ValueError, match="2 names"):
        read_pairs(path, columns=["l", "r"])


@given(st.binary(max_size=300), st.sampled_from([".txt", ".tsv", ".csv", ".jsonl", ".parquet"]))
def test_any_bytes_give_sentences_or_a_clear_error(tmp_path_factory, data, kind):
    path = tmp_path_factory.mktemp("fuzz") / f"x{kind}"
    path.write_bytes(data)
    for read in (read_sentences, read_pairs):
        found = None
        with contextlib.suppress(ValueError):  # any other error fails the test
            found = read(path)
        if found is not None:
            assert found.sentences and all(isinstance(text, str) for text in found.sentences)
