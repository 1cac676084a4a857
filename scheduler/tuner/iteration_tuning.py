# SPDX-License-Identifier: Apache-2.0
"""Tunes training graphs for a SoC: every op by itself, equal ops once; then what stays in L1 between them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from arch.spec.timing import SocTiming
from configs.errors import DoesNotFitError
from configs.values import Struct, replace
from scheduler.explore.point import Outcome, Point, point_of, simulated
from scheduler.explore.sweep import simulate_points
from scheduler.options import AUTO, ScheduleOptions
from scheduler.search.cache import ResultCache
from scheduler.search.fingerprint import model_version
from scheduler.search.workers import Workers
from scheduler.time_line import TimeLine
from scheduler.tuner.op_tuner import OpTuner, RepeatedGraphs
from scheduler.tuner.tuned_residents import ProgramResidents, residents_by_program
from scheduler.tuner.tuned_schedule import (
    FORMAT,
    Named,
    OpChoice,
    TunedSchedule,
    TunedSoc,
    model_content,
    soc_content,
    with_choices,
)


class Tuning(Struct, frozen=True):
    """What tuning came to. `untuned_cycles` are those of an iteration as the scheduler plans it unasked.

    `residents` is what the search of residents found by program; it is empty without it. `cached` evaluations
    came from the cache. `interrupted` by Ctrl-C, ops of which nothing was evaluated yet have no choice: the
    scheduler goes on to choose for them.
    """

    schedule: TunedSchedule
    untuned_cycles: int | None
    residents: tuple[ProgramResidents, ...]
    cached: int
    interrupted: bool
    line: TimeLine = ()
    """Whose the cycles of the tuned iteration are; empty if it was not simulated."""
    cost: float = inf
    """What the objective makes of the tuned iteration; infinite if it was not simulated."""
    bounded: tuple[str, ...] = ()
    """Ops that have more cuts than were searched, though all were asked for."""


def tune_iteration(
    programs: RepeatedGraphs, options: ScheduleOptions, tuner: OpTuner, *, version: str = ""
) -> Tuning:
    """What the ops `tuner` has searched come to together: residents and cycles of the iteration.

    Raises `DoesNotFitError` if an op fits in no way.
    """
    timing, workers, cache = tuner.timing, tuner.workers, tuner.cache
    interrupted = tuner.interrupted
    choices = tuner.choices(programs)
    cycles = untuned_cycles = None
    cost = inf
    line: TimeLine = ()
    residents: list[ProgramResidents] = []
    resident: dict[str, tuple[str, ...]] = {}
    chooses_residents = tuple(options.resident) == (AUTO,)
    plain = replace(options, resident=()) if chooses_residents else options
    if not interrupted:
        try:
            tuned = _tuned(programs, timing, plain, choices)
            if chooses_residents:
                residents = residents_by_program(tuned, workers, cache)
                resident = {item.program: item.resident for item in residents if item.resident}
                tuned = point_of(
                    programs,
                    timing,
                    (
                        replace(one, resident=item.resident)
                        for one, item in zip(tuned.options, residents, strict=True)
                    ),
                )
            tuned_update, untuned, interrupted = _iterations(programs, tuned, plain, workers, cache)
            if resident and tuner.objective.counts and tuned_update is not None and not interrupted:
                # Residents are chosen for what they save of the cycles.
                without = _tuned(programs, timing, plain, choices)
                other, _, interrupted = _iterations(programs, without, plain, workers, cache)
                if other is not None and _cost(tuner, other) < _cost(tuner, tuned_update):
                    tuned_update, resident, residents = other, {}, []
            if tuned_update is not None and untuned is not None:
                cycles, untuned_cycles, line = tuned_update.cycles, untuned.cycles, tuned_update.line
                cost = _cost(tuner, tuned_update)
        except KeyboardInterrupt:
            interrupted = True
    graph = programs[0][0]
    schedule = TunedSchedule(
        format=FORMAT,
        model=Named(name=graph.name, content=model_content(graph)),
        soc=TunedSoc(name=timing.name, timing=timing.profile, content=soc_content(timing)),
        codegen=options.codegen,
        pulptrain=version,
        simulator=model_version()[:16],
        strategy=tuner.strategy.name,
        candidates=tuner.candidates,
        evaluated=tuner.evaluated,
        cycles=cycles,
        choices=choices,
        resident={program: list(texts) for program, texts in resident.items()},
    )
    return Tuning(
        schedule,
        untuned_cycles,
        tuple(residents),
        tuner.cached,
        interrupted,
        line,
        cost,
        tuner.bounded(programs),
    )


def _cost(tuner: OpTuner, outcome: Outcome) -> float:
    return tuner.objective.of_iteration(outcome.activity, outcome.cycles)


def _tuned(
    programs: RepeatedGraphs,
    timing: SocTiming,
    options: ScheduleOptions,
    choices: Sequence[OpChoice],
) -> Point:
    """The programs with the choices."""
    tuned = []
    for graph, _ in programs:
        ops = {op.name for op in graph.ops}
        chosen = [(choice.op, choice.best) for choice in choices if choice.op in ops]
        tuned.append(with_choices(options, graph, timing, chosen))
    return point_of(programs, timing, tuned)


def _iterations(
    programs: RepeatedGraphs,
    tuned: Point,
    options: ScheduleOptions,
    workers: Workers,
    cache: ResultCache | None,
) -> tuple[Outcome | None, Outcome | None, bool]:
    """A whole iteration with the tuned and with the scheduler's own choices.

    Raises what makes one of them impossible, such as `DoesNotFitError`.
    """
    points = [point_of(programs, tuned.timing, [options] * len(programs)), tuned]
    outcomes, _, interrupted = simulate_points(points, workers, cache)
    for number, outcome in sorted(outcomes.items()):
        try:
            outcomes[number] = simulated(points[number]) if outcome.why else outcome
        except DoesNotFitError as error:
            if number == 0:
                raise
            what = f"{error.what or 'an iteration'} with the tuned choices"
            raise error.but(what=what, cure=f"{error.cure}, or run it untuned") from None
    return outcomes.get(1), outcomes.get(0), interrupted
