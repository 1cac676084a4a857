# SPDX-License-Identifier: Apache-2.0
"""A training graph as a problem: lives as the memory plan has them, cycles of ops as they were simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from arch.spec.timing import SocTiming
from scheduler.addresses.allocation import align
from scheduler.addresses.lifetimes import Life, overwritable, storage_lives
from scheduler.fit.prices import Price, Prices
from scheduler.fit.problem import NO_GROUP, Buffer, Decisions, Problem, Task
from scheduler.fit.streams import SMALL, Streams
from scheduler.memory.l2_staging import Stay
from scheduler.memory.memory_plan import MemoryPlan
from scheduler.schedule import Schedule
from scheduler.tiles.l2_slots import NOT_STREAMED, OpStream
from scheduler.tiles.udma_cost import UdmaCost
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.primitives.definition import is_forward
from trainlib.training.recompute import AGAIN


def problem_of(
    graph: TrainingGraph,
    prices: Prices,
    timing: SocTiming,
    streams: Streams | None = None,
    repeatable: frozenset[str] = frozenset(),
    room_bytes: int = 0,
    wanted: frozenset[str] = frozenset(),
) -> Problem:
    """The problem of a graph in which nothing is made again yet, by the `prices` of its ops and copies.

    Of the layers `repeatable` forward ops may be done again. Ops whose own tensors do not fit L2 together, or
    `room_bytes` of it, stream what `streams` chooses, and storages that are `wanted` are streamed by all ops.
    """
    lives = storage_lives(graph)
    numbers = {name: number for number, name in enumerate(lives)}
    l2_bytes, l3_bytes = timing.l2.size_bytes, timing.l3.size_bytes
    udma = UdmaCost(timing)
    priced: dict[int, tuple[OpStream, Price]] = {}
    if l3_bytes and streams is not None:
        found = [streams.of_op(number, room_bytes or l2_bytes, wanted) for number in range(len(graph.ops))]
        priced = {number: one for number, one in enumerate(found) if one is not None}
    forced: dict[str, list[int]] = {}
    for number, (stream, _) in priced.items():
        for name in stream.storages:
            forced.setdefault(name, []).append(number)
    buffers = tuple(
        Buffer(
            name,
            align(life.size_bytes),
            life.given or _streamed_first(life, forced.get(name, ())),
            life.kept or _streamed_last(life, forced.get(name, ())),
            udma.lines_cycles([life.size_bytes]) if life.size_bytes else 0,
            prices.copy_cost(life.size_bytes),
            l3_bytes > 0 and life.size_bytes >= SMALL * l2_bytes,
            name in forced,
        )
        for name, life in lives.items()
    )
    groups = sorted(repeatable)
    losses = [number for number, op in enumerate(graph.ops) if op.step == "LOSS"]
    begins = losses[0] if losses else len(graph.ops)
    tasks = []
    for number, op in enumerate(graph.ops):
        stream, price = priced.get(number, (NOT_STREAMED, prices.of(op.name)))
        group = groups.index(owner_of(op)) if is_forward(op.step) and owner_of(op) in repeatable else NO_GROUP

        def seen(names: tuple[str, ...], stream: OpStream = stream) -> tuple[int, ...]:
            storages = dict.fromkeys(graph.storage_of(name) for name in names)
            return tuple(numbers[name] for name in storages if name not in stream.storages)

        busy = sum(udma.lines_cycles([lives[name].size_bytes]) for name in stream.storages)
        tasks.append(
            Task(
                op.name,
                max(price.cycles, busy),
                seen(op.inputs),
                seen(op.outputs),
                group,
                number > begins and not is_forward(op.step) and op.step != "LOSS",
                tuple(numbers[name] for name in overwritable(graph, lives, op) if not stream.storages),
                _scratch_bytes(graph, op),
                stream.window_bytes,
                price.cost,
            )
        )
    used = {buffer for task in tasks for buffer in task.uses}
    always = {number for number, item in enumerate(buffers) if item.moved and number not in used}
    l3_bytes -= sum(buffers[number].size_bytes for number in always)
    streamed = {buffers[number].name for number in always} | wanted
    buffers = tuple(
        replace(item, size_bytes=0) if number in always else item for number, item in enumerate(buffers)
    )
    return Problem(
        tuple(tasks),
        buffers,
        tuple(groups),
        l2_bytes,
        l3_bytes,
        prices.cycle_cost,
        set_up_cycles=udma.set_up_cycles,
        streamed=tuple(sorted(streamed)),
    )


def _streamed_first(life: Life, streamed: Sequence[int]) -> bool:
    """Whether it is in L3 before the first op that uses it whole."""
    return any(number < min(set(life.uses).difference(streamed), default=0) for number in streamed)


def _streamed_last(life: Life, streamed: Sequence[int]) -> bool:
    """Whether it has to be in L3 behind the last op that uses it whole."""
    return any(number > max(set(life.uses).difference(streamed), default=number) for number in streamed)


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
    of_op, cost = [], 0
    for number, item in enumerate(schedule.ops):
        stream = plan.stream(number)
        streams = bool(stream.storages)
        name = item.op.name.replace(f".{AGAIN}.", ".")
        price = prices.streamed(graph, item.op, stream) if streams else prices.of(name)
        of_op.append(price.cycles)
        cost += price.cost
    hidden = [0] * (len(of_op) + 1)
    exposed = 0
    udma = UdmaCost(timing)
    for stay in plan.stays:
        copy_cycles = udma.lines_cycles([stay.size_bytes])
        cost += (stay.loads + (stay.written_op >= 0)) * prices.copy_cost(stay.size_bytes)
        bus_cycles = copy_cycles - udma.set_up_cycles
        if stay.loads and stay.first_op < stay.needed_op:
            hidden[stay.first_op] += bus_cycles
            exposed += udma.set_up_cycles
        elif stay.loads:
            exposed += copy_cycles
        if stay.last_op > stay.written_op >= 0:
            hidden[stay.written_op + 1] += bus_cycles
            exposed += udma.set_up_cycles
        elif stay.written_op >= 0:
            exposed += copy_cycles
    waits = sum(max(0, busy - own) for busy, own in zip(hidden, [*of_op, 0], strict=True))
    cycles = sum(of_op) + exposed + waits
    return cycles, cost + prices.cycle_cost * cycles


def decisions_of(problem: Problem, graph: TrainingGraph, plan: MemoryPlan) -> Decisions:
    """What the planner has decided by itself for the graph of a problem, as far as it is no streaming."""
    moved, late, early = set(), set(), set()
    stays: dict[str, list[Stay]] = {}
    for stay in plan.stays:
        stays.setdefault(stay.tensor, []).append(stay)
    for number, buffer in enumerate(problem.buffers):
        owner = plan.owners[buffer.name]
        if plan.homes[owner].level != "l3" or number not in problem.runs or not buffer.movable:
            continue
        moved.add(number)
        there = {op for stay in stays.get(owner, ()) for op in range(stay.first_op, stay.last_op + 1)}
        for run in problem.runs[number]:
            late |= {(number, run.first)} if run.first - 1 not in there else set()
            early |= {(number, run.last)} if run.last + 1 not in there else set()
    return Decisions(frozenset(), frozenset(moved), frozenset(late), frozenset(early))
