# SPDX-License-Identifier: Apache-2.0
"""Lowering of a contraction: boxes, extents and sums follow from its description, a subclass brings kernels.

`ContractionStep` is the lowering of one step. What may be cut, what a tile fetches and what it writes follow
from `trainlib.ir.access`. Which kernels compute it, in which order and by way of which scratch is a list in
`linear` and `pointwise`; those of other convolutions are chosen in `convolution`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from configs.dtypes import DType
from trainlib.ir.access import Contraction, Index, Space, Span
from trainlib.ir.graph import Op
from trainlib.ir.steps import KernelChoice, Operand, Ranges, Tensors
from trainlib.primitives.lowering.axes import Area, Axes, AxesLowering, Form
from trainlib.primitives.lowering.calls import BATCH

BIAS, BIAS_GRADIENT = "b", "db"
"""Roles of the bias, which is added to every element of a channel, and of its gradient."""


class LoopTile(Area):
    """One tile of a contraction; its tensors have the contraction's names."""

    def __init__(self, form: Form, ranges: Ranges, choice: KernelChoice) -> None:
        super().__init__(form, ranges)
        step = form.lowering
        assert isinstance(step, ContractionStep)
        self.choice, self.roles, self.space = choice, step.renamed, step.space(form.op)

    @property
    def dtype(self) -> DType:
        """Dtype of the result."""
        return self.dtype_of(self.role(self.space.result))

    def role(self, name: str) -> str:
        """The op's role of a tensor of the contraction."""
        return self.roles.get(name, name)

    def count(self, *loops: str) -> int:
        """Iterations of some loops; of a loop the contraction has not, one."""
        extents = [self.extents.get(loop, (0, 1)) for loop in loops]
        return prod([stop - start for start, stop in extents])

    def span(self, name: str, axis: str) -> Span:
        """What the tile needs of an axis of a tensor of the contraction."""
        return self.space.index(name, axis).span(self.extents)

    def box(self, role: str) -> Operand:
        """The box of a tensor, by the contraction's name; of the bias or its gradient."""
        return super().box(self.role(role))

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
        return (self.box(BIAS),) if self.adds_bias else ()

    @property
    def bias_gradient(self) -> tuple[Operand, ...]:
        """The box of the gradient of the bias, which the tiles that begin the input channels sum."""
        return (self.box(BIAS_GRADIENT),) if BIAS_GRADIENT in self.op and self.begins("ci") else ()


@dataclass(frozen=True)
class Description:
    """How the ops of a primitive are contractions.

    `of(op)` gives the contraction, sizes of its axes and its symbols (see `Contraction.space`); `orders(op)`
    the order in which axes of x, y and w are stored, where it is not that of the text.
    """

    of: Callable[[Op], tuple[Contraction, Mapping[str, int], Mapping[str, int]]]
    orders: Callable[[Op], Mapping[str, tuple[int, ...]]] = lambda op: {}


@dataclass(frozen=True)
class ContractionStep(AxesLowering):
    """The lowering of a step that writes `result` (``y``, ``dw`` or ``dx`` of the contraction).

    `renamed` are the op's names of tensors of the contraction where they differ (a transposed convolution
    writes what a convolution reads).
    """

    description: Description
    result: str
    renamed: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def uncut(self, op: Op) -> tuple[str, ...]:
        """Loops its kernels want whole."""
        return ()

    def same_calls(self, op: Op) -> bool:
        """Whether tiles of one `mark` have the same scratch and calls."""
        return True

    def space(self, op: Op) -> Space:
        """The nest of the step."""
        contraction, sizes, symbols = self.description.of(op)
        return contraction.space(self.result, sizes, symbols)

    def dimensions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """All loops."""
        return self.space(op).loops

    def maps(self, op: Op, tensors: Tensors) -> Mapping[str, Index]:
        """The axes that are no loop, by tensor and axis."""
        accesses = self.space(op).accesses.items()
        return {_name(name, index): index for name, axes in accesses for index in axes if index.loop is None}

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Those of a tensor of the contraction, as they are stored; the channels of the result of a bias."""
        if role in (BIAS, BIAS_GRADIENT):
            return ("ci" if self.result == "dx" else "co",)
        accesses = self.space(op).accesses
        name = next(name for name in accesses if self.renamed.get(name, name) == role)
        axes = tuple(_name(name, index) for index in accesses[name])
        order = self.description.orders(op).get(name.removeprefix("d"), range(len(axes)))
        return tuple(axes[place] for place in order)

    def loaded(self, area: Area) -> Sequence[str]:
        """The bias with the first input channels."""
        return [role for role in area.op.reads if role != BIAS or area.begins("ci")]

    def stored(self, area: Area) -> Sequence[str]:
        """Its gradient with them."""
        return [role for role in area.op.writes if role != BIAS_GRADIENT or area.begins("ci")]

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The loops of the result the kernels do not want whole; the batch if it is one."""
        space = self.space(op)
        uncut = self.uncut(op)
        return {
            name: size
            for name, size in space.extents.items()
            if name not in uncut and (name != BATCH or size > 1)
        }

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The loops it is a sum over, of more than one iteration."""
        space = self.space(op)
        uncut = self.uncut(op)
        return {name: size for name, size in space.reductions.items() if name not in uncut and size > 1}

    def meeting(self, op: Op, tensors: Tensors) -> Sequence[tuple[str, ...]]:
        """Dimensions that meet in an axis of a tensor."""
        dims = (*self.extents(op, tensors), *self.reductions(op, tensors))
        return self.space(op).meeting(dims)

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """Not those of which some tiles have a bias, or its gradient, alone."""
        alone = {
            *(self.space(op).reductions if BIAS in op else ()),
            *(("ci", "co") if BIAS_GRADIENT in op else ()),
        }
        return set(super().even(op, tensors)) - alone

    def mark(self, op: Op, tensors: Tensors, ranges: Ranges) -> object:
        """None in groups, which may end within a tile, and if the kernels see more."""
        inexact = self.form(op, tensors).inexact
        grouped = any(term.block or term.period for index in inexact for term in index.terms)
        return None if grouped or not self.same_calls(op) else super().mark(op, tensors, ranges)

    def macs(self, op: Op, tensors: Tensors) -> int:
        """Every iteration of the nest, those with zeros included."""
        return self.space(op).macs

    def useful_macs(self, op: Op, tensors: Tensors) -> int:
        """Iterations that touch an element of every operand (see `Space.useful_macs`)."""
        return self.space(op).useful_macs


def _name(name: str, index: Index) -> str:
    """What an axis of a tensor is called: its loop, if it is one."""
    return index.loop or f"{index.axis} of {name}"
