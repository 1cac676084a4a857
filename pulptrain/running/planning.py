# SPDX-License-Identifier: Apache-2.0
"""From training graphs to what a machine carries out: schedules, and what was kept of an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import cast

from arch.pricing.cost_model import CostModel, TeamCostModelWhenAsked
from arch.spec.timing import SocTiming
from configs.model_file import ModelSpec
from configs.values import replace
from pulptrain.running.machine import Prepared
from scheduler.memory.host_memory import HostUse
from scheduler.options import ScheduleOptions
from scheduler.plan_figures import Figures
from scheduler.planned import LateSchedule, Schedule
from scheduler.run_cache import RunCache
from scheduler.search.cache import ResultCache
from scheduler.search.fingerprint import fingerprint
from trainlib.training.phases import TrainingPhases


def planned(
    spec: ModelSpec,
    phases: TrainingPhases,
    timing: SocTiming,
    by_program: Sequence[ScheduleOptions],
    cache: ResultCache | None,
    use: HostUse,
    code_start: str,
    code_map: tuple[str, str] | None = None,
    *,
    traced: bool = True,
    advise: bool = True,
) -> Prepared:
    """The schedule of every program, each with its options, and the cost model of kernels.

    With a `cache` the tilings and prices of an earlier run of the same are taken from it; where no trace is
    asked for its figures too, and without numbers schedules are then made only if they are read. Unless all
    code is warm it has its place in L2, by the text of the map file of an export (and its name), if there is
    one. Raises the errors of `configs.errors`; to `advise` it looks for an L2 that is enough.
    """
    graphs = phases.graphs
    use = replace(use, traced=traced)
    cost_model: CostModel = TeamCostModelWhenAsked(timing)
    figures_key = f"{code_start} {fingerprint(code_map)}" if code_map is not None else code_start
    run_cache: RunCache | None = None
    figures: Sequence[Figures] = ()
    if cache is not None:
        run_cache = RunCache(cache, timing, list(zip(graphs, by_program, strict=True)), cost_model)
        if not traced:
            figures = run_cache.figures(figures_key)
    late = bool(figures) and not use.numbers
    if not late:
        from scheduler.memory.memory_plan import check_sizes

        for graph, options in zip(graphs, by_program, strict=True):
            check_sizes(graph, timing, options.memory, use)

    @lru_cache
    def all_of_them() -> Sequence[Schedule]:
        from scheduler.code_in_l2 import placed_with_code, with_code_in_l2
        from scheduler.resident_search import schedules_for

        linked = None
        if code_map is not None:
            from deploy.project.linked import linked_code

            linked = partial(linked_code, *code_map)
        caches = run_cache.schedules if run_cache is not None else ()
        place = with_code_in_l2 if advise else placed_with_code
        return schedules_for(graphs, timing, cost_model, by_program, caches, use, linked, place)

    schedules = all_of_them() if not late else [_late(all_of_them, n) for n in range(len(graphs))]
    update = schedules[1] if len(schedules) > 1 else None
    if run_cache is not None:
        cost_model = run_cache.cost_model
    return Prepared(
        spec, timing, schedules[0], cost_model, update, phases, run_cache, figures_key, figures, traced=traced
    )


def _late(all_of_them: Callable[[], Sequence[Schedule]], number: int) -> Schedule:
    return cast(Schedule, LateSchedule(lambda: all_of_them()[number]))
