# SPDX-License-Identifier: Apache-2.0
"""Concatenation of two or more tensors along an axis of the sample; each gets its part of dy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Tensor
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, NotNegative
from trainlib.primitives.lowering.boxes import sample_axis
from trainlib.primitives.shapes.box_copies import check_rank
from trainlib.primitives.shapes.joining import join, split

MOST_INPUTS = 64
"""How many tensors one layer may join."""


class _Schema(LayerSchema):
    axis: NotNegative = 0
    """Axis of a sample along which the inputs are joined."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shapes = [tensor.shape for tensor in inputs]
    axis = sample_axis(attributes["axis"], shapes[0], where)
    check_rank(shapes[0], where)
    rests = [shape[: 1 + axis] + shape[2 + axis :] for shape in shapes]
    for shape, rest in zip(shapes, rests, strict=True):
        if len(shape) != len(shapes[0]) or rest != rests[0]:
            raise ShapeError(
                f"cannot join {shape[1:]} to {shapes[0][1:]} along axis {axis}",
                where=where,
                cure=f"use shapes that differ along axis {axis} only",
            )
    sizes = tuple(shape[1 + axis] for shape in shapes)
    output = (*shapes[0][: 1 + axis], sum(sizes), *shapes[0][2 + axis :])
    return LayerPlan(output, attributes={"axis": axis, "sizes": sizes})


PRIMITIVE = LayerPrimitive(
    name="concat",
    schema=_Schema,
    plan=_plan,
    steps=(join("FW", "x* -> y"), split("IG", "dy -> dx*")),
    examples=(
        Example(inputs=((3,), (5,))),
        Example(inputs=((2, 4, 3), (1, 4, 3), (3, 4, 3))),
        Example({"axis": 2}, ((2, 3, 4), (2, 3, 1))),
    ),
    inputs=(2, MOST_INPUTS),
)
