# SPDX-License-Identifier: Apache-2.0
"""Sums that are cut: tiles of which each adds a part to the same box of a result.

The first tile of a box writes it. A later tile that follows at once finds the sum so far in L1, computes its
part beside it and adds; the box is stored after the last of such tiles. A tile that comes back to a box
another one has stored since loads the sum so far first (read-modify-write through the DMA).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod

from arch.spec.isa import TeamWork
from configs.dtypes import DType
from configs.values import replace
from trainlib.ir.graph import Tensor
from trainlib.ir.steps import KernelCall, KernelChoice, Operand, Region, Scratch, TileTask
from trainlib.primitives.lowering.calls import vector_add_call

ADDITIONS_KEPT = 256
"""Calls of additions that are kept ready."""

PART = ".part"
"""Ending of the name of the scratch buffer a part is computed into when the sum so far is in L1."""

SUM = ".sum"
"""Ending of the name of the input buffer that a sum so far is loaded into."""


def accumulated(
    tasks: Sequence[TileTask], choice: KernelChoice, tensors: Mapping[str, Tensor]
) -> tuple[TileTask, ...]:
    """The tiles of one op in the order of execution, with the additions that make one sum of their parts.

    Tiles that write each box once are returned as they are.
    """
    sums = Sums(tasks)
    if not sums:
        return tuple(tasks)
    add = Additions(choice, tensors)
    return tuple([sums.of_tile(number, task, add) for number, task in enumerate(tasks)])


class Sums:
    """Which of the tiles of an op add to a sum of earlier ones: that follows from the boxes they write."""

    def __init__(self, tasks: Sequence[TileTask]) -> None:
        self._before: dict[tuple[str, int], Region] = {}
        self._after: dict[tuple[str, int], Region] = {}
        self._loads: set[tuple[str, int]] = set()
        """(Buffer, tile) of which the sum so far has been stored."""
        turns: dict[str, list[tuple[int, Region]]] = {}
        for number, task in enumerate(tasks):
            for operand in task.outputs:
                turns.setdefault(operand.name, []).append((number, operand.region))
        self._any = any(len({region for _, region in turn}) < len(turn) for turn in turns.values())
        if not self._any:
            return
        self._before, self._after = _neighbours(turns)
        for name, turn in turns.items():
            seen: set[Region] = set()
            for number, region in turn:
                if region in seen and self._before.get((name, number)) != region:
                    self._loads.add((name, number))
                seen.add(region)

    def __bool__(self) -> bool:
        return self._any

    def of_tile(self, number: int, given: TileTask, additions: Additions) -> TileTask:
        """A tile with the additions it makes; `given` may be another one that writes the same boxes."""
        if not self._any:
            return given
        task = given
        for operand in given.outputs:
            if self._before.get((operand.name, number)) == operand.region:
                task = additions.in_l1(task, operand)
            elif (operand.name, number) in self._loads:
                task = additions.to_loaded(task, operand)
        held = tuple(item for item in task.outputs if self._after.get((item.name, number)) == item.region)
        stored = tuple(item for item in task.outputs if item not in held)
        return task.but(outputs=stored, held=held) if held else task


def _neighbours(
    turns: Mapping[str, Sequence[tuple[int, Region]]],
) -> tuple[dict[tuple[str, int], Region], dict[tuple[str, int], Region]]:
    """(buffer, tile) -> box the buffer held last before the tile, and box it holds next after it."""
    before: dict[tuple[str, int], Region] = {}
    after: dict[tuple[str, int], Region] = {}
    for name, turn in turns.items():
        for (number, region), (following, next_region) in pairwise(turn):
            before[name, following] = region
            after[name, number] = next_region
    return before, after


class Additions:
    """Makes the calls that add; tiles that share their calls share these as well."""

    def __init__(self, choice: KernelChoice, tensors: Mapping[str, Tensor]) -> None:
        self._choice, self._tensors = choice, tensors
        self._kept: dict[tuple[int, str, int], tuple[object, tuple[KernelCall, ...]]] = {}
        """By the identity of the calls of a tile (kept alive beside), buffer and elements."""

    def in_l1(self, task: TileTask, operand: Operand) -> TileTask:
        """The part goes to a scratch buffer and is added to the sum, which lies in the output buffer."""
        aside = operand.name + PART
        dtype = self._tensors[operand.tensor].dtype
        add = _addition(self._choice, operand.name, aside, prod(operand.shape), dtype)
        kept = self._kept

        def calls() -> tuple[KernelCall, ...]:
            given = task.calls  # most tiles share them
            key = id(given), operand.name, prod(operand.shape)
            if key not in kept:
                kept[key] = given, (*(_renamed(call, operand.name, aside) for call in given), add)
            return kept[key][1]

        return task.but(scratch=(*task.scratch, Scratch(aside, operand.shape, dtype)), calls=calls)

    def to_loaded(self, task: TileTask, operand: Operand) -> TileTask:
        """The sum so far is loaded and added to the part."""
        loaded = Operand(operand.tensor, operand.region, operand.name + SUM)
        dtype = self._tensors[operand.tensor].dtype
        add = _addition(self._choice, operand.name, loaded.name, prod(operand.shape), dtype)
        return task.but(inputs=(*task.inputs, loaded), calls=lambda: [*task.calls, add])


@lru_cache(ADDITIONS_KEPT)
def _addition(choice: KernelChoice, total: str, term: str, elements: int, dtype: DType) -> KernelCall:
    """Most tiles of an op add as many elements."""
    return vector_add_call(choice, total=total, term=term, elements=elements, dtype=dtype)


def _renamed(call: KernelCall, buffer: str, aside: str) -> KernelCall:
    """The call with `aside` in the place of `buffer`; its loop nests still see the address as `buffer`'s."""

    def moved(name: str) -> str:
        base, bracket, rest = name.partition("[")
        return f"{aside}{bracket}{rest}" if base == buffer else name

    names = {name: moved(name) for name in (buffer, *call.reads, *call.writes)}
    if all(name not in names or names[name] == name for name in (*call.reads, *call.writes)):
        return call
    work = call.work

    def work_aside(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        return work(cores, {**addresses, **{old: addresses[new] for old, new in names.items()}})

    return replace(
        call,
        reads=tuple(names[name] for name in call.reads),
        writes=tuple(names[name] for name in call.writes),
        work=work_aside,
    )
