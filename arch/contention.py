"""Cluster micro-model: all cores of a team advance together and share banks, FPUs and the div/sqrt unit.

Rules of arbitration
- A bank serves one word per cycle, an FPU starts one operation per `interval_cycles`.
- A request that loses stays pending; its core waits. The oldest request is served first. Among requests of
  the same cycle `in_order` prefers the lower core number, `rotating` the first core from (cycle modulo cores)
  on; cores win over DMA ports. Nobody starves, as under the round robin of the hardware.
- FPUs: `static` gives core c the unit c modulo count, `dynamic` the first free unit of the pool. The div/sqrt
  units are always a pool.
- DMA traffic: each direction has `dma.l1_bytes_per_cycle` of one-word ports; a free port takes the next word
  of an endless linear transfer, so a direction moves at full rate unless a bank holds a port up. (Loads
  measured beside DMA on GVSoC show that the DMA queues like a core and is not favoured; RTL with an
  alternating flag would give the DMA up to half of a contended bank.)

A team that executes no more than `BUDGET_INSTRUCTIONS` is executed whole, and then the result is
exact. Of a longer one a window is executed: see `Window`. What the cores waited in the measured iterations is
multiplied to the rest, level by level. Everything that waiting cannot change (instructions, static stalls) is
counted exactly, not extrapolated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from arch.pipeline import core_cost
from arch.pricing import CoreCost, DmaService, Traffic
from arch.scoreboard import (
    BANK_CONFLICT,
    DIVSQRT_UNIT,
    FPU_STALL,
    FPU_UNIT,
    LOAD_USE,
    MEMORY,
    MISALIGNED,
    MULTICYCLE,
    WHOLE_WORDS,
    Nest,
    Shape,
)
from arch.timing import SocTiming
from arch.window import REQUESTERS, TIME_SCALE, Generator, generator_of
from arch.window_plan import Plan, Window, fixed_cost, plan_of, segments
from arch.window_program import Machine, Program, window_program

MAX_CORES = 16
"""Cores of the largest team; higher requester numbers, up to `REQUESTERS`, are DMA ports."""


@dataclass(frozen=True, slots=True)
class Member:
    """One core of a team: its number in the cluster, its nest and when it starts after the first one."""

    core: int
    nest: Nest
    start_cycles: int = 0


_Moved = tuple[int, int]
"""Words the DMA moved in one direction, and the cycles that took."""

_Fixed = tuple[int, tuple[int, ...]]
"""Instructions of a core and its stalls that no waiting can change."""

_Outcome = tuple[float, ...]
"""End of a core in cycles, and its counters (`arch.window_program.COUNTERS`) in steps of the engine."""


class ClusterModel:
    """Prices teams whose cores can be in each other's way on the machine `timing`."""

    def __init__(self, timing: SocTiming, window: Window | None = None) -> None:
        self._timing = timing
        self._window = window if window is not None else Window()
        self._programs: dict[tuple[Shape, Machine], Program] = {}
        self._generators: dict[Program, Generator] = {}
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
            banks_rotate=timing.cores if timing.l1.arbitration == "rotating" else 0,
            fpu_mapping=timing.fpu.mapping,
            fpu_shared=fpu_shared,
            fpus_rotate=timing.cores if timing.fpu.arbitration == "rotating" else 0,
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

    def price(
        self, members: tuple[Member, ...], machine: Machine, traffic: Traffic
    ) -> tuple[tuple[CoreCost, ...], DmaService | None]:
        """Cost of every member, in order, from its own start to its own end, and what the DMA got."""
        programs = [self._program(member.nest.shape, machine) for member in members]
        plans: list[Plan] = []
        fixed: list[_Fixed] = []
        # Most cores of a team have the same trip counts; what depends on nothing else is worked out once.
        known: dict[tuple[object, ...], tuple[Plan, _Fixed]] = {}
        for member, program in zip(members, programs, strict=True):
            nest = member.nest
            key = (nest.shape, nest.trips, nest.code_bytes)
            if key not in known:
                plan = plan_of(nest, self._window, machine.banks, len(members))
                known[key] = (plan, fixed_cost(nest, program, self._timing))
            plans.append(known[key][0])
            fixed.append(known[key][1])
        outcomes, inward, outward = self._run(members, programs, plans, machine, traffic)
        costs = tuple(_cost(core, outcome) for core, outcome in zip(fixed, outcomes, strict=True))
        if not (machine.banks_shared and traffic):
            return costs, None
        return costs, DmaService(inward if inward[0] else None, outward if outward[0] else None)

    def _units_of(self, machine: Machine) -> tuple[int, int]:
        """Entries of the FPU list and whether it is a pool."""
        timing = self._timing
        pooled = machine.fpu_mapping == "dynamic"
        return (timing.fpu.count if pooled else max(timing.fpu.count, timing.cores, MAX_CORES)), pooled

    def _unit_of(self, core: int) -> int:
        fpu = self._timing.fpu
        return core % fpu.count if fpu.mapping == "static" else core

    def _run(
        self,
        members: tuple[Member, ...],
        programs: list[Program],
        plans: list[Plan],
        machine: Machine,
        traffic: Traffic,
    ) -> tuple[list[_Outcome], _Moved, _Moved]:
        timing = self._timing
        bank_free = [0] * timing.l1.banks
        fpu_free = [0] * self._units_of(machine)[0]
        div_free = [0] * timing.fpu.divsqrt_count
        running: list[Iterator[int] | None] = [None] * REQUESTERS
        outcomes: list[list[float]] = []
        heap: list[int] = []
        for member, program, plan in zip(members, programs, plans, strict=True):
            core = member.core
            outcome: list[float] = []
            outcomes.append(outcome)
            run = self._generator(program, member.nest.shape, machine)(
                core,
                TIME_SCALE - core,
                self._unit_of(core),
                member.start_cycles * TIME_SCALE + core,
                bank_free,
                fpu_free,
                div_free,
                [segments(*counts) for counts in plan],
                self._addresses(member.nest),
                outcome,
            )
            first = next(run)
            if first >= 0:
                running[core] = run
                heap.append(first)
        moved = {direction: [0, 0] for direction in (Traffic.IN, Traffic.OUT) if traffic & direction}
        if machine.banks_shared:
            for requester, port in enumerate(self._dma_ports(moved, bank_free), MAX_CORES):
                running[requester] = port
                heap.append(next(port))
        # A core that never asks for a shared unit has left its outcome already.
        _advance(heap, running, len(members) - sum(bool(outcome) for outcome in outcomes))
        (words_in, until_in), (words_out, until_out) = (
            moved.get(direction, [0, 0]) for direction in (Traffic.IN, Traffic.OUT)
        )
        inward, outward = (words_in, until_in // TIME_SCALE), (words_out, until_out // TIME_SCALE)
        return [tuple(outcome) for outcome in outcomes], inward, outward

    def _program(self, shape: Shape, machine: Machine) -> Program:
        key = (shape, machine)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = window_program(shape, machine)
        return program

    def _generator(self, program: Program, shape: Shape, machine: Machine) -> Generator:
        generator = self._generators.get(program)
        if generator is None:
            generator = self._generators[program] = generator_of(program, shape, machine)
        return generator

    def _addresses(self, nest: Nest) -> list[tuple[int, tuple[int, ...]]]:
        """Slots as a window wants them: in words where every address is one."""
        word = self._timing.l1.word_bytes
        return [
            (base // word, tuple([stride // word for stride in strides]))
            if info.alignment == WHOLE_WORDS
            else (base, strides)
            for info, (base, strides) in zip(nest.shape.slots, nest.addresses, strict=True)
        ]

    def _dma_ports(self, moved: dict[Traffic, list[int]], bank_free: list[int]) -> list[Iterator[int]]:
        """Ports of the directions of `moved`, which count their words there."""
        ports: list[Iterator[int]] = []
        requester = MAX_CORES
        for service in moved.values():
            for _ in range(self._timing.dma.l1_bytes_per_cycle // self._timing.l1.word_bytes):
                ports.append(_dma_port(requester, service, bank_free))
                requester += 1
        return ports


def _cost(fixed: _Fixed, outcome: _Outcome) -> CoreCost:
    """A core's cost from what cannot change and what it waited."""
    stalls = list(fixed[1])
    _, banks, fpus, misaligned, load_use, multicycle, fpu_latency = outcome
    for cause, waited in (
        (BANK_CONFLICT, banks),
        (FPU_STALL, fpus + fpu_latency),
        (MISALIGNED, misaligned),
        (LOAD_USE, load_use),
        (MULTICYCLE, multicycle),
    ):
        stalls[cause] += round(waited / TIME_SCALE)
    return core_cost(fixed[0], stalls)


def _dma_port(requester: int, service: list[int], bank_free: list[int]) -> Iterator[int]:
    """One L1 port of the DMA: takes the next word of its direction as soon as the last one is through.

    `service` counts the words of the direction and holds the time at which the last one was through.
    """
    banks = len(bank_free)
    time = 0
    while True:
        yield time + requester * (REQUESTERS + 1)
        bank = service[0] % banks
        service[0] += 1
        time = max(time, bank_free[bank]) + TIME_SCALE
        bank_free[bank] = time
        service[1] = max(service[1], time)


def _advance(heap: list[int], running: list[Iterator[int] | None], cores: int) -> None:
    """Resume requesters in order of (time, number) until the last core has ended."""
    if not cores:
        return
    heapify(heap)
    resume = [run.__next__ if run is not None else None for run in running]
    mask = REQUESTERS - 1
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
