# SPDX-License-Identifier: Apache-2.0
"""Command lines of pulptrain in texts: in the source of the product, and in what commands print."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pulptrain.cli import COMMANDS
from shared.paths import ROOT

ROOMS = ("configs", "traces", "arch", "truth", "trainlib", "importers")
ROOMS = (*ROOMS, "barvinn", "scheduler", "deploy", "pulptrain")

_NAMES = "|".join(sorted(COMMANDS, key=len, reverse=True))
_COMMAND = re.compile(
    rf"pulptrain (?:(?:{_NAMES})\b(?![-\w:])|\{{\w*\}})(?:'[^'\n]*'|[^.,;)`'\n]|[.,;](?=\S))*"
)
"""A command ends with its line, before a backtick, or before a full stop, comma or semicolon and a space."""


def commands_in(text: str) -> list[str]:
    """The command lines of a text."""
    return [found[0].strip() for found in _COMMAND.finditer(text)]


def commands_of_the_source() -> Iterator[tuple[str, str]]:
    """(file, command line) of every text in the product that is no docstring; what is put in is ``{}``."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if "pulptrain " in source:
                for text in _texts(ast.parse(source)):
                    yield from ((str(path.relative_to(ROOT)), line) for line in commands_in(text))
    for path in sorted((ROOT / "configs" / "templates").iterdir()):
        text = path.read_text(encoding="utf-8")
        yield from ((str(path.relative_to(ROOT)), line) for line in commands_in(text))


def _texts(tree: ast.Module) -> Iterator[str]:
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            parts.add(id(node.value))  # a docstring
        elif isinstance(node, ast.JoinedStr):
            parts.update(map(id, node.values))
    for node in ast.walk(tree):
        if id(node) in parts:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(item.value) if isinstance(item, ast.Constant) else "{}" for item in node.values)


def printing_files() -> set[str]:
    """Files of the product whose texts hold a command line, or that join one from words."""
    joining = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"\[\s*\"pulptrain|\"pulptrain \"", Path(path).read_text(encoding="utf-8"))
    }
    return joining | {file for file, _ in commands_of_the_source()}
