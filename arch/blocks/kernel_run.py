# SPDX-License-Identifier: Apache-2.0
"""One kernel in progress on a team: progress at piecewise rates while DMA traffic comes and goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import lcm

import simpy

from arch.blocks.progress import Progress
from arch.pricing.cost_model import CoreCost, CostModel, DmaService, TeamCost, Traffic
from arch.spec.isa import TeamWork
from arch.systemc.module import Notification

DIFFERENT_PHASES = 4096
"""Ways in which traffic changed during a kernel whose stalls are remembered: cores and tiles are alike."""

Stalls = tuple[tuple[str, int], ...]
"""(word, cycles) lost."""


class Share(Progress):
    """The part of a kernel one core executes: when it starts and, as far as is known now, when it ends."""

    __slots__ = ("_phases", "cost")

    def __init__(self, start_cycles: int, cost: CoreCost) -> None:
        # `Progress.__init__`, written out: one of these is made for every core of every kernel.
        self.start_cycles = self._since = start_cycles
        self.cycles = cycles = cost.cycles
        self.end_cycles = start_cycles + cycles
        self._left = self._whole = 1
        self.cost = cost
        self._phases: list[tuple[Stalls, tuple[int, int]]] = []

    def change_rate(self, now: int, cost: CoreCost) -> None:
        """From `now` on the share advances as if it cost `cost` as a whole."""
        if now >= self.end_cycles or cost is self.cost or cost == self.cost:
            return
        done = self.change(now, cost.cycles)
        if done[0]:
            self._phases.append((self.cost.stalls, done))
        self.cost = cost

    @property
    def instructions(self) -> int:
        """Instructions issued from start to end; the traffic does not change the code."""
        return self.cost.instructions

    def stalls(self) -> Stalls:
        """(word, cycles) lost from start to end: phases weighted by the work done in them.

        Whole cycles that add up to duration - instructions; the largest fractions are rounded up.
        """
        if not self._phases:
            return self.cost.stalls
        phases = (*self._phases, (self.cost.stalls, self.left))
        return _shared_out(phases, self.end_cycles - self.start_cycles - self.instructions)


@lru_cache(DIFFERENT_PHASES)
def _shared_out(phases: tuple[tuple[Stalls, tuple[int, int]], ...], lost_cycles: int) -> Stalls:
    """`lost_cycles` by word: a phase has its stalls and (numerator, denominator) of the work done in it."""
    unit = lcm(*(part[1] for _, part in phases))
    exact: dict[str, int] = {}
    for stalls, (done, whole) in phases:
        weight = done * (unit // whole)
        for word, cycles in stalls:
            exact[word] = exact.get(word, 0) + cycles * weight
    if not exact:
        return ()
    rounded = {word: parts // unit for word, parts in exact.items()}
    missing = lost_cycles - sum(rounded.values())
    by_fraction = sorted(exact, key=lambda word: (-(exact[word] % unit), word))
    for position in range(missing):
        rounded[by_fraction[position % len(by_fraction)]] += 1
    return tuple((word, cycles) for word, cycles in rounded.items() if cycles)


def _waiting_for_code(cost: CoreCost, cycles: int) -> CoreCost:
    """The cost of a core that waits `cycles` for its code on top of its price."""
    stalls = dict(cost.stalls)
    stalls["icache"] = stalls.get("icache", 0) + cycles
    return CoreCost(cost.cycles + cycles, cost.instructions, tuple(stalls.items()))


class KernelRun:
    """A kernel from the first start to the last end over its team.

    `over` is notified at the last end. `starts` gives the start cycle of each core of the team, `code_stalls`
    the cycles by which a core takes longer than its price because its code is not in the caches. When the DMA
    traffic class changes, `retime` asks the cost model again; costs that do not differ change nothing. A
    kernel `alone` has no traffic beside it to the end, which then is no event. `cost` is the price it begins
    with, if the caller knows it.
    """

    def __init__(
        self,
        env: simpy.Environment,
        cost_model: CostModel,
        team: TeamWork,
        starts: Mapping[int, int],
        traffic: Traffic,
        code_stalls: Mapping[int, int] | None = None,
        alone: bool = False,
        cost: TeamCost | None = None,
    ) -> None:
        self._env = env
        self._cost_model = cost_model
        self._team = team
        self._code_stalls = code_stalls or {}
        self._cost = cost if cost is not None else cost_model.price(team, traffic)
        self._starts = starts
        self._costs = self._by_core(self._cost)
        self._shares: dict[int, Share] | None = None
        self._alarm_at = -1
        if not alone:
            self.over = Notification(env)
            self._set_alarm()

    @property
    def end_cycles(self) -> int:
        """The last end, as far as is known now."""
        if self._shares is None:
            costs = self._costs
            return max([start + costs[core].cycles for core, start in self._starts.items()])
        return max([share.end_cycles for share in self._shares.values()])

    @property
    def shares(self) -> dict[int, Share]:
        """The part of each core. Most kernels end at the price they began with and never ask."""
        if self._shares is None:
            self._shares = {core: Share(start, self._costs[core]) for core, start in self._starts.items()}
        return self._shares

    def share(self, core: int) -> tuple[int, int, Stalls, int]:
        """(start, end, stalls, instructions) of a core in a kernel that is over."""
        if self._shares is None:
            cost, start = self._costs[core], self._starts[core]
            return start, start + cost.cycles, cost.stalls, cost.instructions
        share = self._shares[core]
        return share.start_cycles, share.end_cycles, share.stalls(), share.instructions

    @property
    def steady_costs(self) -> Sequence[CoreCost] | None:
        """The price of a kernel that began and ended at it, by core id; None for any other."""
        return None if self._shares is not None or self._code_stalls else self._costs

    @property
    def dma(self) -> DmaService | None:
        """What the kernel leaves of L1 to the DMA, under the traffic of now."""
        return self._cost.dma

    def retime(self, traffic: Traffic) -> None:
        """The DMA traffic class becomes `traffic` now."""
        cost = self._cost_model.price(self._team, traffic)
        if cost is self._cost:
            return
        same, self._cost = cost == self._cost, cost
        if same:
            return
        costs = self._by_core(cost)
        now = int(self._env.now)
        for core, share in self.shares.items():
            share.change_rate(now, costs[core])
        self._set_alarm()

    def _by_core(self, cost: TeamCost) -> Sequence[CoreCost]:
        """Costs by core id: a price lists all cores."""
        if not self._code_stalls:
            return cost.cores
        by_core = list(cost.cores)
        for core, cycles in self._code_stalls.items():
            by_core[core] = _waiting_for_code(by_core[core], cycles)
        return by_core

    def _set_alarm(self) -> None:
        end = self.end_cycles
        if end != self._alarm_at:
            self._alarm_at = end
            self._env.timeout(max(0, end - self._env.now), end).callbacks.append(self._ring)

    def _ring(self, alarm: simpy.Event) -> None:
        # An alarm set before the rates changed is stale; the newest one decides.
        if alarm.value == self._alarm_at and not self.over.triggered:
            self.over.fire()
