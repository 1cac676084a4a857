"""The pricer the cluster asks: picks the model a team needs and remembers every answer."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from arch.contention import MAX_CORES, ClusterModel, Member, Window
from arch.isa import TeamWork
from arch.pipeline import price_core
from arch.pricing import CoreCost, TeamCost, Traffic
from arch.scoreboard import CROSSING, Nest, NestReader, Shape
from arch.timing import SocTiming
from arch.window import Machine
from configs.errors import InputError

MEMO_ENTRIES = 20_000
"""Answers kept by content; the oldest is dropped first."""

OBJECT_ENTRIES = 4_000
"""Works recognised by identity, which saves reading them; each entry keeps its work alive."""

_K = TypeVar("_K")
_V = TypeVar("_V")
_NestKey = tuple[Shape, tuple[int, ...], int, tuple[tuple[int, ...], ...]]


class TeamPricer:
    """Implements `arch.pricing.Pricer` for the machine `timing`.

    Cores that cannot meet at a bank, an FPU or the div/sqrt unit are priced one by one by the exact pipeline
    model; a team that can is advanced together by `ClusterModel`. Workers start with the skew of the fork
    (`event_unit`). Icache stalls are added after either model. Answers are memoised by content: shapes
    of the nests, trip counts, addresses and strides modulo one turn of the banks, cores, and traffic.
    """

    def __init__(self, timing: SocTiming, window: Window | None = None) -> None:
        self._timing = timing
        self._reader = NestReader(timing.core, timing.fpu, timing.l1.word_bytes)
        self._cluster = ClusterModel(timing, window)
        self._alone: OrderedDict[_NestKey, CoreCost] = OrderedDict()
        self._together: OrderedDict[tuple[object, ...], TeamCost] = OrderedDict()
        self._by_object: OrderedDict[tuple[int, Traffic], tuple[TeamWork, TeamCost]] = OrderedDict()

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        """Price `work`, one `CoreCost` per entry of `work.cores` (zero for a core that takes no part).

        Raises `InputError` if an address stream does not match the loops it is used in, or if there are more
        than `MAX_CORES` cores.
        """
        object_key = (id(work), traffic)
        known = self._by_object.get(object_key)
        if known is not None and known[0] is work:
            return known[1]
        cost = self._price(work, traffic)
        _remember(self._by_object, object_key, (work, cost), OBJECT_ENTRIES)
        return cost

    def _price(self, work: TeamWork, traffic: Traffic) -> TeamCost:
        if len(work.cores) > MAX_CORES:
            raise InputError(
                f"a team of {len(work.cores)} cores; the model goes up to {MAX_CORES}",
                where=work.kernel,
                cure="use fewer cores",
            )
        nests: dict[int, Nest] = {}
        members = []
        for core, core_work in enumerate(work.cores):
            if core_work is None:
                continue
            nest = nests.get(id(core_work))
            if nest is None:
                nest = nests[id(core_work)] = self._reader.read(core_work)
            members.append(Member(core, nest))
        machine = self._cluster.machine(tuple(members), traffic)
        contended = machine.fpu_shared or machine.divsqrt_shared
        if machine.banks_shared or (contended and len(members) > 1):
            return self._price_together(work, self._with_starts(members), machine, traffic)
        costs = {member.core: self._price_alone(member.nest) for member in members}
        return _team_cost(work, costs)

    def _with_starts(self, members: list[Member]) -> tuple[Member, ...]:
        """Members with the skew of the fork: the master core works before or after its workers do."""
        if len(members) == 1:
            return tuple(members)
        unit = self._timing.event_unit
        master = unit.fork_master_cycles
        worker = unit.fork_push_cycles + unit.fork_worker_cycles
        first = min(master, worker)
        return tuple(
            Member(member.core, member.nest, (worker if member.core else master) - first)
            for member in members
        )

    def _price_alone(self, nest: Nest) -> CoreCost:
        word = self._timing.l1.word_bytes
        phases = tuple(
            (base % word, *(stride % word for stride in strides))
            for slot, (base, strides) in zip(nest.shape.slots, nest.addresses, strict=True)
            if slot.alignment == CROSSING
        )
        key = (nest.shape, nest.trips, nest.code_bytes, phases)
        cost = self._alone.get(key)
        if cost is None:
            timing = self._timing
            cost = price_core(nest, timing.core, timing.fpu, timing.icache, word)
            _remember(self._alone, key, cost)
        return cost

    def _price_together(
        self, work: TeamWork, members: tuple[Member, ...], machine: Machine, traffic: Traffic
    ) -> TeamCost:
        turn = self._timing.l1.word_bytes * (self._timing.l1.banks if machine.banks_shared else 1)
        key: tuple[object, ...] = (
            machine,
            traffic,
            len(work.cores),
            tuple(
                (
                    member.core,
                    member.start_cycles,
                    member.nest.shape,
                    member.nest.trips,
                    member.nest.code_bytes,
                    tuple(
                        (base % turn, tuple([stride % turn for stride in strides]))
                        for base, strides in member.nest.addresses
                    ),
                )
                for member in members
            ),
        )
        cost = self._together.get(key)
        if cost is None:
            costs = self._cluster.price(members, machine, traffic)
            by_core = {member.core: core for member, core in zip(members, costs, strict=True)}
            cost = _team_cost(work, by_core)
            _remember(self._together, key, cost)
        return cost


def _team_cost(work: TeamWork, costs: dict[int, CoreCost]) -> TeamCost:
    nothing = CoreCost(0, 0)
    return TeamCost(tuple(costs.get(core, nothing) for core in range(len(work.cores))))


def _remember(memo: OrderedDict[_K, _V], key: _K, value: _V, entries: int = MEMO_ENTRIES) -> None:
    memo[key] = value
    if len(memo) > entries:
        memo.popitem(last=False)
