"""Fully connected layer without bias: y[co] = W[co, ci] · x[ci].

Matmul extents per step as in PULP-TrainLib: FW (N=co, K=ci, M=1), WG (N=co, K=1, M=ci), IG (N=1, K=co, M=ci).
With N = 1 a kernel that splits N over the cores leaves all but one idle, so IG defaults to `mm_M`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.errors import ShapeError
from trainlib.graph import Op, Tensor
from trainlib.primitives.calls import matmul_call, whole
from trainlib.primitives.definition import LayerPrimitive, LayerShapes, Shape, Step
from trainlib.steps import Array, Extent, KernelChoice, Operand, TileTask


def _shapes(attributes: Mapping[str, Any], input_shape: Shape, where: str) -> LayerShapes:
    if len(input_shape) != 1:
        raise ShapeError(
            f"linear needs a vector, its input has shape {input_shape}",
            where=where,
            cure="put a flatten layer before it",
        )
    co, ci = attributes["out_features"], input_shape[0]
    if co < 1:
        raise ShapeError(f"out_features must be at least 1, it is {co}", where=where)
    return LayerShapes(output=(co,), weight=(co, ci), attributes={"ci": ci, "co": co})


class _Linear:
    """What the three steps share."""

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """ci · co in every step."""
        return int(op.attributes["ci"] * op.attributes["co"])

    def default_kernel(self, op: Op) -> str:
        """Row-parallel naive kernel, but column-parallel where there is one row."""
        return "mm_M" if op.step == "IG" else "mm"


class _Forward(_Linear):
    """FW: C = y [co x 1], A = W, B = x; the result's rows may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output features."""
        return {"co": op.attributes["co"]}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some rows of W, all of x, some elements of y."""
        x, w = op.inputs
        (y,) = op.outputs
        ci, rows = op.attributes["ci"], ranges["co"]
        n = rows[1] - rows[0]
        return TileTask(
            inputs=(whole(tensors[x]), Operand(w, (rows, (0, ci)))),
            outputs=(Operand(y, (rows,)),),
            scratch=(),
            calls=(matmul_call(choice, a=w, b=x, c=y, n=n, k=ci, m=1, trans_b=False, c_shape=(n,)),),
        )


class _WeightGradient(_Linear):
    """WG: C = dW [co x ci], A = dy [co x 1], B = x [1 x ci]."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output and input features."""
        return {"co": op.attributes["co"], "ci": op.attributes["ci"]}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """A part of dy, a part of x, a box of dW."""
        x, dy = op.inputs
        (dw,) = op.outputs
        rows, columns = ranges["co"], ranges["ci"]
        n, m = rows[1] - rows[0], columns[1] - columns[0]
        return TileTask(
            inputs=(Operand(x, (columns,)), Operand(dy, (rows,))),
            outputs=(Operand(dw, (rows, columns)),),
            scratch=(),
            calls=(matmul_call(choice, a=dy, b=x, c=dw, n=n, k=1, m=m, trans_b=False, c_shape=(n, m)),),
        )


class _InputGradient(_Linear):
    """IG: C = dx [1 x ci], A = dy [1 x co], B = W [co x ci]."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Input features."""
        return {"ci": op.attributes["ci"]}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """All of dy, some columns of W, some elements of dx."""
        dy, w = op.inputs
        (dx,) = op.outputs
        co, columns = op.attributes["co"], ranges["ci"]
        m = columns[1] - columns[0]
        return TileTask(
            inputs=(whole(tensors[dy]), Operand(w, ((0, co), columns))),
            outputs=(Operand(dx, (columns,)),),
            scratch=(),
            calls=(matmul_call(choice, a=dy, b=w, c=dx, n=1, k=co, m=m, trans_b=False, c_shape=(m,)),),
        )


def _reference_forward(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (np.einsum("i,oi->o", *arrays),)


def _reference_weight_gradient(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (np.einsum("i,o->oi", *arrays),)


def _reference_input_gradient(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (np.einsum("o,oi->i", *arrays),)


def _batched(attributes: Mapping[str, Any], arrays: Sequence[Array]) -> Array:
    images, weight = arrays
    result: Array = np.einsum("bi,oi->bo", images, weight, optimize=True)
    return result


PRIMITIVE = LayerPrimitive(
    name="linear",
    shapes=_shapes,
    batched=_batched,
    torch_forward=lambda torch, attributes, x, w: torch.nn.functional.linear(x, w),
    forward=Step(("x", "w"), ("y",), _reference_forward, _Forward()),
    weight_gradient=Step(("x", "dy"), ("dw",), _reference_weight_gradient, _WeightGradient()),
    input_gradient=Step(("dy", "w"), ("dx",), _reference_input_gradient, _InputGradient()),
)
