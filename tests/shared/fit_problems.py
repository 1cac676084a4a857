# SPDX-License-Identifier: Apache-2.0
"""Random problems of `scheduler.fit`, and the best decisions about a small one by looking at all of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import chain, combinations, product
from typing import Any

from configs.values import replace
from scheduler.fit.problem import (
    NEVER,
    NO_GROUP,
    WHOLE,
    Buffer,
    Decisions,
    NotAllowedError,
    Problem,
    Stream,
    Task,
    evaluate,
)


def random_problem(seed: int, ops: int) -> Problem:
    """Half of the tasks forward, with a residual now and then, half backward; weights in some of them."""
    generator = random.Random(seed)
    layers = ops // 2
    buffers = [Buffer("input", 4 * generator.randint(4, 40), given=True, movable=False)]
    tasks: list[Task] = []
    outputs, reads = [0], []
    for layer in range(layers):
        size = 4 * generator.randint(4, 60)
        sources = [outputs[-1]]
        if layer > 1 and generator.random() < 0.3:
            sources.append(generator.choice(outputs[1:-1] or outputs))
        weight = []
        if generator.random() < 0.3:
            buffers.append(_buffer(generator, f"w{layer}", given=True, kept=True))
            weight = [len(buffers) - 1]
        cycles = generator.randint(10, 200)
        movable = generator.random() < 0.6
        buffers.append(Buffer(f"y{layer}", size, copy_cycles=size // 3 + 20, movable=movable))
        made = len(buffers) - 1
        takes = tuple(b for b in sources if b and buffers[b].size_bytes == size and generator.random() < 0.5)
        repeated = layer if layer < layers - 1 and generator.random() < 0.8 else NO_GROUP
        tasks.append(
            Task(f"f{layer}", cycles, (*sources, *weight), (made,), repeated, takes=takes, scratch_bytes=4)
        )
        outputs.append(made)
        reads.append((sources, weight))
    gradient: int | None = None
    for layer in reversed(range(layers)):
        sources, weight = reads[layer]
        needed = [b for b in sources if generator.random() < 0.8]
        needed += [outputs[layer + 1]] if generator.random() < 0.4 else []
        buffers.append(Buffer(f"g{layer}", 4 * generator.randint(4, 40), copy_cycles=30, movable=False))
        incoming = [gradient] if gradient is not None else [outputs[-1]]
        written = [len(buffers) - 1, *(weight if generator.random() < 0.5 else [])]
        gradient = len(buffers) - 1
        uses = tuple(dict.fromkeys((*incoming, *needed, *weight)))
        tasks.append(
            Task(f"b{layer}", generator.randint(10, 200), uses, tuple(written), redirects=layer < layers - 1)
        )
    whole = Problem(
        tuple(tasks), tuple(buffers), tuple(f"f{layer}" for layer in range(layers)), 1 << 30, 1 << 30
    )
    share = generator.uniform(0.55, 0.95)
    peak = evaluate(whole, Decisions()).peak_bytes
    return Problem(whole.tasks, whole.buffers, whole.groups, int(share * peak), 1 << 30)


def with_costs(problem: Problem, seed: int) -> Problem:
    """The problem where time is the smaller part of what is paid, with a deadline that now and then binds."""
    generator = random.Random(seed)
    return replace(
        problem,
        tasks=tuple(replace(task, cost=generator.randint(0, 2000)) for task in problem.tasks),
        buffers=tuple(replace(item, copy_cost=generator.randint(0, 900)) for item in problem.buffers),
        cycle_cost=7,
        set_up_cycles=11,
        most_cycles=round(problem.cycles * generator.uniform(1.0, 1.5)),
    )


def with_streams(problem: Problem, seed: int, tasks: int = 3) -> Problem:
    """The problem in which so many tasks may stream what is movable of them, each in two ways."""
    generator = random.Random(seed)
    able = [number for number, task in enumerate(problem.tasks) if _movable(problem, task.uses)]
    changed = list(problem.tasks)
    for number in generator.sample(able, min(tasks, len(able))):
        task = changed[number]
        some = generator.choice(list(subsets(_movable(problem, task.uses)))[1:])
        changed[number] = replace(task, streams=tuple(_stream(generator, task, some) for _ in range(2)))
    return replace(problem, tasks=tuple(changed), l2_bytes=problem.l2_bytes * generator.randint(6, 10) // 10)


def _stream(generator: random.Random, task: Task, buffers: tuple[int, ...]) -> Stream:
    bus_cycles = generator.randint(5, 150)
    cycles = max(task.cycles, bus_cycles) + generator.randint(0, 60)
    return Stream(frozenset(buffers), 4 * generator.randint(1, 20), cycles, 0, bus_cycles)


def _movable(problem: Problem, buffers: Iterable[int]) -> list[int]:
    return [number for number in buffers if problem.buffers[number].movable]


def _buffer(generator: random.Random, name: str, **more: Any) -> Buffer:
    size = 4 * generator.randint(4, 40)
    return Buffer(name, size, copy_cycles=size // 3 + 20, movable=generator.random() < 0.5, **more)


def best_of_all(problem: Problem) -> tuple[int, Decisions] | None:
    """Least cost of all decisions that fit; None if none does."""
    groups = [task.group for task in problem.tasks if task.group != NO_GROUP]
    movable = [number for number in _movable(problem, range(len(problem.buffers))) if number in problem.uses]
    best: tuple[int, Decisions] | None = None
    for streams, again, moved in product(_streams(problem), subsets(groups), subsets(movable)):
        plain = Decisions(frozenset(again), frozenset(moved), streams=streams)
        for late, early in _exposed(problem, plain):
            decisions = replace(plain, late=late, early=early)
            try:
                found = evaluate(problem, decisions)
            except NotAllowedError:
                break
            fits = found.keeps(problem)
            if fits and (best is None or found.cost < best[0]):
                best = found.cost, decisions
            if not (late or early) and problem.cycle_cost == 1 and (fits or (best and found.cost >= best[0])):
                break  # the first has no copy exposed, and to expose one gains no cycles
    return best


def subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    """All of them, the empty one first."""
    return chain.from_iterable(combinations(items, count) for count in range(len(items) + 1))


def _streams(problem: Problem) -> list[frozenset[tuple[int, int]]]:
    """Ways of all tasks such that the ones that stream a buffer are one of the sets that may."""
    ways = [range(WHOLE, len(task.streams)) for task in problem.tasks]
    found = []
    for some in product(*ways):
        streams = frozenset((task, way) for task, way in enumerate(some) if way != WHOLE)
        decisions = Decisions(streams=streams)
        if all(
            decisions.streaming(problem, buffer) in problem.patterns(buffer)
            for buffer in range(len(problem.buffers))
        ):
            found.append(streams)
    return found


def _exposed(problem: Problem, decisions: Decisions) -> Iterator[tuple[frozenset[Any], frozenset[Any]]]:
    runs = [
        (buffer, run)
        for buffer in decisions.moved
        for run in problem.visits(buffer, decisions.streaming(problem, buffer)).runs
    ]
    loads = [(buffer, run.first) for buffer, run in runs if run.first > 0]
    stores = [(buffer, run.last) for buffer, run in runs if run.wrote == run.last != NEVER]
    for late in subsets(list(range(len(loads)))):
        for early in subsets(list(range(len(stores)))):
            yield frozenset(loads[i] for i in late), frozenset(stores[i] for i in early)
