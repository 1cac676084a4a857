# SPDX-License-Identifier: Apache-2.0
"""How the ops of a graph may stream: what, through how many bytes of L2, and what that takes."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from arch.spec.timing import SocTiming
from configs.values import Struct, replace
from scheduler.fit.prices import Prices
from scheduler.fit.problem import Decisions, Problem, Stream, evaluate
from scheduler.tiles.l2_slots import OpStream
from scheduler.tiles.streaming_choice import Streamer
from scheduler.tiles.transfer_cost import UdmaCost
from trainlib.ir.graph import Op, TrainingGraph

LARGE = 1 / 32
"""Share of L2 from which on a storage may be streamed."""

MOST_STORAGES = 3
"""Of an op, the largest, of which any may be streamed."""


class Way(Struct, frozen=True):
    """An op that streams `storages` through `slot_bytes` of L2, as simulated; or, not `priced`, a bound.

    A bound is of all ways with at least `slot_bytes` and at most `most_bytes`.
    """

    storages: frozenset[str]
    slot_bytes: int
    most_bytes: int
    cycles: int
    cost: int
    bus_cycles: int
    priced: bool = False


@dataclass(eq=False)
class Streams:
    """The ways of the ops of one graph that the planner's `streamer` cuts; an op is simulated when asked.

    Until then it takes as long as with all in L2, or as the uDMA is busy. To price a bound splits it: with
    the most bytes there is room for, with the most it has, and bounds between; fewer bytes take no less time.
    Ways keep their numbers.
    """

    graph: TrainingGraph
    timing: SocTiming
    _streamer: Streamer
    _prices: Prices
    _known: dict[int, list[Way]] = field(default_factory=dict, init=False)

    def ways(self, number: int, movable: Collection[str]) -> Sequence[Way]:
        """Of an op, of which these storages may live in L3."""
        if number not in self._known:
            bounds = (self._bound(number, some) for some in self._sets(number, movable))
            self._known[number] = [way for way in bounds if way is not None]
        return self._known[number]

    def price(self, problem: Problem, decisions: Decisions, ends: float = math.inf) -> bool:
        """Simulate the ops that stream with the slots there is room for; whether there was a new one.

        What is left when the clock is at `ends` (`time.perf_counter`) stays a bound.
        """
        outcome = evaluate(problem, decisions)
        turns = {entry.task: turn for turn, entry in enumerate(outcome.entries) if not entry.again}
        new = False
        for number, chosen in sorted(decisions.streams):
            way = self._known[number][chosen]
            if not way.priced and time.perf_counter() < ends:
                room_bytes = problem.l2_bytes - outcome.live_bytes[turns[number]] + way.slot_bytes
                self._split(number, chosen, max(way.slot_bytes, min(way.most_bytes, room_bytes)))
                new = True
        return new

    def all_priced(self, decisions: Decisions) -> bool:
        """Whether all that streams has been simulated."""
        return all(self._known[number][chosen].priced for number, chosen in decisions.streams)

    def _split(self, number: int, chosen: int, most_bytes: int) -> None:
        op, ways = self.graph.ops[number], self._known[number]
        bound = ways[chosen]
        stream = self._streamer.choose(
            number, self._owners(op), dict.fromkeys(bound.storages, 0), most_bytes, bound.storages
        )
        assert stream is not None  # the fewest bytes of a bound are there, or a way with fewer is
        price = self._prices.streamed(self.graph, op, stream)
        ways[chosen] = Way(
            bound.storages,
            price.slot_bytes,
            most_bytes,
            price.cycles,
            price.cost,
            bound.bus_cycles,
            priced=True,
        )
        for place, other in enumerate(ways):  # to stream more takes no less time
            if other.storages > bound.storages and other.most_bytes <= most_bytes and not other.priced:
                ways[place] = replace(other, cycles=max(other.cycles, price.cycles))
        if bound.slot_bytes < price.slot_bytes:
            cycles = max(bound.cycles, price.cycles)
            ways.append(replace(bound, most_bytes=price.slot_bytes - 1, cycles=cycles))
        if most_bytes < bound.most_bytes:
            ways.append(replace(bound, slot_bytes=most_bytes + 1))
            self._split(number, len(ways) - 1, bound.most_bytes)

    def _sets(self, number: int, movable: Collection[str]) -> Iterator[frozenset[str]]:
        op, l2_bytes = self.graph.ops[number], self.timing.l2.size_bytes
        sizes = {name: self.graph.tensors[name].size_bytes for name in self._owners(op).values()}
        least_bytes = LARGE * l2_bytes if sum(sizes.values()) <= l2_bytes else 0
        able = [name for name in sizes if name in movable and sizes[name] >= least_bytes]
        able = sorted(able, key=lambda name: (-sizes[name], name))[:MOST_STORAGES]
        for bits in range(1, 1 << len(able)):
            yield frozenset(name for place, name in enumerate(able) if bits >> place & 1)

    def _owners(self, op: Op) -> Mapping[str, str]:
        return {name: self.graph.storage_of(name) for name in (*op.inputs, *op.outputs)}

    def _bound(self, number: int, storages: frozenset[str]) -> Way | None:
        op, udma = self.graph.ops[number], UdmaCost(self.timing)
        found = self._streamer.bounds(number, self._owners(op), storages)
        if found is None:
            return None
        least_bytes, most_bytes, busy_cycles = found
        whole, sizes = self._prices.of(op.name), _crossing(self.graph, op, storages)
        return Way(
            storages,
            least_bytes,
            most_bytes,
            max(whole.cycles, busy_cycles) + udma.set_up_cycles,
            whole.cost + sum(self._prices.copy_cost(size) for size in sizes),
            _bus_cycles(udma, sizes),
        )


def _crossing(graph: TrainingGraph, op: Op, storages: Collection[str]) -> list[int]:
    """Bytes of storages that an op reads or writes, once each way."""
    return [
        graph.tensors[name].size_bytes
        for names in (op.inputs, op.outputs)
        for name in sorted({graph.storage_of(name) for name in names}.intersection(storages))
    ]


def _bus_cycles(udma: UdmaCost, sizes: Collection[int]) -> int:
    return sum(udma.lines_cycles([size]) - udma.set_up_cycles for size in sizes)


def bus_cycles(graph: TrainingGraph, op: Op, stream: OpStream, timing: SocTiming) -> int:
    """For how long the uDMA is busy with what an op streams, at least."""
    storages = {graph.storage_of(name) for name in stream.tensors}
    return _bus_cycles(UdmaCost(timing), _crossing(graph, op, storages))


def stream_of(way: Way, numbers: Mapping[str, int]) -> Stream:
    """A way as a problem has it, its storages by number."""
    buffers = frozenset(numbers[name] for name in way.storages)
    return Stream(buffers, way.slot_bytes, way.cycles, way.cost, way.bus_cycles)
