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
from trainlib.ir.access import Index, Term
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Tensors
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, NotNegative, Step, Values
from trainlib.primitives.lowering.axes import Axes, Form, LeadingBoxes
from trainlib.primitives.lowering.boxes import sample_axis
from trainlib.primitives.shapes.box_copies import Copy, check_rank


class _Schema(LayerSchema):
    axes: Annotated[list[NotNegative], Field(min_length=1)]
    """Axes of a sample along which the order is reversed."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    axes = tuple(sorted(sample_axis(axis, shape, where) for axis in attributes["axes"]))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"axes {list(axes)} name an axis twice", where=where, cure="name every axis once")
    check_rank(shape, where)
    return LayerPlan(shape, attributes={"axes": axes})


class _Lowering(LeadingBoxes):
    """FW and IG alike: a box of the result is the mirrored box of the source, in one fork."""

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Some of the source are turned round."""
        turned = op.attributes["axes"] if role in op.reads else ()
        axes = super().axes_of(op, tensors, role)
        return tuple(f"{name} turned" if place - 1 in turned else name for place, name in enumerate(axes))

    def maps(self, op: Op, tensors: Tensors) -> Mapping[str, Index]:
        """Counted from the end."""
        sizes = {f"d{axis}": tensors[op.outputs[0]].shape[1 + axis] for axis in op.attributes["axes"]}
        return {
            f"{name} turned": Index(name, size, (Term(name, -1),), size - 1) for name, size in sizes.items()
        }

    def kernels(self, form: Form) -> Sequence[Copy]:
        """The last element of every axis that is turned round is read first."""
        return (Copy(form.op.writes[0], form.op.reads),)


def _mirrored(op: Op, values: Values) -> Values:
    """By numbers of elements, counted down."""
    array = values[op.reads[0]]
    for axis in op.attributes["axes"]:
        array = np.take(array, range(array.shape[1 + axis] - 1, -1, -1), axis=1 + axis)
    return {op.writes[0]: array}


PRIMITIVE = LayerPrimitive(
    name="flip",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x -> y", _mirrored, _Lowering()),
        Step.of("IG", "dy -> dx", _mirrored, _Lowering()),
    ),
    examples=(
        Example({"axes": [0]}, ((7,),)),
        Example({"axes": [0]}, ((5, 3),)),
        Example({"axes": [1, 2]}, ((2, 4, 5),)),
    ),
)
