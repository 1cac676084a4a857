# SPDX-License-Identifier: Apache-2.0
"""Instance norm: every channel of every sample over its space; with `running`, running statistics are kept.

As in PyTorch the running statistics are means over the batch, with an unbiased variance; prediction uses them
where there are any. `fixed_statistics` normalises with them in training too (PULP-TrainLib's
`freeze_running_params`), and then there is no sum for `stepwise` to take apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import ShapeError
from trainlib.ir.graph import Tensor
from trainlib.primitives.definition import DrawnInput, Example, LayerPlan, LayerPrimitive
from trainlib.primitives.norms.norm import RunningSchema, StepwiseSchema, norm_plan
from trainlib.primitives.norms.norm_steps import NORM_STEPS


class _Schema(RunningSchema, StepwiseSchema):
    running: bool = False
    """Keep running statistics, as a batch norm does."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    if len(shape) < 3:
        raise ShapeError(
            f"instance_norm needs channels of several elements, but its input has shape {shape[1:]}",
            where=where,
            cure="use layer_norm for a vector",
        )
    return norm_plan("group", attributes, inputs, where, groups=shape[1])


PRIMITIVE = LayerPrimitive(
    name="instance_norm",
    schema=_Schema,
    plan=_plan,
    steps=NORM_STEPS,
    examples=(
        Example({}, ((3, 4, 5),)),
        Example({"eps": 0.01}, (DrawnInput((2, 9), low=2.0, high=3.0),)),
        Example({"affine": False}, ((3, 3, 3),)),
        Example({"running": True, "momentum": 0.4}, ((3, 4, 3),)),
        Example({"fixed_statistics": True}, ((3, 4, 2),)),
        Example({"stepwise": True}, ((3, 4, 5),)),
        Example({"stepwise": True, "running": True, "momentum": 0.3, "affine": False}, ((2, 3, 4),)),
    ),
)
