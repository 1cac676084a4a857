"""Cluster micro-model: all cores of a team advance together and share banks, FPUs and the div/sqrt unit.

Rules of arbitration
- A bank serves one word per cycle, an FPU starts one operation per `interval_cycles`.
- A request that loses stays pending; its core waits. The oldest request is served first; among requests of
  the same cycle the lower core number wins, and cores win over DMA ports. Nobody starves, as under round
  robin.
- FPUs: `static` gives core c the unit c modulo count, `dynamic` the first free unit of the pool. The div/sqrt
  units are always a pool.
- DMA traffic: each direction has `dma.l1_bytes_per_cycle` of one-word ports; a free port takes the next word
  of an endless linear transfer, so a direction moves at full rate unless a bank holds a port up. (Loads
  measured beside DMA on GVSoC show that the DMA queues like a core and is not favoured; RTL with an
  alternating flag would give the DMA up to half of a contended bank.)

A loop nest is not executed whole. Innermost loops run a window of `LEAF_WARM_UP` iterations and then one
full turn of the banks that is measured; outer loops run as many iterations as `BUDGET_REQUESTS` allows, half
of them as warm-up. What the cores waited in the measured iterations is multiplied to the rest, level by
level. Everything that waiting cannot change (instructions, static stalls) is counted exactly, not
extrapolated. A nest smaller than the window is executed whole, and then the result is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from arch.code_fetch import icache_stall_cycles
from arch.pipeline import core_cost
from arch.pricing import CoreCost, Traffic
from arch.scoreboard import (
    BANK_CONFLICT,
    BRANCH_STALL,
    DIVSQRT_UNIT,
    FPU_STALL,
    FPU_UNIT,
    ICACHE,
    LOAD_USE,
    MEMORY,
    MISALIGNED,
    MULTICYCLE,
    STALL_WORDS,
    WHOLE_WORDS,
    Block,
    LoopNode,
    Nest,
    Shape,
)
from arch.timing import SocTiming
from arch.window import TIME_SCALE, Compiled, Machine, compile_shape

LEAF_WARM_UP = 8
"""Iterations of an innermost loop before the measured ones."""

BUDGET_REQUESTS = 8_000
"""Instructions of one core a window may execute in one run of an outer loop; at least two iterations run."""

MAX_CORES = 16
"""Cores of the largest team; higher requester numbers, up to `TIME_SCALE`, are DMA ports."""


@dataclass(frozen=True, slots=True)
class Window:
    """How much of a nest is executed: innermost warm-up, measured innermost iterations, budget outside."""

    leaf_warm_up: int = LEAF_WARM_UP
    leaf_measured: int = 0
    """0 means one turn of the banks."""
    budget_requests: int = BUDGET_REQUESTS


WHOLE_KERNEL = Window(leaf_warm_up=0, leaf_measured=1 << 60, budget_requests=1 << 60)
"""A window that executes everything: exact, for tests and as a yardstick."""


@dataclass(frozen=True, slots=True)
class Member:
    """One core of a team: its number in the cluster, its nest and when it starts after the first one."""

    core: int
    nest: Nest
    start_cycles: int = 0


_Loops = list[tuple[tuple[int, ...], int, float]]


class ClusterModel:
    """Prices teams whose cores can be in each other's way on the machine `timing`."""

    def __init__(self, timing: SocTiming, window: Window | None = None) -> None:
        self._timing = timing
        self._window = window if window is not None else Window()
        self._compiled: dict[tuple[Shape, Machine], Compiled] = {}
        self._units: dict[Shape, tuple[bool, bool, bool]] = {}

    def machine(self, members: tuple[Member, ...], traffic: Traffic) -> Machine:
        """Hardware as this team sees it: which units anybody else could occupy."""
        timing = self._timing
        used = [self._uses(member.nest.shape) for member in members]
        crowd = len(members) > 1
        memory = any(uses[0] for uses in used)
        fpu_users = [member.core for member, uses in zip(members, used, strict=True) if uses[1]]
        fpu_shared = False
        if timing.fpu.mapping == "static":
            fpu_shared = len({core % timing.fpu.count for core in fpu_users}) < len(fpu_users)
        elif timing.fpu.mapping == "dynamic":
            fpu_shared = len(fpu_users) * timing.fpu.interval_cycles > timing.fpu.count
        # A core is blocked while its division runs, but the unit may take longer to recover.
        div_overlap = -(-timing.fpu.divsqrt_interval_cycles // timing.fpu.divsqrt_latency_cycles)
        divsqrt_shared = sum(uses[2] for uses in used) * div_overlap > timing.fpu.divsqrt_count
        return Machine(
            banks=timing.l1.banks,
            word_bytes=timing.l1.word_bytes,
            banks_shared=timing.l1.bank_conflicts and memory and (crowd or traffic != Traffic.NONE),
            fpu_mapping=timing.fpu.mapping,
            fpu_shared=fpu_shared,
            fpu_interval_cycles=timing.fpu.interval_cycles,
            divsqrt_shared=divsqrt_shared,
            divsqrt_interval_cycles=timing.fpu.divsqrt_interval_cycles,
            branch_taken_stall_cycles=timing.core.branch_taken_stall_cycles,
            misaligned_stall_cycles=timing.core.misaligned_stall_cycles,
        )

    def _uses(self, shape: Shape) -> tuple[bool, bool, bool]:
        known = self._units.get(shape)
        if known is None:
            shared_memory = shape.uses(MEMORY) and bool(shape.slots)
            known = (shared_memory, shape.uses(FPU_UNIT), shape.uses(DIVSQRT_UNIT))
            self._units[shape] = known
        return known

    def price(self, members: tuple[Member, ...], machine: Machine, traffic: Traffic) -> tuple[CoreCost, ...]:
        """Cost of every member, in order, from its own start to its own end."""
        timing = self._timing
        bank_free = [0] * timing.l1.banks
        pooled = timing.fpu.mapping == "dynamic"
        fpu_free = [0] * (timing.fpu.count if pooled else max(timing.fpu.count, timing.cores, 1))
        div_free = [0] * timing.fpu.divsqrt_count
        running: list[Iterator[int] | None] = [None] * TIME_SCALE
        outcomes: list[list[float]] = []
        heap: list[int] = []
        for member in members:
            core = member.core
            outcome: list[float] = []
            outcomes.append(outcome)
            unit = core % timing.fpu.count if timing.fpu.mapping == "static" else core
            run = self._compile(member.nest.shape, machine).function(
                core,
                TIME_SCALE - core,
                unit,
                member.start_cycles * TIME_SCALE + core,
                bank_free,
                fpu_free,
                div_free,
                self._loops(member.nest),
                self._addresses(member.nest),
                outcome,
            )
            first = next(run)
            if first >= 0:
                running[core] = run
                heap.append(first)
        if machine.banks_shared:
            for requester, port in enumerate(self._dma_ports(traffic, bank_free), MAX_CORES):
                running[requester] = port
                heap.append(next(port))
        # A core that never asks for a shared unit has left its outcome already.
        _advance(heap, running, len(members) - sum(bool(outcome) for outcome in outcomes))
        return tuple(
            self._cost(member.nest, self._compile(member.nest.shape, machine), outcome)
            for member, outcome in zip(members, outcomes, strict=True)
        )

    def _compile(self, shape: Shape, machine: Machine) -> Compiled:
        key = (shape, machine)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = compile_shape(shape, machine)
        return compiled

    def _addresses(self, nest: Nest) -> list[tuple[int, tuple[int, ...]]]:
        """Slots as the compiled code wants them: in words where every address is one."""
        word = self._timing.l1.word_bytes
        return [
            (base // word, tuple([stride // word for stride in strides]))
            if info.alignment == WHOLE_WORDS
            else (base, strides)
            for info, (base, strides) in zip(nest.shape.slots, nest.addresses, strict=True)
        ]

    def _loops(self, nest: Nest) -> _Loops:
        """Per loop: segments to execute, their sum, and how often the measured one is to be added."""
        plan: _Loops = [((0,), 0, 0.0)] * len(nest.trips)
        window = self._window
        leaf_measured = window.leaf_measured or self._timing.l1.banks

        def size(nodes: tuple[Block | LoopNode, ...]) -> int:
            total = 0
            for node in nodes:
                if isinstance(node, Block):
                    total += len(node.steps)
                    continue
                trips = nest.trips[node.index]
                body = size(node.body)
                if all(isinstance(inner, Block) for inner in node.body):
                    warm, measured = window.leaf_warm_up, leaf_measured
                else:
                    # Cores start in step; half of the window is left for them to drift apart.
                    executed = window.budget_requests // max(1, body)
                    warm = max(1, executed // 2)
                    measured = max(1, executed - warm)
                if trips <= warm + measured:
                    plan[node.index] = ((trips,), trips, 0.0)
                    total += body * trips
                else:
                    executed = warm + measured
                    plan[node.index] = ((warm, measured), executed, (trips - executed) / measured)
                    total += body * executed
            return total

        size(nest.shape.body)
        return plan

    def _cost(self, nest: Nest, compiled: Compiled, outcome: list[float]) -> CoreCost:
        stalls = [0] * len(STALL_WORDS)
        instructions = 0
        branch = self._timing.core.branch_taken_stall_cycles
        for block in compiled.static:
            executions = _executions(nest, block.path)
            instructions += block.instructions * executions
            for cause, cycles in enumerate(block.stalls):
                if cycles:
                    stalls[cause] += cycles * executions
            for numerator, denominator in block.fractions:
                stalls[BRANCH_STALL] += executions * numerator // denominator * branch
        for loop in nest.shape.loops:
            trips = nest.trips[loop.index]
            if loop.closing and trips > 0:
                stalls[BRANCH_STALL] += _executions(nest, loop.path) * (trips - 1) * branch
        _, banks, fpus, misaligned, load_use, multicycle, fpu_latency = outcome
        for cause, waited in (
            (BANK_CONFLICT, banks),
            (FPU_STALL, fpus + fpu_latency),
            (MISALIGNED, misaligned),
            (LOAD_USE, load_use),
            (MULTICYCLE, multicycle),
        ):
            stalls[cause] += round(waited / TIME_SCALE)
        stalls[ICACHE] = icache_stall_cycles(nest, self._timing.icache)
        return core_cost(instructions, stalls)

    def _dma_ports(self, traffic: Traffic, bank_free: list[int]) -> list[Iterator[int]]:
        ports: list[Iterator[int]] = []
        requester = MAX_CORES
        for direction in (Traffic.IN, Traffic.OUT):
            if not traffic & direction:
                continue
            next_word = [0]
            for _ in range(self._timing.dma.l1_bytes_per_cycle // self._timing.l1.word_bytes):
                ports.append(_dma_port(requester, next_word, bank_free))
                requester += 1
        return ports


def _executions(nest: Nest, path: tuple[int, ...]) -> int:
    executions = 1
    for loop in path:
        executions *= max(0, nest.trips[loop])
    return executions


def _dma_port(requester: int, next_word: list[int], bank_free: list[int]) -> Iterator[int]:
    """One L1 port of the DMA: takes the next word of its direction as soon as the last one is through."""
    banks = len(bank_free)
    time = requester
    while True:
        yield time
        bank = next_word[0] % banks
        next_word[0] += 1
        free = bank_free[bank]
        if free > time:
            time = free + requester
        time += TIME_SCALE
        bank_free[bank] = time - requester


def _advance(heap: list[int], running: list[Iterator[int] | None], cores: int) -> None:
    """Resume requesters in order of (time, number) until the last core has ended."""
    if not cores:
        return
    heapify(heap)
    resume = [run.__next__ if run is not None else None for run in running]
    mask = TIME_SCALE - 1
    while True:
        advance = resume[heap[0] & mask]
        assert advance is not None
        following = advance()
        if following >= 0:
            heapreplace(heap, following)
            continue
        heappop(heap)
        cores -= 1
        if not cores:
            return
