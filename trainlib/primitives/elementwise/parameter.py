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
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import KernelChoice, Ranges, Tensors, TileTask, part
from trainlib.primitives.definition import (
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    Parameter,
    Positive,
    Step,
    Values,
)
from trainlib.primitives.elementwise.position import START, PositionGradient
from trainlib.primitives.lowering.boxes import LeadingBoxes, leading_region, sizes_of
from trainlib.primitives.lowering.calls import box
from trainlib.primitives.lowering.pieces import Piece, TileBuilder

COUNTED = DrawnInput((1,), INT32, low=0, high=9)
"""An input that has no gradient."""


class _Schema(LayerSchema):
    shape: Annotated[list[Positive], Field(min_length=1)]
    """Shape of the trained tensor, without a batch."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, shape = inputs[0].shape[0], tuple(attributes["shape"])
    return LayerPlan((batch, *shape), {"w": Parameter(shape, START)}, attributes={"batch": batch})


class _Forward(LeadingBoxes):
    """FW: any box of y; w is read once for all samples of a tile."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        region = leading_region(tensors[op["y"]].shape, ranges)
        samples, *inner = sizes_of(region)
        build, w = TileBuilder(choice, tensors[op["y"]].dtype), Piece("w", tuple(inner))
        for sample in range(samples):
            build.copy(w, Piece(part("y", sample), w.shape))
        return build.task((box(op, "w", *region[1:]),), (box(op, "y", *region),))


def _reference(op: Op, values: Values) -> Values:
    w = values["w"]
    return {"y": np.broadcast_to(w, (op.attributes["batch"], *w.shape))}


PRIMITIVE = LayerPrimitive(
    name="parameter",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "w -> y", _reference, _Forward()),
        Step.of("WG", "dy -> dw", lambda op, values: {"dw": values["dy"].sum(axis=0)}, PositionGradient()),
    ),
    examples=(
        Example({"shape": [5, 4]}, (COUNTED,), batches=(1, 3)),
        Example({"shape": [7]}, (COUNTED,), batches=(1, 2)),
    ),
    layouts=None,
)
