# SPDX-License-Identifier: Apache-2.0
"""One way of cutting an op into tiles: sizes, loop order, the tiles themselves and their L1 buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod

from configs.errors import InputError
from configs.limits import PROCESS_BYTES, require_host_memory
from configs.values import Struct, replace
from scheduler.addresses.allocation import align
from scheduler.tiles.l1_report import does_not_fit
from scheduler.tiles.l2_slots import NOT_STREAMED, OpStream
from scheduler.tiles.partial_sums import SUM, accumulated
from scheduler.tiles.resident_tensors import NOT_RESIDENT, InPlace
from scheduler.tiles.transfers import lines_of
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Extent, KernelChoice, Operand, Region, StepLowering, TileTask

TILE_BYTES = 4096
"""What a tile with its boxes, kernels and actions takes of this computer's memory, about."""

MOST_SMALLEST = 4096
"""Tiles that are built to learn what the smallest ones need."""


class Buffer(Struct, frozen=True):
    """L1 storage of one operand or scratch array: `slots` slots of `slot_bytes` each."""

    name: str
    role: str
    """in, out or scratch."""
    slot_bytes: int
    slots: int
    depth: int = 1
    """Slots asked for; there are fewer if fewer boxes ever lie in it, and none for a resident tensor."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all slots."""
        return self.slot_bytes * self.slots


class Tiling(Struct, frozen=True):
    """One way of cutting an op: size per dimension, the tiles in execution order, their L1 buffers.

    `order` holds all dimensions, reductions included, the outermost loop first.
    """

    op: str
    sizes: tuple[tuple[str, int], ...]
    tiles: tuple[TileTask, ...]
    buffers: tuple[Buffer, ...]
    order: tuple[str, ...] = ()

    @property
    def l1_bytes(self) -> int:
        """L1 bytes all buffers need together."""
        return sum(buffer.size_bytes for buffer in self.buffers)


def tile_ranges(
    extents: Mapping[str, int], sizes: Mapping[str, int], order: Sequence[str] | None = None
) -> Iterator[dict[str, Extent]]:
    """Intervals of every tile in loop order (first of `order` outermost); border tiles are smaller."""
    loops = list(order if order is not None else extents)
    steps = [intervals(extents[name], sizes[name]) for name in loops]
    for combination in product(*steps):
        ranges = dict(zip(loops, combination, strict=True))
        yield {name: ranges[name] for name in extents}


def intervals(extent: int, size: int) -> list[Extent]:
    """The pieces of `extent` in order; the last may be smaller."""
    return [interval(extent, size, number) for number in range(-(-extent // size))]


def interval(extent: int, size: int, number: int) -> Extent:
    """One of the `intervals`, of which there may be too many to list."""
    return number * size, min((number + 1) * size, extent)


class BufferDepths(Struct, frozen=True):
    """How many buffers each operand of an op is asked to have: `default`, or that of its name.

    Behind each lie `gap_bytes` that nobody uses.
    """

    default: int = 2
    named: Mapping[str, int] = {}
    gap_bytes: int = 0

    def of(self, role: str, name: str) -> int:
        """Depth of a buffer; a sum so far has that of the result it belongs to, scratch has one."""
        if role == "scratch":
            return 1
        return self.named.get(name, self.named.get(name.removesuffix(SUM), self.default))


class Tiler:
    """Cuts one op: builds tilings of given sizes and loop order.

    `extents` are the dimensions of the op's result, `reductions` those it is a sum over, `dims` both, in the
    default loop order.
    """

    def __init__(
        self,
        op: Op,
        tensors: Mapping[str, Tensor],
        lowering: StepLowering,
        choice: KernelChoice,
        depths: BufferDepths | int,
        resident: Mapping[str, InPlace] = NOT_RESIDENT,
        stream: OpStream = NOT_STREAMED,
    ) -> None:
        self.op = op
        self.tensors = tensors
        self.lowering = lowering
        self.choice = choice
        self.resident = resident
        """Tensors the op finds in L1: their boxes need no buffer."""
        self.stream = stream
        """Tensors whose boxes come from L3, through slots in L2."""
        self.depths = depths if isinstance(depths, BufferDepths) else BufferDepths(depths)
        self.extents = dict(lowering.extents(op, tensors))
        self.reductions = lowering.reductions(op, tensors)
        self.dims = {**self.extents, **self.reductions}
        self._first: dict[object, TileTask] = {}

    @property
    def buffer_depth(self) -> int:
        """Buffers of an operand of which nothing else is said."""
        return self.depths.default

    def without_residents(self) -> Tiler:
        """The same with every tensor moved by DMA."""
        return Tiler(
            self.op, self.tensors, self.lowering, self.choice, self.depths, NOT_RESIDENT, self.stream
        )

    def with_depth(self, depth: int) -> Tiler:
        """The same with another number of buffers for operands of which nothing else is said."""
        depths = replace(self.depths, default=depth)
        return Tiler(self.op, self.tensors, self.lowering, self.choice, depths, self.resident, self.stream)

    def task(self, ranges: Mapping[str, Extent]) -> TileTask:
        """What the tile that covers `ranges` does, before sums are put together."""
        mark = self.lowering.mark(self.op, self.tensors, ranges)
        first = self._first.get(mark)
        if first is not None:
            return self.lowering.moved(first, self.op, self.tensors, ranges, self.choice)
        task = self.lowering.tile(self.op, self.tensors, ranges, self.choice)
        if mark is not None:
            self._first[mark] = task
        return task

    def build(self, sizes: Mapping[str, int], order: Sequence[str] | None = None) -> Tiling:
        """The tiling with these sizes (dimensions not named stay whole) and this loop order.

        Raises `InputError` for more tiles than may be held in memory.
        """
        full = {name: sizes.get(name, extent) for name, extent in self.dims.items()}
        loops = self.loop_order(order or ())
        count = prod(-(-extent // full[name]) for name, extent in self.dims.items())
        require_host_memory(
            PROCESS_BYTES + count * TILE_BYTES,
            f"{count:,} tiles take",
            where=self.op.name,
            cure="use fewer and larger tiles (a larger --l1, --tile)",
        )
        return self._built(full, loops, tile_ranges(self.dims, full, loops))

    def smallest(self) -> Tiling:
        """The tiling into the smallest tiles, of many those at the borders and in the middle only."""
        sizes = dict.fromkeys(self.dims, 1)
        if prod(self.dims.values()) <= MOST_SMALLEST:
            return self.build(sizes)
        few = []
        for extent in self.dims.values():
            starts = {0, 1, extent // 2, extent // 2 + 1, extent - 2, extent - 1}
            few.append(sorted(start for start in starts if 0 <= start < extent))
        ranges = (
            {name: (start, start + 1) for name, start in zip(self.dims, starts, strict=True)}
            for starts in islice(product(*few), MOST_SMALLEST)
        )
        return self._built(sizes, self.loop_order(()), ranges)

    def _built(
        self, sizes: Mapping[str, int], loops: tuple[str, ...], ranges: Iterable[Mapping[str, Extent]]
    ) -> Tiling:
        tiles = accumulated([self.task(each) for each in ranges], self.choice, self.tensors)
        return Tiling(self.op.name, tuple(sizes.items()), tiles, self._buffers(tiles), loops)

    def loop_order(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """All dimensions: those wanted first, outermost first, then the others in their default order.

        Raises `InputError` for a dimension the op has not, or that is named twice.
        """
        for name in wanted:
            self._check_dimension(name)
        if len(set(wanted)) != len(wanted):
            raise InputError(
                f"the loop order {', '.join(wanted)} names a dimension twice",
                where=self.op.name,
                cure="name every dimension once",
            )
        return (*wanted, *(name for name in self.dims if name not in wanted))

    def _check_dimension(self, name: str) -> None:
        if name not in self.dims:
            cure = f"use one of {', '.join(self.dims)}" if self.dims else "remove it: this op has no tiles"
            raise InputError(f"the op has no tile dimension {name!r}", where=self.op.name, cure=cure)

    def _buffers(self, tiles: Sequence[TileTask]) -> tuple[Buffer, ...]:
        slot_bytes: dict[tuple[str, str], int] = {}
        boxes: dict[tuple[str, str], int] = {}
        last: dict[tuple[str, str], object] = {}
        resident: set[tuple[str, str]] = set()

        def note(key: tuple[str, str], box: object, size_bytes: int) -> None:
            if key not in last or last[key] != box:
                last[key] = box
                boxes[key] = boxes.get(key, 0) + 1
            slot_bytes[key] = max(slot_bytes.get(key, 0), size_bytes)

        for task in tiles:
            for role, operands in (("in", task.inputs), ("out", task.written)):
                for operand in operands:
                    if last.get((role, operand.name)) is not operand:
                        note((role, operand.name), operand, self.operand_bytes(operand))
                    if operand.tensor in self.resident:
                        resident.add((role, operand.name))
            for scratch in task.scratch:
                note(("scratch", scratch.name), None, prod(scratch.shape) * scratch.dtype.bytes)
        buffers = []
        for (role, name), size_bytes in slot_bytes.items():
            depth = self.depths.of(role, name)
            slots = 0 if (role, name) in resident else min(depth, boxes[role, name])
            slot = align(size_bytes) + self.depths.gap_bytes
            buffers.append(Buffer(name, role, slot, slots, depth))
        return tuple(buffers)

    def operand_bytes(self, operand: Operand) -> int:
        """Bytes of one box of a tensor."""
        return prod(operand.shape) * self.tensors[operand.tensor].dtype.bytes

    def lines(self, operand: Operand, box: Region) -> list[tuple[int, int]]:
        """(first byte in the tensor, bytes) of the runs that one of an operand's boxes is made of."""
        tensor = self.tensors[operand.tensor]
        return lines_of(tensor.shape, tensor.dtype.bytes, box)

    def fixed(
        self, wanted: Mapping[str, int], available_bytes: int, order: Sequence[str] | None = None
    ) -> Tiling:
        """The tiling with sizes and loops the user fixed; dimensions not named stay whole.

        Raises `InputError` for an unknown dimension or a size out of range, `DoesNotFitError` if L1 is too
        small for it.
        """
        for name, size in wanted.items():
            self._check_dimension(name)
            if not 1 <= size <= self.dims[name]:
                raise InputError(
                    f"the tile size of {name} is {size}, which is out of range",
                    where=self.op.name,
                    cure=f"use 1 to {self.dims[name]}",
                )
        tiling = self.build(wanted, order)
        if tiling.l1_bytes > available_bytes:
            raise does_not_fit(self, tiling, available_bytes)
        return tiling
