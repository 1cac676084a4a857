# SPDX-License-Identifier: Apache-2.0
"""16-bit, depthwise and accumulating kernels: what they touch, what they execute, how fast they are built."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.spec.isa import CoreWork, Loop, Node, Op, TeamWork
from configs.errors import ConfigError, InputError
from shared.counted_work import counted
from trainlib.kernels.accumulate import accumulating
from trainlib.kernels.catalogue import depthwise_names, kernel_names, matmul_work
from trainlib.kernels.library import LIBRARY, KernelLibrary
from trainlib.kernels.nest import parse_nest

A, B, C = 0, 100_000, 200_000
HALF = tuple(
    name
    for name in LIBRARY.kernel_names("clang-xpulp")
    if LIBRARY.header("clang-xpulp", name).is_matmul
    and LIBRARY.header("clang-xpulp", name).element_bytes == 2
)
"""The 16-bit matmuls that have a file of their own."""
DEPTHWISE = depthwise_names("clang-xpulp")
SIZES = st.integers(1, 11)


def touched(core: CoreWork, op: Op, unit_bytes: int) -> Counter[int]:
    """How often each unit of memory is touched by addressed loads or stores; wide accesses touch several."""
    units: Counter[int] = Counter()

    def walk(body: tuple[Node, ...], indices: tuple[int, ...]) -> None:
        for node in body:
            if isinstance(node, Loop):
                for index in range(node.trips):
                    walk(node.body, (*indices, index))
            elif node.op == op and node.stream >= 0:
                stream = core.streams[node.stream]
                first = stream.base_bytes + sum(
                    i * stride for i, stride in zip(indices, stream.strides_bytes, strict=True)
                )
                units.update(range(first, first + node.width_bytes, unit_bytes))

    walk(core.body, ())
    return units


def ops(core: CoreWork) -> Counter[Op]:
    """Executed instructions by class."""
    total: Counter[Op] = Counter()

    def walk(body: tuple[Node, ...], times: int) -> None:
        for node in body:
            if isinstance(node, Loop):
                walk(node.body, times * node.trips)
            else:
                total[node.op] += times

    walk(core.body, 1)
    return total


def team_touched(team: TeamWork, op: Op, unit_bytes: int) -> Counter[int]:
    total: Counter[int] = Counter()
    for core in team.cores:
        assert core is not None
        total += touched(core, op, unit_bytes)
    return total


@settings(max_examples=120, derandomize=True, deadline=None)
@given(kernel=st.sampled_from(HALF), n=SIZES, k=SIZES, m=SIZES, trans_b=st.booleans())
def test_16_bit_kernels_write_every_half_word_once_and_read_all_operands(
    kernel: str, n: int, k: int, m: int, trans_b: bool
) -> None:
    team = matmul_work(kernel, "clang-xpulp", n, k, m, trans_b, 1, A, B, C, element_bytes=2)
    assert team_touched(team, Op.STORE, 2) == Counter(C + 2 * index for index in range(n * m))
    used = {A + 2 * index for index in range(n * k)} | {B + 2 * index for index in range(k * m)}
    assert set(team_touched(team, Op.LOAD, 2)) == used


@settings(max_examples=80, derandomize=True, deadline=None)
@given(kernel=st.sampled_from(HALF), n=SIZES, m=SIZES, trans_b=st.booleans(), cores=st.integers(2, 8))
def test_cores_leave_no_element_of_a_16_bit_result_out(
    kernel: str, n: int, m: int, trans_b: bool, cores: int
) -> None:
    team = matmul_work(kernel, "clang-xpulp", n, 5, m, trans_b, cores, A, B, C)
    assert set(team_touched(team, Op.STORE, 2)) >= {C + 2 * index for index in range(n * m)}


# Instructions of one inner iteration, by hand from the library: kernel, trans_b, loads, multiply-adds, all.
INNER = [
    ("mm_fp16", False, 2, 1, 3),
    ("mm_fp16_SIMD_2x4", False, 3, 2, 7),
    ("mm_fp16_SIMD_2x4", True, 3, 2, 5),
    ("mm_fp16_SIMD_4x8", False, 6, 8, 18),
    ("mm_fp16_SIMD_4x8", True, 6, 8, 14),
    ("mm_M_fp16_SIMD_2x4", False, 3, 2, 7),
    ("mm_M_fp16_SIMD_4x8", True, 6, 8, 14),
    ("mm_fp16_unroll_2x1", False, 3, 2, 5),
    ("mm_fp16_unroll_4x1", True, 5, 4, 9),
]


@pytest.mark.parametrize("row", INNER, ids=lambda row: f"{row[0]}-t{int(row[1])}")
def test_the_inner_iterations_are_those_of_the_table(row: tuple[str, bool, int, int, int]) -> None:
    kernel, trans_b, loads, multiply_adds, instructions = row
    step = 2 if "SIMD" in kernel else 1
    short, long = (
        ops(core)
        for k in (20 * step, 21 * step)
        for core in matmul_work(kernel, "clang-xpulp", 16, k, 16, trans_b, 1, A, B, C).cores
        if core is not None
    )
    more = long - short
    tiles = more[Op.FMA] // multiply_adds
    assert tiles > 0
    assert more[Op.LOAD] == loads * tiles
    assert more.total() == instructions * tiles


def test_odd_rows_of_16_bit_matrices_are_misaligned() -> None:
    for k, odd in ((16, 0), (17, 1)):
        (core,) = matmul_work("mm_fp16_SIMD_2x4", "clang-xpulp", 2, k, 2, True, 1, A, B, C).cores
        assert core is not None
        wide = [s for s in core.streams if s.strides_bytes and s.strides_bytes[0] == 2 * k]
        assert wide
        assert all((stream.base_bytes + stream.strides_bytes[0]) % 4 == 2 * odd for stream in wide)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(kernel=st.sampled_from(DEPTHWISE), n=SIZES, k=SIZES, m=SIZES, cores=st.integers(1, 4))
def test_depthwise_kernels_multiply_channel_by_channel(
    kernel: str, n: int, k: int, m: int, cores: int
) -> None:
    team = matmul_work(kernel, "clang-xpulp", n, k, m, False, cores, A, B, C)
    stores = team_touched(team, Op.STORE, 4)
    assert set(stores) == {C + 4 * index for index in range(n * m)}
    used = {A + 4 * index for index in range(n * k)} | {B + 4 * index for index in range(m * n * k)}
    assert set(team_touched(team, Op.LOAD, 4)) == used
    width = {"2": 2, "4": 4}.get(kernel.partition("_1x")[2][:1], 1)
    blocks, left = (m // width, m % width) if m >= width else (m, 0)
    # Columns left over are computed again after every block of columns, as published.
    again = left * blocks if m >= width else 0
    columns = blocks * width if m >= width else m
    team_ops = sum((ops(core) for core in team.cores if core is not None), Counter[Op]())
    assert team_ops[Op.FMA] == n * k * (columns + again)
    assert team.macs == n * k * m


ADDABLE = [
    (codegen, kernel)
    for codegen, dtype in (
        ("clang-xpulp", "fp32"), ("clang-xpulp", "fp16"), ("asm-xpulp", "fp32"), ("asm-xpulp", "fp16")
    )
    for kernel in kernel_names(codegen, dtype)
]  # fmt: skip


@settings(max_examples=250, derandomize=True, deadline=None)
@given(which=st.sampled_from(ADDABLE), n=SIZES, k=SIZES, m=SIZES, trans_b=st.booleans())
def test_the_accumulating_form_loads_every_element_it_stores(
    which: tuple[str, str], n: int, k: int, m: int, trans_b: bool
) -> None:
    codegen, kernel = which
    header = LIBRARY.header(codegen, kernel)
    if kernel.startswith("asm16"):  # vector kernels for whole blocks only
        k, m = 2 * k, 4 * m
    trans_b = trans_b if header.trans_b is None else header.trans_b
    size = header.element_bytes
    plain, added = (
        matmul_work(kernel, codegen, n, k, m, trans_b, 1, A, B, C, accumulate=accumulate)
        for accumulate in (False, True)
    )
    before, after = (team_touched(team, Op.LOAD, size) for team in (plain, added))
    assert {address for address in after if address >= C} >= {C + size * index for index in range(n * m)}
    assert {key: count for key, count in after.items() if key < C} == {
        key: count for key, count in before.items() if key < C
    }
    stores = team_touched(added, Op.STORE, size)
    assert set(stores) == {C + size * index for index in range(n * m)}


def test_adding_takes_the_place_of_clearing() -> None:
    (plain,), (added,) = (
        matmul_work("mm_unroll_2x2", "clang-xpulp", 8, 16, 8, False, 1, A, B, C, accumulate=accumulate).cores
        for accumulate in (False, True)
    )
    assert plain is not None
    assert added is not None
    difference = ops(added)
    difference.subtract(ops(plain))
    # 4 x 4 tiles of 2 x 2 outputs: a load each instead of a constant each.
    assert {op: count for op, count in difference.items() if count} == {Op.LOAD: 64, Op.MOVE: -64}


def test_a_product_stored_at_once_becomes_a_multiply_add() -> None:
    (plain,), (added,) = (
        matmul_work("mm", "clang-xpulp", 3, 1, 5, False, 1, A, B, C, accumulate=accumulate).cores
        for accumulate in (False, True)
    )
    assert plain is not None
    assert added is not None
    assert ops(plain)[Op.FMUL] == 15
    assert ops(added)[Op.FMUL] == 0
    assert ops(added)[Op.FMA] == 15
    assert ops(added).total() == ops(plain).total() + 15


def test_a_kernel_without_an_accumulation_cannot_add() -> None:
    with pytest.raises(ConfigError, match=r"k\.yaml:3: --add-to-c needs a kernel that sums products"):
        accumulating(parse_nest("S:C(0,0)"), "k.yaml:3")


def test_an_element_size_the_kernel_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="elements of 2 bytes, not 4"):
        matmul_work("mm_fp16", "clang-xpulp", 4, 4, 4, False, 1, A, B, C, element_bytes=4)
    with pytest.raises(InputError, match="unknown dtype 'fp8'"):
        kernel_names("clang-xpulp", "fp8")
    assert set(kernel_names("clang-xpulp", None)) == set(kernel_names("clang-xpulp")) | set(HALF)
    assert kernel_names("clang-xpulp", "bf16") == kernel_names("clang-xpulp", "fp16")
    assert set(HALF) < set(kernel_names("clang-xpulp", "fp16"))
    assert not any(LIBRARY.rows("clang-xpulp", name) for name in (*HALF, *DEPTHWISE))


def test_asking_is_little_work() -> None:
    """The AutoTuner asks thousands of different shapes."""
    with counted() as first:
        KernelLibrary().kernel("clang-xpulp", "mm_unroll_4x4")
    with counted() as hundred:
        for index in range(100):
            matmul_work(
                "mm_unroll_4x4", "clang-xpulp", 64 + index % 7, 16 + index, 64 + index, True, 8, A, B, C
            )
    assert first.calls < 100_000
    assert hundred.calls < 100 * 10_000
