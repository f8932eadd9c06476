"""List the data sets and where each was found."""

from __future__ import annotations

from dataclasses import dataclass

from bertflow_lite.datasets import nli, sts
from bertflow_lite.datasets.gensim_sets import N_DOCUMENTS, WORD_SETS, gensim_file
from bertflow_lite.datasets.source import read_lines
from bertflow_lite.files import tidy_path

__all__ = ["list_datasets"]


@dataclass(frozen=True)
class DatasetInfo:
    """One row of `list_datasets`."""

    name: str
    pairs: int  # all splits together
    splits: tuple[str, ...]
    found: bool
    where: str  # the place, or how to get it


def list_datasets() -> list[DatasetInfo]:
    """Say for each set where it was found, or how to get it. Opens no connection.

    The sets of `DATASETS` come first, then those of other kinds: QNLI, the NLI corpora, the two
    sets of word pairs, the Lee documents.

    Returns
    -------
    list of DatasetInfo
        Each has ``name``, ``pairs`` (of all splits together), ``splits``, ``found``, and
        ``where``: the place, or how to get it.

    Examples
    --------
    >>> first = list_datasets()[0]
    >>> first.name, first.pairs, first.found
    ('mini-sts', 420, True)
    """
    own = [sts.load_sts(name) for name in sts.OWN_SETS]
    rows = [DatasetInfo(one.name, len(one), ("test",), True, one.source) for one in own]
    for name, counts in sts.COUNTS.items():
        source = sts.source_of(name)
        place, paths, _ = source.find()
        where = "set BERTFLOW_DATA to SentEval's folder, or load with download=True (--download)"
        if paths:
            folder = paths[0].parents[source.files[0].count("/")]  # the one that has STS and SICK
            where = f"{place} ({tidy_path(folder)})"
        splits = tuple(counts) if name in sts.FILES else ("test",)
        rows.append(DatasetInfo(name, sum(counts.values()), splits, bool(paths), where))
    return rows + _other_datasets()


def _other_datasets() -> list[DatasetInfo]:
    """Rows for the sets that `load_sts` does not load."""

    def missing(file: str) -> str:
        return f"set BERTFLOW_DATA to a folder with {file}, or load with download=True (--download)"

    rows = []
    for split, home in nli.QNLI_FILES.items():
        place, paths, _ = nli.qnli_source(split).find()
        # The training set is of use, but no table of the paper needs it: listed where it is.
        if paths or split == "dev":
            where = f"{place} ({tidy_path(paths[0])})" if paths else missing("qnli/dev.tsv")
            rows.append(DatasetInfo("qnli", home.pairs, (split,), bool(paths), where))
    place, paths, _ = nli.source_of(nli.PAIRS_FILE).find()
    n_pairs = sum(part.pairs for part in nli.HUB_PARTS.values())
    where = place or missing(nli.PAIRS_FILE)
    if len(paths) == 1:
        n_pairs = len(read_lines(paths[0])) - 1  # without the header
        where = f"{place} ({tidy_path(paths[0])}), a sample"
    rows.append(DatasetInfo("nli", n_pairs, ("all",), bool(place), where))
    lee_pairs = N_DOCUMENTS * (N_DOCUMENTS - 1) // 2
    for name, (file, n_pairs) in (WORD_SETS | {"lee": ("lee.cor", lee_pairs)}).items():
        where = "package gensim"
        try:
            gensim_file(file)
        except FileNotFoundError:
            where = "pip install --no-deps gensim"
        rows.append(DatasetInfo(name, n_pairs, ("test",), where == "package gensim", where))
    return rows
