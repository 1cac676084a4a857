# SPDX-License-Identifier: Apache-2.0
"""Kernel files as keys, values and line numbers: YAML, or an annotated listing with its keys behind `#@`.

Shipped files keep to a small part of YAML (keys, plain scalars, one-line lists of numbers, literal blocks),
which is read line by line in a fraction of the time of the full parser. Anything else in a file goes to the
full strict parser of `configs.yaml_file`, which also writes the error messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Any

from configs.errors import ConfigError
from configs.limits import YAML_BYTES_PER_BYTE, check_file_size
from configs.suggest import suggestion as nearest
from configs.values import Struct
from configs.yaml_file import Node, parse_yaml

KEY_LINES = "write 'key: value' lines"

FEW = 8
"""Names that are listed in full beside the nearest one."""

_KEY = re.compile(r"([a-z_]\w*):(?: +(\S.*))?")
_NUMBER = re.compile(r"0|-?[1-9]\d{0,17}")
_PLAIN = re.compile(r"(?:[A-Za-z(]|-[a-z]|\d+ [-/] |\d+-[a-z])(?:[^:#\t]|:(?=\S)|(?<=\S)#)*")
_EXTENTS = re.compile(r"\{(?:[A-Za-z_]\w*: [1-9]\d{0,17}(?:, (?=[A-Za-z_])|(?=\})))*\}")
_NOT_TEXT = frozenset({"null", "true", "false", "yes", "no", "on", "off", "nan"})
_BLOCK = re.compile(r":\s*[|>][-+0-9]*\s*(#.*)?$")
_SETTING = re.compile(
    r"\s*#@\s*(let\s+(\w+)\s*=|code_bytes\b|element_bytes\b|trans_b\b|arrays\b|about\b)\s*(.*)"
)


class Section(Struct, frozen=True):
    """A mapping of a kernel file: numbers, texts, truth values, sections or lists of sections, and lines.

    `lines` has the line of every key; the text of those in `blocks` begins on the line after.
    """

    values: Mapping[str, Any]
    lines: Mapping[str, int]
    file: str
    blocks: frozenset[str] = frozenset()

    def text_line(self, key: str) -> int:
        """Line where the value of a key begins."""
        return self.lines[key] + (key in self.blocks)

    def where(self, key: str) -> str:
        """Place of a key as ``file:line``, or the file for a key that is not there."""
        return f"{self.file}:{self.lines[key]}" if key in self.lines else self.file

    def check(self, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
        """Raise ConfigError for a key that is not known or missing."""
        for key in self.values:
            if key not in required + optional:
                raise ConfigError(
                    f"unknown key '{key}'", where=self.where(key), cure=suggestion(key, required + optional)
                )
        for key in required:
            if key not in self.values:
                raise ConfigError(f"the key '{key}' is missing", where=self.file, cure=f"add '{key}: ...'")


def suggestion(wanted: str, names: Iterable[str]) -> str:
    """A cure line for an unknown name: the nearest known one, and all if they are few or none is near."""
    choices = sorted(names)
    cure = nearest(wanted, choices)
    return cure if len(choices) <= FEW else cure.partition(" (known")[0]


def read_section(file: Traversable) -> Section:
    """The keys of a kernel file (.yaml, .yml) or listing (.S, .s). Raises ConfigError with ``file:line``."""
    path = str(file)
    if isinstance(file, Path):
        check_file_size(file, YAML_BYTES_PER_BYTE)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("the file is not UTF-8 text", where=path, cure="save the file as UTF-8") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"the file cannot be read: {reason}", where=path, cure="check the path") from error
    if file.name.endswith((".S", ".s")):
        return _listing(text, file.name.rpartition(".")[0], path)
    return quick_section(text, path) or full_section(text, path)


def full_section(text: str, path: str) -> Section:
    """The keys of any YAML text. Raises ConfigError with ``file:line``."""
    return _of_node(parse_yaml(text, path), text.split("\n"))


def _of_node(node: Node, lines: list[str]) -> Section:
    if not isinstance(node.value, Mapping):
        raise ConfigError(
            f"{node.kind} stands where 'key: value' lines are required", where=node.where, cure=KEY_LINES
        )
    places: dict[str, int] = {}
    values: dict[str, Any] = {}
    blocks: set[str] = set()
    for key, child in node.value.items():
        places[key] = child.line
        if isinstance(child.value, str) and _BLOCK.search(lines[child.line - 1]):
            blocks.add(key)
        if child.is_mapping:
            values[key] = _of_node(child, lines)
        elif child.is_sequence:
            values[key] = [_of_node(item, lines) for item in child.sequence(f"'{key}'")]
        else:
            values[key] = child.value
    return Section(values, places, node.file, frozenset(blocks))


def quick_section(text: str, path: str) -> Section | None:
    """The keys of a text in the small part of YAML that shipped files use; None for anything else."""
    return _mapping(text.split("\n"), 0, 0, path)


def _mapping(lines: list[str], indent: int, first: int, path: str) -> Section | None:
    """The keys at an indent; line `first` + 1 is the first one."""
    values: dict[str, Any] = {}
    places: dict[str, int] = {}
    blocks: set[str] = set()
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line or (indent == 0 and line.startswith("#")):
            continue
        match = _KEY.fullmatch(line[indent:]) if not line[:indent].strip() else None
        if match is None or match[1] in values:
            return None
        key, rest = match.groups()
        place, begin = first + at, at
        while at < len(lines) and (not lines[at] or lines[at].startswith(" " * (indent + 1))):
            at += 1
        body = lines[begin:at]
        if rest in ("|", "|2"):
            value: Any = _literal(body, indent + 2 if rest == "|2" else None)
            blocks.add(key)
        elif any(body) == (rest is not None):
            return None
        elif rest is not None:
            value = _scalar(rest, path, place)
        elif indent == 0 and body[0].startswith("  - "):
            value = _items(body, place, path)
        else:
            value = _mapping(body, indent + 2, place, path)
        if value is None:
            return None
        values[key], places[key] = value, place
    return Section(values, places, path, frozenset(blocks)) if values else None


def _literal(body: list[str], indent: int | None) -> str | None:
    filled = [line for line in body if line]
    if not filled:
        return None
    indent = indent or len(filled[0]) - len(filled[0].lstrip(" "))
    if any(line[:indent].strip() or "\t" in line for line in filled):
        return None
    return "\n".join(line[indent:] for line in body).rstrip("\n") + "\n"


def _items(body: list[str], first: int, path: str) -> list[Section] | None:
    starts = [index for index, line in enumerate(body) if line.startswith("  - ")] + [len(body)]
    items: list[Section] = []
    for start, stop in pairwise(starts):
        entry = ["    " + body[start][4:], *body[start + 1 : stop]]
        item = _mapping(entry, 4, first + start, path)
        if item is None:
            return None
        items.append(item)
    return items


def _scalar(text: str, path: str, line: int) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if _NUMBER.fullmatch(text):
        return int(text)
    if _EXTENTS.fullmatch(text):
        pairs = [pair.split(": ") for pair in text[1:-1].split(", ") if pair]
        values = {key: int(number) for key, number in pairs}
        return Section(values, dict.fromkeys(values, line), path) if len(values) == len(pairs) else None
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT and text == text.strip():
        return text
    return None


def _listing(text: str, name: str, path: str) -> Section:
    """A listing whose settings stand in lines `#@ let NAME = EXPRESSION`, `#@ trans_b true` and the like.

    Without `#@ code_bytes`, every instruction counts 4 bytes.
    """
    names: dict[str, Any] = {}
    name_lines: dict[str, int] = {}
    values: dict[str, Any] = {"kernel": name}
    places: dict[str, int] = {}
    kept: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        match = _SETTING.fullmatch(line)
        if match is None:
            kept.append(line)
            continue
        kept.append("")
        if match[2]:
            names[match[2]], name_lines[match[2]] = match[3], number
        else:
            setting = match[3].strip()
            values[match[1]] = _scalar(setting, path, number) if match[1] != "about" else setting
            places[match[1]] = number
    code = (re.sub(r"#.*|//.*|[.\w$]+:", "", line).strip() for line in kept)
    values.setdefault("code_bytes", 4 * sum(bool(line) and not line.startswith(".") for line in code))
    arrays = {"A": 2, "B": 2, "C": 2}
    values.setdefault("arrays", Section(arrays, dict.fromkeys(arrays, 1), path))
    values |= {"names": Section(names, name_lines, path), "listing": "\n".join(kept)}
    return Section(values, places | {"listing": 0}, path, frozenset({"listing"}))
