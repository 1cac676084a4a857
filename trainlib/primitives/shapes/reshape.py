# SPDX-License-Identifier: Apache-2.0
"""Reshape: a view of each sample in another shape, -1 standing for what is left; no op and no copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Any

from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from configs.values import replace
from trainlib.ir.graph import Tensor
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive


class _Schema(LayerSchema):
    shape: Annotated[list[Annotated[int, Field(ge=-1)]], Field(min_length=1)]
    """New shape of a sample; one size may be -1 and follows from the others."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    samples, *sample = inputs[0].shape
    wanted, elements = list(attributes["shape"]), prod(sample)
    if wanted.count(-1) > 1 or 0 in wanted:
        raise ShapeError(
            f"shape {wanted} has a size of 0, or -1 more than once",
            where=where,
            cure="use sizes of at least 1, and at most one -1",
        )
    if -1 in wanted:
        wanted[wanted.index(-1)] = max(1, elements // prod(size for size in wanted if size > 0))
    if prod(wanted) != elements:
        raise ShapeError(
            f"cannot reshape {tuple(sample)} to {attributes['shape']}",
            where=where,
            cure=f"use a shape of {elements} elements",
        )
    return LayerPlan((samples, *wanted), attributes={"shape": tuple(wanted)})


PRIMITIVE = LayerPrimitive(
    name="reshape",
    schema=_Schema,
    plan=_plan,
    steps=(),
    examples=(Example({"shape": [4, 6]}, ((2, 3, 4),)), Example({"shape": [2, -1, 2]}, ((12,),))),
)

AS_PARAMETER = replace(PRIMITIVE, name="as_parameter", examples=(), internal=True)
"""An output of one sample as a parameter of another layer, which has no batch: the builder puts it in."""
