# SPDX-License-Identifier: Apache-2.0
"""One core of the cluster: the account of its cycles, and the worker thread that serves the dispatch FIFO."""

from __future__ import annotations

from collections.abc import Sequence

from arch.blocks.dma import Transfer
from arch.blocks.dma_driver import DmaDriver
from arch.blocks.event_unit import EventUnit
from arch.blocks.kernel_run import KernelRun, Stalls
from arch.pricing.cost_model import CoreCost
from arch.spec.program import Command
from arch.systemc.module import Body, Module, Port, Thread
from traces.events import COMPUTE, NO_WORK, Tracer, Work, WorkerShare, make_slice, make_team_kernel

CoreShare = tuple[int, int, Stalls, int]
"""(start, end, stalls, instructions) of a core in a kernel, in cycles from its call."""

DIFFERENT_COSTS = 4096
"""Costs of kernels whose shares are remembered: tiles are alike."""


class Core(Module):
    """A RISC-V core. Every cycle is accounted for once, in order, so far up to `spent_cycles`."""

    def __init__(self, parent: Module, index: int, tracer: Tracer | None) -> None:
        super().__init__(parent, f"core{index}")
        self.index = index
        self.spent_cycles = 0
        self.events: Port[EventUnit] = Port(self, "events")
        self.dma: Port[DmaDriver] = Port(self, "dma")
        self.tracer = tracer

    def reset(self) -> None:
        """Nothing accounted yet. The master thread drives core 0, the others serve the dispatch FIFO."""
        self.spent_cycles = 0
        if self.index > 0:
            thread = Thread(self.path)
            self.spawn(thread, self._serve(thread))

    def lose(self, word: str, until_cycles: int, work: Work = NO_WORK) -> None:
        """Account all cycles not yet spent up to `until_cycles` to the stall `word`."""
        if until_cycles > self.spent_cycles:
            if self.tracer is not None:
                self.tracer.slice(
                    make_slice((self.path, self.spent_cycles, until_cycles, word, work, (), 0, 0))
                )
            self.spent_cycles = until_cycles

    def compute(self, share: CoreShare, called_cycles: int, work: Work) -> None:
        """Account the share of a kernel that has ended, which counts from `called_cycles`."""
        start, end, stalls, instructions = share
        start, end = called_cycles + start, called_cycles + end
        if end > start:
            if self.tracer is not None:
                self.tracer.slice(make_slice((self.path, start, end, COMPUTE, work, stalls, 0, instructions)))
            self.spent_cycles = end

    def _serve(self, thread: Thread) -> Body:
        """Worker: wait for a job, do its part, wait at the join barrier, again.

        Jobs that move data come here. In a kernel nothing a worker does depends on when it takes the job, so
        its cycles are accounted at the join (`Workers.account`) and the thread sleeps on: TLM's temporal
        decoupling, two events saved per core and kernel.
        """
        events = self.events.target
        while True:
            job = yield from events.pop(self.index, thread)
            self.lose("idle", job.pushed_cycles)
            yield self.env.timeout(job.pushed_cycles + events.timing.fork_worker_cycles - self.env.now)
            self.lose("fork", int(self.env.now), job.work)
            yield from self.move(job.commands[self.index], job.work, thread)
            thread.waits_for = "the join barrier of a transfer by the team"
            yield job.barrier.arrive()
            self.lose("barrier", int(self.env.now), job.work)

    def move(self, commands: tuple[Command, ...], work: Work, thread: Thread) -> Body:
        """Program `commands` and wait for each before the next."""
        driver = self.dma.target
        for command in commands:
            transfer: Transfer = yield from driver.start(self, (command,), work, thread)
            yield from driver.wait(self, transfer, "of the core itself", work, thread)


TeamShares = tuple[tuple[WorkerShare, ...], WorkerShare | None]
"""Of the workers and of the master, in cycles from the push on; empty and None if nobody listens."""


class Workers:
    """The master and the workers of a team, and the account of its kernels on them.

    `fork_cycles` are those from the push to the end of the fork; `computes` says if the master takes part.
    """

    def __init__(self, master: Core, cores: Sequence[Core], fork_cycles: int, *, computes: bool) -> None:
        self._master = master
        self._cores = cores
        self._forked = master.path, fork_cycles, fork_cycles, (), 0
        self._computes = computes
        self._alike: dict[int, tuple[Sequence[CoreCost], TeamShares]] = {}
        """By the identity of costs the shares of kernels that ended at these costs."""

    def account(
        self, work: Work, pushed_cycles: int, shares: TeamShares, released_cycles: int, ended_cycles: int
    ) -> None:
        """A kernel: fork and wait for it, the shares of all, the join barrier, and the join of the master."""
        master, cores = self._master, self._cores
        if (tracer := master.tracer) is not None:
            spent = tuple([core.spent_cycles for core in cores])
            workers, own_share = shares
            times = master.spent_cycles, ended_cycles
            tracer.team(
                make_team_kernel((work, pushed_cycles, released_cycles, spent, workers, own_share, *times))
            )
        master.spent_cycles = ended_cycles
        for core in cores:
            core.spent_cycles = released_cycles

    def shares(self, pushed_cycles: int, run: KernelRun) -> TeamShares:
        """Those of a kernel that is over, if somebody listens."""
        master = self._master
        if master.tracer is None:
            return (), None
        costs = run.steady_costs
        alike = self._alike.get(id(costs))
        if alike is not None and alike[0] is costs:
            return alike[1]
        workers = tuple([_share(core, pushed_cycles, run) for core in self._cores])
        shares = workers, _share(master, pushed_cycles, run) if self._computes else self._forked
        if costs is not None:
            if len(self._alike) >= DIFFERENT_COSTS:
                self._alike.clear()
            self._alike[id(costs)] = costs, shares
        return shares


def _share(core: Core, pushed_cycles: int, run: KernelRun) -> WorkerShare:
    start, end, stalls, instructions = run.share(core.index)
    return core.path, start - pushed_cycles, end - pushed_cycles, stalls, instructions
