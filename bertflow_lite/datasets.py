"""Find, check and load the sentence pairs: STS-B, SICK-R, STS12 to STS16, and mini-sts.

The real sets are the benchmarks of the paper's Tables 2 and 3 (section 4.1), read in the layout
that SentEval made common. ``mini-sts`` is this project's own: it comes with the package and is
for running things live, not for comparing models.

Sets of other kinds have modules of their own (`qnli`, `nli_data`, `word_similarity`, `lee`);
`list_datasets` lists them all.
"""

from __future__ import annotations

import difflib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertflow_lite.download import Verify, download_sts, sts_url
from bertflow_lite.pairs import SentencePairs
from bertflow_lite.paths import cache_dir, data_file, tidy_path
from bertflow_lite.places import check_data_dir, find_files
from bertflow_lite.senteval import (
    COUNTS,
    FILES,
    check_count,
    files_of,
    read_lines,
    read_part,
    read_scores,
    read_table,
)
from bertflow_lite.text_tables import FORMATS

__all__ = ["DATASETS", "DatasetInfo", "SentencePairs", "list_datasets", "load_sts"]

_log = logging.getLogger(__name__)

DATASETS: tuple[str, ...] = ("mini-sts", *COUNTS)
"""The names that `load_sts` knows."""


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


def load_sts(
    name: str,
    split: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    progress: bool = True,
    check_counts: bool = True,
    verify: Verify | None = None,
) -> SentencePairs:
    """Load a set of sentence pairs.

    A real set is looked for in `data_dir` (or else the folder named by ``BERTFLOW_DATA``), then
    in the cache. Only with ``download=True`` is it then fetched from its public home.

    Parameters
    ----------
    name : str
        ``"mini-sts"``, ``"stsb"``, ``"sick-r"`` or ``"sts12"`` to ``"sts16"``, in any case;
        ``"STS-B"`` and ``"SICKR"`` are understood.
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
    verify : {"sha256", "counts"}, optional
        How strictly a download is checked; see `bertflow_lite.download.download_sts`.

    Returns
    -------
    SentencePairs
        The pairs that have a gold score, in the order of the files.

    Raises
    ------
    ValueError
        If the name or split is unknown (a file of your own is read by
        `sentence_files.read_pairs`), or a file is not as it should be.
    FileNotFoundError
        If the set is not found; the message says what would help.

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
    if name == "mini-sts":
        return _load_mini_sts()
    check_data_dir(data_dir)
    parts = _parts(name, split)
    files = [file for part in parts for file in files_of(name, part)]
    place, folder, reasons = _find(files, data_dir)
    if folder is None and download:
        place, folder = "the cache", download_sts(files, verify=verify, progress=progress)
    if folder is None:
        raise FileNotFoundError(
            f"{name} ({split}) was not found: {'; '.join(reasons)}. One of these will help: set "
            "BERTFLOW_DATA (or data_dir) to a folder in SentEval's layout, with downstream/STS and "
            f"downstream/SICK in it; copy that folder to {tidy_path(cache_dir() / 'senteval')}; or "
            f"call load_sts({name!r}, download=True) (on the command line: --download), which "
            f"fetches it from {sts_url()}."
        )
    sentences1: list[str] = []
    sentences2: list[str] = []
    gold: list[float] = []
    subsets: list[str] = []
    for part in parts:
        first, second, scores = read_part(folder, name, part)
        if check_counts:
            check_count(name, part, len(scores))
        sentences1 += first
        sentences2 += second
        gold += scores
        # The splits of one set are no subsets: STS-B and SICK-R are scored as a whole.
        subsets += [name if name in FILES else part] * len(scores)
    _log.info("%s (%s): %d pairs from %s", name, split, len(gold), place)
    return SentencePairs(
        name,
        split,
        tuple(sentences1),
        tuple(sentences2),
        np.array(gold, dtype=np.float64),
        np.array(subsets, dtype=np.str_),
        source=place,
    )


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
    from bertflow_lite.lee import N_DOCUMENTS
    from bertflow_lite.nli.data import HUB_PARTS, PAIRS_FILE, find_nli
    from bertflow_lite.qnli import QNLI_COUNTS, find_qnli
    from bertflow_lite.word_similarity import WORD_SETS, gensim_file

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
        close = difflib.get_close_matches(squash(name), known, n=3)
        offer = [known[one] for one in close] or DATASETS
        raise ValueError(f"There is no data set {name!r}. Did you mean {' or '.join(offer)}?")
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


def _find(
    files: list[str], data_dir: str | os.PathLike[str] | None
) -> tuple[str, Path | None, list[str]]:
    """Return the first place that has all `files`, its folder, and why earlier ones failed."""
    inside = ("downstream", "senteval/downstream", "")
    return find_files(files, data_dir, inside=inside, then={"the cache": cache_dir() / "senteval"})


def _load_mini_sts() -> SentencePairs:
    path = data_file("mini_sts.tsv")
    titles = ("sentence1", "sentence2", "gold", "kind", "style")
    first, second, gold, kinds, styles = read_table(path, titles)
    return SentencePairs(
        "mini-sts",
        "test",
        tuple(first),
        tuple(second),
        np.array(read_scores(gold, path, 2), dtype=np.float64),
        np.full(len(gold), "mini-sts"),
        np.array(kinds, dtype=np.str_),
        np.array(styles, dtype=np.str_),
        source="the package",
    )
