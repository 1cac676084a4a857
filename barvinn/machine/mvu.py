# SPDX-License-Identifier: Apache-2.0
"""One matrix-vector unit: shadowed registers, a countdown, and a pipeline that drains behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from arch.systemc.module import Module, Notification
from barvinn.machine.address_generator import walk
from barvinn.machine.datapath import JobResult, compute
from barvinn.machine.job import CsrWrite, Job, job_of
from barvinn.machine.memories import UnitMemories
from barvinn.machine.timing import BarvinnTiming
from configs.errors import InputError, RaceError
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
    """A unit. It never stalls; who starts it too early, or changes a register it still needs, is refused.

    It does what its registers say under its behaviour, whatever a job was meant to be. A job reads its
    memories when it begins and its results appear when its pipeline has drained, so a job that begins before
    what it needs has arrived computes wrong numbers or reads words that nobody wrote.
    """

    def __init__(
        self,
        parent: Module,
        index: int,
        timing: BarvinnTiming,
        tracer: Tracer | None,
        *,
        computes: bool = True,
    ) -> None:
        super().__init__(parent, f"mvu{index}")
        self.timing = timing
        self.memories = UnitMemories(self.path, timing.memory)
        self.tally = Tally()
        self.peers: Sequence[Mvu] = ()
        self._index = index
        self._computes = computes
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Idle since cycle 0, nothing under way."""
        self.tally = Tally()
        self.registers: dict[str, int] = {}
        self._live_until: dict[str, int] = {}
        self._own_writes: list[NDArray[np.int64]] = []
        self._foreign_writes: list[NDArray[np.int64]] = []
        self.busy = False
        """Whether its interrupt is still to come."""
        self._quantiser_free = 0
        self._accounted_cycles = 0
        self.done: Notification | None = None
        self.done_cycles = 0
        self.drained_cycles = 0
        self.layer_ends_cycles: dict[str, int] = {}

    def write(self, write: CsrWrite, at_cycles: int) -> None:
        """A register takes a value. Raises `RaceError` if it has no shadow and the old one is needed."""
        name = self.timing.behaviour.register(write.name)
        changes = self.registers.get(name, write.value) != write.value
        if changes and at_cycles < self._live_until.get(name, 0):
            raise RaceError(
                f"register {name} is written in cycle {at_cycles}, but the running job uses it until "
                f"cycle {self._live_until[name]}",
                where=self.path,
                cure="write the register after the job has ended",
            )
        self.registers[name] = write.value

    def start_job(self, meant: Job) -> None:
        """The command: run what the registers say, `meant` or not. Raises `RaceError` if it still runs."""
        env, launch = self.env, self.timing.launch
        if self.busy:
            raise RaceError(
                "the program starts a job while another one runs",
                where=self.path,
                cure="let the program wait for the end of the first job",
            )
        self._check(meant)
        job = job_of(self.registers, meant, self.timing.behaviour) if self._computes else meant
        self.busy = True
        self.done = Notification(env)
        begin = int(env.now) + launch.start_cycles
        end = begin + job.countdown
        result = self._result(job)
        drain = self.timing.drain.cycles(job.output_bits)
        ends = begin + 1 + result.release_cycles
        self._check_quantiser(job, begin, ends)
        self._count(job, result)
        work = Work(job.layer, "FW", -1, job.what)
        self.lose("offload", begin)
        self._accounted_cycles = end
        if self._tracer is not None:
            self._tracer.slice(Slice(self.path, begin, end, COMPUTE, work))
        self.done_cycles = end + launch.done_cycles
        receivers, way_cycles = self._receivers(job)
        self.drained_cycles = (int(ends[-1]) if len(ends) else end) + drain + way_cycles
        self._live_until = {
            name: self.drained_cycles if cycles is None else begin + cycles
            for name, cycles in self.timing.behaviour.live.items()
        }
        self.layer_ends_cycles[job.layer] = self.drained_cycles
        times = (ends[:, None] + drain + way_cycles - job.output_bits + np.arange(job.output_bits)).ravel()
        self._at(self.done_cycles, self._finish)
        self._at(self.drained_cycles, lambda: self._write(job, result, work, receivers, times))

    def _result(self, job: Job) -> JobResult:
        """The numbers, or no more than when they come, where only time is asked for."""
        if self._computes:
            return compute(job, self.memories, self.timing.width, self.timing.behaviour)
        steps = walk(job)
        nothing = np.zeros(0, np.int64)
        return JobResult(
            nothing, nothing.astype(np.uint64), np.flatnonzero(steps.ends & steps.releases), 0, 0, 0
        )

    def _receivers(self, job: Job) -> tuple[Sequence[Mvu], int]:
        """The units in whose memory the results go, and cycles of the way there."""
        mask, rules = job.destinations or 1 << self._index, self.timing.behaviour
        is_own = bool(mask >> self._index & 1)
        others = [unit for unit in self.peers if unit is not self and mask >> unit._index & 1]
        if is_own and (not others or not rules.sends_to_itself):
            return [self], 0
        return [*others, *([self] if is_own else [])], self.timing.drain.crossbar_cycles

    def _at(self, cycles: int, action: Callable[[], None]) -> None:
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        event.callbacks.append(lambda _: action())
        self.env.schedule(event, delay=cycles - self.env.now)

    def _finish(self) -> None:
        self.busy = False
        if self.done is not None:
            self.done.fire()

    def _write(
        self, job: Job, result: JobResult, work: Work, receivers: Sequence[Mvu], times: NDArray[np.int64]
    ) -> None:
        """All results are in memory; the last one took the cycles of its planes."""
        for unit in receivers:
            unit.receive(result, times, f"'{job.what}' of {job.layer}", self)
        if self._tracer is not None:
            end = int(self.env.now)
            size_bytes = len(result.words) * self.memories.activations.word_bytes
            out = Work(job.layer, work.step, -1, f"out: {job.what}")
            self._tracer.slice(
                Slice(f"{self.path}.output", end - job.output_bits, end, TRANSFER, out, (), size_bytes)
            )

    def receive(self, result: JobResult, times: NDArray[np.int64], what: str, sender: Mvu) -> None:
        """Words arrive in the cycles `times`. Raises `RaceError` where two come to one bank at once.

        The interconnect goes before the unit's own data path, and that before the host; the loser's is lost.
        """
        banks = result.addresses // (self.timing.behaviour.bank_words or 1)
        ports = times[: len(banks)] * self.timing.memory.activation_words + banks
        is_own = sender is self
        for earlier in (*self._foreign_writes, *(() if is_own else self._own_writes)):
            if np.intersect1d(ports, earlier).size:
                both = f"{what} from {sender.path} and another word"
                raise RaceError(
                    f"{both} are written to one bank of the activation RAM in the same cycle; one is lost",
                    where=self.path,
                    cure="start one of the two senders later, or place its output in another bank",
                )
        (self._own_writes if is_own else self._foreign_writes).append(ports)
        self.memories.activations.write(result.addresses, result.words)

    def lose(self, reason: str, until_cycles: int) -> None:
        """Account for the cycles since the last job or reason: a word of `STALLS`."""
        if until_cycles > self._accounted_cycles:
            if self._tracer is not None:
                self._tracer.slice(Slice(self.path, self._accounted_cycles, until_cycles, reason))
            self._accounted_cycles = until_cycles

    def _count(self, job: Job, result: JobResult) -> None:
        tally = self.tally
        tally.jobs += 1
        tally.run_cycles += job.product_cycles
        tally.output_words += len(result.words)
        tally.accumulator_overflows += result.accumulator_overflows
        tally.scaled_overflows += result.scaled_overflows
        tally.quantiser_wraps += result.quantiser_wraps
        lost = result.accumulator_overflows + result.scaled_overflows + result.quantiser_wraps
        if lost and job.layer not in tally.overflowing_layers:
            tally.overflowing_layers.append(job.layer)

    def _check_quantiser(self, job: Job, begin: int, ends: NDArray[np.int64]) -> None:
        """The quantiser needs a cycle per plane and nothing stalls, so results must not come faster.

        It begins when the comparator hands over in the cycles `ends`; a job before may still keep it.
        """
        if not len(ends):
            return
        period = int(np.diff(ends).min(initial=job.countdown))
        if (len(ends) > 1 and period < job.output_bits) or ends[0] < self._quantiser_free:
            raise RaceError(
                f"job '{job.what}' of layer {job.layer} computes a result in "
                f"{min(period, int(ends[0]) - begin)} cycles, but storing one takes {job.output_bits} cycles "
                "(one per output bit): results are overwritten",
                where=self.path,
                cure="use one job per result, or fewer output bits",
            )
        self._quantiser_free = int(ends[-1]) + job.output_bits

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
                raise InputError(
                    f"{what} of job '{job.what}' of layer {job.layer} is {value}, but the hardware register "
                    f"holds at most {most}",
                    where=self.path,
                    cure="use a smaller layer, fewer bits, or a machine with larger width.* and memory.*",
                )
