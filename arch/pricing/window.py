# SPDX-License-Identifier: Apache-2.0
"""Which engine executes windows and visits lines of code: plain Python, or the same compiled.

Both give the same numbers. Compiling takes longer than many kernels in plain Python, so a process starts in
plain Python and changes to the compiled function once it has executed enough; without Numba it stays in
plain Python, some 20 times slower. Compiling happens once per machine (`arch.pricing.window_object`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from arch.pricing import line_engine, window_engine, window_object
from arch.pricing.window_engine import Ints
from configs.values import Struct

LOADING_ITEMS = 10_000
"""A third of the items plain Python executes in the 0.03 s it takes to load what has been compiled before."""

COMPILING_ITEMS = 5_000_000
"""Items plain Python executes in the 8 s it takes Numba to compile the function."""


class Engine(Struct, frozen=True, eq=False):
    """`price_window` of `arch.pricing.window_engine`, `visit_lines` of `arch.pricing.line_engine`, and the
    kinds of table they take.

    `ints` and `floats` make a table of numbers, `numbers` makes a list of it; `zeros` makes one of so many
    zeros, `room` one of at least so many of any value, which is only good until the next call.
    """

    ints: Callable[[list[int]], Ints]
    floats: Callable[[Sequence[float]], Any]
    numbers: Callable[[Ints], list[int]]
    zeros: Callable[[int], Ints]
    room: Callable[[int], Ints]
    price_window: Callable[[Ints, Ints, Ints, Ints, Ints], None]
    visit_lines: Callable[[Any, Any, Any, Any, Any], None]


def _zeros(count: int) -> list[int]:
    return [0] * count


PLAIN = Engine(list, list, list, _zeros, _zeros, window_engine.price_window, line_engine.visit_lines)


@cache
def compiled() -> Engine | None:
    """The compiled engine; None if Numba, or its layer to LLVM, is not installed for this Python."""
    try:
        import numpy as np

        functions = window_object.functions()
    except ImportError:
        return None
    store = np.zeros(1 << 16, dtype=np.int64)

    def room(count: int) -> Ints:
        nonlocal store
        if len(store) < count:
            store = np.zeros(2 * count, dtype=np.int64)
        return store

    return Engine(
        lambda numbers: np.array(numbers, dtype=np.int64),
        lambda numbers: np.array(numbers, dtype=np.float64),
        lambda table: table.tolist(),
        lambda count: np.zeros(count, dtype=np.int64),
        room,
        **functions,
    )


class EngineChoice:
    """Says which engine to use, by how much a process has executed so far.

    `plain_items` are executed in plain Python first; None: as many as cost what loading or compiling does.
    """

    def __init__(self, plain_items: int | None = None) -> None:
        self._plain_items_left = plain_items

    def take(self, items: int) -> Engine:
        """The engine for a window of `items`."""
        if self._plain_items_left is None:
            self._plain_items_left = LOADING_ITEMS if window_object.is_stored() else COMPILING_ITEMS
        if items <= self._plain_items_left:
            self._plain_items_left -= items
            return PLAIN
        self._plain_items_left = 0
        return compiled() or PLAIN


PROCESS = EngineChoice()
"""The choice of this process: the compiled function is loaded once, whoever asks."""
