# SPDX-License-Identifier: Apache-2.0
"""The rooms import each other only along the arrows of the design; folders and functions are short."""

from __future__ import annotations

import ast
from collections import Counter

import networkx
import pytest

from shared.paths import ROOT
from tools.rooms import (
    ALLOWED,
    PICTURE,
    circles,
    folders,
    imported_names,
    module_of,
    modules,
    names_at_import,
    picture,
    violations,
)

FLOORS_OF_SCHEDULER = ("addresses", "tiles", "memory", "programs")
"""Folders of the scheduler, the lowest first: where bytes lie, one op, a whole program, its actions."""

FLOORS_OF_IMPORTERS: dict[str, set[str]] = {
    "graph": set(),
    "place": {"graph"},
    "onnx": {"graph", "place"},
    "torch": {"graph", "place"},
    "training": {"graph", "place", "onnx"},
    "export": {"graph", "place"},
}
"""Folder of the importers -> those it may import besides itself; all may import what lies in no folder."""

MOST_FILES = 25
"""Of one folder, beside its `__init__.py`: what a reader takes in at a glance."""

MOST_LINES = 100
"""Of one function, with its signature."""


@pytest.mark.smoke
@pytest.mark.parametrize("room", ALLOWED)
def test_room_imports_only_along_the_arrows(room: str) -> None:
    assert not {
        f"{name}: {target}"
        for name, path in modules().items()
        if name.split(".")[0] == room
        for target in violations(room, path.read_text())
    }


@pytest.mark.parametrize("floor", FLOORS_OF_SCHEDULER)
def test_a_floor_of_the_scheduler_imports_from_itself_and_below(floor: str) -> None:
    below = FLOORS_OF_SCHEDULER[: FLOORS_OF_SCHEDULER.index(floor) + 1]
    assert not {
        f"{name}: {target}"
        for name, path in modules().items()
        if name.startswith(f"scheduler.{floor}.")
        for target in imported_names(path.read_text())
        if target.startswith("scheduler.") and target.split(".")[1] not in below
    }


@pytest.mark.smoke
def test_no_folder_imports_itself_by_way_of_others() -> None:
    assert not circles(folders())


def test_modules_import_each_other_in_no_circle() -> None:
    imports = networkx.DiGraph(
        (name, other)
        for name, path in modules().items()
        for other in map(module_of, names_at_import(path.read_text()))
        if other in modules()
    )
    assert networkx.is_directed_acyclic_graph(imports), networkx.find_cycle(imports)


def test_a_circle_is_seen() -> None:
    graph = networkx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])
    assert circles(graph) == [["a", "b", "c"]]


def test_a_second_description_imports_nothing_of_the_first() -> None:
    """By whatever way: `truth` and what it imports, and the oracles of formulas, but for names of types."""
    imports = networkx.DiGraph(
        (name, module_of(other))
        for name, path in modules().items()
        for other in imported_names(path.read_text())
    )
    of_truth = {name for name in imports if name.startswith("truth.")}
    reached = of_truth.union(*(networkx.descendants(imports, name) for name in of_truth))
    assert {name.split(".")[0] for name in reached if name in modules()} == {"truth", "configs"}
    oracles = sorted((ROOT / "tests" / "shared" / "oracle_formulas").glob("*.py"))
    assert len(oracles) == 8
    for path in oracles:
        names = imported_names(path.read_text(), for_types=False)
        assert {name for name in names if name.split(".")[0] in ALLOWED} == set(), path.name


def test_no_folder_is_too_long_to_be_read() -> None:
    files = Counter(name.rpartition(".")[0] for name in modules() if not name.endswith("__init__"))
    assert {folder: count for folder, count in files.items() if count > MOST_FILES} == {}


def test_no_function_is_too_long_to_be_read() -> None:
    assert not {
        f"{name}.{node.name}: {length}"
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        if (length := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES
    }


def test_the_picture_shows_the_rooms_as_they_are() -> None:
    """Otherwise: `python -m tools.rooms`."""
    assert PICTURE.read_text(encoding="utf-8") == picture()


@pytest.mark.parametrize("folder", FLOORS_OF_IMPORTERS)
def test_a_folder_of_the_importers_imports_those_below_it(folder: str) -> None:
    others = FLOORS_OF_IMPORTERS.keys() - FLOORS_OF_IMPORTERS[folder] - {folder}
    assert not {
        f"{name}: {target}"
        for name, path in modules().items()
        if name.startswith(f"importers.{folder}.")
        for target in imported_names(path.read_text())
        if target.startswith("importers.") and target.split(".")[1] in others
    }


def test_the_check_sees_a_forbidden_import() -> None:
    assert violations("arch", "def f():\n    from trainlib.ir.graph import Op\n") == {"trainlib.ir.graph.Op"}
    assert violations("trainlib", "from arch.spec.program import Program") == {"arch.spec.program.Program"}
    assert violations("trainlib", "from arch.spec.isa import Op") == set()


def test_what_only_type_checkers_import_can_be_told_apart() -> None:
    source = "if TYPE_CHECKING:\n    from a import b\nelse:\n    import c\n"
    assert imported_names(source) == {"a.b", "c"}
    assert imported_names(source, for_types=False) == {"c"}
