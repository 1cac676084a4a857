# SPDX-License-Identifier: Apache-2.0
"""Kernels as data: the nest language, its streams, and the kernels of the shipped codegen profiles."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.spec.isa import CoreWork, Instruction, Loop, Node, Op, TeamWork
from configs.dtypes import FP32
from configs.errors import ConfigError, InputError
from scheduler.validation.rows.layer_steps import layer_graph
from shared.closed_forms import works_of
from shared.vector_calls import vector_work
from trainlib.kernels.assembly import listing_to_nest
from trainlib.kernels.catalogue import (
    kernel_names,
    matmul_work,
)
from trainlib.kernels.expand import Array, Expander
from trainlib.kernels.expressions import parse_expression
from trainlib.kernels.library import LIBRARY, KernelLibrary
from trainlib.kernels.nest import parse_nest
from trainlib.primitives.contractions.conv_nests import Reach, Site, im2row

WRAPPER_INSTRUCTIONS = 7
"""Instructions the measuring wrapper adds to a kernel on one core."""
WRAPPER_LOADS = 2


def count(body: tuple[Node, ...]) -> dict[str, float]:
    """Executed instructions, loads, stores, taken branches and load stalls (a multiply counts one)."""
    total: dict[str, float] = defaultdict(float)
    previous: Instruction | None = None
    for node in body:
        if isinstance(node, Loop):
            for key, value in count(node.body).items():
                total[key] += value * node.trips
            total["taken"] += 0 if node.hardware else node.trips - 1
            previous = None
            continue
        total["instructions"] += 1
        total["loads"] += node.op == Op.LOAD
        total["stores"] += node.op == Op.STORE
        total["taken"] += node.taken_fraction
        total["stalls"] += node.op == Op.MUL
        uses = previous is not None and previous.dst in node.srcs and previous.op == Op.LOAD
        total["stalls"] += uses
        total["dependent_products"] += (
            previous is not None and previous.dst in node.srcs and previous.op == Op.MUL
        )
        total["jumps"] += node.op == Op.JUMP
        previous = node
    return total


def touched(work: CoreWork, op: Op) -> Counter[int]:
    """Addresses of all loads or stores with an address, with how often each is touched."""
    addresses: Counter[int] = Counter()

    def walk(body: tuple[Node, ...], indices: tuple[int, ...]) -> None:
        for node in body:
            if isinstance(node, Loop):
                for index in range(node.trips):
                    walk(node.body, (*indices, index))
            elif node.op == op and node.stream >= 0:
                stream = work.streams[node.stream]
                offset = sum(i * stride for i, stride in zip(indices, stream.strides_bytes, strict=True))
                addresses[stream.base_bytes + offset] += 1

    walk(work.body, ())
    return addresses


def cores_of(team: TeamWork) -> list[CoreWork]:
    return [core for core in team.cores if core is not None]


def test_a_nest_is_text_with_trips_addresses_and_marks() -> None:
    nest = parse_nest("H for i in 0..N step 2 hw { L+:A(i,3) F' S:B(N-i) } if (N > 4) { A*2 } else { V } B!")
    arrays = {"A": Array(1000, (10, 1)), "B": Array(0)}
    work = Expander(nest, "test").core_work({"N": 3}, arrays, code_bytes=12)
    load = Instruction(Op.LOAD, dst=0, stream=0)
    multiply_add = Instruction(Op.FMA, dst=1, srcs=(0, 1))
    store = Instruction(Op.STORE, stream=1)
    assert work.body == (
        Instruction(Op.HWLOOP),
        Loop(2, (load, multiply_add, store), hardware=True),
        Instruction(Op.MOVE),
        Instruction(Op.BRANCH, taken_fraction=1.0),
    )
    assert [(s.base_bytes, s.strides_bytes) for s in work.streams] == [(1012, (80,)), (12, (-8,))]
    assert work.code_bytes == 12


def test_an_inner_loop_may_start_at_an_outer_variable() -> None:
    nest = parse_nest("for i in 1..5 step 2 branch { for j in i..i + 2 hw { L:A(j) } A B }")
    work = Expander(nest, "test").core_work({}, {"A": Array(0)}, 0)
    assert touched(work, Op.LOAD) == Counter([4, 8, 12, 16])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A\nX", "k.yaml:11: unknown instruction code 'X'"),
        ("for i in 0..N hw { A", "k.yaml:10: a '{' is never closed"),
        ("for i in 0..N branch { B A }", "k.yaml:10: a loop of kind 'branch' must end with B"),
        ("A\n\nF'", "k.yaml:12: the mark ' of 'F'' needs a load or multiply right before"),
        ("for i in 0..N { A }", "k.yaml:10: a loop lacks its kind"),
        ("for i in 0..N hw { for i in 0..N hw { A } }", "an outer loop has the variable 'i', too"),
        ("for i in 0..N hw { L:A(i*i) }", "is not linear in the loop variable 'i'"),
        ("for i in 0..N hw { for j in 0..i hw { A } }", "the trips depend on the variable of another loop"),
        ("if (open('x')) { A }", "uses syntax that is not allowed"),
        ("L:A(0)*2", "cannot repeat"),
        ("A+", "does not access memory"),
        ("L.3", "use a width of 1, 2 or 4"),
    ],
)
def test_a_wrong_text_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_nest(text, "k.yaml", 10)
    assert message in str(caught.value)


def test_expressions_are_arithmetic_only() -> None:
    expression = parse_expression("min(ceildiv(N, cores) * 2, N - 1) % 5", "here")
    assert expression.names == {"N", "cores"}
    assert expression.evaluate({"N": 9, "cores": 2}) == min(10, 8) % 5
    for text in ("__import__('os')", "N.bit_length()", "2 ** 9", "[N]", "'a'", "1.5"):
        with pytest.raises(ConfigError):
            parse_expression(text, "here")


# Measured on one core (codegen clang-xpulp, GVSoC, wrapper included): kernel, n, k, m, trans_b, instructions,
# loads, stores, taken branches, load stalls, kernel cycles less one per instruction-cache miss.
MEASURED = [
    ("mm", 16, 16, 16, False, 15787, 8204, 259, 257, 4115, 20416),
    ("mm", 33, 16, 65, False, 131152, 68652, 2148, 2146, 34356, 169833),
    ("mm", 31, 29, 37, True, 113844, 66538, 1150, 1147, 33297, 149467),
    ("mm_M", 13, 17, 19, False, 15960, 8412, 252, 247, 4214, 20680),
    ("mm_u2", 31, 29, 37, True, 136040, 67693, 2305, 1176, 1214, 139669),
    ("mm_unroll_1x2", 13, 17, 19, True, 12960, 6430, 259, 129, 4231, 17476),
    ("mm_unroll_1x4", 33, 16, 65, False, 88690, 43321, 2160, 561, 602, 90481),
    ("mm_unroll_1x8", 13, 17, 19, True, 14560, 5409, 281, 64, 749, 15466),
    ("mm_unroll_2x1", 15, 15, 15, False, 10696, 5193, 234, 120, 3395, 14333),
    ("mm_unroll_4x1", 31, 29, 37, True, 85777, 44095, 1176, 369, 10953, 97470),
    ("mm_unroll_2x2", 8, 72, 64, False, 76589, 36905, 533, 132, 9249, 86101),
    ("mm_unroll_2x2", 16, 16, 16, True, 9966, 4178, 281, 67, 1095, 11194),
    ("mm_unroll_2x4", 31, 29, 37, False, 65439, 26932, 1217, 147, 4958, 70767),
    ("mm_unroll_2x4", 32, 32, 32, True, 90833, 25336, 1132, 132, 475, 91603),
    ("mm_unroll_4x2", 16, 64, 16, False, 30022, 12547, 314, 37, 2137, 32220),
    ("mm_unroll_4x4", 32, 32, 32, False, 98505, 21463, 5427, 20, 6750, 105374),
    ("mm_M_u2", 16, 16, 16, False, 18646, 8214, 269, 257, 19, 19193),
    ("mm_M_unroll_2x2", 31, 29, 37, False, 76827, 35348, 1171, 303, 2606, 80596),
    ("mm_M_unroll_2x4", 32, 32, 32, True, 63121, 25327, 1081, 132, 4673, 68313),
    ("mm_M_unroll_4x4", 16, 32, 64, False, 107901, 25661, 9777, 36, 9077, 117363),
]


@pytest.mark.smoke
@pytest.mark.parametrize(
    "row", MEASURED, ids=lambda row: f"{row[0]}-{row[1]}x{row[2]}x{row[3]}-t{int(row[4])}"
)
def test_counts_and_cycles_are_those_measured(
    row: tuple[str, int, int, int, bool, int, int, int, int, int, int],
) -> None:
    kernel, n, k, m, trans_b, instructions, loads, stores, taken, stalls, cycles = row
    (core,) = cores_of(matmul_work(kernel, "clang-xpulp", n, k, m, trans_b, 1, 0, 0, 0))
    got = count(core.body)
    assert got["instructions"] + WRAPPER_INSTRUCTIONS == pytest.approx(instructions, rel=0.0005, abs=3)
    assert got["loads"] + WRAPPER_LOADS == pytest.approx(loads, abs=3)
    assert got["stores"] == pytest.approx(stores, abs=1)
    assert got["taken"] == pytest.approx(taken, abs=16)
    assert got["stalls"] == pytest.approx(stalls, rel=0.005, abs=14)
    predicted = got["instructions"] + got["stalls"] + 2 * got["taken"]
    predicted += got["jumps"] + got["dependent_products"] + WRAPPER_INSTRUCTIONS
    assert predicted == pytest.approx(cycles, rel=0.002, abs=4)


def test_the_inner_loop_of_the_naive_kernel_is_two_loads_and_a_dependent_multiply_add() -> None:
    (core,) = cores_of(matmul_work("mm", "clang-xpulp", 4, 6, 5, False, 1, 0, 1000, 2000))
    (rows,) = [node for node in core.body if isinstance(node, Loop)]
    (columns,) = [node for node in rows.body if isinstance(node, Loop)]
    (inner,) = [node for node in columns.body if isinstance(node, Loop)]
    assert (rows.trips, columns.trips, inner.trips, inner.hardware) == (4, 5, 6, True)
    first, second, multiply_add = inner.body
    assert isinstance(multiply_add, Instruction)
    assert isinstance(second, Instruction)
    assert [node.op for node in inner.body if isinstance(node, Instruction)] == [Op.LOAD, Op.LOAD, Op.FMA]
    assert multiply_add.srcs == (second.dst, multiply_add.dst)
    assert isinstance(first, Instruction)
    assert core.streams[first.stream].strides_bytes == (6 * 4, 0, 4)  # A: row, -, k
    assert core.streams[second.stream].strides_bytes == (0, 4, 5 * 4)  # B: -, column, k


SIZES = st.integers(1, 13)
CORRECT = [name for name in kernel_names("clang-xpulp") if name not in ("mm_u2", "mm_M_u2")]
"""Kernels whose loads of A and B can be counted per multiply-add (the k-by-2 ones have a leftover pass)."""


@settings(max_examples=150, derandomize=True, deadline=None)
@given(kernel=st.sampled_from(CORRECT), n=SIZES, k=SIZES, m=SIZES, trans_b=st.booleans())
def test_on_one_core_every_element_is_written_once_and_operands_stay_inside(
    kernel: str, n: int, k: int, m: int, trans_b: bool
) -> None:
    a, b, c = 0, 100_000, 200_000
    (core,) = cores_of(matmul_work(kernel, "clang-xpulp", n, k, m, trans_b, 1, a, b, c))
    assert touched(core, Op.STORE) == Counter(c + 4 * index for index in range(n * m))
    loads = touched(core, Op.LOAD)
    used = {a + 4 * index for index in range(n * k)} | {b + 4 * index for index in range(k * m)}
    assert set(loads) == used


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    kernel=st.sampled_from(["mm", "mm_M", "mm_unroll_1x2", "mm_unroll_1x4", "mm_unroll_1x8"]),
    n=SIZES,
    m=SIZES,
    cores=st.integers(1, 8),
)
def test_cores_share_the_result_without_overlap(kernel: str, n: int, m: int, cores: int) -> None:
    team = matmul_work(kernel, "clang-xpulp", n, 3, m, False, cores, 0, 50_000, 100_000)
    stores: Counter[int] = Counter()
    for core in cores_of(team):
        stores += touched(core, Op.STORE)
    assert stores == Counter(100_000 + 4 * index for index in range(n * m))
    assert len(team.cores) == cores
    assert team.macs == n * 3 * m


def test_blocks_rounded_up_recompute_rows_as_published() -> None:
    # N = 18 on 8 cores: chunks of 3 rows, tiles of 2 rows: inner chunks overlap their neighbour's first row.
    team = matmul_work("mm_unroll_2x2", "clang-xpulp", 18, 4, 4, False, 8, 0, 10_000, 20_000)
    stores = Counter[int]()
    for core in cores_of(team):
        stores += touched(core, Op.STORE)
    row_writes = [stores[20_000 + 16 * row] for row in range(18)]
    assert row_writes == [1, 1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1]


def test_a_small_problem_falls_back_as_published() -> None:
    # N / cores < 2: 2x4 becomes 1x8, which for M < 8 becomes 1x4; both prologues are paid.
    small = cores_of(matmul_work("mm_unroll_2x4", "clang-xpulp", 8, 16, 4, True, 8, 0, 0, 0))[0]
    direct = cores_of(matmul_work("mm_unroll_1x4", "clang-xpulp", 8, 16, 4, True, 8, 0, 0, 0))[0]
    assert small.body[-len(direct.body) :] == direct.body
    assert len(small.body) > len(direct.body)


def test_equal_cores_share_one_body_object() -> None:
    team = matmul_work("mm_unroll_2x2", "clang-xpulp", 48, 16, 16, False, 8, 0, 0, 0)
    bodies = [core.body for core in cores_of(team)]
    assert all(body is bodies[0] for body in bodies[:7])
    again = matmul_work("mm_unroll_2x2", "clang-xpulp", 48, 16, 16, False, 8, 4, 8, 12)
    assert cores_of(again)[0].body is bodies[0]
    assert cores_of(again)[0].streams != cores_of(team)[0].streams


def test_the_scheduled_codegen_has_the_same_instructions_and_fewer_stalls() -> None:
    for kernel in kernel_names("clang-xpulp"):
        plain, scheduled = (
            count(cores_of(matmul_work(kernel, codegen, 17, 9, 13, True, 1, 0, 0, 0))[0].body)
            for codegen in ("clang-xpulp", "clang-xpulp-sched")
        )
        for word in ("instructions", "loads", "stores", "taken"):
            assert scheduled[word] == plain[word]
        assert scheduled["stalls"] <= plain["stalls"]
    # 2x2, measured at 32x32x32: 8309 and 118 load stalls.
    (core,) = cores_of(matmul_work("mm_unroll_2x2", "clang-xpulp-sched", 32, 32, 32, False, 1, 0, 0, 0))
    assert count(core.body)["stalls"] == pytest.approx(118, abs=3)


# The hand-scheduled kernels: instructions are exact. Kernel, n, k, m, then instructions, loads, stores and
# load stalls measured on one core (the wrapper of these has no loads).
ASM_MEASURED = [
    ("asm_1x1", 16, 16, 16, 17533, 10392, 605, 4370),
    ("asm_2x2", 31, 29, 37, 76243, 37120, 1544, 784),
    ("asm_4x4", 33, 16, 65, 60766, 19794, 2363, 304),
    ("asm_M_2x4", 13, 17, 19, 9628, 4324, 353, 415),
    ("asm_M_4x1s", 31, 29, 37, 87569, 47318, 1586, 3601),
    ("asm16_2x4", 16, 32, 64, 40929, 13770, 700, 131),
    ("asm16_T_2x2", 8, 72, 64, 41881, 19762, 684, 387),
]


@pytest.mark.parametrize("row", ASM_MEASURED, ids=lambda row: row[0])
def test_a_listing_gives_the_measured_counts(row: tuple[str, int, int, int, int, int, int, int]) -> None:
    kernel, n, k, m, instructions, loads, stores, stalls = row
    (core,) = cores_of(matmul_work(kernel, "asm-xpulp", n, k, m, "_T_" in kernel, 1, 0, 0, 0))
    got = count(core.body)
    assert got["instructions"] + WRAPPER_INSTRUCTIONS == instructions
    assert (got["loads"], got["stores"]) == (loads, stores)
    assert got["stalls"] == pytest.approx(stalls, rel=0.005, abs=6)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(
    kernel=st.sampled_from([name for name in kernel_names("asm-xpulp") if name.startswith("asm_")]),
    n=SIZES,
    k=SIZES,
    m=SIZES,
    cores=st.integers(1, 8),
)
def test_the_listings_share_the_result_without_overlap(
    kernel: str, n: int, k: int, m: int, cores: int
) -> None:
    a, b, c = 0, 100_000, 200_000
    stores: Counter[int] = Counter()
    loads: Counter[int] = Counter()
    for core in cores_of(matmul_work(kernel, "asm-xpulp", n, k, m, False, cores, a, b, c)):
        stores += touched(core, Op.STORE)
        loads += touched(core, Op.LOAD)
    assert stores == Counter(c + 4 * index for index in range(n * m))
    assert set(loads) == {a + 4 * i for i in range(n * k)} | {b + 4 * i for i in range(k * m)}


def test_a_listing_keeps_its_registers_lines_and_annotations() -> None:
    text = (
        "#@ for k in 0..K hw {\n  p.lw t2,4(t3!)  #@ A(k)\n.L7:\n  fmadd.s t0,t2,t1,t0\n#@ }\n"
        "  bnez t0,.L7  #@ taken 0.25"
    )
    nest = listing_to_nest(text, "k.yaml", 3)
    assert nest.split("\n") == [
        "for k in 0..K hw {",
        "L+:A(k)[t2<t3]",
        "",
        "F[t0<t2,t1,t0]",
        "}",
        "B%0.25[<t0]",
    ]
    body = Expander(parse_nest(nest), "test").core_work({"K": 3}, {"A": Array(0)}, 0).body
    assert isinstance(body[0], Loop)
    load, multiply_add = body[0].body
    assert isinstance(load, Instruction)
    assert isinstance(multiply_add, Instruction)
    assert load.dst in multiply_add.srcs
    assert multiply_add.dst in multiply_add.srcs
    with pytest.raises(ConfigError, match=r"k\.yaml:4: unknown instruction 'frobnicate'"):
        listing_to_nest("nop\nfrobnicate t0,t1", "k.yaml", 3)
    with pytest.raises(ConfigError, match=r"k\.yaml:3: invalid annotation '#@ while true'"):
        listing_to_nest("#@ while true", "k.yaml", 3)


def test_a_kernel_for_one_transposition_refuses_the_other() -> None:
    with pytest.raises(InputError, match="needs B transposed"):
        matmul_work("asm16_T_2x2", "asm-xpulp", 8, 8, 8, False, 1, 0, 0, 0)


# Measured on one core (layer.csv), loop name and sizes: instructions and load stalls of a fork included.
def test_the_elementwise_loops_cost_what_was_measured() -> None:
    relu = count(cores_of(vector_work("clang-xpulp", "relu_fw", 1000, 1, (0, 4000)))[0].body)
    assert (relu["instructions"], relu["stalls"]) == (3036 - 11, 1003 - 1)
    sgd = count(cores_of(vector_work("clang-xpulp", "sgd", 1000, 1, (0, 4000)))[0].body)
    assert (sgd["instructions"], sgd["stalls"]) == (4052 - 24, 1001 + 1)
    backward = count(cores_of(vector_work("clang-xpulp", "relu_bw", 1000, 1, (0, 4, 8)))[0].body)
    assert backward["instructions"] == pytest.approx(11060, rel=0.005)
    mse = count(cores_of(vector_work("clang-xpulp", "mse_fw", 100, 1, (0, 400, 800)))[0].body)
    assert (mse["instructions"], mse["stalls"]) == (522 - 5, 101)
    entropy = count(
        cores_of(vector_work("clang-xpulp", "cross_entropy_fw", 1000, 1, (0, 4000, 8000)))[0].body
    )
    assert entropy["instructions"] == pytest.approx(70848, rel=0.02)


def test_elementwise_chunks_cover_every_element_once() -> None:
    team = vector_work("clang-xpulp", "relu_bw", 21, 4, (0, 1000, 2000))
    stores = Counter[int]()
    for core in cores_of(team):
        stores += touched(core, Op.STORE)
    assert stores == Counter(2000 + 4 * index for index in range(21))


def test_im2row_copies_every_patch_element_once() -> None:
    site = Site("clang-xpulp", 2, FP32, {"X": 0, "R": 10_000})
    team = im2row(site, "FW", Reach.of((5, 6), (3, 2), (3, 5)), 3, padded=False)
    stores = Counter[int]()
    loads = Counter[int]()
    for core in cores_of(team):
        stores += touched(core, Op.STORE)
        loads += touched(core, Op.LOAD)
    assert stores == Counter(10_000 + 4 * index for index in range(3 * 5 * 3 * 3 * 2))
    assert set(loads) == {4 * index for index in range(3 * 5 * 6)}


@pytest.mark.parametrize(
    ("mode", "cores", "instructions", "taken"),
    [("FW", 2, 16732, 562), ("FW", 8, 6148, 184), ("IG", 2, 130716, 8051), ("IG", 8, 44694, 2759)],
)
def test_im2row_costs_what_was_measured(mode: str, cores: int, instructions: int, taken: int) -> None:
    large, small, kernel = (11, 9), (9, 7), (3, 3)
    forward = mode == "FW"
    reach = Reach.of(large, kernel, small) if forward else Reach.of(small, kernel, large, pad=2)
    team = im2row(Site("clang-xpulp", cores, FP32, {}), mode, reach, 6 if forward else 18, padded=False)
    got = count(cores_of(team)[0].body)
    assert got["instructions"] == pytest.approx(instructions, rel=0.006)
    assert got["taken"] == pytest.approx(taken, rel=0.02, abs=10)


def test_blocktransp_reverses_windows_and_swaps_channels() -> None:
    options = {"out_channels": 2, "kernel": 2, "bias": False}
    graph = layer_graph("conv2d", "IG", options, [(3, 4, 4)], where="test")
    (team,) = (work for work in works_of(graph, "IG", cores=1) if work.kernel == "blocktransp")
    (core,) = cores_of(team)
    source, target = (min(touched(core, op)) for op in (Op.LOAD, Op.STORE))
    assert touched(core, Op.LOAD) == Counter(source + 4 * index for index in range(24))
    assert touched(core, Op.STORE) == Counter(target + 4 * index for index in range(24))
    assert count(core.body)["instructions"] == 2 * (3 * (4 * 2 + 9) + 7) + 52


def test_unknown_names_are_answered_with_a_suggestion() -> None:
    with pytest.raises(InputError, match="use 'mm_unroll_2x2'"):
        matmul_work("mm_unrol_2x2", "clang-xpulp", 4, 4, 4, False, 1, 0, 0, 0)
    with pytest.raises(InputError, match="use 'clang-xpulp'"):
        matmul_work("mm", "clang-xpup", 4, 4, 4, False, 1, 0, 0, 0)
    with pytest.raises(InputError, match="not a matmul kernel"):
        matmul_work("relu_fw", "clang-xpulp", 4, 4, 4, False, 1, 0, 0, 0)
    with pytest.raises(InputError, match="n is 0, but must be a whole number of 1 or more"):
        matmul_work("mm", "clang-xpulp", 0, 4, 4, False, 1, 0, 0, 0)
    with pytest.raises(InputError, match="needs 3 addresses"):
        vector_work("clang-xpulp", "relu_bw", 4, 1, (0, 4))
    assert {"asm-xpulp", "clang-xpulp", "clang-xpulp-sched"} <= set(LIBRARY.codegen_names())
    assert len(kernel_names("clang-xpulp")) == 24


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernel: mine\ncode_bytes: 4\narrays: {A: 2}\nnests: A", "mine.yaml:4: unknown key 'nests'"),
        ("kernel: mine\ncode_bytes: 4\narrays: {A: 2}", "neither 'nest' nor 'listing'"),
        ("kernel: mine\nkernel: mine", "mine.yaml:2"),
        ("kernel: other\ncode_bytes: 4\narrays: {A: 2}\nnest: A", "mine.yaml:1: 'kernel' is 'other'"),
        ("kernel: mine\ncode_bytes: x\narrays: {A: 2}\nnest: A", "mine.yaml:2: 'code_bytes' must be"),
        (
            "kernel: mine\ncode_bytes: 4\narrays: {A: 2}\nnest: |\n  A\n  Z",
            "mine.yaml:6: unknown instruction",
        ),
        (
            "kernel: mine\ncode_bytes: 4\narrays: {A: 2}\nnest: A\n"
            "fallback: [{when: N < 2, use: no, cost: A}]",
            "'fallback' names an unknown kernel 'no'",
        ),
    ],
)
def test_a_wrong_kernel_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    folder = tmp_path / "mygen"
    folder.mkdir()
    (folder / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        KernelLibrary(tmp_path).kernel("mygen", "mine")
    assert message in str(caught.value)


def test_a_user_adds_a_kernel_in_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "mygen"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        "kernel: mine\ncode_bytes: 32\narrays: {A: 2, B: 2, C: 2}\nnest: |\n"
        "  for i in core..N step 1 branch { H for k in 0..K hw { L:A(i,k) L:B(k,0) F } S:C(i,0) B }\n"
    )
    team = matmul_work("mine", "mygen", 4, 8, 1, False, 2, 0, 0, 0, library=KernelLibrary(tmp_path))
    assert [count(core.body)["instructions"] for core in cores_of(team)] == [4 * (3 * 8 + 3), 3 * (3 * 8 + 3)]
