"""List the data sets and where each was found."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bertflow_lite.datasets.reading import read_lines
from bertflow_lite.datasets.sts import COUNTS, FILES, _find, _load_mini_sts, files_of
from bertflow_lite.files import tidy_path

__all__ = ["DatasetInfo", "list_datasets"]


@dataclass(frozen=True)
class DatasetInfo:
    """One row of `list_datasets`.

    Attributes
    ----------
    name : str
        The set.
    pairs : int
        Its size, all splits together.
    splits : tuple of str
        The splits it has.
    found : bool
        Whether it is on this machine.
    where : str
        The place, or how to get it.
    """

    name: str
    pairs: int
    splits: tuple[str, ...]
    found: bool
    where: str


def list_datasets(data_dir: str | os.PathLike[str] | None = None) -> list[DatasetInfo]:
    """Say for each set where it was found, or how to get it. Opens no connection.

    The sets of `DATASETS` come first, then those of other kinds: QNLI, the NLI corpora, the two
    sets of word pairs, the Lee documents.

    Parameters
    ----------
    data_dir : path, optional
        Where to look besides the folder named by ``BERTFLOW_DATA`` and the cache.

    Returns
    -------
    list of DatasetInfo

    Examples
    --------
    >>> first = list_datasets()[0]
    >>> first.name, first.pairs, first.found
    ('mini-sts', 420, True)
    """
    mini = _load_mini_sts()
    rows = [DatasetInfo("mini-sts", len(mini), ("test",), True, mini.source)]
    for name, counts in COUNTS.items():
        files = [file for part in counts for file in files_of(name, part)]
        place, folder, _ = _find(files, data_dir)
        how = "set BERTFLOW_DATA to SentEval's folder, or load with download=True (--download)"
        where = how if folder is None else f"{place} ({tidy_path(folder)})"
        splits = tuple(counts) if name in FILES else ("test",)
        rows.append(DatasetInfo(name, sum(counts.values()), splits, folder is not None, where))
    return rows + _other_datasets(data_dir)


def _other_datasets(data_dir: str | os.PathLike[str] | None) -> list[DatasetInfo]:
    """Rows for the sets that `load_sts` does not load."""
    from bertflow_lite.datasets.gensim_sets import N_DOCUMENTS, WORD_SETS, gensim_file
    from bertflow_lite.datasets.nli import HUB_PARTS, PAIRS_FILE, find_nli
    from bertflow_lite.datasets.qnli import QNLI_COUNTS, find_qnli

    def missing(file: str) -> str:
        return f"set BERTFLOW_DATA to a folder with {file}, or load with download=True (--download)"

    rows = []
    for split in QNLI_COUNTS:
        place, path, _ = find_qnli(split, data_dir)
        # The training set is of use, but no table of the paper needs it: listed where it is.
        if path is not None or split == "dev":
            where = f"{place} ({tidy_path(path)})" if path else missing("qnli/dev.tsv")
            found = path is not None
            rows.append(DatasetInfo("qnli", QNLI_COUNTS[split], (split,), found, where))
    place, home, _ = find_nli(PAIRS_FILE, tuple(HUB_PARTS), data_dir)
    n_pairs = sum(part.pairs for part in HUB_PARTS.values())
    where = place or missing(PAIRS_FILE)
    if isinstance(home, Path):
        n_pairs = len(read_lines(home)) - 1  # without the header
        where = f"{place} ({tidy_path(home)}), a sample"
    rows.append(DatasetInfo("nli", n_pairs, ("all",), bool(place), where))
    lee_pairs = N_DOCUMENTS * (N_DOCUMENTS - 1) // 2
    packaged = WORD_SETS | {"lee": ("lee.cor", lee_pairs)}
    for name, (file, n_pairs) in packaged.items():
        try:
            gensim_file(file)
            rows.append(DatasetInfo(name, n_pairs, ("test",), True, "package gensim"))
        except FileNotFoundError:
            how = "pip install --no-deps gensim"
            rows.append(DatasetInfo(name, n_pairs, ("test",), False, how))
    return rows
