"""Sentences and rated pairs out of people's own files: text, TSV, CSV, JSON lines and Parquet.

pandas reads the tables. What is here finds the columns, looks at every cell, and says in words that
help what is wrong with a file: people bring what spreadsheets write.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertflow_lite.datasets.pairs import SentencePairs

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FORMATS", "SentenceFile", "read_pairs", "read_sentences"]

FORMATS = (".txt", ".tsv", ".csv", ".jsonl", ".parquet")
"""Endings that are understood."""
_log = logging.getLogger(__name__)
# Names that a column of sentences, or the columns of a rated pair, go by.
_TEXT = {"sentences": "sentence text sentences texts content"}
_PAIR = {
    "first sentence": "sentence1 sentence_1 s1 sentence_a text1 text_a premise query question",
    "second sentence": "sentence2 sentence_2 s2 sentence_b text2 text_b hypothesis sentence answer",
    "rating": "gold score similarity label rating relatedness_score relevance",
}
# How workbooks, zip, gzip, bzip2, xz, 7z and zstd archives, and PDFs begin.
_NO_TEXT = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf",
            b"\x28\xb5\x2f\xfd", b"%PDF")  # fmt: skip
# What text that is not UTF-8 mostly is: of western or eastern Europe, China, Taiwan, Japan, Korea.
_ENCODINGS = ("Windows-1252", "Windows-1251", "GB18030", "Big5", "Shift_JIS", "EUC-KR")
_MARK = "\ufeff"  # a byte-order mark: inside a text it is what is left where files were joined
_LINE_END = r"\r\n|\n|\r"
# In a TSV: a header of quoted names, or a cell that doubles the quotation marks in it.
_QUOTED = re.compile(
    r'\A"[^"\t\n]+"(\t"[^"\t\n]+")*$|(?:^|(?<=\t))"[^"\t\n]*""(?:[^"\t\n]|"")*"(?=\t|$)',
    re.MULTILINE,
)
_CSV = (
    "Quotation marks in a CSV enclose a cell with commas in it, are paired, and are doubled inside "
    "a cell; or save it as TSV, where they mean nothing."
)
_PLAIN_TSV = (
    "In a TSV a quotation mark is a character like any other: where it is quoted as in a CSV, "
    "write it without quoting and without tabs or line ends in a sentence, or with commas as .csv "
    "(pandas: frame.to_csv('name.csv', index=False))."
)


@dataclass(frozen=True)
class SentenceFile:
    """Sentences of a file, in its order.

    Attributes
    ----------
    sentences : tuple of str
        The sentences.
    lines : tuple of int
        Line of each sentence in a text file, row in a table: counted from 1, header included.
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
        enclose a cell in a CSV; in a TSV they are characters like any other.
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
    FileNotFoundError, ValueError
        The message says where and what to do.

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
    if (kind := _kind(path)) == ".txt":
        if column is not None:
            raise ValueError(f"{path.name} is plain text and has no column {column!r}.")
        entries: list[tuple[int, Any]] = list(enumerate(_lines(path), start=1))
    else:
        table = _table(path, kind)
        head = table.columns.tolist()
        if column is None and len(head) == 1 and kind in (".parquet", ".jsonl"):
            column = head[0]  # the name is no sentence: these formats always have one
        (name,) = _columns(path, head, _TEXT, None if column is None else [column])
        entries = list(zip(table.index.tolist(), table[name].tolist(), strict=True))
    sentences, lines, skipped = [], [], 0
    for number, cell in entries:
        if not (isinstance(cell, str) or cell is None):
            met = "a number" if isinstance(cell, int | float) else "no text"
            raise ValueError(
                f"{path.name}, row {number}: {cell!r} is {met}, not a sentence. Name the column "
                "that holds the sentences."
            )
        if not (text := _clean(cell)) and not keep_empty:
            skipped += 1
            continue
        sentences.append(text)
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
    if (kind := _kind(path)) == ".txt":
        raise ValueError(f"{path.name}: rated pairs come in {', '.join(FORMATS[1:])}.")
    table = _table(path, kind)
    head = table.columns.tolist()
    rows = list(zip(table.index.tolist(), table.to_numpy().tolist(), strict=True))
    names = {name.lower() for name in head}
    nothing_named = not names.intersection(" ".join(_PAIR.values()).split())
    numeric = [name for name in head if _is_number(name)]
    if columns is None and len(head) == 3 and numeric and nothing_named:
        if len(numeric) > 1:
            raise ValueError(
                f"{path.name}: which of the three columns is the rating? Add a header."
            )
        columns = [name for name in head if name != numeric[0]] + numeric
        rows.insert(0, (rows[0][0] - 1 if rows else 1, head))  # no header: it is data
    positions = [head.index(name) for name in _columns(path, head, _PAIR, columns)]
    pairs, gold, missing = [], [], 0
    for number, row in rows:
        if not any(cell is not None and cell != "" for cell in row):
            continue  # a blank line
        *two, rating = (row[position] for position in positions)
        if rating is None or rating == "":
            missing += 1
            continue
        pairs.append(
            (_sentence(path, number, "first", two[0]), _sentence(path, number, "second", two[1]))
        )
        gold.append(_rating(path, number, rating))
    if missing:
        _log.warning("%s: %d pairs have no rating and were left out", path.name, missing)
    if not gold:
        raise ValueError(f"{path.name} holds no rated pair.")
    first, second = zip(*pairs, strict=True)
    subsets = np.full(len(gold), path.stem)
    source = f"file {path.name}"
    return SentencePairs(path.stem, "all", first, second, np.array(gold), subsets, source=source)


def _clean(cell: str | None) -> str:
    return (cell or "").replace(_MARK, "").strip()


def _sentence(path: Path, number: int, which: str, cell: Any) -> str:
    """Give a sentence of a pair.  Half a pair would be scored against the vector of nothing."""
    if isinstance(cell, str) and (text := _clean(cell)):
        return text
    met = "empty" if isinstance(cell, str) or cell is None else f"{cell!r}, no text"
    raise ValueError(
        f"{path.name}, row {number}: a sentence is missing (the {which} is {met}). Fill it in, or "
        "delete the row."
    )


def _is_number(cell: Any) -> bool:
    try:
        return math.isfinite(float(cell)) and "_" not in str(cell)  # Python would read 1_0 as 10
    except (TypeError, ValueError):
        return False


def _rating(path: Path, number: int, cell: Any) -> float:
    if _is_number(cell):
        return float(cell)
    comma = isinstance(cell, str) and _is_number(cell.replace(",", "."))
    hint = " A decimal comma? Write a point." if comma else ""
    raise ValueError(f"{path.name}, row {number}: the rating {cell!r} is not a number.{hint}")


def _columns(
    path: Path, head: list[str], wanted: dict[str, str], named: Sequence[str] | None
) -> list[str]:
    """Give the columns that are named, or that go by a usual name."""
    option = "column" if len(wanted) == 1 else "columns"
    if named is not None and len(named) != len(wanted):
        raise ValueError(f"columns has {len(named)} names; give two sentences and the rating.")
    for name in named or ():
        if name not in head:
            raise ValueError(f"{path.name} has no column {name!r}; it has {', '.join(head)}.")
    if named is not None:
        return list(named)
    found = []
    usual = " and ".join(names.split()[0] for names in wanted.values())
    for what, names in wanted.items():
        there = [name for name in head if name.lower() in names.split()]
        if len(there) != 1:
            met = f"{' and '.join(there)} would both do" if there else "none was found"
            hint = " If the first line is a sentence, write 'sentence' above it, or save as .txt."
            raise ValueError(
                f"{path.name} has the columns {', '.join(map(repr, head))}: {met} for the {what}. "
                f"Call them {usual}, or name them ({option}=..., on the command line --{option})."
                + (hint if len(head) == 1 else "")
            )
        found += there
    return found


def _kind(path: Path) -> str:
    """Give the ending of a file that can be read, in small letters; else say what is wrong."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path.name!r} at the place you named.")
    if path.is_dir():
        raise ValueError(f"{path.name!r} is a folder; name a file.")
    if (kind := path.suffix.lower()) not in FORMATS:
        raise ValueError(
            f"{path.name}: the ending {path.suffix or '(none)'!r} is not one of "
            f"{', '.join(FORMATS)}. An Excel sheet can be saved as CSV (UTF-8)."
        )
    return kind


def _text(path: Path) -> str:
    """Read a text file in UTF-8, or say what it is instead."""
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{path.name} is UTF-16 (Excel's 'Unicode text'). Save it as UTF-8.")
    if data.startswith(_NO_TEXT):
        raise ValueError(
            f"{path.name} is a workbook, an archive or a PDF, whatever its ending says. Save the "
            "sheet as CSV (UTF-8), or unpack the archive."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        line = data.split(b"\n")[number - 1][:200]
        readings = []
        for encoding in _ENCODINGS:
            with suppress(UnicodeDecodeError):
                readings.append(f"{line.decode(encoding)[:60]!r} in {encoding}")
        raise ValueError(
            f"{path.name}, line {number}: byte 0x{data[error.start]:02x} is not UTF-8. The line "
            f"would read {', '.join(readings)}. Save the file as UTF-8, for example by iconv -f "
            "ENCODING -t UTF-8 with the one that reads right."
        ) from None
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{path.name}, line {number} holds a NUL character: is this a text file?")
    return text


def _lines(path: Path) -> list[str]:
    # Not splitlines(): it would also split at U+2028 and at control characters inside a sentence.
    lines = re.split(_LINE_END, _text(path))
    return lines[:-1] if lines[-1] == "" else lines


def _table(path: Path, kind: str) -> pd.DataFrame:
    """Read a table, with None for what is missing; its index counts the rows of the file from 1.

    A blank record is a row of empty cells: whoever counts rows finds them where they stand.
    """
    readers = {".parquet": _parquet, ".jsonl": _json_lines}
    table = readers.get(kind, _delimited)(path)
    head = table.columns.tolist()
    if twice := [name for name in head if head.count(name) > 1]:
        raise ValueError(f"{path.name} has two columns called {twice[0]!r}; rename one.")
    return table.astype(object).where(table.notna(), None)


def _delimited(path: Path) -> pd.DataFrame:
    """Read a CSV, or a TSV without quoting."""
    import pandas as pd

    text = _text(path).replace(_MARK, "")
    comma = path.suffix.lower() == ".csv"
    separator, advice = (",", _CSV) if comma else ("\t", _PLAIN_TSV)
    # Excel writes, and obeys, a first line that names the separator.
    if named := re.match(rf'"?sep=(.)"?[\t,;]*(?:{_LINE_END})', text):
        separator = named[1]
    body = re.sub(r"\A(?:[\s,;]*[\r\n])?", "", text[named.end() if named else 0 :])
    if not body.strip():
        raise ValueError(f"{path.name} is empty: it has no header and no row.")
    above = len(re.findall(_LINE_END, text[: len(text) - len(body)]))
    first = re.split(_LINE_END, body, maxsplit=1)[0]
    if comma and separator not in first and re.search("[;\t]", first):
        raise ValueError(
            f"{path.name} has no comma in its first line, {first!r}: it looks separated by "
            "semicolons or tabs, as some versions of Excel write it. Put commas, or save it as "
            ".tsv with tabs."
        )
    if not comma and (quoted := _QUOTED.search(re.sub(_LINE_END, "\n", body))):
        number = above + body.count("\n", 0, quoted.start()) + 1
        raise ValueError(f"{path.name}, line {number}: {quoted[0]!r} is quoted. {_PLAIN_TSV}")
    limit = csv.field_size_limit(2**31 - 1)  # a cell may be a whole document
    try:
        # Python's engine: the other one mends quotation marks and fills short rows in silence.
        table = pd.read_csv(
            io.StringIO(body, newline=""), sep=separator, engine="python", header=None, dtype=str,
            quoting=csv.QUOTE_MINIMAL if comma else csv.QUOTE_NONE,
            keep_default_na=False, skip_blank_lines=False,
        )  # fmt: skip
    except (pd.errors.ParserError, csv.Error) as error:
        from_line = f" (counted from line {above + 1})" if above else ""
        raise ValueError(f"{path.name}: {error}{from_line}. {advice}") from None
    finally:
        csv.field_size_limit(limit)
    for row in np.flatnonzero(table.isna().any(axis=1)):
        cells = table.iloc[row].dropna()
        if cells.str.strip().any():  # and is no blank line
            raise ValueError(
                f"{path.name}, line {above + row + 1} has {len(cells)} columns; the first line has "
                f"{table.shape[1]}. {advice}"
            )
    table.index += above + 1
    table.columns = pd.Index(table.iloc[0].str.strip().tolist())
    return table.iloc[1:]


def _json_lines(path: Path) -> pd.DataFrame:
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            value = json.loads(text) if (text := _clean(line)) else {}
            value = {"sentence": value} if isinstance(value, str) else value
            if not isinstance(value, dict):
                raise ValueError('neither an object such as {"sentence": "..."} nor a string')
            if "\\u" in line:  # half an emoji cannot be written
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path.name}, line {number} is not JSON as it should be: {error}. Write it anew: "
                "one object or string a line, in UTF-8. A list, or an object over several lines, "
                "is no JSON lines (jq -c '.[]' makes them of a list)."
            ) from None
        rows.append(value)
    if not any(rows):
        raise ValueError(f"{path.name} holds no sentence: every line is empty.")
    return pd.DataFrame(rows, index=range(1, len(rows) + 1), dtype=object)


def _parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        table = pd.read_parquet(path)
    except (ValueError, TypeError, KeyError, OSError) as error:  # Arrow's errors are of these types
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path.name} cannot be read as Parquet: {reason}") from None
    table = table.reset_index(drop=table.index.names == [None])  # a named index is a column
    table.index += 1
    table.columns = table.columns.map(str)
    return table
