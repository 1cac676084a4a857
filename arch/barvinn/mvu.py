# SPDX-License-Identifier: Apache-2.0
"""One matrix-vector unit: shadowed registers, a countdown, and a pipeline that drains behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from arch.barvinn.datapath import JobResult, compute
from arch.barvinn.job import Job
from arch.barvinn.memories import UnitMemories
from arch.barvinn.timing import BarvinnTiming
from arch.module import Module, Notification
from configs.errors import PulptrainError, RaceError
from traces.events import COMPUTE, TRANSFER, Slice, Tracer, Work


@dataclass(slots=True)
class Tally:
    """What a unit has done: jobs, cycles with products, sums that were cut."""

    jobs: int = 0
    run_cycles: int = 0
    output_words: int = 0
    accumulator_overflows: int = 0
    scaled_overflows: int = 0
    quantiser_wraps: int = 0
    overflowing_layers: list[str] = field(default_factory=list)


class Mvu(Module):
    """A unit `name` (mvu0, mvu1, ...). It never stalls; who starts it too early is refused.

    A job reads its memories when it begins and its results appear when its pipeline has drained, so a job
    that begins before what it needs has arrived computes wrong numbers or reads words that nobody wrote.
    """

    def __init__(self, parent: Module, name: str, timing: BarvinnTiming, tracer: Tracer | None) -> None:
        super().__init__(parent, name)
        self.timing = timing
        self.memories = UnitMemories(self.path, timing.memory)
        self.tally = Tally()
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Idle since cycle 0, nothing under way."""
        self.tally = Tally()
        self._busy = False
        self._quantiser_free = 0
        self._accounted_cycles = 0
        self.done: Notification | None = None
        self.done_cycles = 0
        self.drained_cycles = 0
        self.layer_ends_cycles: dict[str, int] = {}

    @property
    def busy(self) -> bool:
        """Whether its interrupt is still to come."""
        return self._busy

    def start_job(self, job: Job) -> None:
        """The command: copy the registers from their shadow and run. Raises `RaceError` if it still runs."""
        env, launch = self.env, self.timing.launch
        if self._busy:
            raise RaceError("a command came while a job was running", where=self.path)
        self._check(job)
        self._busy = True
        self.done = Notification(env)
        begin = int(env.now) + launch.start_cycles
        end = begin + job.countdown
        self._check_quantiser(job, begin, end)
        result = compute(job, self.memories, self.timing.width)
        self._count(job, result)
        work = Work(job.layer, "FW", -1, job.what)
        self.lose("offload", begin)
        self._accounted_cycles = end
        if self._tracer is not None:
            self._tracer.slice(Slice(self.path, begin, end, COMPUTE, work))
        self.done_cycles = end + launch.done_cycles
        self.drained_cycles = end + self.timing.drain.cycles(job.output_bits)
        self.layer_ends_cycles[job.layer] = self.drained_cycles
        self._at(self.done_cycles, self._finish)
        self._at(self.drained_cycles, lambda: self._write(job, result, work))

    def _at(self, cycles: int, action: Callable[[], None]) -> None:
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        event.callbacks.append(lambda _: action())
        self.env.schedule(event, delay=cycles - self.env.now)

    def _finish(self) -> None:
        self._busy = False
        if self.done is not None:
            self.done.fire()

    def _write(self, job: Job, result: JobResult, work: Work) -> None:
        """All results are in memory; the last one took the cycles of its planes."""
        self.memories.activations.write(result.addresses, result.words)
        if self._tracer is not None:
            end = int(self.env.now)
            size_bytes = len(result.words) * self.memories.activations.word_bytes
            out = Work(job.layer, work.step, -1, f"out: {job.what}")
            self._tracer.slice(
                Slice(f"{self.path}.output", end - job.output_bits, end, TRANSFER, out, (), size_bytes)
            )

    def lose(self, reason: str, until_cycles: int) -> None:
        """Account for the cycles since the last job or reason: a word of `STALLS`."""
        if until_cycles > self._accounted_cycles:
            if self._tracer is not None:
                self._tracer.slice(Slice(self.path, self._accounted_cycles, until_cycles, reason))
            self._accounted_cycles = until_cycles

    def _count(self, job: Job, result: JobResult) -> None:
        tally = self.tally
        tally.jobs += 1
        tally.run_cycles += job.countdown
        tally.output_words += len(result.words)
        tally.accumulator_overflows += result.accumulator_overflows
        tally.scaled_overflows += result.scaled_overflows
        tally.quantiser_wraps += result.quantiser_wraps
        lost = result.accumulator_overflows + result.scaled_overflows + result.quantiser_wraps
        if lost and job.layer not in tally.overflowing_layers:
            tally.overflowing_layers.append(job.layer)

    def _check_quantiser(self, job: Job, begin: int, end: int) -> None:
        """The quantiser needs a cycle per plane and nothing stalls, so results must not come faster."""
        period = result_period(job)
        too_fast = job.countdown > period and period < job.output_bits
        if too_fast or begin + period < self._quantiser_free:
            raise RaceError(
                f"job '{job.what}' of {job.layer} gives a result after {period} cycles, but its "
                f"{job.output_bits} bit planes, or those before, take one each: planes are overwritten",
                where=self.path,
            )
        self._quantiser_free = end + job.output_bits

    def _check(self, job: Job) -> None:
        width, memory = self.timing.width, self.timing.memory
        limits = {
            "countdown": (job.countdown, (1 << width.countdown_bits) - 1),
            "trips of a loop": (
                max(*job.input.lengths, *job.weight.lengths, *job.output.lengths),
                (1 << width.length_bits) - 1,
            ),
            "input jump": (
                max(map(abs, (*job.input.jumps, *job.output.jumps))),
                (1 << width.activation_jump_bits) - 1,
            ),
            "weight jump": (max(map(abs, job.weight.jumps)), (1 << width.weight_jump_bits) - 1),
            "MSB index": (job.msb_index, width.scaled_bits - 1),
            "scaler entry": (job.scaler_base, memory.scaler_words - 1),
        }
        for what, (value, most) in limits.items():
            if value > most:
                raise PulptrainError(
                    f"job '{job.what}' of {job.layer}: {what} {value}, the register holds up to {most}",
                    where=self.path,
                )


def result_period(job: Job) -> int:
    """Cycles from one result to the next: products between two jumps that `compare_select` names."""
    period = 1
    for level in (4, 3, 2, 1):
        if job.compare_select >> level & 1:
            break
        period *= job.weight.lengths[level] + 1
    return period
