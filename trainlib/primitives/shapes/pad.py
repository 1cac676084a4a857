# SPDX-License-Identifier: Apache-2.0
"""Padding with a constant, before and after, along any dimensions of a sample; dx is dy without the rim.

`pads` has a pair per dimension of a sample, first dimension first. PULP-TrainLib's own loop is right only for
a rim of 1 at the left and top, and every core does all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Tensor
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, NotNegative
from trainlib.primitives.shapes.box_copies import SHIFTED, SHIFTED_BACK, check_rank


class _Schema(LayerSchema):
    pads: list[Annotated[list[NotNegative], Field(min_length=2, max_length=2)]]
    """[before, after] for every axis of a sample."""
    value: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """Value of the added elements."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    pads = tuple((before, after) for before, after in attributes["pads"])
    if len(pads) != len(shape) - 1:
        raise ShapeError(
            f"the number of pairs is {len(pads)}, but a sample of shape {shape[1:]} needs {len(shape) - 1}",
            where=where,
            cure="use one pair [before, after] per dimension; [0, 0] adds nothing",
        )
    check_rank(shape, where)
    padded = tuple(size + sum(pair) for size, pair in zip(shape[1:], pads, strict=True))
    return LayerPlan((shape[0], *padded), attributes={"pads": pads, "value": attributes["value"]})


PRIMITIVE = LayerPrimitive(
    name="pad",
    schema=_Schema,
    plan=_plan,
    steps=(SHIFTED, SHIFTED_BACK),
    examples=(
        Example({"pads": [[0, 0], [1, 1], [1, 1]]}, ((2, 3, 3),)),
        Example({"pads": [[0, 0], [2, 1], [3, 0]], "value": 0.5}, ((2, 3, 4),)),
        Example({"pads": [[4, 2]]}, ((5,),)),
        Example({"pads": [[1, 0], [0, 2]]}, ((2, 3),)),
    ),
)
