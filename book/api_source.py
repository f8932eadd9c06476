"""What the API reference says, read from the source by `ast`: nothing is imported.

Building the book installs neither torch nor the package (requirements-book.txt).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

BOOK = Path(__file__).resolve().parent
PACKAGE = "bertflow_lite"
ROOT = BOOK.parent / PACKAGE

FENCE = re.compile(r"^```\{(api-module|api-names)\} ?(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
SECTION = re.compile(r"^([A-Z]\w+(?: \w+)?)\n-{3,}$", re.MULTILINE)
ENTRIES = ("Parameters", "Returns", "Yields", "Raises", "Attributes")  # sections of named entries


@dataclass
class Item:
    """What is documented: a function, class, method, property or constant."""

    kind: str
    name: str
    signature: str
    doc: str
    source: str = ""
    parts: list[Item] = field(default_factory=list)


@dataclass
class Module:
    """A module of the package: its docstring, and what its ``__all__`` names, in that order."""

    name: str
    doc: str
    items: list[Item]


def sections(doc: str) -> dict[str, str]:
    """Cut a NumPy docstring into its sections; ``""`` is what stands before the first."""
    parts = SECTION.split(doc)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def entries(section: str) -> list[tuple[str, str]]:
    """Give the entries of a section such as Parameters: head line, and the text below it."""
    found: list[tuple[str, str]] = []
    for line in section.strip("\n").split("\n"):
        if line and not line[0].isspace():
            found.append((line, ""))
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + line.removeprefix("    ") + "\n")
    return [(head, text.strip("\n")) for head, text in found]


def pages() -> dict[str, str]:
    """Give the pages of the reference: name and text."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(BOOK.glob("api*.md"))}


def public_modules() -> list[str]:
    """Name the modules that the reference documents."""
    fences = [fence for text in pages().values() for fence in FENCE.findall(text)]
    return [f"{PACKAGE}.{name}" for kind, name, _ in fences if kind == "api-module"]


@cache
def public_names() -> dict[str, str]:
    """Give each name of ``bertflow_lite.__all__``, and the dotted name of what it stands for."""
    tree = _tree(PACKAGE)
    where = _imports(tree)
    return {name: _origin(where[name]) for name in _listed(tree)}


def _origin(full: str) -> str:
    """Follow a name through the modules that only hand it on."""
    home, _, name = full.rpartition(".")
    handed_on = _imports(_tree(home)).get(name)
    return full if handed_on is None else _origin(handed_on)


@cache
def read_module(name: str) -> Module:
    """Parse a module; ``name`` is dotted, as in an import."""
    tree = _tree(name)
    found = {item.name: item for item in _items(name, tree)}
    return Module(name, ast.get_docstring(tree) or "", [found[n] for n in _listed(tree)])


def _text(name: str) -> str:
    path = ROOT.parent / name.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.read_text(encoding="utf-8")


def _tree(name: str) -> ast.Module:
    return ast.parse(_text(name))


def _listed(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError("a module of the reference has no __all__.")


def _imports(tree: ast.Module) -> dict[str, str]:
    """Give the names that a module imports from the package, and where from."""
    out: dict[str, str] = {}
    nodes = list(tree.body)
    for node in tree.body:  # the package itself imports late, and says so to type checkers only
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.body
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            out |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    return out


def _items(module: str, tree: ast.Module) -> Iterator[Item]:
    for number, node in enumerate(tree.body):
        if isinstance(node, ast.FunctionDef):
            yield _function(node, "function")
        elif isinstance(node, ast.ClassDef):
            yield _class(module, node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            below = tree.body[number + 1] if number + 1 < len(tree.body) else None
            doc = below.value.value if _is_text(below) else ""  # type: ignore[union-attr]
            source = ast.get_source_segment(_text(module), node) or ""
            yield Item("data", ast.unparse(target), "", doc, source)
    for name, source in _imports(tree).items():  # what a module hands on
        if name in _listed(tree):
            yield Item("alias", name, "", f"See `{_origin(source)}`.")


def _is_text(node: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _function(node: ast.FunctionDef, kind: str) -> Item:
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    if "property" in marks:
        kind = "property"
    elif "classmethod" in marks:
        kind = "classmethod"
    return Item(kind, node.name, _signature(node.args), ast.get_docstring(node) or "")


def _signature(args: ast.arguments) -> str:
    """Write parameters and defaults; their types stand in the docstring."""
    bare = ast.parse(f"def f({ast.unparse(args)}): ...").body[0]
    assert isinstance(bare, ast.FunctionDef)
    args = bare.args
    for group in (args.posonlyargs, args.args):
        group[:] = [arg for arg in group if arg.arg not in ("self", "cls")]
    for arg in ast.walk(args):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    return f"({ast.unparse(args)})"


def _class(module: str, node: ast.ClassDef) -> Item:
    parts: dict[str, Item] = {}
    signature = ""
    for _home, own in reversed([(module, node), *_private_bases(module, node)]):
        fields = [part for part in own.body if isinstance(part, ast.AnnAssign)]
        if any("dataclass" in ast.unparse(mark) for mark in own.decorator_list):
            signature = f"({', '.join(ast.unparse(part.target) for part in fields)})"
        for part in own.body:
            if not isinstance(part, ast.FunctionDef):
                continue
            if any(ast.unparse(mark).endswith(".setter") for mark in part.decorator_list):
                continue  # documented with the property
            if part.name == "__init__":
                signature = _signature(part.args)
            elif "overload" not in map(ast.unparse, part.decorator_list) and (
                part.name == "__call__" or not part.name.startswith("_")
            ):
                parts[part.name] = _function(part, "method")
    return Item("class", node.name, signature, ast.get_docstring(node) or "", "", [*parts.values()])


def _private_bases(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """Give the bases that the package has but does not show; a reader needs their methods."""
    tree = _tree(module)
    for base in map(ast.unparse, node.bases):
        home = _imports(tree).get(base, f"{module}.{base}").rpartition(".")[0]
        if not base.startswith("_"):
            continue
        for other in _tree(home).body:
            if isinstance(other, ast.ClassDef) and other.name == base:
                yield home, other
                yield from _private_bases(home, other)
