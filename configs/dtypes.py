# SPDX-License-Identifier: Apache-2.0
"""The formats tensors can have, one line each: nothing else in the code knows one by its name or width.

A format has a *word*, which model files, options and kernel lists use, and a *name*, which NumPy and PyTorch
use; as text a format is its name. What arithmetic, checks, poison and prices need to know follows from its
bits.

fp32 and fp16 are IEEE 754 binary32 and binary16, bf16 is 1-8-7. The 8-bit formats are those of the "OCP 8-bit
Floating Point Specification (OFP8)" 1.0 (2023), which are also `torch.float8_*` and those of Micikevicius
et al., "FP8 Formats for Deep Learning" (arXiv 2209.05433): E5M2 follows IEEE 754; E4M3 has no infinities and
one NaN per sign, which gives it one binade more. Rounding is to nearest even. Of the two modes OFP8 has for
numbers that are too large we take the one that does not saturate: they become infinities, in E4M3 NaN, so
that the first of them is told and not hidden. ml_dtypes does the same; PyTorch did, and saturates E4M3 since
its pull request 178817 (2026).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Self

import ml_dtypes as _ml_dtypes  # noqa: F401  makes the names NumPy does not have itself known to np.dtype
import numpy as np

POISON_BYTE = 0xFF
"""Fills bytes nobody may read. An element of these is a NaN in every format, and -1 as a signed integer."""


FP32_BITS = 32


class DType(str):
    """The format of an element: a name, which NumPy (with ml_dtypes), PyTorch and JSON take, and its bits.

    A binary float has a sign, `exponent_bits` with a bias of half their range, and `fraction_bits`; an
    integer has no exponent.
    """

    def __new__(cls, word: str, name: str, *bits: Any, **more: Any) -> Self:
        """As text it is its name."""
        return super().__new__(cls, name)

    def __init__(
        self,
        word: str,
        name: str,
        exponent_bits: int,
        fraction_bits: int,
        *,
        wider_sums: DType | None = None,
        has_infinity: bool = True,
        signed: bool = True,
    ) -> None:
        self.word: Final = word
        """In model files, options and lists."""
        self.name: Final = name
        self.exponent_bits: Final = exponent_bits
        self.fraction_bits: Final = fraction_bits
        self.has_infinity: Final = has_infinity
        """Whether the largest exponent is for infinities and NaN; else all fractions but one are numbers."""
        self.bits: Final = signed + exponent_bits + fraction_bits
        """Of an element in memory."""
        self.bytes: Final = self.bits // 8
        """Of an element in memory."""
        self.is_float: Final = exponent_bits > 0
        """Whether it is a float, and not a mask, an index or a count."""
        self.is_narrow: Final = self.is_float and self.bits < FP32_BITS
        """Whether storing an fp32 result rounds it."""
        self.is_storage_only: Final = wider_sums is not None
        """Whether no kernel computes in it: numbers are converted where they are loaded and stored.

        The cores' FPU (CVFPU) is used with fp32, fp16 and bf16 arithmetic. It can be built with E5M2 as well,
        and newer versions with an E4M3 that has infinities; no kernel library computes in them.
        """
        self.sums_in: Final = wider_sums or self
        """The format a kernel sums in where it does not sum in fp32 (`kernel` accumulation)."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype_of, (self.name,)

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding: half the distance of 1 to the next number."""
        return float(2.0 ** -(self.fraction_bits + 1))

    @property
    def least_exponent(self) -> int:
        """Exponent of the smallest normal number."""
        return int(2 - 2 ** (self.exponent_bits - 1))

    @property
    def finest_step(self) -> float:
        """Distance of the numbers around 0, which are subnormal: the smallest of them."""
        return float(2.0 ** (self.least_exponent - self.fraction_bits))

    @property
    def largest(self) -> float:
        """The largest finite number."""
        step = 2.0**-self.fraction_bits
        if self.has_infinity:
            return float((2 - step) * 2.0 ** (2 ** (self.exponent_bits - 1) - 1))
        return float((2 - 2 * step) * 2.0**2 ** (self.exponent_bits - 1))

    @property
    def poison(self) -> int:
        """The bits of an element of memory that nobody has written: a NaN."""
        return int.from_bytes(bytes([POISON_BYTE]) * self.bytes)


FP32 = DType("fp32", "float32", 8, 23)
FP16 = DType("fp16", "float16", 5, 10)
BF16 = DType("bf16", "bfloat16", 8, 7)

DTYPES: tuple[DType, ...] = (
    FP32,
    FP16,
    BF16,
    DType("fp8_e4m3", "float8_e4m3fn", 4, 3, wider_sums=FP16, has_infinity=False),
    DType("fp8_e5m2", "float8_e5m2", 5, 2, wider_sums=FP16),
)
"""Every float format there is. Source of fp16 sums of 8-bit products: the expanding dot product of PULP's FPU
(Bertaccini et al., "MiniFloat-NN and ExSdotp", arXiv 2207.03192)."""

INT32 = DType("int32", "int32", 0, 31)
UINT8 = DType("uint8", "uint8", 0, 8, signed=False)
INT8 = DType("int8", "int8", 0, 7)

BY_WORD: Mapping[str, DType] = MappingProxyType({dtype.word: dtype for dtype in DTYPES})
BY_NAME: Mapping[str, DType] = MappingProxyType({dtype.name: dtype for dtype in DTYPES})

_BY_NAME = {dtype.name: dtype for dtype in (*DTYPES, INT32, UINT8, INT8)}

WORDS = "|".join(BY_WORD)
"""As the help of an option shows them."""


def dtype_of(name: object) -> DType:
    """The format of a name or of an array's dtype; KeyError if tensors cannot have it."""
    return _BY_NAME[str(name)]


@cache
def float_of(dtype: Hashable) -> DType | None:
    """The format of a tensor or array dtype; None of an integer, a mask or another float."""
    return BY_NAME.get(str(dtype))


def is_float(dtype: Hashable) -> bool:
    """Whether a tensor or array dtype is one of the formats (and not a mask, an index or a count)."""
    return float_of(dtype) is not None


def is_narrow(dtype: Hashable) -> bool:
    """Whether it is a format that fp32 results are rounded to."""
    kind = float_of(dtype)
    return kind is not None and kind.is_narrow


@cache
def element_bytes(dtype: object) -> int:
    """Bytes of an element of any dtype, integers included."""
    return int(np.dtype(str(dtype)).itemsize)
