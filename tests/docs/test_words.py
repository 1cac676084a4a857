# SPDX-License-Identifier: Apache-2.0
"""Help, messages, notes, legends and pages have none of the words of tests/data/words.yaml.

CONTRIBUTING.md, "Sentences", has the rules. Exceptions are counted by file; the counts can only fall.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from shared.paths import DATA, ROOT

LIST = yaml.safe_load((DATA / "words.yaml").read_text(encoding="utf-8"))
ROOMS = ["arch", "barvinn", "configs", "deploy", "importers", "pulptrain", "scheduler", "traces", "trainlib"]
ROOMS += ["truth"]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
PAGES += [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "configs").glob("*/*.yaml"))]

_WORD = re.compile(rf"\b(?:{'|'.join(LIST['words'])})\b", re.IGNORECASE)
_NOT_PROSE = re.compile(r"^```.*?^```|^<!-- block: .*?^<!-- end -->|`[^`\n]*`", re.MULTILINE | re.DOTALL)
"""Code, and blocks that `tools.pages` writes, mostly from strings of the product."""


def strings(module: Path) -> Iterator[tuple[int, str]]:
    """Lines and strings of a module with a space in them, and docstrings of commands, the help."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "command":
            yield node.lineno, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value if " " in node.value.strip() else ""


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page, without its code and without what is written by `tools.pages`."""
    text = _NOT_PROSE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"))
    yield from enumerate(text.splitlines(), 1)


def finds(files: list[Path], texts: Callable[[Path], Iterator[tuple[int, str]]]) -> dict[str, list[str]]:
    """By file with a word of the list: line, word and text of each."""
    found: dict[str, list[str]] = {}
    for file in files:
        for line, text in texts(file):
            for word in _WORD.findall(text):
                name = file.relative_to(ROOT).as_posix()
                found.setdefault(name, []).append(f"{name}:{line} {word!r} in {text.strip()[:90]!r}")
    return found


def check(found: dict[str, list[str]], allowed: dict[str, int]) -> None:
    """Raise AssertionError for files with more finds than allowed, then for those with fewer."""
    more = [line for name, lines in found.items() if len(lines) > allowed.get(name, 0) for line in lines]
    assert not more, "\n".join(["tests/data/words.yaml says what to write instead of:", *more])
    counts = {name: len(found.get(name, ())) for name in allowed}
    fewer = {name: count for name, count in counts.items() if count < allowed[name]}
    assert not fewer, f"lower these numbers in tests/data/words.yaml: {fewer}"


def test_no_string_of_the_product_has_a_word_of_the_list() -> None:
    check(finds([file for room in ROOMS for file in (ROOT / room).rglob("*.py")], strings), LIST["strings"])


def test_pages_have_fewer_and_fewer_of_them() -> None:
    check(finds(PAGES, prose), LIST["pages"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Objective: what is made small", ["what is", "made"]),
        ("is told of its own end, not at all late", ["told", "of its own", "not at all"]),
        ("simple-mlp is no SoC", ["is no"]),
        ("there is no tensor x, the bound is 3 cycles", []),
    ],
)
def test_the_list_finds_riddles_and_leaves_plain_words(text: str, words: list[str]) -> None:
    assert _WORD.findall(text) == words


def test_a_count_that_rises_or_was_not_lowered_fails() -> None:
    found = {"a.md": ["a.md:1 'told'", "a.md:2 'kept'"]}
    check(found, {"a.md": 2})
    for allowed, why in (({"a.md": 1}, "what to write"), ({"a.md": 3}, "lower these"), ({}, "a.md:2")):
        with pytest.raises(AssertionError, match=why):
            check(found, allowed)
