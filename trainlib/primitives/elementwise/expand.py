# SPDX-License-Identifier: Apache-2.0
"""A sample repeated to a larger shape by NumPy's rules; dx is dy summed over what was repeated.

The batch comes first and stays. Sums of two tensors have `broadcast_add`, which makes no larger copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Positive, Step, Values
from trainlib.primitives.elementwise.broadcast_add import Repeating, gradient_step
from trainlib.primitives.lowering.axes import Form
from trainlib.primitives.shapes.box_copies import Copy, check_rank


class _Schema(LayerSchema):
    shape: Annotated[list[Positive], Field(min_length=1)]
    """Shape of a sample of the result, without the batch."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, *sample = inputs[0].shape
    wanted = tuple(attributes["shape"])
    try:
        fits = np.broadcast_shapes(tuple(sample), wanted) == wanted
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"cannot expand {tuple(sample)} to {list(wanted)}: only dimensions of size 1 can grow",
            where=where,
            cure="leave all other sizes unchanged (shapes are aligned at the last dimension)",
        )
    output = (batch, *wanted)
    check_rank(output, where)
    return LayerPlan(output, attributes={"shape": output, "left": tuple(sample)})


class _Forward(Repeating):
    """FW: boxes of y, with what of x they repeat."""

    def kernels(self, form: Form) -> Sequence[Copy]:
        """A copy with strides."""
        return (Copy("y", ("x",)),)


def _forward(op: Op, values: Values) -> Values:
    x, shape = values["x"], op.attributes["shape"][1:]
    return {"y": np.stack([np.broadcast_to(sample, shape) for sample in x])}


PRIMITIVE = LayerPrimitive(
    name="expand",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x -> y", _forward, _Forward()),
        gradient_step("IG", "dx", "left"),
    ),
    examples=(
        Example({"shape": [3, 4, 5]}, ((3, 1, 1),)),
        Example({"shape": [2, 3, 4]}, ((4,),)),
        Example({"shape": [6]}, ((1,),)),
        Example({"shape": [4, 3]}, ((4, 3),)),
    ),
    layouts=None,
)
