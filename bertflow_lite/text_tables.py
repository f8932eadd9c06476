"""Files of people's own into rows: text, TSV, CSV, JSONL and Parquet.

Text is UTF-8 (a byte-order mark is fine).  Anything else is refused with the line, the byte and a
guess at what the file is, since a wrong guess made silently would only show as odd scores.

A quotation mark means something in a CSV, where it may enclose a cell and is then doubled inside
it.  In a TSV it is a character like any other, as in the archives of STS and QNLI.  A TSV whose
cells show a CSV's quoting, as pandas and Excel write it, is refused: taken as it stands, its
sentences would carry marks that nobody wrote.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

__all__ = ["FORMATS", "kind_of", "read_lines", "read_table"]

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
