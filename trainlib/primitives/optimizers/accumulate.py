"""Sum of two gradients of one tensor, as PULP-TrainLib's sum node: the builder inserts it where a tensor has
several users. The sum takes the place of the first where nothing else lies there.
"""

from __future__ import annotations

import numpy as np

from trainlib.primitives.definition import InternalPrimitive, Step
from trainlib.primitives.lowering.calls import VECTOR_ADD
from trainlib.primitives.lowering.elementwise import ElementwiseLowering, VectorLoop

_LOOP = VectorLoop(
    VECTOR_ADD, ("a", "b", "sum"), ("a", "b"), ("sum",), lambda op, values: {"sum": values["a"] + values["b"]}
)

PRIMITIVE = InternalPrimitive(
    name="accumulate",
    step=Step(
        "ACC",
        ("a", "b"),
        ("sum",),
        lambda op, values: {"sum": np.sum([values["a"], values["b"]], axis=0)},
        ElementwiseLowering(lambda op: (_LOOP,), takes_over=True),
    ),
)
