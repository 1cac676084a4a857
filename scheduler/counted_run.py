# SPDX-License-Identifier: Apache-2.0
"""The figures of a program, counted while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from arch.energy.activity import activity_of
from arch.spec.program import Command, DmaStart, Program, TeamTransfer, UdmaStart
from arch.spec.timing import SocTiming
from scheduler.plan_figures import Figures, plan_figures
from scheduler.time_line import kernels_of, time_line
from traces.causes import DMA_IN, DMA_OUT
from traces.events import Work
from traces.metrics import Metrics, metrics_of
from traces.recorder import Recorder
from traces.tally import Tally, one_or_either

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
    actions = program.actions
    moved = (
        (action.work, DMA_IN if to_l1 else DMA_OUT)
        for action in actions
        if isinstance(action, (DmaStart, TeamTransfer))
        for to_l1 in {command.to_l1 for command in _commands(action)}
    )
    off_chip = {action.work for action in actions if isinstance(action, UdmaStart) and action.commands}
    return one_or_either(moved, off_chip)


def _commands(action: DmaStart | TeamTransfer) -> Iterable[Command]:
    return action.commands if isinstance(action, DmaStart) else chain.from_iterable(action.commands)
