# SPDX-License-Identifier: Apache-2.0
"""Measured rows with their predictions and what these are made of: what error bars are computed from.

``python -m tools.validation.error_rows`` predicts all of them and writes `FILE`, in ten minutes on two cores.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from configs.errors import InputError
from scheduler.search.workers import begin_worker
from scheduler.time_line import DMA, OFFLOAD, TEAM
from scheduler.validation.error_bars import BESIDE, ONE, OPS, OPS_WARM, team_of
from scheduler.validation.rows import overlap, steps
from scheduler.validation.rows.bare_loop import NONE
from scheduler.validation.rows.cases import Case, Selection
from scheduler.validation.rows.kinds import kind_named
from scheduler.validation.rows.machines import Watched, watched
from scheduler.validation.runner import ROWS_PER_TASK, default_workers, predict_rows
from tools.validation.sets import SETS

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "error-rows.csv.gz"
MEASURED = ROOT / "measured"

FILES = tuple(
    name
    for name in SETS
    if not any(word in name for word in ("contention", "icache", "sequence", "refill", "counted"))
    and name != "rtl micro"
)
"""The sets whose rows tell how far a kernel, transfers or a program is off; of micro the group `offload`."""

STEPS = ("rtl steps, later", "rtl steps, first")
"""Ops of exported programs, each in the later iterations or, if these were not measured, in the first."""

STEPS_WARM = "rtl steps, warm"
"""The same, predicted with all code in the caches."""

_COLUMNS = ("set", "row", "what", "profile", "codegen", "team", "measured", "predicted", "parts")


@dataclass(frozen=True, slots=True)
class Part:
    """Predicted cycles of a nest in so many `calls`, with forks and joins, or of a part of the machine."""

    name: str
    cycles: int
    calls: int
    is_nest: bool


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """A measured row of a set, and the parts of its prediction; `what` it is of, in words of its file."""

    set: str
    row: str
    what: str
    profile: str
    codegen: str
    team: str
    measured: int
    predicted: int
    parts: tuple[Part, ...]

    @property
    def error(self) -> float:
        """(measured - predicted) / predicted."""
        return (self.measured - self.predicted) / self.predicted

    @property
    def read_off(self) -> bool:
        """Whether counts of its kernels were read off it, so that it is no test of them."""
        return (
            self.set == "tutorial-anchors" and self.team == ONE and not self.what.startswith("tutorial_step")
        )


def cases_of(name: str) -> tuple[Case, ...]:
    """The cases of a set that can be read."""
    item = SETS[name]
    only = (Selection("group", ("offload",)),) if name == "micro" else item.selections
    cases = kind_named(item.kind).read(MEASURED / item.file, only, [])
    return tuple(case for case in cases if name != STEPS[1] or not case.cells[steps.LATER])


def error_rows(name: str, cases: Sequence[Case]) -> list[ErrorRow]:
    """The rows of some cases of a set, without those that have no model or no measured time."""
    return [row for case in cases if (row := _error_row(name, case)) is not None]


def _error_row(name: str, case: Case) -> ErrorRow | None:
    kind = kind_named(SETS[name].kind)
    measured = case.number(kind.measure_of(case).column)
    with watched() as programs:
        (answer,) = predict_rows(kind.name, [case])
    if isinstance(answer, InputError) or not measured:
        return None
    predicted = answer.cycles
    if name.endswith("overlap, transfers"):
        # What is left of the transfers once the kernel is over.
        measured -= case.number("cycles")
        predicted -= overlap.predict_kernel(case).cycles
    parts = _parts(name, case, predicted, programs)
    if not parts or predicted <= 0:
        return None
    cells = case.cells
    cores = case.number("cores") if "cores" in case.values else 1
    team = team_of(
        cores,
        private_fpus=cells.get("fpus") == "private",
        bank_conflicts=cells.get("bank_conflicts", "1") == "1",
    )
    columns = ("primitive", "workload", "kernel", "test", "name", "step", "buffering")
    what = " ".join(cells[column] for column in columns if cells.get(column, "-") != "-")
    codegen = cells.get("codegen", steps.CODEGEN if SETS[name].kind == "steps" else "")
    profile = "rtl" if name.startswith("rtl ") else "gvsoc"
    return ErrorRow(name, case.id, what, profile, codegen, team, measured, predicted, parts)


def _parts(name: str, case: Case, predicted: int, programs: Sequence[Watched]) -> tuple[Part, ...]:
    """What a prediction is made of."""
    kind = SETS[name].kind
    if kind == "steps":
        return (Part(OPS_WARM if name == STEPS_WARM else OPS, predicted, 1, is_nest=False),)
    if kind == "micro":
        return (Part(OFFLOAD, predicted, 1, is_nest=False),)
    if kind == "dma":
        moves = any(what == DMA for line, _ in programs for _, what, _ in line)
        return (Part(DMA, predicted, 1, is_nest=False),) if moves else ()
    if name.endswith("overlap, transfers"):
        return (Part(BESIDE, predicted, case.number("transfers"), is_nest=False),)
    if name.endswith("overlap, kernel"):
        return (Part(case.text("kernel"), predicted, 1, is_nest=True),)
    return _of_programs(kind, case.cells, programs)


def _of_programs(kind: str, cells: Mapping[str, str], programs: Sequence[Watched]) -> tuple[Part, ...]:
    """The parts of what was simulated; forks, joins and code around a kernel count with it."""
    # Without a name: a loop that is no op of ours, the code of a bare tile loop, the call of a layer.
    unnamed = {"loop": (True, cells["kernel"]), "tiled": (False, DMA)}.get(kind, (False, TEAM))
    cycles: dict[tuple[bool, str], int] = defaultdict(int)
    calls: dict[str, int] = defaultdict(int)
    for line, times in programs:
        for is_kernel, what, own_cycles in line:
            cycles[(is_kernel, what) if what else unnamed] += own_cycles
        for what, count in times.items():
            if what or kind == "loop":
                calls[what or cells["kernel"]] += count
    cycles.pop((False, OFFLOAD), None)
    team_cycles = cycles.pop((False, TEAM), 0)
    forks = max(1, sum(calls[what] for is_kernel, what in cycles if is_kernel))
    computing = cells.get("buffering") == "double" and cells["kernel"] != NONE
    transfers = BESIDE if computing else DMA
    return tuple(
        Part(what, own_cycles + round(team_cycles * calls[what] / forks), calls[what], is_nest=True)
        if is_kernel
        else Part(transfers, own_cycles, calls[DMA], is_nest=False)
        for (is_kernel, what), own_cycles in sorted(cycles.items())
    )


def all_rows() -> Iterator[ErrorRow]:
    """The rows of all sets, predicted on all CPUs."""
    with ProcessPoolExecutor(default_workers(), initializer=begin_worker) as pool:
        for name in FILES:
            cases = cases_of(name)
            tasks = [cases[start : start + ROWS_PER_TASK] for start in range(0, len(cases), ROWS_PER_TASK)]
            for rows in pool.map(partial(error_rows, name), tasks):
                yield from rows


def write(rows: Iterable[ErrorRow]) -> None:
    """Write `FILE`, the same bytes for the same rows."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        parts = ";".join(
            f"{part.name}:{part.cycles}:{part.calls}:{'nest' if part.is_nest else ''}" for part in row.parts
        )
        cells = (row.set, row.row, row.what, row.profile, row.codegen, row.team, row.measured, row.predicted)
        writer.writerow((*cells, parts))
    FILE.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


@cache
def stored() -> tuple[ErrorRow, ...]:
    """The rows as they were written."""
    with gzip.open(FILE, "rt", encoding="utf-8", newline="") as file:
        return tuple(_row(cells) for cells in csv.DictReader(file))


def _row(cells: Mapping[str, str]) -> ErrorRow:
    parts = tuple(
        Part(name, int(cycles), int(calls), kind == "nest")
        for name, cycles, calls, kind in (part.split(":") for part in cells["parts"].split(";"))
    )
    texts = {column: cells[column] for column in _COLUMNS[:6]}
    return ErrorRow(**texts, measured=int(cells["measured"]), predicted=int(cells["predicted"]), parts=parts)


if __name__ == "__main__":
    write(all_rows())
