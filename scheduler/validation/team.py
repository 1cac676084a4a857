"""A forked kernel from fork to join, in closed form: what the event model gives, without running it."""

from __future__ import annotations

from arch.cost_model import TeamCost
from arch.isa import TeamWork
from arch.timing import EventUnitTiming
from arch.window_plan import Window
from scheduler.validation.cases import Case
from scheduler.validation.machines import cost_model_of, machine_of


def fork_to_join_cycles(team: TeamWork, cost: TeamCost, unit: EventUnitTiming) -> int:
    """Cycles from the fork call to the first instruction after it, as the master core sees them.

    The master starts its share when its fork code is done, the workers some cycles after the dispatch push;
    the join barrier opens `barrier_wake_cycles` after the last end. No DMA runs meanwhile. Equal to what
    `arch.master` does event by event (tested).
    """
    pushed = unit.fork_push_cycles
    start = {True: max(pushed, unit.fork_master_cycles), False: pushed + unit.fork_worker_cycles}
    last_end = max(
        start[core == 0] + core_cost.cycles
        for core, (work, core_cost) in enumerate(zip(team.cores, cost.cores, strict=True))
        if work is not None
    )
    return last_end + unit.barrier_wake_cycles + unit.join_cycles


def forked(case: Case, team: TeamWork, window: Window | None = None) -> tuple[int, int]:
    """(cycles from fork to join, instructions summed over the cores) of a kernel on the machine of a row."""
    timing = machine_of(case)
    cost = cost_model_of(timing, window).price(team)
    cycles = fork_to_join_cycles(team, cost, timing.event_unit)
    return cycles, sum(core.instructions for core in cost.cores)


def alone(case: Case, team: TeamWork) -> tuple[int, int]:
    """(cycles, instructions) of work the master does by itself, without a fork."""
    cost = cost_model_of(machine_of(case)).price(team)
    return cost.cycles, sum(core.instructions for core in cost.cores)
