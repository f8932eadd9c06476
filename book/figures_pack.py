"""Collect the book's drawings and figures, for slides: files with titles, and an index.

    python book/figures_pack.py [--out FOLDER] [NAME ...]      all chapters, into _build/figures

A figure is drawn from what its notebook has stored, in a headless Chromium, with the Plotly that
is installed; nothing is run again. `05_flows-03.svg` is the third figure of chapter 5. A figure
with a menu or a slider is shown as it opens. Figures that need WebGL become PNG, and so do the
maps of sentences, one file for each of their spaces: `06_bert_flow-map-5.png`.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import drawings
from notebooks import BOOK, ROOT, sources

FOLDER = ROOT / "_build" / "figures"
FIGURE = "application/vnd.plotly.v1+json"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH, HEIGHT = 900, 420
LICENSE_LINE = "From “BERT-flow, from the ground up”, CC BY 4.0 (see LICENSE)."
MAP = '<div class="bertflow-map"'
ONLY_THE_MAP = ".bertflow-map :is(.tools:not(.legend), .near) { display: none !important; }"
DRAW = """async ({figure, format, width, height}) => {
  figure.layout = {...figure.layout, paper_bgcolor: "#FFFFFF", autosize: false, width, height};
  figure.layout.font = {...figure.layout.font, color: "#1F2328"};
  const box = document.getElementById("box");
  await Plotly.newPlot(box, {...figure, config: {staticPlot: true}});
  const scale = format === "png" ? 2 : 1;
  return Plotly.toImage(box, {format, width, height, scale});
}"""


@dataclass(frozen=True)
class Entry:
    """One file of the pack.

    Attributes
    ----------
    file : str
        Its name.
    title, alt : str
        What it is called, and what one sees.
    """

    file: str
    title: str
    alt: str


def plain(text: str) -> str:
    """Return a title without the tags that Plotly understands."""
    return html.unescape(re.sub(r"<[^>]+>", " ", text)).strip()


def figures_of(notebook: Path) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Give each stored figure of a notebook, in order, with its entry.

    Parameters
    ----------
    notebook : Path
        An executed `.ipynb`.

    Yields
    ------
    entry, figure : Entry, dict
        What the index says of it, and Plotly's JSON.
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = (output for cell in cells for output in cell.get("outputs", []))
    stored = [output["data"][FIGURE] for output in outputs if FIGURE in output.get("data", {})]
    for number, figure in enumerate(stored, start=1):
        layout = figure["layout"]
        title = plain(str(layout.get("title", {}).get("text") or f"Figure {number}"))
        alt = str((layout.get("meta") or {}).get("alt") or title)
        # What WebGL draws cannot become lines of an SVG.
        webgl = any(
            re.search("gl$|3d$|surface|mesh", trace.get("type", "")) for trace in figure["data"]
        )
        ending = "png" if webgl else "svg"
        yield Entry(f"{notebook.stem}-{number:02d}.{ending}", title, alt), figure


def write_drawings(folder: Path) -> list[Entry]:
    """Write the conceptual drawings, each with its chapter's number if a chapter shows it."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(BOOK.glob("[01]*.md"))}
    entries = []
    for name, draw in drawings.DRAWINGS.items():
        sheet = draw()
        shown = (path.stem for path, text in texts.items() if f"drawings/{name}.svg" in text)
        entry = Entry(f"{next(shown, 'drawing')}-{name}.svg", sheet.title, sheet.description)
        (folder / entry.file).write_text(sheet.svg(), encoding="utf-8")
        entries.append(entry)
    return entries


def write_figures(folder: Path, notebooks: Sequence[Path], browser: Any) -> list[Entry]:
    """Draw the stored figures of some notebooks in a browser of playwright's."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("The figures are drawn with the package plotly: install it first.")
    page = browser.new_page(viewport={"width": WIDTH, "height": 800})
    page.set_default_timeout(120_000)
    page.set_content('<!doctype html><div id="box"></div>')
    page.add_script_tag(path=Path(spec.origin).parent / "package_data" / "plotly.min.js")
    entries = []
    for notebook in notebooks:
        for entry, figure in figures_of(notebook):
            layout = figure["layout"]
            template = layout.get("template", {}).get("layout", {})
            height = layout.get("height") or template.get("height") or HEIGHT
            size = {"width": WIDTH, "height": height}
            kind = Path(entry.file).suffix[1:]
            address = page.evaluate(DRAW, {"figure": figure, "format": kind, **size})
            (folder / entry.file).write_bytes(_bytes_of(address))
            entries.append(entry)
    page.close()
    return entries


def write_maps(folder: Path, notebooks: Sequence[Path], browser: Any) -> list[Entry]:
    """Take a picture of each space of the maps that some notebooks have stored."""
    entries = []
    for notebook in notebooks:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        stored = (output.get("data", {}) for cell in cells for output in cell.get("outputs", []))
        found = ("".join(data.get("text/html", "")) for data in stored)
        number = 0
        for text in (one for one in found if one.startswith(MAP)):
            size = {"width": WIDTH, "height": 800}
            page = browser.new_page(viewport=size, device_scale_factor=2, reduced_motion="reduce")
            page.set_content(f"<!doctype html><style>{ONLY_THE_MAP}</style>{text}")
            element = page.locator(".bertflow-map")
            page.wait_for_function("() => document.querySelector('.bertflow-map').explorer")
            for step, name in enumerate(element.locator(".step").all_text_contents()):
                number += 1
                page.evaluate("k => document.querySelectorAll('.step')[k].click()", step)
                file = f"{notebook.stem}-map-{number}.png"
                element.screenshot(path=folder / file)
                entries.append(
                    Entry(file, f"Map: {name}", str(element.get_attribute("aria-label")))
                )
            page.close()
    return entries


def _bytes_of(address: str) -> bytes:
    """Return what an address that starts with `data:` holds."""
    from urllib.parse import unquote_to_bytes

    head, _, body = address.partition(",")
    return base64.b64decode(body) if head.endswith("base64") else unquote_to_bytes(body)


def index(entries: Sequence[Entry]) -> str:
    """Return the page that lists the pack."""
    parts = [
        f'<figure><img src="{entry.file}" alt="{html.escape(entry.alt)}" loading="lazy">'
        f"<figcaption><b>{html.escape(entry.title, quote=False)}</b> ({entry.file})<br>"
        f"{html.escape(entry.alt, quote=False)}</figcaption></figure>"
        for entry in entries
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<title>Drawings and figures</title><style>body{font-family:system-ui,sans-serif;"
        "max-width:60rem;margin:auto;padding:1rem;background:#fff;color:#1f2328}"
        "img{max-width:100%;height:auto}figure{margin:0 0 3rem}</style></head><body>\n"
        f"<h1>Drawings and figures</h1>\n<p>{LICENSE_LINE}</p>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def write(folder: Path, notebooks: Sequence[Path], browser: Any) -> list[Entry]:
    """Write the whole pack: drawings, figures, index and license.

    Parameters
    ----------
    folder : Path
        Where to; what lies there of an older pack goes.
    notebooks : sequence of Path
        The executed notebooks.
    browser : playwright.sync_api.Browser
        What draws the figures.

    Returns
    -------
    list of Entry
        One for each file of the index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.svg"), *folder.glob("*.png")]:
        old.unlink()
    entries = write_drawings(folder) + write_figures(folder, notebooks, browser)
    entries += write_maps(folder, notebooks, browser)
    (folder / "index.html").write_text(index(entries), encoding="utf-8")
    shutil.copyfile(BOOK / "LICENSE", folder / "LICENSE")
    return entries


def main() -> None:
    """Write the pack."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER")
    arguments = parser.parse_args()
    named = os.environ.get("CHROMIUM")
    program = named or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        parser.exit(1, "No Chromium found: install one, or name it in CHROMIUM.\n")
    notebooks = [source.with_suffix(".ipynb") for source in sources(arguments.names)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        entries = write(arguments.out, notebooks, browser)
        browser.close()
    print(f"{len(entries)} drawings and figures: see {arguments.out / 'index.html'}")


if __name__ == "__main__":
    main()
