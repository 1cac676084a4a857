"""Change of float format: y is x rounded to the dtype `to` (a NumPy name); dx is dy in the dtype of x.

The builder inserts it where a layer's input has another dtype than the layer. Widening is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import Example, InputCase, LayerPlan, LayerPrimitive, Output, Step
from trainlib.primitives.lowering.calls import ElementwiseLowering, box, region_elements
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.steps import Extent, Function, KernelChoice, TileTask


class _Schema(LayerSchema):
    to: str


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    return LayerPlan(Output(inputs[0].shape, attributes["to"]), attributes={"to": attributes["to"]})


def _same(op: Op) -> Function:
    return lambda arrays: (arrays[0],)


@dataclass(frozen=True, slots=True)
class _CastLowering(ElementwiseLowering):
    """Elementwise from one width to the other, priced as the loop load, one instruction, store of ReLU in
    fp32: the words are as wide as the wider of the two formats.
    """

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """One box in, the same box out."""
        shape = tensors[op.outputs[0]].shape
        inner = tuple(ranges[f"d{a}"] if a < 2 else (0, size) for a, size in enumerate(shape[1:]))
        region = (ranges.get("n", (0, shape[0])), *inner)
        (source,), (target,) = op.reads, op.writes

        sizes, arrays = (
            {"elements": region_elements(region)},
            {
                name: Piece(role, dtype=tensors[op[role]].dtype)
                for name, role in (("X", source), ("Y", target))
            },
        )
        call = kernel_call(choice, self.kernel, sizes, arrays, (source,), (target,), self.function(op))
        return TileTask((box(op, source, *region),), (box(op, target, *region),), (), (call,))


PRIMITIVE = LayerPrimitive(
    name="cast",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step("FW", ("x",), ("y",), lambda op, values: {"y": values["x"]}, _CastLowering("relu_fw", _same)),
        Step(
            "IG", ("dy",), ("dx",), lambda op, values: {"dx": values["dy"]}, _CastLowering("relu_fw", _same)
        ),
    ),
    torch_forward=lambda torch, attributes, tensors: tensors["x"],
    examples=tuple(
        Example({"to": to}, (InputCase((3, 5)),), roundings=2) for to in ("float32", "float16", "bfloat16")
    ),
    internal=True,
    layouts=None,
)
