"""Lowering of steps made of loops over elements: activations, dropout, gates of two inputs.

Element i of a result depends on element i of each input only, so any box of the result is a tile, and each
result is computed by a fork of its own, as PULP-TrainLib's wrappers do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from configs.errors import ShapeError
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import Shape
from trainlib.primitives.lowering.calls import (
    NoMatmul,
    batch_extent,
    batch_range,
    box,
    region_elements,
)
from trainlib.primitives.lowering.kernel_call import kernel_call
from trainlib.steps import Extent, Function, KernelCall, KernelChoice, Region, TileTask

CUT_DIMENSIONS = 2
"""Leading dimensions of a sample that a tile may cut, so that its box is made of few contiguous runs."""


@dataclass(frozen=True, slots=True)
class VectorLoop:
    """One loop: `kernel` is a nest whose arrays are vectors, those of `reads` and then that of `write`."""

    kernel: str
    reads: tuple[str, ...]
    write: str
    function: Function


@dataclass(frozen=True, slots=True)
class VectorLowering(NoMatmul):
    """Tiles of a step that is a list of loops; a loop whose result nobody needs is left out."""

    loops: Callable[[Op], Sequence[VectorLoop]]

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """``n``, then the leading dimensions ``d0``, ``d1`` of a sample."""
        return leading_extents(tensors[op.outputs[0]].shape)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The same box of everything, one fork per result."""
        region = leading_region(tensors[op.outputs[0]].shape, ranges)
        elements, dtype = region_elements(region), tensors[op.outputs[0]].dtype
        loops = [loop for loop in self.loops(op) if loop.write in op.writes]
        used = [role for role in op.reads if any(role in loop.reads for loop in loops)]
        return TileTask(
            tuple(box(op, role, *region) for role in used),
            tuple(box(op, role, *region) for role in op.writes),
            (),
            tuple(vector_call(choice, loop, elements, dtype) for loop in loops),
        )


def vector_call(choice: KernelChoice, loop: VectorLoop, elements: int, dtype: str) -> KernelCall:
    """The call of a loop on buffers named as its roles."""
    roles = (*loop.reads, loop.write)
    arrays = dict(zip(_ARRAYS[len(roles)], roles, strict=True))
    sizes = {"elements": elements}
    return kernel_call(choice, loop.kernel, sizes, arrays, loop.reads, (loop.write,), loop.function, dtype)


_ARRAYS = {2: ("X", "Y"), 3: ("X", "G", "Y"), 4: ("X", "V", "G", "Y")}
"""Arrays of a vector nest by their number: inputs, then the result."""


def leading_extents(shape: Shape, axes: Sequence[int] | None = None) -> dict[str, int]:
    """The batch and up to two dimensions of a sample (of `axes`, if given), each ``d`` with its number."""
    sample = shape[1:]
    allowed = range(len(sample)) if axes is None else axes
    return {**batch_extent(shape[0]), **{f"d{axis}": sample[axis] for axis in allowed[:CUT_DIMENSIONS]}}


def leading_region(shape: Shape, ranges: Mapping[str, Extent]) -> Region:
    """The box of a tile: what `ranges` says of the dimensions, all of the others."""
    inner = (ranges.get(f"d{axis}", (0, size)) for axis, size in enumerate(shape[1:]))
    return (batch_range(ranges, shape[0]), *inner)


def sizes_of(region: Region) -> Shape:
    """Shape of a box."""
    return tuple(stop - start for start, stop in region)


def sample_axis(axis: int, shape: Shape, where: str) -> int:
    """The axis of a sample, counted from 0 behind the batch; ShapeError if the sample has no such axis."""
    if not 0 <= axis < len(shape) - 1:
        raise ShapeError(
            f"axis {axis} is none of a sample of shape {shape[1:]}",
            where=where,
            cure="axes count from 0 behind the batch",
        )
    return axis


def row_major(shape: Shape) -> Shape:
    """Strides, in elements, of a C-contiguous array."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
