# SPDX-License-Identifier: Apache-2.0
"""Whatever an importer refuses, it says what would do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import importers
from importers.graph.draft import NO_FORM, Problem

FILES = sorted(Path(importers.__file__).parent.rglob("*.py"))
CURED = ("InputError", "UnsupportedLayerError", "ShapeError", "ConfigError")
NEEDED = {
    **{"CannotTakeError": ("nearest", 2), "NoFormError": ("nearest", 2), "Problem": ("nearest", 5)},
    **dict.fromkeys(CURED, ("cure", 99)),
}
"""Refusal -> the argument that says what would do, and its number where it has one."""


def bare(source: str) -> list[str]:
    """Refusals in a module that name neither a nearest form nor a cure, or an empty one."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Name)
            or call.func.id not in NEEDED
        ):
            continue
        keyword, place = NEEDED[call.func.id]
        said = [item.value for item in call.keywords if item.arg == keyword] + call.args[place - 1 : place]
        if not said or any(isinstance(item, ast.Constant) and not item.value for item in said):
            found.append(f"{call.lineno}: {ast.unparse(call)}")
    return found


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_refusal_says_what_would_do(file: Path) -> None:
    assert not bare(file.read_text())


def test_a_refusal_without_a_cure_is_seen() -> None:
    assert bare('raise CannotTakeError("a window of 3 dimensions")')
    assert bare('raise InputError("no file", where=path, cure="")')
    assert not bare('raise CannotTakeError("a window of 3 dimensions", "a window of 2")')


def test_what_is_near_to_nothing_says_so() -> None:
    assert str(Problem("n", "Odd", (1, 2), "no layer for it", NO_FORM)).endswith("nearest: there is none")
