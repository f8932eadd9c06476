"""Every symbol in a formula of the book has a line in the table of the notation page."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
TABLE = BOOK / "notation.md"
PAGES = sorted(BOOK.glob("*.md"))

# What everyone can read, and what only lays a formula out.
PLAIN = {
    "frac", "tfrac", "sqrt", "left", "right", "big", "Big", "underbrace", "textstyle", "quad",
    "qquad", "log", "exp", "ln", "cos", "det", "sum", "int", "partial", "mid", "approx", "sim",
    "in", "ne", "to", "pm", "times", "cdot", "dots", "|", ",", ";", "!", ".", ":", "\\", "{", "}",
}  # fmt: skip
FONTS = {"mathbf": "bold", "boldsymbol": "bold", "mathcal": "script", "mathbb": "blackboard",
         "bar": "mean of"}  # fmt: skip
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[{}_^']|[A-Za-z0-9]|[^\sA-Za-z0-9]", re.S)


class Symbol(NamedTuple):
    """A letter in its font, and the index below it."""

    letter: str
    index: str = ""

    def __str__(self) -> str:
        return f"{self.letter}_{self.index}" if self.index else self.letter


def formulas(text: str) -> Iterator[str]:
    """Yield what stands between dollar signs, outside code."""
    text = re.sub(r"^(`{3,})(?!\{math).*?^\1\s*$", "", text, flags=re.S | re.M)
    text = re.sub(r"`[^`\n]+`", "", text)
    for found in re.finditer(r"\$\$(.*?)\$\$|(?<![\\$])\$([^$\n]+)\$(?!\$)", text, re.S):
        yield found[1] or found[2]


def symbols(formula: str) -> set[Symbol]:
    """Return the symbols of a formula; primes, powers and words in it are none."""
    formula = re.sub(r"\\text\{[^}]*\}|\\(?:begin|end)\{[^}]*\}|\{array\}", " ", formula)
    # A name such as PMI is one symbol.
    names = re.findall(r"\\(?:mathrm|operatorname)\{([^}]*)\}", formula)
    formula = re.sub(r"\\(?:mathrm|operatorname)\{[^}]*\}", " ", formula)
    found = {Symbol(name) for name in names}
    _read(TOKEN.findall(formula), found)
    return found


def _read(tokens: list[str], found: set[Symbol]) -> None:
    """Collect the symbols of some tokens."""
    at = 0
    while at < len(tokens):
        letter, at = _letter(tokens, at)
        index = ""
        while at < len(tokens) and tokens[at] in ("_", "^", "'"):
            if tokens[at] == "'":
                at += 1
                continue
            below = tokens[at] == "_"
            inside, at = _group(tokens, at + 1)
            if below and letter:
                index = "".join(part for part in inside if part not in ("{", "}", "'"))
            else:
                _read(inside, found)
        if letter:
            found.add(Symbol(letter, index))


def _letter(tokens: list[str], at: int) -> tuple[str, int]:
    """Return the letter that begins here, or nothing, and where it ends."""
    token, name = tokens[at], tokens[at].removeprefix("\\")
    if name in FONTS and token != name:
        inside, end = _group(tokens, at + 1)
        letter, _ = _letter(inside, 0)
        return f"{FONTS[name]} {letter}", end
    if token.isalpha() or (token[0] == "\\" and name not in PLAIN):
        return token, at + 1
    return "", at + 1


def _group(tokens: list[str], at: int) -> tuple[list[str], int]:
    """Return what is inside the braces that begin here, or the one token, and where it ends."""
    if tokens[at] != "{":
        return [tokens[at]], at + 1
    depth = 0
    for end in range(at, len(tokens)):
        depth += {"{": 1, "}": -1}.get(tokens[end], 0)
        if depth == 0:
            return tokens[at + 1 : end], end + 1
    raise ValueError(f"a brace is not closed: {' '.join(tokens)}")


def rows(text: str) -> list[tuple[str, str, str]]:
    """Return the lines of the table: symbols, meaning, places."""
    cells = [
        re.split(r"(?<!\\) \| ", line.strip("| ")) for line in text.splitlines() if "|" in line
    ]
    # \mid, not |, stands for a bar in the table.
    return [(c[0], c[1], c[2]) for c in cells if len(c) == 3 and "$" in c[0]]


def explained(text: str) -> set[Symbol]:
    """Return the symbols that have a line in the table."""
    return {s for first, *_ in rows(text) for part in formulas(first) for s in symbols(part)}


def unexplained(page: str, table: str) -> list[str]:
    """Return the symbols of a page that the table lacks.

    A letter with an index is explained by its own line, or by those of the letter and of the index.
    """
    known = explained(table)
    alone = {symbol.letter for symbol in known if not symbol.index}
    missing = set()
    for symbol in {s for formula in formulas(page) for s in symbols(formula)}:
        letters = re.findall(r"\\?[A-Za-z]+", symbol.index)
        if symbol not in known and not {symbol.letter, *letters} <= alone:
            missing.add(str(symbol))
    return sorted(missing)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_symbols_have_a_line_in_the_table(page: Path) -> None:
    missing = unexplained(page.read_text(encoding="utf-8"), TABLE.read_text(encoding="utf-8"))
    assert not missing, f"add to the table of {TABLE.name}, or rename: {missing}"


def test_symbols_are_used_where_the_table_says() -> None:
    lines = rows(TABLE.read_text(encoding="utf-8"))
    assert len(lines) > 40
    wrong = []
    for first, _, places in lines:
        wanted = {symbol for part in formulas(first) for symbol in symbols(part)}
        assert wanted, first
        for name in re.findall(r"\{doc\}`(\w+)`", places):
            text = (BOOK / f"{name}.md").read_text(encoding="utf-8")
            met = {s for formula in formulas(text) for s in symbols(formula)}
            met |= {Symbol(part) for s in met for part in re.findall(r"\\?[A-Za-z]+", s.index)}
            met |= {Symbol(s.letter) for s in met}
            if not wanted & met:
                wrong.append(f"{first}: not in {name}")
    assert not wrong


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"\mathbf{h}'^\top_c\mathbf{w}_{x'}", {r"bold h_c", r"bold w_x", r"\top"}),
        (r"\boldsymbol\mu + \boldsymbol{\Sigma}_{-w}^{-1}", {r"bold \mu", r"bold \Sigma_-w"}),
        (r"\sum_k \frac{\lambda_k}{\lambda_k + a}", {"k", r"\lambda_k", "a"}),
        (
            r"\mathrm{PMI}(x, c) = \text{words} \bar{\mathbf{p}}",
            {"PMI", "x", "c", "mean of bold p"},
        ),
        (r"e^{\,s(\mathbf{u}_1)} \odot \log 2", {"e", "s", "bold u_1", r"\odot"}),
    ],
)
def test_how_symbols_are_read(formula: str, expected: set[str]) -> None:
    assert {str(symbol) for symbol in symbols(formula)} == expected


def test_a_symbol_without_a_line_is_noticed() -> None:
    table = r"| $b_x$ | bias | here |" + "\n" + r"| $\mathbf{u}$, $s$ | embedding | here |"
    page = "Let $b$ and $\\mathbf{u}_s$ be.\n\n$$\n\\mathbf{u}_k = \\nu v_s\n$$\n\n`$q$`\n"
    assert unexplained(page, table) == [r"\nu", "b", "bold u_k", "v_s"]
    assert unexplained("$b_x$, $\\mathbf{u}$, $\\mathbf{u}_1$", table) == []
