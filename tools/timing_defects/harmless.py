# SPDX-License-Identifier: Apache-2.0
"""Changes of the product that are as right as what is there: no figure may leave its bound for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arch.pricing import team_cost_model
from arch.pricing.cost_model import CoreCost
from arch.pricing.window_plan import START_OFFSETS_CYCLES, PricingWindow
from scheduler.programs.op_loop import OpLoop
from scheduler.tiles.l1_layout import L1Layout
from tools.timing_defects.change import Change, Replacement, around, registrar

HARMLESS: dict[str, Change] = {}
_harmless = registrar(HARMLESS, "harmless")


@_harmless("arch/pricing/window_plan.py", "the second start of a team is another one")
def _other_start() -> Sequence[Replacement]:
    first, second = START_OFFSETS_CYCLES
    other = PricingWindow(starts=(first, second[::-1]))
    return [(team_cost_model, "PricingWindow", lambda: other)]


@_harmless("arch/pricing/team_cost_model.py", "the mean over the starts of a team is rounded down")
def _rounded_down() -> Sequence[Replacement]:
    right = team_cost_model.mean_cost

    def other(costs: Sequence[CoreCost]) -> CoreCost:
        cost = right(costs)
        lost = sum(cycles for each in costs for _, cycles in each.stalls) // len(costs)
        spare = sum(cycles for _, cycles in cost.stalls) - lost
        if spare <= 0 or not cost.stalls or cost.stalls[0][1] < spare:
            return cost
        (word, cycles), *others = cost.stalls
        return CoreCost(cost.cycles - spare, cost.instructions, ((word, cycles - spare), *others))

    return [(team_cost_model, "mean_cost", other)]


@_harmless("scheduler/tiles/l1_layout.py", "buffers of an op lie 1 KiB higher in L1")
def _moved() -> Sequence[Replacement]:
    # Whole turns of the banks.
    return around(L1Layout, "address", lambda right, *args: right(*args) + 1024)


@_harmless("scheduler/programs/op_loop.py", "the outputs of a tile are pushed in the opposite order")
def _reversed_stores() -> Sequence[Replacement]:
    def other(right: Any, self: OpLoop, tile: int, task: Any) -> None:
        right(self, tile, task.but(outputs=task.outputs[::-1]))

    return around(OpLoop, "_store", other)
