# SPDX-License-Identifier: Apache-2.0
"""What a primitive step tells the scheduler: how its result may be cut, and what one tile needs and does.

A step is described once, here, and is then costed, tiled, scheduled and traced like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arch.spec.isa import TeamWork
from configs.dtypes import FP32, DType
from configs.values import Struct
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.numerics import widened

Array = NDArray[Any]

Function = Callable[[Sequence[Array]], Sequence[Array]]
"""What a kernel computes: arrays of its reads to arrays of its writes."""

Extent = tuple[int, int]
"""Half-open interval [start, stop) of one dimension."""

Region = tuple[Extent, ...]
"""A box of a tensor, one interval per dimension."""

Tensors = Mapping[str, Tensor]
"""Those of a graph, by name."""

Ranges = Mapping[str, Extent]
"""What a tile covers, by the names of the dimensions that may be cut."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A box of a graph tensor that a tile moves between its home memory and L1.

    `buffer` names its L1 buffer within the tile (by convention the role: ``x``, ``w``, ``dy``); kernel calls
    use that name. Empty means the tensor's name. An input and an output may not share a name.

    An input may gather many boxes, which may overlap, into one buffer, one behind the other: `pieces` holds
    intervals per dimension, the boxes are all combinations of them, the last dimension running fastest, and
    `region` encloses them (`gathered`). An output has one box.
    """

    tensor: str
    region: Region
    buffer: str = ""
    pieces: tuple[tuple[Extent, ...], ...] = ()
    name: str = field(init=False, repr=False, compare=False)
    """Name of the L1 buffer."""
    shape: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Shape in L1 (C-contiguous): that of the box; of several boxes (elements,)."""

    def __post_init__(self) -> None:
        """Work out once what planning asks for again and again."""
        shape = [stop - start for start, stop in self.region]
        if self.pieces:
            shape = [prod(sum(stop - start for start, stop in along) for along in self.pieces)]
        object.__setattr__(self, "name", self.buffer or self.tensor)
        object.__setattr__(self, "shape", tuple(shape))

    @property
    def boxes(self) -> tuple[Region, ...]:
        """The boxes, in the order they lie in the buffer."""
        return tuple(product(*self.pieces)) if self.pieces else (self.region,)

    def taken(self, array: Array) -> Array:
        """The elements of a whole tensor that the boxes hold, as they lie in L1."""
        parts = [array[tuple(slice(*extent) for extent in box)] for box in self.boxes]
        if self.pieces:
            return np.concatenate([item.reshape(-1) for item in parts])
        return np.ascontiguousarray(parts[0])


def gathered(tensor: str, pieces: Sequence[Sequence[Extent]], buffer: str) -> Operand:
    """An input of many boxes: all combinations of `pieces`, the intervals along each dimension."""
    region = tuple((min(start for start, _ in along), max(stop for _, stop in along)) for along in pieces)
    return Operand(tensor, region, buffer, tuple(tuple(along) for along in pieces))


class Scratch(Struct, frozen=True):
    """An L1 buffer that lives only while one tile is computed (im2col, transposed weights)."""

    name: str
    shape: tuple[int, ...]
    dtype: DType = FP32


def part(buffer: str, first: int, last: int | None = None) -> str:
    """Name of a part of a buffer: element `first` of its leading dimension, or elements [first, last).

    ``part("x", 2)`` is sample 2 of a tile's x, without the batch dimension; ``part("x", 2, 4)`` is samples 2
    and 3, with it. Such names stand in `KernelCall.reads` and `writes` wherever a buffer's name does.
    """
    return f"{buffer}[{first}]" if last is None else f"{buffer}[{first}:{last}]"


def find_part(name: str, shape_of: Callable[[str], tuple[int, ...]]) -> tuple[str, int, tuple[int, ...]]:
    """(buffer, first element's index in the flat buffer, shape) of a buffer or a part of one."""
    buffer, bracket, rest = name.partition("[")
    shape = shape_of(buffer)
    if not bracket:
        return buffer, 0, shape
    first, colon, last = rest.removesuffix("]").partition(":")
    taken = (int(last) - int(first), *shape[1:]) if colon else shape[1:]
    return buffer, int(first) * prod(shape[1:]), taken


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel on the team. `reads` and `writes` name buffers of the tile (operands, scratch) or a `part`.

    `work` gives the loop nests for a number of cores, with the L1 addresses of the named buffers and parts
    (so that banks are known). `function` maps the arrays of `reads` to the arrays of `writes`, shapes as in
    L1; 16-bit floats arrive widened to float32, which is exact, and results are rounded to the dtype of their
    buffer when stored, so a function never deals with 16-bit arithmetic. `fork` is False for code the master
    core runs alone. `macs` counts multiply-accumulates. `details` are what `function` knows beside arrays and
    attributes of the op, by name, for those who write it in C: numbers, or functions that give them.
    """

    kernel: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    work: Callable[[int, Mapping[str, int]], TeamWork]
    function: Function
    macs: int = 0
    fork: bool = True
    details: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def compute(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """`function` on arrays as they lie in L1."""
        return self.function([widened(array) for array in arrays])


class TileTask:
    """Everything one tile does: boxes in, scratch, kernels in order, boxes out.

    `calls` may be a function that gives them: of most tiles a search only asks for the boxes. What is `held`
    is written too, but left in L1 for the tile after it and not stored.
    """

    def __init__(
        self,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        scratch: Sequence[Scratch],
        calls: Callable[[], Sequence[KernelCall]] | Sequence[KernelCall],
        held: Sequence[Operand] = (),
    ) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.scratch, self.held = tuple(scratch), tuple(held)
        self._calls = calls

    @cached_property
    def calls(self) -> tuple[KernelCall, ...]:
        """The kernels in order."""
        return tuple(self._calls() if callable(self._calls) else self._calls)

    def but(self, **changes: Any) -> TileTask:
        """The same with other boxes, scratch or calls."""
        same = {"inputs": self.inputs, "outputs": self.outputs, "scratch": self.scratch, "held": self.held}
        return TileTask(**{**same, "calls": lambda: self.calls, **changes})

    @property
    def written(self) -> tuple[Operand, ...]:
        """All boxes it writes, stored or held."""
        return (*self.outputs, *self.held)


class KernelChoice(Struct, frozen=True):
    """How the compute of a step is done: matmul kernel, codegen profile and how sums are rounded.

    `accumulation` is one of `trainlib.ir.numerics.ACCUMULATIONS`. `cores` is the size of the team: some
    16-bit matmuls fall back to another loop, and then sum otherwise, where a core would get too little.
    """

    kernel: str
    codegen: str
    accumulation: str = "reference"
    cores: int = 1


class StepLowering:
    """How one op becomes tiles. One per primitive and step, registered by the primitive's file.

    What a lowering does not say holds of no dimension; without a matmul there are no multiply-accumulates.
    """

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Dimensions of the step's own result that may be cut, in loop order (outermost first), with sizes.

        An empty mapping means the step's result cannot be cut. Dimensions the result is a sum over are not
        listed here but by `reductions`.
        """
        raise NotImplementedError

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Dimensions that results of the step are sums over, with sizes; names differ from `extents`.

        A tile over part of them writes, to its outputs, what that part contributes to the sum and nothing
        else: the scheduler keeps or reloads the sum so far and adds. What counts once however the sum is cut
        (a bias) belongs to the part that begins at 0 in every reduction dimension. A result that is no sum
        over the dimension (the gradient beside a loss) has a box of its own in each part.
        """
        return {}

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """The task of the tile that covers `ranges`, one interval per entry of `extents`.

        `ranges` may also hold intervals of `reductions`; one not named there is whole.
        """
        raise NotImplementedError

    def default_kernel(self, op: Op) -> str:
        """Matmul kernel used when the user names none; empty for steps without a matmul."""
        return ""

    def macs(self, op: Op, tensors: Tensors) -> int:
        """Multiply-accumulates of the whole step (0 for elementwise steps)."""
        return 0

    def useful_macs(self, op: Op, tensors: Tensors) -> int:
        """Multiply-accumulates but for those with padding, or with the zeros between strided elements."""
        return self.macs(op, tensors)

    def meeting(self, op: Op, tensors: Tensors) -> Sequence[tuple[str, ...]]:
        """Sets of dimensions that decide together on the elements of a box (or on whether there is one).

        Along all others the elements of a box are a product of what each dimension says alone.
        """
        return ()

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """Dimensions along which any pieces of one size have boxes and scratch of one shape.

        If the boxes of two pieces differ, those of any two do.
        """
        return ()

    def mark(self, op: Op, tensors: Tensors, ranges: Ranges) -> object:
        """All that scratch and calls can see of where a tile lies: equal for tiles that may share them.

        None where that is not known.
        """
        return None

    def moved(
        self, task: TileTask, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice
    ) -> TileTask:
        """The calls of a tile on the boxes of another one of the same `mark`."""
        return self.tile(op, tensors, ranges, choice).but(calls=lambda: task.calls)

    def among_others(self, op: Op) -> Op:
        """The op in words of any of many (one per time step) whose tiles differ only in where they lie."""
        return op
