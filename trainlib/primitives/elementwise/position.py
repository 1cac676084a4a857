# SPDX-License-Identifier: Apache-2.0
"""A trained tensor added to every sample: y = x + w, as the positional embedding of a transformer.

dw is dy summed over the batch, dx is dy itself: a view, no op. It starts as normal numbers of the standard
deviation that ViT uses (Dosovitskiy et al. 2021: 0.02).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Initial, Op, Tensor
from trainlib.ir.steps import KernelChoice, Ranges, Tensors, TileTask, part
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Parameter, Step, Values
from trainlib.primitives.lowering.boxes import CUT_DIMENSIONS, LeadingBoxes, leading_region, sizes_of
from trainlib.primitives.lowering.calls import VECTOR_ADD, NoMatmul, batch_extent, box
from trainlib.primitives.lowering.pieces import Piece, TileBuilder

START = Initial("normal", 0.02)


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    if len(shape) < 2:
        raise ShapeError(
            f"position needs an input with a dimension after the batch, but its shape is {shape}", where=where
        )
    return LayerPlan(shape, {"w": Parameter(shape[1:], START)})


class PositionForward(LeadingBoxes):
    """FW: any box of y; w is read once for all samples of a tile, and added to x if there is one."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """A fork for each sample."""
        region = leading_region(tensors[op["y"]].shape, ranges)
        samples, *inner = sizes_of(region)
        dtype = tensors[op["y"]].dtype
        build, w = TileBuilder(choice, dtype), Piece("w", tuple(inner), dtype=dtype)
        for sample in range(samples):
            x, y = (Piece(part(role, sample), w.shape, dtype=dtype) for role in "xy")
            if "x" in op:
                arrays = {"X": x, "G": w, "Y": y}
                build.run(VECTOR_ADD, arrays, (x, w), (y,), np.add, elements=prod(inner))
            else:
                build.copy(w, y)
        boxes = {role: box(op, role, *(region[1:] if role == "w" else region)) for role in op.roles}
        return build.task([boxes[role] for role in op.reads], (boxes["y"],))


class PositionGradient(NoMatmul):
    """WG: any box of dw; the batch is summed and may be cut."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The first two dimensions of dw."""
        shape = tensors[op["dw"]].shape
        return {f"d{axis}": size for axis, size in enumerate(shape[:CUT_DIMENSIONS])}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples."""
        return batch_extent(tensors[op["dy"]].shape[0])

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """One fork."""
        region = leading_region(tensors[op["dy"]].shape, ranges)
        samples, *inner = sizes_of(region)
        build = TileBuilder(choice, tensors[op["dw"]].dtype)
        build.column_sum(Piece("dy", (samples, prod(inner))), Piece("dw", tuple(inner)))
        return build.task((box(op, "dy", *region),), (box(op, "dw", *region[1:]),))


def _reference(op: Op, values: Values) -> Values:
    return {"y": values["x"] + values["w"][None]}


PRIMITIVE = LayerPrimitive(
    name="position",
    schema=LayerSchema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w -> y", _reference, PositionForward()),
        Step.of("WG", "dy -> dw", lambda op, values: {"dw": values["dy"].sum(axis=0)}, PositionGradient()),
    ),
    examples=(
        Example(inputs=((5, 4),), batches=(1, 3)),
        Example(inputs=((7,),), batches=(1, 2)),
        Example(inputs=((2, 3, 5),), batches=(2,)),
    ),
    layouts=None,
)
