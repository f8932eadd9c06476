"""Fixtures: the built book, and a browser to look at it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
PATIENCE = 600_000  # milliseconds: a busy machine is no fault of a page
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def _is_stale() -> bool:
    stamp = SITE / ".built"
    if not stamp.exists():
        return True
    read = [*(ROOT / "book").rglob("*"), *(ROOT / "bertflow_lite").rglob("*.py")]
    read += [path for name in ("models", "try_it") for path in (ROOT / "data" / name).rglob("*")]
    files = [path for path in read if "__pycache__" not in path.parts]
    newest = max(path.stat().st_mtime for path in [*files, ROOT / "_config.yml", ROOT / "_toc.yml"])
    return newest > stamp.stat().st_mtime


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built book, built first when it is missing or stale."""
    (ROOT / "_build").mkdir(exist_ok=True)
    with FileLock(ROOT / "_build" / "site.lock"):  # one worker builds, the others wait
        if _is_stale():
            for folder in ("html", ".doctrees"):
                shutil.rmtree(ROOT / "_build" / folder, ignore_errors=True)
            tool = Path(sys.executable).with_name("jupyter-book")
            command = [str(tool), "build", "-W", "-n", "--keep-going", "--quiet", "."]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
            (SITE / ".built").touch()
    return SITE


# What can be set in a tab as well as in a window of its own.
OF_A_TAB = {"viewport", "color_scheme", "reduced_motion"}
# Tabs share what a page keeps for its next visit; each starts with nothing.
FORGET = "try { localStorage.clear(); } catch { /* a page without an address keeps nothing */ }"


def _patient(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let a page wait as long as it takes, where it would give up after half a minute."""

    def made(**options: Any) -> Any:
        new = make(**options)
        new.set_default_timeout(PATIENCE)
        return new

    return made


def _tabs(browser: Any) -> Callable[..., Any]:
    """Give pages as tabs of one window, where those before have read and compiled the scripts.

    A first tab stays open, empty: without any, the process that draws them would end.
    """
    window = browser.new_context()
    window.add_init_script(FORGET)
    window.new_page()
    alone = browser.new_page

    def new_page(**options: Any) -> Any:
        if not options.keys() <= OF_A_TAB:
            return alone(**options)
        page = window.new_page()
        if size := options.pop("viewport", None):
            page.set_viewport_size(size)
        page.emulate_media(**options)
        return page

    return new_page


@pytest.fixture(scope="module")  # closed where no page is looked at: others need the memory
def chromium() -> Iterator[object]:
    """A headless Chromium, driven by playwright."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    named = os.environ.get("CHROMIUM")
    program = named or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("no Chromium found (install one, or name it in CHROMIUM)")
    quiet = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=quiet, timeout=PATIENCE)
        browser.new_page = _patient(_tabs(browser))  # type: ignore[method-assign]
        browser.new_context = _patient(browser.new_context)  # type: ignore[method-assign]
        yield browser
        browser.close()
