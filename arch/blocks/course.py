# SPDX-License-Identifier: Apache-2.0
"""How the commands of a transfer go through an engine nobody holds up: worked out at once, kept by shape.

As long as no kernel runs nothing can change it. So the commands are not simulated one by one; they are begun
and ended, in order, when somebody looks (`DmaChannel.advance`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from arch.blocks.bursts import (
    BurstRules,
    Bursts,
    EngineState,
    Link,
    Pace,
    bursts_of,
    run_command,
    shape_of,
)
from arch.blocks.order import Transfer
from arch.memories.effects import OpenAccess
from arch.spec.program import Command

Outcome = tuple[int, EngineState]
"""(end, state left behind) of a command at full pace, counted from the cycle in which it may begin."""

Run = Callable[[Bursts, EngineState], Outcome]
"""What comes of a command that finds the engine in a state."""


class Step(NamedTuple):
    """One command: when it is accepted, may begin, begins and ends, and when it is all cut into bursts."""

    accepted: int
    ready: int
    start: int
    end: int
    cut: int
    bursts: Bursts
    before: EngineState
    outcome: Outcome


class Course(NamedTuple):
    """The commands of a transfer, in cycles from the begin of its programming.

    The issuing core has pushed the last one at `pushed`; where that one is accepted later it waits in the
    core's queue till then.
    """

    pushed: int
    steps: tuple[Step, ...]


class Rules(NamedTuple):
    """What commands meet in front of an engine: commands the global queue holds until they are cut, cycles
    from being accepted to the first request, words of L1 per cycle."""

    room: int
    latency_cycles: int
    words_per_cycle: int


class Start(NamedTuple):
    """How a transfer finds the engine, in cycles from the begin of its programming, what is past as 0."""

    state: EngineState
    free: int
    """When the last command before it ends."""
    cuts: tuple[int, ...]
    """When those of them in the global queue will have been cut."""
    slot: int
    """When the queue of the core is empty."""


def course_of(
    commands: Sequence[Bursts],
    cycles: Sequence[int],
    start: Start,
    rules: Rules,
    run: Run,
) -> Course:
    """The course of `commands`, each programmed in its entry of `cycles`, from a core with a queue of one."""
    pushed = origin = 0
    state, free, cuts, accepted = start.state, start.free, deque(start.cuts), start.slot
    steps = []
    for bursts, taken_cycles in zip(commands, cycles, strict=True):
        pushed = max(pushed + taken_cycles, accepted)
        while cuts and cuts[0] <= pushed:
            cuts.popleft()
        surplus = len(cuts) - rules.room
        accepted = pushed if surplus < 0 else cuts[surplus]
        ready = accepted + rules.latency_cycles
        before = state.seen_from(ready - origin, rules.words_per_cycle)
        outcome = run(bursts, before)
        state, origin = outcome[1], ready
        cut = state.cut + ready
        cuts.append(cut)
        begin = max(ready, free)
        free = max(outcome[0] + ready, begin + 1)
        steps.append(Step(accepted, ready, begin, free, cut, bursts, before, outcome))
    return Course(pushed, tuple(steps))


MOST_STEPS = 1 << 16
"""Commands of all courses that are kept for engines that are alike."""

_MAX_MEMOISED = 4096
"""Results of single commands that are kept for them."""


class Kept:
    """What came of commands, for all engines alike of a process: a search makes many SoCs that are alike.

    `links` are those to each memory by its level, in this direction.
    """

    def __init__(self, rules: BurstRules, in_front: Rules, links: Mapping[str, Link], *, to_l1: bool) -> None:
        self._rules = rules
        self._in_front = in_front
        self._links = links
        self._to_l1 = to_l1
        self._results: dict[tuple[object, ...], Outcome] = {}
        self._courses: dict[tuple[object, ...], Course] = {}
        self._steps = 0
        self._shapes: dict[tuple[int, ...], Bursts] = {}
        """By what they depend on."""
        self._bursts: dict[tuple[tuple[int, int], ...], Bursts] = {}

    def bursts(self, commands: Sequence[Command]) -> tuple[Bursts, ...]:
        """Those of each command."""
        rules, shapes = self._rules, self._shapes
        result = []
        for command in commands:
            shape = shape_of(command, rules)
            bursts = shapes.get(shape)
            if bursts is None:
                if len(shapes) >= _MAX_MEMOISED:
                    shapes.clear()
                    self._bursts.clear()
                sizes = tuple(bursts_of(command, rules))
                bursts = shapes[shape] = self._bursts.setdefault(sizes, Bursts(sizes))
            result.append(bursts)
        return tuple(result)

    def result(self, bursts: Bursts, level: str, before: EngineState, pace: Pace | None) -> Outcome:
        """What comes of a command at a pace of L1."""
        key = (bursts, level, before, pace)
        result = self._results.get(key)
        if result is None:
            if len(self._results) >= _MAX_MEMOISED:
                self._results.clear()
            result = run_command(
                bursts.sizes, before, self._rules, self._links[level], to_l1=self._to_l1, pace=pace
            )
            self._results[key] = result
        return result

    def course(self, commands: tuple[Bursts, ...], cycles: Sequence[int], start: Start, level: str) -> Course:
        """The course of a transfer; of `cycles` all but the first are alike."""
        key = (commands, cycles[0], cycles[-1], start, level)
        course = self._courses.get(key)
        if course is None:
            self._steps += len(commands)
            if self._steps > MOST_STEPS:
                self._courses.clear()
                self._steps = len(commands)
            run = partial(self._at_full_pace, level)
            course = self._courses[key] = course_of(commands, cycles, start, self._in_front, run)
        return course

    def _at_full_pace(self, level: str, bursts: Bursts, before: EngineState) -> Outcome:
        return self.result(bursts, level, before, None)


@lru_cache(8)
def course_state(
    rules: BurstRules, in_front: Rules, links: tuple[tuple[str, Link], ...], to_l1: bool
) -> Kept:
    """That of engines that are alike: nothing else decides."""
    return Kept(rules, in_front, dict(links), to_l1=to_l1)


class Flight:
    """A transfer on its course: its commands, and how far it has come.

    Its programming begins at `begin_cycles`, and it was told so at `called_cycles`.
    """

    __slots__ = ("access", "begin_cycles", "called_cycles", "commands", "course", "position", "transfer")

    def __init__(
        self, course: Course, commands: Sequence[Command], transfer: Transfer, begin: int, called: int
    ) -> None:
        self.course = course
        self.commands = commands
        self.transfer = transfer
        self.begin_cycles = begin
        self.called_cycles = called
        self.position = 0
        """Commands that have ended."""
        self.access: OpenAccess | None = None
        """That of the command under way."""
