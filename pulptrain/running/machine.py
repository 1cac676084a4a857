# SPDX-License-Identifier: Apache-2.0
"""The simulated SoC of one run: the program of a mini-batch, and that of the update where it has one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING

from arch.blocks.soc import core_paths
from arch.pricing.code_caches import WARM
from arch.pricing.cost_model import CostModel
from arch.spec.timing import SocTiming
from configs.errors import NotFiniteError
from configs.model_file import ModelSpec
from configs.values import Struct
from scheduler.plan_figures import Figures
from scheduler.planned import Schedule
from scheduler.run_cache import RunCache
from traces.events import NullTracer
from traces.recorder import Recorder
from trainlib.ir.graph import KEPT_KINDS
from trainlib.ir.steps import Array
from trainlib.ir.varying import varying_of
from trainlib.training.phases import TrainingPhases
from truth.source import Given

if TYPE_CHECKING:
    from arch.blocks.soc import Soc
    from pulptrain.running.number_check import NumberCheck
    from scheduler.counted_run import CountedRun
    from scheduler.executor import Executor, Watch


class Prepared(Struct, frozen=True):
    """A model on a SoC before time starts: the schedule of a mini-batch and that of the update, if any."""

    spec: ModelSpec
    timing: SocTiming
    schedule: Schedule
    cost_model: CostModel
    update: Schedule | None
    phases: TrainingPhases
    run_cache: RunCache | None = None
    """What is kept for the next run of the same, if the caller has given a cache."""
    figures_key: str = WARM
    """Under what they are kept."""
    figures: Sequence[Figures] = ()
    """Those of all programs, if they are known and no trace is asked for."""
    traced: bool = True
    """Whether a trace is asked for."""
    given: Callable[[], Given | None] = lambda: None
    """The model as it was given, to hold the run against; None of a graph with a backward pass of its own."""
    notes: tuple[str, ...] = ()
    """What a reader of its figures must know."""

    @property
    def schedules(self) -> list[Schedule]:
        """Those of all programs, in order."""
        return [self.schedule, *([self.update] if self.update is not None else [])]


class Phase:
    """One program on the SoC: simulated in time at its first run, replayed afterwards.

    If its `figures` are known nobody listens, and without numbers it is not simulated: no trace is asked for.
    """

    def __init__(
        self,
        schedule: Schedule,
        prepared: Prepared,
        soc: Callable[[], Soc],
        listeners: Listeners,
        *,
        functional: bool,
        figures: Figures | None = None,
    ) -> None:
        self.schedule = schedule
        self.recorder = Recorder()
        self._listeners = listeners
        self._prepared, self._soc, self._functional = prepared, soc, functional
        self.figures = figures
        self.wall_seconds = 0.0
        self._simulated = False

    @cached_property
    def executor(self) -> Executor:
        """What carries the program out. A run whose figures are kept needs neither it nor the machine."""
        from scheduler.executor import Executor

        prepared = self._prepared
        return Executor(
            self.schedule, prepared.timing, prepared.cost_model, functional=self._functional, soc=self._soc()
        )

    @property
    def cycles(self) -> int:
        """Cycles of the program, once it has run."""
        return self.figures.metrics.makespan_cycles if self.figures is not None else 0

    def run(self) -> None:
        """Carry the program out once."""
        if self.figures is not None and not self._functional:
            return
        if self._simulated:
            self.executor.replay()
            return
        self._simulated = True
        counted = self._counted() if self.figures is None else None
        started = time.perf_counter()
        result = self.executor.simulate(logged=self._functional)
        self.wall_seconds = time.perf_counter() - started
        if counted is not None:
            self.figures = counted.figures(result, self.schedule, self._prepared.timing)

    def _counted(self) -> CountedRun:
        """What listens to the run."""
        from scheduler.counted_run import CountedRun

        paths = core_paths(self.executor.soc.timing)
        counted = CountedRun(self.schedule.program, paths, traced=self._prepared.traced)
        self.recorder = counted.recorder
        self._listeners.hand_to(self.recorder)
        return counted


class Listeners:
    """The tracer of a SoC that runs several programs: all goes to the recorder of the one running."""

    def __init__(self) -> None:
        self.hand_to(Recorder())

    def hand_to(self, recorder: Recorder) -> None:
        """From now on `recorder` is told, directly: a run has a hundred thousand slices."""
        self.slice = recorder.slice
        self.team = recorder.team
        self.counter = recorder.counter


class Machine:
    """Both programs of an update on one SoC, with one memory image.

    Weights, gradients or their totals, and optimizer states lie at the same addresses in both memory plans
    (`scheduler.memory.shared_memory`), so nothing has to be handed over.
    """

    def __init__(self, prepared: Prepared, *, functional: bool, code_start: str) -> None:
        listeners = Listeners()
        tracer = NullTracer() if prepared.figures else listeners

        @cache
        def soc() -> Soc:
            from arch.blocks.soc import Soc

            return Soc(prepared.timing, prepared.cost_model, tracer, code_start=code_start)

        self.phases = [
            Phase(schedule, prepared, soc, listeners, functional=functional, figures=figures)
            for schedule, figures in zip_longest(prepared.schedules, prepared.figures)
        ]
        """The programs in order."""
        self.mini = self.phases[0]
        self.last = self.phases[1] if len(self.phases) > 1 else None
        self.functional = functional
        self.programs = prepared.phases.programs
        """The graphs of one iteration, as they were before anything was planned."""
        self.varying = varying_of(prepared.phases.graphs)
        """Their numbers that are others in every iteration; what is planned has the same objects."""
        self.given = prepared.given() if functional else None
        self.not_finite: NotFiniteError | None = None
        self.program_ended: Callable[[Executor], None] | None = None
        """Told of every program that has run, in iterations that are those of a training."""

    def load_state(self, values: Mapping[str, Array]) -> None:
        """Put weights, buffers and states where both programs find them."""
        if self.functional:
            self.mini.executor.load(values)

    def fetch_state(self) -> dict[str, Array]:
        """Weights, buffers and states as they are now."""
        graph = self.mini.schedule.graph
        return {name: self.mini.executor.fetch(name) for name in graph.of_kind(*KEPT_KINDS)}

    def record(self, told: Watch | None) -> None:
        """From now on `told` hears of every op that ends, and of the tensors it has written."""
        if self.functional:
            for phase in self.phases:
                phase.executor.record = told

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Do something else with the machine: afterwards all memories hold what they held before."""
        soc = self.mini.executor.soc
        before = soc.memories()
        try:
            yield
        finally:
            soc.restore(before)

    def iterate(
        self, samples: Sequence[Mapping[str, Array]], check: NumberCheck | None = None
    ) -> list[list[float]]:
        """Carry out one iteration: a mini-batch per sample, then the update; returns the losses of each.

        A `check` follows every program of it. `not_finite` says afterwards whether numbers went astray.
        """
        self.not_finite = None
        losses = []
        for sample in samples:
            if self.functional:
                self.mini.executor.load(sample)
            self._carry_out(self.mini, sample, check)
            names = self.mini.schedule.graph.losses if self.functional else ()
            losses.append([float(self.mini.executor.fetch(name).reshape(-1)[0]) for name in names])
        if self.last is not None:
            self._carry_out(self.last, {}, check)
        if check is not None:
            check.ended()
        return losses

    def _carry_out(self, phase: Phase, given: Mapping[str, Array], check: NumberCheck | None) -> None:
        follower = check.followed(phase.executor, phase.schedule.graph, given) if check is not None else None
        phase.run()
        if self.program_ended is not None:
            self.program_ended(phase.executor)
        if follower is not None:
            follower.judge()
        if self.functional:
            self.not_finite = self.not_finite or phase.executor.not_finite
