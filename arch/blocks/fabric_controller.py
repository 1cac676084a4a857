# SPDX-License-Identifier: Apache-2.0
"""The fabric controller: the core outside the cluster that offloads a task and hears of its end."""

from __future__ import annotations

from arch.spec.program import Program
from arch.spec.timing import FcTiming
from arch.systemc.clock import Clock
from arch.systemc.module import Body, Module, Notification, Port, Thread
from arch.systemc.transaction import Target, Transaction, TxnCommand
from traces.events import Slice, Tracer


class FabricController(Module):
    """Offloads one program; a run lasts from the start of the offload to the cycle it knows of the end.

    Its costs are cycles of the SoC clock, converted to cluster cycles.
    """

    def __init__(
        self, parent: Module, name: str, timing: FcTiming, soc: Clock, cluster: Clock, tracer: Tracer | None
    ) -> None:
        super().__init__(parent, name)
        self.mailbox: Port[Target] = Port(self, "mailbox")
        self._offload_cycles = soc.cycles_in(timing.offload_cycles, cluster)
        self._completion_cycles = soc.cycles_in(timing.completion_cycles, cluster)
        self._tracer = tracer

    def reset(self) -> None:
        """Nothing offloaded, nothing heard."""
        self.notified = Notification(self.env)
        self._completed = Notification(self.env)
        self.ended_cycles = 0
        """When the cluster reported the end of the program."""

    def offload(self, program: Program) -> None:
        """Hand `program` to the cluster; `notified` fires when its end is known here."""
        thread = Thread(self.path)
        self.spawn(thread, self._offload(program, thread))

    def transport(self, txn: Transaction, thread: Thread) -> Body:
        """Event register the cluster writes when a task has ended."""
        self._completed.notify()
        yield from ()

    def _offload(self, program: Program, thread: Thread) -> Body:
        env = self.env
        yield env.timeout(self._offload_cycles)
        task = Transaction(TxnCommand.WRITE, 0, 0, self.path, extension=program)
        yield from self.mailbox.target.transport(task, thread)
        handed_over = int(env.now)
        self._trace(0, handed_over, "offload")
        thread.waits_for = f"the end of program {program.name}"
        yield self._completed
        ended = self.ended_cycles = int(env.now)
        self._trace(handed_over, ended, "idle")
        yield env.timeout(self._completion_cycles)
        self._trace(ended, int(env.now), "offload")
        self.notified.notify()

    def _trace(self, start: int, end: int, word: str) -> None:
        if end > start and self._tracer is not None:
            self._tracer.slice(Slice(self.path, start, end, word))
