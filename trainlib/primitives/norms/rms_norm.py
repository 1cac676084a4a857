# SPDX-License-Identifier: Apache-2.0
"""RMS norm (Zhang and Sennrich 2019): x / sqrt(mean x² + eps) · w over rows of the last `axes` dimensions."""

from __future__ import annotations

from functools import partial

from trainlib.primitives.definition import DrawnInput, Example, LayerPrimitive, Positive
from trainlib.primitives.norms.norm import StepwiseSchema, norm_plan
from trainlib.primitives.norms.norm_steps import NORM_STEPS


class _Schema(StepwiseSchema):
    axes: Positive = 1
    """How many of the last axes are normalised together."""


PRIMITIVE = LayerPrimitive(
    name="rms_norm",
    schema=_Schema,
    plan=partial(norm_plan, "row", centred=False),
    steps=NORM_STEPS,
    examples=(
        Example({}, ((7, 6),)),
        Example({"eps": 0.001}, (DrawnInput((9,), low=1.0, high=4.0),)),
        Example({"axes": 2}, ((2, 3, 4),)),
        Example({"affine": False}, ((3, 5),)),
        Example({"stepwise": True}, ((7, 6),)),
        Example({"axes": 3, "affine": False, "stepwise": True}, ((2, 3, 4),)),
    ),
)
