# SPDX-License-Identifier: Apache-2.0
"""A trained token before a sequence: y = (w, x_0, x_1, ...), the class token of a vision transformer.

dw is the first token of dy summed over the batch, dx the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import KernelChoice, Ranges, StepLowering, Tensors, TileTask, part
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Parameter, Step, Values
from trainlib.primitives.elementwise.position import START
from trainlib.primitives.lowering.boxes import sequence_of
from trainlib.primitives.lowering.calls import batch_extent, batch_range, box
from trainlib.primitives.lowering.pieces import Piece, TileBuilder
from trainlib.primitives.shapes.box_copies import ShiftLowering


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, length, features = sequence_of(inputs[0], "class_token", where)
    return LayerPlan((batch, length + 1, features), {"w": Parameter((features,), START)})


class _Forward(StepLowering):
    """FW: samples, tokens and features may be cut; the first tokens of a sample hold w."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        batch, length, features = tensors[op["y"]].shape
        return {**batch_extent(batch), "tokens": length, "features": features}

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        build = TileBuilder(choice, tensors[op["y"]].dtype)
        samples = batch_range(ranges, tensors[op["y"]].shape[0])
        (first, last), wanted = ranges["tokens"], ranges["features"]
        taken, width = (max(first - 1, 0), last - 1), wanted[1] - wanted[0]
        count, has_token = taken[1] - taken[0], first == 0
        inputs = [box(op, "x", samples, taken, wanted)] if count else []
        if has_token:
            inputs.append(box(op, "w", wanted))
        for sample in range(samples[1] - samples[0]):
            y = Piece(part("y", sample), (last - first, width), 0)
            if has_token:
                build.copy(Piece("w", (width,)), y.row(0))
            if count:
                build.copy(Piece(part("x", sample), (count, width)), y.rows(int(has_token), last - first))
        return build.task(inputs, (box(op, "y", samples, (first, last), wanted),))


class _WeightGradient(StepLowering):
    """WG: features may be cut, and the sum over the batch."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        return {"features": tensors[op["dw"]].shape[0]}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        return batch_extent(tensors[op["dy"]].shape[0])

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        samples, wanted = batch_range(ranges, tensors[op["dy"]].shape[0]), ranges["features"]
        shape = (samples[1] - samples[0], wanted[1] - wanted[0])
        build = TileBuilder(choice, tensors[op["dw"]].dtype)
        build.column_sum(Piece("dy", shape), Piece("dw", shape[1:]))
        return build.task((box(op, "dy", samples, (0, 1), wanted),), (box(op, "dw", wanted),))


def _reference(op: Op, values: Values) -> Values:
    x, w = values["x"], values["w"]
    return {"y": np.concatenate([np.broadcast_to(w, (len(x), 1, len(w))), x], axis=1)}


PRIMITIVE = LayerPrimitive(
    name="class_token",
    schema=LayerSchema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w -> y", _reference, _Forward()),
        Step.of(
            "WG", "dy -> dw", lambda op, values: {"dw": values["dy"][:, 0].sum(axis=0)}, _WeightGradient()
        ),
        Step.of(
            "IG",
            "dy -> dx",
            lambda op, values: {"dx": values["dy"][:, 1:]},
            ShiftLowering(lambda op: (-1, 0), lambda op: 0.0),
        ),
    ),
    examples=(Example(inputs=((5, 4),), batches=(1, 3)), Example(inputs=((1, 1),))),
    layouts=None,
)
