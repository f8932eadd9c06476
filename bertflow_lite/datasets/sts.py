"""Find, check and load the sentence pairs: STS-B, SICK-R, STS12 to STS16, and the book's own.

The real sets are the benchmarks of the paper's Tables 2 and 3 (section 4.1), read in the layout
that SentEval made common. The book's own come with the package and are for running things live, not
for comparing models: in ``mini-sts``, shared words tell next to nothing of a pair's rating;
``mini-sts-plain`` was made as the real sets were, and in it they tell as much as there;
``mini-sts-both`` is both together.

Sets of other kinds have modules of their own (`qnli`, `nli`, `gensim_sets`); `list_datasets` lists
them all.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertflow_lite.datasets.own_files import FORMATS
from bertflow_lite.datasets.pairs import SentencePairs
from bertflow_lite.datasets.source import (
    ARCHIVE,
    Source,
    _pick,
    check_count,
    read_lines,
    read_scores,
    read_table,
    unpack_sts,
)
from bertflow_lite.files import data_file
from bertflow_lite.text import did_you_mean

__all__ = ["DATASETS", "load_sts"]

Rows = tuple[list[str], list[str], list[float]]
# Official numbers of scored pairs: STS12-16 by subset (all of it test data), the others by split.
# STS13 is without its SMT subset, whose text may not be passed on; SentEval leaves it out as well.
COUNTS: dict[str, dict[str, int]] = {
    "stsb": {"train": 5749, "dev": 1500, "test": 1379},
    "sick-r": {"train": 4500, "dev": 500, "test": 4927},
    "sts12": {
        "MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459,
        "surprise.OnWN": 750, "surprise.SMTnews": 399,
    },
    "sts13": {"FNWN": 189, "headlines": 750, "OnWN": 561},
    "sts14": {
        "deft-forum": 450, "deft-news": 300, "headlines": 750,
        "images": 750, "OnWN": 750, "tweet-news": 750,
    },
    "sts15": {
        "answers-forums": 375, "answers-students": 750, "belief": 375,
        "headlines": 750, "images": 750,
    },
    "sts16": {
        "answer-answer": 254, "headlines": 249, "plagiarism": 230,
        "postediting": 244, "question-question": 209,
    },
}  # fmt: skip
# The sets that come in splits, with one file for each.
FILES: dict[str, dict[str, str]] = {
    "stsb": {split: f"STS/STSBenchmark/sts-{split}.csv" for split in ("train", "dev", "test")},
    "sick-r": {
        "train": "SICK/SICK_train.txt",
        "dev": "SICK/SICK_trial.txt",
        "test": "SICK/SICK_test_annotated.txt",
    },
}
# Where first sentence, second sentence and gold score stand: by position or by column title.
_COLUMNS: dict[str, tuple[int, ...] | tuple[str, ...]] = {
    "stsb": (5, 6, 4),
    "sick-r": ("sentence_A", "sentence_B", "relatedness_score"),
}


def files_of(name: str, part: str) -> list[str]:
    """Return the files of one part (a split, or a subset of STS12-16), relative to downstream/."""
    if name in FILES:
        return [FILES[name][part]]
    folder = f"STS/{name.upper()}-en-test"
    return [f"{folder}/STS.input.{part}.txt", f"{folder}/STS.gs.{part}.txt"]


def read_part(paths: Sequence[Path], name: str) -> Rows:
    """Read one split of STS-B or SICK-R, or one subset of STS12-16."""
    if name in FILES:
        columns = read_table(paths[0], _COLUMNS[name])
        return columns[0], columns[1], read_scores(columns[2], paths[0], 1 + (name == "sick-r"))
    return _read_input_and_gold(*paths)


def _read_input_and_gold(input_path: Path, gold_path: Path) -> Rows:
    pairs, golds = read_lines(input_path), read_lines(gold_path)
    if len(pairs) != len(golds):
        raise ValueError(
            f"{input_path.name} has {len(pairs)} lines, but {gold_path.name} has {len(golds)}, so "
            f"scores cannot be matched with pairs. Take a fresh copy of {input_path.parent.name}."
        )
    rows: Rows = ([], [], [])
    for number, (pair, gold) in enumerate(zip(pairs, golds, strict=True), start=1):
        # An empty gold line means "not scored". Dropping it any earlier would shift all that
        # follow against their pairs.
        if gold.strip() == "":
            continue
        first, second = _pick(pair.split("\t"), (0, 1), input_path, number)
        rows[0].append(first)
        rows[1].append(second)
        rows[2].extend(read_scores([gold], gold_path, number))
    return rows


_log = logging.getLogger(__name__)
# The halves of each set that comes with the package, and their files.
_HALVES = {"mini-sts": "mini_sts.tsv", "mini-sts-plain": "mini_sts_plain.tsv"}
OWN_SETS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in _HALVES},
    "mini-sts-both": tuple(_HALVES),
}
"""The sets that come with the package, with the halves that each holds."""
DATASETS: tuple[str, ...] = (*OWN_SETS, *COUNTS)
"""The names that `load_sts` knows."""


def load_sts(
    name: str,
    split: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    progress: bool = True,
    check_counts: bool = True,
) -> SentencePairs:
    """Load a set of sentence pairs.

    A real set is looked for in `data_dir` (or else the folder named by ``BERTFLOW_DATA``), then
    in the cache. Only with ``download=True`` is it then fetched from its public home.

    Parameters
    ----------
    name : str
        ``"mini-sts"``, ``"mini-sts-plain"``, ``"mini-sts-both"``, ``"stsb"``, ``"sick-r"`` or
        ``"sts12"`` to ``"sts16"``, in any case; ``"STS-B"`` and ``"SICKR"`` are understood.
    split : {"train", "dev", "test", "all"}, default "test"
        STS-B and SICK-R have all four (SICK's ``"trial"`` is its ``"dev"``); for the others,
        ``"all"`` is ``"test"``. Published SICK-R scores differ here: the paper's tables use
        ``"test"`` (4,927 pairs), MTEB uses ``"all"`` (9,927).
    data_dir : path, optional
        A folder in SentEval's layout, which holds ``downstream/`` or ``senteval/downstream/``.
    download : bool, default False
        Fetch the set where it is found nowhere.
    progress : bool, default True
        Show a progress bar while fetching.
    check_counts : bool, default True
        Insist on the official number of scored pairs.

    Returns
    -------
    SentencePairs
        The pairs that have a gold score, in the order of the files.

    Raises
    ------
    ValueError, FileNotFoundError
        If the name or split is unknown, the set is not found, or a file is not as it should be.
    PermissionError, ConnectionError
        With ``download=True``: if the hub refuses, or cannot be reached.

    Examples
    --------
    >>> pairs = load_sts("mini-sts")
    >>> pairs
    SentencePairs('mini-sts', split='test': 420 pairs, 1 subset, gold 0.0 to 5.0)
    >>> len(pairs.sentences)
    840
    """
    _refuse_a_file(name)
    name, split = _resolve(name, split)
    if name in OWN_SETS:
        return _load_own(name)
    parts = _parts(name, split)
    call = f"load_sts({name!r}, download=True)"
    found = source_of(name, split).get(call, data_dir, download, progress=progress)
    rows: list[tuple[str, str, float, str]] = []
    paths = iter(found.paths)
    for part in parts:
        columns = read_part([next(paths) for _ in files_of(name, part)], name)
        n_pairs = len(columns[2])
        if check_counts:
            check_count(f"{name} {part} has {n_pairs} scored pairs", n_pairs, COUNTS[name][part])
        # The splits of one set are no subsets: STS-B and SICK-R are scored as a whole.
        subset = name if name in FILES else part
        rows += zip(*columns, [subset] * n_pairs, strict=True)
    _log.info("%s (%s): %d pairs from %s", name, split, len(rows), found.place)
    columns_of: Any = zip(*rows, strict=True) if rows else [()] * 4
    first, second, gold, subsets = columns_of
    return SentencePairs(name, split, first, second, gold, subsets, source=found.place)


def _refuse_a_file(name: str | os.PathLike[str]) -> None:
    """Point to `read_pairs` where the name is a file's."""
    text = os.fspath(name)
    ending = os.path.splitext(text)[1].lower()
    if not isinstance(name, str) or ending in FORMATS or os.sep in text:
        raise ValueError(
            f"load_sts knows {', '.join(DATASETS)}. A file of your own pairs, such as "
            f"{os.path.basename(text)!r}, is read by bertflow_lite.read_pairs(file)."
        )


def _resolve(name: str, split: str | None) -> tuple[str, str]:
    """Turn what a caller may write into a name of `DATASETS` and a split."""

    def squash(text: str) -> str:
        return "".join(letter for letter in text.lower() if letter.isalnum())

    known = {squash(one): one for one in DATASETS} | {"stsbenchmark": "stsb", "sick": "sick-r"}
    found = known.get(squash(name))
    if found is None:
        hint = did_you_mean(name.lower(), DATASETS)
        raise ValueError(f"There is no data set {name!r}; there are {', '.join(DATASETS)}.{hint}")
    wanted = "test" if split is None else split.lower()
    if found in FILES:
        splits = [*COUNTS[found], "all"]
        wanted = "dev" if (found, wanted) == ("sick-r", "trial") else wanted
    else:
        splits = ["test"]
        wanted = "test" if wanted == "all" else wanted
    if wanted not in splits:
        raise ValueError(f"{found} has no split {split!r}; it has {', '.join(splits)}.")
    return found, wanted


def _parts(name: str, split: str) -> list[str]:
    return [split] if name in FILES and split != "all" else list(COUNTS[name])


def source_of(name: str, split: str = "all") -> Source:
    """Say where the files of a split may lie."""
    return Source(
        f"{name} ({split})",
        tuple(file for part in _parts(name, split) for file in files_of(name, part)),
        (ARCHIVE,),
        "downstream/STS and downstream/SICK in it (SentEval's layout)",
        inside=("downstream", "senteval/downstream", ""),
        kept="senteval",
        unpack=unpack_sts,
    )


def _load_own(name: str) -> SentencePairs:
    """Read a set that comes with the package; its halves are its subsets."""
    rows: list[tuple[Any, ...]] = []
    titles = ["sentence1", "sentence2", "gold", "style"]
    for half in OWN_SETS[name]:
        path = data_file(_HALVES[half])
        tries = half == "mini-sts"  # only there does a pair try something
        first, second, scores, styles, *tried = read_table(path, titles + ["kind"] * tries)
        n = len(first)
        kinds = tried[0] if tries else ["plain"] * n
        gold = read_scores(scores, path, 2)
        rows += zip(first, second, gold, [half] * n, kinds, styles, strict=True)
    pairs: Any = functools.partial(SentencePairs, name, "test", source="the package")
    return pairs(*zip(*rows, strict=True))
