"""Number formats, how a matmul accumulates, and how far a result may be from the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType
from typing import Any

import ml_dtypes as _ml_dtypes  # makes np.dtype("bfloat16") known
import numpy as np
from numpy.typing import NDArray

from configs.errors import UnsupportedLayerError
from configs.suggest import suggestion

Array = NDArray[Any]

FORMATS: Mapping[str, str] = MappingProxyType({"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"})
"""Word of model files and options -> NumPy dtype name. fp16 is IEEE half (1-5-10), bf16 is 1-8-7."""

ACCUMULATIONS = ("reference", "kernel")
"""reference: fp32, rounded once when stored. kernel: rounded after each multiply-add, in its order."""

FP32_TOLERANCE = 1e-5
"""Largest max|a - b| / max|b| of an fp32 tensor (the contract of the design)."""

ROUNDING_SPREAD = 6.0
"""Standard deviations allowed to a sum of rounding errors (Higham and Mary 2019: it grows with sqrt(n))."""


def dtype_named(word: str, where: str | None = None) -> str:
    """NumPy dtype name of a format word (fp32, fp16, bf16). Raises UnsupportedLayerError for others."""
    if word not in FORMATS:
        raise UnsupportedLayerError(
            f"there is no dtype called '{word}'", where=where, cure=suggestion(word, FORMATS)
        )
    return FORMATS[word]


def is_float(dtype: str) -> bool:
    """Whether the dtype is one of the float formats (and not a mask, an index or a count)."""
    return dtype in FORMATS.values()


def is_narrow(dtype: object) -> bool:
    """Whether the dtype is one of the 16-bit float formats."""
    return str(dtype) in ("float16", "bfloat16")


def widened(array: Array) -> Array:
    """16-bit floats as float32 (exact); everything else as it is."""
    return array.astype(np.float32) if is_narrow(array.dtype) else array


def rounded(array: Array, dtype: str) -> Array:
    """The array in `dtype`, rounded to nearest even once."""
    return array if str(array.dtype) == dtype else array.astype(np.dtype(dtype))


@dataclass(frozen=True, slots=True)
class SumOrder:
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
    a: Array, b: Array, *, dtype: str, accumulation: str = "reference", order: SumOrder = IN_ORDER
) -> Array:
    """C[N,M] = A[N,K] · B[K,M], result float32, to be rounded to `dtype` where it is stored.

    `reference` sums in float32 (BLAS). `kernel` has accumulators of `dtype`, rounded to nearest even once
    after each multiply-add, as a fused one does, in the order a kernel has (`sum_order`).
    """
    if accumulation == "reference":
        product: Array = np.matmul(widened(a), widened(b))
        return product
    left, right = a.astype(np.float64), b.astype(np.float64)
    rows, columns = order.paired_rows, order.paired_columns
    result = np.empty((left.shape[0], right.shape[1]), np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result[:rows, :columns] = _paired_sums(left[:rows], right[:, :columns], dtype, order.tail)
        result[:rows, columns:] = _sums(left[:rows], right[:, columns:], dtype)
        result[rows:] = _sums(left[rows:], right, dtype)
    return result


def _sums(left: Array, right: Array, dtype: str) -> Array:
    """Sums over all k in their order, float64 arrays of `dtype` numbers in and out."""
    total = np.zeros((left.shape[0], right.shape[1]))
    if total.size:
        for index in range(left.shape[1]):
            total = _added(total, left[:, index, None] * right[index], dtype)
    return total


def _paired_sums(left: Array, right: Array, dtype: str, tail: str) -> Array:
    paired = left.shape[1] // 2 * 2
    even = _sums(left[:, :paired:2], right[:paired:2], dtype)
    odd = _sums(left[:, 1:paired:2], right[1:paired:2], dtype)
    if paired == left.shape[1]:
        return _added(even, odd, dtype)
    last = left[:, -1, None] * right[-1]
    if tail == "lane":
        return _added(_added(even, last, dtype), odd, dtype)
    return _added(_added(np.zeros_like(even), last, dtype), _added(even, odd, dtype), dtype)


def _added(total: Array, term: Array, dtype: str) -> Array:
    """total + term rounded once to `dtype`, as float64. A product of two `dtype` numbers is an exact term.

    A float64 sum may itself be rounded, and ml_dtypes goes to bfloat16 by way of float32. Both steps are made
    harmless by rounding to odd: an inexact result whose last bit is 0 moves to its neighbour on the side of
    the truth, so it is never a tie of the coarser format (Boldo and Melquiond 2008).
    """
    close = total + term
    back = close - total
    exact = _to_odd(close, (total - (close - back)) + (term - back), np.int64)
    if dtype == "bfloat16":
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


_UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half of 2^-p for p bits behind the point: 23, 10 and 7."""


def unit_roundoff(dtype: str) -> float:
    """Largest relative error of rounding to `dtype` once: half the distance of 1 to the next number."""
    return float(_UNIT_ROUNDOFF[dtype])


_STORED_BITS = {"float32": 23, "float16": 10, "bfloat16": 7}
"""Bits of the fraction behind the point."""

_LEAST_EXPONENT = {"float32": -126, "float16": -14, "bfloat16": -126}
"""Exponent of the smallest normal number."""


def finest_step(dtype: str) -> float:
    """Distance of the numbers around 0, which are subnormal."""
    return float(2.0 ** (_LEAST_EXPONENT[dtype] - _STORED_BITS[dtype]))


def largest(dtype: str) -> float:
    """The largest finite number."""
    return float(_ml_dtypes.finfo(np.dtype(dtype)).max)  # type: ignore[no-untyped-call]


def tolerance(dtype: str, *, roundings: int = 1, length: int = 0) -> float:
    """Largest error of a tensor of `dtype`, relative to the largest sum of magnitudes behind an element.

    fp32: `FP32_TOLERANCE`. 16 bit, u the unit roundoff: 2u per rounding on the way (two computations may
    round to either side) and, where sums of `length` terms are rounded after every term (`kernel`
    accumulation), u·min(length, 6·sqrt(length)): the worst case, or six standard deviations of a random walk.
    """
    if dtype not in FORMATS.values() or dtype == "float32":
        return FP32_TOLERANCE
    walk = min(length, ROUNDING_SPREAD * sqrt(length))
    return max(unit_roundoff(dtype) * (2 * roundings + walk), FP32_TOLERANCE)
