"""Rated pairs, gold scores and label files, as people and archives really have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusal import helps, must, refuses

import bertflow_lite as bf
from bertflow_lite.datasets.nli import load_qnli
from bertflow_lite.datasets.own_files import read_pairs
from bertflow_lite.datasets.pairs import SentencePairs

HEAD = "sentence1\tsentence2\tscore\n"


def pairs_of(first: list[str], second: list[str], gold: list[float]) -> Callable[[Any], None]:
    def look(found: SentencePairs) -> None:
        assert list(found.sentences1) == first and list(found.sentences2) == second
        np.testing.assert_array_equal(found.gold, gold)

    return look


ONE = pairs_of(["a"], ["b"], [2.0])
PAIR_FILES: dict[str, tuple[str, bytes, Any]] = {
    "with-header": ("p.tsv", f"{HEAD}a\tb\t2\n".encode(), ONE),
    "without-header": (
        "p.tsv",
        b"a\tb\t2\nc\td\t4\n",
        pairs_of(["a", "c"], ["b", "d"], [2.0, 4.0]),
    ),
    "score-first-without-header": ("p.tsv", b"2\ta\tb\n", ONE),
    "extra-columns": ("p.tsv", b"id\tsentence1\tsentence2\tscore\tx\n1\ta\tb\t2\t9\n", ONE),
    "other-order": ("p.tsv", b"score\tsentence2\tsentence1\n2\tb\ta\n", ONE),
    "crlf": ("p.tsv", b"sentence1\tsentence2\tscore\r\na\tb\t2\r\n", ONE),
    "bom": ("p.tsv", b"\xef\xbb\xbf" + f"{HEAD}a\tb\t2\n".encode(), ONE),
    "spaces-around": ("p.tsv", f"{HEAD} a \t b \t 2 \n".encode(), ONE),
    "replacement-character": (
        "p.tsv",
        f"{HEAD}a\ufffd\tb\t2\n".encode(),
        pairs_of(["a\ufffd"], ["b"], [2.0]),
    ),
    "unbalanced-quotes-in-tsv": (
        "p.tsv",
        f'{HEAD}"a\tb\t2\nc\t"d\t3\n'.encode(),
        pairs_of(['"a', "c"], ["b", '"d'], [2.0, 3.0]),
    ),
    "quoted-comma": (
        "p.csv",
        b'sentence1,sentence2,score\n"a,c",b,2\n',
        pairs_of(["a,c"], ["b"], [2.0]),
    ),
    "quoted-line-end": (
        "p.csv",
        b'sentence1,sentence2,score\n"a\nc",b,2\n',
        pairs_of(["a\nc"], ["b"], [2.0]),
    ),
    "empty-gold-is-left-out": ("p.tsv", f"{HEAD}x\ty\t\na\tb\t2\n".encode(), ONE),
    "null-gold-is-left-out": (
        "p.jsonl",
        b'{"sentence1":"x","sentence2":"y","score":null}\n'
        b'{"sentence1":"a","sentence2":"b","score":2}\n',
        ONE,
    ),
    "gold-on-another-scale": (
        "p.tsv",
        f"{HEAD}a\tb\t100\nc\td\t-3\n".encode(),
        pairs_of(["a", "c"], ["b", "d"], [100.0, -3.0]),
    ),
    "no-gold-at-all": ("p.tsv", f"{HEAD}a\tb\t\n".encode(), refuses(ValueError, "no rated pair")),
    "only-a-header": ("p.tsv", HEAD.encode(), refuses(ValueError, "no rated pair")),
    "empty": ("p.tsv", b"", refuses(ValueError, "p.tsv", "empty")),
    "missing-column": (
        "p.tsv",
        b"sentence1\tscore\na\t2\n",
        refuses(ValueError, "second sentence", "--columns"),
    ),
    "four-columns-without-header": (
        "p.tsv",
        b"a\tb\t2\tx\n",
        refuses(ValueError, "none was found", "Call them sentence1"),
    ),
    "two-numbers-without-header": (
        "p.tsv",
        b"1\tb\t2\n",
        refuses(ValueError, "which of the three columns is the rating", "header"),
    ),
    "decimal-comma": (
        "p.tsv",
        f"{HEAD}a\tb\t2,5\n".encode(),
        refuses(ValueError, "row 2", "'2,5'", "decimal comma", "point"),
    ),
    "decimal-comma-in-csv": (
        "p.csv",
        b"sentence1,sentence2,score\na,b,2,5\n",
        refuses(ValueError, "line 2", "3 fields", "saw 4", "Quotation marks"),
    ),
    "excel-with-semicolons": (
        "p.csv",
        b"sentence1;sentence2;score\na;b;2\n",
        refuses(ValueError, "semicolons", "Excel", ".tsv"),
    ),
    "words-for-gold": (
        "p.tsv",
        f"{HEAD}a\tb\tgood\n".encode(),
        refuses(ValueError, "row 2", "'good'"),
    ),
    "nan-for-gold": ("p.tsv", f"{HEAD}a\tb\tnan\n".encode(), refuses(ValueError, "row 2", "'nan'")),
    "inf-for-gold": ("p.tsv", f"{HEAD}a\tb\tinf\n".encode(), refuses(ValueError, "row 2", "'inf'")),
    "percent-for-gold": (
        "p.tsv",
        f"{HEAD}a\tb\t5%\n".encode(),
        refuses(ValueError, "row 2", "'5%'"),
    ),
    "underscore-in-gold": (
        "p.tsv",
        f"{HEAD}a\tb\t1_0\n".encode(),
        refuses(ValueError, "row 2", "'1_0'", "not a number"),
    ),
    "both-sentences-missing": (
        "p.tsv",
        f"{HEAD}\t\t2\n".encode(),
        refuses(ValueError, "row 2", "a sentence is missing"),
    ),
    "the-first-sentence-missing": (
        "p.tsv",
        f"{HEAD}\tb\t2\n".encode(),
        refuses(ValueError, "row 2", "the first is empty", "delete the row"),
    ),
    "the-second-sentence-blank": (
        "p.csv",
        b"sentence1,sentence2,score\nx,y,1\na, ,2\n",
        refuses(ValueError, "row 3", "the second is empty"),
    ),
    "blank-lines": ("p.tsv", f"{HEAD}\na\tb\t2\n\n".encode(), ONE),
    "two-ratings": (
        "p.tsv",
        b"sentence1\tsentence2\tscore\tlabel\na\tb\t2\t0\n",
        refuses(ValueError, "score and label", "--columns"),
    ),
    "two-first-sentences": (
        "p.jsonl",
        b'{"text1":"a","sentence1":"a","sentence2":"b","score":2}',
        refuses(ValueError, "text1 and sentence1", "--columns"),
    ),
    "quoted-as-by-pandas": (
        "p.tsv",
        f'{HEAD}"a ""b"""\tc\t2\n'.encode(),
        refuses(ValueError, "line 2", "quoted", ".csv"),
    ),
    "a-sentence-is-null": (
        "p.jsonl",
        b'{"sentence1":"a","sentence2":null,"score":2}',
        refuses(ValueError, "row 1", "a sentence is missing"),
    ),
    "a-sentence-is-a-number": (
        "p.jsonl",
        b'{"sentence1":"a","sentence2":3,"score":2}',
        refuses(ValueError, "row 1", "a sentence is missing"),
    ),
    "windows-1252": (
        "p.tsv",
        f"{HEAD}caf\u00e9\tb\t2\n".encode("windows-1252"),
        refuses(ValueError, "line 2", "0xe9", "Windows-1252"),
    ),
    "a-line-too-short": (
        "p.tsv",
        f"{HEAD}a\tb\n".encode(),
        refuses(ValueError, "line 2", "2 columns"),
    ),
    "plain-text": ("p.txt", b"a\tb\t2\n", refuses(ValueError, "rated pairs come in", ".tsv")),
}


@pytest.mark.parametrize("case", PAIR_FILES)
def test_a_pair_file_is_read_or_says_why_not(case: str, tmp_path: Path) -> None:
    name, content, expected = PAIR_FILES[case]
    (tmp_path / name).write_bytes(content)
    must(expected, lambda: read_pairs(tmp_path / name), tmp_path)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["sentence1", "sentence2"], refuses(ValueError, "2 names", "rating")),
        (["sentence1", "sentence2", "stars"], refuses(ValueError, "no column 'stars'", "it has")),
        (["sentence2", "sentence1", "score"], pairs_of(["b"], ["a"], [2.0])),
    ],
    ids=["too-few", "unknown", "turned"],
)
def test_columns_that_are_named(columns: list[str], expected: Any, tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text(f"{HEAD}a\tb\t2\n")
    must(expected, lambda: read_pairs(tmp_path / "p.tsv", columns=columns), tmp_path)


# --- the official files --------------------------------------------------------------------------


def sts12(folder: Path, pairs: bytes, gold: bytes) -> None:
    place = folder / "downstream" / "STS" / "STS12-en-test"
    place.mkdir(parents=True, exist_ok=True)
    for part in ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"):
        (place / f"STS.input.{part}.txt").write_bytes(b"x\ty\n")
        (place / f"STS.gs.{part}.txt").write_bytes(b"1\n")
    (place / "STS.input.MSRpar.txt").write_bytes(pairs)
    (place / "STS.gs.MSRpar.txt").write_bytes(gold)


def first_pairs(*want: tuple[str, str, float]) -> Callable[[Any], None]:
    def look(found: SentencePairs) -> None:
        n = len(found) - 4  # the other four subsets have one pair each
        met = zip(found.sentences1[:n], found.sentences2[:n], found.gold[:n].tolist(), strict=True)
        assert list(met) == list(want)

    return look


STS: dict[str, tuple[bytes, bytes, Any]] = {
    "plain": (b"a\tb\n", b"2\n", first_pairs(("a", "b", 2.0))),
    "empty-gold": (b"a\tb\nc\td\n", b"\n3\n", first_pairs(("c", "d", 3.0))),
    "empty-gold-at-the-end": (b"a\tb\nc\td\n", b"3\n\n", first_pairs(("a", "b", 3.0))),
    "crlf": (b"a\tb\r\n", b"2\r\n", first_pairs(("a", "b", 2.0))),
    "windows-1252-characters": (
        "caf\u00e9\x93\tb\n".encode(), b"2\n", first_pairs(("caf\u00e9\x93", "b", 2.0)),
    ),
    "replacement-character": ("\ufffd\tb\n".encode(), b"2\n", first_pairs(("\ufffd", "b", 2.0))),
    "unbalanced-quote": (b'"a\tb\n', b"2\n", first_pairs(('"a', "b", 2.0))),
    "different-line-counts": (
        b"a\tb\nc\td\n", b"2\n", refuses(ValueError, "2 lines", "has 1", "fresh copy"),
    ),
    "no-tab": (b"a b\n", b"2\n", refuses(ValueError, "MSRpar", "line 1", "columns")),
    "gold-above-5": (b"a\tb\n", b"5.1\n", refuses(ValueError, "line 1", "'5.1'", "0 to 5")),
    "gold-below-0": (b"a\tb\n", b"-0.1\n", refuses(ValueError, "line 1", "'-0.1'", "0 to 5")),
    "gold-nan": (b"a\tb\n", b"nan\n", refuses(ValueError, "line 1", "'nan'", "0 to 5")),
    "gold-inf": (b"a\tb\n", b"inf\n", refuses(ValueError, "line 1", "'inf'", "0 to 5")),
    "gold-word": (b"a\tb\n", b"high\n", refuses(ValueError, "line 1", "'high'", "0 to 5")),
    "gold-comma": (b"a\tb\n", b"2,5\n", refuses(ValueError, "line 1", "'2,5'", "0 to 5")),
    "gold-underscore": (b"a\tb\n", b"0_1\n", refuses(ValueError, "line 1", "'0_1'")),
    "not-utf-8": (b"caf\xe9\tb\n", b"2\n", refuses(ValueError, "MSRpar", "not UTF-8", "byte 3")),
}  # fmt: skip


@pytest.mark.parametrize("case", STS)
def test_an_sts_file_is_read_or_says_why_not(case: str, workplace: Path) -> None:
    pairs, gold, expected = STS[case]
    sts12(workplace, pairs, gold)
    must(
        expected,
        lambda: bf.load_sts("sts12", data_dir=workplace, check_counts=False),
        workplace,
    )


def test_a_set_of_another_size_is_not_scored_unless_asked(workplace: Path) -> None:
    sts12(workplace, b"a\tb\n", b"2\n")
    must(
        refuses(ValueError, "1 scored pairs", "750", "check_counts=False"),
        lambda: bf.load_sts("sts12", data_dir=workplace),
        workplace,
    )


SICK: dict[str, tuple[bytes, Any]] = {
    "plain": (b"sentence_A\tsentence_B\trelatedness_score\na\tb\t2\n", ONE),
    "crlf": (b"sentence_A\tsentence_B\trelatedness_score\r\na\tb\t2\r\n", ONE),
    "other-order-and-more": (b"x\trelatedness_score\tsentence_B\tsentence_A\n9\t2\tb\ta\n", ONE),
    "missing-column": (b"sentence_A\tsentence_B\na\tb\n", refuses(ValueError, "relatedness_score")),
    "no-header": (b"a\tb\t2\n", refuses(ValueError, "no column", "sentence_A")),
    "empty": (b"", refuses(ValueError, "no column", "first line")),
    "short-line": (
        b"sentence_A\tsentence_B\trelatedness_score\na\tb\n",
        refuses(ValueError, "line 2", "columns"),
    ),
}


@pytest.mark.parametrize("case", SICK)
def test_a_sick_file_is_read_or_says_why_not(case: str, workplace: Path) -> None:
    content, expected = SICK[case]
    place = workplace / "downstream" / "SICK"
    place.mkdir(parents=True)
    (place / "SICK_trial.txt").write_bytes(content)
    must(
        expected,
        lambda: bf.load_sts("sick-r", "dev", data_dir=workplace, check_counts=False),
        workplace,
    )


# --- QNLI ----------------------------------------------------------------------------------------

QNLI_HEAD = b"index\tquestion\tsentence\tlabel\n"


def questions(*want: str) -> Callable[[Any], None]:
    def look(found: Any) -> None:
        assert found.sentences1 == want

    return look


QNLI: dict[str, tuple[bytes, Any]] = {
    # Read with quoting, rows that begin with a lone quotation mark swallow those that follow: of
    # GLUE's 5463 pairs only 5267 are then left.
    "unbalanced-quotes": (
        QNLI_HEAD + b'0\t"a\tb\tentailment\n1\tc\t"d\tnot_entailment\n2\te"\tf\tentailment\n',
        questions('"a', "c", 'e"'),
    ),
    "crlf": (b"index\tquestion\tsentence\tlabel\r\n0\ta\tb\tentailment\r\n", questions("a")),
    "numbers-for-labels": (QNLI_HEAD + b"0\ta\tb\t0\n", questions("a")),
    "replacement-character": (
        QNLI_HEAD + "0\t\ufffd\tb\tentailment\n".encode(), questions("\ufffd"),
    ),
    "unknown-label": (
        QNLI_HEAD + b"0\ta\tb\tmaybe\n", refuses(ValueError, "line 2", "'maybe'", "entailment"),
    ),
    "no-label": (b"index\tquestion\tsentence\n0\ta\tb\n", refuses(ValueError, "no column label")),
    "short-line": (QNLI_HEAD + b"0\ta\tb\n", refuses(ValueError, "line 2", "columns")),
    "not-utf-8": (QNLI_HEAD + b"0\t\xe9\tb\t0\n", refuses(ValueError, "not UTF-8")),
}  # fmt: skip


@pytest.mark.parametrize("case", QNLI)
def test_a_qnli_file_is_read_or_says_why_not(case: str, workplace: Path) -> None:
    content, expected = QNLI[case]
    (workplace / "qnli").mkdir()
    (workplace / "qnli" / "dev.tsv").write_bytes(content)
    must(expected, lambda: load_qnli(data_dir=workplace, check_counts=False), workplace)


def test_qnli_has_5463_rows_with_unbalanced_quotes_among_them(workplace: Path) -> None:
    rows = [b"%d\t%sq %d\ts\tentailment\n" % (i, b'"' if i % 28 == 0 else b"", i)
            for i in range(5463)]  # fmt: skip
    (workplace / "qnli").mkdir()
    (workplace / "qnli" / "dev.tsv").write_bytes(QNLI_HEAD + b"".join(rows))
    assert len(load_qnli(data_dir=workplace)) == 5463
    (workplace / "qnli" / "dev.tsv").write_bytes(QNLI_HEAD + b"".join(rows[:5267]))
    must(
        refuses(ValueError, "5267", "5463", "without quoting"),
        lambda: load_qnli(data_dir=workplace),
        workplace,
    )


# --- scores --------------------------------------------------------------------------------------


def rated(gold: list[float]) -> SentencePairs:
    texts = tuple(map(str, range(len(gold))))
    names = np.full(len(gold), "own")
    return SentencePairs("own", "all", texts, texts, np.array(gold, dtype=np.float64), names)


def is_score(value: float) -> Callable[[Any], None]:
    return lambda score: np.testing.assert_allclose(score.all, value, atol=0.01)


SCORES: dict[str, tuple[list[float], list[float], Any]] = {
    # id: (gold, cosines, what must happen)
    "plain": ([1, 2, 3], [0.1, 0.2, 0.9], is_score(100)),
    "turned": ([1, 2, 3], [0.9, 0.2, 0.1], is_score(-100)),
    "ties": ([1, 1, 2], [0.1, 0.2, 0.9], is_score(86.60)),
    "two-pairs": ([1, 2], [0.1, 0.2], is_score(100)),
    "gold-on-another-scale": ([-100, 0, 1e9], [0.1, 0.2, 0.9], is_score(100)),
    "constant-gold": ([2, 2, 2], [0.1, 0.2, 0.3], refuses(ValueError, "undefined", "same")),
    "constant-cosine": ([1, 2, 3], [0.5] * 3, refuses(ValueError, "undefined", "same", "alike")),
    "cosine-constant-up-to-rounding": (
        [1, 2, 3],
        [1.0, 1.0 - 2.3e-16, 1.0 - 1.2e-16],
        refuses(ValueError, "undefined", "same"),
    ),
    "one-pair": ([1], [0.5], refuses(ValueError, "undefined", "one value", "two pairs")),
    "no-pair": ([], [], refuses(ValueError, "undefined")),
    "nan-gold": ([1, np.nan, 3], [0.1, 0.2, 0.3], refuses(ValueError, "Value 1 of y is nan")),
    "inf-gold": ([1, np.inf, 3], [0.1, 0.2, 0.3], refuses(ValueError, "Value 1 of y is inf")),
    "nan-cosine": ([1, 2, 3], [0.1, np.nan, 0.3], refuses(ValueError, "Value 1", "nan", "finite")),
    "too-few-cosines": ([1, 2, 3], [0.1, 0.2], refuses(ValueError, "2 similarities", "3 pairs")),
}


@pytest.mark.parametrize("case", SCORES)
def test_a_score_is_right_or_says_why_there_is_none(case: str, tmp_path: Path) -> None:
    gold, cosines, expected = SCORES[case]
    must(expected, lambda: bf.score_similarities(rated(gold), cosines), tmp_path)


@pytest.mark.parametrize("kind", [list, tuple, np.array, pd.Series, torch.tensor])
def test_pairs_are_made_of_any_containers(kind: Any) -> None:
    texts = list if kind is torch.tensor else kind
    made = SentencePairs(
        "own", "all", texts(["a", "b"]), texts(["c", "d"]), kind([1, 2]), texts(["x", "x"])
    )
    want = rated([1, 2])
    assert repr(made) == "SentencePairs('own', split='all': 2 pairs, 1 subset, gold 1.0 to 2.0)"
    assert (type(made.sentences1), made.gold.dtype) == (tuple, want.gold.dtype)
    assert made.select([1]).sentences == ["b", "d"]
    assert bf.score_similarities(made, kind([0.1, 0.2])).all == pytest.approx(100)
    rows = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    assert bf.bootstrap_interval(made, rows, n_resamples=9).estimate == pytest.approx(100)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("sentences1", "ab", ("sentences1", "one string")),
        ("sentences2", ["a", 3], ("sentences2", "sentence 1", "int")),
        ("gold", ["high", "low"], ("gold", "number")),
        ("gold", [[1.0], [2.0]], ("gold", "1-d", "(2, 1)")),
        ("gold", [1.0], ("one entry for each pair",)),
        ("subsets", "own", ("subsets", "a name for each pair")),
    ],
)
def test_parts_of_pairs_that_do_not_fit(
    part: str, value: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    parts: dict[str, Any] = {"sentences1": ["a", "b"], "sentences2": ["c", "d"], "gold": [1, 2]}
    parts |= {"subsets": ["x", "x"], part: value}
    must(refuses(ValueError, *words), lambda: SentencePairs("own", "all", **parts), tmp_path)


@pytest.mark.parametrize("case", ["constant-gold", "constant-cosine", "one-pair"])
def test_an_interval_says_it_too(case: str) -> None:
    gold, cosines, expected = SCORES[case]
    with pytest.raises(expected.kind) as caught:
        bf.bootstrap_interval(rated(gold), cosines, n_resamples=10)
    helps(str(caught.value), *expected.words)


def test_equal_sentences_only_have_no_score(tmp_path: Path) -> None:
    """Their cosines are all 1 up to rounding, and the order of rounding means nothing."""
    half = np.random.default_rng(0).normal(size=(30, 7))
    must(
        refuses(ValueError, "undefined", "alike"),
        lambda: bf.score_sts(rated(list(range(30))), np.vstack([half, half])),
        tmp_path,
    )


# --- fuzzed --------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        b"\n",
        b"\r\n",
        b"\t",
        b"\t",
        b",",
        b'"',
        b"{",
        b"}",
        b":",
        b"\\ud800",
        b"\0",
        b"\xff",
        b"\xc3\xa9",
        b"\xef\xbb\xbf",
        b"sentence1",
        b"sentence2",
        b"score",
        b"1",
        b"2.5",
        b"nan",
        b"1e999",
        b"null",
        b"a",
        b" ",
        b"entailment",
        b"not_entailment",
        "\u2028".encode(),
    ]
)
CONTENT = st.lists(PIECES | st.binary(max_size=4), max_size=20).map(b"".join)
fuzz = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@fuzz
@given(content=CONTENT, kind=st.sampled_from([".tsv", ".csv", ".jsonl", ".parquet"]),
       head=st.sampled_from([b"", HEAD.encode(), b"sentence1,sentence2,score\n"]))  # fmt: skip
def test_any_pair_file_gives_pairs_or_an_error_that_helps(
    content: bytes, kind: str, head: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"p{kind}"
    path.write_bytes(head + content)
    try:
        found = read_pairs(path)
    except ValueError as error:
        helps(str(error), path.name)
        return
    assert len(found) > 0 and np.isfinite(found.gold).all()


@settings(fuzz, max_examples=120)
@given(pairs=CONTENT, gold=CONTENT)
def test_any_sts_files_give_pairs_or_an_error_that_helps(
    pairs: bytes, gold: bytes, tmp_path: Path
) -> None:
    sts12(tmp_path, pairs, gold)
    try:
        found = bf.load_sts("sts12", data_dir=tmp_path, check_counts=False)
    except ValueError as error:
        helps(str(error), "MSRpar")
        return
    assert ((found.gold >= 0) & (found.gold <= 5)).all()


@fuzz
@given(content=CONTENT, headed=st.booleans())
def test_any_sick_or_qnli_file_gives_pairs_or_an_error_that_helps(
    content: bytes, headed: bool, tmp_path: Path
) -> None:
    (tmp_path / "downstream" / "SICK").mkdir(parents=True, exist_ok=True)
    (tmp_path / "qnli").mkdir(exist_ok=True)
    sick, qnli = tmp_path / "downstream" / "SICK" / "SICK_trial.txt", tmp_path / "qnli" / "dev.tsv"
    sick.write_bytes(b"sentence_A\tsentence_B\trelatedness_score\n" * headed + content)
    qnli.write_bytes(QNLI_HEAD * headed + content)
    for path, load in (
        (sick, lambda: bf.load_sts("sick-r", "dev", data_dir=tmp_path, check_counts=False)),
        (qnli, lambda: load_qnli(data_dir=tmp_path, check_counts=False)),
    ):
        try:
            load()
        except ValueError as error:
            helps(str(error), path.name)
