# SPDX-License-Identifier: Apache-2.0
"""Average pooling: y = sum of a window / (hk·wk), or / elements inside the image without `count_include_pad`.

Gradients of overlapping windows add up. See `trainlib.primitives.pooling.pooling`.
"""

from __future__ import annotations

from trainlib.primitives.definition import Example, LayerPrimitive
from trainlib.primitives.pooling.pooling import AVERAGE_BACKWARD, AVERAGE_FORWARD, PoolingSchema, pooling_plan


class _Schema(PoolingSchema):
    count_include_pad: bool = True
    """Whether padding counts as elements of the mean."""


PRIMITIVE = LayerPrimitive(
    name="avg_pool2d",
    schema=_Schema,
    plan=pooling_plan,
    steps=(AVERAGE_FORWARD.step("FW", "x -> y"), AVERAGE_BACKWARD.step("IG", "dy -> dx")),
    examples=(
        Example({"kernel": 2}, ((3, 6, 4),)),
        Example({"kernel": [3, 2], "stride": [2, 1], "padding": [1, 0]}, ((2, 5, 7),)),
        Example({"kernel": 3, "stride": 2, "padding": 1, "count_include_pad": False}, ((2, 6, 5),)),
        Example({"kernel": 2, "stride": 3}, ((1, 8, 9),)),
        Example({"kernel": 3, "stride": 2, "padding": [2, 0, 0, 1]}, ((2, 5, 6),)),
        Example({"kernel": 2, "padding": [0, 1, 0, 1], "count_include_pad": False}, ((2, 5, 5),)),
    ),
)
