# SPDX-License-Identifier: Apache-2.0
"""What the kernels of a run would take without some stalls, with balanced rows, or made faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from arch.pricing.cost_model import CoreCost, CostModel, TeamCost, Traffic
from arch.spec.isa import TeamWork
from traces.critical.activities import Activity, Graph, durations
from traces.events import COMPUTE

FASTER = 0.8
"""Cycles of a kernel that is 20 % faster, of those it takes."""

Change = Callable[[TeamWork, TeamCost], TeamCost]


class Repriced:
    """A cost model whose prices are changed."""

    def __init__(self, own: CostModel, change: Change) -> None:
        self._own, self._change = own, change

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        """The price, changed."""
        return self._change(work, self._own.price(work, traffic))

    def least_cycles(self, work: TeamWork) -> int:
        """Nothing is known."""
        return 0


def lost_cycles(activity: Activity, word: str) -> int:
    """What a share of a kernel loses to a stall word."""
    return sum(cycles for lost, cycles in activity.stalls if lost == word)


def without(word: str, graph: Graph) -> list[int]:
    """What all activities take without a stall word: what kernels lose to it, and waits of core 0."""
    return shortened(word, lambda _: 0.0, graph)


def shortened(word: str, factor: Callable[[Activity], float], graph: Graph) -> list[int]:
    """What all activities take when what each loses to a stall word takes `factor` of what it took."""
    lost = (item.cycles if item.kind == word else lost_cycles(item, word) for item in graph.activities)
    return [
        item.cycles - (round((1 - factor(item)) * cycles) if cycles else 0)
        for item, cycles in zip(graph.activities, lost, strict=True)
    ]


def largest_kernel(graphs: Iterable[tuple[Graph, int]]) -> str:
    """The kernel that takes the most core-cycles of graphs that are carried out so many times."""
    taken: Counter[str] = Counter()
    for graph, times in graphs:
        for activity in graph.activities:
            if activity.kind == COMPUTE:
                taken[activity.work.what] += activity.cycles * times
    return taken.most_common(1)[0][0]


def faster(graph: Graph, kernel: str) -> list[int]:
    """What all activities take when a kernel is faster."""
    return [
        round(item.cycles * (FASTER if item.kind == COMPUTE and item.work.what == kernel else 1))
        for item in graph.activities
    ]


def with_faster(kernel: str) -> Change:
    """The same of prices."""

    def change(work: TeamWork, cost: TeamCost) -> TeamCost:
        if work.kernel != kernel:
            return cost
        return _with_cycles(cost, [round(core.cycles * FASTER) for core in cost.cores])

    return change


def balanced(graph: Graph, cores: int) -> list[int]:
    """What all activities take when the shares of every forked kernel are spread evenly over `cores`."""
    cycles = durations(graph)
    for numbers in graph.teams:
        mean = -(-sum(cycles[number] for number in numbers) // cores)
        for number in numbers:
            cycles[number] = mean
    return cycles


def with_balanced(cores: int) -> Change:
    """The same of prices; what core 0 executes alone stays. A price lists all cores that may be forked."""

    def change(work: TeamWork, cost: TeamCost) -> TeamCost:
        if len(work.cores) == 1:
            return cost
        mean = -(-sum(core.cycles for core in cost.cores) // cores)
        return _with_cycles(cost, [mean if core.cycles else 0 for core in cost.cores])

    return change


def _with_cycles(cost: TeamCost, cycles: Iterable[int]) -> TeamCost:
    cores = zip(cost.cores, cycles, strict=True)
    return TeamCost(tuple(CoreCost(taken, core.instructions, core.stalls) for core, taken in cores), cost.dma)
