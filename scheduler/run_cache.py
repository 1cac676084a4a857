# SPDX-License-Identifier: Apache-2.0
"""What a schedule cost to find out, kept from run to run: the tilings chosen and the prices of kernels.

Both follow from their question alone, so a run that finds them has the same result as one that does not. The
question is the context they are kept under (`scheduler.search.cache`), version of the simulator and SoC, and
beside it of a tiling all that makes ops alike, of a price what the work was made from. So models that share
ops share them, and where a layer is changed the others are found. What stays in L1 is a question of its own:
the programs, which share a memory, and their options.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from numpy import __version__ as numpy_version

from arch.pricing.cost_model import CoreCost, CostModel, DmaService, TeamCost, Traffic
from arch.spec.isa import TeamWork
from arch.spec.timing import SocTiming
from scheduler.kept_figures import Figures, figures_from, figures_text
from scheduler.options import AUTO, ScheduleOptions
from scheduler.schedule_cache import ScheduleCache
from scheduler.search import rows
from scheduler.search.cache import ResultCache
from scheduler.search.fingerprint import fingerprint, model_version
from traces.events import STALLS
from trainlib.ir.graph import TrainingGraph

if TYPE_CHECKING:
    from scheduler.tiling_choice import TilingChoice

DIFFERENT_PRICES = 4096
"""Prices of kernels remembered by their text."""


RESIDENT = "resident"
"""Beside the choices per op: the tensors `scheduler.resident_search` has chosen to stay in L1."""


class CachedCostModel:
    """A `CostModel` that asks another one only what is not kept; `fresh` holds, as text, what it had to ask.

    An item is what the work was made from, its addresses modulo one turn of the banks, and the traffic. A
    work of which that cannot be told is always asked.
    """

    def __init__(
        self, cost_model: CostModel, timing: SocTiming, kept: Callable[[str], TeamCost | None]
    ) -> None:
        self._cost_model = cost_model
        self._turn = timing.l1.banks * timing.l1.word_bytes
        self._kept = kept
        self.fresh: dict[str, str] = {}
        self._by_item: dict[str, TeamCost] = {}
        self._by_object: dict[int, tuple[TeamWork, TeamCost]] = {}
        """By identity, of a work that is kept alive here, and traffic."""

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        """Price of `work`, kept or asked for."""
        key = 4 * id(work) + traffic  # a number, because enums are slow to hash
        answered = self._by_object.get(key)
        if answered is not None:
            return answered[1]
        if work.origin is None:
            return self._cost_model.price(work, traffic)
        places = [address % self._turn for address in work.origin.addresses]
        item = f"{work.origin.text} {places} {int(traffic)}"
        cost = self._by_item.get(item) or self._kept(item)
        if cost is None or len(cost.cores) != work.size:
            cost = self._cost_model.price(work, traffic)
            self.fresh[item] = cost_text(cost)
        self._by_item[item] = cost
        self._by_object[key] = work, cost
        return cost

    def least_cycles(self, work: TeamWork) -> int:
        """What no price of `work` is below."""
        return self._cost_model.least_cycles(work)


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
        raise ValueError("a core has no price")
    service = DmaService(*map(_pace_from, rows.items(dma, 2))) if dma is not None else None
    return TeamCost(tuple(different[number] for number in team), service)


def _core_from(item: object) -> CoreCost:
    cycles, issued, stalls = rows.items(item, 3)
    if not isinstance(stalls, dict) or not stalls.keys() <= set(STALLS):
        raise ValueError("unknown stalls")
    lost = tuple((word, rows.whole(value)) for word, value in stalls.items())
    if rows.whole(cycles) != rows.whole(issued) + sum(value for _, value in lost):
        raise ValueError("the cycles do not add up")
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
        "sizes": tiling.sizes,
        "order": tiling.order,
        "counts": [getattr(counts, name) for name in _COUNTS] if counts is not None else None,
        "estimated_cycles": choice.estimated_cycles,
        "note": choice.note,
    }
    return json.dumps(fields, separators=(",", ":"))


_FIELDS = ("kernel", "sizes", "order", "counts", "estimated_cycles", "note")
_COUNTS = ("total", "pruned_by_size", "pruned_by_loop_order", "pruned_by_l1", "estimated")


def _choice_from(text: str) -> TilingChoice:
    """The choice without its tiles: whoever takes it over builds them (`scheduler.tiling_choice`).

    Raises `ValueError` for a text that `_choice_text` has not written.
    """
    # A run whose figures are kept reads no choice, and needs nothing that plans.
    from scheduler.tiles.tiling import Tiling
    from scheduler.tiles.tiling_candidates import Counts
    from scheduler.tiling_choice import TilingChoice

    fields = rows.fields(text, _FIELDS)
    pairs = [rows.items(pair, 2) for pair in rows.items(fields["sizes"])]
    sizes = tuple((rows.text_in(name), rows.whole(size, 1)) for name, size in pairs)
    counts = fields["counts"]
    if counts is not None:
        counts = Counts(*(rows.whole(number) for number in rows.items(counts, len(_COUNTS))))
    return TilingChoice(
        rows.text_in(fields["kernel"]),
        Tiling("", sizes, (), (), rows.words(fields["order"])),
        counts,
        rows.whole(fields["estimated_cycles"]),
        rows.text_in(fields["note"]),
    )


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
        self._programs = [(_content(graph), options) for graph, options in programs]
        self._asked = asked = fingerprint((_versions(), timing))
        self._prices, self._tilings = f"kernel prices {asked}", f"tilings {asked}"
        self._residents = [
            fingerprint((asked, number, self._programs)) if tuple(options.resident) == (AUTO,) else None
            for number, (_, options) in enumerate(programs)
        ]
        self.schedules = tuple(
            ScheduleCache(self._tiling, self._resident(context)) for context in self._residents
        )
        self._written: dict[str, str] = {}
        """Text by item of the tilings that were found."""
        self.cost_model = CachedCostModel(
            cost_model,
            timing,
            lambda item: cache.read_item(self._prices, item, lambda _, text: cost_from(text)),
        )

    def figures(self, code_start: str) -> tuple[Figures, ...]:
        """Those of all programs, if they were simulated before; else none."""
        return self._cache.read_item(self._figures, code_start, lambda _, text: figures_from(text)) or ()

    def keep_figures(self, code_start: str, figures: Sequence[Figures]) -> None:
        """Keep what a simulation of all programs has found, for `figures`."""
        self._cache.write(self._figures, {code_start: figures_text(figures)})

    @cached_property
    def _figures(self) -> str:
        """Their context: all programs and what reads slices."""
        return fingerprint((self._asked, model_version(("traces",)), self._programs))

    def write(self) -> None:
        """Keep what has not been kept yet."""
        for context, schedule in zip(self._residents, self.schedules, strict=True):
            texts = {_item(alike): _choice_text(choice) for alike, choice in schedule.tilings.items()}
            self._cache.write(
                self._tilings, {item: text for item, text in texts.items() if self._written.get(item) != text}
            )
            self._written |= texts
            if context is not None and schedule.resident is not None:
                self._cache.write(context, {RESIDENT: json.dumps(schedule.resident)})
        self._cache.write(self._prices, self.cost_model.fresh)

    def _tiling(self, alike: object) -> TilingChoice | None:
        item = _item(alike)
        choice = self._cache.read_item(self._tilings, item, lambda _, text: _choice_from(text))
        if choice is not None:
            self._written[item] = _choice_text(choice)
        return choice

    def _resident(self, context: str | None) -> tuple[str, ...] | None:
        if context is None:
            return None
        return self._cache.read_item(context, RESIDENT, lambda _, text: rows.words(json.loads(text)))


def _item(alike: object) -> str:
    return hashlib.sha256(repr(alike).encode()).hexdigest()


def _versions() -> list[str]:
    """What decides beside the question: our source, and the arithmetic of Python and NumPy."""
    return [model_version(), ".".join(map(str, sys.version_info[:2])), numpy_version]


def _content(graph: TrainingGraph) -> object:
    """All of a graph that a schedule can depend on."""
    return graph.tensors, graph.ops, graph.results, graph.name
