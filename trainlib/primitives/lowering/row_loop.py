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

    Arrays are matrices [rows, elements]; those `of_rows` have one number a row. Where there are none,
    any element is a row of its own. An array of several `parts`, one behind the other, is a tuple to the
    formula. Rows (or elements) go over the cores.
    """

    formula: Callable[..., Any]
    reads: str
    writes: str
    of_rows: str = ""
    parts: Mapping[str, int] = {}

    def compute(self, values: Mapping[str, Array], axis: int = 0) -> dict[str, Array]:
        """The arrays written from those read, by name; parts lie along `axis`."""
        read = [
            tuple(np.split(values[name], self.parts[name], axis)) if name in self.parts else values[name]
            for name in self.reads
        ]
        made = self.formula(*read)
        results = (made,) if len(self.writes) == 1 and self.writes not in self.parts else made
        return {
            name: np.concatenate(array, axis) if name in self.parts else array
            for name, array in zip(self.writes, results, strict=True)
        }
