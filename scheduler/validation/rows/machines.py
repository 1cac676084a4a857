# SPDX-License-Identifier: Apache-2.0
"""The machine a case was measured on, and the models of it, built once per process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from arch.blocks.soc import Soc
from arch.pricing.team_cost_model import TeamCostModel
from arch.pricing.window_plan import PricingWindow
from arch.spec.program import Action, Program
from arch.spec.soc_config import READABLE, load_soc, with_values
from arch.spec.timing import SocTiming
from configs.errors import PulptrainError
from configs.limits import require_host_memory
from configs.suggest import suggestion
from configs.values import replace
from scheduler.time_line import TimeLine, calls_of, time_line
from scheduler.validation.rows.cases import BUILD, Case
from traces.events import TRANSFER
from traces.metrics import measure
from traces.recorder import Recorder

_NOTHING = Program("nothing", ())


RTL_MACHINE = "pulp-cluster-rtl"
"""The preset of rows with a column `build`."""

BUILDS = {
    "private-lat1": ("private", 1),
    "private-lat2": ("private", 2),
    "shared4": ("4-dynamic", 1),
    "-": ("", 0),
}
"""What the column `build` of a row measured on RTL says: FPUs, and their latency in cycles.

Of "-" the row does not depend, whatever its column `fpus` says holds. Shared FPUs have one div/sqrt unit.
"""

MEMORIES = 2
"""Simulated memories of a row held at a time: those of its last simulation may not be given back yet."""


def machine_of(case: Case, *, l1_bytes: int = 0, l2_bytes: int = 0) -> SocTiming:
    """The SoC of a row, with at least `l1_bytes` for data in L1 and `l2_bytes` in L2, whatever its file says.

    A team larger than the preset's cluster gets a cluster of its size. Raises InputError naming the row.
    """
    cores = case.number("cores") if "cores" in case.values else 1
    conflicts, sizes = bool(case.number("bank_conflicts")), (_whole_memory(l1_bytes), _whole_memory(l2_bytes))
    build = case.cells.get(BUILD, "")
    if build and build not in BUILDS:
        raise case.error(f"unknown build '{build}'", suggestion(build, tuple(BUILDS)))
    preset = RTL_MACHINE if build else case.text("soc")
    try:
        require_host_memory(MEMORIES * sum(sizes), "the memories of this row take")
        return _machine(preset, case.text("timing"), case.text("fpus"), build, conflicts, cores, *sizes)
    except PulptrainError as error:
        raise case.error(error.message, error.cure) from error


@cache
def _machine(
    soc: str,
    profile: str,
    fpus: str,
    build: str,
    bank_conflicts: bool,
    cores: int,
    l1_bytes: int,
    l2_bytes: int,
) -> SocTiming:
    timing = _preset(soc, profile)
    values = {"cores": max(timing.cores, cores), "l1.bank_conflicts": bank_conflicts, "form": READABLE}
    timing = with_values(timing, values)
    mapping, latency_cycles = BUILDS.get(build, ("", 0))
    timing = with_values(timing, {"fpu": mapping or fpus})
    if latency_cycles:
        divsqrts = timing.fpu.divsqrt_count if mapping == "private" else 1
        timing = with_part(timing, "fpu", latency_cycles=latency_cycles, divsqrt_count=divsqrts)
    timing = with_part(timing, "l1", size_bytes=max(timing.l1.size_bytes, l1_bytes))
    return with_part(timing, "l2", size_bytes=max(timing.l2.size_bytes, l2_bytes))


def with_part(timing: SocTiming, part: str, **changes: Any) -> SocTiming:
    """The machine with some parameters of a part changed, e.g. of its ``dma``."""
    return replace(timing, **{part: replace(getattr(timing, part), **changes)})


@cache
def _preset(soc: str, profile: str) -> SocTiming:
    return load_soc(soc, profile)


def _whole_memory(size_bytes: int) -> int:
    """The next power of two, so that few different machines are built."""
    return 1 << max(0, size_bytes - 1).bit_length()


@cache
def cost_model_of(timing: SocTiming, window: PricingWindow | None = None) -> TeamCostModel:
    """The cost model of a machine; it remembers its answers for the life of the process.

    `window` says from which starts it prices a team, where not from the usual ones.
    """
    return TeamCostModel(timing, window)


@cache
def _soc(timing: SocTiming, window: PricingWindow | None) -> tuple[Soc, int]:
    soc = Soc(timing, cost_model_of(timing, window))
    return soc, soc.run(_NOTHING, effects=False).cycles


def program_cycles(
    timing: SocTiming, name: str, actions: Sequence[Action], window: PricingWindow | None = None
) -> int:
    """Cycles the master core spends on the actions, offload and completion not counted."""
    soc, overhead_cycles = _soc(timing, window)
    program = Program(name, tuple(actions))
    watch = _WATCH.get()
    if watch is None:
        return soc.run(program, effects=False).cycles - overhead_cycles
    recorder = Recorder()
    watched_soc = Soc(timing, cost_model_of(timing, window), recorder, detect_races=False)
    cycles = watched_soc.run(program, effects=False).cycles
    master = measure(recorder.slices, cycles).master
    watch.append((time_line(master, cycles, program, timing), calls_of(master)))
    return cycles - overhead_cycles


Watched = tuple[TimeLine, Mapping[str, int]]
"""Whose the cycles of a program are, offload included, and the calls of its kernels."""

_WATCH: ContextVar[list[Watched] | None] = ContextVar("watch", default=None)


@contextmanager
def watched() -> Iterator[list[Watched]]:
    """Collects every program whose cycles are asked for meanwhile."""
    programs: list[Watched] = []
    token = _WATCH.set(programs)
    try:
        yield programs
    finally:
        _WATCH.reset(token)


def transfer_cycles(
    timing: SocTiming, name: str, actions: Sequence[Action], number: int, window: PricingWindow | None = None
) -> int:
    """Cycles from start to end of transfer `number` (from 0, in order of their starts) of a program."""
    recorder = Recorder()
    Soc(timing, cost_model_of(timing, window), recorder, detect_races=False).run(
        Program(name, tuple(actions)), effects=False
    )
    slices = sorted((item.start_cycles, item.end_cycles) for item in recorder.slices if item.kind == TRANSFER)
    start, end = slices[number]
    return end - start
