# SPDX-License-Identifier: Apache-2.0
"""Lowering of a contraction: boxes, extents and sums follow from its description, a strategy brings kernels.

`ContractionStep` is the lowering of one step. What may be cut, what a tile fetches and what it writes follow
from `trainlib.ir.access`; which kernels compute it, in which order and by way of which scratch is for a named
strategy: `matrix_products` (matmuls on the operands as they lie), `conv_im2col` (matmul on
unrolled patches), `conv_direct` (loops without a matmul).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from configs.dtypes import DType
from configs.values import Struct, replace
from trainlib.ir.access import Contraction, Index, Space, Span
from trainlib.ir.graph import Op
from trainlib.ir.steps import Extent, KernelChoice, Operand, Ranges, StepLowering, Tensors, TileTask

BATCH = "n"
"""The loop over samples."""

MOST_OPS = 16
"""Ops of which a step keeps the axes."""

BIAS, BIAS_GRADIENT = "b", "db"
"""Roles of the bias, which is added to every element of a channel, and of its gradient."""


class OpBoxes:
    """The boxes of the tiles of one op."""

    def __init__(
        self, op: Op, tensors: Tensors, space: Space, roles: Mapping[str, str], description: Description
    ) -> None:
        self.op, self.tensors, self.space = op, tensors, space
        self.whole = {name: (0, size) for name, size in space.loops.items()}
        self._axes: dict[str, tuple[str, tuple[Index, ...]]] = {}
        self._name_of: dict[str, str] = {}
        self.orders = orders = description.orders(op)
        for name, access in space.accesses.items():
            role, order = roles.get(name, name), orders.get(name.removeprefix("d"), range(len(access)))
            self._axes[name] = role, tuple(access[axis] for axis in order)
            self._name_of.setdefault(role, name)
        indices = [index for access in space.accesses.values() for index in access]
        self._mixed = [index for index in indices if index.loop is None]
        self._grouped = any(term.block or term.period for index in self._mixed for term in index.terms)

    def box(self, name: str, ranges: Ranges) -> Operand:
        """The box of a tensor of the contraction, its axes in the order they are stored in."""
        role, axes = self._axes[name]
        region = [index.span(ranges).extent if index.loop is None else ranges[index.loop] for index in axes]
        return Operand(self.op[role], tuple(region), role)

    def stored(self, name: str) -> tuple[str, ...]:
        """The axes of a tensor of the contraction, in that order."""
        return tuple(index.axis for index in self._axes[name][1])

    def operand(self, buffer: str, ranges: Ranges) -> Operand:
        """The box in a buffer: of a tensor of the contraction, or of the bias or its gradient."""
        if buffer not in (BIAS, BIAS_GRADIENT):
            return self.box(self._name_of[buffer], ranges)
        return Operand(self.op[buffer], (ranges["ci" if self.space.result == "dx" else "co"],), buffer)

    def mark(self, part: Ranges) -> object:
        """All that kernels can see of where a tile lies; None in groups, which may end within a tile."""
        if self._grouped:
            return None
        ranges = {**self.whole, **part}
        spans = [index.span(ranges) for index in self._mixed]
        marks = [(span.count, span.before, span.after) for span in spans]
        return (*((stop - start, start == 0) for start, stop in ranges.values()), *marks)


class LoopTile(Struct, frozen=True):
    """One tile of a step: the interval of every loop, and what follows from it."""

    op: Op
    tensors: Tensors
    space: Space
    ranges: Ranges
    choice: KernelChoice
    roles: Mapping[str, str]
    boxes: OpBoxes

    @property
    def dtype(self) -> DType:
        """Dtype of the result."""
        return self.tensors[self.op[self.role(self.space.result)]].dtype

    def role(self, name: str) -> str:
        """The op's role of a tensor of the contraction."""
        return self.roles.get(name, name)

    def count(self, *loops: str) -> int:
        """Iterations of some loops; of a loop the contraction has not, one."""
        extents = [self.ranges.get(loop, (0, 1)) for loop in loops]
        return prod([stop - start for start, stop in extents])

    def total(self, *loops: str) -> int:
        """Iterations of some loops in the whole op."""
        return prod(self.space.loops[loop] for loop in loops)

    def span(self, name: str, axis: str) -> Span:
        """What the tile needs of an axis of a tensor of the contraction."""
        return self.space.index(name, axis).span(self.ranges)

    def box(self, name: str, **other: Extent) -> Operand:
        """The box of a tensor of the contraction, its axes in the order they are stored in.

        `other` gives intervals of axes to be taken instead of those the tile needs.
        """
        box = self.boxes.box(name, self.ranges)
        if not other:
            return box
        axes = self.boxes.stored(name)
        region = [other.get(axis, extent) for axis, extent in zip(axes, box.region, strict=True)]
        return replace(box, region=tuple(region))

    def operand(self, buffer: str) -> Operand:
        """The box in a buffer: of a tensor of the contraction, or of the bias or its gradient."""
        return self.boxes.operand(buffer, self.ranges)

    def begins(self, *loops: str) -> bool:
        """Whether the tile holds the first iteration of some loops."""
        return all(self.ranges[loop][0] == 0 for loop in loops)

    @property
    def channel(self) -> str:
        """The loop over the channels of the result."""
        return "ci" if self.space.result == "dx" else "co"

    @property
    def adds_bias(self) -> bool:
        """Whether it adds a bias: that counts once, and belongs to the part that begins every sum."""
        result = self.role(self.space.result)
        return result == "y" and BIAS in self.op and self.begins(*self.space.reductions)

    @property
    def bias(self) -> tuple[Operand, ...]:
        """The box of the bias, if it adds it."""
        return (self.operand(BIAS),) if self.adds_bias else ()

    @property
    def bias_gradient(self) -> tuple[Operand, ...]:
        """The box of the gradient of the bias, which the tiles that begin the input channels sum."""
        return (self.operand(BIAS_GRADIENT),) if BIAS_GRADIENT in self.op and self.begins("ci") else ()


class Strategy(ABC):
    """How tiles of a contraction are computed."""

    def uncut(self, op: Op) -> tuple[str, ...]:
        """Loops its kernels want whole: none."""
        return ()

    def meeting(self, op: Op) -> tuple[tuple[str, ...], ...]:
        """Loops that decide together on a scratch buffer: none."""
        return ()

    def same_calls(self, op: Op) -> bool:
        """Whether tiles of one `OpBoxes.mark` have the same scratch and calls: not known."""
        return False

    def default_kernel(self, op: Op, space: Space) -> str:
        """Matmul kernel used when the user names none; empty without a matmul.

        The naive row-parallel one, PULP-TrainLib's own default.
        """
        return "mm"

    @abstractmethod
    def task(self, tile: LoopTile) -> TileTask:
        """Operands, scratch and kernel calls of a tile."""


@dataclass(frozen=True)
class Description:
    """How the ops of a primitive are contractions.

    `of(op)` gives the contraction, sizes of its axes and its symbols (see `Contraction.space`); `orders(op)`
    the order in which axes of x, y and w are stored, where it is not that of the text.
    """

    of: Callable[[Op], tuple[Contraction, Mapping[str, int], Mapping[str, int]]]
    orders: Callable[[Op], Mapping[str, tuple[int, ...]]] = lambda op: {}

    def space(self, op: Op, result: str) -> Space:
        """The nest of the step of `op` that writes `result`."""
        contraction, sizes, symbols = self.of(op)
        return contraction.space(result, sizes, symbols)


@dataclass(frozen=True)
class ContractionStep(StepLowering):
    """The lowering of a step that writes `result` (``y``, ``dw`` or ``dx`` of the contraction).

    `roles` are the op's names of tensors of the contraction where they differ (a transposed convolution
    writes what a convolution reads).
    """

    description: Description
    result: str
    strategy: Strategy | Callable[[Op], Strategy]
    """That of all ops, or by op."""
    roles: Mapping[str, str] = field(default_factory=dict)
    _kept: dict[object, OpBoxes] = field(default_factory=dict, compare=False, repr=False)

    def by(self, op: Op) -> Strategy:
        """What computes the tiles of an op."""
        return self.strategy if isinstance(self.strategy, Strategy) else self.strategy(op)

    def space(self, op: Op) -> Space:
        """The nest of the step."""
        return self.description.space(op, self.result)

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The loops of the result the kernels do not want whole; the batch if it is one."""
        space = self.space(op)
        uncut = self.by(op).uncut(op)
        return {
            name: size
            for name, size in space.extents.items()
            if name not in uncut and (name != BATCH or size > 1)
        }

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The loops it is a sum over, of more than one iteration."""
        space = self.space(op)
        uncut = self.by(op).uncut(op)
        return {name: size for name, size in space.reductions.items() if name not in uncut and size > 1}

    def meeting(self, op: Op, tensors: Tensors) -> Sequence[tuple[str, ...]]:
        """Dimensions that meet in an axis of a tensor, or in a scratch buffer of the strategy."""
        dims = (*self.extents(op, tensors), *self.reductions(op, tensors))
        return [*self.space(op).meeting(dims), *self.by(op).meeting(op)]

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """The loops that are an axis by themselves, where no tile has a bias, or its gradient, alone."""
        space = self.space(op)
        indices = [index for access in space.accesses.values() for index in access]
        others = {name for index in indices if index.loop is None for name in index.loops}
        if BIAS in op:
            others |= space.reductions.keys()
        if BIAS_GRADIENT in op:
            others |= {"ci", "co"}
        return space.loops.keys() - others

    def mark(self, op: Op, tensors: Tensors, ranges: Ranges) -> object:
        """What kernels see of the loops, if the strategy knows."""
        return self._boxes(op, tensors).mark(ranges) if self.by(op).same_calls(op) else None

    def moved(
        self, task: TileTask, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice
    ) -> TileTask:
        """With other boxes."""
        boxes = self._boxes(op, tensors)
        covered = {**boxes.whole, **ranges}
        inputs, outputs = (
            [boxes.operand(item.name, covered) for item in side] for side in (task.inputs, task.outputs)
        )
        return task.but(inputs=inputs, outputs=outputs)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """What the strategy makes of the tile."""
        boxes = self._boxes(op, tensors)
        covered = {**boxes.whole, **ranges}
        return self.by(op).task(LoopTile(op, tensors, boxes.space, covered, choice, self.roles, boxes))

    def _boxes(self, op: Op, tensors: Tensors) -> OpBoxes:
        key = id(op), id(tensors)  # both are kept alive, so that their numbers stay their own
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= MOST_OPS:
                del self._kept[next(iter(self._kept))]
            space = self.space(op)
            kept = self._kept[key] = OpBoxes(op, tensors, space, self.roles, self.description)
        return kept

    def default_kernel(self, op: Op) -> str:
        """That of the strategy."""
        return self.by(op).default_kernel(op, self.space(op))

    def macs(self, op: Op, tensors: Tensors) -> int:
        """Every iteration of the nest, those with zeros included."""
        return self.space(op).macs

    def useful_macs(self, op: Op, tensors: Tensors) -> int:
        """Iterations that touch an element of every operand (see `Space.useful_macs`)."""
        return self.space(op).useful_macs
