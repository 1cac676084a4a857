# SPDX-License-Identifier: Apache-2.0
"""Timings and small nests built by hand for the tests of the pricing models."""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import strategies as st

from arch.spec.isa import CoreWork, Instruction, Loop, Node, Op, Stream, TeamWork
from arch.spec.timing import (
    ClockTiming,
    CoreTiming,
    DmaTiming,
    EventUnitTiming,
    FcTiming,
    FpuTiming,
    IcacheTiming,
    L1Timing,
    L2Timing,
    L3Timing,
    SocTiming,
)
from configs.values import replace

_Part = TypeVar("_Part")

GVSOC_CORE = CoreTiming(
    load_cycles=1,
    load_use_stall_cycles=1,
    mul_cycles=2,
    mul_dependent_stall_cycles=1,
    mulh_cycles=5,
    div_cycles=33,
    branch_taken_stall_cycles=2,
    jump_stall_cycles=1,
    hwloop_setup_cycles=1,
    misaligned_stall_cycles=1,
    csr_cycles=1,
)
PRIVATE_FPU = FpuTiming(8, "private", "in_order", 1, 1, 1, 1, 14, 14, 14)
STATIC_FPU = replace(PRIVATE_FPU, count=4, mapping="static")
DYNAMIC_FPU = replace(PRIVATE_FPU, count=4, mapping="dynamic")
ICACHE = IcacheTiming(16, 512, 4, 2, 4096, 4, 18, 0, 0, 0, 6, 22, 4, 20, 2)


def irrelevant(part: type[_Part]) -> _Part:
    """A part of the SoC that pricing a kernel does not read: every field is 1."""
    return part(**dict.fromkeys(part.__struct_fields__, 1))


def soc(
    *, conflicts: bool = False, fpu: FpuTiming = PRIVATE_FPU, core: CoreTiming = GVSOC_CORE, **changes: Any
) -> SocTiming:
    """pulp-open as the reference simulator has it; `changes` replace whole parts."""
    timing = SocTiming(
        name="hand-made",
        profile="gvsoc",
        cores=8,
        core=core,
        fpu=fpu,
        icache=ICACHE,
        l1=L1Timing(65536, 16, 4, conflicts, "in_order", 2048, 1024, 0),
        l2=replace(irrelevant(L2Timing), core_access_cycles=15, core_store_more_cycles=0),
        l3=irrelevant(L3Timing),
        dma=replace(irrelevant(DmaTiming), l1_bytes_per_cycle=8),
        event_unit=replace(
            irrelevant(EventUnitTiming), fork_master_cycles=40, fork_worker_cycles=11, fork_push_cycles=20
        ),
        fc=irrelevant(FcTiming),
        clock=irrelevant(ClockTiming),
    )
    return replace(timing, **changes)


def ins(
    op: Op, dst: int = -1, *srcs: int, stream: int = -1, taken: float = 0.0, width: int = 4
) -> Instruction:
    """Short spelling of an instruction."""
    return Instruction(op, dst, srcs, stream, taken, width)


def alone(*body: Node, streams: tuple[Stream, ...] = ()) -> TeamWork:
    """Work for core 0 only."""
    return TeamWork("test", (CoreWork(body, streams),))


def matmul_nest(
    rows: int, k: int, columns: int, core: int, *, a: int = 0, b: int = 8192, c: int = 16384, skew: int = 0
) -> CoreWork:
    """A 1x2 row-parallel matmul share of one core: `rows` rows from `core * rows`, word elements."""
    row_bytes = 4 * columns
    streams = (
        Stream(a + core * rows * k * 4 + skew, (k * 4, 0, 4)),
        Stream(b, (0, 8, row_bytes)),
        Stream(b + 4, (0, 8, row_bytes)),
        Stream(c + core * rows * row_bytes, (row_bytes, 8)),
        Stream(c + 4 + core * rows * row_bytes, (row_bytes, 8)),
    )
    inner = (
        ins(Op.LOAD, 1, 10, stream=0),
        ins(Op.LOAD, 2, 11, stream=1),
        ins(Op.LOAD, 3, 11, stream=2),
        ins(Op.FMA, 4, 1, 2, 4),
        ins(Op.FMA, 5, 1, 3, 5),
    )
    tile = (
        *(ins(Op.MOVE, 4), ins(Op.MOVE, 5), ins(Op.ALU, 10, 12), ins(Op.ALU, 11, 13), ins(Op.HWLOOP)),
        Loop(k, inner, hardware=True),
        ins(Op.STORE, -1, 4, stream=3),
        ins(Op.STORE, -1, 5, stream=4),
        ins(Op.ALU, 13, 13),
        ins(Op.BRANCH, -1, 13),
    )
    row = (ins(Op.MUL, 12, 14), Loop(columns // 2, tile), ins(Op.ALU, 14, 14), ins(Op.BRANCH, -1, 14))
    return CoreWork((ins(Op.CSR, 15), ins(Op.ALU, 14, 15), Loop(rows, row)), streams)


def matmul_team(rows: int, k: int, columns: int, cores: int = 8, **places: int) -> TeamWork:
    """`matmul_nest` on `cores` cores."""
    return TeamWork("mm_1x2", tuple(matmul_nest(rows, k, columns, core, **places) for core in range(cores)))


@st.composite
def nests(draw: st.DrawFn, depth: int = 3, max_trips: int = 5) -> CoreWork:
    """Random small nests: every class, dependences, nested loops of both kinds, all alignments."""
    streams: list[Stream] = []

    def instruction(level: int) -> Instruction:
        op = draw(st.sampled_from([*Op, Op.LOAD, Op.LOAD, Op.STORE, Op.FMA, Op.FMA]))
        dst = -1 if op in (Op.STORE, Op.BRANCH, Op.JUMP) else draw(st.integers(-1, 4))
        srcs = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        taken = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2 / 3])) if op is Op.BRANCH else 0.0
        stream, width = -1, 4
        if op in (Op.LOAD, Op.STORE) and draw(st.booleans()):
            stream = len(streams)
            width = draw(st.sampled_from([4, 4, 4, 2, 1]))
            unit = draw(st.sampled_from([4, 4, 64, width, 1]))
            base, *strides = (unit * draw(st.integers(0, 40)) for _ in range(level + 1))
            streams.append(Stream(base, tuple(strides)))
        return Instruction(op, dst, srcs, stream, taken, width)

    def body(level: int) -> tuple[Node, ...]:
        nodes: list[Node] = []
        for _ in range(draw(st.integers(0, 4))):
            if level < depth and draw(st.integers(0, 2)) == 0:
                nodes.append(Loop(draw(st.integers(0, max_trips)), body(level + 1), draw(st.booleans())))
            else:
                nodes.append(instruction(level))
        return tuple(nodes)

    tree = body(0)
    return CoreWork(tree, tuple(streams))
