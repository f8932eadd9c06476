"""A chapter runs with another DATA: what only mini-sts has is asked of mini-sts by name.

Only mini-sts has `kinds` and `styles`, and the stored maps are those of its sentences.
Looking through the code is cheap; to run all chapters on STS-B would take many minutes.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import handouts
import pytest
from notebooks import from_source, sources

ONLY_MINI_STS = {"kinds", "styles"}
MAP = "explore_map_of_pairs"


def code_of(source: Path) -> str:
    """Return the code of a chapter and of its folded solutions."""
    cells = [cell.source for cell in from_source(source).cells if cell.cell_type == "code"]
    return "\n\n".join([*cells, *(solution.code for solution in handouts.solutions(source))])


def set_of(node: ast.AST) -> str | None:
    """Return what `load_sts(...)` is called with, where the node is such a call."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("load_sts") and node.args:
        return ast.unparse(node.args[0])
    return None


def misuses(code: str) -> Iterator[str]:
    """Yield the places where a set that may lack kinds, styles or a map is asked for them."""
    tree = ast.parse(code)
    loaded: dict[str, set[str | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and (name := set_of(node.value)):
            for target in node.targets:
                loaded.setdefault(ast.unparse(target), set()).add(name)
    safe = {name for name, sets in loaded.items() if sets == {"'mini-sts'"}}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ONLY_MINI_STS:
            if ast.unparse(node.value) not in safe and set_of(node.value) != "'mini-sts'":
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith(MAP)
            and ast.unparse(node.args[1]) not in safe
            and set_of(node.args[1]) != "'mini-sts'"
        ):
            yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("source", sources(), ids=lambda path: path.stem)
def test_kinds_and_maps_are_those_of_mini_sts(source: Path) -> None:
    assert not list(misuses(code_of(source)))


@pytest.mark.parametrize(
    ("code", "fine"),
    [
        ("pairs = bf.load_sts(DATA)\npairs.gold", True),
        ("pairs = bf.load_sts(DATA)\npairs.kinds", False),
        ("pairs = bf.load_sts(DATA)\nlist(pairs.styles) * 2", False),
        ("pairs = bf.load_sts('mini-sts')\npairs.kinds == 'paraphrase'", True),
        ("pairs = bf.load_sts('mini-sts')\npairs = bf.load_sts(DATA)\npairs.kinds", False),
        ("bf.load_sts('mini-sts').kinds", True),
        ("pairs = bf.load_sts(DATA)\nexplore_map_of_pairs(run, pairs, '')", False),
        ("explore_map_of_pairs(run, bf.load_sts(DATA), '')", False),
        ("mini = bf.load_sts('mini-sts')\nexplore_map_of_pairs(run, mini, '')", True),
        ("explore_map_of_pairs(run, bf.load_sts('mini-sts'), '')", True),
    ],
)
def test_a_misuse_is_noticed(code: str, fine: bool) -> None:
    assert fine == (not list(misuses(code)))
