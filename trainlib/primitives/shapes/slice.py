# SPDX-License-Identifier: Apache-2.0
"""Slice: elements [start, stop) along one axis of a sample; dx is dy with zeros before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.primitives.definition import (
    Example,
    LayerPlan,
    LayerPrimitive,
    NotNegative,
    Positive,
    Step,
    Values,
)
from trainlib.primitives.lowering.boxes import sample_axis
from trainlib.primitives.shapes.box_copies import ShiftLowering, check_rank


class _Schema(LayerSchema):
    axis: NotNegative = 0
    """Axis of a sample that is cut."""
    start: NotNegative = 0
    """First element that stays."""
    stop: Positive
    """First element after those that stay."""


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
    return LayerPlan(
        output, attributes={"axis": axis, "start": start, "stop": stop, "size": size, "rank": len(shape) - 1}
    )


def _shift(op: Op, sign: int) -> list[int]:
    rank, axis, start = op.attributes["rank"], op.attributes["axis"], op.attributes["start"]
    return [sign * start if dimension == axis else 0 for dimension in range(rank)]


def _forward(op: Op, values: Values) -> Values:
    kept = np.arange(op.attributes["start"], op.attributes["stop"])
    return {"y": np.take(values["x"], kept, axis=1 + op.attributes["axis"])}


def _backward(op: Op, values: Values) -> Values:
    dy, axis = values["dy"], 1 + op.attributes["axis"]
    widths = [(0, 0)] * dy.ndim
    widths[axis] = (op.attributes["start"], op.attributes["size"] - op.attributes["stop"])
    return {"dx": np.pad(dy, widths)}


PRIMITIVE = LayerPrimitive(
    name="slice",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x -> y", _forward, ShiftLowering(lambda op: _shift(op, -1), lambda op: 0.0)),
        Step.of("IG", "dy -> dx", _backward, ShiftLowering(lambda op: _shift(op, 1), lambda op: 0.0)),
    ),
    examples=(
        Example({"stop": 3}, ((7,),)),
        Example({"axis": 0, "start": 1, "stop": 3}, ((4, 3, 5),)),
        Example({"axis": 2, "start": 2, "stop": 5}, ((2, 3, 5),)),
    ),
)
