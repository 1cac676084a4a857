# SPDX-License-Identifier: Apache-2.0
"""With every op tuned: which tensors stay in L1 between ops of each program, by `resident_search`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from msgspec.structs import asdict

from arch.spec.timing import SocTiming
from configs.values import Struct, replace
from scheduler.explore.point import Point, cost_model_of
from scheduler.options import ScheduleOptions
from scheduler.resident_search import FoundResidents, choose_resident
from scheduler.schedule import build_schedule, in_one_memory
from scheduler.schedule_cache import ScheduleCache
from scheduler.search.cache import ResultCache
from scheduler.search.driver import Job, drive
from scheduler.search.fingerprint import model_version
from scheduler.search.rows import text_of, value_of
from scheduler.search.workers import Workers
from scheduler.tiles.resident_tensors import names_known
from trainlib.ir.graph import TrainingGraph

PROGRAMS = ("iteration", "update")
"""What the programs of a training are called where something is said of each: the mini-batch, the update."""


class ProgramResidents(Struct, frozen=True):
    """What stays in L1 in one program, as `ScheduleOptions.resident` says it, and what that gains.

    Cycles are those of one run of the program without and with it; `candidates` are the spans of tensors that
    save transfers, `simulations` how often the program was simulated to choose.
    """

    program: str
    resident: tuple[str, ...]
    before_cycles: int
    after_cycles: int
    candidates: int
    simulations: int


def find_residents(graph: TrainingGraph, timing: SocTiming, options: ScheduleOptions) -> FoundResidents:
    """`choose_resident`, without spans that an op refuses and that were taken with others; in a worker."""
    cost_model, cache = cost_model_of(timing), ScheduleCache()
    residents = choose_resident(graph, timing, cost_model, options, cache=cache)
    schedule = build_schedule(graph, timing, cost_model, options, cache, residents.resident)
    return replace(residents, resident=schedule.resident)


def _from_cache(_: str, text: str) -> ProgramResidents:
    """The `ProgramResidents` that was kept. Raises `ValueError` for any other text."""
    residents = value_of(text, ProgramResidents)
    if residents.program not in PROGRAMS:
        raise ValueError("not a program")
    return residents


def residents_by_program(point: Point, workers: Workers, cache: ResultCache | None) -> list[ProgramResidents]:
    """What stays in L1 in each of the programs (at most two) of a point; from the cache if it is there."""
    context = f"resident {model_version()}"
    stored = cache.read(context, _from_cache) if cache is not None else {}
    by_number: dict[int, ProgramResidents] = {}

    def one(
        number: int, graph: TrainingGraph, options: ScheduleOptions
    ) -> Generator[Sequence[Job], Sequence[Any], None]:
        content = f"{number} {point.content}"
        if content in stored and all(names_known(graph, text) for text in stored[content].resident):
            by_number[number] = stored[content]
            return
        residents: FoundResidents = (yield [Job(find_residents, (graph, point.timing, options))])[0]
        by_number[number] = ProgramResidents(PROGRAMS[number], **asdict(residents))
        if cache is not None:
            cache.write(context, {content: text_of(by_number[number])})

    in_memory = in_one_memory(point.graphs, point.timing, point.options)
    drive([one(*item) for item in zip(range(len(PROGRAMS)), point.graphs, in_memory, strict=False)], workers)
    return [by_number[number] for number in sorted(by_number)]
