"""Spelling of the prose, American throughout; words that no dictionary has are in words.txt."""

import re
from pathlib import Path

import pytest
from spellchecker import SpellChecker

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("words.txt")
FOUND = [*(ROOT / "book").glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "data").glob("*.md")]
# The reference pages are made from docstrings and the command line: names and options mostly.
PAGES = sorted(page for page in FOUND if not page.name.startswith("api"))

# What is not prose, in the order in which it is taken out.
NOT_PROSE = [
    re.compile(r"\A---\n.*?\n---\n", re.S),  # front matter
    re.compile(r"^(`{3,}|~{3,})(?!\{(?:glossary|tip|note)).*?^\1\s*$", re.S | re.M),  # code
    re.compile(r"<!--.*?-->", re.S),
    re.compile(r"\$\$.*?\$\$", re.S),
    re.compile(r"(?<!\$)\$[^$\n]+\$"),
    re.compile(r"^( {4,})\S.*$", re.M),  # indented code
    re.compile(r"\{[\w:-]+\}`[^`]+`"),  # roles: citations, pages
    re.compile(r"`[^`]+`"),
    re.compile(r"\]\([^)]*\)"),  # targets of links
    re.compile(r'</?[a-z]+|\b(?:id|src|width)="[^"]*"|\balt='),  # HTML, but for descriptions
    re.compile(r"https?://\S+|\S+@\S+"),
    re.compile(r"^:{3,}.*$|^:[\w-]+:.*$", re.M),  # directives and their options
    re.compile(r"\\[a-zA-Z]+"),
]
WORD = re.compile(r"[A-Za-zÀ-ÿ]+(?:['’][A-Za-z]+)?")
SMALL = re.compile(r"[A-Z]?[a-zà-ÿ]+(?:['’][a-z]+)?")


def prose(text: str) -> str:
    """Return the words of a page without code, formulas, names of files and links."""
    for pattern in NOT_PROSE:
        text = pattern.sub(" ", text)
    return text


def words(text: str) -> set[str]:
    """Return the words to look up; abbreviations and names like NumPy are none."""
    found = set()
    for word in WORD.findall(prose(text)):
        if SMALL.fullmatch(word) and len(word) > 2:
            found.add(re.sub(r"['’](s|d|t|ll|re|ve)?$", "", word))
    return found


@pytest.fixture(scope="module")
def dictionary() -> SpellChecker:
    checker = SpellChecker(language="en")  # its English is American
    own = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    checker.word_frequency.load_words([word.lower() for word in own if word])
    return checker


def misspelled(text: str, dictionary: SpellChecker) -> list[str]:
    found = {word for word in words(text) if word.lower() not in dictionary}
    # "don" of "don't" is no word; the dictionary has the whole
    return sorted(word for word in found if f"{word.lower()}'t" not in dictionary)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_spelling(page: Path, dictionary: SpellChecker) -> None:
    unknown = misspelled(page.read_text(encoding="utf-8"), dictionary)
    assert not unknown, f"misspelled, or to be added to tests/book/{LIST.name}: {unknown}"


def test_british_words_and_slips_are_noticed(dictionary: SpellChecker) -> None:
    text = "The colour of teh centre, `colour`, $colour$ and {doc}`behaviour`; don't analyse."
    assert misspelled(text, dictionary) == ["analyse", "centre", "colour", "teh"]


def test_code_is_no_prose(dictionary: SpellChecker) -> None:
    text = "A word.\n\n```{code-cell} ipython3\nxqzt = 1\n```\n\nAnother one.\n"
    assert misspelled(text, dictionary) == []
    assert "Another" in words(text)


def test_no_listed_word_is_british_for_an_american_one(dictionary: SpellChecker) -> None:
    own = {line.lower() for line in LIST.read_text(encoding="utf-8").splitlines()}
    american = SpellChecker(language="en")
    pairs = [("our", "or"), ("ise", "ize"), ("ised", "ized"), ("ising", "izing"),
             ("isation", "ization"), ("yse", "yze"), ("tre", "ter"), ("elling", "eling"),
             ("elled", "eled"), ("ogue", "og")]  # fmt: skip
    bad = [
        word
        for word in own
        for british, here in pairs
        if word.endswith(british) and word[: -len(british)] + here in american
    ]
    assert not bad


# British forms, some of which the dictionary takes for American; here docstrings are read as well.
BRITISH = re.compile(
    r"\b(?:(?:mis)?spelt|learnt|dreamt|burnt|whilst|amongst|fulfil|skilful|maths|judgements?"
    r"|(?:label|model|travel|signal|cancel|channel|level)l(?:ed|ing|ers?)"
    r"|(?:initial|normal|standard|optim|organ|real|recogn|regular|summar|token|visual|general|minim"
    r"|maxim|util|character|factor|vector|random|categor|emphas|penal|equal|serial|synchron)"
    r"is(?:e[drs]?|ing|ations?)|analys(?:ed?|ing)"
    r"|(?:un)?(?:colour|behaviour|favour|neighbour|honour|labour|flavour)\w*"
    r"|centre[ds]?|metres?|grey\w*|licences?|(?:de|of)fences?|artefacts?|programmes?|catalogues?"
    r"|practis(?:e[ds]?|ing))\b",
    re.I,
)
SOURCES = sorted({*(ROOT / "bertflow_lite").rglob("*.py"), *FOUND})


@pytest.mark.parametrize("file", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_british_forms(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    found = [f"line {k}: {m[0]}" for k, line in enumerate(lines, 1) for m in BRITISH.finditer(line)]
    assert not found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learnt by labelled pairs, language-modelling; misspelt", 4),
        ("tokenisation initialised optimiser Neighbours centred licence", 6),
        ("learned labeled modeling spelled, revised exercises, an optimistic premise, levels", 0),
    ],
)
def test_british_forms_are_noticed(text: str, expected: int) -> None:
    assert len(BRITISH.findall(text)) == expected
