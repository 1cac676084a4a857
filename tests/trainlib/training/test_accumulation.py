# SPDX-License-Identifier: Apache-2.0
"""Bit-true `kernel` accumulation of 16-bit matmuls against a scalar emulation of the published loops.

The oracle multiplies and adds in exact fractions and rounds by a rule of its own, one number at a time.
"""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.dtypes import BF16, DTYPES, FP16, FP32
from shared.tolerances import tolerance
from trainlib.ir.numerics import IN_ORDER, matmul, rounded, sum_order
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.lowering.calls import factors, matmul_call
from trainlib.primitives.lowering.kernel_call import Piece

BITS = {"float16": (10, -14), "bfloat16": (7, -126), "float32": (23, -126)}
"""Bits behind the point, smallest exponent of a normal number."""


def exact_round(value: Fraction, dtype: str) -> Fraction:
    """To nearest, ties to even, subnormals included (values here never overflow)."""
    fraction_bits, least = BITS[dtype]
    if value == 0:
        return value
    size, exponent = abs(value), 0
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while size < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, least) - fraction_bits)
    return round(value / unit) * unit  # Python rounds fractions to even


def scalar(a, b, dtype, ks):
    total = Fraction(0)
    for k in ks:
        total = exact_round(total + a[k] * b[k], dtype)
    return total


def simd(a, b, dtype, tail):
    """The inner loop of the SIMD kernels on a transposed B: two lanes over pairs of k, then their sum."""
    pairs = range(0, len(a) - 1, 2)
    even, odd = scalar(a, b, dtype, pairs), scalar(a, b, dtype, [k + 1 for k in pairs])
    if len(a) % 2 == 0:
        return exact_round(even + odd, dtype)
    last = a[-1] * b[-1]
    if tail == "lane":  # 4x8: the last k is added to the lower lane
        return exact_round(exact_round(even + last, dtype) + odd, dtype)
    return exact_round(exact_round(last, dtype) + exact_round(even + odd, dtype), dtype)  # 2x4


def published(kernel, a, b, trans_b, cores, dtype):
    """C as the published 16-bit kernel leaves it, fallbacks and scalar leftovers included."""
    (n, k), m = a.shape, b.shape[1]
    if kernel == "mm_fp16_SIMD_4x8" and (m < 4 or k < 2 or (n - n % 2) // cores < 2):
        kernel = "mm_fp16_SIMD_2x4"
    if kernel == "mm_M_fp16_SIMD_4x8" and ((m - m % 4) // cores < 4 or k < 2 or n < 2):
        kernel = "mm_M_fp16_SIMD_2x4"
    if "2x4" in kernel and (m < 2 or k < 2):
        kernel = "mm_fp16"
    left = [[Fraction(float(item)) for item in row] for row in a]
    right = [[Fraction(float(item)) for item in column] for column in b.T]
    result = np.zeros((n, m))
    for i in range(n):
        for j in range(m):
            vector = kernel != "mm_fp16" and trans_b
            if "4x8" in kernel:
                vector &= j < m - m % 4 and not (kernel.startswith("mm_M") and n % 2 and i == n - 1)
            elif "2x4" in kernel:
                vector &= j < m - m % 2
            if vector:
                total = simd(left[i], right[j], dtype, "lane" if "4x8" in kernel else "product")
            else:
                total = scalar(left[i], right[j], dtype, range(k))
            result[i, j] = float(total)
    return result


KERNELS = ("mm_fp16", "mm_fp16_SIMD_2x4", "mm_fp16_SIMD_4x8", "mm_M_fp16_SIMD_2x4", "mm_M_fp16_SIMD_4x8")


def operands(seed, n, k, m, dtype, spread=0):
    """Random numbers of a dtype; `spread` scatters their exponents."""
    generator = np.random.default_rng(seed)
    made = []
    for shape in ((n, k), (k, m)):
        scale = 2.0 ** generator.integers(-spread, spread + 1, shape)
        made.append(rounded((generator.uniform(-1, 1, shape) * scale).astype(np.float32), dtype))
    return made


def computed(kernel, a, b, trans_b, cores, dtype):
    (n, k), m = a.shape, b.shape[1]
    call = matmul_call(
        KernelChoice(kernel, "clang-xpulp", "kernel", cores),
        *factors("a", "b", n, k, m, trans_b=trans_b),
        Piece("c", (n, m)),
        dtype,
        trans_b=trans_b,
    )
    (result,) = call.compute([a, np.ascontiguousarray(b.T) if trans_b else b])
    assert np.array_equal(result.astype(np.dtype(dtype)).astype(np.float64), result), "a number of the format"
    return result


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
    cores=st.sampled_from((1, 2, 8)),
    seed=st.integers(0, 99),
)
def test_kernels_sum_bit_for_bit_as_published(kernel, dtype, trans_b, sizes, cores, seed):
    a, b = operands(seed, *sizes, dtype, spread=3)
    expected = published(kernel, a, b, trans_b, cores, dtype)
    assert np.array_equal(computed(kernel, a, b, trans_b, cores, dtype), expected)


@pytest.mark.parametrize("dtype", [FP16, BF16, FP32])
def test_a_multiply_add_rounds_once_whatever_the_exponents(dtype):
    spread = {FP16: 6, BF16: 60, FP32: 55}[dtype]
    a, b = operands(1, 20, 12, 20, dtype, spread)
    expected = [
        [
            float(
                scalar([Fraction(float(x)) for x in row], [Fraction(float(x)) for x in col], dtype, range(12))
            )
            for col in b.T
        ]
        for row in a
    ]
    assert np.array_equal(matmul(a, b, dtype=dtype, accumulation="kernel"), np.float32(expected))


def test_a_tie_is_decided_by_what_lies_far_behind_the_point():
    """7·37/256 lies between two bf16 numbers; 2^-100 less, and the sum is the lower of them. A sum formed in
    float64, or float32, has forgotten the 2^-100 and rounds the tie to even, upwards.
    """
    a = np.array([[-(2.0**-100), 7 / 16]], dtype=BF16)
    b = np.array([[1.0], [37 / 16]], dtype=BF16)
    assert matmul(a, b, dtype=BF16, accumulation="kernel")[0, 0] == 258 / 256
    assert matmul(a, b, dtype=BF16).astype("bfloat16")[0, 0] == 260 / 256


def test_sums_beyond_the_format_are_infinite_without_a_warning():
    a = np.full((1, 3), 60000, np.float16)
    result = matmul(a, np.array([[1], [1], [-1]], np.float16), dtype=FP16, accumulation="kernel")
    assert result[0, 0] == np.inf


def test_where_kernel_differs_from_reference():
    """Ones are lost one by one on a 16-bit accumulator that fp32 would add up; lanes lose half as many."""
    k = 1024
    a, b = np.ones((4, k), "bfloat16"), np.ones((k, 4), "bfloat16")
    exact = matmul(a, b, dtype=BF16)
    assert (exact == 1024).all()
    in_order = computed("mm_fp16", a, b, True, 1, BF16)
    lanes = computed("mm_fp16_SIMD_4x8", a, b, True, 1, BF16)
    assert (in_order == 256).all(), "256 + 1 is 256 in bf16"
    assert (lanes == 512).all()
    assert (computed("mm_fp16_SIMD_4x8", a, b, False, 1, BF16) == 256).all(), "no lanes without Bᵀ"


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_kernel_stays_within_its_tolerance_of_reference(dtype):
    a, b = operands(7, 8, 72, 36, dtype)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    scale = (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))).max()
    once = rounded(matmul(a, b, dtype=dtype), dtype).astype(np.float64)
    assert np.abs(once - exact).max() <= tolerance(dtype) * scale
    for kernel in KERNELS:
        ours = computed(kernel, a, b, True, 8, dtype)
        worst = np.abs(ours - exact).max()
        assert worst <= tolerance(dtype, length=72) * scale
        assert worst > dtype.unit_roundoff * np.abs(exact).max(), "kernel accumulation is visibly worse"


def test_the_last_odd_k_is_a_rounding_of_its_own_in_2x4_only():
    a, b = operands(3, 8, 9, 8, BF16)
    fused = computed("mm_fp16_SIMD_4x8", a, b, True, 1, BF16)
    apart = computed("mm_fp16_SIMD_2x4", a, b, True, 1, BF16)
    assert (fused != apart).any()
    oracle = partial(published, a=a, b=b, trans_b=True, cores=1, dtype=BF16)
    assert np.array_equal(fused, oracle("mm_fp16_SIMD_4x8"))
    assert np.array_equal(apart, oracle("mm_fp16_SIMD_2x4"))


def test_only_simd_kernels_on_a_transposed_b_have_lanes():
    assert sum_order("mm_fp16_SIMD_4x8", n=8, k=8, m=8, trans_b=False) == IN_ORDER
    for kernel in ("mm", "mm_M", "mm_unroll_2x4", "mm_fp16", "mm_fp16_unroll_8x1", "asm16_2x4", "asm_2x4"):
        assert sum_order(kernel, n=8, k=8, m=8, trans_b=True) == IN_ORDER, kernel
    assert sum_order("asm16_T_2x4", n=8, k=8, m=8, trans_b=True).paired_columns == 8
    assert sum_order("mm_fp16_SIMD_4x8", n=8, k=8, m=7, trans_b=True, cores=8).paired_columns == 6
    assert sum_order("mm_fp16_SIMD_4x8", n=16, k=8, m=7, trans_b=True, cores=8).paired_columns == 4
    assert {dtype.sums_in for dtype in DTYPES} == set(BITS)
