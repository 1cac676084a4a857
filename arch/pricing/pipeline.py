# SPDX-License-Identifier: Apache-2.0
"""Pipeline model: what a kernel costs one core that nobody disturbs, evaluated on the loop nest itself.

An in-order single-issue scoreboard walks the tree. A loop is not unrolled: once the state at the start of
an iteration (registers not ready yet, busy units, branch counters, alignments) equals the state at an earlier
start, the iterations between are multiplied. The result equals full unrolling exactly.
"""

from __future__ import annotations

from heapq import heapreplace

from arch.pricing.code_fetch import icache_stall_cycles
from arch.pricing.cost_model import CoreCost
from arch.pricing.scoreboard import (
    BRANCH_STALL,
    DIVIDER,
    DIVSQRT_UNIT,
    FPU_STALL,
    FPU_UNIT,
    ICACHE,
    MEMORY,
    MISALIGNED,
    STALL_WORDS,
    CodeBlock,
    CoreNest,
    LoopNode,
)
from arch.spec.timing import CoreTiming, FpuTiming, IcacheTiming

_Units = tuple[int, ...]
_Key = tuple[tuple[tuple[int, int, int], ...], _Units, _Units, tuple[int, ...], tuple[int, ...]]
"""State of a core: pending results, busy FPUs, busy div/sqrt units, branch counters, alignments."""


def price_core(
    nest: CoreNest, core: CoreTiming, fpu: FpuTiming, icache: IcacheTiming, word_bytes: int
) -> CoreCost:
    """Cost of `nest` on one core with every unit to itself: cycles = instructions + named stalls."""
    walker = _Walker(nest, core, fpu, word_bytes)
    walker.walk(nest.shape.body)
    stalls = list(walker.stalls)
    stalls[ICACHE] = icache_stall_cycles(nest, icache)
    return core_cost(walker.instructions, stalls)


def core_cost(instructions: int, stalls: list[int]) -> CoreCost:
    """A `CoreCost` from stalls in the order of `STALL_WORDS`; words of 0 cycles are left out."""
    named = tuple([item for item in zip(STALL_WORDS, stalls, strict=True) if item[1]])
    return CoreCost(instructions + sum(stalls), instructions, named)


class _Walker:
    """Scoreboard of one core: time of the next issue slot and everything that outlives an instruction."""

    def __init__(self, nest: CoreNest, core: CoreTiming, fpu: FpuTiming, word_bytes: int) -> None:
        self._nest = nest
        self._branch_stall = core.branch_taken_stall_cycles
        self._misaligned_stall = core.misaligned_stall_cycles
        self._fpu_interval = fpu.interval_cycles
        self._div_interval = fpu.divsqrt_interval_cycles
        self._word = word_bytes
        self.time = 0
        self.instructions = 0
        self.stalls = [0] * len(STALL_WORDS)
        self._ready: dict[int, tuple[int, int]] = {}
        self._fpu_free = [0] * (fpu.count if fpu.mapping == "dynamic" else 1)
        self._div_free = [0] * fpu.divsqrt_count
        self._phases = [0] * nest.shape.branches
        self._moving = [slot for slot, info in enumerate(nest.shape.slots) if info.crosses]
        addresses = nest.addresses if self._moving else []
        self._address = [base for base, _ in addresses]
        self._strides = [strides for _, strides in addresses]
        self._memo: dict[tuple[int, _Key], tuple[int, int, list[int], _Key]] = {}

    def walk(self, nodes: tuple[CodeBlock | LoopNode, ...]) -> None:
        """Execute `nodes` once."""
        for node in nodes:
            if isinstance(node, CodeBlock):
                self._block(node)
            else:
                self._loop(node)

    def _loop(self, loop: LoopNode) -> None:
        trips = self._nest.trips[loop.index]
        if trips <= 0:
            return
        memo_key = (loop.index, self._state())
        known = self._memo.get(memo_key)
        start = (self.time, self.instructions, list(self.stalls))
        if known is not None:
            self._advance(known[0], known[1], known[2], 1)
            self._restore(known[3])
            return
        self._iterate(loop, trips)
        spent = [after - before for after, before in zip(self.stalls, start[2], strict=True)]
        self._memo[memo_key] = (self.time - start[0], self.instructions - start[1], spent, self._state())

    def _iterate(self, loop: LoopNode, trips: int) -> None:
        seen: dict[_Key, tuple[int, int, int, list[int]]] = {}
        depth = len(loop.path)
        moving = [
            (slot, self._strides[slot][depth])
            for slot in self._moving
            if loop.index in self._nest.shape.slots[slot].path
        ]
        done = 0
        searching = True
        while done < trips:
            if searching:
                state = self._state()
                earlier = seen.get(state)
                if earlier is None:
                    seen[state] = (done, self.time, self.instructions, list(self.stalls))
                else:
                    # The last iteration is left to be walked: its closing branch falls through.
                    period = done - earlier[0]
                    repeats = (trips - 1 - done) // period
                    spent = [after - before for after, before in zip(self.stalls, earlier[3], strict=True)]
                    self._advance(self.time - earlier[1], self.instructions - earlier[2], spent, repeats)
                    self._restore(state)
                    done += period * repeats
                    for slot, stride in moving:
                        self._address[slot] += stride * period * repeats
                    searching = False
            self.walk(loop.body)
            done += 1
            if loop.closing and done < trips:
                self._stall(self._branch_stall, BRANCH_STALL)
            for slot, stride in moving:
                self._address[slot] += stride
        for slot, stride in moving:
            self._address[slot] -= stride * trips

    def _block(self, block: CodeBlock) -> None:
        self.instructions += len(block.steps)
        ready = self._ready
        for step in block.steps:
            for register in step.srcs:
                pending = ready.get(register)
                if pending is not None and pending[0] > self.time:
                    self._stall(pending[0] - self.time, pending[1])
            rule = step.rule
            if rule.unit == FPU_UNIT:
                self._take(self._fpu_free, self._fpu_interval, FPU_STALL)
            elif rule.unit == DIVSQRT_UNIT:
                self._take(self._div_free, self._div_interval, DIVIDER)
            elif rule.unit == MEMORY and step.slot >= 0 and self._nest.shape.slots[step.slot].crosses:
                offset = self._address[step.slot] % self._word
                if offset + step.width_bytes > self._word:
                    self._stall(self._misaligned_stall, MISALIGNED)
            for register, cycles, cause in step.writes:
                ready[register] = (self.time + cycles, cause)
            self.time += 1
            if rule.occupancy_cycles > 1:
                self._stall(rule.occupancy_cycles - 1, rule.occupancy_cause)
            numerator, denominator = step.taken
            if step.branch >= 0:
                phase = self._phases[step.branch] + numerator
                if phase >= denominator:
                    phase -= denominator
                    self._stall(self._branch_stall, BRANCH_STALL)
                self._phases[step.branch] = phase
            elif numerator:
                self._stall(self._branch_stall, BRANCH_STALL)

    def _take(self, free: list[int], interval_cycles: int, cause: int) -> None:
        """Start an operation on the unit of a pool that is free first."""
        if free[0] > self.time:
            self._stall(free[0] - self.time, cause)
        heapreplace(free, self.time + interval_cycles)

    def _stall(self, cycles: int, cause: int) -> None:
        self.time += cycles
        self.stalls[cause] += cycles

    def _state(self) -> _Key:
        """Everything that decides what happens next, relative to now."""
        time = self.time
        pending = tuple(
            sorted((reg, ready - time, cause) for reg, (ready, cause) in self._ready.items() if ready > time)
        )
        return (
            pending,
            tuple(sorted(max(0, free - time) for free in self._fpu_free)),
            tuple(sorted(max(0, free - time) for free in self._div_free)),
            tuple(self._phases),
            tuple(self._address[slot] % self._word for slot in self._moving),
        )

    def _restore(self, state: _Key) -> None:
        """Put the pending results of `state` (as `_state` gave it) at the present time."""
        pending, fpu_free, div_free, phases, _ = state
        self._ready = {reg: (self.time + offset, cause) for reg, offset, cause in pending}
        self._fpu_free = [self.time + free for free in fpu_free]
        self._div_free = [self.time + free for free in div_free]
        self._phases = list(phases)

    def _advance(self, time: int, instructions: int, stalls: list[int], times: int) -> None:
        self.time += time * times
        self.instructions += instructions * times
        for cause, cycles in enumerate(stalls):
            self.stalls[cause] += cycles * times
