# SPDX-License-Identifier: Apache-2.0
"""Strict YAML 1.2: every node knows its line, every mistake is a `ConfigError` with ``file:line``."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from configs.errors import ConfigError, InputError, cure_of, shortened
from configs.files import write_text
from configs.limits import YAML_BYTES_PER_BYTE, check_file_size, check_text_size
from configs.units import LARGEST_FLOAT, LARGEST_INTEGER
from configs.values import Struct

if TYPE_CHECKING:
    from ruamel.yaml.error import MarkedYAMLError

Scalar = str | int | float | bool | None


def place(file: str, line: int) -> str:
    """``file:line``; without the line where an option of the command line holds the text."""
    return file if file.startswith("--") else f"{file}:{line}"


class Node(Struct, frozen=True, array_like=True):
    """One value of a YAML file: a scalar, a mapping with text keys, or a sequence, and where it stands.

    `file` is the label used in messages. `line` counts from 1; a value in a mapping has the line of
    its key.
    """

    value: Scalar | Mapping[str, Node] | tuple[Node, ...]
    file: str
    line: int

    @property
    def where(self) -> str:
        """Place of the node as ``file:line``."""
        return place(self.file, self.line)

    def error(self, message: str, cure: str | None = None) -> ConfigError:
        """What is wrong with it, at its place."""
        return ConfigError(message, where=self.where, cure=cure)

    @property
    def is_mapping(self) -> bool:
        """Whether the node is a mapping."""
        return isinstance(self.value, Mapping)

    @property
    def is_sequence(self) -> bool:
        """Whether the node is a sequence."""
        return isinstance(self.value, Sequence) and not isinstance(self.value, str)

    def mapping(self, what: str) -> Mapping[str, Node]:
        """Return the children by key; raises `ConfigError` saying that `what` must be a mapping."""
        if isinstance(self.value, Mapping):
            return self.value
        raise self.error(f"{what} must be a mapping, not {self.kind}", "write 'key: value' lines")

    def sequence(self, what: str) -> Sequence[Node]:
        """Return the children in order; raises `ConfigError` saying that `what` must be a list."""
        if isinstance(self.value, Sequence) and not isinstance(self.value, str):
            return self.value
        raise self.error(f"{what} must be a list, not {self.kind}", "write '- item' lines")

    @property
    def kind(self) -> str:
        """What the node is, in words, for messages."""
        if isinstance(self.value, Mapping):
            return "a mapping"
        if isinstance(self.value, str):
            return f"the text '{shortened(self.value)}'"
        if self.value is None:
            return "empty"
        return "a list" if isinstance(self.value, Sequence) else shortened(str(self.value))

    def plain(self) -> Any:
        """Return the value as plain dicts, lists and scalars."""
        if isinstance(self.value, Mapping):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, Sequence) and not isinstance(self.value, str):
            return [child.plain() for child in self.value]
        return self.value


def read_text(path: Path) -> str:
    """Read a UTF-8 file; raises `ConfigError` when it is missing, unreadable, too large or not text."""
    check_file_size(path, YAML_BYTES_PER_BYTE)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError("the file does not exist", where=str(path), cure="check the path") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the file is not UTF-8 text: {error.reason}", where=str(path), cure="save the file as UTF-8"
        ) from None
    except (OSError, ValueError) as error:
        # ValueError: a path with a null byte.
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"the file cannot be read: {reason}",
            where=str(path),
            cure=cure_of(error, "use the path of a file that you may read"),
        ) from None


def load_yaml(path: Path) -> Node:
    """Read and parse the YAML file at `path`; raises `ConfigError` with ``file:line``."""
    return parse_yaml(read_text(path), str(path))


class _Kept(Struct, frozen=True):
    """What a file said that had this digest."""

    key: str
    tree: Node


def installed_yaml(text: str, file: str) -> Node:
    """As `parse_yaml`, of a file that ships with pulptrain: the parser takes a tenth of a second a SoC.

    What it says is kept beside compiled Python code, and like that written unless Python is told not to, with
    a digest of what it follows from: the file and this module (YAML 1.2 itself does not change).
    """
    source = Path(__file__).read_text(encoding="utf-8")
    key = sha256("\0".join((text, file, source)).encode()).hexdigest()
    kept = Path(cache_from_source(__file__)).parent / f"{file.replace('/', '-')}.json"
    with suppress(OSError, ValueError):
        entry = msgspec.json.decode(kept.read_bytes(), type=_Kept)
        if entry.key == key:
            return entry.tree
    node = parse_yaml(text, file)
    if not sys.dont_write_bytecode:
        with suppress(InputError, OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_text(kept, msgspec.json.encode(_Kept(key, node)).decode())
    return node


def parse_yaml(text: str, file: str) -> Node:
    """Parse one YAML 1.2 document; `file` is the label for messages.

    Raises `ConfigError` with ``file:line`` for a syntax error, a duplicate or non-text key, a merge key, an
    alias, an unknown tag, several documents, an empty or too large file.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    check_text_size(len(text), YAML_BYTES_PER_BYTE, file)
    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
        if root is None:
            raise ConfigError(
                "the file is empty",
                where=place(file, 1),
                cure="write keys and values into it, or use another file",
            )
        return _Converter(file, yaml.constructor).convert(root)
    except MarkedYAMLError as error:
        raise _syntax_error(error, text, file) from None
    except YAMLError as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"YAML error: {first}", where=place(file, 1), cure="save the file as plain text"
        ) from None
    except (ValueError, OverflowError):
        # The parser lets some through that an escape sequence such as \\UFFFFFFFF causes.
        raise ConfigError(
            "YAML error: a character code in double quotes, such as \\UFFFFFFFF, is too large",
            where=place(file, 1),
            cure="use a code up to \\U0010FFFF, or single quotes",
        ) from None
    except RecursionError:
        raise ConfigError(
            "the file is nested too deeply", where=place(file, 1), cure="use fewer levels of nesting"
        ) from None


_OPEN_QUOTE = r"unexpected end of stream|unexpected document separator"

_SYNTAX = (
    (r"'\\t'", "a tab instead of spaces", "indent with spaces"),
    (
        r"expected ',' or '([\]}])'",
        "a '{0}' is missing for the bracket in line {start}",
        "add a '{0}', or a ',' between two items",
    ),
    (
        _OPEN_QUOTE,
        "the quote that begins in this line is not closed",
        "add a quote at the end of the text",
    ),
    (
        r"mapping values are not allowed",
        "unexpected ': '",
        "write one 'key: value' per line, indented like its neighbours; put a text with ': ' in quotes",
    ),
    (
        r"are not allowed here|expected '<document start>'|found unexpected ':'",
        "unexpected text",
        "write one 'key: value' or '- item' per line; put a text with ':' or '- ' in quotes",
    ),
    (r"could not find expected ':'|expected ':'", "a key without ': '", "write 'key: value', with the space"),
    (
        r"expected <block end>, but found '(?:<block mapping start>|<scalar>|\?|-|<block sequence start>)'",
        "indented differently from line {start}",
        "use as many spaces as the neighbouring lines; write one item '- ...' or one 'key: value' per line",
    ),
    (r"character '(.)' that cannot start", "a value cannot begin with {0}", "put the text in quotes"),
    (
        r"the node content, but found '<",
        "the text ends where a value is needed",
        "add the value, close every bracket, or put the text in quotes",
    ),
    (
        r"(?:block (?:node|mapping|collection|sequence)|<block end>).*found '([\]}])'",
        "'{0}' closes no bracket",
        "remove the '{0}', or put the text in quotes",
    ),
    (
        r"(?:the node content|<block end>), but found '(.*)'",
        "'{0}' stands where a value is needed",
        "put the text in quotes, or add the missing value",
    ),
    (
        r"single document",
        "'---' begins a second document, but a file holds one",
        "remove the line '---', or use two files",
    ),
    (
        r"undefined alias",
        "YAML aliases (*name) are not supported",
        "write the value, or put the text in quotes",
    ),
    (r"scanning an (?:alias|anchor)", "a text cannot begin with * or &", "put the text in quotes"),
    (
        r"\btag\b",
        "'!' begins a YAML tag, which is not supported",
        "remove the tag, or put the text in quotes",
    ),
    (r"directive|YAML document", "a line cannot begin with %", "remove the line, or put the text in quotes"),
    (
        r"block scalar",
        "'|' or '>' needs its text in the next lines, all indented alike",
        "write the text there, or put it in quotes",
    ),
    (
        r"double-quoted",
        "'\\' in double quotes begins a character code, but this one is unknown",
        "use single quotes, or write '\\\\'",
    ),
)
"""Mistakes of syntax: what the parser says, what is wrong, what helps. `start` is where the text began."""


def _syntax_error(error: MarkedYAMLError, text: str, file: str) -> ConfigError:
    """The mistake in words of the file, with its line; in words of the parser if it is none of `_SYNTAX`."""
    mark = error.problem_mark or error.context_mark
    number = mark.line + 1 if mark else 1
    start = error.context_mark.line + 1 if error.context_mark else number
    parser_words = ": ".join(part for part in (error.context, error.problem) if part)
    meant, cure = parser_words, "correct the YAML at or above this line"
    for pattern, meaning, help_text in _SYNTAX:
        match = re.search(pattern, parser_words)
        if match is not None:
            meant, cure = (form.format(*match.groups(), start=start) for form in (meaning, help_text))
            number = start if pattern == _OPEN_QUOTE else number
            break
    lines = text.splitlines()
    shown = lines[number - 1].strip() if number <= len(lines) else ""
    return ConfigError(
        f"YAML syntax error: {meant}" + (f"; the line is: {shortened(shown)}" if shown else ""),
        where=place(file, number),
        cure=cure,
    )


LONGEST_NUMBER = 1000
"""Characters of a number that Python reads; of more it refuses some."""

_TAGS = {"!!bool": "true or false", "!!int": "a whole number", "!!float": "a number"}
"""What a text has to be that has one of these tags, or looks so."""


class _Converter:
    """Turns composed YAML nodes into `Node` trees.

    Aliases are refused: a value that stands elsewhere would be reported at the wrong line, and nested ones
    can expand without bound.
    """

    def __init__(self, file: str, constructor: Any) -> None:
        self.file = file
        self.constructor = constructor
        self.seen: set[int] = set()

    def convert(self, node: Any, line: int | None = None) -> Node:
        if id(node) in self.seen:
            raise self.error(node, "YAML aliases (*name) are not supported", "write the value instead")
        self.seen.add(id(node))
        value: Scalar | Mapping[str, Node] | tuple[Node, ...]
        if node.id == "mapping":
            value = self.mapping(node)
        elif node.id == "sequence":
            value = tuple(self.convert(child) for child in node.value)
        else:
            value = self.scalar(node)
        return Node(value, self.file, line or node.start_mark.line + 1)

    def mapping(self, node: Any) -> Mapping[str, Node]:
        lines: dict[str, int] = {}
        children: dict[str, Node] = {}
        for key_node, child in node.value:
            key = key_node.value if key_node.id == "scalar" else None
            if key == "<<":
                raise self.error(key_node, "merge keys (<<) are not supported", "write the values instead")
            if key is None or not isinstance(self.scalar(key_node), str):
                raise self.error(key_node, "every key must be text", "put the key in quotes")
            if key in lines:
                raise self.error(
                    key_node,
                    f"duplicate key '{key}', first used in line {lines[key]}",
                    "remove one of the two",
                )
            lines[key] = key_node.start_mark.line + 1
            children[key] = self.convert(child, lines[key])
        return children

    def scalar(self, node: Any) -> Scalar:
        from ruamel.yaml.constructor import ConstructorError

        shown, tag = shortened(str(node.value)), str(node.tag).replace("tag:yaml.org,2002:", "!!")
        try:
            value = self.constructor.construct_object(node)
        except ConstructorError:
            cure = "remove the tag, or put the text in quotes"
            raise self.error(node, f"the YAML tag '{tag}' is not supported", cure) from None
        except (ValueError, TypeError, OverflowError, LookupError, AttributeError):
            # What a tag asks for and the text does not give (!!int abc), or more digits than Python reads.
            if (digits := len(node.value)) > LONGEST_NUMBER:
                raise self.error(
                    node, f"'{shown}' is too large: it has {digits} digits", "use a smaller number"
                ) from None
            cure = f"write {_TAGS[tag]}, or the text in quotes" if tag in _TAGS else "put the text in quotes"
            raise self.error(
                node, f"'{shown}' cannot be read as {_TAGS.get(tag, 'a date')}", f"{cure}, without a YAML tag"
            ) from None
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            limits = f"-{LARGEST_INTEGER} to {LARGEST_INTEGER}"
            raise self.error(node, f"{shown} is outside the range of {limits}", f"use a number from {limits}")
        if isinstance(value, float) and not abs(value) <= LARGEST_FLOAT:
            wrong = "outside the range of fp32" if math.isfinite(value) else "not a finite number"
            cure = f"use a number from -{LARGEST_FLOAT} to {LARGEST_FLOAT}"
            raise self.error(node, f"{value} is {wrong}", cure)
        if value is None or isinstance(value, str | int | float | bool):
            return value
        raise self.error(
            node, f"a value of type {type(value).__name__} is not supported", "put the value in quotes"
        )

    def error(self, node: Any, message: str, cure: str) -> ConfigError:
        return ConfigError(message, where=place(self.file, node.start_mark.line + 1), cure=cure)
