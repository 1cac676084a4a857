# SPDX-License-Identifier: Apache-2.0
"""The table of errors by class, from measured rows, and how often its bars hold of rows that are not in it.

``python -m tools.validation.error_classes`` writes `TABLE` from the rows of `tools.validation.error_rows`.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from arch.spec.isa import FPU_OPS, Op
from configs.values import replace
from scheduler.validation.error_bars import (
    ANY,
    COMPUTES,
    FEWEST_ROWS,
    FILE,
    MATMUL,
    MOVES,
    OPS,
    OPS_WARM,
    Bar,
    ErrorClass,
    ErrorTable,
    Key,
    combined,
    kernel_key,
    machine_key,
    op_key,
)
from tools.validation.error_rows import ROOT, STEPS, STEPS_WARM, ErrorRow, stored
from trainlib.kernels.library import LIBRARY
from trainlib.kernels.nodes import codes

TABLE = ROOT / "configs" / "data" / FILE
FIGURES = ROOT / "tests" / "validation-figures.json"

LAYER = "layer"
WHOLE = (LAYER, "tutorial-anchors", "tiled", "tiled-layers", "rtl tiled", *STEPS, STEPS_WARM)
"""Sets of programs: of many kernels, or of kernels and transfers."""

OPS_ON_RTL, ITERATIONS_ON_RTL = (
    "ops of exported programs, bars from other models",
    "whole iterations of exported programs, bars from other models",
)

DOMINANT = 0.9
"""A row is one of a class if parts of this class are at least this share of its predicted cycles."""


@cache
def family_of(codegen: str, nest: str) -> str:
    """`MATMUL`, `MOVES` or `COMPUTES`."""
    if LIBRARY.header(codegen, nest).is_matmul:
        return MATMUL
    computes = FPU_OPS | {Op.FDIV}
    made = codes(LIBRARY.kernel(codegen, nest).expander.nest.body)
    return COMPUTES if computes & {code.instruction.op for code in made} else MOVES


def shares_of(row: ErrorRow) -> Mapping[Key, float]:
    """The classes of a row's parts, and their shares of its predicted cycles."""
    cycles: dict[Key, float] = defaultdict(float)
    for part in row.parts:
        if part.is_nest:
            family = family_of(row.codegen, part.name)
            key = kernel_key(row.profile, family, row.codegen, row.team, part.cycles, part.calls)
        elif part.name in (OPS, OPS_WARM):
            key = op_key(row.profile, row.team, part.cycles, warm=part.name == OPS_WARM)
        else:
            key = machine_key(row.profile, part.name, part.cycles, part.calls)
        cycles[key] += part.cycles
    whole = sum(cycles.values())
    return {key: part / whole for key, part in cycles.items()}


def class_of(row: ErrorRow) -> Key | None:
    """The class a row tells about, if it is one: not of several parts, and no count was read off it."""
    key, share = max(shares_of(row).items(), key=lambda item: item[1])
    return key if share >= DOMINANT and not row.read_off else None


Errors = Mapping[Key, Sequence[float]]
"""The errors of the rows of every class."""


def errors_of(rows: Iterable[ErrorRow]) -> Errors:
    """The errors of rows by class, those of no class left out."""
    errors: dict[Key, list[float]] = defaultdict(list)
    for row in rows:
        key = class_of(row)
        if key is not None:
            errors[key].append(row.error)
    return errors


def classes_of(*groups: Errors) -> dict[str, ErrorClass]:
    """The classes of enough rows, and the wider ones these are joined in."""
    errors: dict[Key, list[float]] = defaultdict(list)
    for group in groups:
        for key, found in group.items():
            for codegen, size in product({key.codegen, ANY}, {key.size, ANY}):
                errors[replace(key, codegen=codegen, size=size)] += found
    return {
        key.text: ErrorClass(
            len(found), round(float(np.mean(found)), 6), round(float(np.std(found, ddof=1)), 6)
        )
        for key, found in sorted(errors.items())
        if len(found) >= FEWEST_ROWS
    }


def families_of(rows: Iterable[ErrorRow]) -> dict[str, dict[str, dict[str, str]]]:
    """By profile and codegen the nests that rows have, and their families."""
    families: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows:
        for part in row.parts:
            if part.is_nest:
                nests = families.setdefault(row.profile, {}).setdefault(row.codegen, {})
                nests[part.name] = family_of(row.codegen, part.name)
            elif part.name == OPS:
                nests = families.setdefault(OPS, {}).setdefault(ANY, {})
                nests |= dict.fromkeys(row.what.split()[0].split("+"), OPS)
    return families


def table_of(rows: Sequence[ErrorRow]) -> ErrorTable:
    """The table of some rows."""
    return ErrorTable(classes_of(errors_of(rows)), families_of(rows), stamp())


def bar_of(shares: Mapping[Key, float], table: ErrorTable) -> Bar | None:
    """The bar of the shares of classes by a table; None if one is not in it."""
    found = [(share, table.nearest(key)) for key, share in shares.items()]
    parts = [(share, *nearest) for share, nearest in found if nearest is not None]
    return combined(parts) if len(parts) == len(found) else None


@dataclass(frozen=True, slots=True)
class Held:
    """A row and the bar it has by a table it is not in."""

    row: ErrorRow
    bar: Bar | None

    @property
    def within(self) -> bool:
        """Whether the measured cycles lie within the bar."""
        return self.bar is not None and abs(self.row.error) <= self.bar.within


def held_out(rows: Sequence[ErrorRow]) -> Mapping[str, list[Held]]:
    """By title, rows of whole programs with bars from others.

    Rows of single kernels and transfers only tell about layer steps, tile loops and whole iterations; about
    layer steps once more those and the steps of all other layers. On RTL the ops of all other models tell
    about ops of exported programs and about their iterations.
    """
    single = errors_of(row for row in rows if row.set not in WHOLE)
    exported, warm = ([row for row in rows if row.set in names] for names in (STEPS, (STEPS_WARM,)))
    by_model = {
        name: ErrorTable(classes_of(errors_of(row for row in (*exported, *warm) if _model(row) != name)))
        for name in set(map(_model, exported))
    }
    steps = [row for row in rows if row.set == LAYER and not _is_iteration(row)]
    by_layer = {
        name: errors_of(row for row in steps if _layer(row) == name) for name in set(map(_layer, steps))
    }
    others = {
        name: ErrorTable(classes_of(single, *(found for other, found in by_layer.items() if other != name)))
        for name in by_layer
    }
    by_single = ErrorTable(classes_of(single))
    return {
        "layer steps, bars from kernels": [_held(row, by_single) for row in steps],
        "layer steps, bars from kernels and other layers": [_held(row, others[_layer(row)]) for row in steps],
        "tile loops": [_held(row, by_single) for row in rows if "tiled" in row.set],
        "whole iterations": [_held(row, by_single) for row in rows if _is_iteration(row)],
        OPS_ON_RTL: [_held(row, by_model[_model(row)]) for row in exported],
        ITERATIONS_ON_RTL: [
            _held(row, by_model[_model(row)], shares) for row, shares in iterations_of(exported)
        ],
        f"{OPS_ON_RTL}, warm": [_held(row, by_model[_model(row)]) for row in warm],
        f"{ITERATIONS_ON_RTL}, warm": [
            _held(row, by_model[_model(row)], shares) for row, shares in iterations_of(warm)
        ],
    }


def _held(row: ErrorRow, table: ErrorTable, shares: Mapping[Key, float] | None = None) -> Held:
    return Held(row, bar_of(shares_of(row) if shares is None else shares, table))


def iterations_of(ops: Iterable[ErrorRow]) -> Iterator[tuple[ErrorRow, Mapping[Key, float]]]:
    """The runs that ops of exported programs belong to, and the shares of their classes."""
    runs: dict[str, list[ErrorRow]] = defaultdict(list)
    for row in ops:
        runs[f"{_model(row)} {row.what.split()[1]} {row.team}"].append(row)
    for parts in runs.values():
        predicted, shares = sum(row.predicted for row in parts), dict[Key, float]()
        for row in parts:
            for key, share in shares_of(row).items():
                shares[key] = shares.get(key, 0.0) + share * row.predicted / predicted
        measured = sum(row.measured for row in parts)
        yield replace(parts[0], measured=measured, predicted=predicted), shares


def _model(row: ErrorRow) -> str:
    """The model of an op of an exported program."""
    return row.row.rpartition(f"-{row.what.split()[1]}-")[0]


@cache
def held_out_today() -> Mapping[str, list[Held]]:
    """`held_out` of the rows that are kept."""
    return held_out(stored())


def _is_iteration(row: ErrorRow) -> bool:
    return row.what.startswith("tutorial_step")


def _layer(row: ErrorRow) -> str:
    return row.what.partition(" ")[0]


def stamp() -> str:
    """Digest of the figures of validation, which change with every prediction."""
    return hashlib.sha256(FIGURES.read_bytes()).hexdigest()[:8]


def text_of(table: ErrorTable) -> str:
    """The table as its file has it."""
    classes = {name: [found.count, found.bias, found.spread] for name, found in table.classes.items()}
    numbers = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in classes.items())
    families = json.dumps(table.families, sort_keys=True)
    return f'{{"digest": "{table.digest}",\n"families": {families},\n"classes": {{\n{numbers}}}}}\n'


if __name__ == "__main__":
    TABLE.write_text(text_of(table_of(stored())), encoding="utf-8")
