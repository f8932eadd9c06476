"""Plotly's library without the kinds of figures that the book does not have.

The library is one file of 4.8 MB, and a page cannot show its first figure before the browser has
read and run all of it. Most of that is maps, 3D and other traces that no figure here uses. The file
is a list of small modules, each written as `var NAME=HELPER((...)=>{...});` and named where another
module needs it, and one module at the end that registers the kinds of traces. So it can be cut:
register the kinds in use, and leave out every module that nothing names any more.

Where the file does not look like that, `without_unused` gives it back as it is: the pages are then
slower to open, and nothing else changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

FIGURE = "application/vnd.plotly.v1+json"
MODULE = re.compile(r"(?<=[;}\n])var ([\w$]+)=([\w$]+)\((?:\([\w$,]*\)|[\w$]+)=>\{")
WORD = re.compile(r"[\w$]+")
REGISTER = re.compile(r"\.register\(\[((?:[\w$]+\(\),?)+)\]\)")
BODY = "var Plotly=(()=>{"
END = "window.Plotly = Plotly;"
BUILT_IN = {"scatter"}  # the core always has it


def kinds_in(notebooks: Iterable[Path]) -> set[str]:
    """Return the kinds of traces in the figures that some notebooks have stored."""
    found = set()
    for path in notebooks:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                figure = output.get("data", {}).get(FIGURE, {"data": []})
                shown = [figure, *figure.get("frames", [])]
                found |= {t.get("type", "scatter") for part in shown for t in part["data"]}
    return found


def without_unused(library: str, kinds: set[str]) -> str:
    """Return Plotly's library with the modules that these kinds of traces need."""
    register = REGISTER.search(library)
    modules = _cut(library)
    if register is None or not modules:
        return library
    kept = {}
    for name in re.findall(r"[\w$]+", register[1]):
        kind = _kind(name, modules)
        if kind in kinds:
            kept[kind] = f"{name}()"
    if kept.keys() != kinds - BUILT_IN:
        return library
    last = next(reversed(modules))
    modules[last] = modules[last].replace(
        register[0], f".register([{','.join(kept[kind] for kind in sorted(kept))}])"
    )
    start = library[: next(MODULE.finditer(library)).start()]
    wanted = _needed(modules, [start, modules[last]])
    return _unwrap(start + "".join(modules[name] for name in modules if name in wanted))


def _cut(library: str) -> dict[str, str]:
    """Cut the library before each module; a part may hold more than its module at its end."""
    found = list(MODULE.finditer(library))
    starts = [match.start() for match in found] + [len(library)]
    return {m[1]: library[a:b] for m, (a, b) in zip(found, pairwise(starts), strict=True)}


def _kind(name: str, modules: dict[str, str], steps: int = 3) -> str | None:
    """Tell which kind of trace a registered module is, if it is one."""
    text = modules.get(name, "")
    if found := re.search(r'moduleType:"trace",name:"(\w+)"', text):
        return found[1]
    passed_on = re.search(r"exports=([\w$]+)\(\)\}", text)
    return _kind(passed_on[1], modules, steps - 1) if passed_on and steps else None


def _needed(modules: dict[str, str], roots: list[str]) -> set[str]:
    """Return the names of all modules that must stay.

    A name that merely looks like a module's keeps it, too; so does whatever else stands in a part.
    """
    mixed = [text for text in modules.values() if not text.endswith("});")]
    wanted = {name for name, text in modules.items() if not text.endswith("});")}
    todo = [*roots, *mixed]
    while todo:
        new = set(WORD.findall(todo.pop())) & modules.keys() - wanted
        wanted |= new
        todo += [modules[name] for name in new]
    return wanted | {next(reversed(modules))}


def _unwrap(library: str) -> str:
    """Take off the wrapper for module loaders.

    A browser reads what stands in it twice: once to find its end, and again when it is called.
    """
    notice = re.match(r"/\*.*?\*/\n", library, re.DOTALL)
    start, end = library.find(BODY), library.rfind(END)
    if notice is None or start < 0 or end < 0:
        return library
    return notice[0] + library[start:end] + END + "\n"
