# SPDX-License-Identifier: Apache-2.0
"""Row programs: one fork as a formula of rows, from which tile, untiled reference and C follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from configs.values import Struct
from trainlib.ir.steps import Array


class RowLoop(Struct, frozen=True):
    """What `formula` makes of the arrays `reads` of a nest, in this order, are its arrays `writes`.

    Arrays are matrices [rows, elements], or have one number a row or an element. `places` says where an
    element lies, in indices and `sizes`: ``r*M + i``, ``r``, ``0``. Index ``r`` counts the first of `rows`,
    which goes over the cores, ``i`` the last of `elements`, ``s`` a loop between them. Without rows any
    element is one, and the row "1" is alone. `across`: the elements of each row go over the cores, which add
    up nothing then.
    An array of several `parts`, one behind the other, is a tuple to the formula. `numbers` are arguments
    beside the arrays; `mark` tells apart programs of one nest; tiles compute in float64 if `wide`, C in fp32.
    """

    formula: Callable[..., Any]
    reads: str
    writes: str
    places: Mapping[str, str] = {}
    rows: tuple[str, ...] = ()
    elements: tuple[str, ...] = ("elements",)
    sizes: Mapping[str, int] = {}
    parts: Mapping[str, int] = {}
    numbers: Mapping[str, float] = {}
    mark: str = ""
    across: bool = False
    wide: bool = False

    def compute(self, values: Mapping[str, Array], axis: int = 0) -> dict[str, Array]:
        """The arrays written from those read, by name; parts lie along `axis`."""
        read = [
            tuple(np.split(values[name], self.parts[name], axis)) if name in self.parts else values[name]
            for name in self.reads
        ]
        made = self.formula(*read, **self.numbers)
        results = (made,) if len(self.writes) == 1 and self.writes not in self.parts else made
        return {
            name: np.concatenate(array, axis) if name in self.parts else array
            for name, array in zip(self.writes, results, strict=True)
        }
