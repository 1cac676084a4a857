# SPDX-License-Identifier: Apache-2.0
"""Who imports whom, read from the sources: rooms, their folders, and the picture of docs/architecture.md.

`python -m tools.rooms` draws it again; `tests/test_import_arrows.py` compares, and holds the arrows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import networkx

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "rooms.svg"

ALLOWED: dict[str, frozenset[str]] = {
    "configs": frozenset(),
    "traces": frozenset({"configs"}),
    "truth": frozenset({"configs"}),
    "arch": frozenset({"configs", "traces"}),
    "trainlib": frozenset({"configs", "arch.spec.isa"}),
    "importers": frozenset({"configs", "trainlib"}),
    "barvinn": frozenset({"configs", "traces", "arch.systemc", "trainlib", "importers"}),
    "scheduler": frozenset({"configs", "traces", "arch", "trainlib"}),
    "deploy": frozenset({"configs", "arch", "trainlib", "scheduler"}),
    "pulptrain": frozenset(
        {"configs", "traces", "truth", "arch", "trainlib", "importers", "barvinn", "scheduler", "deploy"}
    ),
}
"""Room -> what it may import of the others: whole rooms, folders or modules of them."""


def imported_names(source: str, *, for_types: bool = True) -> frozenset[str]:
    """Dotted names imported anywhere in a module; without those that only type checkers import if asked."""
    everywhere, not_for_types, _ = _imports(source)
    return everywhere if for_types else not_for_types


def names_at_import(source: str) -> frozenset[str]:
    """Dotted names imported when the module is: not what its functions import, nor type checkers."""
    return _imports(source)[2]


@cache
def _imports(source: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """What is imported anywhere, not for type checkers alone, and by the module's own statements."""
    body = ast.parse(source).body
    return (
        frozenset(_names(_statements(body))),
        frozenset(_names(_statements(body, for_types=False))),
        frozenset(_names(body)),
    )


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in modules():
            yield node.value  # imported when it is asked for: `trainlib.registry`


def _statements(nodes: Iterable[ast.AST], *, for_types: bool = True) -> Iterator[ast.AST]:
    """Statements, and those inside of them."""
    for node in nodes:
        yield node
        checked = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for block in ("body", "orelse", "handlers", "finalbody", "cases"):
            if not checked or for_types or block != "body":
                yield from _statements(getattr(node, block, ()), for_types=for_types)


def violations(room: str, source: str) -> set[str]:
    """Imports of other rooms that are not under one of the allowed names."""
    allowed = ALLOWED[room] | {room}
    return {
        name
        for name in imported_names(source)
        if name.split(".")[0] in ALLOWED
        and not any(name == prefix or name.startswith(prefix + ".") for prefix in allowed)
    }


@cache
def modules() -> dict[str, Path]:
    """Every module of the rooms by its dotted name."""
    paths = [path for room in ALLOWED for path in sorted((ROOT / room).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


@cache
def folders() -> networkx.DiGraph:
    """The folders of all rooms (``scheduler.tiles``) with an edge to each from which one imports something.

    What stands in the `__init__.py` of a room is told of all of it, and is left out.
    """
    graph = networkx.DiGraph()
    for name, path in modules().items():
        folder, _, own = name.rpartition(".")
        graph.add_node(folder)
        if own == "__init__":
            continue
        for target in map(module_of, imported_names(path.read_text(encoding="utf-8"), for_types=False)):
            inner = target.rpartition(".")[0]
            if target in modules() and inner != folder:
                graph.add_edge(folder, inner)
    return graph


def module_of(name: str) -> str:
    """The module that an imported name is, or stands in; one of `modules()` if it is ours."""
    return name if name in modules() else name.rpartition(".")[0]


def circles(graph: networkx.DiGraph) -> list[list[str]]:
    """Folders that import each other, directly or by way of others."""
    return sorted(sorted(some) for some in networkx.strongly_connected_components(graph) if len(some) > 1)


# The picture

COLUMNS: dict[str, int] = {"barvinn": 0, "importers": 0, "truth": 2}
"""Rooms beside the middle column, so that arrows have room."""

WIDTH, LINE, HEAD, GAP_X, GAP_Y, MARGIN = 190, 15, 26, 40, 30, 12
INK, PAPER, SHADE = "#222222", "#ffffff", "#e8eef4"

Box = tuple[int, int, int]
"""Left, top and height."""


def picture() -> str:
    """The rooms as SVG text: what is imported stands lower; a room's folders, the lowest last.

    An arrow that others imply is left out, and one is dashed where only a part of a room may be imported.
    """
    arrows = networkx.DiGraph((room, name.split(".")[0]) for room, names in ALLOWED.items() for name in names)
    parts = {(room, name.split(".")[0]) for room, names in ALLOWED.items() for name in names if "." in name}
    boxes: dict[str, Box] = {}
    top = MARGIN
    for row in networkx.topological_generations(arrows):
        for room in row:
            left = MARGIN + COLUMNS.get(room, 1) * (WIDTH + GAP_X)
            boxes[room] = (left, top, HEAD + LINE * len(_inner(room)) + 6)
        top += max(boxes[room][2] for room in row) + GAP_Y
    width, height = 2 * MARGIN + 3 * WIDTH + 2 * GAP_X, top - GAP_Y + MARGIN
    svg = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": "sans-serif"})
    for name, value in (("viewBox", f"0 0 {width} {height}"), ("width", width), ("height", height)):
        svg.set(name, str(value))
    ElementTree.SubElement(svg, "title").text = "Rooms of pulptrain: an arrow goes from who imports to what"
    tip = {"id": "tip", "markerWidth": "8", "markerHeight": "8", "refX": "7", "refY": "4", "orient": "auto"}
    marker = ElementTree.SubElement(ElementTree.SubElement(svg, "defs"), "marker", tip)
    ElementTree.SubElement(marker, "path", {"d": "M0,0 L8,4 L0,8 z", "fill": INK})
    ElementTree.SubElement(svg, "rect", {"width": "100%", "height": "100%", "fill": PAPER})
    for source, target in sorted(networkx.transitive_reduction(arrows).edges):
        line = {"d": _path(boxes[source], boxes[target]), "stroke": INK, "fill": "none"}
        if (source, target) in parts:
            line["stroke-dasharray"] = "5 3"
        ElementTree.SubElement(svg, "path", {**line, "marker-end": "url(#tip)"})
    for room in sorted(boxes):
        _box(svg, room, *boxes[room])
    ElementTree.indent(svg)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _path(start: Box, end: Box) -> str:
    """Straight down; out of the middle column sideways and down, into it down and sideways."""
    (x1, top1, height1), (x2, top2, height2) = start, end
    middle1, middle2 = x1 + WIDTH // 2, x2 + WIDTH // 2
    if x1 == x2:
        return f"M{middle1},{top1 + height1} V{top2}"
    if middle1 == MARGIN + WIDTH + GAP_X + WIDTH // 2:
        side = x1 if x2 < x1 else x1 + WIDTH
        return f"M{side},{top1 + height1 // 2} H{middle2} V{top2}"
    return f"M{middle1},{top1 + height1} V{top2 + height2 // 2} H{x2 if x1 < x2 else x2 + WIDTH}"


def _inner(room: str) -> list[str]:
    """The folders of a room, those that others of it import last."""
    own = networkx.DiGraph(folders().subgraph(name for name in folders() if name.split(".")[0] == room))
    own.remove_nodes_from([room])
    return [name.removeprefix(f"{room}.") for name in networkx.lexicographical_topological_sort(own)]


def _box(svg: ElementTree.Element, room: str, x: int, y: int, height: int) -> None:
    place = {"x": str(x), "y": str(y), "width": str(WIDTH), "height": str(height), "rx": "5"}
    ElementTree.SubElement(svg, "rect", {**place, "fill": SHADE, "stroke": INK})
    head = {"x": str(x + 10), "y": str(y + 18), "font-size": "14", "font-weight": "bold"}
    ElementTree.SubElement(svg, "text", head).text = room
    for number, name in enumerate(_inner(room)):
        line = {"x": str(x + 18), "y": str(y + HEAD + 12 + LINE * number), "font-size": "11"}
        ElementTree.SubElement(svg, "text", line).text = name


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
