"""The built pages, read as files: nothing from another server, and every figure described."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import links
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.book

# Attributes from which a browser loads something by itself. A plain link (<a href>) is not one.
LOADING = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src", "srcdoc"),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
FIGURE = "application/vnd.plotly.v1+json"
# What prose calls a part of a figure, or tells a reader to do with one.
PART = re.compile(
    r"\b(?:figure|plot|panel|picture|map|film|slider|button|menu|mouse|hover|dot|mark|line|bar|curve"
    r"|cloud|arrow|cross|circle|axis|color|legend|whisker)(?:s|es|ed)?\b|\bpoint at\b|\bchoose\b",
    re.I,
)
ELSEWHERE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
CSS_ELSEWHERE = re.compile(r"""(?:@import\s+|url\()\s*["']?\s*(?:https?:)?//[^)"']+""")
CONTENT_DELIVERY = re.compile(
    r"https?://[\w.-]*(?:cdn\.|jsdelivr|unpkg|cdnjs|googleapis|gstatic|plot\.ly)[^\s\"']*"
)


class Page(HTMLParser):
    """What a page loads, and its figures."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.figures: list[str] = []
        self.divs = 0
        self.images_without_alt: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()  # what a link's #fragment may lead to
        self.headings: list[int] = []
        self.inside = 0  # depth within the page's own text
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        not_loaded = found.get("rel", "") in ("canonical", "next", "prev", "author", "license")
        if not (tag == "link" and not_loaded):
            self.loads += [found[name] for name in LOADING.get(tag, ()) if name in found]
        classes = found.get("class", "").split()
        self.names |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "article":
            self.inside += 1
        elif tag == "a":
            self.links.append(found.get("href", ""))
        elif self.inside and re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "bertflow-figure" in classes:
            self.figures.append(
                found.get("aria-label", "") if found.get("role") == "figure" else ""
            )
        self.divs += "plotly-graph-div" in classes
        if tag == "img" and not found.get("alt", "").strip():
            self.images_without_alt.append(found.get("src", ""))

    def handle_endtag(self, tag: str) -> None:
        self.inside -= tag == "article"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    found = {p.relative_to(site).as_posix(): Page(p) for p in sorted(site.rglob("*.html"))}
    return {name: page for name, page in found.items() if not name.startswith("_static/")}


def _notebook_pages() -> list[Path]:
    return sorted((ROOT / "book").glob("*.ipynb"))


def test_every_page_of_the_contents_is_there(pages: dict[str, Page]) -> None:
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    names = [contents["root"]]
    names += [chapter["file"] for part in contents["parts"] for chapter in part["chapters"]]
    assert {f"{name}.html" for name in names} <= pages.keys()


def test_no_page_loads_anything_from_elsewhere(pages: dict[str, Page]) -> None:
    bad = {n: [u for u in page.loads if ELSEWHERE.match(u)] for n, page in pages.items()}
    assert not {name: urls for name, urls in bad.items() if urls}


def test_no_page_names_a_content_delivery_server(pages: dict[str, Page]) -> None:
    bad = {name: CONTENT_DELIVERY.findall(page.text) for name, page in pages.items()}
    assert not {name: urls for name, urls in bad.items() if urls}


def test_no_style_sheet_loads_anything_from_elsewhere(site: Path) -> None:
    bad = {
        str(path.relative_to(site)): CSS_ELSEWHERE.findall(path.read_text(encoding="utf-8"))
        for path in [*site.rglob("*.css"), *site.rglob("*.html")]
    }
    assert not {name: urls for name, urls in bad.items() if urls}


def test_what_pages_load_is_in_the_site(site: Path, pages: dict[str, Page]) -> None:
    missing = []
    for name, page in pages.items():
        for url in page.loads:
            if url.startswith(("data:", "#")) or ELSEWHERE.match(url):
                continue
            file = (site / name).parent / url.split("?")[0].split("#")[0]
            if not file.exists():
                missing.append(f"{name}: {url}")
    assert not missing


def test_every_stored_figure_is_drawn_and_described(pages: dict[str, Page]) -> None:
    for path in _notebook_pages():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", [])]
        stored = [out for out in outputs if FIGURE in out.get("data", {})]
        page = pages[f"book/{path.stem}.html"]
        assert len(page.figures) == page.divs == len(stored), path.stem
        for label in page.figures:
            assert len(label) >= 20, f"{path.stem}: a figure's description is {label!r}"


def test_every_picture_has_a_description(pages: dict[str, Page]) -> None:
    bad = {name: page.images_without_alt for name, page in pages.items()}
    assert not {name: sources for name, sources in bad.items() if sources}


def test_headings_are_in_order(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        if not name.startswith("book/"):
            continue  # the theme's own: index, search
        assert page.headings[:1] == [1], name
        assert page.headings.count(1) == 1, name
        steps = pairwise(page.headings)
        assert all(after <= before + 1 for before, after in steps), (name, page.headings)


def test_links_between_pages_lead_somewhere(site: Path, pages: dict[str, Page]) -> None:
    broken = []
    for name, page in pages.items():
        for link in page.links:
            target, _, fragment = unquote(link).partition("#")
            if ELSEWHERE.match(link) or link.startswith(("mailto:", "javascript:")):
                continue
            file = (site / name).parent / target.split("?")[0] if target else site / name
            at = file.resolve().relative_to(site.resolve()).as_posix()
            known = at in pages and (not fragment or fragment in pages[at].names)
            if not (known or (at not in pages and file.exists())):
                broken.append(f"{name}: {link}")
    assert not broken


def words_around(cells: list[dict[str, Any]], k: int) -> str:
    """Return the prose before and after a cell, as far as it belongs to the same section."""
    after = next((c for c in cells[k + 1 :] if c["cell_type"] == "markdown"), None)
    before = (
        next((c for c in cells[k - 1 :: -1] if c["cell_type"] == "markdown"), None) if k else None
    )
    words = "".join(before["source"]).rpartition("\n#")[2] if before else ""
    words += "\n" + (("\n" + "".join(after["source"])).partition("\n#")[0] if after else "")
    return " ".join(line for line in words.splitlines() if line and line[0] not in "#:|`")


def own_words(figure: dict[str, Any]) -> set[str]:
    """Return the words that stand in a figure: title, axes, names, notes."""
    layout = figure["layout"]
    axes = [value for name, value in layout.items() if re.fullmatch(r"[xy]axis\d*", name)]
    text = [part.get("title", {}).get("text", "") for part in (layout, *axes)]
    text += [str(trace.get("name", "")) for trace in figure["data"]]
    text += [note.get("text", "") for note in layout.get("annotations", [])]
    plain = re.sub(r"<[^>]*>", " ", " ".join(filter(None, text)))
    return {word.lower() for word in re.findall(r"[A-Za-z]{4,}", plain)}


def is_spoken_of(figure: dict[str, Any], words: str) -> bool:
    """Tell whether some words are about a figure: they name a part of it, or what it shows."""
    shared = own_words(figure) & set(re.findall(r"[a-z]{4,}", words.lower()))
    return len(words.split()) >= 12 and bool(PART.search(words) or len(shared) >= 2)


def test_every_figure_is_spoken_of() -> None:
    """Before or after each figure stand words about it, in the same section."""
    bare = []
    for path in _notebook_pages():
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for k, cell in enumerate(cells):
            for output in cell.get("outputs", []):
                figure = output.get("data", {}).get(FIGURE)
                if figure and not is_spoken_of(figure, words_around(cells, k)):
                    title = figure["layout"].get("title", {}).get("text", "")
                    bare.append(f"{path.stem}, cell {k + 1}: {title}")
    assert not bare


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("Move the slider, and see how the cloud turns round until it stands upright.", "", True),
        (
            "## A section\n\nNothing much.",
            "The mean cosine is high in every layer of this model.",
            True,
        ),
        ("## A section\n\nNothing much.", "# Next\n\nMove the slider, and " + 9 * "so ", False),
        ("## A section\n\nNothing much.", "Short.\n\n## Next\n\nMove the " + 12 * "bar ", False),
        ("Move the slider, and so on and so forth.\n\n## Next\n\nTwo words.", "", False),
        (
            "A dozen words about something else entirely, which nobody can see in it anywhere.",
            "",
            False,
        ),
        ("The slider.", "", False),
    ],
)
def test_figures_without_words_are_noticed(before: str, after: str, expected: bool) -> None:
    title = {"title": {"text": "Mean <b>cosine</b>"}, "xaxis": {"title": {"text": "layer"}}}
    texts = [before, None, "x = 1", after]
    cells = [
        {"cell_type": "markdown" if text in (before, after) else "code", "source": [text or "y"]}
        for text in texts
    ]
    assert is_spoken_of({"layout": title, "data": []}, words_around(cells, 1)) is expected


def test_site_is_small(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 50e6


def test_links_to_other_places_are_listed_and_well_formed(pages: dict[str, Page]) -> None:
    found = links.external()
    assert len(found) > 20
    for address in found:
        assert re.fullmatch(r"https://[\w.-]+\.\w{2,}(?:/\S*)?", address), address
    # What a reader can click on is in the list, apart from this repository and the theme's maker.
    known = {*found, *(links.addresses(" ".join(found)))}
    allowed = (links.own(), "https://colab.research.google.com")
    for name, page in pages.items():
        for link in filter(ELSEWHERE.match, page.links):
            if not link.startswith(allowed):
                assert link.split("#")[0] in known, f"{name}: {link}"


def test_only_pages_with_figures_load_plotly(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert any("plotly.min.js" in url for url in page.loads) == bool(page.divs), name


def test_no_table_is_left_as_marks(pages: dict[str, Page]) -> None:
    assert not [name for name, page in pages.items() if re.search(r"\|\s?[-—–]{3,}", page.text)]


def test_mathjax_is_pruned(site: Path) -> None:
    folder = site / "_static" / "mathjax"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert 1e6 < size < 4e6


def test_no_page_shows_a_path_of_this_machine(site: Path, pages: dict[str, Page]) -> None:
    assert not [name for name, page in pages.items() if str(ROOT) in page.text]


def test_colab_opens_each_notebook(pages: dict[str, Page]) -> None:
    repository = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]
    owner = repository["url"].removeprefix("https://github.com/")
    for path in _notebook_pages():
        link = f"/github/{owner}/blob/{repository['branch']}/book/{path.name}"
        assert link in pages[f"book/{path.stem}.html"].text
