# SPDX-License-Identifier: Apache-2.0
"""Cycles a candidate certainly takes, without simulating it: what the search need not look at.

The program of a cut is walked once in the order of the master core. Whatever has a certain least duration
gets it: kernels the least any price of them is, transfers their bytes at the full width of the L1 ports
and of the link. Events of the event model are never earlier for a duration that is longer, so the time at
the end of this walk is a lower bound of the time at the end of a simulation. Kernels change the durations
of a program and not its transfers, so one program serves all kernels of a cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from arch.blocks.dma_driver import programming_cycles
from arch.pricing.cost_model import CostModel
from arch.spec.isa import TeamWork
from arch.spec.program import Compute, DmaStart, DmaWait, Program
from arch.spec.timing import SocTiming
from configs.values import Struct


class _MasterAction(Struct, frozen=True):
    """One action of the master: what it depends on, and the cycles it takes; those of a kernel come later.

    `engines` are (to L1, cycles of the engine, earliest end counted from the begin of the step) of a
    transfer, `last` the direction of its last command; `waits` says that the step waits for one.
    """

    deps: tuple[int, ...]
    cycles: int = 0
    kernel: bool = False
    engines: tuple[tuple[bool, int, int], ...] = ()
    transfer: int | None = None
    last: bool = False
    waits: bool = False


class Timeline(Struct, frozen=True):
    """A program without the durations of its kernels."""

    steps: tuple[_MasterAction, ...]
    after_end_cycles: int

    def cycles(self, durations: Sequence[int]) -> int:
        """From the first action to the last, with these durations of the kernels in order."""
        now = 0
        kernels = iter(durations)
        free = {True: 0, False: 0}
        ends: dict[int, int] = {}
        for step in self.steps:
            if step.waits:
                now = max(now + step.cycles, ends.get(step.deps[0], 0) + self.after_end_cycles)
                continue
            for dep in step.deps:
                end = ends.get(dep, 0)
                now = max(now, end)
            if step.kernel:
                now += next(kernels)
                continue
            for side, work, reach in step.engines:
                free[side] = max(free[side] + work, now + reach)
            now += step.cycles
            if step.transfer is not None:
                ends[step.transfer] = free[step.last]
        return now


class LowerBound:
    """Lower bounds of programs on one SoC, whose kernels a cost model prices."""

    def __init__(self, timing: SocTiming, cost_model: CostModel) -> None:
        self._timing = timing
        self._cost_model = cost_model
        dma = timing.dma
        self._wait_cycles = min(dma.wait_done_cycles, dma.wait_sleep_min_cycles)
        # A core that slept wakes after the end; one that did not read the status after it, and then went on.
        self._after_end_cycles = max(
            0, min(dma.wait_wake_cycles, dma.wait_done_cycles - dma.wait_check_cycles)
        )

    def cycles(self, program: Program) -> int:
        """From the first action to the last, for a program of kernels and DMA transfers.

        Other actions (uDMA transfers, transfers by the team) count nothing.
        """
        kernels = [action for action in program.actions if isinstance(action, Compute)]
        return self.timeline(program).cycles(
            [self.kernel_cycles(action.team, fork=action.fork) for action in kernels]
        )

    def timeline(self, program: Program) -> Timeline:
        """What a program does beside its kernels, for bounds under many durations of these."""
        steps: list[_MasterAction] = []
        for action in program.actions:
            if isinstance(action, Compute):
                steps.append(_MasterAction(action.deps, kernel=True))
            elif isinstance(action, DmaStart):
                steps.append(self._transfer(action))
            elif isinstance(action, DmaWait):
                steps.append(_MasterAction((action.transfer,), cycles=self._wait_cycles, waits=True))
        return Timeline(tuple(steps), self._after_end_cycles)

    def _transfer(self, action: DmaStart) -> _MasterAction:
        """The commands of a transfer together.

        Command i is programmed after p_i cycles, begins `command_latency_cycles` later or when the engine of
        its direction is free, and takes d_i cycles. So the engine ends either the sum of all d_i after it was
        free, or at the latest of p_i + latency + the d of command i and those behind it.
        """
        dma = self._timing.dma
        now = action.code_cycles
        work = {True: 0, False: 0}
        reach = {True: 0, False: 0}
        for position, command in enumerate(action.commands):
            now += programming_cycles(command, position, dma)
            moved = command.size_bytes // self._bytes_per_cycle(command.external_level)
            side = command.to_l1
            work[side] += moved
            reach[side] = max(reach[side], now + dma.command_latency_cycles) + moved
        used = tuple(side for side in (True, False) if reach[side])
        last = action.commands[-1].to_l1 if action.commands else None
        return _MasterAction(
            action.deps,
            now,
            engines=tuple((side, work[side], reach[side]) for side in used),
            transfer=action.id if action.commands else None,
            last=bool(last),
        )

    def _bytes_per_cycle(self, level: str) -> int:
        ports, link = self._timing.dma.l1_bytes_per_cycle, self._timing.l2.link_bytes_per_cycle
        return min(ports, link) if link and level == "l2" else ports

    def kernel_cycles(self, team: TeamWork, *, fork: bool) -> int:
        """Fork, what no price of the kernel is below, join."""
        least = self._cost_model.least_cycles(team)
        if not (fork and team.members):
            return least
        unit = self._timing.event_unit
        master, worker = unit.fork_master_cycles, unit.fork_push_cycles + unit.fork_worker_cycles
        return min(master, worker) + least + unit.join_cycles
