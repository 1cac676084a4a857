# SPDX-License-Identifier: Apache-2.0
"""The rows of KIND micro that measure the event unit and the offload, played on their modules.

Caches are warm in the model. On one core the measured rows found theirs cold, so they have no model; on two
the code that only workers run was cold as well.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import cache
from typing import Any

import simpy

from arch.blocks.event_unit import EventUnit
from arch.blocks.soc import Soc
from arch.spec.isa import CoreWork, Instruction, Op, TeamWork
from arch.spec.program import Compute, Program
from arch.spec.timing import EventUnitTiming, SocTiming
from arch.systemc.environment import Environment
from arch.systemc.module import Body, Module, Thread
from scheduler.validation.rows.cases import BUILD, Case
from scheduler.validation.rows.machines import cost_model_of, program_cycles
from scheduler.validation.rows.measured_code import code_at_hand
from traces.events import COMPUTE
from traces.recorder import Recorder

GROUPS = ("sync", "offload")

COLD = "measured with cold instruction caches, but the file does not specify the code"
"""Why rows of group sync on one core have no model."""

NOT_MODELLED = {
    "fc_fetch_en_write_to_core0_main(cold I$)": "the simulator does not model the start of the cluster",
    "fc_event_write_to_core0_wake": (
        "measures one part of the offload; the simulator models only the sum (fc.offload_cycles)"
    ),
}
"""Name of a row -> why it has no model."""

STAMP_CYCLES = 1
"""The instruction that reads the cycle counter, in rows that one core begins and another ends."""


class Bench:
    """An event unit and cores that are plain generators; `ended` has the cycle in which each was through."""

    def __init__(self, timing: EventUnitTiming) -> None:
        root = Module(None, "bench")
        self.unit = EventUnit(root, "event_unit", timing)
        self.env = Environment()
        root.start(self.env)
        self.ended: dict[int, int] = {}

    def core(self, number: int, body: Body, start_cycles: int = 0) -> None:
        """Core `number` does what `body` says, from cycle `start_cycles` on."""

        def live() -> Generator[simpy.Event, Any, None]:
            yield self.env.timeout(start_cycles)
            yield from body
            self.ended[number] = int(self.env.now)

        self.env.process(live())

    def run(self, bodies: Sequence[Body]) -> list[int]:
        """When each core has done one of these, all from the start."""
        for number, body in enumerate(bodies):
            self.core(number, body)
        self.env.run()
        return list(self.ended.values())


def predict(case: Case, timing: SocTiming) -> int:
    """Cycles of a row of `GROUPS`, all its operations. Raises InputError naming the row."""
    name, on_rtl = case.text("name"), bool(case.cells.get(BUILD))
    rows = RTL_ROWS if on_rtl else ROWS
    if on_rtl and name in RTL_NOT_MODELLED:
        raise case.not_modelled(RTL_NOT_MODELLED[name])
    play = rows.get(name)
    if play is None:
        raise case.error(
            f"group '{case.text('group')}' has no entry '{name}' in pulptrain's timing model",
            f"use one of {', '.join(rows)}",
        )
    if case.text("group") == "sync" and case.number("cores") == 1 and not on_rtl:
        raise case.not_modelled(COLD)
    if case.number("n") > MAX_OPERATIONS:
        raise case.error(
            f"{case.number('n')} operations are too many", f"use at most {MAX_OPERATIONS} per row"
        )
    return play(code_at_hand(timing), case.number("cores"), case.number("n"))


MAX_OPERATIONS = 1 << 10
"""Barriers of a row; measured ones have 10."""


def _mutex(timing: SocTiming, cores: int, held_cycles: int = 0) -> list[int]:
    """When each core has locked the same mutex, kept it so long and unlocked it, all asking at once."""
    bench = Bench(timing.event_unit)

    def visit(number: int) -> Body:
        mutex = bench.unit.mutex
        yield from mutex.lock(number, Thread(f"core{number}"))
        if held_cycles:
            yield bench.env.timeout(held_cycles)
        yield from mutex.unlock(number)

    return bench.run([visit(number) for number in range(cores)])


def _barriers(timing: SocTiming, cores: int, count: int) -> int:
    """As many barriers one behind the other, nothing between them."""
    bench = Bench(timing.event_unit)
    barriers = [bench.unit.barrier(cores) for _ in range(count)]

    def visit() -> Body:
        for barrier in barriers:
            yield barrier.arrive()

    return max(bench.run([visit() for _ in range(cores)]))


def _empty_team(cores: int) -> Compute:
    return Compute(0, team=TeamWork("empty", (CoreWork(()),) * cores))


def _empty_fork(timing: SocTiming, cores: int) -> int:
    """From the fork call to the release of the join barrier."""
    return program_cycles(timing, "fork", [_empty_team(cores)]) - timing.event_unit.join_cycles


@cache
def _entry_delays(timing: SocTiming, cores: int) -> tuple[int, ...]:
    """From the fork call to the first instruction of each core's share."""
    recorder = Recorder()
    work = TeamWork("one instruction", (CoreWork((Instruction(Op.ALU),)),) * cores)
    program = Program("fork", (Compute(0, team=work),))
    Soc(timing, cost_model_of(timing), recorder, detect_races=False).run(program, effects=False)
    # The master's first slice is its wait for the program.
    called = min(item.end_cycles for item in recorder.slices if item.track.endswith("core0"))
    starts = {item.track: item.start_cycles for item in recorder.slices if item.kind == COMPUTE}
    return tuple(starts[track] - called for track in sorted(starts, key=_core_number))


def _core_number(track: str) -> int:
    return int(track.rpartition("core")[2])


Play = Callable[[SocTiming, int, int], int]

ROWS: dict[str, Play] = {
    "team_fork_empty(core0 view incl barrier)": lambda timing, cores, _: _empty_fork(timing, cores),
    "team_config(3 EU writes)": lambda timing, _cores, _n: timing.event_unit.fork_push_cycles,
    "fork_core0_entry_delay": lambda timing, cores, _: _entry_delays(timing, cores)[0],
    "fork_slave_entry_delay_min": lambda timing, cores, _: min(_entry_delays(timing, cores)[1:]),
    "fork_slave_entry_delay_max": lambda timing, cores, _: max(_entry_delays(timing, cores)[1:]),
    "join_delay(last entry end->core0 resumes)": lambda timing, _cores, _n: timing.event_unit.join_cycles,
    "barrier_back_to_back_per_barrier": _barriers,
    "barrier_last_arrival_to_resume_min": lambda timing, cores, _: _barriers(timing, cores, 1) + STAMP_CYCLES,
    "barrier_last_arrival_to_resume_max": lambda timing, cores, _: _barriers(timing, cores, 1) + STAMP_CYCLES,
    "mutex_lock_unlock_min": lambda timing, cores, _: min(_mutex(timing, cores)),
    "mutex_lock_unlock_max(all cores contend)": lambda timing, cores, _: max(_mutex(timing, cores)),
    "core0_L2flag_write_cost": lambda timing, _cores, _n: timing.l2.core_access_cycles + STAMP_CYCLES,
    "core0_L2flag_write_to_fc_poll_seen": lambda timing, _cores, _n: (
        timing.fc.completion_cycles - timing.l2.core_access_cycles - STAMP_CYCLES
    ),
}
"""Name of a row -> what plays it: (machine, cores, operations) -> cycles of all of them."""

HELD_CYCLES = 10
"""Instructions of one cycle between lock and unlock, as the name of the row says."""

_CALLED = (
    "the interval starts before the fork call and includes code that the model places after the join; "
    "team_fork_empty measures the sum"
)

RTL_NOT_MODELLED = dict.fromkeys(
    (
        "fork_core0_entry_delay(from before the call)",
        "fork_slave_entry_delay(from before the call)",
        "join_delay(slave timer read to core0 after the call)",
    ),
    _CALLED,
)
"""Name of a row measured on RTL -> why it has no model."""

RTL_ROWS: dict[str, Play] = {
    "team_fork_empty(core0 view incl barrier)": lambda timing, cores, _: program_cycles(
        timing, "fork", [_empty_team(cores)]
    ),
    # The stores it is named after; a fork has five and a push of two more.
    "team_config(3 EU writes)": lambda timing, _cores, _n: 3 * timing.event_unit.event_store_cycles,
    "fork_inline_core0_first_instruction(5 set-up stores, 2 pushes, jalr)": lambda timing, cores, _: (
        _entry_delays(timing, cores)[0] - 1 - timing.core.jump_stall_cycles
    ),
    "fork_inline_slave_first_instruction(from the same start)": lambda timing, cores, _: min(
        _entry_delays(timing, cores)[1:]
    ),
    "join_inline(worker at its barrier load to core0 next instruction)": lambda timing, cores, _: _barriers(
        timing, cores, 1
    ),
    "barrier_back_to_back_per_barrier": _barriers,
    "barrier_last_arrival_to_resume(core 0)": lambda timing, cores, _: _barriers(timing, cores, 1),
    "barrier_last_arrival_to_resume(sleeping core)": lambda timing, cores, _: _barriers(timing, cores, 1),
    "mutex_lock_unlock_all_cores_then_barrier": lambda timing, cores, _: max(_mutex(timing, cores)),
    "mutex_lock_unlock_all_cores_then_barrier(10 nops held)": lambda timing, cores, _: max(
        _mutex(timing, cores, HELD_CYCLES)
    ),
}
"""The same for rows with a `build`: time stamps and the empty program are taken off, and caches were warm."""
