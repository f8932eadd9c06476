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
        ("x.csv", 'a,b\n"x,1\n', ["Quotation marks", "paired", "TSV"]),
        ("x.csv", "a,b\n1,2,3\n", ["line 2", "saw 3"]),
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


# --- what people's programs write ----------------------------------------------------------------

CELLS = "sentence1,sentence2,score\nA b,C d,2.5\nE,F,4\n"


@pytest.mark.parametrize("line", ["sep=,", '"sep=,"', "sep=;", "sep=\t", "sep=,,,"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_excels_first_line_names_the_separator(tmp_path, line, end):
    separator = line.strip('"')[4]
    path = tmp_path / "x.csv"
    text = f"{line}\n{CELLS.replace(',', separator)}"
    path.write_bytes(text.replace("\n", end).encode())
    assert read_pairs(path).sentences == ["A b", "E", "C d", "F"]
    assert read_sentences(path, column="sentence1").lines == (3, 4)


def test_a_sentence_may_begin_as_that_line_does(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("sentence\nsep=,\n")
    with pytest.raises(ValueError, match=r"line 2.*saw 2"):  # its comma is one too many
        read_sentences(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.txt", "\ufeffA b\n\ufeffC d\n"),
        ("x.txt", "A b\r\n\ufeffC d"),
        ("x.tsv", "\ufeffsentence\tn\nA b\t1\n\ufeffC d\t2\n"),
        ("x.csv", '\ufeffsentence,n\n"A b",1\n\ufeff"C d",2\n'),
        ("x.jsonl", '\ufeff"A b"\n\ufeff{"sentence": "C d"}\n'),
        ("x.jsonl", '"A b"\n"\\ufeffC d"\n'),
    ],
)
def test_marks_of_joined_files_are_no_text(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert read_sentences(path).sentences == ("A b", "C d")


@pytest.mark.parametrize("columns", [["sentence"], ["sentence", "id"]])
def test_marks_in_parquet_are_no_text_either(tmp_path, columns):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({name: ["\ufeffA b", "C d\ufeff"] for name in columns}), path)
    assert read_sentences(path).sentences == ("A b", "C d")


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("gb18030", "猫在垫子上睡觉。"),
        ("big5", "貓在墊子上睡覺。"),
        ("shift_jis", "猫がマットで寝た。"),
        ("euc-kr", "고양이가 매트에서 잤다."),
        ("windows-1251", "Кошка спит на коврике."),
        ("windows-1252", "Größe, naïve, café"),
    ],
)
def test_the_right_reading_of_other_encodings_is_among_those_shown(tmp_path, encoding, text):
    path = tmp_path / "x.txt"
    path.write_bytes(f"ok\n{text}\nnext\n".encode(encoding))
    with pytest.raises(ValueError, match=r"x\.txt, line 2: byte 0x.* iconv -f ENCODING") as error:
        read_sentences(path)
    assert f"{text!r} in {encoding}".lower() in str(error.value).lower()


@pytest.mark.parametrize("kind", [".txt", ".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_sentence_may_be_a_whole_document(tmp_path, kind):
    long = "a cat sat, " * 40_000
    found = read_sentences(write(tmp_path, kind, ["before", long, "after"]))
    assert found.sentences == ("before", long.strip(), "after")


@pytest.mark.parametrize(
    "content",
    [
        '[\n {"sentence": "a"},\n {"sentence": "b"}\n]\n',
        '[{"sentence": "a"}, {"sentence": "b"}]\n',
        '{\n "sentence": "a"\n}\n{\n "sentence": "b"\n}\n',
        '["a",\n "b"]',
    ],
)
def test_json_that_is_no_json_lines_is_told_so(tmp_path, content):
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"x\.jsonl, line 1 .*one object or string a line.*jq -c"):
        read_sentences(path)


@pytest.mark.parametrize(
    "beginning",
    [b"PK\x03\x04", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27", b"%PDF-1.7\n"],
)
@pytest.mark.parametrize("kind", [".txt", ".csv", ".jsonl"])
def test_archives_are_named_whatever_their_ending(tmp_path, beginning, kind):
    path = tmp_path / f"x{kind}"
    path.write_bytes(beginning + b"more" * 10)
    with pytest.raises(ValueError, match="is a workbook, an archive or a PDF"):
        read_sentences(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("kind", [".txt", ".csv", ".tsv"])
def test_wide_encodings_are_told(tmp_path, encoding, kind):
    path = tmp_path / f"x{kind}"
    path.write_bytes("sentence\nA cat sat.\n".encode(encoding))
    with pytest.raises(ValueError, match=r"UTF-16|NUL"):
        read_sentences(path)


def test_quotation_marks_in_a_csv_are_not_mended_in_silence(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('sentence,n\n"He said "no", twice",1\n')
    with pytest.raises(ValueError, match=r"Quotation marks"):
        read_sentences(path)
    path.write_text('sentence,n\n"He said ""no"", twice",1\nShe said "no",2\n')
    assert read_sentences(path).sentences == ('He said "no", twice', 'She said "no"')


def test_words_that_look_like_missing_values_are_words(tmp_path):
    words = ("NA", "null", "nan", "None", "N/A", "1e5", "007")
    for kind in (".txt", ".csv", ".tsv", ".jsonl", ".parquet"):
        assert read_sentences(write(tmp_path, kind, words)).sentences == words


def test_a_parquet_of_pandas_with_an_index_and_its_own_strings(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"text": ["A b", None, "C d"]}, index=[7, 8, 9], dtype="string")
    frame.to_parquet(tmp_path / "x.parquet")
    assert read_sentences(tmp_path / "x.parquet", keep_empty=True).sentences == ("A b", "", "C d")
    frame.set_index("text").assign(n=1).to_parquet(tmp_path / "y.parquet")
    assert read_sentences(tmp_path / "y.parquet").lines == (1, 3)


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
