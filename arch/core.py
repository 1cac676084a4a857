"""One core of the cluster: the account of its cycles, and the worker thread that serves the dispatch FIFO."""

from __future__ import annotations

from arch.dma import Transfer
from arch.dma_driver import DmaDriver
from arch.event_unit import EventUnit
from arch.kernel_run import Share
from arch.module import Body, Module, Port, Thread
from arch.program import Command
from traces.events import COMPUTE, NO_WORK, Slice, Tracer, Work


class Core(Module):
    """A RISC-V core. Every cycle is accounted for once, in order, so far up to `spent_cycles`."""

    def __init__(self, parent: Module, index: int, tracer: Tracer | None) -> None:
        super().__init__(parent, f"core{index}")
        self.index = index
        self.spent_cycles = 0
        self.events: Port[EventUnit] = Port(self, "events")
        self.dma: Port[DmaDriver] = Port(self, "dma")
        self._tracer = tracer

    def reset(self) -> None:
        """Nothing accounted yet. The master thread drives core 0, the others serve the dispatch FIFO."""
        self.spent_cycles = 0
        if self.index > 0:
            thread = Thread(self.path)
            self.spawn(thread, self._serve(thread))

    def lose(self, word: str, until_cycles: int, work: Work = NO_WORK) -> None:
        """Account all cycles not yet spent up to `until_cycles` to the stall `word`."""
        if until_cycles > self.spent_cycles:
            if self._tracer is not None:
                self._tracer.slice(Slice(self.path, self.spent_cycles, until_cycles, word, work))
            self.spent_cycles = until_cycles

    def compute(self, share: Share, work: Work) -> None:
        """Account the share of a kernel that has ended."""
        if share.end_cycles > share.start_cycles:
            if self._tracer is not None:
                self._tracer.slice(
                    Slice(
                        self.path,
                        share.start_cycles,
                        share.end_cycles,
                        COMPUTE,
                        work,
                        stalls=share.stalls(),
                        instructions=share.instructions,
                    )
                )
            self.spent_cycles = share.end_cycles

    def _serve(self, thread: Thread) -> Body:
        """Worker: wait for a job, execute its share, wait at the join barrier, again."""
        events = self.events.target
        while True:
            job = yield from events.pop(self.index, thread)
            self.lose("idle", job.pushed_cycles)
            if job.commands is None:
                thread.waits_for = f"the join barrier of kernel {job.kernel}"
                yield job.barrier.released
                share = job.share_of(self.index)
                self.lose("fork", share.start_cycles, job.work)
                self.compute(share, job.work)
            else:
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
