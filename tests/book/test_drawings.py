"""The conceptual drawings: made anew they are the same; each can be read and explains itself."""

import re
from pathlib import Path
from xml.etree import ElementTree

import drawing_kit
import drawings
import figures_pack
import notebooks
import pytest

SVG = "{http://www.w3.org/2000/svg}"
NAMES = list(drawings.DRAWINGS)
Area = tuple[float, float, float, float]


def read(name: str) -> ElementTree.Element:
    return ElementTree.parse(drawings.FOLDER / f"{name}.svg").getroot()


def area_of(text: ElementTree.Element) -> Area:
    """Left, top, right and bottom of a line of words, in a wide font."""
    size = float(text.attrib["font-size"])
    width = drawing_kit.width_of(text.text or "", size, "font-weight" in text.attrib)
    x, y = float(text.attrib["x"]), float(text.attrib["y"])
    left = x - width * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor", "start")]
    return left, y - 0.75 * size, left + width, y + 0.22 * size


def test_made_again_they_are_the_same_files(tmp_path: Path) -> None:
    made = {path.name: path.read_bytes() for path in drawings.write(tmp_path)}
    kept = {path.name: path.read_bytes() for path in drawings.FOLDER.iterdir()}
    assert len(made) >= 10
    assert made == kept, "run `python book/drawings.py`"


@pytest.mark.parametrize("name", NAMES)
def test_says_in_words_what_it_shows(name: str) -> None:
    title, description = read(name)[:2]
    assert (title.tag, description.tag) == (f"{SVG}title", f"{SVG}desc")
    assert title.text
    assert len((description.text or "").split()) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_words_stay_on_the_sheet_in_their_boxes_and_apart(name: str) -> None:
    root = read(name)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    texts = [(text.text, area_of(text)) for text in root.iter(f"{SVG}text")]
    assert texts
    for words, (left, top, right, bottom) in texts:
        assert left >= 5 and right <= width - 5 and top >= 5 and bottom <= height - 5, words
    for k, (words, one) in enumerate(texts):
        for others, other in texts[:k]:
            apart = one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3]
            assert apart or other[1] >= one[3], (words, others)
    for group in root.iter(f"{SVG}g"):
        box = group[0]
        x, y, wide, high = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        assert x >= 2 and x + wide <= width - 2 and y + high <= height - 2
        for text in group.iter(f"{SVG}text"):
            left, top, right, bottom = area_of(text)
            assert x + 1 <= left and right <= x + wide - 1, (name, text.text)
            assert y <= top and bottom <= y + high, (name, text.text)


@pytest.mark.parametrize("name", NAMES)
def test_letters_are_large_and_dark_on_a_card_of_its_own(name: str) -> None:
    root = read(name)
    card = root[2]
    assert (card.get("width"), card.get("height")) == (root.get("width"), root.get("height"))
    assert card.get("fill") == drawing_kit.CARD
    assert root.get("fill") == drawing_kit.INK
    for text in root.iter(f"{SVG}text"):
        assert float(text.attrib["font-size"]) >= drawing_kit.SMALLEST
        assert "fill" not in text.attrib
    used = set(re.findall(r"#[0-9A-Fa-f]{6}", (drawings.FOLDER / f"{name}.svg").read_text("utf-8")))
    assert used <= {drawing_kit.CARD, drawing_kit.INK, *drawing_kit.ROLES.values()}


def test_each_letter_has_a_color_of_its_own() -> None:
    assert len({drawing_kit.ROLES[letter] for letter in "uzhw"}) == 4


def test_shares_of_words_are_those_of_wordfreq() -> None:
    wordfreq = pytest.importorskip("wordfreq")
    for word, share in drawings.WORD_SHARES.items():
        assert wordfreq.word_frequency(word, "en") == pytest.approx(share, rel=0.05)


def test_a_notebook_carries_its_drawings(tmp_path: Path) -> None:
    source = tmp_path / "page.md"
    source.write_text(
        '# Page\n\nText.\n\n![Say "cone" & ball](static/drawings/cone.svg)\n\nMore text.\n', "utf-8"
    )
    (cell,) = notebooks.from_source(source).cells
    found = re.search(
        r'^<img src="data:image/svg\+xml;base64,(\S+)" alt="([^"]+)"', cell.source, re.M
    )
    assert found
    assert (
        figures_pack._bytes_of(f"data:x;base64,{found[1]}")
        == (drawings.FOLDER / "cone.svg").read_bytes()
    )
    assert found[2] == "Say &quot;cone&quot; &amp; ball"
    assert "static/drawings" not in cell.source


@pytest.mark.browser
def test_the_pack_holds_drawings_and_figures_with_titles(tmp_path: Path, chromium: object) -> None:
    notebook = notebooks.BOOK / "05_flows.ipynb"
    stale = tmp_path / "05_flows-99.svg"
    stale.touch()
    entries = figures_pack.write(tmp_path, [notebook], chromium)
    stored = notebook.read_text("utf-8").count(f'"{figures_pack.FIGURE}": {{')
    numbered = [entry for entry in entries if re.fullmatch(r"05_flows-\d\d\.(svg|png)", entry.file)]
    assert [int(entry.file[9:11]) for entry in numbered] == list(range(1, stored + 1))
    assert len(entries) == len(NAMES) + stored
    assert not stale.exists()
    page = (tmp_path / "index.html").read_text("utf-8")
    for entry in entries:
        drawn = (tmp_path / entry.file).read_bytes()
        assert drawn.startswith(b"<svg" if entry.file.endswith("svg") else b"\x89PNG"), entry.file
        assert page.count(f'src="{entry.file}"') == 1
        assert entry.alt
    for entry in numbered:
        if entry.file.endswith("svg"):
            drawn = ElementTree.parse(tmp_path / entry.file).getroot()
            words = "".join("".join(text.itertext()) for text in drawn.iter(f"{SVG}text"))
            assert entry.title.split()[0] in words, entry.file
    assert (tmp_path / "LICENSE").read_text("utf-8").startswith("Attribution 4.0")


def test_the_pack_holds_each_space_of_a_map(tmp_path: Path, chromium: object) -> None:
    notebook = notebooks.BOOK / "06_bert_flow.ipynb"
    entries = figures_pack.write_maps(tmp_path, [notebook], chromium)
    names = ["raw", "weights (idf)", "SN", "whitening", "flow"]
    assert [entry.title for entry in entries] == [f"Map: {name}" for name in names]
    pictures = {(tmp_path / entry.file).read_bytes() for entry in entries}
    assert len(pictures) == len(names)  # dots have moved
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert all("map by UMAP" in entry.alt for entry in entries)
