"""The paper's numbers, and numbers by others, as published; checked figures, no computation.

All are in ``data/paper_tables.json``: Tables 1 to 8 of the paper, what its text claims, and for
orientation results that others published, each with its source and its aggregation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from bertflow_lite.files import data_file
from bertflow_lite.measures.scores import Aggregation

SETS = {
    "stsb": "STS-B",
    "sick-r": "SICK-R",
    "sts12": "STS-12",
    "sts13": "STS-13",
    "sts14": "STS-14",
    "sts15": "STS-15",
    "sts16": "STS-16",
}
"""The sets of Tables 2 and 3 by our names, in the paper's order, with the paper's names."""
_OURS = {paper: ours for ours, paper in SETS.items()}
_TABLES = range(1, 9)


@dataclass(frozen=True)
class PublishedRow:
    """One published row of STS scores."""

    label: str  # what was scored, as the source calls it
    scores: dict[str, float]  # Spearman x 100 by set (our names)
    source: str  # who published it, and where
    # How subsets were summed up. Rows of different aggregations cannot be compared.
    aggregation: Aggregation
    note: str = ""  # what else one has to know

    @property
    def average(self) -> float:
        """Mean over the sets that the row has."""
        return float(np.mean(list(self.scores.values())))


@dataclass(frozen=True)
class Gain:
    """How much higher one row of scores is than another, in points of Spearman x 100."""

    average: float  # mean difference over the sets that both have
    largest: float  # largest difference
    largest_on: str  # the set where it is
    by_set: dict[str, float] = field(repr=False)  # the differences


@lru_cache(maxsize=1)
def _read() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(data_file("paper_tables.json").read_text(encoding="utf-8"))
    return content


def _rename(content: Any) -> Any:
    """Copy, with the paper's names of sets replaced by ours."""
    if isinstance(content, dict):
        return {_OURS.get(key, key): _rename(value) for key, value in content.items()}
    return [_rename(value) for value in content] if isinstance(content, list) else content


def load_paper_table(number: int) -> dict[str, Any]:
    """Give the figures of one of the paper's tables, sets by our names: ``"stsb"``, ``"sts12"`` ...

    There is always a ``caption``; the rest has the table's own shape (see the file).
    """
    if number not in _TABLES:
        raise ValueError(f"the paper has tables 1 to 8, not {number!r}.")
    table: dict[str, Any] = _rename(_read()[f"table{number}"])
    return table


def paper_rows(number: int) -> list[PublishedRow]:
    """Give the rows of Table 2 or 3 in the paper's order.

    The rows that the paper takes over from Reimers and Gurevych (2019) are in the setting "all",
    as Sentence-BERT reports; the paper's own are "wmean", SentEval's weighted mean.
    """
    if number not in (2, 3):
        raise ValueError(f"tables 2 and 3 have rows of STS scores, table {number!r} has not.")
    table = load_paper_table(number)
    taken_over, own = table["published_by_reimers_gurevych_2019"], table["own"]
    return [
        PublishedRow(label, scores, "Reimers and Gurevych 2019", "all")
        for label, scores in taken_over.items()
    ] + [
        PublishedRow(label, scores, f"Li et al. 2020, Table {number}", "wmean")
        for label, scores in own.items()
    ]


def load_others() -> list[PublishedRow]:
    """Give results that others published, for orientation, each with source and aggregation."""
    return [
        PublishedRow(
            row["label"],
            _rename(row["scores"]),
            row["source"],
            row["aggregation"],
            row.get("note", ""),
        )
        for row in _read()["others"]
    ]


def measure_gain(before: Mapping[str, float], after: Mapping[str, float]) -> Gain:
    """Say how much higher ``after`` is than ``before``, over the sets that both have."""
    by_set = {name: after[name] - before[name] for name in before if name in after}
    if not by_set:
        raise ValueError("the two rows have no set in common.")
    largest = max(by_set, key=lambda name: by_set[name])
    return Gain(float(np.mean(list(by_set.values()))), by_set[largest], largest, by_set)


def text_claims() -> dict[str, dict[str, float | str]]:
    """Set the gains that the paper's text states beside those that its Table 2 gives.

    For ``"BERT-base"`` and ``"BERT-large"``: ``stated`` (average gain of flow (target) over
    last2avg, section 4.1), ``average``, ``largest`` and ``largest_on``, all three recomputed
    from the table, and ``stated_largest`` (the abstract's and introduction's "up to").
    """
    claims = _read()["claims_in_text"]
    own = load_paper_table(2)["own"]
    out: dict[str, dict[str, float | str]] = {}
    for model, stated in claims["average gain of flow (target) over last2avg"].items():
        gain = measure_gain(own[f"{model}-last2avg"], own[f"{model}-flow (target)"])
        out[model] = {
            "stated": stated,
            "average": gain.average,
            "stated_largest": claims["largest gain"],
            "largest": gain.largest,
            "largest_on": gain.largest_on,
        }
    return out
