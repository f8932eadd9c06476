"""Read the lines, tables, labels and scores of data sets' own files."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

from bertflow_lite.files import tidy_path

__all__ = ["read_labels", "read_lines", "read_scores", "read_table"]

_SMALL = 1 << 24  # bytes: up to this, no unpacked file is too large


def read_table(path: Path, columns: Sequence[int] | Sequence[str]) -> list[list[str]]:
    """Read columns of a tab-separated file without quoting (``.gz``: packed), or of a parquet file.

    They are named by position, for a file without a header line, or by title; a list for each.
    """
    if path.suffix == ".parquet":
        return _read_parquet(path, [str(column) for column in columns])
    lines = read_lines(path)
    first = 1
    positions = [column for column in columns if isinstance(column, int)]
    if not positions:
        header = lines[0].split("\t") if lines else []
        if missing := [str(title) for title in columns if title not in header]:
            raise ValueError(
                f"{_tidy_name(path)} has no column {' or '.join(missing)} in its first line, which "
                f"reads {header}."
            )
        positions = [header.index(str(title)) for title in columns]
        lines, first = lines[1:], 2
    rows = [_pick(line.split("\t"), positions, path, n) for n, line in enumerate(lines, first)]
    return [[row[i] for row in rows] for i in range(len(positions))]


def _tidy_name(path: Path) -> str:
    """Name a file by its last two path parts: enough to find it, the same on every machine."""
    return "/".join(path.parts[-2:])


def _read_parquet(path: Path, titles: list[str]) -> list[list[str]]:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=titles)
        return [[str(value) for value in table[title].to_pylist()] for title in titles]
    except (pyarrow.lib.ArrowException, KeyError, OSError) as error:
        raise ValueError(
            f"{_tidy_name(path)} is damaged or has not the columns {', '.join(titles)} ({error}). "
            f"Delete {tidy_path(path.resolve())} and call again to fetch it anew."
        ) from error


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 text file, packed where its name ends in ``.gz``."""
    try:
        content = _unpack(path) if path.suffix == ".gz" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{_tidy_name(path)} is damaged or cut short ({error}). Take a fresh copy."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{_tidy_name(path)} is not UTF-8 (byte {error.start}). Convert it, or take the copy "
            "that SentEval's script makes."
        ) from error
    # Not str.splitlines: it would also split at U+0085, U+2028 and the like, which occur inside
    # sentences. A trailing carriage return belongs to the line end (SICK's test file has CRLF).
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _unpack(path: Path) -> bytes:
    # Text packs to a third or a tenth; what swells a hundredfold was made to fill the memory.
    limit = max(_SMALL, 100 * path.stat().st_size)
    with gzip.open(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(
            f"{_tidy_name(path)} unpacks to more than a hundred times its size, as no text does: "
            "it is not read. Take a copy from a place that you trust."
        )
    return content


def _pick(fields: list[str], positions: Sequence[int], path: Path, line: int) -> list[str]:
    if len(fields) <= max(positions):
        raise ValueError(
            f"{_tidy_name(path)}, line {line}: {len(fields)} tab-separated columns, where at least "
            f"{max(positions) + 1} are needed."
        )
    return [fields[i] for i in positions]


def read_scores(texts: list[str], path: Path, first_line: int) -> list[float]:
    """Turn gold scores into numbers from 0 to 5; raise ValueError naming file and line if not."""
    scores = []
    for line, text in enumerate(texts, first_line):
        try:
            score = math.nan if "_" in text else float(text)  # Python would read 1_0 as 10
        except ValueError:
            score = math.nan
        if not 0 <= score <= 5:
            raise ValueError(
                f"{_tidy_name(path)}, line {line}: the gold score {text!r} is not "
                "a number from 0 to 5."
            )
        scores.append(score)
    return scores


def read_labels(texts: list[str], path: Path, labels: Sequence[str]) -> list[int]:
    """Turn labels, or their positions written as numbers, into positions in `labels`."""
    known = {label: i for i, label in enumerate(labels)}
    known |= {str(i): i for i in range(len(labels))}
    found = [known.get(text, -1) for text in texts]
    if -1 in found:
        wrong = found.index(-1)
        # A text file has its header above.
        where = f"row {wrong}" if path.suffix == ".parquet" else f"line {2 + wrong}"
        raise ValueError(
            f"{_tidy_name(path)}, {where}: the label {texts[wrong]!r} is none of "
            f"{', '.join(labels)}."
        )
    return found
