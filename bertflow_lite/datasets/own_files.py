"""Sentences and rated pairs out of people's own files: text, TSV, CSV, JSONL and Parquet.

`text_tables` reads the formats; here columns are found, and cells become sentences and ratings.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertflow_lite.datasets.pairs import SentencePairs

__all__ = [
    "FORMATS",
    "SentenceFile",
    "kind_of",
    "read_lines",
    "read_pairs",
    "read_sentences",
    "read_table",
]

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


FORMATS = (".txt", ".tsv", ".csv", ".jsonl", ".parquet")
"""Endings that are understood."""


def kind_of(path: Path) -> str:
    """Give the ending of a file that can be read, in small letters; else say what is wrong."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path.name!r} at the place you named.")
    if path.is_dir():
        raise ValueError(f"{path.name!r} is a folder; name a file.")
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise ValueError(
            f"{path.name}: the ending {path.suffix or '(none)'!r} is not one of "
            f"{', '.join(FORMATS)}. An Excel sheet can be saved as CSV (UTF-8)."
        )
    return kind


def _text(path: Path) -> str:
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{path.name} is UTF-16 (Excel's 'Unicode text'). Save it as UTF-8.")
    if data.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"\x1f\x8b")):
        raise ValueError(
            f"{path.name} is a workbook or an archive, whatever its ending says. Save the sheet as "
            "CSV (UTF-8), or unpack the archive."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        guess = data[error.start : error.start + 1].decode("windows-1252", errors="replace")
        raise ValueError(
            f"{path.name}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8 (in "
            f"Windows-1252 it would be {guess!r}). Save the file as UTF-8, for example by "
            f"iconv -f WINDOWS-1252 -t UTF-8."
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{path.name}, line {line} holds a NUL character: is this a text file?")
    return text


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file in UTF-8, without their ends."""
    # Not splitlines(): it would also split at U+2028 and at control characters inside a sentence.
    text = _text(path).replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def read_table(
    path: Path, kind: str, *, header: bool = True
) -> tuple[list[str], list[dict[str, Any]], list[int]]:
    """Give the column names, the rows and the number of each row.

    A blank record is a row whose cells are all empty or, in JSON lines, missing: whoever counts
    rows finds them where they stand in the file.
    """
    if kind == ".parquet":
        return _parquet(path)
    if kind == ".jsonl":
        return _jsonl(path)
    if kind == ".tsv":  # quoting off: a lone quotation mark is a character like any other
        cells = [line.split("\t") for line in read_lines(path)]
        numbers = list(range(1, len(cells) + 1))
    else:
        reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
        cells, numbers = [], []
        try:
            for row in reader:
                cells.append(row)
                numbers.append(reader.line_num)
        except csv.Error as error:
            raise ValueError(
                f"{path.name}, line {reader.line_num}: {error}. Quotation marks in a CSV must be "
                "paired and doubled inside a cell; or save it as TSV, where they mean nothing."
            ) from None
    filled = [any(cell.strip() for cell in row) for row in cells]
    if not any(filled):
        raise ValueError(f"{path.name} is empty: it has no header and no row.")
    start = filled.index(True)
    first, width = cells[start], len(cells[start])
    if kind == ".csv" and width == 1 and set(first[0]) & {";", "\t"}:
        raise ValueError(
            f"{path.name} has no comma in its first line, {first[0]!r}: it looks separated "
            "by semicolons or tabs, as some versions of Excel write it. Put commas, or save it as "
            ".tsv with tabs."
        )
    if kind == ".tsv":
        _refuse_quoting(path, cells, numbers, start)
    rows = []
    for row, n, some in zip(cells, numbers, filled, strict=True):
        if some and len(row) != width:
            raise ValueError(
                f"{path.name}, line {n} has {len(row)} columns; the first line has {width}."
            )
        rows.append(row if some else [""] * width)
    rows, numbers = rows[start:], numbers[start:]
    if header:
        head = [name.strip() for name in first]
        rows, numbers = rows[1:], numbers[1:]
        twice = [name for name in head if head.count(name) > 1]
        if twice:
            raise ValueError(f"{path.name} has two columns called {twice[0]!r}; rename one.")
    else:
        head = [f"column {k}" for k in range(1, width + 1)]
    return head, [dict(zip(head, row, strict=True)) for row in rows], numbers


def _refuse_quoting(path: Path, cells: list[list[str]], numbers: list[int], start: int) -> None:
    """Refuse a TSV that was written with a CSV's quoting: it is read without."""
    width = len(cells[start])
    # A header of quoted names: every cell of the file is quoted.
    shown = cells[start][0] if all(map(_is_enclosed, cells[start])) else None
    line = numbers[start]
    for row, n in zip(cells, numbers, strict=True):
        for cell in row if shown is None else ():
            inside = cell[1:-1]
            doubled = '""' in inside and '"' not in inside.replace('""', "")
            # A cell that was cut at a tab or a line end in it opens, or closes, a quotation.
            cut = len(row) != width and cell.count('"') % 2 and '"' in (cell[:1], cell[-1:])
            if (_is_enclosed(cell) and doubled) or cut:
                shown, line = cell, n
    if shown is not None:
        raise ValueError(
            f"{path.name}, line {line}: {_short(shown)} is quoted as in a CSV, but in a TSV a "
            "quotation mark is a character like any other. Write the file without quoting and "
            "without tabs or line ends in a sentence, or with commas as .csv, where quoting is "
            "understood (pandas: frame.to_csv('name.csv', index=False))."
        )


def _is_enclosed(cell: str) -> bool:
    return len(cell) > 2 and cell[0] == cell[-1] == '"'


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _jsonl(path: Path) -> tuple[list[str], list[dict[str, Any]], list[int]]:
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            rows.append({})
            numbers.append(number)
            continue
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path.name}, line {number} is not JSON: {error}") from None
        if "\\ud" in line.lower() and _has_surrogate(value):
            raise ValueError(
                f"{path.name}, line {number} holds half of a character (a lone surrogate such as "
                "\\ud83d): it was cut in the middle of an emoji. Write the line anew."
            )
        if isinstance(value, str):
            value = {"sentence": value}
        if not isinstance(value, dict):
            raise ValueError(
                f"{path.name}, line {number} is neither an object such as "
                '{"sentence": "..."} nor a string.'
            )
        rows.append(value)
        numbers.append(number)
    head = list(dict.fromkeys(key for row in rows for key in row))
    if not head:
        raise ValueError(f"{path.name} holds no sentence: every line is empty.")
    return head, rows, numbers


def _has_surrogate(value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _parquet(path: Path) -> tuple[list[str], list[dict[str, Any]], list[int]]:
    import pyarrow.lib
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pyarrow.lib.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path.name} cannot be read as Parquet: {reason}") from None
    rows: list[dict[str, Any]] = table.to_pylist()
    return list(table.column_names), rows, list(range(1, len(rows) + 1))
