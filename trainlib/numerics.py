"""Number formats, how a matmul accumulates, and how far a result may be from the truth."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from types import MappingProxyType
from typing import Any

import ml_dtypes as _ml_dtypes  # noqa: F401  makes np.dtype("bfloat16") known
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


def lanes_of(kernel: str, trans_b: bool) -> int:
    """Accumulators per output of a matmul kernel: 2 for SIMD kernels on a transposed B, else 1.

    With B transposed a vector holds two neighbours in K, and the two lane sums are added at the end. With B
    as it is a vector holds two columns of C, each with a sum of its own in the order of K.
    """
    return 2 if trans_b and ("SIMD" in kernel or "16" in kernel) else 1


def matmul(a: Array, b: Array, *, dtype: str, accumulation: str = "reference", lanes: int = 1) -> Array:
    """C[N,M] = A[N,K] · B[K,M], result float32, to be rounded to `dtype` where it is stored.

    `reference` sums in float32 (BLAS). `kernel` has accumulators of `dtype`, rounded after each multiply-add
    in the order of K; with 2 `lanes` even and odd k have one each, added and rounded at the end; a last odd k
    goes to the sum. Products and sums are formed in float64, where a product of two `dtype` numbers is exact.
    """
    if accumulation == "reference":
        product: Array = np.matmul(widened(a), widened(b))
        return product
    kind = np.dtype(dtype)
    left, right = a.astype(np.float64), b.astype(np.float64)
    k = left.shape[1]
    paired = k - k % lanes
    sums = [np.zeros((left.shape[0], right.shape[1]), kind) for _ in range(lanes)]
    for index in range(paired):
        lane = index % lanes
        sums[lane] = _multiply_add(sums[lane], left[:, index, None], right[index], kind)
    total = sums[0]
    for other in sums[1:]:
        total = (total.astype(np.float64) + other.astype(np.float64)).astype(kind)
    for index in range(paired, k):
        total = _multiply_add(total, left[:, index, None], right[index], kind)
    return total.astype(np.float32)


def _multiply_add(total: Array, left: Array, right: Array, kind: np.dtype[Any]) -> Array:
    result: Array = (total.astype(np.float64) + left * right).astype(kind)
    return result


_UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half of 2^-p for p bits behind the point: 23, 10 and 7."""


def unit_roundoff(dtype: str) -> float:
    """Largest relative error of rounding to `dtype` once: half the distance of 1 to the next number."""
    return float(_UNIT_ROUNDOFF[dtype])


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
