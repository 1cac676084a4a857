# SPDX-License-Identifier: Apache-2.0
"""The machine: units, their harts and the host, built once and run any number of times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from arch.systemc.clock import Clock
from arch.systemc.environment import Environment
from arch.systemc.module import Body, Module, Notification, Thread
from barvinn.machine.hart import Hart, Host
from barvinn.machine.mvu import Mvu, Tally
from barvinn.machine.program import ArrayProgram, LayerProgram
from barvinn.machine.timing import BarvinnTiming
from configs.errors import DeadlockError, PulptrainError
from configs.values import Struct
from traces.events import NullTracer, Tracer

EVENTS_BETWEEN = 16
"""Between two reports of progress."""


class ArrayResult(Struct, frozen=True):
    """What a run gave: `cycles` until the last result is in memory, when each layer ended, events of SimPy.

    `host_bytes` is what the host moved.
    """

    cycles: int
    layer_ends_cycles: tuple[int, ...]
    events: int
    tallies: tuple[Tally, ...]
    host_bytes: int


class Barrier(Module):
    """Where units wait for each other after a layer; the host then gives every unit the whole output map.

    Where the layer has a step for the host, it computes that first. The units exchange no data themselves.
    """

    def __init__(self, parent: Module, units: list[Mvu], host: Host, *, computes: bool) -> None:
        super().__init__(parent, "barrier")
        self._units = units
        self._host = host
        self._computes = computes
        self._program: ArrayProgram

    def reset(self) -> None:
        """Nobody waits."""
        self._arrived = 0
        self.ends_cycles: dict[str, int] = {}
        self._opened = Notification(self.env)

    def prepare(self, program: ArrayProgram) -> None:
        """Say which layers there will be."""
        self._program = program

    def is_after(self, layer: LayerProgram) -> bool:
        """Whether units meet behind the layer."""
        is_last = layer is self._program.layers[-1]
        return layer.host is not None or (self._program.units > 1 and not is_last)

    def meet(self, layer: LayerProgram, thread: Thread) -> Body:
        """Wait for all units; the last to come hands on the layer's output."""
        self._arrived += 1
        opened = self._opened
        if self._arrived < self._program.units:
            yield opened
            return
        yield from self._pass_on(layer, thread)
        self.ends_cycles[layer.name] = int(self.env.now)
        self._arrived = 0
        self._opened = Notification(self.env)
        opened.notify_listeners()

    def _pass_on(self, layer: LayerProgram, thread: Thread) -> Body:
        used = self._units[: self._program.units]
        words = sum(map(len, layer.owned))
        passed_on = layer.host.words if layer.host is not None else words
        # once out of the units, once to all of them
        size_bytes = (words + passed_on) * used[0].memories.activations.word_bytes
        yield from self._host.move(size_bytes, thread)
        if not self._computes:
            return
        parts = [
            (addresses, unit.memories.activations.read(addresses))
            for unit, addresses in zip(used, layer.owned, strict=True)
            if len(addresses)
        ]
        for unit in used:
            for addresses, values in parts:
                unit.memories.activations.write(addresses, values)
        host = layer.host
        if host is not None:
            read = slice(host.read_first, host.read_first + host.read_words)
            made = host.compute(used[0].memories.activations.read(read))
            for unit in used:
                unit.memories.activations.write(slice(layer.first_word, layer.first_word + host.words), made)


class BarvinnArray(Module):
    """BARVINN as far as this model goes: units and the crossbar between them, a hart each, a host.

    Without `computes` only time passes: memories stay as they are.
    """

    def __init__(self, timing: BarvinnTiming, tracer: Tracer | None = None, *, computes: bool = True) -> None:
        super().__init__(None, "barvinn")
        if isinstance(tracer, NullTracer):
            tracer = None
        self.timing = timing
        self.clock = Clock("barvinn", timing.clock.hz)
        self.host = Host(self, timing)
        self.units = [Mvu(self, index, timing, tracer, computes=computes) for index in range(timing.units)]
        for unit in self.units:
            unit.peers = self.units
        self.barrier = Barrier(self, self.units, self.host, computes=computes)
        self.harts: list[Hart] = []
        for index, unit in enumerate(self.units):
            hart = Hart(self, f"hart{index}", timing, tracer)
            hart.unit.bind(unit)
            hart.host.bind(self.host)
            hart.barrier.bind(self.barrier)
            self.harts.append(hart)
        self._tracer = tracer
        self.elaborate()

    def run(self, program: ArrayProgram, tell: Callable[[int], None] | None = None) -> ArrayResult:
        """Simulate from empty memories until the last result is written; `tell` hears of jobs begun.

        Raises `RaceError` where a job reads what nobody wrote, starts too early or loses bit planes,
        `DeadlockError` if nothing can happen any more.
        """
        env = Environment()
        self.start(env)
        self.barrier.prepare(program)
        used = program.units
        for unit in self.units[:used]:
            unit.memories.clear()
            first = program.first_word
            unit.memories.activations.write(slice(first, first + len(program.inputs)), program.inputs)
        for index in range(used):
            self.harts[index].drive(program, index)
        events = 0
        try:
            while env.peek() != float("inf"):
                env.step()
                events += 1
                if tell is not None and events % EVENTS_BETWEEN == 0:
                    tell(sum(unit.tally.jobs for unit in self.units))
        except PulptrainError as error:
            # SimPy re-creates an error that leaves a process from its text alone; the original is its cause.
            raise error.__cause__ if isinstance(error.__cause__, PulptrainError) else error from None
        if any(thread.alive for hart in self.harts for thread in hart.threads):
            raise DeadlockError(int(env.now), self.waiting())
        passed_on = self.barrier.ends_cycles
        cycles = max([unit.drained_cycles for unit in self.units[:used]] + list(passed_on.values()))
        for unit in self.units[:used]:
            unit.lose("idle", cycles)
        ends = [
            max(
                [unit.layer_ends_cycles.get(layer.name, 0) for unit in self.units[:used]]
                + [passed_on[layer.name] if layer.host is not None else 0]
            )
            for layer in program.layers
        ]
        host_bytes = self.host.moved_bytes + program.inputs.nbytes
        tallies = tuple(unit.tally for unit in self.units[:used])
        return ArrayResult(cycles, tuple(ends), events, tallies, host_bytes)

    def output(self, layer: LayerProgram) -> NDArray[np.uint64]:
        """The words of a layer's output map after a run, from the units that wrote them."""
        if layer.host is not None:
            first = layer.first_word
            return self.units[0].memories.activations.read(slice(first, first + layer.host.words))
        words = np.zeros(layer.words, np.uint64)
        for unit, addresses in zip(self.units, layer.owned, strict=False):
            if len(addresses):
                words[addresses - layer.first_word] = unit.memories.activations.read(addresses)
        return words
