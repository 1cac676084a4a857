# SPDX-License-Identifier: Apache-2.0
"""Lowerings that name the dimensions of their tensors: boxes and what may be cut follow from that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod

from trainlib.ir.graph import Op
from trainlib.ir.steps import Extent, KernelChoice, Operand, Ranges, StepLowering, Tensors, TileTask, part
from trainlib.primitives.lowering.boxes import sizes_of
from trainlib.primitives.lowering.calls import BATCH, box
from trainlib.primitives.lowering.pieces import Piece, TileBuilder

Axes = tuple[str, ...]
"""Names of dimensions; a tensor with samples has `BATCH` first."""


class Area:
    """What a tile covers of every dimension of an op; `axes` are those of a tensor."""

    def __init__(self, op: Op, axes: Callable[[str], Axes], extents: Mapping[str, Extent]) -> None:
        self.op = op
        self.axes = axes
        self.extents = dict(extents)

    def shape(self, *axes: str) -> tuple[int, ...]:
        """Elements along these axes."""
        return sizes_of(tuple(self.extents[axis] for axis in axes))

    def begins(self, axis: str) -> bool:
        """Whether the tile has the first of a dimension."""
        return self.extents[axis][0] == 0

    @property
    def samples(self) -> range:
        """Counted from 0 in the tile."""
        return range(*self.shape(BATCH))

    def box(self, role: str) -> Operand:
        """The box of a tensor."""
        return box(self.op, role, *(self.extents[axis] for axis in self.axes(role)))

    def piece(self, role: str, sample: int | None = None) -> Piece:
        """That box in its buffer, or what of it belongs to a sample."""
        shape = self.shape(*self.axes(role))
        return Piece(role, shape) if sample is None else Piece(part(role, sample), shape[1:])


class AxesLowering(StepLowering):
    """A step of which every tensor is a box of named dimensions; each may be cut."""

    kept: Axes = ()
    """Dimensions of the result."""
    summed: Axes = ()
    begun: Axes = ()
    """Those along which a tile may have boxes or scratch that another one of its size has not."""

    def dimensions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Sizes of all dimensions."""
        raise NotImplementedError

    def axes(self, role: str) -> Axes:
        """Dimensions of a tensor."""
        raise NotImplementedError

    def loaded(self, area: Area) -> Sequence[str]:
        """What a tile loads."""
        return area.op.reads

    def stored(self, area: Area) -> Sequence[str]:
        """What a tile writes."""
        return area.op.writes

    def compute(self, area: Area, build: TileBuilder) -> None:
        """The calls of a tile."""
        raise NotImplementedError

    def _sizes(self, op: Op, tensors: Tensors, names: Axes) -> dict[str, int]:
        """Of these dimensions, without a batch of 1."""
        sizes = self.dimensions(op, tensors)
        return {name: sizes[name] for name in names if name != BATCH or sizes[name] > 1}

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The result's own dimensions."""
        return self._sizes(op, tensors, self.kept)

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """What is summed."""
        return self._sizes(op, tensors, self.summed)

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """All but those that are begun."""
        return self.dimensions(op, tensors).keys() - set(self.begun)

    def same_calls(self, op: Op) -> bool:
        """Calls see shapes, and which dimensions a tile begins."""
        return True

    def macs(self, op: Op, tensors: Tensors) -> int:
        """One for each term of the result, if there is a matmul."""
        sizes = self.dimensions(op, tensors)
        return prod(sizes[name] for name in (*self.kept, *self.summed)) if self.default_kernel(op) else 0

    def area(self, op: Op, tensors: Tensors, ranges: Ranges) -> Area:
        """What a tile covers; what `ranges` does not name is whole."""
        whole = {name: (0, size) for name, size in self.dimensions(op, tensors).items()}
        return Area(op, self.axes, {**whole, **ranges})

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """A box of everything."""
        area, build = self.area(op, tensors, ranges), TileBuilder(choice, tensors[op.outputs[0]].dtype)
        self.compute(area, build)
        inputs, outputs = (
            [area.box(role) for role in roles] for roles in (self.loaded(area), self.stored(area))
        )
        return build.task(inputs, outputs)
