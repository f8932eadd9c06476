"""The STS and SICK files as SentEval lays them out: their names, their counts, how to read them.

QNLI and NLI come in tables of the same kind (or in parquet files), and are read by the same code.

Each reader returns three lists: first sentences, second sentences, gold scores. The files have
their oddities, all met here: lines end at a line feed only, fields at a tab only, quotes mean
nothing, and an empty gold line marks a pair that is not scored.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "COUNTS",
    "FILES",
    "check_count",
    "files_of",
    "read_labels",
    "read_lines",
    "read_part",
    "read_scores",
    "read_table",
]

_SMALL = 1 << 24  # bytes: up to this, no unpacked file is too large

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


def read_part(downstream: Path, name: str, part: str) -> Rows:
    """Read one split of STS-B or SICK-R, or one subset of STS12-16.

    Parameters
    ----------
    downstream : Path
        The folder that holds ``STS`` and ``SICK``.
    name, part : str
        A key of `COUNTS` and one of its keys.

    Raises
    ------
    ValueError
        If a line lacks a column or a score, a file is not UTF-8, or an input file and its gold
        file differ in length.
    """
    paths = [downstream / file for file in files_of(name, part)]
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


def read_table(path: Path, columns: Sequence[int] | Sequence[str]) -> list[list[str]]:
    """Read columns of a tab-separated file without quoting, or of a parquet file.

    Parameters
    ----------
    path : Path
        The file; packed where its name ends in ``.gz``, a parquet file where in ``.parquet``.
    columns : sequence of int or of str
        Positions, for a file without a header line, or titles, for one with it.

    Returns
    -------
    list of list of str
        One list for each of `columns`, in that order; further columns are passed over.

    Raises
    ------
    ValueError
        If a title is not in the header, a line is too short, or the file is damaged.
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


def check_count(name: str, part: str, count: int) -> None:
    """Raise ValueError where a part has not its official number of scored pairs."""
    if count != COUNTS[name][part]:
        raise ValueError(
            f"{name} {part} has {count} scored pairs here, where the official file has "
            f"{COUNTS[name][part]}; scores on it would not be comparable. Take a complete copy, or "
            "pass check_counts=False to use this one as it is."
        )


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
            "Remove it and fetch it anew."
        ) from error


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 text file, packed where its name ends in ``.gz``.

    Raises
    ------
    ValueError
        If the file is not UTF-8, or its packing is damaged.
    """
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


def read_labels(
    texts: list[str], path: Path, labels: Sequence[str], first_line: int = 2
) -> list[int]:
    """Turn labels, or their positions written as numbers, into positions in `labels`.

    Raises
    ------
    ValueError
        If there is another one; the message names file and line (or row of a parquet file).
    """
    known = {label: i for i, label in enumerate(labels)}
    known |= {str(i): i for i in range(len(labels))}
    found = [known.get(text, -1) for text in texts]
    if -1 in found:
        wrong = found.index(-1)
        where = f"row {wrong}" if path.suffix == ".parquet" else f"line {first_line + wrong}"
        raise ValueError(
            f"{_tidy_name(path)}, {where}: the label {texts[wrong]!r} is none of "
            f"{', '.join(labels)}."
        )
    return found
