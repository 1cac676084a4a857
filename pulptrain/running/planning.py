# SPDX-License-Identifier: Apache-2.0
"""From training graphs to what a machine carries out: schedules, and what was kept of an earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from arch.pricing.cost_model import CostModel, TeamCostModelWhenAsked
from arch.spec.timing import SocTiming
from configs.model_file import ModelSpec
from pulptrain.running.machine import Prepared
from scheduler.kept_figures import Figures
from scheduler.memory.host_memory import HostUse
from scheduler.options import ScheduleOptions
from scheduler.planned import LateSchedule, Schedule
from scheduler.run_cache import RunCache
from scheduler.schedule_cache import ScheduleCache
from scheduler.search.cache import ResultCache
from trainlib.ir.graph import TrainingGraph
from trainlib.training.phases import TrainingPhases


def planned(
    spec: ModelSpec,
    phases: TrainingPhases,
    timing: SocTiming,
    by_program: Sequence[ScheduleOptions],
    cache: ResultCache | None,
    use: HostUse,
    code_start: str,
    *,
    traced: bool = True,
) -> Prepared:
    """The schedule of every program, each with its options, and the cost model of kernels.

    With a `cache` the tilings and prices of an earlier run of the same are taken from it; where no trace is
    asked for its figures too, and without numbers schedules are then made only if they are read. Raises the
    errors of `configs.errors`.
    """
    graphs = phases.graphs
    use = replace(use, traced=traced)
    cost_model: CostModel = TeamCostModelWhenAsked(timing)
    several = len(graphs) > 1
    if several:
        by_program = _in_one_memory(graphs, timing, by_program, use)
    run_cache: RunCache | None = None
    caches: Sequence[ScheduleCache | None] = [None] * len(graphs)
    figures: Sequence[Figures] = ()
    if cache is not None:
        run_cache = RunCache(cache, timing, list(zip(graphs, by_program, strict=True)), cost_model)
        caches = run_cache.schedules
        if not traced:
            figures = run_cache.figures(code_start)
    late = bool(figures) and not use.numbers
    if not (several or late):
        _check_sizes(graphs, timing, by_program, use)
    schedules: list[Schedule] = []

    def schedule(number: int) -> Schedule:
        from scheduler.resident_search import schedule_for

        beside = sum((item.size for item in schedules[:number]), use.beside)
        options, cached = by_program[number], caches[number]
        return schedule_for(graphs[number], timing, cost_model, options, cached, replace(use, beside=beside))

    for number in range(len(graphs)):
        schedules.append(LateSchedule(partial(schedule, number)) if late else schedule(number))
    update = schedules[1] if len(schedules) > 1 else None
    if run_cache is not None:
        cost_model = run_cache.cost_model
    return Prepared(spec, timing, schedules[0], cost_model, update, phases, run_cache, figures, traced=traced)


def _check_sizes(
    graphs: Sequence[TrainingGraph],
    timing: SocTiming,
    by_program: Sequence[ScheduleOptions],
    use: HostUse,
) -> None:
    """Refuse what is too large to be planned. A run whose figures are kept needs nothing that plans."""
    from scheduler.memory.memory_plan import check_sizes

    for graph, options in zip(graphs, by_program, strict=True):
        check_sizes(graph, timing, options.memory, use)


def _in_one_memory(
    graphs: Sequence[TrainingGraph],
    timing: SocTiming,
    by_program: Sequence[ScheduleOptions],
    use: HostUse,
) -> Sequence[ScheduleOptions]:
    """The options last, where both programs have what they share: from here on none changes."""
    from scheduler.schedule import in_one_memory

    _check_sizes(graphs, timing, by_program, use)
    return in_one_memory(graphs, timing, by_program)
