# SPDX-License-Identifier: Apache-2.0
"""How much of a nest a window executes, and what a nest costs whatever anybody waits for."""

from __future__ import annotations

from math import prod

from arch.pricing.code_fetch import icache_stall_cycles
from arch.pricing.scoreboard import BRANCH_STALL, ICACHE, STALL_WORDS, CodeBlock, CoreNest, LoopNode
from arch.pricing.window_program import WindowProgram
from arch.spec.timing import SocTiming
from configs.values import Struct

BUDGET_INSTRUCTIONS = 12_000_000
"""Instructions of a team that are executed, not extrapolated, per start.

Every fp32 matmul whose operands fit an L1 of 256 KiB is executed whole. Longer ones stay within 2 % of the
whole, also where rows of a power of two keep all cores in step: 103 of 104 random cases do. The last one is
7 % off, and smaller budgets are more often: such teams change late from one pattern of conflicts to another.
"""

START_OFFSETS_CYCLES = (
    (0,) * 16,
    (0, 2, 1, 3, 1, 3, 0, 2, 2, 0, 3, 1, 3, 1, 2, 0),
)
"""Starts a team is priced from, per core after its start by the fork. In which phase the cores really meet is
not known (refills and polling before the kernel decide it) and matters: two calls of one warm kernel measure
several per cent apart. So the cost is the mean over the fork's own skew and one other."""


class PricingWindow(Struct, frozen=True):
    """How much of a nest is executed: at most `budget_instructions` of a team, the same part
    for every core.

    From the outside inwards, a loop that does not fit its part of the budget executes as many iterations as
    fit, but at least `least_iterations`; the first half of them is warm-up, the rest is measured. Only then
    is the body cut in turn. An innermost loop executes whole turns of the banks, two at least.
    """

    budget_instructions: int = BUDGET_INSTRUCTIONS
    least_iterations: int = 4
    starts: tuple[tuple[int, ...], ...] = START_OFFSETS_CYCLES


Plan = list[tuple[int, int, int]]
"""Per loop: iterations of the warm-up and of the measured segment (0: all is executed), and all trips."""


def plan_of(nest: CoreNest, window: PricingWindow, turn: int, cores: int) -> Plan:
    """What of every loop of `nest` is executed, in a team of `cores`; `turn` is the number of banks."""
    budget_instructions = window.budget_instructions / cores
    trips = nest.trips
    plan = [(count, 0, count) for count in trips]
    if min(trips, default=1) > 0 and nest.shape.instructions * prod(trips) <= budget_instructions:
        return plan
    sizes: dict[int, int] = {}

    def size(nodes: tuple[CodeBlock | LoopNode, ...]) -> int:
        """Instructions of one execution; fills `sizes` with those of one iteration of every loop."""
        total = 0
        for node in nodes:
            if isinstance(node, CodeBlock):
                total += len(node.steps)
            else:
                sizes[node.index] = size(node.body)
                total += sizes[node.index] * trips[node.index]
        return total

    def cut(nodes: tuple[CodeBlock | LoopNode, ...], budget: float) -> None:
        loops = [node for node in nodes if isinstance(node, LoopNode) and trips[node.index] > 0]
        total = sum(sizes[node.index] * trips[node.index] for node in loops)
        if total <= budget:
            return
        for node in loops:
            count, body = trips[node.index], max(1, sizes[node.index])
            part = budget * body * count / total
            least, grain = window.least_iterations, 1
            if all(isinstance(inner, CodeBlock) for inner in node.body):
                least, grain = 2 * turn, turn
            executed = max(least, int(part / body) // grain * grain)
            if executed < count:
                measured = executed - executed // (2 * grain) * grain
                plan[node.index] = (executed - measured, measured, count)
            cut(node.body, part / min(executed, count))

    if size(nest.shape.body) > budget_instructions:
        cut(nest.shape.body, budget_instructions)
    return plan


def fixed_cost(nest: CoreNest, program: WindowProgram, timing: SocTiming) -> tuple[int, tuple[int, ...]]:
    """Instructions of `nest`, and its stalls (in the order of `STALL_WORDS`) that no waiting can change."""
    stalls = [0] * len(STALL_WORDS)
    instructions = 0
    branch = timing.core.branch_taken_stall_cycles
    trips = nest.trips
    for block in program.static:
        executions = _executions(trips, block.path)
        instructions += block.instructions * executions
        for cause, cycles in block.stalls:
            stalls[cause] += cycles * executions
        for numerator, denominator in block.fractions:
            stalls[BRANCH_STALL] += executions * numerator // denominator * branch
    for loop in nest.shape.loops:
        if loop.closing and trips[loop.index] > 0:
            stalls[BRANCH_STALL] += _executions(trips, loop.path) * (trips[loop.index] - 1) * branch
    stalls[ICACHE] = icache_stall_cycles(nest, timing.icache)
    return instructions, tuple(stalls)


def _executions(trips: tuple[int, ...], path: tuple[int, ...]) -> int:
    executions = 1
    for loop in path:
        executions *= max(0, trips[loop])
    return executions
