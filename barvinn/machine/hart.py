# SPDX-License-Identifier: Apache-2.0
"""A hart of the barrel processor that drives one unit, and the host that fills memories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import simpy

from arch.systemc.module import Body, Module, Notification, Port, Thread
from barvinn.machine.job import COMMAND, CsrWrite, Job, csr_writes, write_instructions
from barvinn.machine.mvu import Mvu
from barvinn.machine.program import ArrayProgram, LayerProgram, Segment
from barvinn.machine.timing import LANES, BarvinnTiming
from traces.events import COMPUTE, Slice, Tracer, Work

if TYPE_CHECKING:
    from barvinn.machine.array import Barrier

WEIGHT_WORD_BYTES, SCALER_WORD_BYTES, BIAS_WORD_BYTES = LANES * LANES // 8, LANES * 2, LANES * 4
"""Of the memories of a unit; the model holds scalers and biases in wider numbers."""


class Host(Module):
    """The link over which memories are filled: one transfer at a time, `host.bytes_per_cycle`."""

    def __init__(self, parent: Module, timing: BarvinnTiming) -> None:
        super().__init__(parent, "host")
        self._timing = timing.host

    def reset(self) -> None:
        """The link is free, nothing has been moved."""
        self._link = simpy.Resource(self.env, 1)
        self.moved_bytes = 0

    def move(self, size_bytes: int, thread: Thread) -> Body:
        """Take the link for the time of `size_bytes`."""
        self.moved_bytes += size_bytes
        cycles = self._timing.cycles(size_bytes)
        if cycles:
            with self._link.request() as turn:
                thread.waits_for = self.path
                yield turn
                yield self.env.timeout(cycles)


class Hart(Module):
    """Writes the registers of its unit's jobs while the unit runs, waits for its interrupt, starts the next.

    Registers keep their values, so a job costs the writes of those that change; those that have no shadow are
    written when the results before are in memory. An interrupt costs `hart.handler_instructions`; with none
    of them the hart looks every `poll_cycles` from the moment the registers of the next job are written.
    """

    def __init__(self, parent: Module, name: str, timing: BarvinnTiming, tracer: Tracer | None) -> None:
        super().__init__(parent, name)
        self.unit: Port[Mvu] = Port(self, "unit")
        self.host: Port[Host] = Port(self, "host")
        self.barrier: Port[Barrier] = Port(self, "barrier")
        self._timing = timing
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """No register is written."""
        self._registers: dict[str, int] = {}
        self._seen: Notification | None = None

    def drive(self, program: ArrayProgram, index: int) -> None:
        """Begin to work through what `program` has for unit `index`."""
        thread = Thread(self.path)
        self.spawn(thread, self._drive(program, index, thread))

    def _drive(self, program: ArrayProgram, index: int, thread: Thread) -> Body:
        mvu = self.unit.target
        rules = program.behaviour
        input_bytes = len(program.inputs) * mvu.memories.activations.word_bytes
        loading = self._timing.host.cycles(input_bytes)  # one write reaches all units
        if loading:
            yield self.env.timeout(loading)
            mvu.lose("dma_wait", loading)
        for layer in program.layers:
            mvu.memories.activations.forget(layer.first_word, layer.words)
            for segment in layer.units[index]:
                for number, job in enumerate(segment.jobs):
                    changed = self.changed(csr_writes(job, index, rules))
                    live = [write for write in changed if write.name in rules.live]
                    yield from self._configure([write for write in changed if write not in live], job)
                    late = sum(map(instructions_of, live))
                    yield from self._wait_for_interrupt(thread, late + 1)
                    if number == 0:
                        yield from self._load(segment, thread)
                    if live or job.after_drain:
                        yield from self._drain()
                    if live:
                        yield from self._configure(live, job)
                    yield self.env.timeout(self._timing.hart.instruction_cycles)
                    mvu.start_job(job)
            if self.barrier.target.is_after(layer):
                yield from self._meet(layer, thread)
        yield from self._drain()

    def _drain(self) -> Body:
        """Wait until all results are in memory."""
        mvu = self.unit.target
        if mvu.drained_cycles > self.env.now:
            yield self.env.timeout(mvu.drained_cycles - int(self.env.now))
            mvu.lose("load_use", int(self.env.now))

    def _configure(self, writes: Sequence[CsrWrite], job: Job) -> Body:
        begin, instructions = int(self.env.now), 0
        cycle = self._timing.hart.instruction_cycles
        for write in writes:
            instructions += instructions_of(write)
            self.unit.target.write(write, begin + instructions * cycle)
        yield self.env.timeout(instructions * cycle)
        if self._tracer is not None:
            work = Work(job.layer, "FW", -1, f"registers: {job.what}")
            end = int(self.env.now)
            self._tracer.slice(Slice(self.path, begin, end, COMPUTE, work, (), instructions=instructions))

    def changed(self, writes: tuple[CsrWrite, ...]) -> list[CsrWrite]:
        """The writes that change a register, and the command; from now on the registers hold all of them."""
        needed = [
            write
            for write in writes
            if write.name == COMMAND or self._registers.get(write.name) != write.value
        ]
        self._registers.update((write.name, write.value) for write in writes)
        return needed

    def _wait_for_interrupt(self, thread: Thread, behind: int = 0) -> Body:
        """Wait for the end of the job before; `behind` instructions to the next command are to come."""
        mvu, begin, hart = self.unit.target, int(self.env.now), self._timing.hart
        if mvu.busy and mvu.done is not None:
            thread.waits_for = f"the interrupt of {mvu.path}"
            yield mvu.done
            late = -(int(self.env.now) - begin) % hart.poll_cycles
            if late and not hart.handler_instructions:
                yield self.env.timeout(late)
        if mvu.done is not self._seen:
            self._seen = mvu.done
            handler = max(0, hart.handler_instructions - behind) * hart.instruction_cycles
            if handler:
                yield self.env.timeout(handler)

    def _load(self, segment: Segment, thread: Thread) -> Body:
        """Weights, scalers and biases; the unit reads them no more, or this would be too early."""
        mvu = self.unit.target
        memories = mvu.memories
        mvu.lose("offload", int(self.env.now))
        parts = (
            (memories.weights, segment.weights, WEIGHT_WORD_BYTES),
            (memories.scalers, segment.scalers, SCALER_WORD_BYTES),
            (memories.biases, segment.biases, BIAS_WORD_BYTES),
        )
        size_bytes = sum(len(values) * word_bytes for _, values, word_bytes in parts)
        yield from self.host.target.move(size_bytes, thread)
        mvu.lose("dma_wait", int(self.env.now))
        for memory, values, _ in parts:
            if len(values):
                memory.clear()
                memory.write(slice(0, len(values)), values)

    def _meet(self, layer: LayerProgram, thread: Thread) -> Body:
        """Wait until every unit has written its part of the layer and the host has passed it on."""
        mvu = self.unit.target
        yield from self._wait_for_interrupt(thread)
        mvu.lose("offload", int(self.env.now))
        yield from self._drain()
        thread.waits_for = f"the other units at the end of {layer.name}"
        yield from self.barrier.target.meet(layer, thread)
        mvu.lose("barrier", int(self.env.now))


def instructions_of(write: CsrWrite) -> int:
    """Instructions before the unit is ready: all of a write, but the command's own comes later."""
    return write_instructions(write.signed) - (write.name == COMMAND)
