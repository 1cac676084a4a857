# SPDX-License-Identifier: Apache-2.0
"""The cost model the cluster asks: picks the model a team needs and remembers every answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

from arch.pricing.contention import ClusterModel, Member
from arch.pricing.cost_model import CoreCost, DmaService, TeamCost, Traffic
from arch.pricing.nest_reader import NestReader
from arch.pricing.pipeline import price_core
from arch.pricing.scoreboard import CROSSING, STALL_WORDS, CoreNest, Shape
from arch.pricing.window import PROCESS, EngineChoice
from arch.pricing.window_plan import PricingWindow
from arch.pricing.window_program import WindowHardware
from arch.spec.isa import CodeLayout, TeamWork
from arch.spec.soc_config import MAX_CORES
from arch.spec.timing import SocTiming
from configs.errors import InputError

MEMO_ENTRIES = 20_000
"""Answers kept by content; the oldest is dropped first."""

OBJECT_ENTRIES = 4_000
"""Works recognised by identity, which saves reading them; each entry keeps its work alive."""

_K = TypeVar("_K")
_V = TypeVar("_V")
_OriginKey = tuple[str, tuple[int, ...], int]
_NestKey = tuple[Shape, tuple[int, ...], int, CodeLayout | None, tuple[tuple[int, ...], ...]]


class TeamCostModel:
    """Implements `arch.pricing.cost_model.CostModel` for the machine `timing`.

    Cores that cannot meet at a bank, an FPU or the div/sqrt unit are priced one by one by the exact pipeline
    model; a team that can is advanced together by `ClusterModel`. Workers start with the skew of the fork
    (`event_unit`). Icache stalls are added after either model. Answers are memoised by content: shapes
    of the nests, trip counts, addresses and strides modulo one turn of the banks, cores, and traffic.
    """

    def __init__(
        self, timing: SocTiming, window: PricingWindow | None = None, engine: EngineChoice = PROCESS
    ) -> None:
        self._timing = timing
        self._reader = NestReader(timing.core, timing.fpu, timing.l1.word_bytes, timing.l2)
        self._window = window if window is not None else PricingWindow()
        self._cluster = ClusterModel(timing, self._window, engine)
        self._alone: OrderedDict[_NestKey, CoreCost] = OrderedDict()
        self._together: OrderedDict[tuple[object, ...], TeamCost] = OrderedDict()
        self._answers = 0
        """Answers that were not found in a memo."""
        self._by_object: OrderedDict[int, tuple[TeamWork, TeamCost]] = OrderedDict()
        """By four times the identity of a work and its traffic: enums are slow to hash."""
        self._by_origin: OrderedDict[_OriginKey, TeamCost] = OrderedDict()
        self._least: OrderedDict[_OriginKey, int] = OrderedDict()
        self._turn = timing.l1.banks * timing.l1.word_bytes

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        """Price `work`, one `CoreCost` per entry of `work.cores` (zero for a core that takes no part).

        Raises `InputError` if an address stream does not match the loops it is used in, or if there are more
        than `MAX_CORES` cores.
        """
        object_key = 4 * id(work) + traffic
        priced = self._by_object.get(object_key)
        if priced is not None and priced[0] is work:
            return priced[1]
        answers = self._answers
        key = self._origin_key(work, traffic)
        cost = self._by_origin.get(key) if key is not None else None
        if cost is None:
            cost = self._price(work, traffic)
            if key is not None:
                _remember(self._by_origin, key, cost)
        if answers == self._answers:
            # Asked before, so this work may come again; a search asks every work once, and need not keep it.
            _remember(self._by_object, object_key, (work, cost), OBJECT_ENTRIES)
        return cost

    def _origin_key(self, work: TeamWork, traffic: int = 0) -> _OriginKey | None:
        """Works of equal ones have one price: addresses matter as far as the banks do not repeat."""
        origin, turn = work.origin, self._turn
        if origin is None:
            return None
        return origin.text, tuple([address % turn for address in origin.addresses]), int(traffic)

    def least_cycles(self, work: TeamWork) -> int:
        """What the core that issues the most takes with every unit to itself.

        Others can only delay it. Half a cycle per stall word is left to the rounding of means; of what is
        extrapolated only the instructions are certain.
        """
        key = self._origin_key(work)
        least = self._least.get(key) if key is not None else None
        if least is None:
            least = self._least_cycles(work)
            if key is not None:
                _remember(self._least, key, least)
        return least

    def _least_cycles(self, work: TeamWork) -> int:
        counts = work.issued
        if not counts:
            return 0
        most = max(counts)
        if most * len(counts) > self._window.budget_instructions:
            return most
        alone = self._price_alone(self._read(work, work.members[counts.index(most)])).cycles
        return max(most, alone - len(STALL_WORDS) // 2)

    def _price(self, work: TeamWork, traffic: Traffic) -> TeamCost:
        if work.size > MAX_CORES:
            raise InputError(
                f"the kernel runs on {work.size} cores, but the cost model covers at most {MAX_CORES}",
                where=work.kernel,
                cure="use fewer cores",
            )
        cores = [(core, self._read(work, core)) for core in work.members]
        machine = self._cluster.machine(cores, traffic)
        contended = machine.fpu_shared or machine.divsqrt_shared
        if machine.banks_shared or (contended and len(cores) > 1):
            return self._price_together(work, cores, machine, traffic)
        return _team_cost(work, {core: self._price_alone(nest) for core, nest in cores})

    def _read(self, work: TeamWork, core: int) -> CoreNest:
        form = work.form(core)
        return self._reader.read(work.core(core)) if form is None else self._reader.read_form(form)

    def _members(self, cores: list[tuple[int, CoreNest]], machine: WindowHardware) -> tuple[Member, ...]:
        """Members with the skew of the fork: the master core works before or after its workers do."""
        unit = self._timing.event_unit
        master = unit.fork_master_cycles
        worker = unit.fork_push_cycles + unit.fork_worker_cycles
        first = min(master, worker)
        turn = machine.word_bytes * (machine.banks if machine.banks_shared else 1)
        members = []
        for core, nest in cores:
            start = (worker if core else master) - first if len(cores) > 1 else 0
            numbers: tuple[int, ...] = ()
            if machine.banks_shared or nest.shape.crosses:
                numbers = tuple([number % turn for number in nest.units_bytes + nest.anchors_bytes])
            members.append(Member(core, nest, start, numbers))
        return tuple(members)

    def _price_alone(self, nest: CoreNest) -> CoreCost:
        word = self._timing.l1.word_bytes
        phases: tuple[tuple[int, ...], ...] = ()
        if nest.shape.crosses:
            phases = tuple(
                (base % word, *(stride % word for stride in strides))
                for slot, (base, strides) in zip(nest.shape.slots, nest.addresses, strict=True)
                if slot.alignment == CROSSING
            )
        key = (nest.shape, nest.trips, nest.code_bytes, nest.layout, phases)
        cost = self._alone.get(key)
        if cost is None:
            timing = self._timing
            cost = self._cluster.alone(nest)
            if cost is None:
                cost = price_core(nest, timing.core, timing.fpu, timing.icache, word)
            self._answers += 1
            _remember(self._alone, key, cost)
        return cost

    def _price_together(
        self, work: TeamWork, cores: list[tuple[int, CoreNest]], machine: WindowHardware, traffic: Traffic
    ) -> TeamCost:
        members = self._members(cores, machine)
        key: tuple[object, ...] = (
            machine,
            traffic,
            work.size,
            tuple(
                [
                    (
                        member.core,
                        member.start_cycles,
                        member.nest.shape,
                        member.nest.trips,
                        member.nest.code_bytes,
                        member.nest.layout,
                        member.nest.places if member.numbers else None,
                        member.numbers,
                    )
                    for member in members
                ]
            ),
        )
        cost = self._together.get(key)
        if cost is None:
            priced = self._cluster.price(members, machine, traffic, self._window.starts)
            costs = [mean_cost(team) for team in zip(*(team for team, _ in priced), strict=True)]
            by_core = {member.core: core for member, core in zip(members, costs, strict=True)}
            # Where the oldest request comes first no start locks the DMA in step: one stands for all.
            services = [service for _, service in priced[: None if machine.banks_fair else 1]]
            cost = _team_cost(work, by_core, mean_service(services))
            self._answers += 1
            _remember(self._together, key, cost)
        return cost


def mean_cost(costs: Sequence[CoreCost]) -> CoreCost:
    """Mean of the costs of one core from several starts: whole cycles that still add up."""
    first = costs[0]
    if costs.count(first) == len(costs):
        return first
    totals: dict[str, int] = {}
    for cost in costs:
        for word, cycles in cost.stalls:
            totals[word] = totals.get(word, 0) + cycles
    stalls = {word: round(total / len(costs)) for word, total in totals.items()}
    if {"fpu", "divider"} <= stalls.keys():  # rounded together: a division may wait for either
        both = round((totals["fpu"] + totals["divider"]) / len(costs))
        stalls["divider"] = min(stalls["divider"], both)
        stalls["fpu"] = both - stalls["divider"]
    instructions = first.instructions
    return CoreCost(instructions + sum(stalls.values()), instructions, tuple(stalls.items()))


def mean_service(services: Sequence[DmaService | None]) -> DmaService | None:
    """What the DMA got from several starts together; None without traffic."""
    found = [service for service in services if service is not None]
    if not found:
        return None
    return DmaService(
        _sum_of([service.inward for service in found]), _sum_of([service.outward for service in found])
    )


def _sum_of(paces: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    moved = [pace for pace in paces if pace is not None]
    return (sum(words for words, _ in moved), sum(cycles for _, cycles in moved)) if moved else None


def _team_cost(work: TeamWork, costs: dict[int, CoreCost], dma: DmaService | None = None) -> TeamCost:
    nothing = CoreCost(0, 0)
    return TeamCost(tuple(costs.get(core, nothing) for core in range(work.size)), dma)


def _remember(memo: OrderedDict[_K, _V], key: _K, value: _V, entries: int = MEMO_ENTRIES) -> None:
    memo[key] = value
    if len(memo) > entries:
        memo.popitem(last=False)
