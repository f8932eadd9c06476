"""QNLI: reading GLUE's file as it is, finding it, saying what is wrong with it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from bertflow_lite.datasets.nli import fingerprint_with_labels, load_qnli
from bertflow_lite.datasets.pairs import SentencePairs

HEADER = "index\tquestion\tsentence\tlabel\n"
ROWS = '0\tWho ran?\t"The dog ran.\tentailment\n1\tWho sat?\tIt "ran".\tnot_entailment\n'


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a test with its own data (or the real one) and empty caches."""
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv("BERTFLOW_DATA", raising=False)
    monkeypatch.setenv("BERTFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def write(root: Path, text: str, split: str = "dev") -> Path:
    path = root / "qnli" / f"{split}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))
    return root


def load(root: Path) -> SentencePairs:
    return load_qnli(data_dir=root, check_counts=False)


def test_quotes_mean_nothing(tmp_path: Path) -> None:
    pairs = load(write(tmp_path, HEADER + ROWS))
    assert pairs.sentences1 == ("Who ran?", "Who sat?")
    assert pairs.sentences2 == ('"The dog ran.', 'It "ran".')
    assert pairs.gold.tolist() == [1.0, 0.0]


def test_line_ends_and_separators_inside_sentences(tmp_path: Path) -> None:
    odd = "0\tq\ta\u2028b\x85\tentailment\r\n1\tq\tc\tnot_entailment"
    assert load(write(tmp_path, HEADER.replace("\n", "\r\n") + odd)).sentences2 == (
        "a\u2028b\x85",
        "c",
    )


def test_columns_are_found_by_title(tmp_path: Path) -> None:
    pairs = load(write(tmp_path, "label\tsentence\tquestion\nnot_entailment\ts\tq\n"))
    assert (pairs.sentences1, pairs.sentences2, pairs.gold.tolist()) == (("q",), ("s",), [0.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + ROWS + "2\tWho?\tIt\tmaybe\n", r"dev\.tsv, line 4: the label 'maybe' is none of"),
        (HEADER + ROWS + "2\tWho?\tIt", r"dev\.tsv, line 4: 3 tab-separated .* at least 4"),
        (HEADER + ROWS + "2\tWho?\tIt\tentail", r"line 4: the label 'entail' is none of"),
        ("index\tquestion\tsentence\n0\tq\ts\n", r"no column label in its first line"),
        ("", r"no column question or sentence or label"),
    ],
)
def test_a_mistyped_or_cut_file_is_named_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path, text))


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    write(tmp_path, "")
    (tmp_path / "qnli" / "dev.tsv").write_bytes(b"index\xe9")
    with pytest.raises(ValueError, match=r"qnli/dev\.tsv is not UTF-8 \(byte 5\)"):
        load(tmp_path)


def test_another_number_of_pairs_is_refused(tmp_path: Path) -> None:
    write(tmp_path, HEADER + ROWS)
    with pytest.raises(ValueError, match=r"qnli dev has 2 pairs here.* 5463.*without quoting"):
        load_qnli(data_dir=tmp_path)


@pytest.mark.parametrize("below", [".", "senteval"])
def test_the_named_folder_and_the_one_above_it_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    write(tmp_path / "data", HEADER + ROWS)
    named = tmp_path / "data" / below
    named.mkdir(exist_ok=True)
    given = load(named)
    monkeypatch.setenv("BERTFLOW_DATA", str(named))
    by_environment = load_qnli(check_counts=False)
    assert (given.source, by_environment.source) == ("data_dir", "$BERTFLOW_DATA")
    assert fingerprint_with_labels(given) == fingerprint_with_labels(by_environment)


def test_the_folder_goes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "cache", HEADER + ROWS)
    assert load_qnli(check_counts=False).source == "the cache"
    write(tmp_path / "own", HEADER + "0\tq\ts\tentailment\n")
    monkeypatch.setenv("BERTFLOW_DATA", str(tmp_path / "own"))
    assert len(load_qnli(check_counts=False)) == 1


def test_a_missing_set_says_what_would_help(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load_qnli()
    for part in ("BERTFLOW_DATA is not set", "the cache (", "qnli/dev.tsv", "download=True"):
        assert part in str(caught.value)
    with pytest.raises(FileNotFoundError, match="no folder"):
        load_qnli(data_dir=tmp_path / "typo")


def test_splits(tmp_path: Path) -> None:
    write(tmp_path, HEADER + ROWS, "train")
    assert load_qnli("train", data_dir=tmp_path, check_counts=False).split == "train"
    with pytest.raises(FileNotFoundError, match=r"qnli \(dev\) was not found"):
        load_qnli("validation", data_dir=tmp_path)
    with pytest.raises(ValueError, match="no split 'test' with labels; it has train and dev"):
        load_qnli("test")


def test_fingerprint_follows_the_content_alone() -> None:
    def digest(
        first: str = "ab",
        second: str = "cd",
        gold: tuple[int, int] = (1, 0),
        split: str = "dev",
        source: str = "here",
    ) -> str:
        pairs = SentencePairs(
            "qnli", split, (*first,), (*second,), np.array(gold), np.full(2, "qnli"), source=source
        )
        return fingerprint_with_labels(pairs)

    assert digest() == digest(source="there") == "a7e37fd02ece39fc"
    assert len({digest(), digest(gold=(0, 1)), digest("ba"), digest(split="train")}) == 4


@pytest.mark.data
def test_the_real_file_is_read_whole(real_data: Path) -> None:
    try:
        pairs = load_qnli()
    except FileNotFoundError:
        pytest.skip("QNLI is not beside the real STS data")
    assert len(pairs) == 5463
    assert pairs.gold.sum() == 2702  # and 2,761 without the answer: GLUE's own numbers
    assert all(text.strip() for text in pairs.sentences)
    # The trap: with quoting, rows are swallowed by a lone quotation mark.
    place = next(root for root in (real_data, real_data.parent) if (root / "qnli").is_dir())
    with (place / "qnli" / "dev.tsv").open(encoding="utf-8", newline="") as file:
        assert sum(1 for _ in csv.reader(file, delimiter="\t")) - 1 < len(pairs)
