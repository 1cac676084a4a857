# SPDX-License-Identifier: Apache-2.0
"""Cluster micro-model: all cores of a team advance together and share banks, FPUs and the div/sqrt unit.

Rules of arbitration
- A bank serves one word per cycle, an FPU starts one operation per `interval_cycles`.
- A request that loses stays pending; its core waits. Under `in_order` and `rotating` the oldest request is
  served first; among those of the same cycle the lower core number, or the first core from (cycle modulo
  cores) on. Cores and DMA ports of a bank stand in one queue, cores before DMA ports of the same cycle (loads
  measured beside DMA on GVSoC show that the DMA queues like a core and is not favoured).
- Under `round_robin` every bank has a fair tree of arbiters (of the kind of `rr_arb_tree` of common_cells,
  fair): a binary tree over cores and DMA ports and a pointer. A node with requests on both sides follows its
  bit of the pointer, which moves on with every grant to the next requester behind it. Who comes too late for
  the pointer waits for it to come round; nobody starves.
- FPUs: `static` gives core c the unit c modulo count, `dynamic` the first free unit of the pool. The div/sqrt
  units are always a pool.
- DMA traffic: each direction has `dma.l1_bytes_per_cycle` of one-word ports and moves an endless linear
  transfer at full rate unless a bank holds a port up. A free port takes the next word by itself; under
  `round_robin` the ports go together, as the 64 bit beats of the RTL: one that waits holds up the whole beat,
  and bursts have their gaps between them.

A team that executes no more than `BUDGET_INSTRUCTIONS` is executed whole, and then the result is
exact. Of a longer one a window is executed: see `PricingWindow`. What the cores waited in the measured
iterations is
multiplied to the rest, level by level. Everything that waiting cannot change (instructions, static stalls) is
counted exactly, not extrapolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from arch.pricing.cost_model import CoreCost, DmaService, Traffic
from arch.pricing.pipeline import core_cost
from arch.pricing.scoreboard import (
    BANK_CONFLICT,
    DIVIDER,
    DIVSQRT_UNIT,
    FPU_STALL,
    FPU_UNIT,
    LOAD_USE,
    MEMORY,
    MISALIGNED,
    MULTICYCLE,
    CoreNest,
    Shape,
)
from arch.pricing.window import PROCESS, Engine, EngineChoice
from arch.pricing.window_engine import (
    CODE_BITS,
    COUNTERS,
    DAYS,
    MAX_LEAVES,
    NEVER,
    NEXT_DIV,
    NEXT_FPU,
    STATES,
    Code,
    Ints,
    Requests,
    Rules,
    Specials,
    Team,
)
from arch.pricing.window_plan import Plan, PricingWindow, fixed_cost, plan_of
from arch.pricing.window_program import WindowHardware, WindowProgram, window_program
from arch.spec.timing import SocTiming
from configs.records import record

MAX_CORES = 16
"""Cores of the largest team."""

SHARES = 4_000
"""Plans of cores kept, by shape and trip counts; all are dropped when there are more."""


@record(frozen=True, slots=True)
class Member:
    """One core of a team: its number in the cluster, its nest and when it starts after the first one.

    `numbers` are the base and the strides of every slot of its nest, one after another, in bytes modulo one
    turn of the banks (or one word, where banks do not matter); empty if no address matters.
    """

    core: int
    nest: CoreNest
    start_cycles: int
    numbers: tuple[int, ...]


_Team = tuple[tuple[CoreCost, ...], DmaService | None]
"""Cost of every member, in order, from its own start to its own end, and what the DMA got."""


@dataclass(frozen=True, slots=True, eq=False)
class _Share:
    """What a core executes, whatever its addresses: what of its nest, and what no waiting can change."""

    program: WindowProgram
    trips: tuple[int, ...]
    """Per loop: iterations before the measured ones or -1, iterations."""
    extrapolated: tuple[int, ...]
    """Per loop: measured iterations, iterations not executed."""
    items: int
    """Bound of the items in its trace."""
    instructions: int
    stalls: tuple[int, ...]
    """Those no waiting can change."""


class ClusterModel:
    """Prices teams whose cores can be in each other's way on the machine `timing`."""

    def __init__(self, timing: SocTiming, window: PricingWindow, engine: EngineChoice = PROCESS) -> None:
        self._timing = timing
        self._window = window
        self._engine = engine
        ports = max(1, timing.dma.l1_bytes_per_cycle // timing.l1.word_bytes)
        # Words of a beat lie in different banks, so its ports are told apart by bank where leaves are few.
        self._beat_words = min(ports, timing.l1.banks)
        self._direction_leaves = max(1, min(self._beat_words, (MAX_LEAVES - timing.cores) // 2))
        self._levels = (timing.cores + 2 * self._direction_leaves - 1).bit_length()
        self._programs: dict[tuple[Shape, WindowHardware], WindowProgram] = {}
        self._shares: dict[tuple[object, ...], _Share] = {}
        self._code: dict[tuple[Engine, WindowProgram], Code] = {}
        self._units: dict[Shape, tuple[bool, bool, bool]] = {}

    def machine(self, cores: list[tuple[int, CoreNest]], traffic: Traffic) -> WindowHardware:
        """Hardware as this team sees it: which units anybody else could occupy."""
        timing = self._timing
        used = [self._uses(nest.shape) for _, nest in cores]
        crowd = len(cores) > 1
        memory = any(uses[0] for uses in used)
        fpu_users = [core for (core, _), uses in zip(cores, used, strict=True) if uses[1]]
        fpu_shared = False
        if timing.fpu.mapping == "static":
            fpu_shared = len({core % timing.fpu.count for core in fpu_users}) < len(fpu_users)
        elif timing.fpu.mapping == "dynamic":
            fpu_shared = len(fpu_users) * timing.fpu.interval_cycles > timing.fpu.count
        # A core is blocked while its division runs, but the unit may take longer to recover.
        div_overlap = -(-timing.fpu.divsqrt_interval_cycles // timing.fpu.divsqrt_latency_cycles)
        divsqrt_shared = sum(uses[2] for uses in used) * div_overlap > timing.fpu.divsqrt_count
        banks_shared = timing.l1.bank_conflicts and memory and (crowd or traffic != Traffic.NONE)
        return WindowHardware(
            banks=timing.l1.banks,
            word_bytes=timing.l1.word_bytes,
            banks_shared=banks_shared,
            banks_rotate=timing.cores if timing.l1.arbitration == "rotating" else 0,
            banks_fair=banks_shared and timing.l1.arbitration == "round_robin",
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
        self,
        members: tuple[Member, ...],
        machine: WindowHardware,
        traffic: Traffic,
        starts: Sequence[Sequence[int]],
    ) -> list[_Team]:
        """What the team costs from each of `starts`: cycles by which every core starts later, by number."""
        shares = [self._share(member.nest, machine, len(members)) for member in members]
        distinct: dict[tuple[_Share, tuple[int, ...]], int] = {}
        for share, member in zip(shares, members, strict=True):
            distinct.setdefault((share, member.numbers), 0)
        items = sum(share.items for share, _ in distinct)
        engine = self._engine.take(items + len(starts) * sum(share.items for share in shares))
        trace = engine.room(items)
        filled = 0
        for share, numbers in distinct:
            distinct[share, numbers] = filled
            filled = self._lay_out(engine, machine, share, numbers, trace, filled)
        begins = [distinct[share, member.numbers] for share, member in zip(shares, members, strict=True)]
        ports: list[int] = []
        if machine.banks_shared:
            dma = self._timing.dma
            directions = [index for index, way in enumerate((Traffic.IN, Traffic.OUT)) if traffic & way]
            if machine.banks_fair:
                gaps_cycles = dma.read_burst_gap_cycles, dma.write_burst_gap_cycles
                beats = max(1, dma.burst_bytes // (self._beat_words * machine.word_bytes))
                for direction in directions:
                    ports += (0, direction, 0, beats, gaps_cycles[direction])
            else:
                width = dma.l1_bytes_per_cycle // self._timing.l1.word_bytes
                ports = [
                    number
                    for direction in directions
                    for _ in range(width)
                    for number in (0, direction, 0, 0, 0)
                ]
        rules = self._rules(machine, members)
        return [
            self._run(engine, rules, members, shares, trace, begins, offsets, ports) for offsets in starts
        ]

    def _rules(self, machine: WindowHardware, members: tuple[Member, ...]) -> Rules:
        timing, fpu = self._timing, self._timing.fpu
        pooled = fpu.mapping == "dynamic"
        divs = machine.banks + (fpu.count if pooled else max(fpu.count, members[-1].core + 1))
        return Rules(
            banks_turn=machine.fpus_rotate if machine.banks_fair else machine.banks_rotate,
            fpus_turn=machine.fpus_rotate,
            fpu_cycles=fpu.interval_cycles,
            pooled=int(pooled),
            div_cycles=fpu.divsqrt_interval_cycles,
            fpus=machine.banks,
            divs=divs,
            units=divs + fpu.divsqrt_count,
            fair=int(machine.banks_fair),
            first_leaf=timing.cores,
            direction_leaves=self._direction_leaves,
            beat_words=self._beat_words,
            levels=self._levels,
        )

    def _share(self, nest: CoreNest, machine: WindowHardware, cores: int) -> _Share:
        """Most cores of a team have the same trip counts; what depends on nothing else is worked out once."""
        key = (nest.shape, nest.trips, nest.code_bytes, nest.layout, machine, cores)
        share = self._shares.get(key)
        if share is None:
            program = self._program(nest.shape, machine)
            plan = plan_of(nest, self._window, machine.banks, cores)
            trips, extrapolated = _loop_tables(plan)
            items = sum(count * prod([trips[2 * loop + 1] for loop in path]) for path, count in program.items)
            if len(self._shares) >= SHARES:
                self._shares.clear()
            fixed = fixed_cost(nest, program, self._timing)
            share = self._shares[key] = _Share(program, trips, extrapolated, items, *fixed)
        return share

    def _program(self, shape: Shape, machine: WindowHardware) -> WindowProgram:
        key = (shape, machine)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = window_program(shape, machine)
        return program

    def _lay_out(
        self,
        engine: Engine,
        machine: WindowHardware,
        share: _Share,
        numbers: tuple[int, ...],
        trace: Ints,
        filled: int,
    ) -> int:
        program = share.program
        code = self._code.get((engine, program))
        if code is None:
            code = self._code[engine, program] = Code(
                machine.word_bytes,
                machine.banks,
                int(machine.banks_shared),
                machine.branch_taken_stall_cycles,
                machine.misaligned_stall_cycles,
                machine.first_special,
                engine.ints(program.operations),
                engine.ints(program.slots),
                engine.ints(program.moves),
                engine.ints(program.moves_from),
            )
        scratch = len(program.moves_from) - 1 + len(program.slots) // 4 + program.branches
        return engine.lay_out(
            code,
            engine.ints(numbers),
            engine.ints(share.trips),
            engine.zeros(scratch),
            trace,
            filled,
        )

    def _run(
        self,
        engine: Engine,
        rules: Rules,
        members: tuple[Member, ...],
        shares: list[_Share],
        trace: Ints,
        begins: list[int],
        offsets: Sequence[int],
        ports: list[int],
    ) -> _Team:
        fpu = self._timing.fpu
        width = max(members[-1].core + 1, rules.banks_turn, rules.fpus_turn)
        specials: list[int] = []
        special_of: dict[WindowProgram, int] = {}
        extrapolated: list[int] = []
        at, fpu_of, special_at, register_at, loop_at = ([0] * width for _ in range(5))
        when = [NEVER] * width
        registers = 0
        for member, share, begin in zip(members, shares, begins, strict=True):
            core = member.core
            if share.program not in special_of:
                special_of[share.program] = len(specials) // 3
                specials += share.program.specials
            at[core] = begin
            when[core] = member.start_cycles + offsets[core] + int(trace[begin] >> CODE_BITS)
            fpu_of[core] = rules.fpus + (core % fpu.count if fpu.mapping == "static" else core)
            special_at[core] = special_of[share.program]
            register_at[core] = registers
            loop_at[core] = len(extrapolated) // 2
            registers += share.program.registers
            extrapolated += share.extrapolated
        ints, zeros = engine.ints, engine.zeros
        state = [0] * STATES
        state[NEXT_FPU], state[NEXT_DIV] = rules.fpus, rules.divs
        team = Team(
            Requests(
                trace=trace,
                at=ints(at),
                when=ints(when),
                waited=zeros(COUNTERS * width),
                free=zeros(rules.units),
                asked=zeros(2 * rules.fpus if rules.fair else 0),
                calendar=zeros(2 * DAYS),
                state=ints(state),
            ),
            Specials(
                items=ints(specials),
                items_at=ints(special_at),
                registers=zeros(registers),
                registers_at=ints(register_at),
            ),
            fpu_of=ints(fpu_of),
            loops=ints(extrapolated),
            loop_at=ints(loop_at),
            marks=zeros(COUNTERS * len(extrapolated) // 2),
            ports=ints(ports),
            served=zeros(4),
        )
        engine.advance(rules, team)
        counted = list(map(int, team.requests.waited))
        costs = tuple(
            [
                _cost(share, counted[COUNTERS * member.core : COUNTERS * (member.core + 1)])
                for member, share in zip(members, shares, strict=True)
            ]
        )
        if not ports:
            return costs, None
        words_in, until_in, words_out, until_out = (int(number) for number in team.served)
        inward, outward = (words_in, until_in), (words_out, until_out)
        return costs, DmaService(inward if words_in else None, outward if words_out else None)


def _loop_tables(plan: Plan) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The loops of a plan as `_Share` wants them."""
    trips: list[int] = []
    extrapolated: list[int] = []
    for warm_up, measured, count in plan:
        trips += (warm_up, warm_up + measured) if measured else (-1, max(0, warm_up))
        extrapolated += (measured, count - warm_up - measured) if measured else (1, 0)
    return tuple(trips), tuple(extrapolated)


def _cost(share: _Share, waited: list[int]) -> CoreCost:
    """A core's cost from what cannot change and what it waited."""
    stalls = list(share.stalls)
    banks, fpus, misaligned, load_use, multicycle, fpu_latency, dividers, divider_latency = waited
    stalls[BANK_CONFLICT] += banks
    stalls[FPU_STALL] += fpus + fpu_latency - dividers - divider_latency
    stalls[DIVIDER] += dividers + divider_latency
    stalls[MISALIGNED] += misaligned
    stalls[LOAD_USE] += load_use
    stalls[MULTICYCLE] += multicycle
    return core_cost(share.instructions, stalls)
