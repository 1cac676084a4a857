# SPDX-License-Identifier: Apache-2.0
"""Random nets, L1 sizes, buffer depths, tiles and loop orders: right numbers, or a report; nothing else."""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

from shared.random_schedules import Fixed, check_numbers, planned, schedules
from shared.tiers import examples


@examples(240)
@given(case=schedules(), kernel_cycles=st.integers(1, 400), seed=st.integers(0, 1000))
def test_numbers_are_right_or_l1_is_too_small(case, kernel_cycles, seed) -> None:
    """The run itself refuses races, deadlocks and reads of what was never written."""
    spec, timing, _ = case
    cost_model = Fixed(kernel_cycles)
    schedule = planned(case, cost_model)
    if schedule is None:
        return
    cut = [
        item.op.name
        for item in schedule.ops
        if any("vect_sum" in call.kernel for task in item.tiling.tiles for call in task.calls)
    ]
    event("runs, sums cut" if cut else "runs")
    for item in schedule.ops:
        assert item.tiling.l1_bytes <= timing.l1_usable_bytes
    check_numbers(schedule, spec, timing, cost_model, seed)
