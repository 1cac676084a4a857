# SPDX-License-Identifier: Apache-2.0
"""The measured rows that watch: one, drawn with a seed, of every kind of row in every measured set."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from scheduler.validation.rows.cases import Case
from scheduler.validation.rows.dma import CHECK
from scheduler.validation.rows.kinds import kind_named
from scheduler.validation.rows.layer_steps import DMA_IM2COL
from tools.pages.page import ROOT
from tools.validation.sets import SETS

SEED = 2024

MOST_CORE_CYCLES = 30_000
"""Measured cycles times cores of a row that is drawn, so that a defect is tried in seconds. Of a kind that
has no such row the shortest one is taken."""

LEFT_OUT_CORE_CYCLES = 500_000
"""A kind without a shorter row has none here: whole steps of the tutorial network, whose layers are kinds."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Columns of a set: by `kinds` rows differ in what is executed, rows alike in `groups` have a figure."""

    kinds: tuple[str, ...]
    groups: tuple[str, ...]
    one_and_several: bool = False
    """Whether a row of one core and one of several are of two kinds."""
    left_out: tuple[str, ...] = ()
    """Values of its `kinds` that have no row here."""


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    core_cycles: int
    case: Case


WATCHED = {
    "rtl mm": Watched(("dtype", "cores"), ()),
    "rtl loops": Watched(("kernel",), ()),
    "rtl tiled": Watched(("buffering", "cores"), ("buffering",)),
    "rtl overlap, kernel": Watched(("direction", "cores"), ()),
    "rtl overlap, transfers": Watched(("direction", "cores"), ()),
    "rtl dma": Watched(("test", "direction"), ("test",), left_out=(CHECK,)),
    "rtl dma-contention, transfer": Watched(("dir", "traffic"), ()),
    "rtl dma-contention, core": Watched(("dir", "traffic"), ()),
    "rtl icache, cold": Watched(("cores",), ()),
    "rtl icache, warm": Watched(("cores",), ()),
    "rtl micro": Watched(("group",), (), one_and_several=True),
    "mm": Watched(("codegen", "dtype", "cores", "bank_conflicts"), ("codegen",)),
    "loop": Watched(("kernel", "parameters"), ("kernel",)),
    "layer": Watched(("primitive", "step", "variant", "layout"), ("primitive", "step"), True, (DMA_IM2COL,)),
    "tutorial-anchors": Watched(("primitive", "step"), ("primitive", "step")),
    "tiled": Watched(("kernel", "buffering", "bank_conflicts"), ("buffering",)),
    "tiled-layers": Watched(("workload", "buffering", "cores"), ("workload", "buffering")),
    "dma": Watched(("test", "direction"), ("test",), left_out=(CHECK,)),
    "overlap, kernel": Watched(("direction", "bank_conflicts", "cores"), ()),
    "overlap, transfers": Watched(("direction", "bank_conflicts", "cores"), ()),
    "dma-contention": Watched(("dir", "traffic"), ()),
    "icache, cold": Watched(("cores",), ()),
    "icache, warm": Watched(("cores",), ()),
    "micro": Watched(("name",), ("group",)),
}
"""Which rows of a set are of one kind; all sets of the page.

Left out are im2col by DMA as it was measured, core by core, which no program of the product does, and a check
of the DMA that counts no cycles.
"""

UNWATCHED = frozenset({"steps", "sequence", "refill"})
"""KINDS that watch nothing: a row of steps plans and simulates a whole program (seconds a defect), and of the
defects none is in the refills of a program, which sequence and refill are of."""


@cache
def rows_of(name: str) -> tuple[Case, ...]:
    """The rows of a set that watch, in the order of its file."""
    item = SETS[name]
    kind = kind_named(item.kind)
    kinds: dict[tuple[str, ...], list[_Row]] = defaultdict(list)
    for number, case in enumerate(kind.read(ROOT / "measured" / item.file, item.selections)):
        measured = case.number(kind.measure_of(case).column)
        cores = case.number("cores") if "cores" in case.values else 1
        key = [case.cells[column] for column in WATCHED[name].kinds]
        if measured and not set(key) & set(WATCHED[name].left_out):
            key += ["several cores"] * (WATCHED[name].one_and_several and cores > 1)
            kinds[tuple(key)].append(_Row(number, measured * cores, case))
    drawn = [row for key, rows in kinds.items() for row in _drawn(f"{SEED} {name} {key}", rows)]
    return tuple(row.case for row in sorted(drawn, key=lambda row: row.number))


def _drawn(seed: str, rows: list[_Row]) -> list[_Row]:
    """One row of a kind, or none."""
    short = [row for row in rows if row.core_cycles <= MOST_CORE_CYCLES]
    if short:
        # A text seeds the same draw on every machine and Python.
        return [random.Random(seed).choice(short)]
    shortest = min(rows, key=lambda row: (row.core_cycles, row.number))
    return [shortest] if shortest.core_cycles <= LEFT_OUT_CORE_CYCLES else []


def count_of(names: Iterable[str] = WATCHED) -> int:
    """How many rows watch."""
    return sum(len(rows_of(name)) for name in names)
