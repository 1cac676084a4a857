# SPDX-License-Identifier: Apache-2.0
"""A training graph as a problem: lives as the memory plan has them, cycles of ops as they were simulated."""

from __future__ import annotations

from collections.abc import Iterable

from arch.spec.timing import SocTiming
from configs.values import replace
from scheduler.addresses.allocation import align
from scheduler.addresses.lifetimes import overwritable, storage_lives
from scheduler.fit.prices import Prices
from scheduler.fit.problem import NO_GROUP, Buffer, Decisions, Problem, Task, timeline
from scheduler.fit.streams import Streams, bus_cycles, stream_of
from scheduler.memory.memory_plan import MemoryPlan
from scheduler.planned import Schedule
from scheduler.tiles.transfer_cost import UdmaCost
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.primitives.definition import is_forward
from trainlib.training.recompute import AGAIN

SMALL = 1 / 400
"""Share of L2 below which a buffer stays there: to move it saves nothing and makes the search longer."""


def problem_of(
    graph: TrainingGraph,
    prices: Prices,
    timing: SocTiming,
    streams: Streams | None = None,
    repeatable: frozenset[str] = frozenset(),
) -> Problem:
    """The problem of a graph in which nothing is made again yet, by the `prices` of its ops and copies.

    Of the layers `repeatable` forward ops may be done again. With an L3 ops may stream as `streams` says.
    """
    lives = storage_lives(graph)
    numbers = {name: number for number, name in enumerate(lives)}
    l2_bytes, l3_bytes = timing.l2.size_bytes, timing.l3.size_bytes
    udma = UdmaCost(timing)
    buffers = tuple(
        Buffer(
            name,
            align(life.size_bytes),
            life.given,
            life.kept,
            udma.lines_cycles([life.size_bytes]) if life.size_bytes else 0,
            prices.copy_cost(life.size_bytes),
            l3_bytes > 0 and life.size_bytes >= SMALL * l2_bytes,
        )
        for name, life in lives.items()
    )
    movable = frozenset(item.name for item in buffers if item.movable)
    groups = sorted(repeatable)
    losses = [number for number, op in enumerate(graph.ops) if op.step == "LOSS"]
    begins = losses[0] if losses else len(graph.ops)

    def seen(names: Iterable[str]) -> tuple[int, ...]:
        return tuple(numbers[name] for name in dict.fromkeys(graph.storage_of(name) for name in names))

    tasks = []
    for number, op in enumerate(graph.ops):
        price = prices.of(op.name)
        group = groups.index(owner_of(op)) if is_forward(op.step) and owner_of(op) in repeatable else NO_GROUP
        ways = streams.ways(number, movable) if streams is not None and movable else ()
        tasks.append(
            Task(
                op.name,
                price.cycles,
                seen(op.inputs),
                seen(op.outputs),
                group,
                number > begins and not is_forward(op.step) and op.step != "LOSS",
                tuple(numbers[name] for name in overwritable(graph, lives, op)),
                _scratch_bytes(graph, op),
                price.cost,
                tuple(stream_of(way, numbers) for way in ways),
            )
        )
    return Problem(
        tuple(tasks),
        buffers,
        tuple(groups),
        l2_bytes,
        l3_bytes,
        prices.cycle_cost,
        set_up_cycles=udma.set_up_cycles,
    )


def owner_of(op: Op) -> str:
    """The layer of the model file that an op is of: what was inserted for one, or done again, has a dot."""
    return op.layer.partition(".")[0]


def _scratch_bytes(graph: TrainingGraph, op: Op) -> int:
    """Bytes an op needs for results that are aliases of given tensors, when it is done again."""
    return sum(
        align(graph.tensors[name].size_bytes)
        for name in op.outputs
        if graph.tensors[name].alias_of is not None
    )


def predicted(schedule: Schedule, prices: Prices, timing: SocTiming) -> tuple[int, int]:
    """Cycles and cost of all ops of a schedule: of ops by their prices, again or not, and of copies."""
    plan, graph = schedule.plan, schedule.graph
    free_cycles, cycles, cost = [], 0, 0
    for number, item in enumerate(schedule.ops):
        stream = plan.stream(number)
        name = item.op.name.replace(f".{AGAIN}.", ".")
        price = prices.streamed(graph, item.op, stream) if stream.storages else prices.of(name)
        cycles += price.cycles
        free_cycles.append(max(0, price.cycles - bus_cycles(graph, item.op, stream, timing)))
        cost += price.cost
    hidden = [0] * (len(free_cycles) + 1)
    exposed = 0
    udma = UdmaCost(timing)
    for stay in plan.stays:
        come, gone = ([size_bytes for _, size_bytes in runs] for runs in (stay.runs_in, stay.runs_out))
        cost += sum(map(prices.copy_cost, come + gone))
        for sizes_bytes, op, is_hidden in (
            (come, stay.first_op, stay.first_op < stay.needed_op),
            (gone, stay.written_op + 1, stay.last_op > stay.written_op),
        ):
            copy_cycles = udma.lines_cycles(sizes_bytes) if sizes_bytes else 0
            seen_cycles = min(copy_cycles, udma.set_up_cycles) if is_hidden else copy_cycles
            hidden[op] += copy_cycles - seen_cycles
            exposed += seen_cycles
    waits = sum(max(0, busy - free) for busy, free in zip(hidden, [*free_cycles, 0], strict=True))
    cycles += exposed + waits
    return cycles, cost + prices.cycle_cost * cycles


def decisions_of(problem: Problem, graph: TrainingGraph, plan: MemoryPlan) -> Decisions:
    """What the planner has decided by itself for the graph of a problem, as far as the problem has it."""
    owners = [plan.owners[buffer.name] for buffer in problem.buffers]
    moved = frozenset(
        number
        for number, buffer in enumerate(problem.buffers)
        if buffer.movable and number in problem.uses and plan.homes[owners[number]].level == "l3"
    )
    streams = set()
    for number, task in enumerate(problem.tasks):
        storages = plan.stream(number).storages
        streamed = frozenset(buffer for buffer in task.uses if owners[buffer] in storages)
        alike = [place for place, stream in enumerate(task.streams) if stream.buffers == streamed]
        streams |= {(number, place) for place in alike[:1]}
    return as_planned(problem, Decisions(moved=moved, streams=frozenset(streams)), plan)


def as_planned(problem: Problem, decisions: Decisions, plan: MemoryPlan) -> Decisions:
    """The decisions with the copies exposed that a plan with all the others has exposed.

    It hides what it has room for, also where that saves nothing.
    """
    entries = timeline(problem, decisions.again)
    turns = {entry.task: turn for turn, entry in enumerate(entries) if not entry.again}
    there: dict[str, set[int]] = {}
    for stay in plan.stays:
        there.setdefault(stay.tensor, set()).update(range(stay.first_op, stay.last_op + 1))
    late, early = set(), set()
    for number in decisions.moved:
        held = there.get(plan.owners[problem.buffers[number].name], set())
        for run in problem.visits(number, decisions.streaming(problem, number)).runs:
            late |= {(number, run.first)} if turns[run.first] - 1 not in held else set()
            early |= {(number, run.last)} if turns[run.last] + 1 not in held else set()
    return replace(decisions, late=frozenset(late), early=frozenset(early))
