# SPDX-License-Identifier: Apache-2.0
"""Flatten: a view. The output is each sample's bytes as a vector; no op, no cycles, no copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from configs.model_file import LayerSchema
from trainlib.ir.graph import Tensor
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    samples, *sample = inputs[0].shape
    return LayerPlan((samples, prod(sample)))


PRIMITIVE = LayerPrimitive(
    name="flatten",
    schema=LayerSchema,
    plan=_plan,
    steps=(),
    examples=(Example(inputs=((2, 3, 4),)), Example(inputs=((5,),))),
)
