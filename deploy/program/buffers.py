# SPDX-License-Identifier: Apache-2.0
"""Names of buffers in C, and addresses as a name and an offset."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from configs.errors import REPORT, InputError
from configs.values import Struct
from scheduler.addresses.allocation import Allocation

_KEYWORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long main
register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
NAN INFINITY L1 L2 NULL
"""

_MATH = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma
fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan
nearbyint nextafter nexttoward pow remainder remquo rint round scalbln scalbn signbit sin sinh sqrt tan tanh
tgamma trunc
"""

INDICES = "tuvwijklmn"
"""Names of loop indices, the outermost first."""

RESERVED = frozenset(
    [*_KEYWORDS.split(), *INDICES, *(name + end for name in _MATH.split() for end in ("", "f", "l"))]
)
"""Names that mean something else in network.c."""


def c_name(text: str) -> str:
    """A text as a C identifier that is none of network_types.h and platform.h: `_` for other characters."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    ours = name.startswith(("pt_", "network_", "data_"))
    return f"_{name}" if ours or name[:1].isdigit() or not name else name


class Names:
    """C identifiers that are different wherever the texts are, and none of those `taken`."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._given: dict[tuple[str, int], str] = {}
        self._taken = {*RESERVED, *taken}

    def of(self, text: str, address: int = -1) -> str:
        """The identifier of a text; of a buffer, which may lie elsewhere later, with its address."""
        if (text, address) not in self._given:
            name, number = c_name(text), 2
            while name in self._taken:
                name, number = f"{c_name(text)}_{number}", number + 1
            self._given[text, address] = name
            self._taken.add(name)
        return self._given[text, address]


class Buffer(Struct, frozen=True):
    """An allocation of the memory plan and its C name."""

    name: str
    allocation: Allocation


class Buffers:
    """The buffers of a program, by level and op."""

    def __init__(self, allocations: Iterable[Allocation], names: Names) -> None:
        self.all = tuple(
            Buffer(names.of(item.name, item.address), item)
            for item in allocations
            if item.size_bytes and item.kind != "stack"
        )
        self._live: dict[tuple[str, int], list[Buffer]] = {}
        for buffer in self.all:
            item = buffer.allocation
            for number in range(item.first_op, item.last_op + 1):
                self._live.setdefault((item.level, number), []).append(buffer)

    def found(self, level: str, op_number: int, addresses: NDArray[np.int64]) -> Sequence[Buffer]:
        """The buffer each of these addresses is in during an op. Raises `InputError` if one is in none.

        Of the first boxes of the next op, which are loaded beside the last tile, the buffers are live
        already.
        """
        near = [
            buffer for number in (op_number, op_number + 1) for buffer in self._live.get((level, number), ())
        ]
        result: list[Buffer] = []
        for address in addresses.reshape(-1):
            inside = [
                item for item in near if item.allocation.address <= address < item.allocation.end_address
            ]
            if not inside:
                raise InputError(
                    f"a bug of pulptrain: op {op_number} uses {level} at {address}, outside any buffer",
                    cure=REPORT,
                )
            result.append(inside[0])
        return result
