"""NLI corpora: sentences to fit flow (NLI) on, labeled pairs for siamese fine-tuning.

The paper's flow (NLI) is fitted on the sentences of SNLI and MNLI together, and its Table 3 takes
encoders tuned on their labels (section 4.1). The hub gives these corpora whole. A small
sample on this machine comes first where there is one, and says so in its `source`: what is
computed from it is not the paper's setting.

QNLI, of section 4.2 and Table 4, asks which sentence answers which question.  GLUE made it from
SQuAD: a question beside a sentence of the paragraph that it was asked about.  The paper ranks the
pairs by the cosine of the two embeddings and reports the AUC.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertflow_lite.datasets.pairs import SentencePairs, fingerprint_of
from bertflow_lite.datasets.source import (
    Found,
    HubFile,
    Source,
    check_count,
    read_labels,
    read_lines,
    read_table,
)

__all__ = [
    "HUB_PARTS",
    "LABELS",
    "NliPairs",
    "NliSentences",
    "load_nli_pairs",
    "load_nli_sentences",
    "source_of",
]

LABELS = ("entailment", "neutral", "contradiction")
"""Label names; a label is a position in here. The hub's files use the same numbers."""
SENTENCES_FILE = "nli/nli_sentences.txt.gz"
PAIRS_FILE = "nli/nli_pairs.tsv.gz"

HUB_PARTS: Mapping[str, HubFile] = {
    "snli-train": HubFile("stanfordnlp/snli", "plain_text/train-00000-of-00001.parquet", 549_367),
    "mnli-train": HubFile("nyu-mll/multi_nli", "data/train-00000-of-00001.parquet", 392_702),
    "mnli-dev-matched": HubFile(
        "nyu-mll/multi_nli", "data/validation_matched-00000-of-00001.parquet", 9_815
    ),
}
"""The corpora on the hub, with the number of their pairs that have a label; tested on a stand-in.

Flow (NLI) is fitted on the two training sets (942,069 pairs).
"""
_TRAINING = ("snli-train", "mnli-train")
_NO_LABEL = "-1"  # what SNLI's file has for the 785 training pairs without a majority
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NliSentences:
    """Sentences without labels, each once, white space trimmed and collapsed.

    The name is ``"nli"`` for all of SNLI's and MNLI's training sentences, and ``"nli-sample"`` for
    a list found on this machine; ``source`` says what they are and where they were found.
    """

    name: str
    sentences: tuple[str, ...]
    source: str

    def __len__(self) -> int:
        return len(self.sentences)

    def __repr__(self) -> str:
        return f"NliSentences({self.name!r}: {len(self)} sentences)"

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over the sentences in their order; the same on every machine."""
        return fingerprint_of(["nli-sentences", self.sentences])


@dataclass(frozen=True, eq=False)
class NliPairs:
    """Premises and hypotheses as they stand in the file, with their label, a position in `LABELS`.

    ``sources`` has the corpus and split of each pair, such as ``"snli-train"``.
    ``"mnli-dev-matched"``, which is complete in both homes, can be held out to measure accuracy.
    """

    premises: tuple[str, ...]
    hypotheses: tuple[str, ...]
    labels: NDArray[np.intp]
    sources: tuple[str, ...]
    source: str = ""
    LABELS = LABELS  # no annotation: a constant of the class, not a field

    def __post_init__(self) -> None:
        parts = (self.premises, self.hypotheses, self.labels, self.sources)
        if len({len(part) for part in parts}) > 1:
            raise ValueError(
                "premises, hypotheses, labels and sources must have one entry for each pair, but "
                f"their lengths are {[len(part) for part in parts]}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"NliPairs({len(self)} pairs from {', '.join(dict.fromkeys(self.sources))})"

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over texts, labels and sources; the same on every machine."""
        return fingerprint_of(
            ["nli-pairs", self.premises, self.hypotheses, self.labels.tolist(), self.sources]
        )


def load_nli_sentences(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    check_counts: bool = True,
) -> NliSentences:
    """Load the sentences that flow (NLI) is fitted on.

    Looked for is ``nli/nli_sentences.txt.gz`` (one sentence a line) in `data_dir`, or else the
    folder named by ``BERTFLOW_DATA``, and in the folder above it; then in the cache; then the
    training sets of SNLI and MNLI in the hub's cache. Only with ``download=True`` are those
    fetched (about 240 MB), from `HUB_PARTS`. ``check_counts`` insists on their official number.
    """
    call = "load_nli_sentences(download=True)"
    found = source_of(SENTENCES_FILE).get(call, data_dir, download)
    place = found.place
    if _is_sample(found):
        texts = read_lines(found.paths[0])
        name = "nli-sample"
        source = f"a sample of NLI sentences, not all of SNLI and MNLI ({place}: {SENTENCES_FILE})"
    else:
        texts = []
        for part, path in zip(_TRAINING, found.paths, strict=True):
            premises, hypotheses, _ = _read_hub_part(part, path, check_counts)
            texts += premises + hypotheses
        name = "nli"
        source = f"the training sets of SNLI and MNLI, as in the paper ({place})"
    sentences = tuple(dict.fromkeys(" ".join(text.split()) for text in texts if text.strip()))
    if not sentences:
        raise ValueError(f"{SENTENCES_FILE} ({place}) has no sentence. Take a fresh copy.")
    _log.info("%s: %d sentences from %s", name, len(sentences), place)
    return NliSentences(name, sentences, source)


def load_nli_pairs(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    check_counts: bool = True,
) -> NliPairs:
    """Load labeled pairs for siamese fine-tuning.

    Looked for is ``nli/nli_pairs.tsv.gz`` (columns source, premise, hypothesis, label; no
    quoting), in the places of `load_nli_sentences`; then all of `HUB_PARTS`, with MNLI's matched
    validation set beside the training sets. Pairs whose annotators did not agree are left out.
    """
    call = "load_nli_pairs(download=True)"
    found = source_of(PAIRS_FILE).get(call, data_dir, download)
    place = found.place
    if _is_sample(found):
        titles = ("premise", "hypothesis", "label", "source")
        premises, hypotheses, texts, sources = read_table(found.paths[0], titles)
        labels = read_labels(texts, found.paths[0], LABELS)
        source = f"a sample of SNLI and MNLI pairs, not all of them ({place}: {PAIRS_FILE})"
    else:
        premises, hypotheses, labels, sources = [], [], [], []
        for part, path in zip(HUB_PARTS, found.paths, strict=True):
            first, second, positions = _read_hub_part(part, path, check_counts)
            premises += first
            hypotheses += second
            labels += positions
            sources += [part] * len(positions)
        source = f"SNLI and MNLI, as in the paper, and MNLI's matched validation set ({place})"
    _log.info("nli: %d pairs from %s", len(labels), place)
    numbers = np.array(labels, dtype=np.intp)
    return NliPairs(tuple(premises), tuple(hypotheses), numbers, tuple(sources), source)


def source_of(file: str) -> Source:
    """Say where `SENTENCES_FILE` or `PAIRS_FILE` may lie, and what the hub has in its place."""
    parts = _TRAINING if file == SENTENCES_FILE else tuple(HUB_PARTS)
    return Source(
        file, (file,), tuple(HUB_PARTS[part] for part in parts), f"{file} in it or beside it"
    )


def _is_sample(found: Found) -> bool:
    return found.paths[0].suffix == ".gz"  # the hub's files are parquet


def _read_hub_part(
    part: str, path: Path, check_counts: bool
) -> tuple[list[str], list[str], list[int]]:
    """Read the labeled pairs of one file of the hub."""
    premises, hypotheses, texts = read_table(path, ("premise", "hypothesis", "label"))
    kept = [i for i, text in enumerate(texts) if text != _NO_LABEL]
    # With a stand-in for what is dropped, so that the row of a wrong label is the file's.
    labels = read_labels(["0" if text == _NO_LABEL else text for text in texts], path, LABELS)
    if check_counts:
        what = f"{part} has {len(kept)} labeled pairs"
        check_count(what, len(kept), HUB_PARTS[part].pairs)
    return [premises[i] for i in kept], [hypotheses[i] for i in kept], [labels[i] for i in kept]


QNLI_FILES = {
    "train": HubFile("nyu-mll/glue", "qnli/train-00000-of-00001.parquet", 104_743),
    "dev": HubFile("nyu-mll/glue", "qnli/validation-00000-of-00001.parquet", 5_463),
}
"""Each split on the hub, and its pairs in GLUE's second release of QNLI."""
_QNLI_LABELS = ("entailment", "not_entailment")  # the hub writes their positions, 0 and 1


def qnli_source(split: str = "dev") -> Source:
    """Say where a split may lie."""
    file = f"qnli/{split}.tsv"
    return Source(f"qnli ({split})", (file,), (QNLI_FILES[split],), f"{file} in it or beside it")


def load_qnli(
    split: str = "dev",
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = False,
    check_counts: bool = True,
) -> SentencePairs:
    """Load question-sentence pairs of QNLI (second release, as GLUE has it since 2019).

    Looked for are ``qnli/dev.tsv`` or ``qnli/train.tsv`` (GLUE's own format) in `data_dir`, or
    else the folder named by ``BERTFLOW_DATA``, and in the folder above it; then in the cache; then
    the hub's parquet file in the hub's cache. Only with ``download=True`` is that file fetched,
    from ``nyu-mll/glue``.

    The paper scores ``"dev"``, the validation set. Gold is 1 where the sentence answers the
    question (GLUE's ``"entailment"``), else 0. ``check_counts`` insists on the official number.
    """
    wanted = {"validation": "dev"}.get(split, split)
    if wanted not in QNLI_FILES:
        raise ValueError(f"qnli has no split {split!r} with labels; it has train and dev.")
    home = QNLI_FILES[wanted]
    call = f"load_qnli({wanted!r}, download=True)"
    place, (path,), _ = qnli_source(wanted).get(call, data_dir, download)
    questions, sentences, texts = read_table(path, ("question", "sentence", "label"))
    labels = np.array(read_labels(texts, path, _QNLI_LABELS), dtype=np.intp) == 0
    if check_counts:
        check_count(f"qnli {wanted} has {len(labels)} pairs", len(labels), home.pairs)
    _log.info("qnli (%s): %d pairs from %s", wanted, len(labels), place)
    gold, subsets = labels.astype(np.float64), np.full(len(labels), "qnli")
    return SentencePairs("qnli", wanted, tuple(questions), tuple(sentences), gold, subsets,
                         source=place)  # fmt: skip


def fingerprint_with_labels(pairs: SentencePairs) -> str:
    """Digest the pairs as stored runs do: the labels are truth values there, not numbers."""
    labels = (pairs.gold > 0).tolist()
    return fingerprint_of(["qnli", pairs.split, pairs.sentences1, pairs.sentences2, labels])
