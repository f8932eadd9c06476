"""The text: Wikipedia's or a file's, as rows of word pieces, packed, read back without copying.

A masked language model is trained on rows of a fixed length.  Rows that begin and end with
sentences give a word the context that an author gave it; rows cut from one long stream do not.
Only a sentence that is longer than a row loses its end.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import lzma
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from tqdm.auto import tqdm

from bertflow_lite.files import cache_dir, replacing, tidy_path, write_json
from bertflow_lite.hub import hub_file

REPO, DUMP, SHARDS = "wikimedia/wikipedia", "20231101.en", 41
LAST_PAGE = 12334
"""Page id of the last article that is taken."""
FORMAT = 1
"""Of the text: one that was made by other rules is not used."""
_LEAST_ARTICLES = 5000  # of about 5,900: a check that the dump lies there in the order of its ids
# What the text of the book's model looks like: every paragraph ends as a sentence does, and has
# eight words and forty characters or more.  Headings, captions and table cells do not.
_END = re.compile(r"""[.!?]["')\]]*$""")
_WORD = re.compile(r"[A-Za-z]+")
_LEAST_WORDS, _LEAST_CHARACTERS = 8, 40
# What templates leave behind where they stood, as in "Albedo (; )" and "(, born 1950)".
_HOLE, _BEGINNING = re.compile(r"\s*\([\s,;:]*\)"), re.compile(r"(?<=\()[\s,;:]+(?=\S)")
_SPACE_BEFORE = re.compile(r"\s+(?=[,.;)](?:\s|$))")
HELD_OUT = 1024
"""Rows at the end of a corpus on which the loss is measured and that are never trained on."""
_BLOCK = 2000
"""Paragraphs that are split and tokenized at once."""
# A full stop, question mark or exclamation mark, perhaps closed by a quote or bracket, before a
# space and something that can begin a sentence.  It errs on "Mr. Smith", which costs little here:
# the two halves stay neighbors in a row.
_SENTENCE_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["')\]]))\s+(?=["'(\[]?[A-Z0-9])""")


@dataclass(frozen=True)
class PackedCorpus:
    """Rows of word pieces."""

    # Begin and end marks around sentences, whole but for the end of those that are longer than a
    # row, then padding; mapped from disk; shape (n_rows, length).
    rows: NDArray[Any]
    # How often each piece occurs, marks and padding left out; shape (vocabulary,).
    counts: NDArray[np.int64]
    fingerprint: str  # of the text, the tokenizer and the length

    @property
    def n_tokens(self) -> int:
        """Pieces of the text, without marks and padding."""
        return int(self.counts.sum())

    @property
    def n_held_out(self) -> int:
        """Rows at the end that are not trained on: 1,024, or a tenth where that is fewer."""
        return min(HELD_OUT, len(self.rows) // 10)


def read_paragraphs(path: str | os.PathLike[str]) -> Iterator[str]:
    """Read a text file, one paragraph a line; blank lines are left out.

    The file is UTF-8, plain or compressed (``.gz``, ``.xz``); space around a paragraph goes.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no text file {path.name!r}; name an existing one.")
    try:
        opened: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
        with opened(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                if text := line.strip():
                    yield text
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name!r} is not UTF-8 text ({error.reason}).") from error
    except (lzma.LZMAError, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path.name!r} is damaged or cut short: {error}") from error


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph after its sentences' ends.

    Examples
    --------
    >>> split_sentences("It rained. Did it? Yes, 3.5 mm.")
    ['It rained.', 'Did it?', 'Yes, 3.5 mm.']
    >>> split_sentences('He said "No." She left.')
    ['He said "No."', 'She left.']
    """
    return [part for part in _SENTENCE_END.split(paragraph.strip()) if part]


def pack_corpus(
    path: str | os.PathLike[str], tokenizer: Any, *, length: int = 64, progress: bool = False
) -> PackedCorpus:
    """Tokenize a text and pack sentences of one paragraph into rows, as many as have room.

    The result is kept in the cache; the same text, tokenizer and length are read from there.

    The tokenizer has begin, end and padding marks (``[CLS]``, ``[SEP]``, ``[PAD]`` of BERT), which
    are among the ``length`` pieces of a row. Of a longer sentence, what has no room is left out.
    """
    if length < 8:
        raise ValueError(f"rows of {length} pieces are too short: use at least 8.")
    path = Path(path)
    fingerprint = _fingerprint(path, tokenizer, length)
    folder = cache_dir() / "corpus"
    rows_file, facts_file = folder / f"{fingerprint}.npy", folder / f"{fingerprint}.json"
    if not (rows_file.exists() and facts_file.exists()):
        rows = _make_rows(path, tokenizer, length, progress)
        counts = np.bincount(rows.ravel(), minlength=len(tokenizer))
        counts[[tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id]] = 0
        with replacing(rows_file) as file:
            np.save(file, rows)
        write_json(facts_file, {"counts": counts.tolist()})
    counts = np.asarray(json.loads(facts_file.read_text(encoding="utf-8"))["counts"], np.int64)
    return PackedCorpus(np.load(rows_file, mmap_mode="r"), counts, fingerprint)


def _fingerprint(path: Path, tokenizer: Any, length: int) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"there is no text file {path.name!r}; name an existing one.")
    with path.open("rb") as file:
        text = hashlib.file_digest(file, "sha256").hexdigest()
    words = hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode()).hexdigest()
    return hashlib.sha256(f"pack 1 {text} {words} {length}".encode()).hexdigest()[:16]


def _make_rows(path: Path, tokenizer: Any, length: int, progress: bool) -> NDArray[Any]:
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    parts = []
    paragraphs = read_paragraphs(path)
    with tqdm(unit=" paragraphs", disable=not progress) as bar:
        while block := list(itertools.islice(paragraphs, _BLOCK)):
            parts.append(_pack(block, tokenizer, length, dtype))
            bar.update(len(block))
    if not parts:
        raise ValueError(f"{path.name!r} holds no text.")
    return np.concatenate(parts)


def _pack(paragraphs: list[str], tokenizer: Any, length: int, dtype: Any) -> NDArray[Any]:
    split = [split_sentences(paragraph) for paragraph in paragraphs]
    sentences = [sentence for parts in split for sentence in parts]
    pieces = iter(
        tokenizer(sentences, add_special_tokens=False, truncation=True, max_length=length - 2)[
            "input_ids"
        ]
    )
    filled: list[list[int]] = []
    for parts in split:
        row: list[int] = []
        for ids in itertools.islice(pieces, len(parts)):
            if row and len(row) + len(ids) > length - 2:
                filled.append(row)
                row = []
            row = row + ids
        if row:
            filled.append(row)
    out = np.full((len(filled), length), tokenizer.pad_token_id, dtype)
    out[:, 0] = tokenizer.cls_token_id
    for i, row in enumerate(filled):
        out[i, 1 : 1 + len(row)] = row
        out[i, 1 + len(row)] = tokenizer.sep_token_id
    return out


def row_lengths(corpus: PackedCorpus, pad: int) -> NDArray[np.int64]:
    """Pieces in each row, marks among them and padding left out."""
    return np.asarray((corpus.rows != pad).sum(axis=1))


def similar_lengths(
    lengths: NDArray[np.int64], random: np.random.Generator, rows: int
) -> NDArray[np.int64]:
    """Give a random order in which neighbors have similar lengths, so that little is padded.

    The rows are shuffled; then each stretch of ``32 * rows`` of them is sorted by length, cut
    into blocks of ``rows``, and the blocks are shuffled.

    Examples
    --------
    >>> order = similar_lengths(np.array([9, 1, 8, 2]), np.random.default_rng(0), 2)
    >>> sorted(order.tolist())
    [0, 1, 2, 3]
    """
    order = random.permutation(len(lengths))
    out = []
    for start in range(0, len(order), 32 * rows):
        stretch = order[start : start + 32 * rows]
        stretch = stretch[np.argsort(lengths[stretch], kind="stable")]
        blocks = np.split(stretch, range(rows, len(stretch), rows))
        out += [blocks[i] for i in random.permutation(len(blocks))]
    return np.concatenate(out)


def open_corpus(
    name: str | os.PathLike[str],
    tokenizer: Any,
    length: int,
    *,
    download: bool = False,
    progress: bool = False,
) -> PackedCorpus:
    """Pack the text that a command's ``--corpus`` names (`pack_corpus`).

    It is a file; or ``"wikipedia"``, where no file has that name: see `wikipedia_text`.
    """
    path = Path(name)
    if str(path) == "wikipedia" and not path.is_file():
        path = wikipedia_text(download=download, progress=progress)
    return pack_corpus(path, tokenizer, length=length, progress=progress)


def wikipedia_text(*, download: bool = False, progress: bool = False) -> Path:
    """Find the text of Wikipedia's first articles in the cache, or make it from the hub's dump.

    The dump is ``wikimedia/wikipedia``, configuration ``20231101.en``, of which the first file has
    all that is needed: some 400 MB, which stay in the hub's own cache.  Stopped, the same call
    goes on from the last file that is complete; of several processes, one does the work.

    The text is one paragraph a line, in the order of the page ids, each line once
    (`clean_article`).
    """
    folder = cache_dir() / "corpus"
    target = folder / f"wikipedia-{DUMP}-{LAST_PAGE}-{FORMAT}.txt"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "wikipedia.lock"):  # the lock goes with its process
        if not target.is_file():  # another process may have been here first
            with replacing(target) as file:
                for line in _paragraphs(download, progress):
                    file.write(f"{line}\n".encode())
    return target


def clean_article(text: str) -> list[str]:
    r"""Take the paragraphs out of an article of the hub's dump.

    Paragraphs, headings and items of lists stand on lines of their own; the items begin with a
    space. Kept are lines that look like paragraphs: not an item of a list, 8 words and 40
    characters or more, beginning like a sentence and ending like one. White space is one space;
    empty brackets, which templates leave behind, are gone.

    Examples
    --------
    >>> clean_article(
    ...     "Albedo (; ) is the share of light that a surface sends back.\n\nHistory\n"
    ...     " One of the items of a list, which is long enough for a paragraph."
    ... )
    ['Albedo is the share of light that a surface sends back.']
    """
    found = []
    for line in text.split("\n"):
        if line[:1].isspace() or not line:
            continue
        line = " ".join(_BEGINNING.sub("", _HOLE.sub("", line)).split())
        line = _SPACE_BEFORE.sub("", line)
        begins = line[:1].isupper() or line[:1] in tuple("0123456789\"'(")
        long = len(line) >= _LEAST_CHARACTERS and len(_WORD.findall(line)) >= _LEAST_WORDS
        if begins and long and _END.search(line):
            found.append(line)
    return found


def _paragraphs(download: bool, progress: bool) -> Iterator[str]:
    """Read the articles, and give each different paragraph once."""
    seen: set[bytes] = set()
    articles = 0
    with tqdm(unit=" articles", desc="wikipedia", disable=not progress) as bar:
        for text in _articles(download, progress):
            articles += 1
            bar.update()
            for line in clean_article(text):
                digest = hashlib.blake2b(line.encode(), digest_size=16).digest()
                if digest not in seen:
                    seen.add(digest)
                    yield line
    if articles < _LEAST_ARTICLES:
        raise ValueError(
            f"the dump {REPO} ({DUMP}) gave only {articles:,} articles with ids up to {LAST_PAGE}, "
            f"where {_LEAST_ARTICLES:,} or more are expected: it is no longer in the order of its "
            "ids. Give a text file of your own (command line: --corpus FILE)."
        )


def _articles(download: bool, progress: bool) -> Iterator[str]:
    """Give the articles up to the last page; the dump is in the order of its ids."""
    for number in range(SHARDS):
        for page, text in _read(_shard(number, download, progress)):
            if page > LAST_PAGE:
                return
            yield text


def _shard(number: int, download: bool, progress: bool) -> Path:
    file = f"{DUMP}/train-{number:05d}-of-{SHARDS:05d}.parquet"
    try:  # the cache first: what was fetched once need not be asked for again
        return hub_file(REPO, file)
    except FileNotFoundError:
        if not download:
            raise FileNotFoundError(
                "the text of Wikipedia is not in the cache. Say download=True (command line: "
                f"--download) to fetch some 400 MB of the data set {REPO} from the hub, or give a "
                "text file of your own, one paragraph a line."
            ) from None
    return hub_file(REPO, file, download=True, progress=progress)


def _read(path: Path) -> Iterator[tuple[int, str]]:
    """Give page id and text of each article of one file, a few hundred in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=200, columns=["id", "text"]):
                ids, texts = (batch.column(name).to_pylist() for name in ("id", "text"))
                yield from ((int(i), text or "") for i, text in zip(ids, texts, strict=True))
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
        raise ValueError(
            f"{path.name} of the data set {REPO} is damaged or has not the columns id and text "
            f"({error}). Delete {tidy_path(path.resolve())} and call again to fetch it anew."
        ) from error
