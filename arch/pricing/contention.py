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
    Places,
    Shape,
)
from arch.pricing.window import PROCESS, Engine, EngineChoice
from arch.pricing.window_engine import (
    COUNTERS,
    DAYS,
    MAX_LEAVES,
    MEMBER_FIELDS,
    PROGRAM_HEADER,
    SERVED,
    STATES,
    Ints,
    Rules,
)
from arch.pricing.window_plan import Plan, PricingWindow, fixed_cost, plan_of
from arch.pricing.window_program import WindowHardware, WindowProgram, window_program
from arch.spec.timing import SocTiming
from configs.values import Struct

SHARES = 4_000
"""Plans of cores kept, by shape and trip counts; all are dropped when there are more."""

SHELF_NUMBERS, MOST_SHELF_NUMBERS = 1 << 16, 1 << 22
"""Numbers of tables an engine has room for at first, and those from which it forgets them."""


class Member(Struct, frozen=True):
    """One core of a team: its number in the cluster, its nest and when it starts after the first one.

    `numbers` are the units and the anchors of its nest, in bytes modulo one turn of the banks (or one word,
    where banks do not matter); empty if no address matters.
    """

    core: int
    nest: CoreNest
    start_cycles: int
    numbers: tuple[int, ...]


_Team = tuple[tuple[CoreCost, ...], DmaService | None]
"""Cost of every member, in order, from its own start to its own end, and what the DMA got."""


class _Share(Struct, frozen=True, eq=False):
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


class _Machine:
    """What is kept of teams that see the hardware in one way."""

    def __init__(self, hardware: WindowHardware) -> None:
        self.hardware = hardware
        self.shares: dict[tuple[object, ...], _Share] = {}
        self._programs: dict[Shape, WindowProgram] = {}

    def program(self, shape: Shape) -> WindowProgram:
        """The program of `shape` on this hardware."""
        program = self._programs.get(shape)
        if program is None:
            program = self._programs[shape] = window_program(shape, self.hardware)
        return program


class _Shelf:
    """Tables that many calls need, one behind the other in one table of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._size = 0
        self._at: dict[WindowProgram | Places, int] = {}
        self.table: Ints = engine.zeros(SHELF_NUMBERS)

    def tidy(self) -> None:
        """Forget everything if there is much; places given before are no longer good."""
        if self._size > MOST_SHELF_NUMBERS:
            self._size = 0
            self._at.clear()

    def place(self, thing: WindowProgram | Places) -> int:
        """Where `thing` begins."""
        place = self._at.get(thing)
        if place is None:
            numbers = _of_program(thing) if isinstance(thing, WindowProgram) else _of_places(thing)
            place, self._size = self._size, self._size + len(numbers)
            if self._size > len(self.table):
                former = self.table
                self.table = self._engine.zeros(2 * self._size)
                self.table[:place] = former[:place]
            self.table[place : self._size] = numbers
            self._at[thing] = place
        return place


def _of_program(program: WindowProgram) -> list[int]:
    tables = program.operations, program.slots, program.moves, program.moves_from
    numbers = [*map(len, tables), program.branches]
    for table in (*tables, program.specials):
        numbers += table
    return numbers


def _of_places(places: Places) -> list[int]:
    rows = [number for row in places.numbers for number in row]
    return [len(places.numbers), places.anchors, places.units, *rows]


MAX_BEAT_WORDS = 62
"""Words of a beat of the DMA are bits of an integer of 64; a wider beat is priced as one of so many."""


class ClusterModel:
    """Prices teams whose cores can be in each other's way on the machine `timing`."""

    def __init__(self, timing: SocTiming, window: PricingWindow, engine: EngineChoice = PROCESS) -> None:
        self._timing = timing
        self._window = window
        self._engine = engine
        ports = max(1, timing.dma.l1_bytes_per_cycle // timing.l1.word_bytes)
        # Words of a beat lie in different banks, so its ports are told apart by bank where leaves are few.
        self._beat_words = min(ports, timing.l1.banks, MAX_BEAT_WORDS)
        self._direction_leaves = max(1, min(self._beat_words, (MAX_LEAVES - timing.cores) // 2))
        self._levels = (timing.cores + 2 * self._direction_leaves - 1).bit_length()
        self._machines: dict[WindowHardware, _Machine] = {}
        self._hardware: dict[tuple[bool, bool, bool], WindowHardware] = {}
        self._shelves: dict[Engine, _Shelf] = {}
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
        shared = banks_shared, fpu_shared, divsqrt_shared
        hardware = self._hardware.get(shared)
        if hardware is None:
            hardware = self._hardware[shared] = WindowHardware(
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
        return hardware

    def _uses(self, shape: Shape) -> tuple[bool, bool, bool]:
        known = self._units.get(shape)
        if known is None:
            shared_memory = shape.uses(MEMORY) and bool(shape.slots)
            known = (shared_memory, shape.uses(FPU_UNIT), shape.uses(DIVSQRT_UNIT))
            self._units[shape] = known
        return known

    def alone(self, nest: CoreNest) -> CoreCost | None:
        """What a core takes that nobody disturbs, if nothing of it depends on more than trip counts."""
        hardware = self.machine([(0, nest)], Traffic.NONE)
        if hardware.fpu_shared or hardware.divsqrt_shared:  # by its own operations
            return None
        kept = self._machine_of(hardware)
        program = kept.program(nest.shape)
        if not program.settled:
            return None
        instructions, stalls = fixed_cost(nest, program, self._timing)
        return core_cost(instructions, list(stalls))

    def _machine_of(self, hardware: WindowHardware) -> _Machine:
        kept = self._machines.get(hardware)
        if kept is None:
            kept = self._machines[hardware] = _Machine(hardware)
        return kept

    def price(
        self,
        members: tuple[Member, ...],
        machine: WindowHardware,
        traffic: Traffic,
        starts: Sequence[Sequence[int]],
    ) -> list[_Team]:
        """What the team costs from each of `starts`: cycles by which every core starts later, by number."""
        kept = self._machine_of(machine)
        shares = [self._share(member.nest, kept, len(members)) for member in members]
        traces: dict[tuple[_Share, Places, tuple[int, ...]], int] = {}
        traced = [
            traces.setdefault((share, member.nest.places, member.numbers), len(traces))
            for share, member in zip(shares, members, strict=True)
        ]
        items = sum([share.items for share, *_ in traces])
        engine = self._engine.take(items + len(starts) * sum([share.items for share in shares]))
        shelf = self._shelves.get(engine)
        if shelf is None:
            shelf = self._shelves[engine] = _Shelf(engine)
        shelf.tidy()
        rules = self._rules(machine, members)
        width = max(members[-1].core + 1, rules.banks_turn, rules.fpus_turn)
        ports = self._ports(machine, traffic) if machine.banks_shared else []
        call = [len(traces), len(starts), width, len(ports), 0, 0, *rules]
        call += (machine.word_bytes, machine.banks_shared, machine.branch_taken_stall_cycles)
        call += (machine.misaligned_stall_cycles, machine.first_special)
        scratch = 0
        for share, places, numbers in traces:
            program = share.program
            call += (shelf.place(program), shelf.place(places) if numbers or program.slots else -1)
            call += share.trips
            call += numbers
            room = 3 * len(program.moves_from) + len(program.slots) // 4 + program.branches
            room += len(places.numbers)
            scratch = max(scratch, room)
        cores, registers, loops = self._cores(shelf, members, shares, traced, width)
        call += cores
        for offsets in starts:
            call += offsets[:width]
        call += loops
        call += ports
        call[4:6] = registers, len(loops)
        fields = MEMBER_FIELDS + COUNTERS
        fixed = len(traces) + fields * width + rules.units + rules.fpus + 2 * DAYS + STATES + SERVED
        work = engine.zeros(fixed + registers + COUNTERS * len(loops) + len(ports) + scratch)
        of_start = COUNTERS * width + SERVED
        out = engine.zeros(len(starts) * of_start)
        engine.price_window(engine.ints(call), shelf.table, engine.room(items), work, out)
        counted = engine.numbers(out)
        return [
            _answer(members, shares, counted[place : place + of_start], bool(ports))
            for place in range(0, len(counted), of_start)
        ]

    def _cores(
        self,
        shelf: _Shelf,
        members: tuple[Member, ...],
        shares: list[_Share],
        traced: list[int],
        width: int,
    ) -> tuple[list[int], int, list[int]]:
        """`MEMBER_FIELDS` of every core, how many registers they have, and what of loops is extrapolated."""
        fpu, banks = self._timing.fpu, self._timing.l1.banks
        cores = [-1, 0, 0, 0, 0, 0] * width
        registers = 0
        loops: list[int] = []
        for member, share, trace in zip(members, shares, traced, strict=True):
            program, core = share.program, member.core
            unit = banks + (core % fpu.count if fpu.mapping == "static" else core)
            specials = shelf.place(program) + PROGRAM_HEADER + program.tables
            cores[MEMBER_FIELDS * core : MEMBER_FIELDS * (core + 1)] = (
                *(trace, member.start_cycles, unit),
                *(specials, registers, len(loops) // 2),
            )
            registers += program.registers
            loops += share.extrapolated
        return cores, registers, loops

    def _ports(self, machine: WindowHardware, traffic: Traffic) -> list[int]:
        """`PORT_FIELDS` of every port of the DMA."""
        dma = self._timing.dma
        directions = [index for index, way in enumerate((Traffic.IN, Traffic.OUT)) if traffic & way]
        ports: list[int] = []
        if machine.banks_fair:
            gaps_cycles = dma.read_burst_gap_cycles, dma.write_burst_gap_cycles
            beats = max(1, dma.burst_bytes // (self._beat_words * machine.word_bytes))
            for direction in directions:
                ports += (0, direction, 0, beats, beats, gaps_cycles[direction])
            return ports
        width = dma.l1_bytes_per_cycle // machine.word_bytes
        for direction in directions:
            ports += (0, direction, 0, 0, 0, 0) * width
        return ports

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
            mixed=int(machine.banks_shared and not machine.banks_fair),
        )

    def _share(self, nest: CoreNest, machine: _Machine, cores: int) -> _Share:
        """Most cores of a team have the same trip counts; what depends on nothing else is worked out once."""
        key = (nest.shape, nest.trips, nest.code_bytes, nest.layout, cores)
        share = machine.shares.get(key)
        if share is None:
            program = machine.program(nest.shape)
            plan = plan_of(nest, self._window, machine.hardware.banks, cores)
            trips, extrapolated = _loop_tables(plan)
            items = sum(count * prod([trips[2 * loop + 1] for loop in path]) for path, count in program.items)
            if len(machine.shares) >= SHARES:
                machine.shares.clear()
            fixed = fixed_cost(nest, program, self._timing)
            share = machine.shares[key] = _Share(program, trips, extrapolated, items, *fixed)
        return share


def _answer(members: tuple[Member, ...], shares: list[_Share], counted: list[int], served: bool) -> _Team:
    """What a team costs from one start, of what the window counted."""
    costs = tuple(
        [
            _cost(share, counted[COUNTERS * member.core : COUNTERS * (member.core + 1)])
            for member, share in zip(members, shares, strict=True)
        ]
    )
    if not served:
        return costs, None
    words_in, until_in, words_out, until_out = counted[-SERVED:]
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
