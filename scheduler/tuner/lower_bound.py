"""Cycles a candidate certainly takes, without simulating it: what the search need not look at.

The program of a cut is walked once in the order of the master core. Whatever has a certain least duration
gets it: kernels their instructions at one a cycle, transfers their bytes at the full width of the L1 ports
and of the link. Events of the event model are never earlier for a duration that is longer, so the time at
the end of this walk is a lower bound of the time at the end of a simulation. Kernels change the durations
of a program and not its transfers, so one program serves all kernels of a cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from arch.dma_driver import programming_cycles
from arch.isa import CoreWork, Instruction, Loop, Op, TeamWork
from arch.program import Compute, DmaStart, DmaWait, Program
from arch.timing import SocTiming


class LowerBound:
    """Lower bounds of programs on one SoC."""

    def __init__(self, timing: SocTiming) -> None:
        self._timing = timing
        dma = timing.dma
        self._wait_cycles = min(dma.wait_done_cycles, dma.wait_sleep_min_cycles)
        # A core that slept wakes after the end; one that did not read the status after it, and then went on.
        self._after_end_cycles = max(
            0, min(dma.wait_wake_cycles, dma.wait_done_cycles - dma.wait_check_cycles)
        )

    def cycles(self, program: Program, durations: Sequence[int] | None = None) -> int:
        """From the first action to the last, for a program of kernels and DMA transfers.

        `durations` are those of its kernels in order, if they are others than the program's own. Other
        actions (uDMA transfers, transfers by the team) count nothing.
        """
        dma = self._timing.dma
        now, kernel = 0, 0
        engine_free = {True: 0, False: 0}
        ends: dict[int, int] = {}
        for action in program.actions:
            if isinstance(action, Compute):
                for dep in action.deps:
                    now = max(now, ends.get(dep, 0))
                if durations is None:
                    now += self.kernel_cycles(action.team, fork=action.fork)
                else:
                    now += durations[kernel]
                kernel += 1
            elif isinstance(action, DmaStart):
                for dep in action.deps:
                    now = max(now, ends.get(dep, 0))
                now += action.code_cycles
                end = now
                for position, command in enumerate(action.commands):
                    now += programming_cycles(command, position, dma)
                    begin = max(now + dma.command_latency_cycles, engine_free[command.to_l1])
                    end = begin + command.size_bytes // self._bytes_per_cycle(command.external_level)
                    engine_free[command.to_l1] = end
                ends[action.id] = end
            elif isinstance(action, DmaWait):
                now = max(now + self._wait_cycles, ends.get(action.transfer, 0) + self._after_end_cycles)
        return now

    def _bytes_per_cycle(self, level: str) -> int:
        ports, link = self._timing.dma.l1_bytes_per_cycle, self._timing.l2.link_bytes_per_cycle
        return min(ports, link) if link and level == "l2" else ports

    def kernel_cycles(self, team: TeamWork, *, fork: bool) -> int:
        """Fork, the core that ends last at best, join."""
        known: dict[int, int] = {}
        unit = self._timing.event_unit
        master, worker = 0, 0
        if fork:
            master, worker = unit.fork_master_cycles, unit.fork_push_cycles + unit.fork_worker_cycles
        longest = 0
        for core, work in enumerate(team.cores):
            if work is None:
                continue
            if id(work.body) not in known:
                known[id(work.body)] = self._core_cycles(work)
            longest = max(longest, known[id(work.body)] + (worker if core else master))
        return longest + (unit.join_cycles if fork else 0)

    def _core_cycles(self, work: CoreWork) -> int:
        """Instructions, and what taken branches and FMAs take longer whatever else happens."""
        core = self._timing.core
        fma_cycles = self._timing.fpu.fma_cycles
        branch_cycles = core.branch_taken_stall_cycles

        def walk(body: tuple[Instruction | Loop, ...]) -> int:
            total = 0
            for node in body:
                if isinstance(node, Loop):
                    if node.trips > 0:
                        total += node.trips * walk(node.body)
                        if not node.hardware:
                            total += (node.trips - 1) * branch_cycles
                elif node.op == Op.FMA:
                    total += fma_cycles
                else:
                    total += 1
            return total

        return walk(work.body)
