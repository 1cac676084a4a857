# SPDX-License-Identifier: Apache-2.0
"""Flatten: a view. The output is each sample's bytes as a vector; no op, no cycles, no copy."""

from __future__ import annotations

from math import prod

from configs.model_file import LayerSchema
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive

PRIMITIVE = LayerPrimitive(
    name="flatten",
    schema=LayerSchema,
    plan=lambda _, inputs, where: LayerPlan((inputs[0].shape[0], prod(inputs[0].shape[1:]))),
    steps=(),
    examples=(Example(inputs=((2, 3, 4),)), Example(inputs=((5,),))),
)
