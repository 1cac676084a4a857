# SPDX-License-Identifier: Apache-2.0
"""Which engine executes windows: those of `arch.pricing.window_engine` as they are, or compiled.

Both give the same numbers. Loading Numba takes longer than one kernel in plain Python, so a process starts in
plain Python and loads the compiled functions once it has executed enough; without Numba it
stays in plain Python, some 20 times slower. Compiling happens once per machine: Numba keeps the result beside
the source, or in the user's cache where that is read-only.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from arch.pricing import window_engine
from arch.pricing.window_engine import Ints

LOADING_ITEMS = 100_000
"""A third of the items plain Python executes in the 0.3 s it takes to load Numba and what it has compiled
before: a process that has executed so many mostly goes on to millions."""

COMPILING_ITEMS = 5_000_000
"""Items plain Python executes in the 8 s it takes Numba to compile both functions."""


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """`price_window` of `arch.pricing.window_engine` and the kind of table it takes.

    `ints` makes a table of numbers, `numbers` makes a list of it; `zeros` makes one of so many zeros, `room`
    one of at least so many of any value, which is only good until the next call.
    """

    ints: Callable[[list[int]], Ints]
    numbers: Callable[[Ints], list[int]]
    zeros: Callable[[int], Ints]
    room: Callable[[int], Ints]
    price_window: Callable[[Ints, Ints, Ints, Ints, Ints], None]


def _zeros(count: int) -> list[int]:
    return [0] * count


PLAIN = Engine(list, list, _zeros, _zeros, window_engine.price_window)


@cache
def compiled() -> Engine | None:
    """The engine compiled by Numba; None if Numba is not installed for this Python."""
    try:
        import numba
        import numpy as np
    except ImportError:
        return None

    # The same functions, where every name of a part is the compiled part. Nothing is allocated in them, so
    # nothing is counted (`_nrt`): counting who holds a table takes longer than what is done with it.
    names = dict(vars(window_engine))
    njit: Callable[..., Any] = numba.njit

    def own(name: str) -> FunctionType:
        return FunctionType(names[name].__code__, names, name)

    # What a processor has an instruction for.
    @numba.extending.intrinsic
    def place(typing: Any, bits: Any) -> Any:
        def count(target: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.cttz(values[0], target.get_constant(numba.types.boolean, True))

        return bits(bits), count

    names["place"] = place
    for part in window_engine.PARTS:
        names[part.__name__] = njit(inline="always", _nrt=False)(own(part.__name__))
    for name in [part.__name__ for part in window_engine.WHOLE]:
        names[name] = njit(_nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(own(name))
    try:
        price_window: Callable[..., None] = njit(cache=True, _nrt=False)(own("price_window"))
    except RuntimeError:  # no place to keep the result in: compile for this process alone
        price_window = njit(cache=False, _nrt=False)(own("price_window"))

    # Numba's objects live as long as the process; the collector need not walk them again and again.
    gc.freeze()
    store = np.zeros(1 << 16, dtype=np.int64)

    def room(count: int) -> Ints:
        nonlocal store
        if len(store) < count:
            store = np.zeros(2 * count, dtype=np.int64)
        return store

    return Engine(
        lambda numbers: np.array(numbers, dtype=np.int64),
        lambda table: table.tolist(),
        lambda count: np.zeros(count, dtype=np.int64),
        room,
        price_window,
    )


def _compiled_before() -> bool:
    """Whether Numba has left its result: where it is told to, beside the source, or in the user's cache."""
    source = Path(window_engine.__file__)
    name = f"{source.stem}.price_window-*.nbi"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    elsewhere = os.environ.get("NUMBA_CACHE_DIR") or Path(home, "numba")
    return any(source.parent.glob(f"__pycache__/{name}")) or any(
        Path(elsewhere).glob(f"{source.parent.name}_*/{name}")
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
            self._plain_items_left = LOADING_ITEMS if _compiled_before() else COMPILING_ITEMS
        if items <= self._plain_items_left:
            self._plain_items_left -= items
            return PLAIN
        self._plain_items_left = 0
        return compiled() or PLAIN


PROCESS = EngineChoice()
"""The choice of this process: the compiled functions are loaded once, whoever asks."""
