# SPDX-License-Identifier: Apache-2.0
"""Group norm: groups of neighbouring channels of every sample over their space; w and b per channel."""

from __future__ import annotations

from functools import partial

from trainlib.primitives.definition import DrawnInput, Example, LayerPrimitive, Positive
from trainlib.primitives.norms.norm import StepwiseSchema, norm_plan
from trainlib.primitives.norms.norm_steps import NORM_STEPS


class _Schema(StepwiseSchema):
    groups: Positive
    """Groups the channels are divided into; each is normalised by its own statistics."""


PRIMITIVE = LayerPrimitive(
    name="group_norm",
    schema=_Schema,
    plan=partial(norm_plan, "group"),
    steps=NORM_STEPS,
    examples=(
        Example({"groups": 2}, ((4, 3, 3),)),
        Example({"groups": 1, "eps": 0.01}, (DrawnInput((6,), low=-3.0, high=3.0),)),
        Example({"groups": 3, "affine": False}, ((6, 2, 2),)),
        Example({"groups": 4}, ((4, 2, 4),)),
        Example({"groups": 2, "stepwise": True}, ((4, 3, 3),)),
        Example({"groups": 3, "affine": False, "stepwise": True}, ((6, 2, 2),)),
    ),
)
