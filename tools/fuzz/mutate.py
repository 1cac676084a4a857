# SPDX-License-Identifier: Apache-2.0
"""What is done to a text, a table or some bytes to see whether pulptrain says what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import isfinite
from random import Random

NUMBERS = (
    "0", "-0", "1", "-1", "2", "3", "5", "7", "8", "16", "17", "64", "100", "1000", "65536", "1000000",
    "100000000", "2147483647", "2147483648", "-2147483649", "4294967296", "3000000000",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "99999999999999999999999",
    "1" + "0" * 60, "9" * 5000, "0.1", "0.5", "1.5", "-0.5", "1e-320", "1e-8", "1e8", "1e20", "1e308",
    "-1e308", "1e400", "nan", "inf", "-inf", ".nan", ".inf", "-.inf", "0x10", "0o17", "0b1", "1_000", "1e",
    "+5", "٣", "5.0", "1,5",
)  # fmt: skip
"""Numbers as people and machines write them, and what looks like one."""

WORDS = (
    "", "true", "false", "null", "~", "''", '""', "[]", "{}", "[1, 2]", "{a: 1}", "abc", "!!int abc",
    "!!float x", "!!binary zz", "*a", "&a 1", "&a [*a]", "<<", "? [1]", "|", ">", "%", "@", "`", "- -", "[",
    "{", "]", "}", ":", "2001-99-99", "2001-01-01", "off", "on", "auto", "best", "none", "input", "loss",
    "conv1", "fc1", "fc1.FW", "fp16", "bf16", "int8", "HWC", "CHW", "\u0000", "\ud7ff", "\U0001f600", "é",
    "/", ".", "..", "-", "--", "=", "a" * 3000, "[" * 400, "{a: " * 200, "((((((((((" * 30, "-" * 300 + "1",
    "!!python/object:os.system x",
)  # fmt: skip
"""Words that mean something somewhere, and what parsers choke on."""

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?")
_VALUE = re.compile(r"(?<=[:,=]) *[^,:=\n{}\[\]]+")
_WORD = re.compile(r"[A-Za-z_][\w.]*")

TextMutation = Callable[[str, Random], str]


def _replaced(pattern: re.Pattern[str], choices: Sequence[str], text: str, generator: Random) -> str:
    places = list(pattern.finditer(text))
    if not places:
        return text + generator.choice(choices)
    place = generator.choice(places)
    return text[: place.start()] + generator.choice(choices) + text[place.end() :]


def _number(text: str, generator: Random) -> str:
    return _replaced(_NUMBER, NUMBERS, text, generator)


def _nearby(text: str, generator: Random) -> str:
    """A number a little larger or smaller: what a person may have meant."""
    places = list(_NUMBER.finditer(text))
    if not places:
        return text
    place = generator.choice(places)
    number = float(place[0])
    near = generator.choice((number + 1, number - 1, number * 2, number / 2, number * 10, -number))
    whole = isfinite(near) and (near.is_integer() or place[0].isdigit())
    written = str(int(near)) if whole else str(near)
    return text[: place.start()] + written + text[place.end() :]


def _value(text: str, generator: Random) -> str:
    return _replaced(_VALUE, [f" {word}" for word in (*NUMBERS, *WORDS)], text, generator)


def _word(text: str, generator: Random) -> str:
    """One word of the text in the place of another, or a word of ours."""
    own = _WORD.findall(text)
    return _replaced(_WORD, [*own, *WORDS[:20]] or WORDS, text, generator)


def _line(text: str, generator: Random) -> str:
    """A line left out, doubled, moved, indented or made of something else."""
    lines = text.split("\n")
    place = generator.randrange(len(lines))
    match generator.randrange(6):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, lines[place])
        case 2:
            lines.insert(generator.randrange(len(lines)), lines.pop(place))
        case 3:
            lines[place] = "  " + lines[place]
        case 4:
            lines[place] = lines[place].strip()
        case _:
            lines.insert(place, generator.choice(WORDS))
    return "\n".join(lines)


def _characters(text: str, generator: Random) -> str:
    if not text:
        return generator.choice(WORDS)
    start = generator.randrange(len(text))
    stop = min(len(text), start + generator.choice((0, 1, 1, 2, 10)))
    inserted = generator.choice(("", chr(generator.randrange(1, 300)), generator.choice(WORDS)))
    return text[:start] + inserted + text[stop:]


def _cut(text: str, generator: Random) -> str:
    return text[: generator.randrange(len(text) + 1)]


TEXT_MUTATIONS: Sequence[tuple[TextMutation, int]] = (
    (_nearby, 9), (_number, 4), (_value, 2), (_word, 2), (_line, 3), (_characters, 1), (_cut, 1)
)  # fmt: skip
"""Mutations, and how often each is drawn: most leave something that runs."""


def mutated_text(text: str, generator: Random) -> bytes:
    """The text with one to four mistakes in it; now and then bytes that are no text."""
    mutations, weights = zip(*TEXT_MUTATIONS, strict=True)
    for _ in range(generator.choice((1, 1, 1, 1, 1, 2, 2, 4))):
        text = generator.choices(mutations, weights)[0](text, generator)
    data = text.encode("utf-8", "surrogatepass")
    return mutated_bytes(data, generator) if generator.random() < 0.02 else data


def mutated_bytes(data: bytes, generator: Random) -> bytes:
    """The bytes with some changed, left out, doubled or cut off."""
    changed = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 5, 20))):
        if not changed:
            break
        place = generator.randrange(len(changed))
        match generator.randrange(5):
            case 0 | 1:
                changed[place] = generator.randrange(256)
            case 2:
                del changed[place : place + generator.choice((1, 2, 4, 100))]
            case 3:
                changed[place:place] = bytes(generator.choice((b"\0", b"\xff\xfe", b"\x80", b"PK\3\4")))
            case _:
                if generator.random() < 0.2:
                    del changed[place:]
    return bytes(changed)
