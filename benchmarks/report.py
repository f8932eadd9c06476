"""The tables of book/benchmarks.md, from benchmarks/results/*.json.

``python benchmarks/report.py`` prints them; with ``--write`` it puts them into the page, each
between a pair of comments such as ``<!-- flow: from benchmarks/results/flow.json -->`` and
``<!-- end -->``.  The page's words are not touched.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "book" / "benchmarks.md"
Result = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine(result: Result) -> str:
    found = result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return f"{found['processor']}, Python {found['python']}, {versions}; {found['date']}."


def goal(row: Result) -> str:
    return "" if row.get("goal") is None else f"{row['goal']:g}"


def flow(result: Result) -> str:
    rows = [
        [
            f"{row['what']}, batch {row['batch']}, {row['levels']} levels",
            row["name"],
            f"{row['cpu_milliseconds']:.2f}",
            f"{row['ratio']:.2f}",
            goal(row),
        ]
        for row in result["rows"]
    ]
    return table(["what", "by", "CPU ms", "times ours", "goal"], rows) + "\n\n" + machine(result)


def encode(result: Result) -> str:
    rows = [
        [
            f"{row['threads']} thread" + "s" * (row["threads"] > 1),
            row["name"],
            f"{row['sentences_per_second']:.1f}",
            f"{row['ratio']:.2f}",
            goal(row),
        ]
        for row in result["rows"]
    ]
    text = table(["with", "by", "sentences/s", "times the peer's speed", "goal"], rows)
    text += f"\n\n{result['sentences']} sentences of {result['data']}. Largest difference between "
    text += f"the normalized float32 vectors: {result['largest_difference']:.1e}. "
    if "lowest_cosine_bfloat16" in result:
        lowest = result["lowest_cosine_bfloat16"]
        text += f"Lowest cosine of a bfloat16 vector with the peer's: {lowest:.4f}. "
    return text + machine(result)


def static(result: Result) -> str:
    rows = [
        [
            row["name"],
            f"{row['score']:.2f}",
            f"{row['sentences_per_second']:,}",
            f"{row['ratio']:.1f}",
            goal(row),
        ]
        for row in result["rows"]
    ]
    head = [
        "what",
        f"{result['data']}, Spearman x 100",
        "sentences/s",
        "times the encoder's",
        "goal",
    ]
    return table(head, rows) + "\n\n" + machine(result)


def query(result: Result) -> str:
    rows = [
        [row["name"], f"{row['cpu_milliseconds']:.2f}", f"{row['ratio']:.2f}"]
        for row in result["rows"]
    ]
    return table(["step", "CPU ms", "times encoding"], rows) + "\n\n" + machine(result)


def memory(result: Result) -> str:
    rows = [
        [
            f"{row['name']}, {row['rows']:,} rows",
            f"{row.get('input_megabytes', row.get('output_megabytes')):.1f}",
            f"{row['start_megabytes']:.1f}",
            f"{row['peak_megabytes']:.1f}",
        ]
        for row in result["rows"]
    ]
    head = ["what", "the embeddings, MB", "before the work, MB", "peak, MB"]
    return table(head, rows) + "\n\n" + machine(result)


def mapped(result: Result) -> str:
    rows = [
        [
            f"{row['kind']}, {row['rows']:,} rows",
            f"{row['fit_cpu_seconds']:.1f}",
            f"{row['peak_megabytes']:.0f}",
            f"{row['peak_megabytes'] - row['start_megabytes']:.0f}",
        ]
        for row in result["rows"]
    ]
    head = ["what", "fit, CPU s", "peak, MB", "above the start, MB"]
    return table(head, rows) + "\n\n" + machine(result)


def pretraining(result: Result) -> str:
    rows = [
        [row["name"], f"{row['pieces_per_cpu_second']:,.0f}", f"{row['ratio']:.2f}"]
        for row in result["rows"]
    ]
    head = ["a step with", "pieces per CPU second", "times the cost of a piece"]
    return table(head, rows) + "\n\n" + machine(result)


def try_it(result: Result) -> str:
    rows = [
        [
            row["name"],
            f"{row['wall_milliseconds']:,.0f}",
            f"{row['cpu_milliseconds']:,.0f}",
            goal(row),
        ]
        for row in result["rows"]
    ]
    text = table(["what", "ms", "CPU ms", "goal, ms"], rows)
    text += f"\n\nMemory of the page's process: {result['megabytes']} MB at the end (goal: "
    text += f"{result['most_megabytes']}), {result['megabytes_at_start']} MB before the press. "
    return text + f"{result['browser']}; " + machine(result)


def playground(result: Result) -> str:
    rows = [
        [
            f"{row['frames_per_second']:.0f}",
            f"{row['cpu_milliseconds']:.1f}",
            goal(row),
        ]
        for row in result["rows"]
    ]
    text = table(["frames a second", "CPU ms for each", "goal, CPU ms"], rows)
    return text + f"\n\n{result['browser']}; " + machine(result)


def first_figure(result: Result) -> str:
    rows = [
        [
            "the opening page" if row["page"] == "intro" else f"chapter {int(row['page'][:2])}",
            f"{row['before_milliseconds']:,}",
            f"{row['milliseconds']:,}",
            f"{row['ratio']:.2f}",
            goal(row),
        ]
        for row in result["rows"]
    ]
    text = table(["page", "before, ms", "now, ms", "ratio", "goal"], rows)
    return text + f"\n\n{result['browser']}; " + machine(result)


TABLES: dict[str, Callable[[Result], str]] = {
    "flow": flow,
    "encode": encode,
    "static": static,
    "query": query,
    "memory": memory,
    "mapped": mapped,
    "pretraining": pretraining,
    "try_it": try_it,
    "playground": playground,
    "first_figure": first_figure,
}


def make_table(name: str) -> str | None:
    """Give the table of a stored result, or None when there is none."""
    path = HERE / "results" / f"{name}.json"
    if not path.exists():
        return None
    return TABLES[name](json.loads(path.read_text(encoding="utf-8")))


def between(name: str) -> re.Pattern[str]:
    """Match what stands between the page's markers of a table."""
    start = rf"(?<=<!-- {name}: from benchmarks/results/{name}\.json -->\n\n)"
    return re.compile(start + r".*?(?=\n\n<!-- end -->)", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    write = parser.parse_args().write
    page = PAGE.read_text(encoding="utf-8")
    for name in TABLES:
        made = make_table(name)
        if made is None:
            print(f"{name}: no stored result; run benchmarks/bench_{name}.py\n")
            continue
        print(f"{name}\n\n{made}\n")
        page = between(name).sub(lambda _, made=made: made, page)
    if write:
        PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
