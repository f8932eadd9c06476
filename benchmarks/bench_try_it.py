"""The page `book/try_it` in a headless Chromium, opened as a file: time and memory.

Time from the press of the button to the first answer, in pages opened anew; time of a pair of
sentences that the page has not seen, short ones and ones of 64 pieces; time of fifty sentences; and
the memory of the process that shows the page (proportional set size, the browser's own part of it
included), at the end of all this. The fastest round counts, since other work on the machine can
only slow a page down; the CPU time of the page's process stands beside it. Written to
benchmarks/results/try_it.json; the exit status is 1 when a goal is missed.

Needs the built book (`make book`) and a Chromium; CHROMIUM names another one.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from machine import describe_machine
from playwright.sync_api import Browser, Page, sync_playwright

from bertflow_lite.datasets.sts import load_sts
from bertflow_lite.files import write_json

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "_build" / "html" / "book" / "try_it.html"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ROUNDS, PAIRS = 5, 20
FIRST, SHORT = "first answer after the press", "a pair of sentences"
LONG, FIFTY = "a pair of 64 pieces each", "fifty sentences"
GOALS = {FIRST: 2000, SHORT: 300}  # milliseconds, at most
MOST_MEMORY = 300  # megabytes

BUSY = "() => { const end = performance.now() + 500; while (performance.now() < end) {} }"
PRESS = """async () => {
  const start = performance.now();
  document.getElementById('bertflow-load').click();
  await bertflow.ready;
  return performance.now() - start;
}"""
COMPARE = """([one, two]) => {
  const start = performance.now();
  bertflow.compare(one, two);
  return performance.now() - start;
}"""
MANY = """async lines => {
  document.getElementById('bertflow-sentences').value = lines.join('\\n');
  const start = performance.now();
  document.getElementById('bertflow-compare').click();
  while (document.querySelectorAll('.try-it-matrix').length < 2)
    await new Promise(resolve => setTimeout(resolve, 5));
  return performance.now() - start;
}"""


class Watched:
    """A page and the process that shows it."""

    def __init__(self, browser: Browser) -> None:
        self.session = browser.new_browser_cdp_session()
        self.page: Page = browser.new_page()
        self.page.goto(PAGE.as_uri(), wait_until="networkidle")
        # Spare processes wait beside the page's own, which shows itself by its work.
        before = self._renderers()
        self.page.evaluate(BUSY)
        after = self._renderers()
        self.pid = max(after, key=lambda pid: after[pid] - before.get(pid, 0))

    def _renderers(self) -> dict[int, float]:
        found = self.session.send("SystemInfo.getProcessInfo")["processInfo"]
        return {each["id"]: each["cpuTime"] for each in found if each["type"] == "renderer"}

    def time(self, program: str, argument: Any = None) -> tuple[float, float]:
        """Run JavaScript that gives milliseconds; give these and the process's CPU time."""
        before = self._renderers()[self.pid]
        wall: float = self.page.evaluate(program, argument)
        return wall, 1000 * (self._renderers()[self.pid] - before)

    def megabytes(self) -> float:
        rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii")
        found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.M)
        assert found
        return int(found[1]) / 1000


def fastest(name: str, times: list[tuple[float, float]]) -> dict[str, object]:
    wall, cpu = min(times)
    row: dict[str, object] = {"name": name, "rounds": len(times)}
    return row | {
        "wall_milliseconds": round(wall, 1),
        "cpu_milliseconds": round(cpu, 1),
        "goal": GOALS.get(name),
    }


def measure(browser: Browser) -> dict[str, Any]:
    pairs = load_sts("mini-sts")
    both = list(zip(pairs.sentences1, pairs.sentences2, strict=True))
    presses = []
    for _ in range(ROUNDS):
        watched = Watched(browser)
        at_start = watched.megabytes()
        presses.append(watched.time(PRESS))
        if len(presses) < ROUNDS:
            watched.page.close()
    watched.time(COMPARE, ["warm", "up"])
    short = [watched.time(COMPARE, list(pair)) for pair in both[:PAIRS]]
    long = [watched.time(COMPARE, [" ".join([word] * 70) for word in ("a", "b")])]
    long += [watched.time(COMPARE, [f"{k} " * 70, f"{k + 1} " * 70]) for k in range(0, 10, 2)]
    fifty = [watched.time(MANY, list(pairs.sentences1[100:150]))]
    return {
        "rows": [
            fastest(FIRST, presses),
            fastest(SHORT, short),
            fastest(LONG, long),
            fastest(FIFTY, fifty),
        ],
        "megabytes_at_start": round(at_start),
        "megabytes": round(watched.megabytes()),
        "most_megabytes": MOST_MEMORY,
        "browser": f"Chromium {browser.version}",
    }


def main() -> int:
    if not PAGE.exists():
        raise SystemExit(f"{PAGE.relative_to(ROOT)} is missing: run `make book` first.")
    named = os.environ.get("CHROMIUM")
    program = named or next(filter(None, map(shutil.which, CHROMIUM)), None)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        result = {"machine": describe_machine(), **measure(browser)}
        browser.close()
    write_json(Path(__file__).parent / "results" / "try_it.json", result)
    for row in result["rows"]:
        goal = f"   (goal: {row['goal']})" if row["goal"] else ""
        print(
            f"{row['name']:30s} {row['wall_milliseconds']:8.1f} ms   "
            f"CPU {row['cpu_milliseconds']:8.1f} ms{goal}"
        )
    print(
        f"memory {result['megabytes']} MB, before the press {result['megabytes_at_start']} MB",
        end="",
    )
    print(f" (goal: {MOST_MEMORY})")
    missed = [
        row for row in result["rows"] if row["goal"] and row["wall_milliseconds"] > row["goal"]
    ]
    return int(bool(missed) or result["megabytes"] > MOST_MEMORY)


if __name__ == "__main__":
    raise SystemExit(main())
