# SPDX-License-Identifier: Apache-2.0
"""Slice: elements [start, stop) along one axis of a sample; dx is dy with zeros before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Tensor
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, NotNegative, Positive
from trainlib.primitives.lowering.boxes import sample_axis
from trainlib.primitives.shapes.box_copies import SHIFTED, SHIFTED_BACK, check_rank


class _Schema(LayerSchema):
    axis: NotNegative = 0
    """Axis of a sample that is cut."""
    start: NotNegative = 0
    """First element that is selected."""
    stop: Positive
    """First element after the selected ones."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    axis, start, stop = sample_axis(attributes["axis"], shape, where), attributes["start"], attributes["stop"]
    size = shape[1 + axis]
    if not start < stop <= size:
        raise ShapeError(
            f"start {start} and stop {stop} do not define a slice of axis {axis}, which has {size} elements",
            where=where,
            cure=f"use 0 <= start < stop <= {size}; stop is not included",
        )
    check_rank(shape, where)
    output = (*shape[: 1 + axis], stop - start, *shape[2 + axis :])
    pads = [(0, 0)] * (len(shape) - 1)
    pads[axis] = (-start, stop - size)
    said = {"axis": axis, "start": start, "stop": stop}
    return LayerPlan(output, attributes={**said, "pads": tuple(pads)})


PRIMITIVE = LayerPrimitive(
    name="slice",
    schema=_Schema,
    plan=_plan,
    steps=(SHIFTED, SHIFTED_BACK),
    examples=(
        Example({"stop": 3}, ((7,),)),
        Example({"axis": 0, "start": 1, "stop": 3}, ((4, 3, 5),)),
        Example({"axis": 2, "start": 2, "stop": 5}, ((2, 3, 5),)),
    ),
)
