"""The page that computes: mini-bert and the calibrators in a browser, held against Python."""

import base64
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import try_it_files
from contrast import violations
from looks import show
from safetensors.numpy import load_file

import bertflow_lite as bf
from bertflow_lite.datasets.nli import load_nli_sentences
from bertflow_lite.encoders.transformer import Encoder
from bertflow_lite.flow import Glow

ROOT = Path(__file__).resolve().parents[2]
PROSE = (ROOT / "book" / "try_it.md").read_text(encoding="utf-8")
STORED = json.loads(try_it_files.ORIGIN.read_text(encoding="utf-8"))
SPACES = try_it_files.SPACES
NAMES = {"raw": "raw", "rarity": "weights by rarity", "sn": "SN", "whiten": "whitening"}
NAMES |= {"flow": "flow"}
LAYERS = STORED["how"]["layers"]
pytestmark = [pytest.mark.book, pytest.mark.browser]

HARD = [
    "Naïve café — “quoted”, Ångström e\u0301 ﬁne ﬂow ½ №",
    "ΟΔΥΣΣΕΥΣ ΣΑΣ, İstanbul IĞDIR, ß ẞ STRASSE ǅ",
    "日本語のテスト 한국어 시험 ภาษาไทย नमस्ते दुनिया",
    "שלום עולם مرحبا بالعالم ﷺ",
    "👩‍👩‍👧 😀 𝒜𝓑 𝟙 🇫🇷",
    "[SEP] and [MASK]x[CLS] but [sep] [ MASK ]",
    "it's  a\u00a0test\u3000ok a\u200bb\u200dc\ufeffd a\u0000b\ufffdc \ue000",
    "e.g., $5.00 don't well-known a\u0338b x_y 3.14 #tag @me C++",
    "\t\n\r",
    "",
    " ",
    "x" * 100,
    "x" * 101,
    "word " * 100,
    "antidisestablishmentarianism pseudopseudohypoparathyroidism",
    "line one\nline two\r\nline three\u2028four",
]
# What a reader may put in, and what the page then says; JavaScript, since a lone surrogate is no
# text that could be sent to the browser.
ODD = {
    "''": "nothing to read in the second",
    "' \\n\\t '": "nothing to read in the second",
    "'\\u200b\\u200d'": "nothing to read in the second",
    "'\\ud800'": "half a character",
    "'\\udc00 A cat \\ud800 sleeps.'": "half a character",
    "'word '.repeat(2000)": "more pieces than the model takes",
    "'x'.repeat(10000)": "does not know",
    "'😀👍'": "does not know",
    "'مرحبا بالعالم، كيف حالك اليوم؟'": "",
    "'\\u202eevil\\u202c text'": "",
    "'<img src=x onerror=alert(1)>'": "",
    "'!'": "",
    "'0'": "",
}


LATER_ROWS = ".try-it-matrix tbody tr:nth-child(n + 5)"  # they look like the first four
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Opened:
    """The page in a browser, the model loaded, and all that it asked for."""

    def __init__(
        self,
        chromium: Any,
        site: Path,
        width: int = 1280,
        theme: str = "light",
    ) -> None:
        size = {"width": width, "height": 900}
        self.page = chromium.new_page(viewport=size, color_scheme=theme)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._listen)
        self.page.goto((site / "book" / "try_it.html").as_uri(), wait_until="load")

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def load(self) -> "Opened":
        self.page.click("#bertflow-load")
        self.page.evaluate("() => bertflow.ready")
        return self

    def said(self, place: str = "#bertflow-pair") -> str:
        return str(self.page.inner_text(f"{place} [role=status]"))

    def compare_many(self, lines: str) -> None:
        self.page.fill("#bertflow-sentences", lines)
        self.page.click("#bertflow-compare")
        said = self.page.locator("#bertflow-many [role=status]", has_text="were compared")
        said.wait_for()


@pytest.fixture(scope="module")
def opened(chromium: Any, site: Path) -> Iterator[Opened]:
    each = Opened(chromium, site).load()
    yield each
    each.page.close()


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """mini-bert with its full weights."""
    loaded = bf.load_encoder("mini-bert", device="cpu", cache=False)
    assert isinstance(loaded, Encoder)
    return loaded


def read_script(site: Path, name: str) -> tuple[dict[str, Any], bytes]:
    """Give what a data script holds, as the browser gets it."""
    text = (site / "_static" / f"try_it_{name}.js").read_text(encoding="ascii")
    content = json.loads(text.partition(f".{name} = ")[2].rstrip().removesuffix(";"))
    return content, base64.b64decode(content["data"])


@pytest.fixture(scope="module")
def rounded(site: Path) -> Encoder:
    """mini-bert with the weights that the page has."""
    content, data = read_script(site, "model")
    head, width = content["head"], content["head"]["width"]

    def matrix(entry: dict[str, Any], wide: int) -> torch.Tensor:
        whole = np.frombuffer(data, "i1", entry["rows"] * wide, entry["at"]).reshape(-1, wide)
        scale = np.frombuffer(data, "<f4", entry["rows"], entry["scale"])
        return torch.from_numpy(whole * scale[:, None])

    encoder = bf.load_encoder("mini-bert", device="cpu", cache=False)
    assert isinstance(encoder, Encoder)
    model = encoder.model
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.copy_(matrix(head["words"], width))
        for layer, block in zip(model.encoder.layer, head["blocks"], strict=True):
            attention = layer.attention.self
            three = matrix(block["attend"], width).chunk(3)
            linears = (attention.query, attention.key, attention.value)
            for linear, weight in zip(linears, three, strict=True):
                linear.weight.copy_(weight)
            layer.attention.output.dense.weight.copy_(matrix(block["mix"], width))
            layer.intermediate.dense.weight.copy_(matrix(block["up"], width))
            layer.output.dense.weight.copy_(matrix(block["down"], head["inner"]))
    return encoder


class Stored:
    """The calibrators and weights of data/try_it, in the package's own classes."""

    def __init__(self) -> None:
        arrays = load_file(try_it_files.FITTED)
        self.arrays = arrays
        n = STORED["how"]["fitted"]
        self.weights = np.log((1 + n) / (1 + arrays["rarity.holding"])) + 1
        self.sn = bf.Standardizer()
        self.sn.mean_, self.sn.scale_ = arrays["sn.mean"], arrays["sn.scale"]
        self.whiten = bf.Whitener(STORED["how"]["whitened"])
        self.whiten.mean_ = arrays["whiten.mean"]
        self.whiten.variances_ = arrays["whiten.variances"]
        self.whiten.directions_ = arrays["whiten.directions"]
        self.flow = Glow(len(arrays["sn.mean"]), **STORED["how"]["flow"])
        prefix = "flow."
        state = {k: torch.from_numpy(v) for k, v in arrays.items() if k.startswith(prefix)}
        self.flow.load_state_dict({k.removeprefix(prefix): v for k, v in state.items()})

    def spaces(self, encoder: Encoder, sentences: list[str]) -> dict[str, Any]:
        raw = encoder.encode(sentences, layers=LAYERS)
        with torch.inference_mode():
            z = self.flow(torch.from_numpy(raw))[0].numpy()
        return {
            "raw": raw,
            "rarity": encoder.encode(sentences, LAYERS, weights=bf.TokenWeights(self.weights)),
            "sn": self.sn._transform(raw),
            "whiten": self.whiten._transform(raw),
            "flow": z,
        }

    def cosines(self, encoder: Encoder, pairs: Any) -> np.ndarray:
        """Cosines of each pair in each space, shape (n_pairs, n_spaces)."""
        ones = self.spaces(encoder, list(pairs.sentences1))
        twos = self.spaces(encoder, list(pairs.sentences2))
        return np.stack([bf.cosine(ones[name], twos[name]) for name in SPACES], axis=1)


@pytest.fixture(scope="module")
def stored() -> Stored:
    return Stored()


@pytest.fixture(scope="module")
def sample(thorough: bool) -> np.ndarray:
    """Which pairs of mini-sts the page is asked for: from all over it, or all of them."""
    return np.arange(0, 420, 1 if thorough else 14)


@pytest.fixture(scope="module")
def in_page(opened: Opened, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and shares of pairs of mini-sts as the page computes them."""
    pairs = bf.load_sts("mini-sts").select(sample)
    found = opened.page.evaluate(
        """([ones, twos, spaces]) => ones.map((one, k) => {
          const found = bertflow.compare(one, twos[k]);
          return [spaces.map(name => found[name]), spaces.map(name => found.shares[name])];
        })""",
        [list(pairs.sentences1), list(pairs.sentences2), list(SPACES)],
    )
    both = np.array(found)
    return both[:, 0], both[:, 1]


def test_the_page_asks_for_nothing_until_the_button_is_pressed(chromium: Any, site: Path) -> None:
    """The button tells the size, and who cannot wait is told to press it."""
    each = Opened(chromium, site)
    data = re.compile("try_it_(model|fitted)")
    files = [site / "_static" / f"try_it_{name}.js" for name in ("model", "fitted")]
    size = sum(path.stat().st_size for path in files)
    assert each.page.inner_text("#bertflow-load") == f"Load the model ({size / 1e6:.0f} MB)"
    said = each.page.evaluate(
        "() => { try { bertflow.compare('a', 'b'); } catch (error) { return error.message; } }"
    )
    assert "Press the button" in said
    assert not any(map(data.search, each.asked))
    each.load()
    here = (site / "_static").as_uri()
    wanted = [f"{here}/try_it_fitted.js", f"{here}/try_it_model.js"]
    assert sorted(filter(data.search, each.asked)) == wanted
    each.page.fill("#bertflow-one", "Xylophones of my own.")
    each.compare_many("One xylophone.\nTwo.\nThree.")
    assert sorted(filter(data.search, each.asked)) == wanted
    # What other scripts of the page still fetch then is in the site, and no sentence goes along.
    assert all(url.startswith((site.as_uri(), "data:", "blob:")) for url in each.asked)
    assert not [url for url in each.asked if "xylophone" in url.lower()]
    assert not each.complaints
    each.page.close()


def test_the_page_can_send_nothing(opened: Opened) -> None:
    refused = opened.page.evaluate(
        "() => fetch('http://127.0.0.1:9/').then(() => false, error => error.name === 'TypeError')"
    )
    violated = [text for text in opened.complaints if "Content Security Policy" in text]
    opened.complaints.clear()
    assert refused and violated


@pytest.fixture(scope="module")
def by_rounded(rounded: Encoder, stored: Stored) -> np.ndarray:
    """Cosines of all pairs of mini-sts, by Python with the weights that the page has."""
    return stored.cosines(rounded, bf.load_sts("mini-sts"))


def test_pairs_are_as_in_python_with_the_same_weights(
    in_page: tuple[np.ndarray, np.ndarray], by_rounded: np.ndarray, sample: np.ndarray
) -> None:
    assert by_rounded.shape == (420, len(SPACES)) and len(sample) >= 30
    np.testing.assert_allclose(in_page[0], by_rounded[sample], rtol=0, atol=1e-5)


def test_all_pairs_are_near_python_with_the_full_weights(
    by_rounded: np.ndarray, encoder: Encoder, stored: Stored
) -> None:
    expected = stored.cosines(encoder, bf.load_sts("mini-sts"))
    np.testing.assert_allclose(by_rounded, expected, rtol=0, atol=0.01)
    assert np.abs(by_rounded - expected).max() > 1e-4  # the weights are others


def test_shares_are_those_of_the_random_pairs(
    in_page: tuple[np.ndarray, np.ndarray], stored: Stored
) -> None:
    cosines, shares = in_page
    for column, name in enumerate(SPACES):
        quantiles = stored.arrays[f"shares.{name}"]
        expected = np.interp(cosines[:, column], quantiles, np.linspace(0, 1, len(quantiles)))
        np.testing.assert_allclose(shares[:, column], expected, atol=1e-6)
    assert 0 < shares.min() < shares.max() <= 1


def test_scores_in_the_page_are_those_that_were_stored(
    in_page: tuple[np.ndarray, np.ndarray], by_rounded: np.ndarray, sample: np.ndarray
) -> None:
    cosines = by_rounded.copy()  # where the page was not asked, Python computes with its weights
    cosines[sample] = in_page[0]
    gold = bf.load_sts("mini-sts").gold
    for column, name in enumerate(SPACES):
        score = 100 * bf.spearman(cosines[:, column], gold)
        # Rounding the weights moves a few pairs by a rank or two.
        assert score == pytest.approx(STORED["scores"]["mini-sts"][name], abs=0.3)


def test_token_numbers_are_those_of_transformers(opened: Opened, encoder: Encoder) -> None:
    pairs = bf.load_sts("mini-sts")
    texts = [*HARD, *dict.fromkeys(pairs.sentences)]
    wanted = encoder.tokenizer(texts, truncation=True, max_length=64)["input_ids"]
    found = opened.page.evaluate("texts => texts.map(text => bertflow.tokenize(text).ids)", texts)
    assert [t for t, a, b in zip(texts, wanted, found, strict=True) if a != b] == []


@pytest.mark.parametrize("text", ODD)
def test_odd_sentences_get_an_answer_or_a_sentence(text: str, opened: Opened) -> None:
    numbers = opened.page.evaluate(
        f"""() => {{
          const found = bertflow.compare('A cat sleeps.', {text});
          return [found.message, {json.dumps(SPACES)}.map(name => found[name])];
        }}"""
    )
    message, cosines = numbers
    if message:
        assert cosines == [None] * len(SPACES)
    else:
        assert all(isinstance(value, int | float) and abs(value) <= 1 for value in cosines)
    opened.page.evaluate(
        f"""() => {{
          document.getElementById('bertflow-one').value = 'A cat sleeps.';
          const box = document.getElementById('bertflow-two');
          box.value = {text};
          document.querySelector('#bertflow-pair [role=status]').textContent = '';
          box.dispatchEvent(new Event('input', {{bubbles: true}}));
        }}"""
    )
    opened.page.wait_for_function(
        "() => document.querySelector('#bertflow-pair [role=status]').innerText !== ''"
    )
    assert ODD[text] in opened.said()
    assert bool(message) == ("nothing to read" in opened.said())
    assert not re.search("NaN|undefined|null", opened.page.inner_text("#bertflow-pair"))
    assert not opened.complaints


def test_a_model_that_is_missing_is_said_and_can_be_tried_again(
    chromium: Any, site: Path, tmp_path: Path
) -> None:
    (tmp_path / "book").mkdir()
    shutil.copy(site / "book" / "try_it.html", tmp_path / "book")
    (tmp_path / "_static").mkdir()
    for file in (site / "_static").iterdir():
        (tmp_path / "_static" / file.name).symlink_to(file)
    fitted = tmp_path / "_static" / "try_it_fitted.js"
    fitted.rename(tmp_path / "away.js")
    each = Opened(chromium, tmp_path)
    each.page.click("#bertflow-load")
    each.page.locator("#bertflow-start", has_text="could not be loaded").wait_for()
    assert "try_it_fitted.js is missing" in each.said("#bertflow-start")
    assert each.page.evaluate("() => document.activeElement.id") == "bertflow-load"
    (tmp_path / "away.js").rename(fitted)
    each.load()
    assert each.page.is_visible("#bertflow-one")
    each.page.close()


def test_without_javascript_there_is_a_sentence_and_no_button(chromium: Any, site: Path) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "book" / "try_it.html").as_uri())
    assert "needs JavaScript" in page.inner_text("#bertflow-start")
    assert page.query_selector("#bertflow-load") is None
    context.close()


def test_everything_can_be_reached_by_keyboard_and_the_first_map_is_as_told(
    chromium: Any, site: Path
) -> None:
    each = Opened(chromium, site)
    page = each.page
    page.focus("#bertflow-load")
    page.keyboard.press("Enter")
    page.evaluate("() => bertflow.ready")
    assert page.evaluate("() => document.activeElement.id") == "bertflow-one"
    status = page.locator("#bertflow-pair [role=status]")
    assert status.get_attribute("aria-live") == "polite"
    before = status.inner_text()
    page.keyboard.press("Control+A")
    page.keyboard.type("Snow fell all night.")
    page.wait_for_function(
        "before => document.querySelector('#bertflow-pair [role=status]').innerText !== before",
        arg=before,
    )
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "bertflow-two"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")  # the last example
    before = status.inner_text()
    page.keyboard.press("Space")
    assert status.inner_text() != before
    page.focus("#bertflow-sentences")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".try-it-nearest")
    check_what_the_prose_says_of_the_first_map(page)
    assert page.evaluate("() => document.activeElement.id") == "bertflow-compare"
    ids = []
    for _ in range(4):
        page.keyboard.press("Tab")
        ids.append(page.evaluate("() => document.activeElement.id"))
    assert ids == ["bertflow-space", "", "", "bertflow-neighbor"]  # two maps that can scroll
    before = page.inner_text(".try-it-nearest")
    page.keyboard.press("ArrowDown")
    assert page.inner_text(".try-it-nearest") != before
    page.close()


def test_the_filled_page_is_accessible_and_keeps_its_width(
    chromium: Any, site: Path, thorough: bool
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    each = Opened(chromium, site).load()
    each.page.fill("#bertflow-two", "Pneumonoultramicroscopicsilicovolcanoconiosis" * 20)
    known: set[str] = set()
    for lines in ("", "\n".join(f"Number {k} is a sentence with a few words." for k in range(30))):
        if lines:
            each.compare_many(lines)
        else:
            each.page.click("#bertflow-compare")  # the sentences that stand there
            each.page.wait_for_selector(".try-it-nearest")
        for width, theme in ((1280, "light"), (1280, "dark"), (400, "light")):
            show(each.page, width=width, theme=theme)
            assert each.page.evaluate(TOO_WIDE) <= 0, (width, theme)
            found = violations(
                each.page,
                axe,
                ".bd-article",
                colors=True,
                others=theme == "light",  # only colors differ in the dark
                every=thorough,
                alike="" if thorough else LATER_ROWS,
                known=known,
            )
            assert not list(found), (width, theme, lines)
    each.page.close()


def test_print_has_the_answer_and_no_buttons(opened: Opened) -> None:
    opened.page.emulate_media(media="print")
    assert opened.page.is_visible(".try-it-cosines")
    assert opened.page.is_visible("#bertflow-one")
    assert not opened.page.is_visible(".try-it-examples")
    assert not opened.page.is_visible("#bertflow-compare")
    opened.page.emulate_media(media="screen")


def matrices(page: Any) -> list[list[list[float]]]:
    return page.evaluate(
        """() => Array.from(document.querySelectorAll('.try-it-matrix'), table =>
          Array.from(table.tBodies[0].rows, row => Array.from(row.cells).slice(1).map(
            cell => Number(cell.textContent.replace('\\u2212', '-')))))"""
    )


def test_many_sentences_give_both_maps_and_neighbors(opened: Opened) -> None:
    page = opened.page
    lines = ["A cat sleeps.", "A dog sleeps.", "Rates were raised.", "The bank lends money."]
    opened.compare_many("\n\n".join(lines) + "\n\u200b\n")
    assert opened.said("#bertflow-many").startswith("4 sentences were compared.")
    assert "1 line has nothing to read" in opened.said("#bertflow-many")
    raw, flow = matrices(page)
    for space, shown in (("raw", raw), ("flow", flow)):
        wanted = page.evaluate(
            "([lines, space]) => lines.map(a => lines.map(b => bertflow.compare(a, b)[space]))",
            [lines, space],
        )
        np.testing.assert_allclose(shown, wanted, atol=0.005001)
    page.select_option("#bertflow-neighbor", "1")
    order = np.argsort(-np.array(flow[1]))
    nearest = [cell.inner_text() for cell in page.query_selector_all(".try-it-nearest td")]
    assert nearest[3].startswith(lines[next(k for k in order if k != 1)])
    page.select_option("#bertflow-space", "sn")
    assert matrices(page)[0] == raw and matrices(page)[1] != flow


def test_fifty_sentences_are_the_most(opened: Opened) -> None:
    opened.compare_many("\n".join(f"Sentence {k}." for k in range(53)))
    said = opened.said("#bertflow-many")
    assert "53 sentences; the first 50 are compared" in said
    raw, flow = matrices(opened.page)
    assert np.array(raw).shape == np.array(flow).shape == (50, 50)
    assert np.isfinite(raw).all() and np.isfinite(flow).all()
    opened.page.fill("#bertflow-sentences", "Only one.")
    opened.page.click("#bertflow-compare")
    opened.page.wait_for_function(
        "() => document.querySelector('#bertflow-many [role=status]').innerText.includes('Two')"
    )
    assert not opened.page.query_selector_all(".try-it-matrix")


@pytest.fixture(scope="module")
def examples(opened: Opened) -> dict[str, dict[str, tuple[float, float]]]:
    """Cosine and share of each example in each space, by the example's name."""
    found = {}
    for button in opened.page.query_selector_all(".try-it-examples button"):
        button.click()
        both = [opened.page.input_value(f"#bertflow-{name}") for name in ("one", "two")]
        each = opened.page.evaluate("([one, two]) => bertflow.compare(one, two)", both)
        found[button.inner_text()] = {name: (each[name], each["shares"][name]) for name in SPACES}
    return found


def closer(examples: dict[str, Any], example: str, space: str) -> str:
    """How many of 100 random pairs are closer, as the prose writes it."""
    return f"{100 * (1 - examples[example][space][1]):.0f}"


def test_the_prose_says_what_the_examples_show(
    examples: dict[str, dict[str, tuple[float, float]]],
) -> None:
    described = re.findall(r"^(.+)\n: ", PROSE.partition("### What to look for")[2], re.M)
    assert set(described) == set(examples) - {"Nothing to do with each other"}
    assert min(cosine for cosine, _ in examples["Roles swapped"].values()) > 0.9
    assert min(share for _, share in examples["One word turned"].values()) > 0.999
    raw, flow = (closer(examples, "No word in common", name) for name in ("raw", "flow"))
    assert f"raw space {raw} of 100 random pairs are closer, and after the flow {flow}" in PROSE
    assert int(flow) > int(raw)
    raw, whiten, flow = (
        closer(examples, "Other words, same matter", name) for name in ("raw", "whiten", "flow")
    )
    assert (
        f"In the raw space {raw} of 100 random pairs are closer; after whitening {whiten}, "
        f"after the flow {flow}." in PROSE
    )
    assert min(share for _, share in examples["Same frame, other matter"].values()) > 0.99
    for cosine, _ in examples["Two pictures"].values():
        assert cosine == pytest.approx(1, abs=1e-12)


def check_what_the_prose_says_of_the_first_map(page: Any) -> None:
    """The sentences that stand there are compared."""
    rows = page.query_selector_all(".try-it-nearest tbody tr")
    cells = [[cell.inner_text() for cell in row.query_selector_all("td")] for row in rows]
    assert "sandwich" in cells[0][1] and "sandwich" in cells[0][2]
    assert "musician" in cells[1][1] and "musician" in cells[4][2]
    assert "from second place to fifth" in PROSE
    raw, flow = (np.array(each)[~np.eye(9, dtype=bool)] for each in matrices(page))
    assert raw.min() > 0.5 and np.median(flow) < 0.1


def test_the_prose_says_what_was_stored(stored: Stored) -> None:
    how = STORED["how"]
    assert f"fitted on {how['fitted']:,} sentences" in PROSE
    assert f"Another {how['paired']:,} of them gave {how['random_pairs']:,} random" in PROSE
    middle = {name: np.median(stored.arrays[f"shares.{name}"]) for name in ("raw", "flow")}
    assert f"raw cosine above {middle['raw']:.2f}" in PROSE
    assert f"half of them are above {middle['flow']:.2f}" in PROSE
    for name, title in (("stsb", "STS benchmark, test"), ("mini-sts", "mini-sts")):
        scores = [f"{STORED['scores'][name][space]:.1f}" for space in SPACES]
        assert f"| {title} | {' | '.join(scores)} |" in PROSE


def test_what_was_stored_belongs_to_the_model(encoder: Encoder) -> None:
    assert STORED["how"]["fingerprint"] == encoder.fingerprint
    assert STORED["how"]["max_length"] == encoder.max_length


def test_data_fitted_on_other_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"how": {**STORED["how"], "weights_sha256": "0" * 64}}
    (tmp_path / "other.json").write_text(json.dumps(other), encoding="utf-8")
    monkeypatch.setattr(try_it_files, "ORIGIN", tmp_path / "other.json")
    monkeypatch.setattr(try_it_files, "ROOT", tmp_path)
    monkeypatch.setattr(try_it_files, "MODEL_FOLDER", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"other weights .* run `python book/try_it_fit\.py`"):
        try_it_files.fitted_head(try_it_files.Blob())


def test_rows_are_rounded_to_half_a_step() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float16)
    rows[1] = 0
    blob = try_it_files.Blob()
    blob.add(b"odd")
    entry = try_it_files.Entry("F16", rows.shape, memoryview(rows.tobytes()))
    found = blob.rows([entry])
    whole = np.frombuffer(blob.data, "i1", rows.size, found["at"]).reshape(rows.shape)
    scale = np.frombuffer(blob.data, "<f4", found["rows"], found["scale"])
    assert found["at"] % 4 == found["scale"] % 4 == 0
    assert np.abs(whole).max(axis=1).tolist() == [127, 0, 127, 127, 127]
    error = np.abs(whole * scale[:, None] - rows.astype(np.float32))
    assert (error <= scale[:, None] * 0.5001).all()


@pytest.mark.data
def test_what_was_stored_can_be_made_again(
    encoder: Encoder, stored: Stored, real_data: Path
) -> None:
    """On five hundred sentences that were not fitted on: spread, and where random pairs come."""
    import try_it_fit

    nli = load_nli_sentences()
    if nli.fingerprint != STORED["how"]["sentences_fingerprint"]:
        pytest.skip("other NLI sentences than those that were fitted on")
    rows = try_it_fit.choose(len(nli))[1][::10][:500]  # from all parts of the list
    embedded = stored.spaces(encoder, [nli.sentences[row] for row in rows])
    for name in ("sn", "whiten"):
        assert np.abs(embedded[name].mean(axis=0)).mean() < 0.05
        assert embedded[name].std(axis=0).mean() == pytest.approx(1, abs=0.05)
    first, second = np.random.default_rng(0).integers(500, size=(2, 4000))
    different = first != second
    for name in SPACES:
        quantiles = stored.arrays[f"shares.{name}"]
        cosines = bf.cosine(embedded[name][first[different]], embedded[name][second[different]])
        shares = np.interp(cosines, quantiles, np.linspace(0, 1, len(quantiles)))
        np.testing.assert_allclose(
            np.quantile(shares, [0.25, 0.5, 0.75]), [0.25, 0.5, 0.75], atol=0.04
        )
