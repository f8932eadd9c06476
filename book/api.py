"""Sphinx extension: the API reference, made from the docstrings each time the book is built.

Two fences are understood in a page:

- ``{api-module} flow`` gives the whole of ``bertflow_lite/flow.py``: what its ``__all__`` names,
  with signature and NumPy docstring;
- ``{api-names}`` over a list of names of ``bertflow_lite.__all__`` gives the summary of each, and
  a link.

A name in single backticks becomes a link where it is documented, and code elsewhere, so that the
build needs no list of names to be forgiven.
"""

from __future__ import annotations

import re
from functools import cache
from textwrap import indent
from typing import Any

from api_source import (
    ENTRIES,
    FENCE,
    PACKAGE,
    Item,
    entries,
    public_modules,
    public_names,
    read_module,
    sections,
)
from sphinx.application import Sphinx


@cache
def targets() -> dict[str, list[str]]:
    """Give, for what can be linked to, each way to write it and the full names it may mean."""
    out: dict[str, list[str]] = {}
    for module in map(read_module, public_modules()):
        for item in module.items:
            if item.kind == "alias":
                continue
            full = f"{module.name}.{item.name}"
            for name in [full, *(f"{full}.{part.name}" for part in item.parts)]:
                words = name.split(".")
                for start in range(len(words)):
                    out.setdefault(".".join(words[start:]), []).append(name)
    return out


def link(name: str, place: str) -> str:
    """Write a name that stood in single backticks, in the documentation of ``place``."""
    shown = name.removeprefix("~")
    found = targets().get(shown, [])
    near = [one for one in found if one.startswith(f"{place}.")] or [
        one for one in found if one.startswith(place.rpartition(".")[0] + ".")
    ]
    chosen = near if len(near) == 1 else found
    short = shown.rpartition(".")[2] if name.startswith("~") else shown
    if len(chosen) != 1 or chosen[0] == place:
        return f"``{short}``"
    return f":py:obj:`{short} <{chosen[0]}>`"


def to_rst(text: str, place: str) -> str:
    """Turn a docstring's text into reStructuredText that means the same in the built page."""
    out: list[str] = []
    plain: list[str] = []  # lines of running text that wait: a name in backticks may go over two
    literal = -1  # indentation of the line whose "::" began a literal block
    doctest = False
    for line in [*text.split("\n"), ""]:
        depth = len(line) - len(line.lstrip())
        if line.strip() and depth <= literal:
            literal = -1
        doctest = bool(line.strip()) and (doctest or line.lstrip().startswith(">>>"))
        if line.strip() and literal < 0 and not doctest:
            plain.append(re.sub(r"^( *)\* ", r"\1- ", line))
            if line.rstrip().endswith("::"):
                literal = depth
            continue
        if plain:
            out.append(_inline("\n".join(plain), place))
            plain.clear()
        out.append(line)
    return "\n".join(out).rstrip() + "\n"


def _inline(text: str, place: str) -> str:
    pieces = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    for i, piece in enumerate(pieces):
        if piece.startswith("``"):
            continue
        if piece.startswith("`"):
            pieces[i] = link(piece.strip("`"), place)
            continue
        piece = piece.replace("|", r"\|")
        piece = re.sub(r"(?<=\w)_(?!\w)", r"\_", piece)
        # Asterisks that do not stand around *words*.
        pieces[i] = re.sub(r"\*(?!\w[^*\n]*\w\*)(?<!\w\*)", r"\\*", piece)
    return "".join(pieces)


def docstring(doc: str, place: str) -> str:
    """Write a NumPy docstring: sections under small headings, entries as definition lists."""
    out = []
    for title, text in sections(doc).items():
        if title:
            out.append(f".. rubric:: {title}\n")
        out.append(_entries(text, place) if title in ENTRIES else to_rst(text.strip("\n"), place))
    return "\n".join(out)


def _entries(section: str, place: str) -> str:
    out = []
    for head, text in entries(section):
        name, colon, kind = head.partition(" : ")
        term = _inline(head if not colon else kind, place)
        if colon:
            term = f"**{_inline(name, place)}** : {term}"
        out.append(term + "\n" + indent(to_rst(text, place) if text else "\\ \n", "    "))
    return "\n".join(out)


def module_rst(name: str) -> str:
    """Write a module of the package; ``name`` is dotted, as in an import."""
    module = read_module(name)
    aliases = {full: short for short, full in public_names().items()}
    out = [f".. py:module:: {name}\n", docstring(module.doc, name)]
    out += [_item(item, name, aliases.get(f"{name}.{item.name}")) for item in module.items]
    return "\n".join(out)


def _item(item: Item, owner: str, alias: str | None = None) -> str:
    place = f"{owner}.{item.name}"
    if item.kind == "alias":
        return f"``{item.name}``: {to_rst(item.doc, owner)}"
    body = [f"Also ``bertflow_lite.{alias}``.\n"] if alias else []
    body.append(docstring(item.doc, place))
    if item.source:
        body.append(".. code-block:: python\n\n" + indent(item.source, "    ") + "\n")
    body += [_item(part, place) for part in item.parts]
    kind = {"classmethod": "method"}.get(item.kind, item.kind)
    option = "   :classmethod:\n" if item.kind == "classmethod" else ""
    head = f".. py:{kind}:: {item.name}{item.signature if kind != 'property' else ''}\n{option}\n"
    return head + indent("\n".join(body), "   ") + "\n"


def names_rst(names: list[str]) -> str:
    """Write a list of public names: a link and the summary of each."""
    out = []
    for name in names:
        full = public_names()[name]
        home, _, own = full.rpartition(".")
        item = next(item for item in read_module(home).items if item.name == own)
        first = item.doc.split("\n\n")[0]
        out.append(f":py:obj:`{name} <{full}>`\n" + indent(to_rst(first, full), "    "))
    return "\n".join(out)


def fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put reStructuredText in the place of the fences of a page."""

    def rst(match: re.Match[str]) -> str:
        kind, argument, body = match.groups()
        text = (
            module_rst(f"{PACKAGE}.{argument}") if kind == "api-module" else names_rst(body.split())
        )
        return f"`````{{eval-rst}}\n{text}\n`````"

    source[0] = FENCE.sub(rst, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the reference to the build."""
    app.connect("source-read", fill_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
