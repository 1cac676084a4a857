"""Sum of two gradients of one tensor, as PULP-TrainLib's sum node: the builder inserts it where a tensor has
several users. The sum takes the place of the first where nothing else lies there.
"""

from __future__ import annotations

import numpy as np

from trainlib.graph import Op
from trainlib.primitives.definition import InternalPrimitive, Step, Values
from trainlib.primitives.lowering.calls import VECTOR_ADD, ElementwiseLowering
from trainlib.steps import Function


def _tile(op: Op) -> Function:
    return lambda arrays: (arrays[0] + arrays[1],)


def _reference(op: Op, values: Values) -> Values:
    return {"sum": np.sum([values["a"], values["b"]], axis=0)}


PRIMITIVE = InternalPrimitive(
    name="accumulate",
    step=Step("ACC", ("a", "b"), ("sum",), _reference, ElementwiseLowering(VECTOR_ADD, _tile)),
)
