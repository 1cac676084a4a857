# SPDX-License-Identifier: Apache-2.0
"""The ops of some programs, each tuned by itself: equal ops once, however many graphs they stand in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from arch.pricing.code_caches import WARM
from arch.spec.timing import SocTiming
from configs.errors import InputError
from configs.values import replace
from scheduler.search.cache import ResultCache
from scheduler.search.driver import drive
from scheduler.search.progress import Meter, NoMeter
from scheduler.search.workers import Workers
from scheduler.tuner.objective import Objective
from scheduler.tuner.search_space import Cut, Question, SpaceRules
from scheduler.tuner.strategies import OpSearch, StrategyOptions, check_strategy
from scheduler.tuner.task import Task, task_of
from scheduler.tuner.tuned_schedule import OpChoice, op_choice
from trainlib.ir.graph import TrainingGraph

RepeatedGraphs = Sequence[tuple[TrainingGraph, int]]
"""The graphs one iteration consists of and how often each runs in it, the main one first."""


class OpTuner:
    """Searches ops on one SoC with the kernels of one codegen profile, and remembers what it found.

    `start` are candidates by op name that are looked at first, `code_start` is what the instruction caches
    hold when an op begins (`Question`). Raises `InputError` for an unknown strategy
    and for rules that leave no candidates.
    """

    def __init__(
        self,
        timing: SocTiming,
        codegen: str,
        workers: Workers,
        *,
        rules: SpaceRules | None = None,
        strategy: StrategyOptions | None = None,
        cache: ResultCache | None = None,
        meter: Meter | None = None,
        start: Mapping[str, Cut] | None = None,
        objective: Objective | None = None,
        code_start: str = WARM,
    ) -> None:
        self.strategy = strategy or StrategyOptions()
        check_strategy(self.strategy)
        self._rules = rules or SpaceRules()
        if self._rules.cuts < 0 or not self._rules.depths or min(self._rules.depths) < 1:
            raise InputError(
                f"the number of tilings is {self._rules.cuts}, but must be 0 or more",
                where="--tilings",
                cure="use --tilings 0 (all tilings), or --tilings 1 or more",
            )
        self.timing = timing
        self.codegen = codegen
        self.workers = workers
        self.cache = cache
        self._meter = meter or NoMeter()
        self._start = start or {}
        self._code_start = code_start
        self.objective = objective or Objective()
        self._searches: dict[str, OpSearch] = {}
        self.interrupted = False
        """Whether Ctrl-C ended a search; nothing more is searched then."""

    def search(self, alternatives: Iterable[RepeatedGraphs]) -> None:
        """Search all ops of these programs that have not been searched, first those of the first ones."""
        new: list[OpSearch] = []
        for programs in alternatives:
            tasks = _tasks(programs)
            starts: dict[str, list[Cut]] = {}
            for name, candidate in self._start.items():
                if name in tasks:
                    starts.setdefault(tasks[name].content, []).append(candidate)
            for task in tasks.values():
                if task.content not in self._searches:
                    question = Question(
                        task, self.timing, self.codegen, self._rules, self.objective, self._code_start
                    )
                    first = starts.get(task.content, ())
                    search = OpSearch(question, self.strategy, self.cache, self._meter, first)
                    self._searches[task.content] = search
                    new.append(search)
        if not self.interrupted:
            try:
                drive([search.steps() for search in new], self.workers)
            except KeyboardInterrupt:
                self.interrupted = True

    def choices(self, programs: RepeatedGraphs) -> tuple[OpChoice, ...]:
        """The choice of every op of programs that were searched; none for one of which nothing is known."""
        made = (_choice(name, self._searches[task.content]) for name, task in _tasks(programs).items())
        return tuple(choice for choice in made if choice is not None)

    def cost(self, programs: RepeatedGraphs) -> int | None:
        """Cycles (or what the objective counts) of all ops, each at its best; None if one fits in no way."""
        total = 0
        for graph, count in programs:
            for op in graph.ops:
                search = self._searches[task_of(graph, op).content]
                best = search.ranking()[:1]
                if not best:
                    return None
                total += count * search.evaluations[best[0]].rank
        return total

    def bounded(self, programs: RepeatedGraphs) -> tuple[str, ...]:
        """Ops of programs that have more cuts than a search lists (`search_space.MOST_CUTS`)."""
        return tuple(name for name, task in _tasks(programs).items() if self._searches[task.content].bounded)

    @property
    def candidates(self) -> int:
        """Candidates of all searches."""
        return sum(len(search.candidates) for search in self._searches.values())

    @property
    def evaluated(self) -> int:
        """Those of them that were evaluated."""
        return sum(len(search.evaluations) for search in self._searches.values())

    @property
    def cached(self) -> int:
        """Evaluations that came from the cache."""
        return sum(search.cached for search in self._searches.values())


def _tasks(programs: RepeatedGraphs) -> dict[str, Task]:
    return {op.name: task_of(graph, op) for graph, _ in programs for op in graph.ops}


def _choice(name: str, search: OpSearch) -> OpChoice | None:
    ranking = search.ranking()
    if not ranking:
        return None
    cycles = ((number, search.evaluations[number].cycles) for number in ranking[:2])
    best, *others = [replace(search.candidates[number], cycles=taken) for number, taken in cycles]
    second = others[0] if others else None
    return op_choice(name, best, second, len(search.candidates), len(search.evaluations))
