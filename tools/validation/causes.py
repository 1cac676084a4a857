# SPDX-License-Identifier: Apache-2.0
"""Why a row measured on RTL is far off: what the row itself, or others of the same kernel, show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from scheduler.validation.rows.statistics import Result, farthest_off

OWN_LIST = ("rtl micro", "rtl steps", "rtl sequence", "rtl refill")
"""Sets, by how their names begin, whose far rows the page lists by name."""

SHORT_CYCLES = 500
"""A refill more or less of a few cores is per cents of a kernel shorter than this."""

BANKS = 16
"""Of the measured machine; a word each."""

NOT_EXPLAINED = "not explained"


def worst_on_rtl(done: Mapping[str, Sequence[Result]], count: int) -> list[tuple[str, Result, str]]:
    """(set, row, cause) of the rows farthest off, all sets of RTL together but those of `OWN_LIST`.

    `done` maps the names of sets to their results.
    """
    off = [
        (abs(row.error_percent), name, row)
        for name, results in done.items()
        if name.startswith("rtl ") and not name.startswith(OWN_LIST)
        for row in farthest_off(results, count)
    ]
    off.sort(key=lambda item: -item[0])
    return [(name, row, cause(name, row, done[name])) for _, name, row in off[:count]]


def cause(name: str, row: Result, others: Sequence[Result]) -> str:
    """Why `row` of the set `name` is off; `others` are all rows of the set."""
    cells = row.case.cells
    if "traffic" in cells:
        return LOCK_STEP if cells["traffic"].startswith("seq") else WHEN_EACH_LOADS
    if "iter1_max" in cells:
        passes = ", ".join(cells[column] for column in ("iter1_max", "iter2_max", "iter3_max"))
        warm = row.column == "iter3_max"
        return (
            f"pseudo-random replacement: the passes 1 to 3 took {passes} cycles" if warm else AROUND_THE_CODE
        )
    return _second_call(row, others) or _alone(row, others) or _of_its_kind(row)


LOCK_STEP = (
    "cores and DMA access the banks in lock-step, so they always or never collide, depending on the cycle in "
    "which each starts; the prediction is a mean over these cycles"
)
WHEN_EACH_LOADS = "unknown: when each core began and ended its loads"
AROUND_THE_CODE = "the code around the measured code also comes from L2: one more line"
FIRST_TILES = (
    "the first tiles fetch their code from L2 or the shared cache; the prediction does not include this"
)
SHORT = (
    f"shorter than {SHORT_CYCLES} cycles: one cache refill of the slowest core (4 cycles, 22 from L2) is "
    "already some per cent"
)
ONE_BANK = "the data of all cores begin in one bank; conflicts depend on the cycle in which each core starts"
POWERS_OF_TWO = (
    "cores and DMA access the banks in lock-step, because the rows of the matrices are powers of two long; "
    "the prediction is a mean over two starts"
)


def _of_its_kind(row: Result) -> str:
    if "tiles" in row.case.cells:
        return FIRST_TILES
    cores = row.case.number("cores")
    # What the cores share out: elements, or columns in kernels that are named for it.
    shared = row.case.cells.get("elements") or (
        row.case.cells["m"] if "_M_" in row.case.cells.get("kernel", "") else ""
    )
    if shared.isdigit() and cores > 1 and int(shared) % (BANKS * cores) == 0:
        return ONE_BANK
    if row.measured < SHORT_CYCLES and cores > 1:
        return SHORT
    return POWERS_OF_TWO if "direction" in row.case.cells else NOT_EXPLAINED


def _second_call(row: Result, others: Sequence[Result]) -> str | None:
    """Another call of the same warm kernel took a time that differs by half of the error or more."""
    second = row.case.cells.get("cycles_kernel", "")
    if not second.isdigit():
        return None
    around = [
        other.measured - int(other.case.cells["cycles_kernel"])
        for other in others
        if other.case.cells["cores"] == row.case.cells["cores"]
        and other.case.cells["cycles_kernel"].isdigit()
    ]
    difference = row.measured - int(second) - float(np.median(around))
    if abs(difference) < abs(row.prediction.cycles - row.measured) / 2:
        return None
    again = row.measured - difference
    return f"depends on the start of the cores: another call of the same warm kernel took {again:,.0f} cycles"


def _alone(row: Result, others: Sequence[Result]) -> str | None:
    """The same kernel without transfers took times that differ by half of the error or more."""
    column = "cycles_compute_alone"
    if column not in row.case.cells:
        return None
    same = ("codegen", "kernel", "dtype", "n", "k", "m", "cores", "build")
    times = [
        int(other.case.cells[column])
        for other in others
        if all(other.case.cells[name] == row.case.cells[name] for name in same)
    ]
    if max(times) - min(times) < abs(row.prediction.cycles - row.measured) / 2:
        return None
    return (
        "depends on the start of the cores: without transfers the same kernel took "
        f"{min(times):,} to {max(times):,} cycles"
    )
