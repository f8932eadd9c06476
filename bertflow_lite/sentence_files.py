"""Sentences and rated pairs out of people's own files: text, TSV, CSV, JSONL and Parquet.

`text_tables` reads the formats; here columns are found, and cells become sentences and ratings.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertflow_lite.pairs import SentencePairs
from bertflow_lite.text_tables import FORMATS, kind_of, read_lines, read_table

__all__ = ["SentenceFile", "read_pairs", "read_sentences"]

_log = logging.getLogger(__name__)

# Names that a column of sentences, or the columns of a rated pair, go by.
_TEXT_NAMES = ("sentence", "text", "sentences", "texts", "content")
_FIRST_NAMES = ("sentence1", "sentence_1", "s1", "sentence_a", "text1", "text_a", "premise")
_SECOND_NAMES = ("sentence2", "sentence_2", "s2", "sentence_b", "text2", "text_b", "hypothesis")
_GOLD_NAMES = ("gold", "score", "similarity", "label", "rating", "relatedness_score")


@dataclass(frozen=True)
class SentenceFile:
    """Sentences of a file, in its order.

    Attributes
    ----------
    sentences : tuple of str
        The sentences.
    lines : tuple of int
        Line or row of each sentence, counted from 1, header included.
    skipped : int
        Number of empty entries that were left out.
    """

    sentences: tuple[str, ...]
    lines: tuple[int, ...]
    skipped: int

    def __len__(self) -> int:
        return len(self.sentences)


def read_sentences(
    path: str | os.PathLike[str], *, column: str | None = None, keep_empty: bool = False
) -> SentenceFile:
    r"""Read one sentence from each line or row of a file.

    Parameters
    ----------
    path : str or path
        ``.txt``: a sentence on each line.  ``.tsv``, ``.csv``, ``.parquet``: a column.  ``.jsonl``:
        an object or a string on each line.  TSV and CSV begin with a header.  Quotation marks
        enclose a cell in a CSV; in a TSV they are characters like any other, and a TSV with quoted
        cells is refused.
    column : str, optional
        Name of the column; default: one called "sentence" or "text" (Parquet and JSON lines: or
        the only one there is).
    keep_empty : bool, default False
        Keep empty lines, records and cells as empty sentences, so that row i of a result is line i
        of the file (of a table: its i-th record after the header).

    Returns
    -------
    SentenceFile

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the ending is unknown, the text is not UTF-8, the column is missing or ambiguous, or
        there is no sentence; the message says where and what to do.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "mine.txt")
    >>> _ = file.write_text("A cat sat.\n\nIt rained.\n", encoding="utf-8")
    >>> found = read_sentences(file)
    >>> found.sentences, found.lines, found.skipped
    (('A cat sat.', 'It rained.'), (1, 3), 1)
    """
    path = Path(path)
    kind = kind_of(path)
    entries: list[tuple[int, Any]]
    if kind == ".txt":
        if column is not None:
            raise ValueError(f"{path.name} is plain text and has no column {column!r}.")
        entries = list(enumerate(read_lines(path), start=1))
    else:
        head, rows, numbers = read_table(path, kind)
        name = _column(path, kind, head, column)
        entries = [(number, row.get(name)) for number, row in zip(numbers, rows, strict=True)]
    sentences, lines, skipped = [], [], 0
    for number, value in entries:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            value = ""  # a missing value of a table
        if not isinstance(value, str):
            raise ValueError(
                f"{path.name}, row {number}: {value!r} is "
                f"{'a number' if isinstance(value, int | float) else 'no text'}, not a sentence. "
                "Name the column that holds the sentences."
            )
        if not value.strip() and not keep_empty:
            skipped += 1
            continue
        sentences.append(value.strip())
        lines.append(number)
    if not any(sentences):
        raise ValueError(f"{path.name} holds no sentence.")
    if skipped:
        _log.warning("%s: %d empty lines or cells were left out", path.name, skipped)
    return SentenceFile(tuple(sentences), tuple(lines), skipped)


def read_pairs(
    path: str | os.PathLike[str], *, columns: Sequence[str] | None = None
) -> SentencePairs:
    r"""Read rated sentence pairs.

    Parameters
    ----------
    path : str or path
        ``.tsv``, ``.csv``, ``.jsonl`` or ``.parquet``.  A TSV or CSV without a header must have
        three columns: the two sentences and the rating, in any order.  Quotation marks are taken
        as in `read_sentences`.
    columns : sequence of three str, optional
        Names of the two sentence columns and of the rating; default: usual names such as
        ``sentence1``, ``sentence2``, ``score``, where there is one for each.

    Returns
    -------
    SentencePairs
        Pairs without a rating are left out, and their number is logged; blank lines are no pairs.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a column is missing or several would do, a sentence is missing, a rating is no number,
        or no rated pair is left.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "mine.tsv")
    >>> line = "A cat sat.\tA cat was sitting.\t4.5\n"
    >>> _ = file.write_text("sentence1\tsentence2\tscore\n" + line, encoding="utf-8")
    >>> read_pairs(file)
    SentencePairs('mine', split='all': 1 pairs, 1 subset, gold 4.5 to 4.5)
    """
    path = Path(path)
    kind = kind_of(path)
    if kind == ".txt":
        raise ValueError(f"{path.name}: rated pairs come in {', '.join(FORMATS[1:])}.")
    head, rows, numbers = read_table(path, kind)
    wanted = _pair_columns(path, head, rows, columns)
    if wanted is None:  # no header: its first row is data
        head, rows, numbers = read_table(path, kind, header=False)
        wanted = _guess_pair_columns(path, head, rows)
    first, second, gold, missing = [], [], [], 0
    for number, row in zip(numbers, rows, strict=True):
        one, two, rating = (row.get(name) for name in wanted)
        if all(cell is None or cell == "" for cell in row.values()):
            continue  # a blank line
        if rating is None or rating == "" or (isinstance(rating, float) and math.isnan(rating)):
            missing += 1
            continue
        first.append(_sentence(path, number, "first", one))
        second.append(_sentence(path, number, "second", two))
        gold.append(_rating(path, number, rating))
    if missing:
        _log.warning("%s: %d pairs have no rating and were left out", path.name, missing)
    if not gold:
        raise ValueError(f"{path.name} holds no rated pair.")
    name = path.stem
    return SentencePairs(
        name,
        "all",
        tuple(first),
        tuple(second),
        np.array(gold, dtype=np.float64),
        np.full(len(gold), name),
        source=f"file {path.name}",
    )


def _sentence(path: Path, number: int, which: str, cell: Any) -> str:
    """Give a sentence of a pair.  Half a pair would be scored against the vector of nothing."""
    if isinstance(cell, str) and cell.strip():
        return cell.strip()
    met = "empty" if cell is None or isinstance(cell, str) else f"{cell!r}, no text"
    raise ValueError(
        f"{path.name}, row {number}: a sentence is missing (the {which} is {met}). Fill it in, or "
        "delete the row."
    )


def _column(path: Path, kind: str, head: list[str], column: str | None) -> str:
    if column is not None:
        if column not in head:
            raise ValueError(f"{path.name} has no column {column!r}; it has {', '.join(head)}.")
        return column
    named = [name for name in head if name.lower() in _TEXT_NAMES]
    if len(named) == 1:
        return named[0]
    if len(head) == 1 and kind in (".parquet", ".jsonl"):  # whose columns always have names
        return head[0]
    if len(head) == 1:
        raise ValueError(
            f"{path.name} has one column, and its first line, {head[0]!r}, is no usual name of "
            "one. If it is the header, call it 'sentence' or name it (column=..., on the command "
            "line --column); if it is a sentence, write the line 'sentence' above it, or save the "
            "file as .txt."
        )
    raise ValueError(
        f"{path.name} has the columns {', '.join(head)}: say which one holds the sentences "
        "(column=..., on the command line --column)."
    )


def _pair_columns(
    path: Path, head: list[str], rows: list[dict[str, Any]], columns: Sequence[str] | None
) -> list[str] | None:
    """Give the three columns, or None where the first row is no header."""
    if columns is not None:
        if len(columns) != 3:
            raise ValueError(
                f"columns has {len(columns)} names; give two sentences and the rating."
            )
        for name in columns:
            if name not in head:
                raise ValueError(f"{path.name} has no column {name!r}; it has {', '.join(head)}.")
        return list(columns)
    found = []
    for names in (_FIRST_NAMES, _SECOND_NAMES, _GOLD_NAMES):
        there = [name for name in head if name.lower() in names]
        if len(there) > 1:
            raise ValueError(
                f"{path.name} has the columns {', '.join(head)}: {' and '.join(there)} would both "
                "do. Say which three to take: the two sentences and the rating (columns=..., on "
                "the command line --columns)."
            )
        found.append(there[0] if there else None)
    if all(found):
        return [str(name) for name in found]
    if len(head) == 3 and not any(found) and any(_is_number(name) for name in head):
        return None
    lacking = [
        what
        for what, name in zip(("first sentence", "second sentence", "rating"), found, strict=True)
        if name is None
    ]
    raise ValueError(
        f"{path.name} has the columns {', '.join(head)}; none was found for the "
        f"{' and the '.join(lacking)}. Call them sentence1, sentence2 and score, or name them "
        "(columns=..., on the command line --columns)."
    )


def _guess_pair_columns(path: Path, head: list[str], rows: list[dict[str, Any]]) -> list[str]:
    numeric = [name for name in head if _is_number(rows[0][name])]
    if len(numeric) != 1:
        raise ValueError(f"{path.name}: which of the three columns is the rating? Add a header.")
    return [name for name in head if name != numeric[0]] + numeric


def _is_number(cell: Any) -> bool:
    try:
        return math.isfinite(float(cell)) and "_" not in str(cell)  # Python would read 1_0 as 10
    except (TypeError, ValueError):
        return False


def _rating(path: Path, number: int, cell: Any) -> float:
    if _is_number(cell):
        return float(cell)
    hint = ""
    if isinstance(cell, str) and _is_number(cell.replace(",", ".")):
        hint = " A decimal comma? Write a point."
    raise ValueError(f"{path.name}, row {number}: the rating {cell!r} is not a number.{hint}")
