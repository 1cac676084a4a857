# SPDX-License-Identifier: Apache-2.0
"""Broadcasting by NumPy's rules: dimensions of size 1 and missing leading ones of a sample repeat.

`broadcast_add` is y = x + x1: IG gives dx and IG1 gives dx1, each dy summed over the dimensions it was
repeated in. PULP-TrainLib has FW only. For two tensors of one shape there is `add`, whose gradients cost
nothing. `expand` repeats a sample to a larger shape; the sum of two tensors makes no such copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from configs.values import Struct
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array, KernelCall, Tensors
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Positive, Shape, Step, Values
from trainlib.primitives.lowering.axes import LEADING, ONE, Area, Axes, Form, LeadingBoxes
from trainlib.primitives.lowering.boxes import leading, row_major
from trainlib.primitives.lowering.calls import BATCH, VECTOR_ADD
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.shapes.box_copies import LOOPS, Copy, check_rank, in_loops


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    (batch, *left), (_, *right) = inputs[0].shape, inputs[1].shape
    try:
        shape = np.broadcast_shapes(tuple(left), tuple(right))
    except ValueError as error:
        raise ShapeError(
            f"shapes {tuple(left)} and {tuple(right)} cannot be broadcast",
            where=where,
            cure="use sizes that are equal or 1, counted from the last dimension",
        ) from error
    output = (batch, *shape)
    check_rank(output, where)
    return LayerPlan(output, attributes={"shape": output, "left": tuple(left), "right": tuple(right)})


def _aligned(shape: Shape, whole: Shape) -> Shape:
    """`shape` with as many dimensions as `whole`: ones behind the batch."""
    return (shape[0], *(1,) * (len(whole) - len(shape)), *shape[1:])


def _repeated_axes(shape: Shape, whole: Shape) -> Axes:
    """Dimensions of the result, of this shape, that a tensor does not repeat."""
    aligned = zip(LEADING[1:], _aligned(shape, whole)[1:], whole[1:], strict=False)
    axes = [name if size == most else ONE for name, size, most in aligned]
    return (BATCH, *axes[len(whole) - len(shape) :])


class _Sum(Struct, frozen=True):
    """target = sum of `terms` over all of the dimensions of `whole`.

    A target without some of them is the sum of one term along these: zeros first, or a copy if the tile has
    one element along them.
    """

    whole: str
    target: str
    terms: Axes

    def run(self, area: Area, build: TileBuilder) -> None:
        """A fork, and one before it that zeroes."""
        target, sizes = area.sizes(self.target), area.sizes(self.whole)
        roles = (*self.terms, self.target)
        if len(roles) == 2:
            if prod(target) == prod(sizes):
                build.copy(*(Piece(role, area.sizes(role)) for role in roles))
                return
            build.fill(self.target, target, 0.0)
            roles = (self.target, *roles)
        build.call(lambda: self._call(area, build, roles))

    def _call(self, area: Area, build: TileBuilder, roles: Axes) -> KernelCall:
        """Cores split the largest dimension of the result, so no two of them add to one element."""
        loops, whole, target = area.axes(self.whole), area.sizes(self.whole), area.sizes(self.target)
        strides = []
        for role in roles:
            shape = area.sizes(role)
            steps = zip(area.axes(role), shape, row_major(shape), strict=True)
            moving = {axis: step for axis, size, step in steps if size > 1}
            strides.append(tuple(moving.get(axis, 0) for axis in loops))
        ordered = in_loops(len(whole), int(np.argmax(np.where(strides[2], whole, 0))))
        nest, sizes = "add_nd", dict(zip(LOOPS, ordered(whole, 1), strict=True))
        arrays = {
            name: Piece(role, strides=ordered(stride, 0))
            for name, role, stride in zip("XGY", roles, strides, strict=True)
        }
        if all(prod(area.sizes(role)) == prod(whole) for role in roles):
            nest, sizes = VECTOR_ADD, {"elements": prod(whole), "repeated": 0}
            arrays = {name: Piece(role) for name, role in zip("XGY", roles, strict=True)}

        def function(values: Sequence[Array]) -> tuple[Array, ...]:
            left, right = (array.reshape(_aligned(array.shape, whole)) for array in values)
            if self.target in roles[:1]:
                axes = tuple(axis for axis, size in enumerate(left.shape) if size == 1)
                right = right.sum(axis=axes, keepdims=True)
            return ((left + right).reshape(target),)

        return kernel_call(build.choice, nest, sizes, arrays, roles[:2], roles[2:], function, build.dtype)


class _Repeating(LeadingBoxes):
    """Boxes of the result, with what of the inputs they repeat."""

    def __init__(self, call: _Sum | Copy) -> None:
        self.call = call

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Tensors have those they do not repeat."""
        return _repeated_axes(tensors[op[role]].shape, op.attributes["shape"])

    def kernels(self, form: Form) -> Sequence[_Sum | Copy]:
        return (self.call,)


class _Gradient(_Repeating):
    """IG or IG1: boxes of a gradient; the sums over dimensions it was repeated in may be cut."""

    def _cut(self, op: Op, tensors: Tensors, *, repeated: bool) -> dict[str, int]:
        kept, dimensions = self.axes_of(op, tensors, op.writes[0]), self.axes_of(op, tensors, "dy")[1:]
        names = tuple([name for name in dimensions if (name not in kept) == repeated])
        return leading(self._sizes(op, tensors, names))

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, and the first two dimensions that were not."""
        return {**self._sizes(op, tensors, (BATCH,)), **self._cut(op, tensors, repeated=False)}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The first two dimensions that were."""
        return self._cut(op, tensors, repeated=True)


def _forward(op: Op, values: Values) -> Values:
    whole = (len(values["x"]), *op.attributes["shape"][1:])
    left, right = (values[role].reshape(_aligned(values[role].shape, whole)) for role in ("x", "x1"))
    return {"y": np.add(left, right)}


def _gradient_step(name: str, result: str, shape: str) -> Step:
    """The gradient of an input, whose shape of a sample is the attribute `shape`.

    It lacks leading dimensions, or has ones, where the input was repeated: dy is summed over these.
    """

    def reduced(op: Op, values: Values) -> Values:
        dy, sample = values["dy"], op.attributes[shape]
        aligned = _aligned((len(dy), *sample), dy.shape)
        axes = tuple(axis for axis, size in enumerate(aligned) if axis and size == 1)
        return {result: np.add.reduce(dy, axis=axes, keepdims=True).reshape(len(dy), *sample)}

    return Step.of(name, f"dy -> {result}", reduced, _Gradient(_Sum("dy", result, ("dy",))))


BROADCAST_ADD = LayerPrimitive(
    name="broadcast_add",
    schema=LayerSchema,
    plan=_plan,
    steps=(
        Step.of("FW", "x x1 -> y", _forward, _Repeating(_Sum("y", "y", ("x", "x1")))),
        _gradient_step("IG", "dx", "left"),
        _gradient_step("IG1", "dx1", "right"),
    ),
    examples=(
        Example(inputs=((3, 1, 4), (5, 1))),
        Example(inputs=((6,), (2, 3, 1)), batches=(1, 2)),
        Example(inputs=((4, 3), (4, 3))),
        Example(inputs=((1,), (7,))),
    ),
    inputs=(2, 2),
    layouts=None,
)


class _ExpandSchema(LayerSchema):
    shape: Annotated[list[Positive], Field(min_length=1)]
    """Shape of a sample of the result, without the batch."""


def _expand_plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, *sample = inputs[0].shape
    wanted = tuple(attributes["shape"])
    try:
        fits = np.broadcast_shapes(tuple(sample), wanted) == wanted
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"cannot expand {tuple(sample)} to {list(wanted)}: only dimensions of size 1 can grow",
            where=where,
            cure="leave all other sizes unchanged (shapes are aligned at the last dimension)",
        )
    output = (batch, *wanted)
    check_rank(output, where)
    return LayerPlan(output, attributes={"shape": output, "left": tuple(sample)})


def _expanded(op: Op, values: Values) -> Values:
    x, shape = values["x"], op.attributes["shape"][1:]
    return {"y": np.stack([np.broadcast_to(sample, shape) for sample in x])}


EXPAND = LayerPrimitive(
    name="expand",
    schema=_ExpandSchema,
    plan=_expand_plan,
    steps=(
        Step.of("FW", "x -> y", _expanded, _Repeating(Copy("y", ("x",)))),
        _gradient_step("IG", "dx", "left"),
    ),
    examples=(
        Example({"shape": [3, 4, 5]}, ((3, 1, 1),)),
        Example({"shape": [2, 3, 4]}, ((4,),)),
        Example({"shape": [6]}, ((1,),)),
        Example({"shape": [4, 3]}, ((4, 3),)),
    ),
    layouts=None,
)

PRIMITIVES = (BROADCAST_ADD, EXPAND)
