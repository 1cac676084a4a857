# SPDX-License-Identifier: Apache-2.0
"""The cluster: cores, L1, event unit and DMA, the mailbox for tasks, and the DMA traffic the kernels feel."""

from __future__ import annotations

from collections.abc import Mapping

from arch.blocks.code_fetch import CodeFetch
from arch.blocks.core import Core
from arch.blocks.dma import Dma
from arch.blocks.dma_driver import DmaDriver
from arch.blocks.event_unit import EventUnit
from arch.blocks.kernel_run import KernelRun
from arch.blocks.l2 import ExternalMemory
from arch.blocks.master import Master
from arch.memories.effects import Effects
from arch.memories.memory import Storage
from arch.pricing.code_caches import CODE_STARTS, STEADY, WARM, CodeCaches
from arch.pricing.cost_model import CostModel, TeamCost, Traffic
from arch.spec.isa import TeamWork
from arch.spec.program import Compute, Program
from arch.spec.timing import SocTiming
from arch.systemc.module import Body, Module, Notification, Thread
from arch.systemc.transaction import Transaction
from configs.errors import InputError
from configs.suggest import check_known
from traces.events import Tracer

# The flags of an enum are slow to combine, and the traffic changes with every command.
_WITH = tuple(tuple(Traffic(now | more) for more in range(4)) for now in range(4))
_WITHOUT = tuple(tuple(Traffic(now & ~less) for less in range(4)) for now in range(4))


class Cluster(Module):
    """Builds and binds the blocks of the cluster; `transport` is the mailbox the fabric controller writes.

    `code_start` says what the instruction caches hold when a program begins, see `arch.pricing.code_caches`.
    """

    def __init__(
        self,
        parent: Module,
        timing: SocTiming,
        l1: Storage,
        memories: Mapping[str, ExternalMemory],
        cost_model: CostModel,
        effects: Effects,
        tracer: Tracer | None,
        code_start: str = WARM,
    ) -> None:
        super().__init__(parent, "cluster")
        unknown = f"unknown state of the instruction caches {code_start!r}"
        check_known(code_start, CODE_STARTS, unknown, "--icache")
        self.effects = effects
        self._timing = timing
        self._code_start = code_start
        self.events = EventUnit(self, "event_unit", timing.event_unit)
        self.dma = Dma(self, "dma", timing.dma, l1, timing.l1.word_bytes, effects, tracer)
        for channel in (self.dma.inward, self.dma.outward):
            channel.traffic.bind(self._set_traffic)
            for level, port in channel.memories.items():
                port.bind(memories[level])
        driver = DmaDriver(self.dma, timing.dma)
        self.cores = tuple(Core(self, index, tracer) for index in range(timing.cores))
        for core in self.cores:
            core.events.bind(self.events)
            core.dma.bind(driver)
        self.master = Master(self, self.cores[0], driver, timing)
        self._cost_model = cost_model

    def reset(self) -> None:
        """No task, no kernel, no traffic."""
        self.task = Notification(self.env)
        self._kernel: KernelRun | None = None
        self._traffic = Traffic.NONE
        self._code: CodeCaches | None = None
        self.fetch: CodeFetch | None = None

    def transport(self, txn: Transaction, thread: Thread) -> Body:
        """Mailbox: `txn.extension` is a `Program` for the master core; takes no time of its own."""
        if not isinstance(txn.extension, Program):
            raise InputError("send a Program, not a " + type(txn.extension).__name__, where=self.path)
        program = txn.extension
        if self._code_start != WARM and program.code is not None:
            self.fetch = CodeFetch(program, program.code, self._timing, self.dma.reads_ahead)
            if self._code_start == STEADY:
                self.fetch.warm_up()
        elif self._code_start != WARM:
            self._code = CodeCaches(len(self.cores), self._timing.icache)
            if self._code_start == STEADY:
                teams = (action.team for action in program.actions if isinstance(action, Compute))
                self._code.warm_up(teams)
        self.task.notify(value=program)
        yield from ()

    def begin_kernel(self, action: Compute, starts: Mapping[int, int]) -> KernelRun:
        """A kernel starts on the cores of `starts` (core -> cycle of its first instruction, now or later)."""
        team = action.team
        self.dma.land()
        code_stalls = self._code_stalls(action)
        self._kernel = KernelRun(self.env, self._cost_model, team, starts, self._traffic, code_stalls)
        if self._traffic:
            self._pace_dma()
        return self._kernel

    def price_alone(self, team: TeamWork) -> TeamCost | None:
        """What a kernel takes without traffic; None where its code may not be in the caches."""
        return self._cost_model.price(team) if self._code is None and self.fetch is None else None

    def whole_kernel(self, action: Compute, starts: Mapping[int, int], cost: TeamCost | None) -> KernelRun:
        """A kernel beside which nothing moves, from its begin to its end, with what `price_alone` said."""
        team, code_stalls = action.team, self._code_stalls(action)
        return KernelRun(self.env, self._cost_model, team, starts, Traffic.NONE, code_stalls, True, cost)

    def _code_stalls(self, action: Compute) -> Mapping[int, int] | None:
        """What each core of a team waits for the code of its kernel."""
        if self.fetch is not None:
            return dict.fromkeys(action.team.members, self.fetch.in_kernel(action, self.env.now))
        return self._code.call(action.team) if self._code is not None else None

    def end_kernel(self) -> None:
        """The kernel is over: it no longer feels the DMA, nor the DMA it."""
        self._kernel = None
        if self._traffic:
            self._pace_dma()

    def _set_traffic(self, direction: Traffic, active: bool) -> None:
        traffic = (_WITH if active else _WITHOUT)[self._traffic][direction]
        if traffic != self._traffic:
            self._traffic = traffic
            if self._kernel is not None:
                self._kernel.retime(traffic)
                self._pace_dma()

    def _pace_dma(self) -> None:
        """Tell both engines how much of L1 the kernel leaves them."""
        dma = self._kernel.dma if self._kernel is not None else None
        self.dma.inward.set_pace(dma.inward if dma is not None else None)
        self.dma.outward.set_pace(dma.outward if dma is not None else None)
