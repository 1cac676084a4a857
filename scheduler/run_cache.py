# SPDX-License-Identifier: Apache-2.0
"""What a schedule cost to find out, kept from run to run: the tilings chosen and the prices of kernels.

Both follow from their question alone, so a run that finds them has the same result as one that does not. The
question is the context they are kept under (`scheduler.tuner.cache`): version of the simulator, SoC, graph
and options of the schedule.
"""

from __future__ import annotations

import json
import sys
from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version

from arch.cost_model import CoreCost, CostModel, DmaService, TeamCost, Traffic
from arch.isa import TeamWork
from arch.program import Compute, Program
from arch.timing import SocTiming
from scheduler.options import ScheduleOptions
from scheduler.schedule_cache import ScheduleCache
from scheduler.tiles.tiling import Tiling
from scheduler.tiles.tiling_candidates import Counts
from scheduler.tiling_choice import TilingChoice
from scheduler.tuner import rows
from scheduler.tuner.cache import ResultCache
from scheduler.tuner.fingerprint import fingerprint, model_version
from traces.events import STALLS
from trainlib.graph import TrainingGraph

DIFFERENT_PRICES = 4096
"""Prices of kernels remembered by their text."""


RESIDENT = "resident"
"""Beside the choices per op: the tensors `scheduler.resident_search` has chosen to stay in L1."""


class CachedCostModel:
    """A `CostModel` that asks another one only what is not `cached`; `fresh` holds what it had to ask.

    `fresh` has prices as text, for the cache. An item names a kernel by its place in the programs it is
    priced for (`number`), because these are the same whenever their question is; a kernel of no program is
    always asked.
    """

    def __init__(self, cost_model: CostModel, cached: Mapping[str, TeamCost]) -> None:
        self._cost_model = cost_model
        self._cached = cached
        self.fresh: dict[str, str] = {}
        self._names: dict[int, tuple[TeamWork, str]] = {}
        self._costs: dict[int, TeamCost] = {}

    def number(self, programs: Iterable[Program]) -> None:
        """Name the kernels of these programs, which are all there will be."""
        for number, program in enumerate(programs):
            for action in program.actions:
                if isinstance(action, Compute) and id(action.team) not in self._names:
                    # The work is kept alive, so that its id stays its own.
                    self._names[id(action.team)] = action.team, f"{number}.{action.id} {action.team.kernel}"

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        """Price of `work`, kept or asked for."""
        work_id = id(work)
        key = 4 * work_id + traffic  # a number, because enums are slow to hash
        cost = self._costs.get(key)
        if cost is not None:
            return cost
        if work_id not in self._names:
            return self._cost_model.price(work, traffic)
        item = f"{self._names[work_id][1]} {int(traffic)}"
        cost = self._cached.get(item)
        if cost is None or len(cost.cores) != len(work.cores):
            cost = self._cost_model.price(work, traffic)
            self.fresh[item] = cost_text(cost)
        self._costs[key] = cost
        return cost


def cost_text(cost: TeamCost) -> str:
    """A price for the cache: each different core once, then which core is which."""
    different = list(dict.fromkeys(cost.cores))
    cores = [[core.cycles, core.instructions, dict(core.stalls)] for core in different]
    dma = [cost.dma.inward, cost.dma.outward] if cost.dma is not None else None
    return json.dumps([cores, [different.index(core) for core in cost.cores], dma], separators=(",", ":"))


@lru_cache(DIFFERENT_PRICES)
def cost_from(text: str) -> TeamCost:
    """The price `cost_text` has written; one object for equal texts, as tiles of one loop often have.

    Raises `ValueError` for any other text.
    """
    cores, numbers, dma = rows.items(json.loads(text), 3)
    different = [_core_from(item) for item in rows.items(cores)]
    team = [rows.whole(number) for number in rows.items(numbers)]
    if any(number >= len(different) for number in team):
        raise ValueError("a core without a price")
    service = DmaService(*map(_pace_from, rows.items(dma, 2))) if dma is not None else None
    return TeamCost(tuple(different[number] for number in team), service)


def _core_from(item: object) -> CoreCost:
    cycles, issued, stalls = rows.items(item, 3)
    if not isinstance(stalls, dict) or not stalls.keys() <= set(STALLS):
        raise ValueError("stalls that do not exist")
    lost = tuple((word, rows.whole(value)) for word, value in stalls.items())
    if rows.whole(cycles) != rows.whole(issued) + sum(value for _, value in lost):
        raise ValueError("cycles that do not add up")
    return CoreCost(cycles, issued, lost)


def _pace_from(item: object) -> tuple[int, int] | None:
    if item is None:
        return None
    moved, cycles = rows.items(item, 2)
    return rows.whole(moved), rows.whole(cycles, 1)


def _choice_text(choice: TilingChoice) -> str:
    counts = choice.counts
    tiling = choice.tiling
    fields = {
        "kernel": choice.kernel,
        "op": tiling.op,
        "sizes": tiling.sizes,
        "order": tiling.order,
        "counts": [getattr(counts, name) for name in _COUNTS] if counts is not None else None,
        "estimated_cycles": choice.estimated_cycles,
        "note": choice.note,
    }
    return json.dumps(fields, separators=(",", ":"))


_FIELDS = ("kernel", "op", "sizes", "order", "counts", "estimated_cycles", "note")
_COUNTS = ("total", "by_size_rule", "by_equal_loops", "by_l1", "kept")


def _choice_from(text: str) -> TilingChoice:
    """The choice without its tiles: whoever takes it over builds them (`scheduler.tiling_choice`).

    Raises `ValueError` for a text that `_choice_text` has not written.
    """
    fields = rows.fields(text, _FIELDS)
    pairs = [rows.items(pair, 2) for pair in rows.items(fields["sizes"])]
    sizes = tuple((rows.text_in(name), rows.whole(size, 1)) for name, size in pairs)
    counts = fields["counts"]
    if counts is not None:
        counts = Counts(*(rows.whole(number) for number in rows.items(counts, len(_COUNTS))))
    return TilingChoice(
        rows.text_in(fields["kernel"]),
        Tiling(rows.text_in(fields["op"]), sizes, (), (), rows.words(fields["order"])),
        counts,
        rows.whole(fields["estimated_cycles"]),
        rows.text_in(fields["note"]),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the tilings: what is alike and its choice, or what stays in L1; and the text of it."""

    text: str
    choice: tuple[object, TilingChoice] | None = None
    resident: tuple[str, ...] | None = None


def _row(item: str, text: str) -> _Row:
    """The row that was kept. Raises `ValueError` and others for any other text."""
    if item == RESIDENT:
        return _Row(text, resident=rows.words(json.loads(text)))
    return _Row(text, choice=(literal_eval(item), _choice_from(text)))


class RunCache:
    """The cached results of the programs of one model, each a graph with its options, on one SoC.

    `schedules` has one entry per program, for `scheduler.schedule.build_schedule`; `cost_model` is for
    simulating them; `write` keeps what both have learned.
    """

    def __init__(
        self,
        cache: ResultCache,
        timing: SocTiming,
        programs: Sequence[tuple[TrainingGraph, ScheduleOptions]],
        cost_model: CostModel,
    ) -> None:
        self._cache = cache
        graphs = tuple(_content(graph) for graph, _ in programs)
        options = tuple(own for _, own in programs)
        self._prices = fingerprint(("kernel prices", _versions(), timing, graphs, options))
        self._tilings = [
            fingerprint(("tilings", _versions(), timing, *program))
            for program in zip(graphs, options, strict=True)
        ]
        rows_read = [cache.read(context, _row) for context in self._tilings]
        self.schedules: tuple[ScheduleCache, ...] = tuple(
            ScheduleCache(
                dict(row.choice for row in found.values() if row.choice is not None),
                next((row.resident for row in found.values() if row.resident is not None), None),
            )
            for found in rows_read
        )
        self._written = [{item: row.text for item, row in found.items()} for found in rows_read]
        self.cost_model = CachedCostModel(
            cost_model, cache.read(self._prices, lambda _, text: cost_from(text))
        )

    def write(self) -> None:
        """Keep what has not been kept yet."""
        for context, schedule, written in zip(self._tilings, self.schedules, self._written, strict=True):
            texts = {repr(alike): _choice_text(choice) for alike, choice in schedule.tilings.items()}
            if schedule.resident is not None:
                texts[RESIDENT] = json.dumps(schedule.resident)
            self._cache.write(
                context, {item: text for item, text in texts.items() if written.get(item) != text}
            )
        self._cache.write(self._prices, self.cost_model.fresh)


def _versions() -> list[str]:
    """What decides beside the question: our source, and the arithmetic of Python and NumPy."""
    return [model_version(), ".".join(map(str, sys.version_info[:2])), version("numpy")]


def _content(graph: TrainingGraph) -> object:
    """All of a graph that a schedule can depend on."""
    return graph.tensors, graph.ops, graph.results, graph.name
