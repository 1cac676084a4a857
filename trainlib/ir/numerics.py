# SPDX-License-Identifier: Apache-2.0
"""Rounding to a format, and how a matmul accumulates.

The formats themselves are `configs.dtypes`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.dtypes import BY_WORD, DType, is_narrow
from configs.errors import UnsupportedLayerError
from configs.suggest import check_known
from configs.values import Struct

Array = NDArray[Any]

ACCUMULATIONS = ("reference", "kernel")
"""reference: fp32, rounded once when stored. kernel: rounded to the format a kernel sums in (`DType.sums_in`)
after each multiply-add, in its order."""

FP32_TOLERANCE = 1e-5
"""Largest max|a - b| / max|b| of an fp32 tensor (the contract of the design)."""


def dtype_named(word: str, where: str | None = None) -> DType:
    """The dtype of tensors for the word of a model file. Raises UnsupportedLayerError for others."""
    check_known(word, BY_WORD, f"unknown dtype '{word}'", where, error=UnsupportedLayerError)
    return BY_WORD[word]


def widened(array: Array) -> Array:
    """Floats narrower than float32 as float32 (exact); everything else as it is."""
    return array.astype(np.float32) if is_narrow(array.dtype) else array


def rounded(array: Array, dtype: DType) -> Array:
    """The array in `dtype`, rounded to nearest even once; what is too large for it is infinite, or NaN."""
    return array if str(array.dtype) == dtype else array.astype(np.dtype(dtype))


class SumOrder(Struct, frozen=True):
    """Which elements of C a 16-bit kernel sums in two lanes, and where a last odd k goes.

    The elements of the first `paired_rows` rows and `paired_columns` columns have one sum of the even k and
    one of the odd k, added at the end; all others one sum in the order of k. `tail` says what happens to a
    last k without partner: ``lane`` adds it to the even sum, ``product`` rounds it alone and adds it at the
    very end.
    """

    paired_rows: int = 0
    paired_columns: int = 0
    tail: str = "lane"


IN_ORDER = SumOrder()
"""One sum per element, in the order of k: scalar kernels, and SIMD kernels on a B that is not transposed."""


def sum_order(kernel: str, *, n: int, k: int, m: int, trans_b: bool, cores: int = 1) -> SumOrder:
    """How a matmul kernel sums C[n,m] over k, fallbacks of the published kernels included.

    With B transposed a vector holds two neighbours in k, with B as it is two columns of C. Leftover rows and
    columns of a block are scalar. Source: PULP-TrainLib's 16-bit matmuls (reference: trainlib.md 2.1); hand
    scheduled kernels (asm16_T_*) have no leftovers, a last odd k counts as even there.
    """
    if not trans_b or k < 2:
        return IN_ORDER
    if kernel.startswith("asm16_T"):
        return SumOrder(n, m)
    if kernel == "mm_fp16_SIMD_4x8" and m >= 4 and n // 2 * 2 // cores >= 2:
        return SumOrder(n, m // 4 * 4)
    if kernel == "mm_M_fp16_SIMD_4x8" and n >= 2 and m // 4 * 4 // cores >= 4:
        return SumOrder(n // 2 * 2, m // 4 * 4)
    if "_fp16_SIMD_" in kernel and m >= 2:
        return SumOrder(n, m // 2 * 2, "product")
    return IN_ORDER


def matmul(
    a: Array, b: Array, *, dtype: DType, accumulation: str = "reference", order: SumOrder = IN_ORDER
) -> Array:
    """C[N,M] = A[N,K] · B[K,M], result float32, to be rounded to `dtype` where it is stored.

    `reference` sums in float32 (BLAS). `kernel` has accumulators of the format that kernels for `dtype` sum
    in (fp16 for 8-bit numbers), rounded to nearest even once after each multiply-add, as a fused one does, in
    the order a kernel has (`sum_order`).
    """
    if accumulation == "reference":
        product: Array = np.matmul(widened(a), widened(b))
        return product
    dtype = dtype.sums_in
    left, right = a.astype(np.float64), b.astype(np.float64)
    rows, columns = order.paired_rows, order.paired_columns
    result = np.empty((left.shape[0], right.shape[1]), np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result[:rows, :columns] = _paired_sums(left[:rows], right[:, :columns], dtype, order.tail)
        result[:rows, columns:] = _sums(left[:rows], right[:, columns:], dtype)
        result[rows:] = _sums(left[rows:], right, dtype)
    return result


def details_of_sums(accumulation: str, dtype: DType, order: SumOrder = IN_ORDER) -> dict[str, SumOrder]:
    """What a kernel call says of sums that are rounded to `dtype` term by term; nothing of sums in fp32."""
    return {"order": order} if accumulation == "kernel" and dtype.is_narrow else {}


def _sums(left: Array, right: Array, dtype: DType) -> Array:
    """Sums over all k in their order, float64 arrays of `dtype` numbers in and out."""
    total = np.zeros((left.shape[0], right.shape[1]))
    if total.size:
        for index in range(left.shape[1]):
            total = _added(total, left[:, index, None] * right[index], dtype)
    return total


def _paired_sums(left: Array, right: Array, dtype: DType, tail: str) -> Array:
    paired = left.shape[1] // 2 * 2
    even = _sums(left[:, :paired:2], right[:paired:2], dtype)
    odd = _sums(left[:, 1:paired:2], right[1:paired:2], dtype)
    if paired == left.shape[1]:
        return _added(even, odd, dtype)
    last = left[:, -1, None] * right[-1]
    if tail == "lane":
        return _added(_added(even, last, dtype), odd, dtype)
    return _added(_added(np.zeros_like(even), last, dtype), _added(even, odd, dtype), dtype)


def _added(total: Array, term: Array, dtype: DType) -> Array:
    """total + term rounded once to `dtype`, as float64. A product of two `dtype` numbers is an exact term.

    A float64 sum may itself be rounded, and ml_dtypes goes to its formats (those that are not NumPy's own) by
    way of float32. Both steps are made harmless by rounding to odd: an inexact result whose last bit is 0
    moves to its neighbour on the side of the truth, so it is never a tie of the coarser format (Boldo and
    Melquiond 2008).
    """
    close = total + term
    back = close - total
    exact = _to_odd(close, (total - (close - back)) + (term - back), np.int64)
    if not np.issubdtype(np.dtype(dtype), np.floating):
        single = exact.astype(np.float32)
        return _to_odd(single, exact - single, np.int32).astype(np.dtype(dtype)).astype(np.float64)
    return exact.astype(np.dtype(dtype)).astype(np.float64)


def _to_odd(value: Array, lost: Array, bits: type[np.int32] | type[np.int64]) -> Array:
    """`value` rounded to odd, where `lost` is the truth minus `value`."""
    pattern: Array = value.view(bits)
    wrong: Array = ((lost > 0) | (lost < 0)) & (pattern & 1 == 0)
    if wrong.any():
        towards = np.where(lost[wrong] > 0, np.inf, -np.inf).astype(value.dtype)
        value[wrong] = np.nextafter(value[wrong], towards)
    return value


def roundings_by_format(dtype: DType, stored: int, summed: int) -> dict[DType, int]:
    """How often a result is rounded to which format: `stored` times in memory, `summed` times in a sum."""
    if dtype.is_storage_only:
        return {dtype: stored, dtype.sums_in: summed}
    return {dtype: stored + summed}
