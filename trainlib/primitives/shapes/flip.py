# SPDX-License-Identifier: Apache-2.0
"""Elements of some axes of a sample in reverse; dx is dy turned round again.

With it a recurrence goes backwards in time: flip, the recurrent layer, flip. The source is walked from its
last element on, by the loops of a copy with strides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array, KernelChoice, Ranges, Tensors, TileTask
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, NotNegative, Step
from trainlib.primitives.lowering.boxes import LeadingBoxes, leading_region, row_major, sample_axis, sizes_of
from trainlib.primitives.lowering.calls import box
from trainlib.primitives.lowering.kernel_call import Piece
from trainlib.primitives.shapes.box_copies import Walk, check_rank, walk_call


class _Schema(LayerSchema):
    axes: Annotated[list[NotNegative], Field(min_length=1)]
    """Axes of a sample that are turned round."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    axes = tuple(sorted(sample_axis(axis, shape, where) for axis in attributes["axes"]))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"axes {list(axes)} contain an axis twice", where=where, cure="name every axis once")
    check_rank(shape, where)
    return LayerPlan(shape, attributes={"axes": axes})


class _Lowering(LeadingBoxes):
    """FW and IG alike: a box of the result is the mirrored box of the source, in one fork."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """The last element of every axis that is turned round is read first."""
        (source,), (target,) = op.reads, op.writes
        turned = tuple(1 + axis for axis in op.attributes["axes"])
        whole = tensors[op[target]]
        region = leading_region(whole.shape, ranges)
        taken = tuple(
            (size - stop, size - start) if axis in turned else (start, stop)
            for axis, (size, (start, stop)) in enumerate(zip(whole.shape, region, strict=True))
        )
        shape = sizes_of(region)
        strides = row_major(shape)
        first = sum((shape[axis] - 1) * strides[axis] for axis in turned)
        back = tuple(-stride if axis in turned else stride for axis, stride in enumerate(strides))

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            return (np.flip(arrays[0], turned).copy(),)

        walk, pieces = Walk(shape, back, strides), (Piece(source, first=first), Piece(target))
        call = walk_call(choice, walk, pieces, (source,), (target,), function, whole.dtype)
        return TileTask((box(op, source, *taken),), (box(op, target, *region),), (), (call,))


def _mirrored(op: Op, array: Array) -> Array:
    """By numbers of elements, counted down."""
    for axis in op.attributes["axes"]:
        array = np.take(array, range(array.shape[1 + axis] - 1, -1, -1), axis=1 + axis)
    return array


PRIMITIVE = LayerPrimitive(
    name="flip",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x -> y", lambda op, values: {"y": _mirrored(op, values["x"])}, _Lowering()),
        Step.of("IG", "dy -> dx", lambda op, values: {"dx": _mirrored(op, values["dy"])}, _Lowering()),
    ),
    examples=(
        Example({"axes": [0]}, ((7,),)),
        Example({"axes": [0]}, ((5, 3),)),
        Example({"axes": [1, 2]}, ((2, 4, 5),)),
    ),
)
