"""NLI sentences and labelled pairs from files on this machine."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from bertflow_lite.datasets.nli import (
    HUB_PARTS,
    LABELS,
    NliPairs,
    NliSentences,
    load_nli_pairs,
    load_nli_sentences,
)

HEADER = "source\tpremise\thypothesis\tlabel\n"
ROWS = (
    "snli-dev\tA dog ran.\tIt ran.\tentailment\n"
    'mnli-dev-matched\tA "cat.\tA  mat.\tcontradiction\n'
    "snli-dev\tA dog ran.\tIt is red.\tneutral\n"
)


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a test with its own data (or the real one) and empty caches."""
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv("BERTFLOW_DATA", raising=False)
    monkeypatch.setenv("BERTFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def write(root: Path, name: str, text: str) -> Path:
    path = root / "nli" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode("utf-8")))
    return root


def write_pairs(root: Path, text: str) -> Path:
    return write(root, "nli_pairs.tsv.gz", text)


def write_sentences(root: Path, text: str) -> Path:
    return write(root, "nli_sentences.txt.gz", text)


def test_pairs_are_read_without_quoting(tmp_path: Path) -> None:
    pairs = load_nli_pairs(data_dir=write_pairs(tmp_path, HEADER + ROWS))
    assert pairs.premises == ("A dog ran.", 'A "cat.', "A dog ran.")
    assert pairs.hypotheses == ("It ran.", "A  mat.", "It is red.")
    assert pairs.labels.tolist() == [0, 2, 1]
    assert [pairs.LABELS[i] for i in pairs.labels] == ["entailment", "contradiction", "neutral"]
    assert pairs.sources == ("snli-dev", "mnli-dev-matched", "snli-dev")
    assert repr(pairs) == "NliPairs(3 pairs from snli-dev, mnli-dev-matched)"


def test_sentences_are_trimmed_and_given_once(tmp_path: Path) -> None:
    text = "b\n  a  dog \r\n\nb\na dog\n'c'"
    found = load_nli_sentences(data_dir=write_sentences(tmp_path, text))
    assert found.sentences == ("b", "a dog", "'c'")
    assert len(found) == 3


def test_a_sample_says_that_it_is_one(tmp_path: Path) -> None:
    write_pairs(tmp_path, HEADER + ROWS)
    write_sentences(tmp_path, "a\n")
    for found in (load_nli_pairs(data_dir=tmp_path), load_nli_sentences(data_dir=tmp_path)):
        assert "a sample of" in found.source
        assert "data_dir" in found.source
        assert str(tmp_path) not in found.source
    assert load_nli_sentences(data_dir=tmp_path).name == "nli-sample"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + ROWS + "s\ta\tb\tmaybe\n", r"nli_pairs\.tsv\.gz, line 5: the label 'maybe'"),
        (HEADER + ROWS + "s\ta\tb\t-\n", r"line 5: the label '-' is none of entailment, neutral"),
        (HEADER + ROWS + "s\ta\tb", r"nli_pairs\.tsv\.gz, line 5: 3 tab-separated columns"),
        ("premise\thypothesis\n", r"no column label or source in its first line"),
    ],
)
def test_a_mistyped_table_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_nli_pairs(data_dir=write_pairs(tmp_path, text))


@pytest.mark.parametrize("damage", ["cut short", "spoilt", "not packed"])
def test_a_damaged_packing_is_told(tmp_path: Path, damage: str) -> None:
    write_sentences(tmp_path, "".join(f"sentence {i * i}\n" for i in range(500)))
    path = tmp_path / "nli" / "nli_sentences.txt.gz"
    whole = path.read_bytes()
    middle = len(whole) // 2
    spoilt = whole[:middle] + bytes(256 - x - 1 for x in whole[middle : middle + 9])
    content = {
        "cut short": whole[:-50],
        "spoilt": spoilt + whole[middle + 9 :],
        "not packed": b"a sentence\n",
    }
    path.write_bytes(content[damage])
    with pytest.raises(ValueError, match=r"nli_sentences\.txt\.gz is damaged or cut short"):
        load_nli_sentences(data_dir=tmp_path)


def test_a_file_without_sentences_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nli_sentences\.txt\.gz .* has no sentence"):
        load_nli_sentences(data_dir=write_sentences(tmp_path, "\n \n"))


def test_the_folder_above_the_named_one_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sentences(tmp_path / "data", "a\n")
    (tmp_path / "data" / "senteval").mkdir()
    monkeypatch.setenv("BERTFLOW_DATA", str(tmp_path / "data" / "senteval"))
    assert load_nli_sentences().sentences == ("a",)


def test_a_link_is_followed_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sentences(tmp_path / "data", "a\n")
    (tmp_path / "disk" / "senteval").mkdir(parents=True)
    link = tmp_path / "data" / "senteval"
    link.symlink_to(tmp_path / "disk" / "senteval")
    monkeypatch.setenv("BERTFLOW_DATA", str(link))
    assert load_nli_sentences().sentences == ("a",)


def test_a_missing_corpus_says_what_would_help() -> None:
    for load, file in ((load_nli_pairs, "nli_pairs.tsv"), (load_nli_sentences, "nli_sentences")):
        with pytest.raises(FileNotFoundError) as caught:
            load()
        for part in (file, "BERTFLOW_DATA is not set", "the cache (", f"{load.__name__}(download="):
            assert part in str(caught.value)


def test_the_full_corpus_has_the_size_of_the_paper() -> None:
    # The paper: 570K + 433K pairs in all splits. Sentence-BERT's file of the training pairs of both
    # that have a label (AllNLI) has 942,069.
    assert HUB_PARTS["snli-train"].pairs + HUB_PARTS["mnli-train"].pairs == 942_069


def test_fingerprints_follow_the_content_alone() -> None:
    labels = np.array([0, 1])
    one = NliPairs(("a", "b"), ("c", "d"), labels, ("s", "s"), "here")
    same = NliPairs(("a", "b"), ("c", "d"), labels, ("s", "s"), "there")
    other = NliPairs(("a", "b"), ("c", "d"), labels[::-1], ("s", "s"))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert NliSentences("x", ("a",), "").fingerprint == NliSentences("y", ("a",), "z").fingerprint
    assert NliSentences("x", ("a",), "").fingerprint != NliSentences("x", ("b",), "").fingerprint


def test_parts_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[1, 1, 2, 1\]"):
        NliPairs(("a",), ("b",), np.array([0, 1]), ("s",))


@pytest.mark.data
def test_the_sample_beside_the_real_data(real_data: Path) -> None:
    try:
        sentences, pairs = load_nli_sentences(), load_nli_pairs()
    except FileNotFoundError:
        pytest.skip("the NLI sample is not beside the real STS data")
    assert (len(sentences), len(pairs)) == (50_137, 34_147)
    assert np.bincount(pairs.labels).tolist() == [11_733, 11_126, 11_288]
    held_out = pairs.sources.count("mnli-dev-matched")
    assert held_out == HUB_PARTS["mnli-dev-matched"].pairs  # complete, as on the hub
    assert set(pairs.labels.tolist()) == set(range(len(LABELS)))
    known = set(sentences.sentences)
    assert all(text == " ".join(text.split()) and text for text in known)
