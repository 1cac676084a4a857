# SPDX-License-Identifier: Apache-2.0
"""Concatenation of two or more tensors along an axis of the sample; each gets its part of dy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, NotNegative, Step, Values
from trainlib.primitives.lowering.boxes import sample_axis
from trainlib.primitives.shapes.box_copies import check_rank
from trainlib.primitives.shapes.joining import Join, Split, piece_number, piece_offsets

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


def _forward(op: Op, values: Values) -> Values:
    pieces = [values[role] for role in op.reads]
    return {"y": np.concatenate(pieces, axis=1 + op.attributes["axis"])}


def _backward(op: Op, values: Values) -> Values:
    sizes, axis = op.attributes["sizes"], 1 + op.attributes["axis"]
    pieces = np.split(values["dy"], piece_offsets(sizes)[1:], axis=axis)
    return {role: pieces[piece_number(role)] for role in op.writes}


PRIMITIVE = LayerPrimitive(
    name="concat",
    schema=_Schema,
    plan=_plan,
    steps=(Step.of("FW", "x* -> y", _forward, Join()), Step.of("IG", "dy -> dx*", _backward, Split())),
    examples=(
        Example(inputs=((3,), (5,))),
        Example(inputs=((2, 4, 3), (1, 4, 3), (3, 4, 3))),
        Example({"axis": 2}, ((2, 3, 4), (2, 3, 1))),
    ),
    inputs=(2, MOST_INPUTS),
)
