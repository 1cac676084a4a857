# SPDX-License-Identifier: Apache-2.0
"""The rooms import each other only along the arrows of the design; nothing goes back up."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).resolve().parents[1]

ALLOWED: dict[str, set[str]] = {
    "configs": set(),
    "traces": {"configs"},
    "arch": {"configs", "traces"},
    "truth": {"configs"},
    "trainlib": {"configs", "arch.isa"},
    "importers": {"configs", "trainlib"},
    "scheduler": {"configs", "traces", "arch", "trainlib"},
    "pulptrain": {"configs", "traces", "arch", "trainlib", "importers", "scheduler", "truth"},
}

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


def imported_modules(source: str) -> set[str]:
    """Dotted names imported anywhere in a module, function bodies included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def violations(room: str, source: str) -> set[str]:
    """Imports of other rooms that are not under one of the allowed prefixes."""
    allowed = ALLOWED[room] | {room}
    return {
        name
        for name in imported_modules(source)
        if name.split(".")[0] in ALLOWED
        and not any(name == prefix or name.startswith(prefix + ".") for prefix in allowed)
    }


@pytest.mark.parametrize("room", ALLOWED)
def test_room_imports_only_along_the_arrows(room: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for name in violations(room, path.read_text())
    }
    assert not found


@pytest.mark.parametrize("floor", FLOORS_OF_SCHEDULER)
def test_a_floor_of_the_scheduler_imports_from_itself_and_below(floor: str) -> None:
    below = FLOORS_OF_SCHEDULER[: FLOORS_OF_SCHEDULER.index(floor) + 1]
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "scheduler" / floor).rglob("*.py"))
        for name in imported_modules(path.read_text())
        if name.startswith("scheduler.") and name.split(".")[1] not in below
    }
    assert not found


@pytest.mark.parametrize("folder", FLOORS_OF_IMPORTERS)
def test_a_folder_of_the_importers_imports_those_below_it(folder: str) -> None:
    others = FLOORS_OF_IMPORTERS.keys() - FLOORS_OF_IMPORTERS[folder] - {folder}
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "importers" / folder).rglob("*.py"))
        for name in imported_modules(path.read_text())
        if name.startswith("importers.") and name.split(".")[1] in others
    }
    assert not found


def test_the_check_sees_a_forbidden_import() -> None:
    assert violations("arch", "def f():\n    from trainlib.graph import Op\n") == {"trainlib.graph.Op"}
    assert violations("trainlib", "from arch.program import Program") == {"arch.program.Program"}
    assert violations("trainlib", "from arch.isa import Op") == set()
