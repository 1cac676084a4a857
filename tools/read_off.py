# SPDX-License-Identifier: Apache-2.0
"""Which hardware parameters were read off measured rows: these rows are no test of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from configs.grades import FITTED, FITTED_ON, GRADES, MEASURED, MEASURED_ON, grade, grades, parts_of
from configs.parameters import Parameter, ParameterTree

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


def rows_of(parameter: Parameter) -> tuple[tuple[str, str], ...]:
    """(file in `measured/`, benchmark) of every set of rows the source names."""
    rows: list[tuple[str, str]] = []
    for part in parts_of(parameter.source):
        for beginning in (*MEASURED_ON, *FITTED_ON):
            if part.startswith(beginning):
                text = re.sub(r"\([^)]*\)", "", part.removeprefix(beginning)).lstrip(", ")
                file, _, listed = text.partition(" ")
                rtl = file.startswith("rtl-")
                names = (listed if rtl else re.sub(r"^micro-benchmarks? ", "", text)).split(" and ")
                words = [each.split()[0].rstrip(",:") for each in names if each.strip()]
                words = words or [file]
                rows += [(_rtl_file(file, name) if rtl else _file(name), name) for name in words]
    return tuple(rows)


def read_off(trees: Sequence[ParameterTree]) -> tuple[ReadOff, ...]:
    """Every parameter of these SoCs that was read off measured rows, without a citation that says the same.

    One that a SoC takes over from another with its source is that of the first in the order given.
    """
    by_place: dict[tuple[str, str], ReadOff] = {}
    for tree in trees:
        for path, parameter in tree.items():
            graded = grade(parameter, tree.profile)
            parts = parts_of(parameter.source)
            cited = not all(part.startswith((*MEASURED_ON, *FITTED_ON)) for part in parts)
            if graded == FITTED or (graded == MEASURED and not cited):
                item = ReadOff(tree.name, tree.profile, path, graded, rows_of(parameter))
                by_place.setdefault((path, parameter.where), item)
    return tuple(by_place.values())


def counts(tree: ParameterTree) -> Mapping[str, int]:
    """How many parameters of a SoC have each grade."""
    all_grades = list(grades(tree).values())
    return {word: all_grades.count(word) for word in GRADES}


def _rtl_file(file: str, name: str) -> str:
    """The file of a benchmark of RTL rows: the last one named, or the name if it is one."""
    return f"{name if name.startswith('rtl-') else file}.csv"


def _file(benchmark: str) -> str:
    return next((file for beginning, file in _FILES if benchmark.startswith(beginning)), "micro.csv")
