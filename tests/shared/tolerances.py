# SPDX-License-Identifier: Apache-2.0
"""How far a result may be from the truth by its format, where every operation is known beforehand."""

from __future__ import annotations

from math import sqrt

from configs.dtypes import DType
from trainlib.ir.numerics import FP32_TOLERANCE, roundings_by_format

ROUNDING_SPREAD = 6.0
"""Standard deviations allowed to a sum of rounding errors (Higham and Mary 2019: it grows with sqrt(n))."""


def tolerance(dtype: DType, *, roundings: int = 1, length: int = 0, parts: int = 0) -> float:
    """Largest error of a tensor of `dtype`, relative to the largest sum of magnitudes behind an element.

    fp32: `FP32_TOLERANCE`. Narrower, u the unit roundoff: 2u per rounding on the way (two computations may
    round to either side) and, where a sum of `parts` parts is stored after each of them, or one of `length`
    terms is rounded after every term (`kernel` accumulation), u·min(n, 6·sqrt(n)) for n of them: the worst
    case, or six standard deviations of a random walk.
    """
    if not dtype.is_narrow:
        return FP32_TOLERANCE
    walks = roundings_by_format(dtype, parts, length).items()
    allowed = sum(kind.unit_roundoff * min(n, ROUNDING_SPREAD * sqrt(n)) for kind, n in walks)
    return max(2 * roundings * dtype.unit_roundoff + allowed, FP32_TOLERANCE)
