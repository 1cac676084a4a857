"""Legal tiles of one op: which sizes fit L1 with the asked number of buffers, and which one to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from configs.errors import Contributor, DoesNotFitError, InputError
from scheduler.memory_plan import align
from trainlib.graph import Op, Tensor
from trainlib.steps import Extent, KernelChoice, Operand, StepLowering, TileTask


@dataclass(frozen=True, slots=True)
class Buffer:
    """L1 storage of one operand or scratch array: `slots` slots of `slot_bytes` each."""

    name: str
    role: str
    """in, out or scratch."""
    slot_bytes: int
    slots: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all slots."""
        return self.slot_bytes * self.slots


@dataclass(frozen=True, slots=True)
class Tiling:
    """One way of cutting an op: size per dimension, the tiles in execution order, their L1 buffers."""

    op: str
    sizes: tuple[tuple[str, int], ...]
    tiles: tuple[TileTask, ...]
    buffers: tuple[Buffer, ...]

    @property
    def l1_bytes(self) -> int:
        """L1 bytes all buffers need together."""
        return sum(buffer.size_bytes for buffer in self.buffers)


def balanced_sizes(extent: int) -> list[int]:
    """Tile sizes that cut `extent` into 1, 2, 3 ... nearly equal parts, largest first."""
    return sorted({-(-extent // parts) for parts in range(1, extent + 1)}, reverse=True)


def tile_ranges(extents: Mapping[str, int], sizes: Mapping[str, int]) -> Iterator[dict[str, Extent]]:
    """Intervals of every tile in loop order (first dimension outermost); border tiles are smaller."""
    steps = [
        [(start, min(start + sizes[name], extent)) for start in range(0, extent, sizes[name])]
        for name, extent in extents.items()
    ]
    for combination in product(*steps):
        yield dict(zip(extents, combination, strict=True))


def candidate_sizes(extents: Mapping[str, int]) -> list[dict[str, int]]:
    """Every combination of balanced tile sizes, fewest tiles first; of equals the innermost is kept whole."""
    names = list(extents)
    combinations = [
        dict(zip(names, sizes, strict=True))
        for sizes in product(*(balanced_sizes(extents[n]) for n in names))
    ]

    def order(sizes: dict[str, int]) -> tuple[int, tuple[int, ...]]:
        tiles = prod(-(-extents[name] // sizes[name]) for name in names)
        return tiles, tuple(-sizes[name] for name in reversed(names))

    return sorted(combinations, key=order)


class Tiler:
    """Cuts one op: builds tilings of given sizes and enumerates those that fit."""

    def __init__(
        self,
        op: Op,
        tensors: Mapping[str, Tensor],
        lowering: StepLowering,
        choice: KernelChoice,
        buffer_depth: int,
    ) -> None:
        self.op = op
        self.tensors = tensors
        self.lowering = lowering
        self.choice = choice
        self.buffer_depth = buffer_depth
        self.extents = dict(lowering.extents(op, tensors))

    def build(self, sizes: Mapping[str, int], limit_bytes: int | None = None) -> Tiling | None:
        """The tiling with these sizes, or None as soon as its buffers exceed `limit_bytes`."""
        tiles: list[TileTask] = []
        slot_bytes: dict[tuple[str, str], int] = {}
        loads: dict[str, int] = {}
        last_region: dict[str, object] = {}
        for ranges in tile_ranges(self.extents, sizes):
            task = self.lowering.tile(self.op, self.tensors, ranges, self.choice)
            tiles.append(task)
            for operand in task.inputs:
                if last_region.get(operand.name) != operand.region:
                    last_region[operand.name] = operand.region
                    loads[operand.name] = loads.get(operand.name, 0) + 1
                _grow(slot_bytes, ("in", operand.name), self.operand_bytes(operand))
            for operand in task.outputs:
                _grow(slot_bytes, ("out", operand.name), self.operand_bytes(operand))
            for scratch in task.scratch:
                itemsize = np.dtype(scratch.dtype).itemsize
                _grow(slot_bytes, ("scratch", scratch.name), prod(scratch.shape) * itemsize)
            if limit_bytes is not None and sum(slot_bytes.values()) > limit_bytes:
                return None
        buffers = tuple(
            Buffer(name, role, align(size), self._slots(role, loads.get(name, 0), len(tiles)))
            for (role, name), size in slot_bytes.items()
        )
        tiling = Tiling(self.op.name, tuple(sizes.items()), tuple(tiles), buffers)
        return None if limit_bytes is not None and tiling.l1_bytes > limit_bytes else tiling

    def _slots(self, role: str, loads: int, tiles: int) -> int:
        if role == "scratch":
            return 1
        return min(self.buffer_depth, loads if role == "in" else tiles)

    def operand_bytes(self, operand: Operand) -> int:
        """Bytes of one box of a tensor."""
        return prod(operand.shape) * np.dtype(self.tensors[operand.tensor].dtype).itemsize

    def fixed(self, wanted: Mapping[str, int], available_bytes: int) -> Tiling:
        """The tiling with sizes the user fixed; dimensions not named stay whole.

        Raises `InputError` for an unknown dimension or a size out of range, `DoesNotFitError` if L1 is too
        small for it.
        """
        for name, size in wanted.items():
            if name not in self.extents:
                names = ", ".join(self.extents) or "none: this step cannot be cut"
                raise InputError(f"no tile dimension {name!r}", where=self.op.name, cure=f"one of {names}")
            if not 1 <= size <= self.extents[name]:
                raise InputError(
                    f"tile size {name}={size} is outside 1..{self.extents[name]}", where=self.op.name
                )
        sizes = {name: wanted.get(name, extent) for name, extent in self.extents.items()}
        tiling = self.build(sizes)
        if tiling is None or tiling.l1_bytes > available_bytes:
            raise self.does_not_fit(tiling, available_bytes)
        return tiling

    def fitting(self, available_bytes: int, keep: int = 8) -> list[Tiling]:
        """Up to `keep` tilings that fit `available_bytes` of L1, fewest tiles first.

        The search stops once a candidate has more than twice the tiles of the first that fits. Raises
        `DoesNotFitError` if even the smallest tile is too large.
        """
        found: list[Tiling] = []
        for sizes in candidate_sizes(self.extents):
            tiles = prod(-(-extent // sizes[name]) for name, extent in self.extents.items())
            if found and (len(found) >= keep or tiles > 2 * len(found[0].tiles)):
                break
            tiling = self.build(sizes, available_bytes)
            if tiling is not None:
                found.append(tiling)
        if not found:
            raise self.does_not_fit(self.build(dict.fromkeys(self.extents, 1)), available_bytes)
        return found

    def does_not_fit(self, tiling: Tiling | None, available_bytes: int) -> DoesNotFitError:
        """The report for a tiling (the smallest possible one, or the one asked for) that exceeds L1."""
        buffers = tiling.buffers if tiling is not None else ()
        required_bytes = tiling.l1_bytes if tiling is not None else 0
        levers = [f"--l1 at least {-(-(required_bytes - available_bytes) // 1024)} KiB larger"]
        single_bytes = sum(buffer.slot_bytes for buffer in buffers)
        if self.buffer_depth > 1 and single_bytes <= available_bytes:
            levers.append(f"--buffering single (needs {single_bytes} B)")
        sizes = ", ".join(f"{name}={size}" for name, size in (tiling.sizes if tiling else ()))
        return DoesNotFitError(
            "l1",
            required_bytes,
            available_bytes,
            where=f"{self.op.name}, tile {sizes or 'whole'}, buffer depth {self.buffer_depth}",
            contributors=tuple(
                Contributor(
                    f"{self.op.roles.get(buffer.name, buffer.name)} "
                    f"({buffer.role}, {buffer.slots} x {buffer.slot_bytes} B)",
                    buffer.size_bytes,
                )
                for buffer in buffers
            ),
            cure=" or ".join(levers),
        )


def _grow(sizes: dict[tuple[str, str], int], key: tuple[str, str], size_bytes: int) -> None:
    sizes[key] = max(sizes.get(key, 0), size_bytes)
