"""QNLI, of the paper's section 4.2 and Table 4: which sentence answers which question.

GLUE made the set from SQuAD: a question beside a sentence of the paragraph that it was asked about.
The paper ranks the pairs by the cosine of the two embeddings and reports the AUC.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np

from bertflow_lite.datasets.pairs import SentencePairs, fingerprint_of
from bertflow_lite.datasets.source import HubFile, Source, check_count, read_labels, read_table

__all__ = ["QNLI_FILES", "fingerprint_with_labels", "load_qnli", "source_of"]

QNLI_FILES = {
    "train": HubFile("nyu-mll/glue", "qnli/train-00000-of-00001.parquet", 104_743),
    "dev": HubFile("nyu-mll/glue", "qnli/validation-00000-of-00001.parquet", 5_463),
}
"""Each split on the hub, and its pairs in GLUE's second release of QNLI."""
_LABELS = ("entailment", "not_entailment")  # the hub writes their positions, 0 and 1
_log = logging.getLogger(__name__)


def source_of(split: str = "dev") -> Source:
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
    from ``nyu-mll/glue``. This address was tested against a stand-in of the hub only.

    The paper scores ``"dev"``, the validation set. Gold is 1 where the sentence answers the
    question (GLUE's ``"entailment"``), else 0. ``check_counts`` insists on the official number.
    """
    wanted = {"validation": "dev"}.get(split, split)
    if wanted not in QNLI_FILES:
        raise ValueError(f"qnli has no split {split!r} with labels; it has train and dev.")
    home = QNLI_FILES[wanted]
    call = f"load_qnli({wanted!r}, download=True)"
    place, (path,), _ = source_of(wanted).get(call, data_dir, download)
    questions, sentences, texts = read_table(path, ("question", "sentence", "label"))
    labels = np.array(read_labels(texts, path, _LABELS), dtype=np.intp) == 0
    if check_counts:
        check_count(f"qnli {wanted} has {len(labels)} pairs", len(labels), home.pairs)
    _log.info("qnli (%s): %d pairs from %s", wanted, len(labels), place)
    columns: Any = questions, sentences, labels, ["qnli"] * len(labels)
    return SentencePairs("qnli", wanted, *columns, source=place)


def fingerprint_with_labels(pairs: SentencePairs) -> str:
    """Digest the pairs as stored runs do: the labels are truth values there, not numbers."""
    labels = (pairs.gold > 0).tolist()
    return fingerprint_of(["qnli", pairs.split, pairs.sentences1, pairs.sentences2, labels])
