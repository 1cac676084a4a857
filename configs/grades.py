# SPDX-License-Identifier: Apache-2.0
"""How good the source of a hardware parameter is: cited, measured, fitted or assumed.

The grade follows from what the SoC file says. `assumed: true` is *assumed*. A source is parts separated by
semicolons; a part that begins with `MEASURED_ON` or `FITTED_ON` names rows of `measured/`, any other part is
a citation. Rows of GVSoC speak for the profile gvsoc: there such a part makes the value

- *measured*, if a row gives it, alone or less another measured interval (a citation may say the same);
- *fitted*, if it is what the model needs to meet rows: a rest, a mean of rows that differ, a threshold.

In rtl these parts do not count. A value with a citation is *cited* then, any other is *assumed*. A value the
user sets is cited: the user is its source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from configs.parameters import Parameter, ParameterTree

CITED, MEASURED, FITTED, ASSUMED = "cited", "measured", "fitted", "assumed"

GRADES = (CITED, MEASURED, FITTED, ASSUMED)
"""The grades, in the order of tables."""

DESCRIBED, ESTIMATED = "described", "estimated"

LABELS = (MEASURED, DESCRIBED, ESTIMATED)
"""What stands behind the cycles of a kernel or of a part of the machine, best first."""

MACHINES = {"gvsoc": "GVSoC", "rtl": "RTL"}
"""Timing profile -> what rows of it were taken on, as sources name it."""

MEASURED_ON = tuple(f"measured on {machine}" for machine in MACHINES.values())
FITTED_ON = tuple(f"fitted on {machine}" for machine in MACHINES.values())

_FILES = (
    ("1d", "dma.csv"),
    ("2d", "dma.csv"),
    ("icache", "icache.csv"),
    ("tiled-layers", "tiled-layers.csv"),
)
"""Beginning of a benchmark's name -> the file its rows are in; all others are in micro.csv."""


@dataclass(frozen=True, slots=True)
class ReadOff:
    """A parameter of a SoC under a timing profile whose value rows gave and no citation.

    `rows` are (file in `measured/`, benchmark). These rows are no test of it.
    """

    soc: str
    profile: str
    path: str
    grade: str
    rows: tuple[tuple[str, str], ...]


def grade(parameter: Parameter, profile: str) -> str:
    """One of `GRADES`."""
    parts = _parts(parameter.source)
    cited = any(not part.startswith((*MEASURED_ON, *FITTED_ON)) for part in parts)
    if parameter.assumed:
        return ASSUMED
    for word in (FITTED, MEASURED):
        if any(part.startswith(f"{word} on {MACHINES[profile]}") for part in parts):
            return word
    return CITED if cited else ASSUMED


def grades(tree: ParameterTree) -> dict[str, str]:
    """The grade of every parameter by its path."""
    return {path: grade(parameter, tree.profile) for path, parameter in tree.items()}


def assumed_count(tree: ParameterTree) -> int:
    """How many parameters of a SoC are assumed."""
    return sum(found == ASSUMED for found in grades(tree).values())


def rows_of(parameter: Parameter) -> tuple[tuple[str, str], ...]:
    """(file in `measured/`, benchmark) of every set of rows the source names."""
    found: list[tuple[str, str]] = []
    for part in _parts(parameter.source):
        for beginning in (*MEASURED_ON, *FITTED_ON):
            if part.startswith(beginning):
                text = re.sub(r"\([^)]*\)", "", part.removeprefix(beginning)).lstrip(", ")
                file, _, own = text.partition(" ")
                rtl = file.startswith("rtl-")
                names = (own if rtl else re.sub(r"^micro-benchmarks? ", "", text)).split(" and ")
                words = [each.split()[0].rstrip(",:") for each in names if each.strip()]
                words = words or [file]
                found += [(_rtl_file(file, name) if rtl else _file(name), name) for name in words]
    return tuple(found)


def read_off(trees: Sequence[ParameterTree]) -> tuple[ReadOff, ...]:
    """Every parameter of these SoCs that was read off measured rows, without a citation that says the same.

    One that a SoC takes over from another with its source is that of the first in the order given.
    """
    found: dict[tuple[str, str], ReadOff] = {}
    for tree in trees:
        for path, parameter in tree.items():
            own = grade(parameter, tree.profile)
            cited = any(not part.startswith((*MEASURED_ON, *FITTED_ON)) for part in _parts(parameter.source))
            if own == FITTED or (own == MEASURED and not cited):
                item = ReadOff(tree.name, tree.profile, path, own, rows_of(parameter))
                found.setdefault((path, parameter.where), item)
    return tuple(found.values())


def counts(tree: ParameterTree) -> Mapping[str, int]:
    """How many parameters of a SoC have each grade."""
    all_grades = list(grades(tree).values())
    return {word: all_grades.count(word) for word in GRADES}


def _parts(source: str) -> list[str]:
    """The parts of a source; a semicolon in parentheses separates nothing."""
    return [part.strip() for part in re.split(r";(?![^(]*\))", source)]


def _rtl_file(file: str, name: str) -> str:
    """The file of a benchmark of RTL rows: the last one named, or the name if it is one."""
    return f"{name if name.startswith('rtl-') else file}.csv"


def _file(benchmark: str) -> str:
    return next((file for beginning, file in _FILES if benchmark.startswith(beginning)), "micro.csv")
