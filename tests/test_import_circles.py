# SPDX-License-Identifier: Apache-2.0
"""No module of the product, when it is imported, imports one that imports it, by way of others or not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
from test_import_arrows import ALLOWED

ROOT = Path(__file__).resolve().parents[1]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for room in ALLOWED for path in (ROOT / room).rglob("*.py")}


def imports_of(module: str) -> Iterator[str]:
    """Modules of ours that the statements of one import: not what functions import, nor type checkers."""
    for node in ast.parse(MODULES[module].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def test_modules_import_each_other_in_no_circle() -> None:
    imports = nx.DiGraph((module, other) for module in MODULES for other in imports_of(module))
    assert nx.is_directed_acyclic_graph(imports), nx.find_cycle(imports)
