# SPDX-License-Identifier: Apache-2.0
"""Lowerings that name the dimensions of their tensors: boxes and what may be cut follow from that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, cached_property
from itertools import takewhile
from math import prod
from types import MappingProxyType
from typing import Protocol

from configs.dtypes import DType, dtype_of
from trainlib.ir.access import Index
from trainlib.ir.graph import Op
from trainlib.ir.steps import (
    Extent,
    KernelChoice,
    Operand,
    Ranges,
    Region,
    Scratch,
    StepLowering,
    Tensors,
    TileTask,
    part,
)
from trainlib.primitives.definition import Shape, Step, Values
from trainlib.primitives.lowering.boxes import leading_extents, sizes_of
from trainlib.primitives.lowering.calls import BATCH, box
from trainlib.primitives.lowering.dequantised import WEIGHTS_IN, is_stored
from trainlib.primitives.lowering.pieces import Piece, TileBuilder

Axes = tuple[str, ...]
"""Names of dimensions; a tensor with samples has `BATCH` first."""

ONE = "1"
"""A dimension of one element."""

LAST = "last"
"""One more, behind the others of tensors of samples that have all dimensions of a kernel."""

LEADING = (BATCH, *(f"d{number}" for number in range(16)))
"""Names of the dimensions of a tensor whose layer names none."""


MOST_FORMS = 64
"""Ops of which the form is kept."""

At = Mapping[str, int]
"""An iteration of loops, counted from 0 in a tile."""

NOWHERE: At = MappingProxyType({})
"""Outside of all loops."""

Groups = tuple[Axes, ...]
"""Dimensions of a scratch buffer, each the product of some."""


class Kernel(Protocol):
    """One or several calls of every tile, as data."""

    def run(self, area: Area, build: TileBuilder) -> None:
        """Those of a tile."""


_FORMS: dict[tuple[int, int, int], Form] = {}


class Form:
    """How the tensors of an op lie on its loops: what all its tiles share."""

    def __init__(self, lowering: AxesLowering, op: Op, tensors: Tensors) -> None:
        self.lowering, self.op, self.tensors = lowering, op, tensors
        self.sizes = lowering.dimensions(op, tensors)
        self.whole: dict[str, Extent] = {
            name: (0, size) for name, size in (*self.sizes.items(), (ONE, 1), (LAST, 1))
        }
        self.maps = lowering.maps(op, tensors)
        self.inexact = [index for index in self.maps.values() if not index.is_exact(self.sizes)]
        """Maps without an element for each iteration."""
        self.axes: Callable[[str], Axes] = cache(self._axes_of)

    @cached_property
    def scratch(self) -> Mapping[str, Groups]:
        """Buffers of a tile beside the boxes."""
        return self.lowering.scratch(self)

    @cached_property
    def kernels(self) -> Sequence[Kernel]:
        """What computes a tile."""
        return self.lowering.kernels(self)

    def parts(self, buffer: str) -> Axes:
        """The loops that its dimensions consist of, as those of groups."""
        return tuple(loop for axis in self.axes(buffer) for loop in self._parts.get(axis, (axis,)))

    @cached_property
    def _parts(self) -> Mapping[str, Axes]:
        return {axis: index.loops for axis, index in self.maps.items() if index not in self.inexact}

    def _axes_of(self, name: str) -> Axes:
        if name in self.op.roles or name not in self.scratch:
            return self.lowering.axes_of(self.op, self.tensors, name)
        return tuple(axis for group in self.scratch[name] for axis in group)


class Area:
    """What a tile covers of every dimension of an op."""

    def __init__(self, form: Form, ranges: Ranges) -> None:
        self.form, self.op, self.tensors, self.axes = form, form.op, form.tensors, form.axes
        self.extents = {**form.whole, **ranges}
        for name, index in form.maps.items():
            self.extents[name] = index.span(self.extents).extent

    def shape(self, *axes: str) -> Shape:
        """Elements along these axes."""
        return sizes_of(tuple(self.extents[axis] for axis in axes))

    def begins(self, *axes: str) -> bool:
        """Whether the tile has the first of some dimensions."""
        return all(self.extents[axis][0] == 0 for axis in axes)

    @property
    def samples(self) -> range:
        """Counted from 0 in the tile."""
        return range(*self.shape(BATCH))

    def region(self, role: str) -> Region:
        """The intervals of the box of a tensor."""
        return tuple([self.extents[axis] for axis in self.axes(role)])

    def sizes(self, role: str) -> Shape:
        """The shape of the box of a tensor, or of a scratch buffer."""
        if role in self.op.roles:
            return sizes_of(self.region(role))
        return tuple(prod(self.shape(*group)) for group in self.form.scratch[role])

    def dtype_of(self, role: str) -> DType:
        """That of a tensor; of a weight in 8 bits that of the numbers a tile converts it to."""
        tensor = self.tensors[self.op[role]]
        return dtype_of(self.op.attributes[WEIGHTS_IN]) if is_stored(tensor) else tensor.dtype

    def box(self, role: str) -> Operand:
        """The box of a tensor."""
        return box(self.op, role, *self.region(role))

    def lies(self, buffer: str, at: At) -> tuple[str, int | None]:
        """What of a buffer belongs to an iteration of its leading dimensions: part, and first element."""
        axes = self.form.parts(buffer)
        fixed = [*takewhile(lambda axis: axis in at or axis == ONE, axes)]
        name = part(buffer, at[BATCH]) if fixed[:1] == [BATCH] else buffer
        place, loops = 0, [axis for axis in fixed if axis not in (BATCH, ONE)]
        for axis in loops:
            place = place * self.shape(axis)[0] + at[axis]
        return name, place * prod(self.shape(*axes[len(fixed) :])) if loops else None

    def held(self, buffer: str, at: At, shape: Shape) -> Piece:
        """The same as an array: a whole buffer or part in its own shape, else in this one."""
        name, first = self.lies(buffer, at)
        return Piece(name, self.sizes(buffer)[name != buffer :] if first is None else shape, first)

    def piece(self, role: str, sample: int | None = None) -> Piece:
        """That box in its buffer, or what of it belongs to a sample."""
        shape = self.sizes(role)
        return Piece(role, shape) if sample is None else Piece(part(role, sample), shape[1:])


class AxesLowering(StepLowering):
    """A step of which every tensor is a box of named dimensions; each may be cut.

    A name is that of a loop, or of one of the `maps` of loops.
    """

    kept: Axes = ()
    """Dimensions of the result."""
    summed: Axes = ()
    begun: Axes = ()
    """Those along which a tile may have boxes or scratch that another one of its size has not."""
    placed = False
    """Whether calls see more than shapes, and which dimensions a tile begins: where it lies."""
    roles: Mapping[str, Axes] = {}
    """Dimensions of tensors."""
    of_scratch: DType | None = None
    """Format of scratch buffers; None for that of the result."""

    def axes(self, role: str) -> Axes:
        """Dimensions of a tensor that depend on its role alone."""
        return self.roles[role]

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Dimensions of a tensor of an op."""
        return self.axes(role)

    def maps(self, op: Op, tensors: Tensors) -> Mapping[str, Index]:
        """Dimensions that are no loops, and what of them belongs to an interval of each loop."""
        return {}

    def dimensions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Sizes of all loops: those of the tensors."""
        sizes: dict[str, int] = {}
        for role, tensor in op.roles.items():
            sizes.update(zip(self.axes_of(op, tensors, role), tensors[tensor].shape, strict=True))
        return sizes

    def loaded(self, area: Area) -> Sequence[str]:
        """What a tile loads."""
        return area.op.reads

    def stored(self, area: Area) -> Sequence[str]:
        """What a tile writes."""
        return area.op.writes

    def boxes(self, area: Area) -> tuple[list[Operand], list[Operand]]:
        """What it loads and what it writes: of each tensor what the tile covers."""
        return [area.box(role) for role in self.loaded(area)], [area.box(role) for role in self.stored(area)]

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """Buffers of a tile beside the boxes."""
        return {}

    def has_scratch(self, area: Area, name: str) -> bool:
        """Whether a tile has that buffer."""
        return True

    def kernels(self, form: Form) -> Sequence[Kernel]:
        """What computes a tile, in order."""
        return ()

    def compute(self, area: Area, build: TileBuilder) -> None:
        """The calls of a tile."""
        dtype = self.of_scratch or build.dtype
        names = [name for name in area.form.scratch if self.has_scratch(area, name)]
        build.scratch += [Scratch(name, area.sizes(name), dtype) for name in names]
        for kernel in area.form.kernels:
            kernel.run(area, build)

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
        """All but those that are begun, or mapped without an element for each iteration."""
        form = self.form(op, tensors)
        return form.sizes.keys() - {*self.begun, *(loop for index in form.inexact for loop in index.loops)}

    def mark(self, op: Op, tensors: Tensors, ranges: Ranges) -> object:
        """Shapes, which dimensions it begins, and what maps read beside elements, if calls see no more."""
        if self.placed:
            return None
        form, marks = self.form(op, tensors), [(stop - start, start == 0) for start, stop in ranges.values()]
        if not form.inexact:
            return tuple(marks)
        covered = {**form.whole, **ranges}
        spans = [index.span(covered) for index in form.inexact]
        return (*marks, *[(span.count, span.before, span.after) for span in spans])

    def macs(self, op: Op, tensors: Tensors) -> int:
        """One for each term of the result, if there is a matmul."""
        sizes = self.dimensions(op, tensors)
        return prod(sizes[name] for name in (*self.kept, *self.summed)) if self.default_kernel(op) else 0

    def form(self, op: Op, tensors: Tensors) -> Form:
        """How the tensors of an op lie on its loops."""
        key = id(self), id(op), id(tensors)  # all are kept alive, so that their numbers stay their own
        form = _FORMS.get(key)
        if form is None:
            if len(_FORMS) >= MOST_FORMS:
                _FORMS.pop(next(iter(_FORMS)), None)
            form = _FORMS[key] = Form(self, op, tensors)
        return form

    def area(self, op: Op, tensors: Tensors, ranges: Ranges) -> Area:
        """What a tile covers; what `ranges` does not name is whole."""
        return Area(self.form(op, tensors), ranges)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """A box of everything."""
        area, build = self.area(op, tensors, ranges), TileBuilder(choice, tensors[op.outputs[0]].dtype)
        self.compute(area, build)
        return build.task(*self.boxes(area))

    def moved(
        self, task: TileTask, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice
    ) -> TileTask:
        """With other intervals."""
        area = self.area(op, tensors, ranges)
        inputs, outputs = ([area.box(item.name) for item in side] for side in (task.inputs, task.outputs))
        return task.but(inputs=inputs, outputs=outputs)


class FormulaLowering(AxesLowering):
    """A step whose tiles compute a formula, which is its untiled reference as well (decision 22)."""

    def reference(self, op: Op, values: Values) -> Values:
        """The formula of whole tensors, in float64."""
        raise NotImplementedError

    def step(self, name: str, moves: str) -> Step:
        """The step that reads and writes what `moves` says (`Step.of`)."""
        return Step.of(name, moves, self.reference, self, formula=True)


class LeadingBoxes(AxesLowering):
    """A step that makes any box of its (first) result: ``n`` and the first two dimensions of a sample."""

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """By number."""
        return LEADING[: len(tensors[op[role]].shape)]

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Of the result."""
        return leading_extents(tensors[op.outputs[0]].shape)
