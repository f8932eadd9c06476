"""Finding and reading the sets: layouts, oddities of the files, counts, messages."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertflow_lite import files as paths
from bertflow_lite.datasets.catalog import list_datasets
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.sts import COUNTS, DATASETS, files_of, load_sts

OFFICIAL = {"sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186}


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a test with its own data (or the real one), an empty cache, and no network."""
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv("BERTFLOW_DATA", raising=False)
    monkeypatch.setenv("BERTFLOW_CACHE", str(tmp_path / "cache"))

    def refuse(self: socket.socket, address: object) -> None:
        raise AssertionError(f"a connection to {address} though nobody asked for a download")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def write_sts13(root: Path, inputs: str, golds: str) -> Path:
    """Lay out an STS13 whose first subset is given and whose others have one pair each."""
    folder = root / "downstream" / "STS" / "STS13-en-test"
    for subset in COUNTS["sts13"]:
        first = subset == "FNWN"
        write(folder / f"STS.input.{subset}.txt", inputs if first else "x\ty\n")
        write(folder / f"STS.gs.{subset}.txt", golds if first else "1\n")
    return root


def load_sts13(root: Path) -> SentencePairs:
    pairs = load_sts("sts13", data_dir=root, check_counts=False)
    return pairs.select(pairs.subsets == "FNWN")


def write_stsb(root: Path, text: str) -> Path:
    write(root / "downstream" / "STS" / "STSBenchmark" / "sts-test.csv", text)
    return root


# --- oddities of the files ---------------------------------------------------------------------


def test_pairs_are_matched_with_scores_before_unscored_ones_are_dropped(tmp_path: Path) -> None:
    write_sts13(tmp_path, "a\tA\nb\tB\nc\tC\nd\tD\n", "1\n\n3.5\n \n")
    pairs = load_sts13(tmp_path)
    assert pairs.sentences1 == ("a", "c")
    assert pairs.sentences2 == ("A", "C")
    assert pairs.gold.tolist() == [1.0, 3.5]


def test_unscored_last_lines_count_as_lines(tmp_path: Path) -> None:
    write_sts13(tmp_path, "a\tA\nb\tB\nc\tC\n", "2\n\n\n")
    assert load_sts13(tmp_path).sentences1 == ("a",)


@pytest.mark.parametrize("odd", ["\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, odd: str) -> None:
    assert len(f"a{odd}b".splitlines()) == 2  # the trap
    write_sts13(tmp_path, f"a{odd}b\tA\nc\tC{odd}\n", "1\n2\n")
    pairs = load_sts13(tmp_path)
    assert pairs.sentences1 == (f"a{odd}b", "c")
    assert pairs.sentences2 == ("A", f"C{odd}")


@pytest.mark.parametrize(
    "odd", ["\ufffd", "caf\u00e9", "cafe\u0301", "\u00a34", "\U0001f600", "\x92"]
)
def test_unusual_characters_are_kept(tmp_path: Path, odd: str) -> None:
    write_sts13(tmp_path, f"{odd}\t {odd} \n", "1\n")
    assert load_sts13(tmp_path).sentences == [odd, f" {odd} "]


def test_quotes_mean_nothing(tmp_path: Path) -> None:
    write_sts13(tmp_path, '"a\tb"\n"\t""\n', "1\n2\n")
    pairs = load_sts13(tmp_path)
    assert pairs.sentences1 == ('"a', '"')
    assert pairs.sentences2 == ('b"', '""')


def test_carriage_returns_and_a_missing_last_line_feed(tmp_path: Path) -> None:
    write_sts13(tmp_path, "a\tA\r\nb\tB", "1\r\n2.5\r\n")
    pairs = load_sts13(tmp_path)
    assert pairs.sentences == ["a", "b", "A", "B"]
    assert pairs.gold.tolist() == [1.0, 2.5]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    write_sts13(tmp_path, "\ufeffa\tA\n", "1\n")
    assert load_sts13(tmp_path).sentences1 == ("a",)


def test_further_columns_of_raw_copies_are_passed_over(tmp_path: Path) -> None:
    write_sts13(tmp_path, "a\tA\tsource\tlicence\n", "1\n")
    assert load_sts13(tmp_path).sentences == ["a", "A"]


def test_different_line_counts_name_both_files(tmp_path: Path) -> None:
    write_sts13(tmp_path, "a\tA\nb\tB\n", "1\n")
    with pytest.raises(ValueError, match=r"input\.FNWN\.txt has 2 .* STS\.gs\.FNWN\.txt has 1"):
        load_sts("sts13", data_dir=tmp_path)


def test_a_line_without_tab_is_named(tmp_path: Path) -> None:
    write_sts13(tmp_path, "a\tA\nno tab\n", "1\n2\n")
    with pytest.raises(ValueError, match=r"FNWN\.txt, line 2: 1 tab-separated"):
        load_sts13(tmp_path)


@pytest.mark.parametrize("score", ["five", "5.1", "-1", "nan", "inf"])
def test_a_score_that_is_none_is_named(tmp_path: Path, score: str) -> None:
    write_sts13(tmp_path, "a\tA\nb\tB\n", f"1\n{score}\n")
    with pytest.raises(ValueError, match=rf"STS\.gs\.FNWN\.txt, line 2: .*'{score}'"):
        load_sts13(tmp_path)


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    write_sts13(tmp_path, "", "")
    target = tmp_path / "downstream/STS/STS13-en-test/STS.input.FNWN.txt"
    write(target, b"caf\xe9\tb\n")
    with pytest.raises(ValueError, match=r"FNWN\.txt is not UTF-8 \(byte 3\)"):
        load_sts13(tmp_path)


def test_stsb_has_seven_columns_and_may_have_more(tmp_path: Path) -> None:
    row = 'genre\tfile\tyear\t0001\t2.400\tsay "a\tsay b'
    write_stsb(tmp_path, f"{row}\n{row}\tlicence\tlicence\n")
    pairs = load_sts("stsb", data_dir=tmp_path, check_counts=False)
    assert pairs.sentences1 == ('say "a', 'say "a')
    assert pairs.sentences2 == ("say b", "say b")
    assert pairs.gold.tolist() == [2.4, 2.4]
    assert set(pairs.subsets.tolist()) == {"stsb"}


def test_stsb_with_six_columns_is_refused(tmp_path: Path) -> None:
    write_stsb(tmp_path, "genre\tfile\tyear\t0001\t2.4\ta\n")
    with pytest.raises(ValueError, match=r"sts-test\.csv, line 1: 6 tab-separated"):
        load_sts("stsb", data_dir=tmp_path, check_counts=False)


def test_sick_is_read_by_its_header_with_either_line_end(tmp_path: Path) -> None:
    folder = tmp_path / "downstream" / "SICK"
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    write(folder / "SICK_trial.txt", f"{header}\r\n4\tA dog\tA cat\t3.6\tNEUTRAL\r\n")
    trial = load_sts("sick-r", "trial", data_dir=tmp_path, check_counts=False)
    assert (trial.split, trial.sentences, trial.gold.tolist()) == ("dev", ["A dog", "A cat"], [3.6])
    write(folder / "SICK_trial.txt", "pair_ID\ts1\ts2\tscore\n4\ta\tb\t3.6\n")
    with pytest.raises(ValueError, match="no column sentence_A or sentence_B"):
        load_sts("sick-r", "dev", data_dir=tmp_path, check_counts=False)


def test_a_set_with_the_wrong_count_is_refused(tmp_path: Path) -> None:
    write_sts13(tmp_path, "a\tA\n", "1\n")
    with pytest.raises(ValueError, match=r"sts13 FNWN has 1 scored pairs here.* 189.*check_counts"):
        load_sts("sts13", data_dir=tmp_path)


# --- finding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("above", ["", "senteval"])
def test_both_layouts_are_found_by_argument_and_by_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str
) -> None:
    write_sts13(tmp_path / above, "a\tA\n", "1\n")
    given = load_sts("sts13", data_dir=tmp_path, check_counts=False)
    monkeypatch.setenv("BERTFLOW_DATA", str(tmp_path))
    named = load_sts("sts13", check_counts=False)
    assert (given.source, named.source) == ("data_dir", "$BERTFLOW_DATA")
    assert given.fingerprint == named.fingerprint


def test_the_folder_goes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sts13(tmp_path / "cache" / "senteval", "cached\tA\n", "1\n")
    assert load_sts("sts13", check_counts=False).source == "the cache"
    write_sts13(tmp_path / "own", "own\tA\n", "1\n")
    monkeypatch.setenv("BERTFLOW_DATA", str(tmp_path / "own"))
    assert load_sts("sts13", check_counts=False).sentences1[0] == "own"


def test_a_missing_set_says_which_of_three_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load_sts("sts15")
    message = str(caught.value)
    for part in ("BERTFLOW_DATA is not set", "the cache (", "download=True", "--download"):
        assert part in message
    monkeypatch.setenv("BERTFLOW_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"\$BERTFLOW_DATA \(.*nowhere\) has no STS/STS15"):
        load_sts("sts15")


def test_a_set_with_one_file_missing_names_it(tmp_path: Path) -> None:
    write_sts13(tmp_path, "a\tA\n", "1\n")
    (tmp_path / "downstream/STS/STS13-en-test/STS.gs.OnWN.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no STS/STS13-en-test/STS\.gs\.OnWN\.txt"):
        load_sts("sts13", data_dir=tmp_path)


def test_a_data_dir_that_does_not_exist_is_an_error_at_once(tmp_path: Path) -> None:
    write_sts13(tmp_path / "cache" / "senteval", "cached\tA\n", "1\n")
    with pytest.raises(FileNotFoundError, match="no folder"):
        load_sts("sts13", data_dir=tmp_path / "typo")


def test_names_are_taken_in_any_case(tmp_path: Path) -> None:
    write_stsb(tmp_path, "g\tf\ty\t1\t2.4\ta\tb\n")
    for name in ("stsb", "STS-B", "sts_b", "STSBenchmark"):
        assert load_sts(name, data_dir=tmp_path, check_counts=False).name == "stsb"
    for name in ("SICKR", "SICK-R", "sick"):
        with pytest.raises(FileNotFoundError, match="sick-r"):
            load_sts(name)


@pytest.mark.parametrize(
    ("name", "offer"), [("stbs", "stsb"), ("sick-e", "sick-r"), ("sts17", "sts16"), ("?", "sts12")]
)
def test_unknown_names_are_met_with_close_ones(name: str, offer: str) -> None:
    with pytest.raises(ValueError, match=rf"no data set '.*{offer}"):
        load_sts(name)


@pytest.mark.parametrize(("name", "split"), [("sts12", "train"), ("stsb", "trial"), ("stsb", "x")])
def test_unknown_splits_are_met_with_known_ones(name: str, split: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} has no split '{split}'; it has .*test"):
        load_sts(name, split)


def test_list_datasets_opens_nothing_and_says_how_to_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sts13(tmp_path, "a\tA\n", "1\n")
    monkeypatch.setenv("BERTFLOW_DATA", str(tmp_path))
    rows = {row.name: row for row in list_datasets()}
    assert tuple(rows)[: len(DATASETS)] == DATASETS
    assert rows["mini-sts"].found
    assert rows["sts13"].found
    assert "$BERTFLOW_DATA" in rows["sts13"].where
    assert not rows["stsb"].found
    assert "BERTFLOW_DATA" in rows["stsb"].where
    assert {name: rows[name].pairs for name in OFFICIAL} == OFFICIAL


def test_list_datasets_also_has_the_sets_of_other_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("BERTFLOW_DATA", str(tmp_path))
    rows = {row.name: row for row in list_datasets()}
    others = {name: rows[name].pairs for name in rows if name not in DATASETS}
    assert others == {
        "qnli": 5463, "nli": 951_884, "wordsim353": 353, "simlex999": 999, "lee": 1225,
    }  # fmt: skip
    assert not rows["qnli"].found and "qnli/dev.tsv" in rows["qnli"].where
    assert not rows["nli"].found and "--download" in rows["nli"].where
    write(tmp_path / "qnli" / "dev.tsv", "")
    write(tmp_path / "qnli" / "train.tsv", "")
    write(tmp_path / "nli" / "nli_pairs.tsv.gz", gzip.compress(b"source\tpremise\na\tb\nc\td\n"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # gensim is not installed
    found = list_datasets()
    assert [(row.pairs, row.splits) for row in found if row.name == "qnli"] == [
        (104_743, ("train",)),
        (5463, ("dev",)),
    ]
    rows = {row.name: row for row in found}
    assert rows["nli"].found and rows["nli"].pairs == 2 and "a sample" in rows["nli"].where
    assert not rows["lee"].found and rows["lee"].where == "pip install --no-deps gensim"


# --- the container -----------------------------------------------------------------------------


@pytest.fixture
def pairs() -> SentencePairs:
    gold, subsets = np.array([0.0, 2.5, 5.0]), np.array(["u", "u", "v"])
    return SentencePairs("stsb", "test", ("a", "b", "c"), ("A", "B", "C"), gold, subsets)


def test_rows_i_and_n_plus_i_form_a_pair(pairs: SentencePairs) -> None:
    assert pairs.sentences == ["a", "b", "c", "A", "B", "C"]
    assert len(pairs) == 3


def test_select_takes_masks_and_positions(pairs: SentencePairs) -> None:
    kept = pairs.select(pairs.gold > 1)
    assert (kept.sentences1, kept.gold.tolist()) == (("b", "c"), [2.5, 5.0])
    assert pairs.select([2, 0]).sentences == ["c", "a", "C", "A"]
    assert len(pairs.select([])) == 0
    assert len(pairs.select([False] * 3)) == 0
    for wrong in ([True], [3], [-4], [0.5], [[0]]):
        with pytest.raises(ValueError, match=r"mask|select"):
            pairs.select(wrong)  # type: ignore[arg-type]


def test_parts_of_different_length_are_refused(pairs: SentencePairs) -> None:
    with pytest.raises(ValueError, match=r"\[1, 1, 3, 3\]"):
        SentencePairs("stsb", "test", ("a",), ("b",), pairs.gold, pairs.subsets)


def test_fingerprint_follows_the_content_alone(pairs: SentencePairs) -> None:
    # A fixed value: it must not change from machine to machine or with the place.
    assert pairs.fingerprint == "095c812221581cb9"
    assert replace(pairs, source="elsewhere").fingerprint == pairs.fingerprint
    changes: list[dict[str, Any]] = [
        {"split": "dev"},
        {"sentences1": ("a", "bc", "")},  # the same letters, cut elsewhere
        {"sentences1": pairs.sentences2, "sentences2": pairs.sentences1},
        {"gold": pairs.gold + 1e-9},
    ]
    others = [replace(pairs, **change) for change in changes] + [pairs.select([0, 1])]
    assert len({other.fingerprint for other in others} | {pairs.fingerprint}) == 6


def test_repr_is_short_and_names_no_place(pairs: SentencePairs) -> None:
    assert repr(pairs) == (
        "SentencePairs('stsb', split='test': 3 pairs, 2 subsets, gold 0.0 to 5.0)"
    )
    assert "0 pairs" in repr(pairs.select([]))


# --- places ------------------------------------------------------------------------------------


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert paths.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("BERTFLOW_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.cache_dir() == tmp_path / "bertflow-lite"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert paths.cache_dir() == Path.home() / ".cache" / "bertflow-lite"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert paths.cache_dir() == Path.home() / "Library" / "Caches" / "bertflow-lite"


def test_data_file_is_found_in_checkout_and_in_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "site-packages" / "bertflow_lite"
    monkeypatch.setattr(paths, "_PACKAGE", package)
    write(package / "data" / "x.txt", "wheel")
    write(package.parent / "data" / "x.txt", "beside")
    assert paths.data_file("x.txt").read_text() == "wheel"
    write(package.parent / "pyproject.toml", "")  # what a checkout has
    assert paths.data_file("x.txt").read_text() == "beside"
    with pytest.raises(FileNotFoundError, match=r"'y\.txt' is neither in"):
        paths.data_file("y.txt")


def test_tidy_path_hides_the_home_folder() -> None:
    assert paths.tidy_path(Path.home() / "a" / "b") == str(Path("~/a/b"))
    assert paths.tidy_path("/elsewhere/a") == str(Path("/elsewhere/a"))


# --- the embedded set and the real ones ----------------------------------------------------------


def test_mini_sts() -> None:
    pairs = load_sts("mini-sts")
    assert len(pairs) >= 350
    assert pairs.kinds is not None
    assert pairs.styles is not None
    assert set(pairs.subsets.tolist()) == {"mini-sts"}
    assert (pairs.gold.min(), pairs.gold.max()) == (0.0, 5.0)
    assert all(text == text.strip() != "" for text in pairs.sentences)
    assert load_sts("MINI-STS", "all").fingerprint == pairs.fingerprint
    assert pairs.kinds is not None and pairs.styles is not None


def test_both_halves_of_mini_sts_are_its_subsets() -> None:
    both, halves = load_sts("Mini-STS both"), [load_sts("mini-sts"), load_sts("mini_sts_plain")]
    assert (both.name, halves[1].name, halves[1].split) == (
        "mini-sts-both",
        "mini-sts-plain",
        "test",
    )
    assert len(both) == len(halves[0]) + len(halves[1]) == 820
    for half in halves:
        part = both.select(both.subsets == half.name)
        assert part.sentences == half.sentences
        assert part.gold.tolist() == half.gold.tolist()
        assert part.kinds.tolist() == half.kinds.tolist()  # type: ignore[union-attr]
    assert set(halves[1].kinds.tolist()) == {"plain"}  # type: ignore[union-attr]
    assert set(halves[0].styles.tolist()) == set(halves[1].styles.tolist())  # type: ignore[union-attr]


@pytest.mark.data
@pytest.mark.parametrize("name", OFFICIAL)
def test_real_years_have_their_official_counts(real_data: Path, name: str) -> None:
    pairs = load_sts(name)
    assert len(pairs) == OFFICIAL[name]
    sizes = {s: int((pairs.subsets == s).sum()) for s in dict.fromkeys(pairs.subsets.tolist())}
    assert sizes == COUNTS[name]
    assert load_sts(name, "all").fingerprint == pairs.fingerprint


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sizes"), [("stsb", (5749, 1500, 1379)), ("sick-r", (4500, 500, 4927))]
)
def test_real_splits_have_their_official_counts(
    real_data: Path, name: str, sizes: tuple[int, int, int]
) -> None:
    loaded = [load_sts(name, split) for split in ("train", "dev", "test")]
    assert tuple(map(len, loaded)) == sizes
    everything = load_sts(name, "all")
    assert everything.sentences1 == sum((part.sentences1 for part in loaded), ())
    assert everything.gold.tolist() == np.concatenate([part.gold for part in loaded]).tolist()


@pytest.mark.data
def test_real_files_keep_their_unusual_characters(real_data: Path) -> None:
    assert any("\ufffd" in text for text in load_sts("sts12").sentences)
    # SICK's test file has CRLF: nothing of it may reach a sentence or the last column.
    assert not any("\r" in text for text in load_sts("sick-r").sentences)


@pytest.mark.data
@pytest.mark.parametrize("name", COUNTS)
def test_real_fingerprints_are_fixed(real_data: Path, name: str) -> None:
    known = dict(
        reversed(line.split()[::2])
        for line in paths.data_file("sts_sha256.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    roots = (real_data / "downstream", real_data / "senteval" / "downstream")
    root = next(root for root in roots if root.is_dir())
    for file in (file for part in COUNTS[name] for file in files_of(name, part)):
        if hashlib.sha256((root / file).read_bytes()).hexdigest() != known[file]:
            pytest.skip(f"{file} comes from another copy, whose spaces may differ")
    assert load_sts(name, "all").fingerprint == FINGERPRINTS[name]


FINGERPRINTS = {
    "sts12": "bb1f4f40aba48ca8",
    "sts13": "df4d3c7a636c26e6",
    "sts14": "33b0eb040e98a2cf",
    "sts15": "61204f23def8fe08",
    "sts16": "a0c549091648e3a5",
    "stsb": "832768e3c7c12ea9",
    "sick-r": "698e3b2be246be6e",
}
