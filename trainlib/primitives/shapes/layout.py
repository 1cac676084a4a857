# SPDX-License-Identifier: Apache-2.0
"""Change of layout of an image: CHW to HWC or back, by a transpose per sample; the builder inserts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Tensors
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Output, Step, Values
from trainlib.primitives.lowering.axes import Axes, AxesLowering, Form
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.forks import EVERY, Fork


class _Schema(LayerSchema):
    to: Literal["CHW", "HWC"]
    """Order of the axes of the output."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    if len(inputs[0].shape) != 4:
        raise ShapeError(
            f"the input must be images, but has shape {inputs[0].shape}",
            where=where,
            cure="use shape (batch, channels, height, width)",
        )
    samples, first, second, third = inputs[0].shape
    to_hwc = attributes["to"] == "HWC"
    shape = (samples, second, third, first) if to_hwc else (samples, third, first, second)
    return LayerPlan(Output(shape, layout=attributes["to"]), attributes={"to_hwc": to_hwc})


class _Lowering(AxesLowering):
    """A sample [rows, columns] becomes [columns, rows]; only the batch may be cut."""

    kept = (BATCH,)

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """The channels are the first dimension of CHW and the last of HWC."""
        first = op.attributes["to_hwc"] == ((op.step == "FW") == (role in op.reads))
        return (BATCH, "c", "h", "w") if first else (BATCH, "h", "w", "c")

    def kernels(self, form: Form) -> Sequence[Fork]:
        """A transposition per sample."""
        (source,), (target,) = form.op.reads, form.op.writes
        first, image = form.axes(source)[1] == "c", ("h", "w")
        sizes: dict[str, Axes] = {"N": ("c",), "M": image} if first else {"N": image, "M": ("c",)}
        buffers, moves = f"X:{source} Y:{target}", f"{source} -> {target}"
        return (Fork("transpose_matrix", buffers, moves, lambda x: x, sizes, each=EVERY),)


def _permuted(op: Op, values: Values) -> Values:
    channels_first = op.attributes["to_hwc"] == (op.step == "FW")
    places = (1, 3) if channels_first else (3, 1)
    return {op.writes[0]: np.ascontiguousarray(np.moveaxis(values[op.reads[0]], *places))}


PRIMITIVE = LayerPrimitive(
    name="layout",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x -> y", _permuted, _Lowering()),
        Step.of("IG", "dy -> dx", _permuted, _Lowering()),
    ),
    examples=(Example({"to": "HWC"}, ((3, 4, 5),)), Example({"to": "CHW"}, ((4, 5, 3),))),
    internal=True,
    layouts=None,
)
