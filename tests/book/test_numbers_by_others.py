"""The page of others' numbers shows what data/paper_tables.json and the stored runs hold."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from bertflow_lite.experiments.paper import (
    SETS,
    PublishedRow,
    load_others,
    measure_gain,
    paper_rows,
)
from bertflow_lite.experiments.runs import load_run

PAGE = Path(__file__).resolve().parents[2] / "book" / "numbers_by_others.md"
OTHERS = {row.label: row for row in load_others()}
PAPER = {row.label: row for row in paper_rows(2)}
ENCODERS = {
    "`minilm`, block 4": ("minilm", "4"),
    "`minilm`, last2avg": ("minilm", "last2avg"),
    "`minilm`, first-last": ("minilm", "first-last"),
    "`minilm`, last": ("minilm", "last"),
    "`mpnet`, block 6": ("mpnet", "6"),
    "`mpnet`, block 9": ("mpnet", "9"),
    "`mpnet`, last": ("mpnet", "last"),
    "`mini-bert`, last2avg": ("mini-bert", "last2avg"),
    "`mini-bert`, first-last": ("mini-bert", "first-last"),
    "`smollm2`, last2avg": ("smollm2", "last2avg"),
    "`smollm2`, first-last": ("smollm2", "first-last"),
    "`smollm2`, last": ("smollm2", "last"),
    "`glove`, word average": ("glove", "mean"),
}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *(["--:"] * (len(head) - 1))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seven_sets() -> str:
    rows = [
        [
            f"{row.label.removesuffix(', all').removesuffix(', wmean')} (`{row.aggregation}`)",
            *(f"{row.scores[name]:.2f}" for name in SETS),
        ]
        for row in OTHERS.values()
        if len(row.scores) == 7
    ]
    return table(["BERT-base, but for MiniLM", *SETS.values()], rows)


def agreement() -> str:
    rows = []
    for kind in ("NLI", "target"):
        for name in ("stsb", "sick-r"):
            again = OTHERS[f"BERT-flow ({kind})"].scores[name]
            first = PAPER[f"BERT-base-flow ({kind})"].scores[name]
            rows.append([f"flow ({kind}), {SETS[name]}", f"{first:.2f}", f"{again:.2f}"])
    return table(["", "the paper", "SimCSE's run"], rows)


def differences() -> str:
    def line(label: str, start: PublishedRow, end: PublishedRow) -> list[str]:
        gain = measure_gain(start.scores, end.scores)
        return [label, *(f"{gain.by_set[s]:+.1f}" for s in SETS), f"{gain.average:+.1f}"]

    rows = [
        line(
            f"flow minus whitening ({kind})",
            OTHERS[f"BERT-whitening ({kind})"],
            OTHERS[f"BERT-flow ({kind})"],
        )
        for kind in ("NLI", "target")
    ]
    simcse = OTHERS["unsupervised SimCSE"]
    rows.append(line("unsupervised SimCSE minus flow (NLI)", OTHERS["BERT-flow (NLI)"], simcse))
    return table(["`all`", *SETS.values(), "mean"], rows)


def mean_of_seven(run: str, layers: str, row: str, how: str) -> float:
    (scores,) = (
        one["scores"]
        for one in load_run("table2", run)["results"]["rows"]
        if (one["layers"], one["row"]) == (layers, row) and "model" not in one
    )
    return float(np.mean([np.mean(scores[name][how]) for name in SETS]))


def target_or_nli() -> str:
    def line(label: str, leads: Mapping[str, float]) -> list[str]:
        return [label, *(f"{leads[how]:+.1f}" for how in ("wmean", "all"))]

    flow = {
        "wmean": [PAPER[f"BERT-base-flow ({kind})"].average for kind in ("NLI", "target")],
        "all": [OTHERS[f"BERT-flow ({kind})"].average for kind in ("NLI", "target")],
    }
    whitening = {
        "wmean": [OTHERS[f"BERT-whitening ({k}), wmean"].average for k in ("NLI", "target")],
        "all": [OTHERS[f"BERT-whitening ({k})"].average for k in ("NLI", "target")],
    }
    rows = [
        line(label, {how: target - nli for how, (nli, target) in found.items()})
        for label, found in (
            ("BERT-base, flow (the paper; SimCSE)", flow),
            ("BERT-base, whitening (SimCSE)", whitening),
        )
    ]
    for label, (run, layers) in ENCODERS.items():
        ends = ("flow (target)", "flow (NLI), to convergence")
        rows.append(
            line(
                f"{label}, flow",
                {
                    how: mean_of_seven(run, layers, ends[0], how)
                    - mean_of_seven(run, layers, ends[1], how)
                    for how in ("wmean", "all")
                },
            )
        )
    return table(["target minus NLI", "`wmean`", "`all`"], rows)


TABLES = {
    "SEVEN": seven_sets,
    "AGREE": agreement,
    "WHITE": differences,
    "TARGET": target_or_nli,
}


@pytest.mark.parametrize("name", TABLES)
def test_each_table_is_what_is_stored(name: str) -> None:
    wanted = TABLES[name]()
    assert wanted in PAGE.read_text(encoding="utf-8"), f"the page should have\n{wanted}"


def test_best_rows_of_the_paper_are_what_the_archive_lists() -> None:
    own = [row for row in PAPER.values() if row.aggregation == "wmean"]
    listed = [row for row in OTHERS.values() if row.source.startswith("Papers with Code")]
    found = {name: (row, score) for row in listed for name, score in row.scores.items()}
    assert set(found) == set(SETS)
    for name, (_, score) in found.items():
        assert score == max(one.scores[name] for one in own)
    assert found["sick-r"][0].label != found["stsb"][0].label


def test_how_sure_quotes_the_stored_intervals() -> None:
    page = PAGE.with_name("how_sure.md").read_text(encoding="utf-8")
    for run, layers, family in (
        ("minilm", "4", "none"),
        ("minilm", "last", "none"),
        ("glove", "mean", "none"),
        ("minilm", "4", "natsv"),
        ("smollm2", "last", "natsv"),
        ("mpnet", "9", "whiten"),
        ("mini-bert", "last2avg", "whiten"),
        ("smollm2", "last", "whiten"),
    ):
        (lead,) = (
            row["flow_lead"]
            for row in load_run("table5", run)["results"]["rows"]
            if row["layers"] == layers
            and row["calibrator"].partition(":")[0] == family
            and (family == "none" or "chosen" in row)
        )
        shown = f"{lead['estimate']:+.1f} [{lead['low']:+.1f}, {lead['high']:+.1f}]"
        assert shown.replace("-", "−") in page, f"{run}, {layers}, {family}: {shown}"
