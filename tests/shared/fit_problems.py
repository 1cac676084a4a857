# SPDX-License-Identifier: Apache-2.0
"""Random problems of `scheduler.fit`, and the best decisions about a small one by looking at all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations, product
from typing import Any

from scheduler.fit.problem import NEVER, NO_GROUP, Buffer, Decisions, NotAllowedError, Problem, Task, evaluate


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


def _buffer(generator: random.Random, name: str, **more: Any) -> Buffer:
    size = 4 * generator.randint(4, 40)
    return Buffer(name, size, copy_cycles=size // 3 + 20, movable=generator.random() < 0.5, **more)


def best_of_all(problem: Problem) -> tuple[int, Decisions] | None:
    """Least cost of all decisions that fit; None if none does."""
    groups = [task.group for task in problem.tasks if task.group != NO_GROUP]
    movable = [
        number for number, item in enumerate(problem.buffers) if item.movable and number in problem.uses
    ]
    best: tuple[int, Decisions] | None = None
    for again, moved in product(subsets(groups), subsets(movable)):
        for late, early in _exposed(problem, moved):
            decisions = Decisions(frozenset(again), frozenset(moved), late, early)
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


def _exposed(problem: Problem, moved: tuple[int, ...]) -> Iterator[tuple[frozenset[Any], frozenset[Any]]]:
    loads = [(b, run.first) for b in moved for run in problem.runs[b] if run.first > 0]
    stores = [(b, run.last) for b in moved for run in problem.runs[b] if run.wrote == run.last != NEVER]
    for late in subsets(list(range(len(loads)))):
        for early in subsets(list(range(len(stores)))):
            yield frozenset(loads[i] for i in late), frozenset(stores[i] for i in early)
