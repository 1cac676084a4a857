# SPDX-License-Identifier: Apache-2.0
"""Sum of two gradients of one tensor, as PULP-TrainLib's sum node: the builder inserts it where a tensor has
several users. The sum takes the place of the first where nothing else lies there. The library now runs it
with its general loop for two shapes, which is the variant as-published.
"""

from __future__ import annotations

import numpy as np

from trainlib.primitives.definition import AS_PUBLISHED, InternalPrimitive, Step, Variant
from trainlib.primitives.lowering.calls import BROADCAST_ADD, VECTOR_ADD
from trainlib.primitives.lowering.elementwise import ElementwiseLowering, VectorLoop


def _sum(nest: str) -> ElementwiseLowering:
    loop = VectorLoop(
        nest, ("a", "b", "sum"), ("a", "b"), ("sum",), lambda op, values: {"sum": values["a"] + values["b"]}
    )
    return ElementwiseLowering(lambda op: (loop,), takes_over=True)


PRIMITIVE = InternalPrimitive(
    name="accumulate",
    step=Step.of(
        "ACC",
        "a b -> sum",
        lambda op, values: {"sum": np.sum([values["a"], values["b"]], axis=0)},
        _sum(VECTOR_ADD),
        {AS_PUBLISHED: Variant(_sum(BROADCAST_ADD))},
    ),
)
