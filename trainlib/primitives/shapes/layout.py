# SPDX-License-Identifier: Apache-2.0
"""Change of layout of an image: CHW to HWC or back, by a transpose per sample; the builder inserts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import KernelChoice, Ranges, Tensors, TileTask, part
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Output, Step, Values
from trainlib.primitives.lowering.calls import NoMatmul, batch_extent, batch_range, box, transpose_call
from trainlib.primitives.lowering.kernel_call import Piece


class _Schema(LayerSchema):
    to: Literal["CHW", "HWC"]
    """Order of the axes of the output."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    if len(inputs[0].shape) != 4:
        raise ShapeError(
            f"the input has shape {inputs[0].shape}, but images are needed: (batch, channels, height, width)",
            where=where,
        )
    samples, first, second, third = inputs[0].shape
    to_hwc = attributes["to"] == "HWC"
    shape = (samples, second, third, first) if to_hwc else (samples, third, first, second)
    return LayerPlan(Output(shape, layout=attributes["to"]), attributes={"to_hwc": to_hwc})


class _Lowering(NoMatmul):
    """A sample [rows, columns] becomes [columns, rows]; only the batch may be cut."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        return batch_extent(tensors[op.outputs[0]].shape[0])

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        (source,), (target,) = op.reads, op.writes
        before, after = tensors[op[source]], tensors[op[target]]
        samples = batch_range(ranges, before.shape[0])
        # The channels are the first dimension of CHW and the last of HWC.
        channels_first = op.attributes["to_hwc"] == (op.step == "FW")
        rows = before.shape[1] if channels_first else before.shape[1] * before.shape[2]
        columns = int(np.prod(before.shape[1:])) // rows
        calls = [
            transpose_call(
                choice,
                Piece(part(source, number), (rows, columns)),
                Piece(part(target, number), after.shape[1:]),
                before.dtype,
            )
            for number in range(samples[1] - samples[0])
        ]
        inner_before = tuple((0, size) for size in before.shape[1:])
        inner_after = tuple((0, size) for size in after.shape[1:])
        return TileTask(
            (box(op, source, samples, *inner_before),),
            (box(op, target, samples, *inner_after),),
            (),
            tuple(calls),
        )


def _permuted(op: Op, array: Any) -> Any:
    channels_first = op.attributes["to_hwc"] == (op.step == "FW")
    return np.moveaxis(array, 1, 3) if channels_first else np.moveaxis(array, 3, 1)


def _forward(op: Op, values: Values) -> Values:
    return {"y": np.ascontiguousarray(_permuted(op, values["x"]))}


def _backward(op: Op, values: Values) -> Values:
    return {"dx": np.ascontiguousarray(_permuted(op, values["dy"]))}


PRIMITIVE = LayerPrimitive(
    name="layout",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x -> y", _forward, _Lowering()),
        Step.of("IG", "dy -> dx", _backward, _Lowering()),
    ),
    examples=(Example({"to": "HWC"}, ((3, 4, 5),)), Example({"to": "CHW"}, ((4, 5, 3),))),
    internal=True,
    layouts=None,
)
