# SPDX-License-Identifier: Apache-2.0
"""RMS norm (Zhang and Sennrich 2019): x / sqrt(mean x² + eps) · w over rows of the last `axes` dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainlib.ir.graph import Tensor
from trainlib.primitives.definition import DrawnInput, Example, LayerPlan, LayerPrimitive, Positive, Refused
from trainlib.primitives.norms.norm import StepwiseSchema, norm_plan
from trainlib.primitives.norms.norm_steps import NORM_STEPS


class _Schema(StepwiseSchema):
    axes: Positive = 1
    """How many of the last axes are normalised together."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    return norm_plan(
        "row",
        attributes,
        inputs,
        where,
        trailing=attributes["axes"],
        centred=False,
        biased=False,
        stepwise=attributes["stepwise"],
    )


PRIMITIVE = LayerPrimitive(
    name="rms_norm",
    schema=_Schema,
    plan=_plan,
    steps=NORM_STEPS,
    examples=(
        Example({}, ((7, 6),)),
        Example({"eps": 0.001}, (DrawnInput((9,), low=1.0, high=4.0),)),
        Example({"axes": 2}, ((2, 3, 4),)),
        Example({"affine": False}, ((3, 5),)),
        Example({"stepwise": True}, ((7, 6),)),
        Example({"axes": 3, "affine": False, "stepwise": True}, ((2, 3, 4),)),
    ),
    refused=(
        Refused({"axes": 3}, ((4, 5),), "cannot normalise over 3 dimensions"),
        Refused({"eps": 0.0}, ((4, 5),), "eps"),
    ),
)
