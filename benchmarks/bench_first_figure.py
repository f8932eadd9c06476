"""How soon the first figure of a page stands, beside the same page as it was built before.

The book must be built (`make book`). Four of its pages are copied, and the copies go back to what
they were: the whole of Plotly, icons and formulas before it, and every figure drawn as soon as the
library is there. A headless Chromium opens both in turns, each time in a new context with nothing
cached. What counts is the time from the start of the navigation to the frame in which the first
figure has its drawing. The median of several rounds counts for each page, and the ratio of the two.
Written to benchmarks/results/first_figure.json; the exit status is 1 when a ratio is above the
goal.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from machine import describe_machine
from playwright.sync_api import sync_playwright

from bertflow_lite.files import write_json

SITE = Path(__file__).resolve().parents[1] / "_build" / "html"
PAGES = ("intro", "04_anisotropy", "05_flows", "14_watching")
GOAL = 0.40
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NEAR = re.compile(r'<script data-later="([^"]*)" src="[^"]*figures_near\.js[^"]*"></script>')
ICONS = "fontawesome.js"
# Asks before each frame; the frame in which the drawing is there ends with it on the screen.
WATCH = """
window.firstFigure = new Promise(resolve => {
  const look = () => {
    const box = document.querySelector('.plotly-graph-div');
    if (box && box.querySelector('.main-svg')) setTimeout(() => resolve(performance.now()));
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
});
"""


def as_it_was(site: Path, folder: Path) -> None:
    """Copy the pages with the whole library, and without the script that keeps things back."""
    shutil.copytree(site / "_static", folder / "_static")
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None
    library = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    shutil.copyfile(library, folder / "_static" / "plotly.min.js")
    (folder / "book").mkdir()
    for name in PAGES:
        text = (site / "book" / f"{name}.html").read_text(encoding="utf-8")
        found = NEAR.search(text)
        if found is None:
            raise SystemExit(f"{name}.html does not load figures_near.js: run `make book` first.")
        icons = [f'<script src="{each}"></script>' for each in found[1].split() if ICONS in each]
        later = [each for each in found[1].split() if ICONS not in each]
        formulas = [f'<script defer="defer" src="{each}"></script>' for each in later]
        text = text.replace(found[0], "".join(icons), 1)
        text = text.replace("</head>", "".join([*formulas, "</head>"]), 1)
        (folder / "book" / f"{name}.html").write_text(text, encoding="utf-8")


def milliseconds(browser: Any, page: Path) -> float:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.add_init_script(WATCH)
    opened.goto(page.as_uri(), wait_until="commit")
    spent = float(opened.evaluate("() => window.firstFigure"))
    context.close()
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        raise SystemExit("no Chromium found")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        before = Path(folder)
        as_it_was(SITE, before)
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        for name in PAGES:
            times: dict[Path, list[float]] = {before: [], SITE: []}
            for number in range(rounds + 1):
                for site, spent in times.items():
                    taken = milliseconds(browser, site / "book" / f"{name}.html")
                    if number:  # the first round fills the system's own file cache
                        spent.append(taken)
            old, new = (statistics.median(spent) for spent in times.values())
            row = {"page": name, "rounds": rounds, "goal": GOAL, "ratio": round(new / old, 3)}
            rows.append(row | {"before_milliseconds": round(old), "milliseconds": round(new)})
            print(
                f"{name:14s} before {old:6.0f} ms   now {new:6.0f} ms   "
                f"ratio {new / old:.2f}   (goal: {GOAL:g})"
            )
        said = f"Chromium {browser.version}"
        browser.close()
    result = {"machine": describe_machine("plotly"), "rows": rows, "browser": said}
    write_json(Path(__file__).parent / "results" / "first_figure.json", result)
    return int(any(row["ratio"] > GOAL for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
