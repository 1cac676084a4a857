# SPDX-License-Identifier: Apache-2.0
"""What a schedule cost to find out, kept from run to run: the tilings chosen and the prices of kernels.

Both follow from their question alone, so a run that finds them has the same result as one that does not. The
question is the context they are kept under (`scheduler.search.cache`), version of the simulator and SoC
without the sizes of L2 and L3, and beside it of a tiling all that makes ops alike, of a price what the work
was made from. So models that share ops share prices. They share tilings where all code starts warm; else what
an op waits for its code depends on all programs, which are a part of the context then. What stays in L1 is a
question of its own: the programs, which share a memory, and their options.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import astuple
from numpy import __version__ as numpy_version

from arch.pricing.code_caches import WARM
from arch.pricing.cost_model import CoreCost, CostModel, DmaService, TeamCost, Traffic
from arch.spec.isa import TeamWork
from arch.spec.timing import SocTiming
from configs.values import Struct, replace
from scheduler.options import AUTO, BEST_DEPTH, ScheduleOptions
from scheduler.plan_figures import Figures
from scheduler.schedule_cache import ScheduleCache
from scheduler.search.cache import ResultCache
from scheduler.search.fingerprint import fingerprint, model_version
from scheduler.search.rows import text_of, value_of
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


class _Price(Struct, array_like=True):
    """A `TeamCost` as it is kept: (cycles, instructions, stalls) of different cores, which is which."""

    different: list[tuple[int, int, dict[str, int]]]
    numbers: list[int]
    service: DmaService | None


class _Choice(Struct, array_like=True):
    """A `TilingChoice` as it is kept; the fields of its counts, none without them."""

    kernel: str
    sizes: tuple[tuple[str, int], ...]
    order: tuple[str, ...]
    counts: tuple[int, ...]
    estimated_cycles: int
    note: str


def cost_text(cost: TeamCost) -> str:
    """A price for the cache: each different core once, then which core is which."""
    different = list(dict.fromkeys(cost.cores))
    cores = [(core.cycles, core.instructions, dict(core.stalls)) for core in different]
    return text_of(_Price(cores, [different.index(core) for core in cost.cores], cost.dma))


@lru_cache(DIFFERENT_PRICES)
def cost_from(text: str) -> TeamCost:
    """The price `cost_text` has written; one object for equal texts, as tiles of one loop often have.

    Raises `ValueError` for any other text.
    """
    price = value_of(text, _Price)
    for cycles, issued, stalls in price.different:
        if not stalls.keys() <= set(STALLS) or cycles != issued + sum(stalls.values()):
            raise ValueError("unknown stalls, or cycles that do not add up")
    paces = [] if price.service is None else [price.service.inward, price.service.outward]
    if max(price.numbers, default=-1) >= len(price.different) or not all(pace[1] for pace in paces if pace):
        raise ValueError("a core has no price, or bytes are moved in no time")
    different = [
        CoreCost(cycles, issued, tuple(stalls.items())) for cycles, issued, stalls in price.different
    ]
    return TeamCost(tuple(different[number] for number in price.numbers), price.service)


def _choice_text(choice: TilingChoice) -> str:
    tiling, cycles = choice.tiling, choice.estimated_cycles
    counts = astuple(choice.counts) if choice.counts is not None else ()
    return text_of(_Choice(choice.kernel, tiling.sizes, tiling.order, counts, cycles, choice.note))


def _choice_from(text: str) -> TilingChoice:
    """The choice without its tiles: whoever takes it over builds them (`scheduler.tiling_choice`).

    Raises `ValueError` or `TypeError` for a text that `_choice_text` has not written.
    """
    # A run whose figures are kept reads no choice, and needs nothing that plans.
    from scheduler.tiles.tiling import Tiling
    from scheduler.tiles.tiling_candidates import Counts
    from scheduler.tiling_choice import TilingChoice

    row = value_of(text, _Choice)
    if not all(size for _, size in row.sizes):
        raise ValueError("an empty tile")
    tiling, counts = Tiling("", row.sizes, (), (), row.order), Counts(*row.counts) if row.counts else None
    return TilingChoice(row.kernel, tiling, counts, row.estimated_cycles, row.note)


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
        # How large L2 and L3 are changes what lies where, and no price and no tiling.
        sizes = {name: replace(getattr(timing, name), size_bytes=0) for name in ("l2", "l3")}
        alike = fingerprint((_versions(), replace(timing, **sizes)))
        self._prices = f"kernel prices {alike}"
        # What an op waits for its code depends on the code of all others.
        has_code = any(options.code_start != WARM for _, options in programs)
        whole = fingerprint(self._programs) if has_code else ""
        self._tilings = f"tilings {alike} {whole}"
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
        kept = self._cache.read_item(
            self._figures, code_start, lambda _, text: value_of(text, tuple[Figures, ...], BEST_DEPTH)
        )
        return kept or ()

    def keep_figures(self, code_start: str, figures: Sequence[Figures]) -> None:
        """Keep what a simulation of all programs has found, for `figures`."""
        self._cache.write(self._figures, {code_start: text_of(tuple(figures))})

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
                self._cache.write(context, {RESIDENT: text_of(schedule.resident)})
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
        return self._cache.read_item(context, RESIDENT, lambda _, text: value_of(text, tuple[str, ...]))


def _item(alike: object) -> str:
    return hashlib.sha256(repr(alike).encode()).hexdigest()


def _versions() -> list[str]:
    """What decides beside the question: our source, and the arithmetic of Python and NumPy."""
    return [model_version(), ".".join(map(str, sys.version_info[:2])), numpy_version]


def _content(graph: TrainingGraph) -> object:
    """All of a graph that a schedule can depend on."""
    return graph.tensors, graph.ops, graph.results, graph.name
