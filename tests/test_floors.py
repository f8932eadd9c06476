"""The rooms of the package stand on floors: a module imports only from its own room and from below.

Imports are read as text, those inside functions too; what is only for type checkers does not count.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "bertflow_lite"
FLOORS = [
    {"flow", "text", "files", "hub", "devices"},
    {"train", "saving", "datasets"},
    {"calibrators", "encoders"},
    {"measures", "export"},
    {"experiments"},
    {"figures"},
    {"cli"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def room(module: str) -> str:
    return module.partition(".")[0]


def imported(tree: ast.AST) -> set[str]:
    """Name what is imported, from within the package, without its name."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, "imports name the whole path"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("bertflow_lite.") for name in found if "bertflow_lite." in name}


def read_graph() -> dict[str, set[str]]:
    """Give what each module imports; the package's face and its entry point are no rooms."""
    files = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
        if path.parent != PACKAGE or not path.stem.startswith("__")
    }
    graph = {}
    for module, path in files.items():
        targets = set()
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            while name and name not in files:
                name = name.rpartition(".")[0]
            targets.add(name)
        graph[module] = targets - {module, ""}
    return graph


GRAPH = read_graph()


def test_every_room_has_its_floor_and_the_root_is_small() -> None:
    assert {room(module) for module in GRAPH} <= set(FLOOR)
    root = {path.stem for path in PACKAGE.glob("*.py")}
    assert len(root) <= 10, root


def test_imports_go_down() -> None:
    up = {
        (module, other)
        for module, targets in GRAPH.items()
        for other in targets
        if FLOOR[room(module)] < FLOOR[room(other)]
        # Encoders and calibrators do not know each other; nor do other rooms of one floor.
        or (FLOOR[room(module)] == FLOOR[room(other)] and room(module) != room(other))
    }
    assert up == set()


def test_no_imports_go_in_a_circle() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle: {' <- '.join(error.args[1])}") from None


def test_the_reader_sees_imports_of_every_kind() -> None:
    source = (
        "import bertflow_lite.flow\n"
        "from bertflow_lite.measures import scores\n"
        "if TYPE_CHECKING:\n    from bertflow_lite.cli import tables\n"
        "def f():\n    from bertflow_lite.cli.common import app\n"
    )
    assert imported(ast.parse(source)) == {"flow", "measures.scores", "cli.common.app"}
