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
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from arch.isa import TeamWork
from arch.pricing import CoreCost, DmaService, Pricer, TeamCost, Traffic
from arch.program import Compute, Program
from arch.timing import SocTiming
from scheduler.choice import Choice, Known
from scheduler.options import ScheduleOptions
from scheduler.tiles.candidates import Counts
from scheduler.tiles.tiling import Tiling
from scheduler.tuner.cache import ResultCache
from scheduler.tuner.fingerprint import fingerprint, model_version
from trainlib.graph import TrainingGraph

DIFFERENT_PRICES = 4096
"""Prices of kernels remembered by their text."""


RESIDENT = "resident"
"""Beside the choices per op: the tensors `scheduler.residency` has chosen to stay in L1."""


class KeptPricer:
    """A `Pricer` that asks another one only what is not `known`; `fresh` holds what it had to ask.

    Both map an item to a price as text. An item names a kernel by its place in the programs it is priced for
    (`number`), because these are the same whenever their question is; a kernel of no program is always asked.
    """

    def __init__(self, pricer: Pricer, known: Mapping[str, str]) -> None:
        self._pricer = pricer
        self._known = known
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
            return self._pricer.price(work, traffic)
        item = f"{self._names[work_id][1]} {int(traffic)}"
        text = self._known.get(item)
        if text is not None:
            cost = cost_from(text)
        else:
            cost = self._pricer.price(work, traffic)
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
    """The price `cost_text` has written; one object for equal texts, as tiles of one loop often have."""
    cores, numbers, dma = json.loads(text)
    different = [CoreCost(cycles, issued, tuple(stalls.items())) for cycles, issued, stalls in cores]
    inward, outward = (tuple(part) if part is not None else None for part in dma or (None, None))
    service = DmaService(inward, outward) if dma is not None else None
    return TeamCost(tuple(different[number] for number in numbers), service)


def _choice_text(choice: Choice) -> str:
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


_COUNTS = ("total", "by_size_rule", "by_equal_loops", "by_l1", "kept")


def _choice_from(text: str) -> Choice:
    """The choice, its tiling without tiles: whoever takes it over builds them (`scheduler.choice.choose`)."""
    fields: Mapping[str, Any] = json.loads(text)
    sizes = tuple((name, size) for name, size in fields["sizes"])
    counts = fields["counts"]
    return Choice(
        fields["kernel"],
        Tiling(fields["op"], sizes, (), (), tuple(fields["order"])),
        Counts(*counts) if counts is not None else None,
        fields["estimated_cycles"],
        fields["note"],
    )


class KeptResults:
    """The kept results of the programs of one model, each a graph with its options, on one SoC.

    `choices` has one entry per program, for `scheduler.schedule.build_schedule`; `pricer` is for simulating
    them; `write` keeps what both have learned.
    """

    def __init__(
        self,
        cache: ResultCache,
        timing: SocTiming,
        programs: Sequence[tuple[TrainingGraph, ScheduleOptions]],
        pricer: Pricer,
    ) -> None:
        self._cache = cache
        graphs = tuple(_content(graph) for graph, _ in programs)
        options = tuple(own for _, own in programs)
        self._prices = fingerprint(("kernel prices", _versions(), timing, graphs, options))
        self._tilings = [
            fingerprint(("tilings", _versions(), timing, *program))
            for program in zip(graphs, options, strict=True)
        ]
        kept = [cache.read(context) for context in self._tilings]
        self.choices: tuple[Known, ...] = tuple(
            Known(
                {literal_eval(like): _choice_from(text) for like, text in found.items() if like != RESIDENT},
                resident=[tuple(json.loads(found[RESIDENT]))] if RESIDENT in found else [],
            )
            for found in kept
        )
        self._known = [frozenset(found) for found in kept]
        self.pricer = KeptPricer(pricer, cache.read(self._prices))

    def write(self) -> None:
        """Keep what has not been kept yet."""
        for context, choices, known in zip(self._tilings, self.choices, self._known, strict=True):
            texts = {repr(like): _choice_text(choice) for like, choice in choices.choices.items()}
            if choices.resident:
                texts[RESIDENT] = json.dumps(choices.resident[0])
            self._cache.write(context, {like: text for like, text in texts.items() if like not in known})
        self._cache.write(self._prices, self.pricer.fresh)


def _versions() -> list[str]:
    """What decides beside the question: our source, and the arithmetic of Python and NumPy."""
    return [model_version(), ".".join(map(str, sys.version_info[:2])), version("numpy")]


def _content(graph: TrainingGraph) -> object:
    """All of a graph that a schedule can depend on."""
    return graph.tensors, graph.ops, graph.results, graph.name
