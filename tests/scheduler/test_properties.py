# SPDX-License-Identifier: Apache-2.0
"""Random nets, L1 sizes, buffer depths, tiles and loop orders: right numbers, or a report; nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st

from configs.errors import DoesNotFitError
from scheduler.executor import Executor
from scheduler.schedule import build_schedule
from shared.agreement import compare
from shared.initial_values import initial_values
from shared.random_schedules import Fixed, check_report, schedules
from shared.tiers import examples
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_graph


@examples(240)
@given(case=schedules(), kernel_cycles=st.integers(1, 400), seed=st.integers(0, 1000))
def test_numbers_are_right_or_l1_is_too_small(case, kernel_cycles, seed) -> None:
    """The run itself refuses races, deadlocks and reads of what was never written."""
    spec, timing, options = case
    graph = build_training_graph(spec)
    cost_model = Fixed(kernel_cycles)
    try:
        schedule = build_schedule(graph, timing, cost_model, options)
    except DoesNotFitError as error:
        event("does not fit")
        check_report(error, timing)
        return
    cut = [
        item.op.name
        for item in schedule.ops
        if any("vect_sum" in call.kernel for task in item.tiling.tiles for call in task.calls)
    ]
    event("runs, sums cut" if cut else "runs")
    for item in schedule.ops:
        assert item.tiling.l1_bytes <= timing.l1_usable_bytes
    values = initial_values(graph, spec, seed)
    truth = evaluate(graph, values)
    executor = Executor(schedule, timing, cost_model)
    executor.load(values)
    executor.simulate()
    kept = [*graph.results, *graph.updates.values()]
    found = {name: executor.fetch(name) for name in kept}
    for name, difference in compare(found, truth, kept).items():
        scale = max(1.0, float(np.abs(truth[name]).max()))
        assert difference.max_abs_error <= 1e-5 * scale, (name, difference)
