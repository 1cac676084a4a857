# SPDX-License-Identifier: Apache-2.0
"""A parameter as a tensor of the network: y = w for every sample, dw is dy summed over the batch.

The input, that of the network, only says how many samples there are: it has no gradient. Frozen
(`trainable: false`) it is a constant: a mask of attention, a table of positions, whatever an imported graph
has as an operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.dtypes import INT32
from configs.model_file import LayerSchema
from trainlib.ir.graph import Initial, Op, Tensor
from trainlib.primitives.definition import (
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    Output,
    Parameter,
    Positive,
    Step,
    Values,
)
from trainlib.primitives.elementwise.position import START, PositionForward, PositionGradient

COUNTED = DrawnInput((1,), INT32, low=0, high=9)
"""An input that has no gradient."""


class _Schema(LayerSchema):
    shape: Annotated[list[Positive], Field(min_length=1)]
    """Shape of the trained tensor, without a batch."""
    once: bool = False
    """One sample, whatever the batch: for a weight that further layers compute (`weights_of`)."""
    integers: bool = False
    """Whole numbers that nothing trains: rows of a table, for an `embedding`."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, shape = 1 if attributes["once"] else inputs[0].shape[0], tuple(attributes["shape"])
    integers = Parameter(shape, Initial(), trainable=False, dtype=INT32)
    weight = integers if attributes["integers"] else Parameter(shape, START)
    return LayerPlan(Output((batch, *shape), weight.dtype), {"w": weight}, attributes={"batch": batch})


def _reference(op: Op, values: Values) -> Values:
    w = values["w"]
    return {"y": np.broadcast_to(w, (op.attributes["batch"], *w.shape))}


PRIMITIVE = LayerPrimitive(
    name="parameter",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "w -> y", _reference, PositionForward()),
        Step.of("WG", "dy -> dw", lambda op, values: {"dw": values["dy"].sum(axis=0)}, PositionGradient()),
    ),
    examples=(
        Example({"shape": [5, 4]}, (COUNTED,), batches=(1, 3)),
        Example({"shape": [7]}, (COUNTED,), batches=(1, 2)),
        Example({"shape": [3, 2], "once": True}, (COUNTED,), batches=(1, 2)),
        Example({"shape": [6], "integers": True}, (COUNTED,), batches=(2,)),
    ),
    layouts=None,
)
