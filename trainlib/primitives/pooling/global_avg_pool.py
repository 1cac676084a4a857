# SPDX-License-Identifier: Apache-2.0
"""Global average pooling: the mean of every channel, [N, C, H, W] to [N, C, 1, 1]."""

from __future__ import annotations

from configs.model_file import LayerSchema
from trainlib.primitives.definition import Example, LayerPrimitive
from trainlib.primitives.pooling.pooling import AVERAGE_BACKWARD, GLOBAL_AVERAGE, pooling_plan

PRIMITIVE = LayerPrimitive(
    name="global_avg_pool",
    schema=LayerSchema,
    plan=pooling_plan,
    steps=(GLOBAL_AVERAGE.step("FW", "x -> y"), AVERAGE_BACKWARD.step("IG", "dy -> dx")),
    examples=(Example({}, ((3, 4, 5),)), Example({}, ((5, 1, 1),)), Example({}, ((1, 6, 6),))),
)
