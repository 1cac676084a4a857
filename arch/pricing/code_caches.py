# SPDX-License-Identifier: Apache-2.0
"""Whose code is in the instruction caches: what a kernel waits for its code when it is called.

The price of a kernel (`arch.pricing.team_cost_model`) is that of a warm call: its lines are where they were
when it ran last. Here is what is missing of them, because it has not run yet or because others ran in
between. The unit is the kernel: of each, the caches hold a number of lines, the shared cache for all cores,
the private cache for each core. Room for a kernel is made from the kernels called longest ago. A kernel too
large for a cache leaves in it what `arch.pricing.code_fetch` says survives until the next pass.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from arch.pricing.code_fetch import code_lines, private_miss_share, refill_stall_cycles, shared_miss_share
from arch.pricing.code_refills import surviving_share
from arch.spec.isa import CoreWork, Skeleton, TeamWork
from arch.spec.timing import IcacheTiming

WARM, STEADY, COLD = "warm", "steady", "cold"
CODE_STARTS = (WARM, STEADY, COLD)
"""Warm: every kernel finds its code, as in the measurements, which repeat one kernel. Steady: the caches hold
what an earlier run of the same program left. Cold: they are empty."""


class _Cache:
    """Lines per kernel, the kernel called longest ago first."""

    def __init__(self, capacity_lines: int) -> None:
        self._free = self._capacity = capacity_lines
        self._lines: OrderedDict[str, int] = OrderedDict()

    def held(self, kernel: str) -> int:
        return self._lines.get(kernel, 0)

    def keep(self, kernel: str, lines: int) -> None:
        """`kernel` has run: so many of its lines are here now; older kernels make room."""
        lines = min(lines, self._capacity)
        self._free += self._lines.pop(kernel, 0)
        while self._free < lines:
            oldest, held = next(iter(self._lines.items()))
            given = min(held, lines - self._free)
            self._free += given
            if given == held:
                del self._lines[oldest]
            else:
                self._lines[oldest] = held - given
        self._free -= lines
        self._lines[kernel] = lines


class CodeCaches:
    """The private caches of the cores and the one they share; a kernel is known by its name."""

    def __init__(self, cores: int, icache: IcacheTiming) -> None:
        self._icache = icache
        self._shared = _Cache(icache.shared_bytes // icache.line_bytes)
        self._private = tuple(_Cache(icache.private_bytes // icache.line_bytes) for _ in range(cores))
        self._known: dict[tuple[int, int], tuple[CoreWork | Skeleton, int]] = {}

    def call(self, team: TeamWork) -> Mapping[int, int]:
        """The team runs its kernel: stall cycles of each core that waits for code, by core id.

        A line that is nowhere costs every core `shared_refill_stall_cycles`: all want it at about the same
        time and the shared cache fetches it once. One that the shared cache has costs
        `private_refill_stall_cycles`. What the price of a warm call has for either is taken off.
        A prefetcher has asked for the line behind the code as soon as it has taken all words of the last one,
        and the return waits for the answer: the instruction port of a core carries one request at a time.
        """
        icache, kernel = self._icache, team.kernel
        fetch = icache.fetch_bytes_per_cycle
        behind_cycles = icache.shared_refill_stall_cycles - icache.line_bytes // fetch if fetch else 0
        lines = {core: self._lines(team, core) for core in team.members}
        most = max(lines.values(), default=0)
        held = self._shared.held(kernel)
        stalls: dict[int, int] = {}
        for core, wanted in lines.items():
            absent = max(0, wanted - held)
            cache = self._private[core]
            near = max(0, wanted - absent - cache.held(kernel))
            priced = (1 - surviving_share(wanted, icache)) * refill_stall_cycles(wanted, icache)
            cycles = round(
                absent * (icache.shared_refill_stall_cycles - priced)
                + near * (icache.private_refill_stall_cycles - priced)
                + (max(0, behind_cycles) if absent else 0)
            )
            if cycles > 0:
                stalls[core] = cycles
            kept = math.floor(wanted * (1 - private_miss_share(wanted, icache)))
            cache.keep(kernel, max(kept, cache.held(kernel)))
        left = max(most, held)
        self._shared.keep(kernel, math.floor(left * (1 - shared_miss_share(left, icache))))
        return stalls

    def warm_up(self, teams: Iterable[TeamWork]) -> None:
        """Run kernels, in order, without asking what they cost."""
        for team in teams:
            self.call(team)

    def _lines(self, team: TeamWork, core: int) -> int:
        # Cores and tiles share bodies; an entry keeps its body, so that its identity stays taken.
        form = team.form(core)
        work = team.core(core) if form is None else form.skeleton
        key = (id(work.body), work.code_bytes)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (work, code_lines(work, self._icache))
        return known[1]
