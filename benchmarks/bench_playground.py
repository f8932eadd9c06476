"""Frames a second of chapter 5's playground: 500 points, depth 6, width 16, training all the while.

The book must be built (`make book`). A headless Chromium plays for some seconds. What counts is the
processor time of the page's thread for each frame, in which other load on the machine does not
enter; the frames a second stand beside it. Written to benchmarks/results/playground.json; the exit
status is 1 when a frame costs more than 1/30 second.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from machine import describe_machine
from playwright.sync_api import sync_playwright

from bertflow_lite.files import write_json

PAGE = Path(__file__).resolve().parents[1] / "_build" / "html" / "book" / "05_flows.html"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 5
GOAL = 30
FRAMES = "() => [bertflowFlow.playground.frames, performance.now()]"


def main() -> int:
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None or not PAGE.exists():
        raise SystemExit("this needs a Chromium and the built book (`make book`)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1300})
        page.goto(PAGE.as_uri(), wait_until="load")
        page.evaluate(
            "() => document.querySelector('#flow-playground').scrollIntoView({behavior: 'instant'})"
        )
        page.wait_for_function("() => bertflowFlow.playground")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def cpu_seconds() -> float:
            metrics = session.send("Performance.getMetrics")["metrics"]
            return next(entry["value"] for entry in metrics if entry["name"] == "TaskDuration")

        page.click("#flow-playground .flow-play")
        page.wait_for_timeout(2000)  # the engine compiles what it runs often
        spent, (frames, started) = cpu_seconds(), page.evaluate(FRAMES)
        page.wait_for_timeout(1000 * SECONDS)
        spent, (last, ended) = cpu_seconds() - spent, page.evaluate(FRAMES)
        shown = last - frames
        said = f"Chromium {browser.version}"
        browser.close()
    per_frame = 1000 * spent / shown
    row = {
        "frames_per_second": round(1000 * shown / (ended - started), 1),
        "cpu_milliseconds": round(per_frame, 2),
        "goal": round(1000 / GOAL, 1),
    }
    result = {"machine": describe_machine(), "rows": [row], "browser": said}
    write_json(Path(__file__).parent / "results" / "playground.json", result)
    print(
        f"{row['frames_per_second']:.0f} frames a second; {per_frame:.1f} ms of processor "
        f"time for each   (goal: {1000 / GOAL:.1f} ms)"
    )
    return int(per_frame > 1000 / GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
