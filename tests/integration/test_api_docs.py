"""Docstrings: complete for what is public, their examples run, and the reference shows them all."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bertflow_lite as bf

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book"))

import api  # noqa: E402
import api_commands  # noqa: E402
import api_source  # noqa: E402

PUBLIC = api_source.public_modules()
# Every module that can be imported without starting anything.
MODULES = ["bertflow_lite"] + [
    found.name
    for found in pkgutil.walk_packages(bf.__path__, "bertflow_lite.")
    if not found.name.endswith("__main__")
]


def is_here(name: str) -> ModuleType:
    """Import a module, or skip where an optional package that it needs is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name and error.name.startswith("bertflow_lite"):
            raise
        pytest.skip(f"{name}: {error}")


def members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Give the functions, classes, methods and properties that a module makes public."""
    for name in module.__all__:
        thing = getattr(module, name)
        if getattr(thing, "__module__", None) != module.__name__ or not callable(thing):
            continue  # a constant, a type alias, or what is documented where it was made
        if isinstance(thing, functools._lru_cache_wrapper):
            thing = thing.__wrapped__
        yield name, thing
        if not inspect.isclass(thing):
            continue
        for base in thing.__mro__:
            own = base is thing or base.__name__.startswith("_")
            if not own or not base.__module__.startswith("bertflow_lite"):
                continue
            for part, value in vars(base).items():
                if part == "__call__" or not part.startswith("_"):
                    if isinstance(value, classmethod | staticmethod):
                        value = value.__func__
                    if inspect.isfunction(value) or isinstance(value, property):
                        yield f"{name}.{part}", value


def parameters(function: Any) -> list[str]:
    """Name a function's parameters as a docstring writes them."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        stars.get(one.kind, "") + one.name
        for one in inspect.signature(function).parameters.values()
        if one.name not in ("self", "cls")
    ]


def documented(sections: dict[str, str], title: str) -> list[str]:
    """Name what a section has entries for."""
    heads = [head for head, _ in api_source.entries(sections.get(title, ""))]
    return [name.strip() for head in heads for name in head.split(" : ")[0].split(",")]


def faults(name: str, thing: Any) -> list[str]:
    """Say what a docstring or a signature lacks."""
    doc = inspect.cleandoc(thing.__doc__ or "")
    sections = api_source.sections(doc)
    if not re.match(r"\S.*[.:](\n|$)", doc.split("\n\n")[0].replace("\n", " ")):
        return ["no summary that ends in a full stop"]
    if isinstance(thing, property):
        return []
    if inspect.isclass(thing):
        if issubclass(thing, Exception):
            return []
        if dataclasses.is_dataclass(thing):
            fields = [field.name for field in dataclasses.fields(thing)]
            named = documented(sections, "Parameters") or documented(sections, "Attributes")
            return [] if named == fields else [f"documents {named}, has the fields {fields}"]
        if "__init__" not in vars(thing):
            return []
        function = thing.__init__
    else:
        function = thing
    found = []
    wanted, named = parameters(function), documented(sections, "Parameters")
    if named != wanted:
        found.append(f"documents {named}, takes {wanted}")
    hints = function.__annotations__
    bare = [one.lstrip("*") for one in wanted if one.lstrip("*") not in hints]
    if bare or "return" not in hints:
        found.append(f"no type hint for {', '.join(bare) or 'what it returns'}")
    gives = not inspect.isclass(thing) and str(hints.get("return")) != "None"
    if gives and not {"Returns", "Yields"} & set(sections):
        found.append("no section Returns")
    return found


def stated_above(module: ModuleType, name: str) -> bool:
    """Say whether a base class that the module shows states what a method takes and gives."""
    owner, _, part = name.rpartition(".")
    bases = getattr(module, owner).__mro__[1:] if owner else ()
    return any(base.__name__ in module.__all__ and part in vars(base) for base in bases)


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_public_is_documented(name: str) -> None:
    module = is_here(name)
    assert (module.__doc__ or "").strip()
    found = {part: faults(part, thing) for part, thing in members(module)}
    once = ("documents []", "no section Returns")  # an override need not say it again
    for part, what in found.items():
        if stated_above(module, part):
            found[part] = [fault for fault in what if not fault.startswith(once)]
    assert found, f"{name} makes nothing public"
    assert {part: what for part, what in found.items() if what} == {}


def test_the_check_finds_what_is_missing() -> None:
    def good(x: int) -> int:
        """Give x.

        Parameters
        ----------
        x : int

        Returns
        -------
        int
        """
        return x

    def bad(x, *rest: int) -> int:  # type: ignore[no-untyped-def]
        """Give x.

        Parameters
        ----------
        y : int
        """
        return x

    assert faults("good", good) == []
    assert faults("bad", bad) == [
        "documents ['y'], takes ['x', '*rest']",
        "no type hint for x",
        "no section Returns",
    ]
    bad.__doc__ = None
    assert faults("bad", bad) == ["no summary that ends in a full stop"]


def test_the_reference_lists_what_is_public() -> None:
    fences = api_source.FENCE.findall(api_source.pages()["api"])
    listed = [name for kind, _, body in fences if kind == "api-names" for name in body.split()]
    assert sorted(listed) == sorted(bf.__all__)
    assert len(PUBLIC) == len(set(PUBLIC))
    for name, full in api_source.public_names().items():
        home, _, own = full.rpartition(".")
        assert home in PUBLIC, name
        assert getattr(importlib.import_module(home), own) is getattr(bf, name)


def test_every_page_of_the_reference_is_in_the_contents() -> None:
    contents = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    for page in api_source.pages():
        assert f"file: book/{page}\n" in contents


@pytest.mark.parametrize("name", PUBLIC)
def test_the_source_is_read_as_python_reads_it(name: str) -> None:
    """The book parses what the tests import: names, parameters and docstrings must agree."""
    module, parsed = is_here(name), api_source.read_module(name)
    assert [item.name for item in parsed.items] == list(module.__all__)
    items = {item.name: item for item in parsed.items}
    for item in parsed.items:
        items |= {f"{item.name}.{part.name}": part for part in item.parts}
    for part, thing in members(module):
        assert items[part].doc == inspect.cleandoc(thing.__doc__ or ""), part
        if not isinstance(thing, property) and not inspect.isclass(thing):
            names = [one.lstrip("*") for one in parameters(thing)]
            shown = ast.parse(f"def f{items[part].signature}: ...")
            assert [one.arg for one in ast.walk(shown) if isinstance(one, ast.arg)] == names, part


def test_text_becomes_restructuredtext() -> None:
    place = "bertflow_lite.calibrators.flow_calibrator.FlowCalibrator"
    flow = ":py:obj:`Glow <bertflow_lite.flow.Glow>`"
    assert api.to_rst("See `Glow`.", place) == f"See {flow}.\n"
    assert api.to_rst("`~flow.Glow` here", place) == f"{flow} here\n"
    assert api.to_rst("not `known` here", place) == "not ``known`` here\n"
    assert api.to_rst("mean_, |s|, 2 * n, *so*", place) == r"mean\_, \|s\|, 2 \* n, *so*" + "\n"
    assert api.to_rst(">>> a_ * `b`", place) == ">>> a_ * `b`\n"
    literal = "Thus::\n\n    a_ | b\n\nand mean_"
    assert api.to_rst(literal, place) == literal.replace("mean_", r"mean\_") + "\n"
    entry = api.docstring("Do.\n\nParameters\n----------\nx : int\n    What.\n*rest\n", place)
    assert ".. rubric:: Parameters\n\n**x** : int\n    What.\n" in entry
    assert "\\*rest\n    \\" in entry


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    assert api_commands.PAGE.read_text(encoding="utf-8") == api_commands.describe(), (
        "run: python book/api_commands.py"
    )


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", MODULES)
def test_examples_in_the_docstrings_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them needs the network."""
    monkeypatch.setenv("COLUMNS", "80")
    module = is_here(name)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(module, optionflags=flags)
    assert result.failed == 0
    lines = Path(str(module.__file__)).read_text(encoding="utf-8").split("\n")
    written = [line for line in lines if line.lstrip().startswith(">>>")]
    # None is lost, for example behind a decorator.
    assert result.attempted == len([line for line in written if "+SKIP" not in line])


def test_every_public_name_has_an_example() -> None:
    functions = {name: getattr(bf, name) for name in bf.__all__ if callable(getattr(bf, name))}
    lacking = [name for name, thing in functions.items() if ">>>" not in (thing.__doc__ or "")]
    assert lacking == []
    skipped = [name for name, thing in functions.items() if "+SKIP" in (thing.__doc__ or "")]
    assert skipped == []


def test_the_page_of_figures_names_every_module() -> None:
    """It shows what all figures share, and says where those of the chapters stand."""
    figures = {path.stem for path in (ROOT / "bertflow_lite" / "figures").glob("[a-z]*.py")}
    # What the figures share, and what works in a running notebook only.
    shared = {"plots", "drawing", "pretraining_panels", "widgets"}
    page = api_source.pages()["api_figures"]
    assert set(re.findall(r"`([a-z_]+)`", page)) & figures == figures - shared
    assert "bertflow_lite.figures.plots" in PUBLIC
