# SPDX-License-Identifier: Apache-2.0
"""Layer norm: every row of the last `axes` dimensions; w and b per element of a row.

PULP-TrainLib has the forward step alone, with the variance as E[x²] - 2·E[x]·m + m², and writes past the end
where the cores do not divide the rows.
"""

from __future__ import annotations

from functools import partial

from trainlib.primitives.definition import DrawnInput, Example, LayerPrimitive, Positive
from trainlib.primitives.norms.norm import StepwiseSchema, norm_plan
from trainlib.primitives.norms.norm_steps import NORM_STEPS


class _Schema(StepwiseSchema):
    axes: Positive = 1
    """How many of the last axes are normalised together."""
    bias: bool = True
    """Whether there is an offset b beside the scale w."""


PRIMITIVE = LayerPrimitive(
    name="layer_norm",
    schema=_Schema,
    plan=partial(norm_plan, "row"),
    steps=NORM_STEPS,
    examples=(
        Example({}, ((7, 6),)),
        Example({"bias": False, "eps": 0.001}, (DrawnInput((9,), low=1.0, high=4.0),)),
        Example({"axes": 3}, ((2, 3, 4),)),
        Example({"axes": 2, "affine": False}, ((3, 2, 5),)),
        Example({"stepwise": True}, ((7, 6),)),
        Example({"axes": 2, "bias": False, "stepwise": True}, ((3, 4, 5),)),
    ),
)
