"""Tunes training graphs for a SoC: every op by itself, equal ops once; then what stays in L1 between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from arch.timing import SocTiming
from configs.errors import InputError
from scheduler.explore.point import Point, point_of
from scheduler.explore.sweep import simulate_points
from scheduler.options import AUTO, ScheduleOptions
from scheduler.plan_options import PlanOptions
from scheduler.shared_memory import plans_beside
from scheduler.tuner.cache import ResultCache
from scheduler.tuner.candidates import Candidate, Question, SpaceRules
from scheduler.tuner.choices import (
    OpChoice,
    Timed,
    TunedSchedule,
    model_content,
    soc_content,
    with_choices,
)
from scheduler.tuner.driver import drive
from scheduler.tuner.fingerprint import model_version
from scheduler.tuner.network_pass import Stay, choose_stays
from scheduler.tuner.progress import Meter, NoMeter
from scheduler.tuner.strategies import OpSearch, StrategyOptions, check_strategy
from scheduler.tuner.task import task_of
from scheduler.tuner.workers import Workers
from trainlib.graph import TrainingGraph


@dataclass(frozen=True, slots=True)
class Tuning:
    """What tuning came to. `untuned_cycles` are those of an iteration as the scheduler plans it unasked.

    `stays` is what the network pass found by program; it is empty without it. `cached` evaluations came
    from the cache. `interrupted` by Ctrl-C, ops of which nothing was evaluated yet have no choice: the
    scheduler goes on to choose for them.
    """

    schedule: TunedSchedule
    untuned_cycles: int | None
    stays: tuple[Stay, ...]
    cached: int
    interrupted: bool


def tune(
    programs: Sequence[tuple[TrainingGraph, int]],
    timing: SocTiming,
    options: ScheduleOptions,
    workers: Workers,
    *,
    rules: SpaceRules | None = None,
    strategy: StrategyOptions | None = None,
    cache: ResultCache | None = None,
    meter: Meter | None = None,
    start: Mapping[str, Candidate] | None = None,
    version: str = "",
) -> Tuning:
    """Find the best tile, loop order, buffer depth and kernel of every op of some programs.

    `programs` are the graphs one iteration consists of and how often each runs in it, the main one first.
    Every op is searched by itself with its tensors in L2, ops of equal content once; the result does not
    depend on the workers. What `options` say of single ops is not respected by the search but by the
    iteration. Resident tensors left to the scheduler (`AUTO`) are chosen for the tuned ops. `start` are
    candidates by op that are looked at first. Raises `InputError` for an unknown strategy, and
    `DoesNotFitError` if an op fits in no way.
    """
    strategy = strategy or StrategyOptions()
    check_strategy(strategy)
    if rules is not None and (rules.cuts < 0 or not rules.depths or min(rules.depths) < 1):
        raise InputError("a space of nothing", where="--cuts", cure="0 for all cuts, or 1 or more")
    meter = meter or NoMeter()
    searches: dict[str, OpSearch] = {}
    of_op: dict[str, OpSearch] = {}
    starts: dict[str, list[Candidate]] = {}
    tasks = {op.name: task_of(graph, op) for graph, _ in programs for op in graph.ops}
    for name, candidate in (start or {}).items():
        if name in tasks:
            starts.setdefault(tasks[name].content, []).append(candidate)
    for name, task in tasks.items():
        if task.content not in searches:
            question = Question(task, timing, options.codegen, rules or SpaceRules())
            first = starts.get(task.content, ())
            searches[task.content] = OpSearch(question, strategy, cache, meter, first)
        of_op[name] = searches[task.content]
    interrupted = False
    try:
        drive([search.steps() for search in searches.values()], workers)
    except KeyboardInterrupt:
        interrupted = True
    choices = tuple(choice for name in tasks if (choice := _choice(name, of_op[name])) is not None)
    cycles = untuned_cycles = None
    stays: list[Stay] = []
    resident: dict[str, tuple[str, ...]] = {}
    chooses_residents = tuple(options.resident) == (AUTO,)
    plain = replace(options, resident=()) if chooses_residents else options
    if not interrupted:
        try:
            tuned = _tuned(programs, timing, plain, choices)
            if chooses_residents:
                stays = choose_stays(tuned, workers, cache)
                resident = {stay.program: stay.resident for stay in stays if stay.resident}
                tuned = [
                    replace(point, options=replace(point.options, resident=stay.resident))
                    for point, stay in zip(tuned, stays, strict=True)
                ]
            cycles, untuned_cycles, interrupted = _iterations(programs, tuned, plain, workers, cache)
        except KeyboardInterrupt:
            interrupted = True
    graph = programs[0][0]
    schedule = TunedSchedule(
        model=graph.name,
        model_content=model_content(graph),
        soc=timing.name,
        timing=timing.profile,
        soc_content=soc_content(timing),
        codegen=options.codegen,
        version=version,
        simulator=model_version()[:16],
        strategy=strategy.name,
        candidates=sum(len(search.candidates) for search in searches.values()),
        evaluated=sum(len(search.evaluations) for search in searches.values()),
        cycles=cycles,
        choices=choices,
        resident=resident,
    )
    cached = sum(search.cached for search in searches.values())
    return Tuning(schedule, untuned_cycles, tuple(stays), cached, interrupted)


def _choice(name: str, search: OpSearch) -> OpChoice | None:
    ranking = search.ranking()
    if not ranking:
        return None
    timed = [Timed(search.candidates[number], search.evaluations[number].cycles) for number in ranking[:2]]
    runner_up = timed[1] if len(timed) > 1 else None
    return OpChoice(name, timed[0], runner_up, len(search.candidates), len(search.evaluations))


def _tuned(
    programs: Sequence[tuple[TrainingGraph, int]],
    timing: SocTiming,
    options: ScheduleOptions,
    choices: Sequence[OpChoice],
) -> list[Point]:
    """The programs with the choices, planned for one memory."""
    points = []
    graphs = [graph for graph, _ in programs]
    plans: Sequence[PlanOptions] = (options.memory,)
    if len(graphs) > 1:
        plans = plans_beside(graphs[0], graphs[1], timing, options.memory)
    for graph, memory in zip(graphs, plans, strict=True):
        ops = {op.name for op in graph.ops}
        chosen = [(choice.op, choice.best.candidate) for choice in choices if choice.op in ops]
        own = replace(options, memory=memory)
        points.append(point_of(graph, timing, with_choices(own, graph, timing, chosen)))
    return points


def _iterations(
    programs: Sequence[tuple[TrainingGraph, int]],
    tuned: Sequence[Point],
    options: ScheduleOptions,
    workers: Workers,
    cache: ResultCache | None,
) -> tuple[int | None, int | None, bool]:
    """Cycles of a whole iteration with the tuned and with the scheduler's own choices."""
    points: list[Point] = []
    times: list[int] = []
    for (_, count), point in zip(programs, tuned, strict=True):
        untuned = replace(options, memory=point.options.memory)
        points += [point, replace(point, options=untuned)]
        times += [count, count]
    outcomes, _, interrupted = simulate_points(points, workers, cache)
    for outcome in outcomes.values():
        if outcome.why:
            raise InputError(f"an iteration cannot be simulated: {outcome.why}", where=programs[0][0].name)
    if len(outcomes) < len(points):
        return None, None, interrupted
    cycles = [outcomes[position].cycles * count for position, count in enumerate(times)]
    return sum(cycles[::2]), sum(cycles[1::2]), interrupted
