"""English Wikipedia's first articles, taken from a dump on the hub: a text to pre-train on.

The book's model has read the articles with page ids 12 to 12334, as they stood in the autumn of
2020.  The hub has the same pages as of November 2023, cut out of their markup by another program.
What is taken here is nearly the same text, then, not the same one: a model that is trained on it
is another model, with numbers a little different.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock
from tqdm.auto import tqdm

from bertflow_lite.atomic import replacing
from bertflow_lite.hub import cached_file, fetch_file
from bertflow_lite.paths import cache_dir, tidy_path

__all__ = ["LAST_PAGE", "clean_article", "find_corpus", "wikipedia_text"]

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


def find_corpus(
    name: str | os.PathLike[str], *, download: bool = False, progress: bool = False
) -> Path:
    """Give the text file that a command's ``--corpus`` names.

    Parameters
    ----------
    name : str or path
        A file; or ``"wikipedia"``, where no file has that name: see `wikipedia_text`.
    download, progress : bool, default False
        Passed on.

    Returns
    -------
    Path
        For a file, as it was given, whether it is there or not.
    """
    path = Path(name)
    if str(path) != "wikipedia" or path.is_file():
        return path
    return wikipedia_text(download=download, progress=progress)


def wikipedia_text(*, download: bool = False, progress: bool = False) -> Path:
    """Find the text of Wikipedia's first articles in the cache, or make it from the hub's dump.

    The dump is ``wikimedia/wikipedia``, configuration ``20231101.en``, of which the first file has
    all that is needed: some 400 MB, which stay in the hub's own cache.  Stopped, the same call
    goes on from the last file that is complete; of several processes, one does the work.

    Parameters
    ----------
    download : bool, default False
        Fetch what is missing.
    progress : bool, default False
        Show progress bars.

    Returns
    -------
    Path
        A text file in the cache folder, whole: one paragraph a line, in the order of the page ids,
        each line once (`clean_article`).

    Raises
    ------
    FileNotFoundError
        If a file is missing, and ``download`` is False; or if the hub has no such file.
    ConnectionError, PermissionError
        As `hub.fetch_file`.
    ValueError
        If a file of the dump is damaged, or not what it should be.
    """
    folder = cache_dir() / "corpus"
    target = folder / f"wikipedia-{DUMP}-{LAST_PAGE}-{FORMAT}.txt"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "wikipedia.lock"):  # the lock goes with its process
        if not target.is_file():  # another process may have been here first
            with _hub_bars(progress), replacing(target) as file:
                for line in _paragraphs(download, progress):
                    file.write(f"{line}\n".encode())
    return target


def clean_article(text: str) -> list[str]:
    r"""Take the paragraphs out of an article of the hub's dump.

    Parameters
    ----------
    text : str
        Paragraphs, headings and items of lists on lines of their own; the items begin with a space.

    Returns
    -------
    list of str
        The lines that look like paragraphs: not an item of a list, 8 words and 40 characters or
        more, beginning like a sentence and ending like one.  White space is one space; empty
        brackets, which templates leave behind, are gone.

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
        for text in _articles(download):
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


def _articles(download: bool) -> Iterator[str]:
    """Give the articles up to the last page; the dump is in the order of its ids."""
    for number in range(SHARDS):
        for page, text in _read(_shard(number, download)):
            if page > LAST_PAGE:
                return
            yield text


def _shard(number: int, download: bool) -> Path:
    file = f"{DUMP}/train-{number:05d}-of-{SHARDS:05d}.parquet"
    if (path := cached_file(REPO, file)) is not None:
        return path
    if not download:
        raise FileNotFoundError(
            "the text of Wikipedia is not in the cache. Say download=True (command line: "
            f"--download) to fetch some 400 MB of the data set {REPO} from the hub, or give a text "
            "file of your own, one paragraph a line."
        )
    return fetch_file(REPO, file)


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
            f"({error}). Delete {tidy_path(path)} and call again to fetch it anew."
        ) from error


@contextlib.contextmanager
def _hub_bars(shown: bool) -> Iterator[None]:
    """Keep the bars of the hub's client away where nobody wants to see them."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    hide = not shown and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            enable_progress_bars()
