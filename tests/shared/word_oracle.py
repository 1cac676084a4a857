# SPDX-License-Identifier: Apache-2.0
"""Word-level oracle: a small kernel, access by access, on SimPy. Slow, plain, independent of the fast model.

It shares only the instruction streams (`arch.spec.isa`) and the timing parameters with
`arch.pricing.pipeline` and `arch.pricing.contention`; scoreboard and arbitration are written a second time,
as the hardware would do it: every unit looks at its waiting requests once a cycle, after all of them have
arrived, and grants what it can serve.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import simpy
from simpy.events import EventPriority

from arch.pricing.cost_model import CoreCost, TeamCost, Traffic
from arch.pricing.scoreboard import MAX_FRACTION_DENOMINATOR, STALL_WORDS
from arch.spec.isa import FPU_OPS, STACK_WORDS, CoreWork, Instruction, Loop, Node, Op, TeamWork
from arch.spec.timing import FpuTiming, SocTiming

_AFTER_ALL_REQUESTS = EventPriority(5)
"""SimPy priority of an arbiter's decision: later than everything else in the same cycle."""

_DMA_MASTER = 1000
"""Number of the first DMA port; higher numbers lose against lower ones of the same age."""

_DIRECTION = 10
"""Distance of the numbers of both directions."""

_Process = Generator[simpy.Event, Any, None]


@dataclass(slots=True)
class _Request:
    """A master waiting for a unit since `time`; `rank` orders the requests of one cycle."""

    time: int
    rank: int
    master: int
    granted: simpy.Event


class _Arbiter:
    """`units` equal units behind one queue: each cycle the oldest requests get the free units.

    `rotate` is the number of cores among which the priority moves on every cycle, 0 for lowest number first.
    """

    def __init__(self, env: simpy.Environment, units: int, interval_cycles: int, rotate: int) -> None:
        self._env = env
        self._free_from = [0] * units
        self._interval = interval_cycles
        self._rotate = rotate
        self._waiting: list[_Request] = []
        self._decision: int = -1

    def request(self, master: int) -> simpy.Event:
        """An event that succeeds in the cycle in which `master` is served."""
        granted = self._env.event()
        now = int(self._env.now)
        rank = master
        if self._rotate and master < _DMA_MASTER:
            first = now % self._rotate
            rank = master - first if master >= first else master - first + self._rotate
        self._waiting.append(_Request(now, rank, master, granted))
        self._decide_in(0)
        return granted

    def _decide_in(self, cycles: int) -> None:
        when = int(self._env.now) + cycles
        if self._decision == when:
            return
        self._decision = when
        decision = self._env.event()
        decision.callbacks.append(self._decide)
        decision._ok, decision._value = True, None
        self._env.schedule(decision, priority=_AFTER_ALL_REQUESTS, delay=cycles)

    def _decide(self, _: simpy.Event) -> None:
        now = int(self._env.now)
        if self._decision == now:
            self._decision = -1
        for unit, free_from in enumerate(self._free_from):
            if self._waiting and free_from <= now:
                self._free_from[unit] = now + self._interval
                winner = self._pick(self._waiting)
                self._waiting.remove(winner)
                winner.granted.succeed()
        if self._waiting:
            self._decide_in(1)

    def _pick(self, waiting: list[_Request]) -> _Request:
        return min(waiting, key=lambda request: (request.time, request.rank))


class _FairTree(_Arbiter):
    """A bank under round robin: a fair tree of arbiters, of the kind of `rr_arb_tree` (common_cells).

    `leaf_of` says at which input a master is; there are 2^`levels` inputs.
    """

    def __init__(self, env: simpy.Environment, levels: int, leaf_of: Callable[[int], int]) -> None:
        super().__init__(env, 1, 1, 0)
        self._levels = levels
        self._leaf_of = leaf_of
        self._rr = 0

    def _pick(self, waiting: list[_Request]) -> _Request:
        inputs: list[_Request | None] = [None] * (1 << self._levels)
        for request in waiting:
            inputs[self._leaf_of(request.master)] = request
        nodes = inputs
        for level in range(self._levels):
            bit = self._rr >> level & 1
            nodes = [
                right if left is None or (right is not None and bit) else left
                for left, right in zip(nodes[::2], nodes[1::2], strict=True)
            ]
        asking = [number for number, request in enumerate(inputs) if request is not None]
        self._rr = next((number for number in asking if number > self._rr), asking[0])
        (winner,) = nodes
        assert winner is not None
        return winner


@dataclass(slots=True)
class _Core:
    """State of one core's process and what it has counted."""

    ready: dict[int, tuple[int, str]] = field(default_factory=dict)
    executions: dict[tuple[int, ...], int] = field(default_factory=dict)
    frame: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Word of the stack frame that the access at a place of the tree uses."""
    late: frozenset[int] = frozenset()
    """Registers written behind the back of the core, by the FPU or by divisions whose result is read."""
    divides: bool = False
    """Whether a division of the nest is among them."""
    fpu_free: int = 0
    fpu_empty: int = 0
    divider_free: int = 0
    instructions: int = 0
    stalls: dict[str, int] = field(default_factory=dict)
    end: int = 0


def _frame_words(body: tuple[Node, ...]) -> dict[tuple[int, ...], int]:
    """Words of the stack frame by place: the i-th access without a stream uses the i-th word of so many."""
    words: dict[tuple[int, ...], int] = {}

    def walk(nodes: tuple[Node, ...], place: tuple[int, ...]) -> None:
        for position, node in enumerate(nodes):
            if isinstance(node, Loop):
                walk(node.body, (*place, position))
            elif node.op in (Op.LOAD, Op.STORE) and node.stream < 0:
                words[(*place, position)] = len(words) % STACK_WORDS

    walk(body, ())
    return words


def _late_registers(body: tuple[Node, ...], fpu: FpuTiming) -> tuple[frozenset[int], bool]:
    """Registers whose value can come after the core has gone on, and whether one is that of a division."""
    found: list[Instruction] = []

    def walk(nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            if isinstance(node, Loop):
                walk(node.body)
            else:
                found.append(node)

    walk(body)
    read = {register for node in found for register in node.srcs}
    goes_on = fpu.divsqrt_count > 0 and fpu.divsqrt_issue_cycles < fpu.divsqrt_latency_cycles
    divided = {node.dst for node in found if goes_on and node.op is Op.FDIV and node.dst in read}
    computed = {
        node.dst
        for node in found
        if node.op in FPU_OPS and fpu.latency_cycles > (fpu.fma_cycles if node.op is Op.FMA else 1)
    }
    return frozenset((computed | divided) - {-1}), bool(divided - {-1})


class WordOracle:
    """Runs a whole team word by word; for kernels of a few thousand instructions."""

    def __init__(self, timing: SocTiming) -> None:
        self._timing = timing

    def price(self, work: TeamWork, starts: tuple[int, ...], traffic: Traffic = Traffic.NONE) -> TeamCost:
        """Cost of `work` with core i starting in cycle `starts[i]`; every instruction is executed."""
        self._env = env = simpy.Environment()
        timing = self._timing
        fpu = timing.fpu
        turn = {"in_order": 0, "rotating": timing.cores}
        fpus_turn = turn[fpu.arbitration]
        self._fair = timing.l1.arbitration == "round_robin"
        ports = timing.dma.l1_bytes_per_cycle // timing.l1.word_bytes

        def leaf_of(master: int) -> int:
            if master < _DMA_MASTER:
                return master
            direction, port = divmod(master - _DMA_MASTER, _DIRECTION)
            return timing.cores + ports * direction + port

        levels = (timing.cores + 2 * ports - 1).bit_length()
        self._banks: list[_Arbiter] = [
            _FairTree(env, levels, leaf_of)
            if self._fair
            else _Arbiter(env, 1, 1, turn[timing.l1.arbitration])
            for _ in range(timing.l1.banks)
        ]
        pools = {"dynamic": [fpu.count], "static": [1] * fpu.count}.get(fpu.mapping, [1] * len(work.cores))
        self._fpus = [_Arbiter(env, units, fpu.interval_cycles, fpus_turn) for units in pools]
        self._divsqrt = _Arbiter(env, fpu.divsqrt_count, fpu.divsqrt_interval_cycles, fpus_turn)
        cores: dict[int, tuple[_Core, int]] = {}
        processes = []
        for number, (core_work, start) in enumerate(zip(work.cores, starts, strict=True)):
            if core_work is None:
                continue
            late, divides = _late_registers(core_work.body, fpu)
            core = _Core(frame=_frame_words(core_work.body), late=late, divides=divides)
            cores[number] = (core, start)
            processes.append(env.process(self._run(number, core, core_work, start)))
        if timing.l1.bank_conflicts:
            for index, direction in enumerate((Traffic.IN, Traffic.OUT)):
                if traffic & direction:
                    stream = self._beats(index) if self._fair else self._dma(_DMA_MASTER + _DIRECTION * index)
                    env.process(stream)
        env.run(until=env.all_of(processes))
        absent = (_Core(), 0)
        return TeamCost(tuple(self._cost(*cores.get(number, absent)) for number in range(len(work.cores))))

    def _cost(self, core: _Core, start: int) -> CoreCost:
        stalls = tuple((word, core.stalls[word]) for word in STALL_WORDS if core.stalls.get(word))
        return CoreCost(core.end - start, core.instructions, stalls)

    def _dma(self, first_master: int) -> _Process:
        """One direction of the DMA: one-word ports that share an endless linear word stream."""
        word = 0
        ports = self._timing.dma.l1_bytes_per_cycle // self._timing.l1.word_bytes
        outstanding: list[simpy.Event | None] = [None] * ports
        while True:
            for port, access in enumerate(outstanding):
                if access is None or access.triggered:
                    outstanding[port] = self._banks[word % len(self._banks)].request(first_master + port)
                    word += 1
            yield self._env.timeout(1)

    def _beats(self, direction: int) -> _Process:
        """One direction of the DMA where its ports go together: beats, and gaps behind bursts."""
        dma, word_bytes = self._timing.dma, self._timing.l1.word_bytes
        ports = dma.l1_bytes_per_cycle // word_bytes
        gap_cycles = (dma.read_burst_gap_cycles, dma.write_burst_gap_cycles)[direction]
        word = 0
        while True:
            for _ in range(dma.burst_bytes // dma.l1_bytes_per_cycle):
                first_master = _DMA_MASTER + _DIRECTION * direction
                yield self._env.all_of(
                    [
                        self._banks[(word + port) % len(self._banks)].request(first_master + port)
                        for port in range(ports)
                    ]
                )
                word += ports
                yield self._env.timeout(1)
            yield self._env.timeout(gap_cycles)

    def _run(self, number: int, core: _Core, work: CoreWork, start: int) -> _Process:
        yield self._env.timeout(start)
        yield from self._body(number, core, work, work.body, (), (), closed=False)
        core.end = int(self._env.now)

    def _body(
        self,
        number: int,
        core: _Core,
        work: CoreWork,
        body: tuple[Node, ...],
        indices: tuple[int, ...],
        place: tuple[int, ...],
        *,
        closed: bool,
    ) -> _Process:
        """Execute `body` once; `indices` are the loop counters, `place` says where in the tree we are."""
        for position, node in enumerate(body):
            here = (*place, position)
            if isinstance(node, Loop):
                tail = node.body[-1] if node.body else None
                closes = not node.hardware and isinstance(tail, Instruction) and tail.op is Op.BRANCH
                for index in range(node.trips):
                    yield from self._body(
                        number, core, work, node.body, (*indices, index), here, closed=closes
                    )
                    if closes and index < node.trips - 1:
                        yield from self._lose(core, "branch", self._timing.core.branch_taken_stall_cycles)
                continue
            following = body[position + 1] if position + 1 < len(body) else None
            before_access = isinstance(following, Instruction) and following.op in (Op.LOAD, Op.STORE)
            yield from self._instruction(number, core, work, node, indices, here, before_access=before_access)
            if node.op is Op.BRANCH and not (closed and position == len(body) - 1):
                share = Fraction(node.taken_fraction).limit_denominator(MAX_FRACTION_DENOMINATOR)
                before = core.executions.get(here, 0)
                core.executions[here] = before + 1
                if int((before + 1) * share) > int(before * share):
                    yield from self._lose(core, "branch", self._timing.core.branch_taken_stall_cycles)

    def _lose(self, core: _Core, word: str, cycles: int) -> _Process:
        if cycles > 0:
            core.stalls[word] = core.stalls.get(word, 0) + cycles
            yield self._env.timeout(cycles)

    def _wait(self, core: _Core, word: str, granted: simpy.Event) -> _Process:
        asked = int(self._env.now)
        yield granted
        waited = int(self._env.now) - asked
        if waited:
            core.stalls[word] = core.stalls.get(word, 0) + waited

    def _instruction(
        self,
        number: int,
        core: _Core,
        work: CoreWork,
        node: Instruction,
        indices: tuple[int, ...],
        place: tuple[int, ...],
        *,
        before_access: bool,
    ) -> _Process:
        """Issue one instruction: operands, unit, issue cycle, cycles it blocks the pipeline for."""
        rules, fpu = self._timing.core, self._timing.fpu
        for register in dict.fromkeys(node.srcs):
            if register in core.ready and core.ready[register][0] > self._env.now:
                ready, word = core.ready[register]
                yield from self._lose(core, word, ready - int(self._env.now))
        goes_on = node.op is Op.FDIV and node.dst in core.late
        yield from self._behind_the_core(core, node, goes_on=goes_on)
        busy, late, word = 0, 0, "multicycle"
        if node.op in (Op.LOAD, Op.STORE):
            yield from self._access(number, core, work, node, indices, place)
            word = "load_use"
            if node.op is Op.LOAD:
                busy = 0 if before_access else rules.load_cycles - 1
                late = max(0, rules.load_use_stall_cycles - busy)
        elif node.op in FPU_OPS:
            index = 0 if fpu.mapping == "dynamic" else number % len(self._fpus)
            yield from self._wait(core, "fpu", self._fpus[index].request(number))
            busy, word = (fpu.fma_cycles - 1 if node.op is Op.FMA else 0), "fpu"
            late = max(0, fpu.latency_cycles - 1 - busy)
            core.fpu_empty = int(self._env.now) + 1 + busy + late if core.divides else 0
        elif node.op is Op.FDIV:
            word = "divider" if fpu.divsqrt_count else word
            busy, late = yield from self._divide(number, core, goes_on=goes_on)
        elif node.op in (Op.MUL, Op.MULH):
            busy = (rules.mul_cycles if node.op is Op.MUL else rules.mulh_cycles) - 1
            late = rules.mul_dependent_stall_cycles
        elif node.op in (Op.LOAD_L2, Op.STORE_L2):
            l2 = self._timing.l2
            busy, word = l2.core_access_cycles - 1, "l2_access"
            busy += (node.op is Op.STORE_L2) * l2.core_store_more_cycles
            late = rules.load_use_stall_cycles if node.op is Op.LOAD_L2 else 0
        elif node.op is Op.JUMP:
            busy, word = rules.jump_stall_cycles, "branch"
        elif node.op in (Op.DIV, Op.CSR, Op.HWLOOP):
            whole = {
                Op.DIV: rules.div_cycles,
                Op.CSR: rules.csr_cycles,
                Op.HWLOOP: rules.hwloop_setup_cycles,
            }
            busy = max(0, whole[node.op] - 1)
        core.instructions += 1
        yield self._env.timeout(1)
        yield from self._lose(core, word, busy)
        if node.dst >= 0:
            core.ready[node.dst] = (int(self._env.now) + late, "load_use" if word == "l2_access" else word)

    def _divide(
        self, number: int, core: _Core, *, goes_on: bool
    ) -> Generator[simpy.Event, Any, tuple[int, int]]:
        """Cycles the core loses behind the issue of a division, and those after which its result comes."""
        fpu = self._timing.fpu
        if fpu.divsqrt_count:
            yield from self._wait(core, "divider", self._divsqrt.request(number))
        if not goes_on:
            return fpu.divsqrt_latency_cycles - 1, 0
        busy = fpu.divsqrt_issue_cycles - 1
        core.fpu_free = int(self._env.now) + fpu.divsqrt_latency_cycles + min(1, busy)
        core.divider_free = int(self._env.now) + fpu.divsqrt_interval_cycles
        return busy, fpu.divsqrt_latency_cycles - 1 - busy

    def _behind_the_core(self, core: _Core, node: Instruction, *, goes_on: bool) -> _Process:
        """Wait for what the core has under way elsewhere and `node` must not overtake."""
        computes = node.op in FPU_OPS
        if not computes and node.op is not Op.FDIV and node.dst in core.late and node.dst in core.ready:
            ready, word = core.ready[node.dst]
            yield from self._lose(core, word, ready - int(self._env.now))
        if computes or node.op is Op.CSR:
            yield from self._lose(core, "divider", core.fpu_free - int(self._env.now))
        if goes_on:
            yield from self._lose(core, "divider", core.divider_free - int(self._env.now))
        if goes_on or node.op is Op.CSR:
            yield from self._lose(core, "fpu", core.fpu_empty - int(self._env.now))

    def _access(
        self,
        number: int,
        core: _Core,
        work: CoreWork,
        node: Instruction,
        indices: tuple[int, ...],
        place: tuple[int, ...],
    ) -> _Process:
        """One word on the bus, or two where the access crosses a word border."""
        if node.stream < 0:
            # All stacks lie whole turns of the banks apart; the order in the text decides the word.
            address = core.frame[place] * self._timing.l1.word_bytes
        else:
            stream = work.streams[node.stream]
            address = stream.base_bytes + sum(
                index * stride for index, stride in zip(indices, stream.strides_bytes, strict=True)
            )
        first = address // self._timing.l1.word_bytes
        last = (address + node.width_bytes - 1) // self._timing.l1.word_bytes
        for word in (first, last)[: 1 + (last > first)]:
            if word > first:
                yield from self._lose(core, "misaligned", self._timing.core.misaligned_stall_cycles)
            if self._timing.l1.bank_conflicts:
                granted = self._banks[word % len(self._banks)].request(number)
                yield from self._wait(core, "bank_conflict", granted)
