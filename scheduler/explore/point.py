# SPDX-License-Identifier: Apache-2.0
"""One point of a design space: a training iteration on a SoC under a schedule, and what it came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from arch.blocks.soc import core_paths
from arch.energy.activity import Counts, activity_of, sum_of
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.timing import SocTiming
from configs.errors import DoesNotFitError, PulptrainError
from configs.values import Struct, replace
from scheduler.counted_run import CountedRun
from scheduler.executor import Executor
from scheduler.memory.host_memory import UNTRACED
from scheduler.options import ScheduleOptions
from scheduler.planned import Schedule
from scheduler.resident_search import schedules_for
from scheduler.search.fingerprint import fingerprint, model_version
from scheduler.search.workers import PerThread
from scheduler.time_line import TimeLine, time_line, whole_line
from trainlib.ir.graph import TrainingGraph

COST_MODELS_CACHED = 4
"""Machines whose kernel prices a worker remembers; points next to each other often share one."""


class Point(Struct, frozen=True):
    """A training iteration and the SoC it runs on: its programs, which share one memory.

    Of each its graph, how it is scheduled, and how often it runs in an update.
    """

    programs: tuple[tuple[TrainingGraph, ScheduleOptions, int], ...]
    timing: SocTiming

    @property
    def graphs(self) -> list[TrainingGraph]:
        """Those of the programs."""
        return [graph for graph, _, _ in self.programs]

    @property
    def options(self) -> list[ScheduleOptions]:
        """Those of the programs."""
        return [options for _, options, _ in self.programs]

    @property
    def content(self) -> str:
        """Hash of all the result depends on, the version of the simulator included."""
        return fingerprint((model_version(), self.timing, self.programs))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one point came to: figures of the simulated iteration, or in `why` the reason there is none.

    Cycles are cluster cycles, `stall_cycles` core-cycles; `l1_bytes`, `l2_bytes`, `l3_bytes` are what is
    used, not what is there.
    """

    cycles: int = 0
    seconds: float = 0.0
    macs: int = 0
    instructions: int = 0
    stall_cycles: int = 0
    dma_bytes: int = 0
    l1_bytes: int = 0
    l2_bytes: int = 0
    l3_bytes: int = 0
    why: str = ""
    """Empty if the point was simulated."""
    short_bytes: int = 0
    """If it does not fit: how much the memory that is too small is short of."""
    line: TimeLine = ()
    """Whose the cycles are; sums to `cycles`."""
    activity: Counts = field(default_factory=dict)
    """What every block did, in all."""


def point_of(
    programs: Iterable[tuple[TrainingGraph, int]], timing: SocTiming, options: Iterable[ScheduleOptions]
) -> Point:
    """A point of programs, each of which runs so many times, with the options of each.

    Values of random inputs are left out: time does not depend on them.
    """
    plain = [(replace(graph, draws={}), times) for graph, times in programs]
    return Point(
        tuple((graph, one, times) for (graph, times), one in zip(plain, options, strict=True)), timing
    )


def simulate_point(point: Point) -> Outcome:
    """Simulate one iteration without numbers. A point that is impossible is an outcome, not an error."""
    try:
        return simulated(point)
    except PulptrainError as error:
        return refusal(error)


def simulated(point: Point) -> Outcome:
    """Simulate one iteration without numbers. Raises `PulptrainError` if the point is impossible."""
    timing, cost_model = point.timing, cost_model_of(point.timing)
    schedules = schedules_for(point.graphs, timing, cost_model, point.options, use=UNTRACED)
    done = [_simulated(schedule, timing, cost_model) for schedule in schedules]
    return _whole_update([(one, times) for one, (_, _, times) in zip(done, point.programs, strict=True)])


def _simulated(schedule: Schedule, timing: SocTiming, cost_model: TeamCostModel) -> Outcome:
    counted = CountedRun(schedule.program, core_paths(timing), traced=False)
    start = schedule.options.code_start
    executor = Executor(schedule, timing, cost_model, counted.recorder, functional=False, code_start=start)
    result = executor.simulate(logged=False)
    metrics = counted.metrics(result.cycles)
    peak = schedule.peak_bytes
    return Outcome(
        cycles=result.cycles,
        seconds=result.cycles / timing.clock.cluster_hz,
        macs=sum(op.macs for op in schedule.ops),
        instructions=metrics.total.instructions,
        stall_cycles=metrics.total.stall_cycles,
        dma_bytes=metrics.bytes_in + metrics.bytes_out,
        l1_bytes=peak["l1"],
        l2_bytes=peak["l2"],
        l3_bytes=peak["l3"],
        line=time_line(metrics.master, result.cycles, schedule.program, timing),
        activity=activity_of(schedule.program, metrics, timing, schedule.graph.formats).total,
    )


def _whole_update(outcomes: Sequence[tuple[Outcome, int]]) -> Outcome:
    """What one update came to whose programs came to `outcomes`, each run so many times, in one memory."""
    if len(outcomes) == 1:
        return outcomes[0][0]
    figures = {
        each.name: (max if each.name in _LEVELS else sum)(
            getattr(outcome, each.name) * (1 if each.name in _LEVELS else times)
            for outcome, times in outcomes
        )
        for each in fields(Outcome)
        if each.name not in ("why", "short_bytes", "line", "activity")
    }
    return Outcome(
        **figures,
        line=whole_line((outcome.line, times) for outcome, times in outcomes),
        activity=sum_of((outcome.activity, times) for outcome, times in outcomes),
    )


_LEVELS = ("l1_bytes", "l2_bytes", "l3_bytes")
"""Of these figures the largest counts, not the sum."""


def refusal(error: PulptrainError) -> Outcome:
    """What a point came to that is impossible for the reason `error` gives."""
    short_bytes = error.required_bytes - error.available_bytes if isinstance(error, DoesNotFitError) else 0
    return Outcome(why=str(error).splitlines()[0], short_bytes=short_bytes)


_cost_models = PerThread(TeamCostModel, COST_MODELS_CACHED)


def cost_model_of(timing: SocTiming) -> TeamCostModel:
    """The cost model of this thread for a machine, with what it has priced before."""
    return _cost_models.of(timing)
