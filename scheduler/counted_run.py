# SPDX-License-Identifier: Apache-2.0
"""The figures of a program, counted while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from arch.energy.activity import activity_of
from arch.spec.program import Command, DmaStart, Program, TeamTransfer, UdmaStart
from arch.spec.timing import SocTiming
from scheduler.kept_figures import Figures
from scheduler.plan_figures import plan_figures
from scheduler.time_line import kernels_of, time_line
from traces.causes import DMA_IN, DMA_OUT
from traces.events import Work
from traces.master_line import EITHER
from traces.metrics import Metrics, metrics_of
from traces.recorder import Recorder
from traces.tally import Tally

if TYPE_CHECKING:
    from arch.blocks.soc import RunResult
    from scheduler.planned import Schedule


class CountedRun:
    """Listens to a run of `program` with its `recorder`, which keeps a trace only if one is asked for.

    `cores` are the paths of all cores. Raises `TraceError`, once the run is over, if it contradicts itself.
    """

    def __init__(self, program: Program, cores: Sequence[str], *, traced: bool) -> None:
        self._program, self._traced = program, traced
        self._tally = Tally(cores, directions_in(program))
        self.recorder = Recorder(None if traced else self._tally.add)

    def metrics(self, cycles: int) -> Metrics:
        """What a run of so many cycles came to."""
        tally = self._tally
        if self._traced:
            tally.add(self.recorder.records)
        self.recorder.flush()
        tally.close()
        tally.check(cycles)
        return metrics_of(tally, cycles)

    def figures(self, result: RunResult, schedule: Schedule, timing: SocTiming) -> Figures:
        """All that a summary says of the run of a schedule, whose program this is."""
        metrics, program = self.metrics(result.cycles), self._program
        line = time_line(metrics.master, result.cycles, program, timing)
        activity = activity_of(program, metrics, timing, schedule.graph.formats)
        return Figures(metrics, result.events, line, kernels_of(program), activity, plan_figures(schedule))


def directions_in(program: Program) -> dict[Work, str]:
    """What waits in a run of a program are for, as `traces.tally.directions_of` says it of its slices."""
    directions: dict[Work, str] = {}
    off_chip: set[Work] = set()
    for action in program.actions:
        commands: Sequence[Command] = ()
        if isinstance(action, DmaStart):
            commands = action.commands
        elif isinstance(action, TeamTransfer):
            commands = [command for of_core in action.commands for command in of_core]
        elif isinstance(action, UdmaStart) and action.commands:
            off_chip.add(action.work)
        for to_l1 in {command.to_l1 for command in commands}:
            direction = DMA_IN if to_l1 else DMA_OUT
            if directions.setdefault(action.work, direction) != direction:
                directions[action.work] = EITHER
    return directions | dict.fromkeys(off_chip & directions.keys(), EITHER)
