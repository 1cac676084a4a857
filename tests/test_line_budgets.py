# SPDX-License-Identifier: Apache-2.0
"""Code is a cost: how much of it a room may hold at most stands in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tools.rooms import ALLOWED, ROOT

_ROW = re.compile(r"^\| `(\w+)/` \| ([\d,]+) \|$", re.MULTILINE)


def docstrings(body: list[ast.stmt]) -> Iterator[ast.Expr]:
    """Those of a module, and of its classes, functions and fields."""
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield from docstrings(node.body)


def code_lines(source: str) -> int:
    """Lines that are neither blank nor a comment nor a docstring."""
    lines = source.splitlines()
    for text in docstrings(ast.parse(source).body):
        lines[text.lineno - 1 : text.end_lineno] = [""] * ((text.end_lineno or text.lineno) - text.lineno + 1)
    return sum(line.strip()[:1] not in ("", "#") for line in lines)


def test_what_describes_code_does_not_count() -> None:
    source = '''
"""A module."""

# A comment.
SIZE = 3  # bytes
"""Of what."""

def half(whole: int) -> int:
    """Half of it.

    Rounded down.
    """
    return whole // 2
'''
    assert code_lines(source) == 3


def test_no_room_is_above_its_budget() -> None:
    """Delete what nobody needs; or raise the budget, and say why in the commit."""
    rows = _ROW.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    budgets = {room: int(lines.replace(",", "")) for room, lines in rows}
    assert budgets.keys() == ALLOWED.keys()
    lines = {
        room: sum(code_lines(path.read_text(encoding="utf-8")) for path in (ROOT / room).rglob("*.py"))
        for room in budgets
    }
    assert {room: number for room, number in lines.items() if number > budgets[room]} == {}
