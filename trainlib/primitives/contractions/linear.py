# SPDX-License-Identifier: Apache-2.0
"""Fully connected layer: y[n, co] = x[n, ci] · W[co, ci]ᵀ (+ b[co]), for a sequence the same for every token.

Matmul extents for a batch of 1 as in PULP-TrainLib: FW (N=co, K=ci, M=1), WG (N=co, K=1, M=ci), IG (N=1,
K=co, M=ci). With N = 1 a kernel that splits N leaves all cores but one idle, so IG defaults to `mm_M`.
For B rows (samples, times tokens) the matmuls are over the rows: FW (N=B, K=ci, M=co, B transposed), IG
(N=B, K=co, M=ci), and WG (N=co, K=B, M=ci) on the transposed output gradient. The bias is a vector add behind
the matmul of FW; its gradient is the sum of dy over the rows, computed in the first column of tiles of WG.
Every step can cut its K too: FW the input features, IG the output features, WG the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.access import Contraction
from trainlib.ir.graph import Op, Tensor
from trainlib.primitives.contractions.contraction import BIAS, BIAS_GRADIENT, ContractionStep, Description
from trainlib.primitives.definition import (
    Example,
    LayerPlan,
    LayerPrimitive,
    Positive,
    Step,
    Values,
    weight_and_bias,
)
from trainlib.primitives.lowering.axes import Form, Groups
from trainlib.primitives.lowering.forks import column_sum
from trainlib.primitives.lowering.products import Added, Call, Each, Product, ProductLowering

_TURNED = "dy_transposed"
"""Scratch: the output gradient of several rows, transposed."""


class _Schema(LayerSchema):
    out_features: Positive
    """Size of the last axis of the output."""
    bias: bool = False
    """Whether each output feature has a trained bias."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    if len(shape) not in (2, 3):
        raise ShapeError(
            f"linear needs a vector or a sequence of vectors, but its input has shape {shape[1:]}",
            where=where,
            cure="put a flatten layer before the linear layer",
        )
    batch, *tokens, ci = shape
    co = attributes["out_features"]
    numbers = {"batch": batch, "tokens": tokens[0] if tokens else None, "ci": ci, "co": co}
    return LayerPlan(
        (batch, *tokens, co), weight_and_bias((co, ci), co, attributes["bias"]), attributes=numbers
    )


LINEAR = Contraction(y="n co", x="n ci", w="co ci")
SEQUENCE = Contraction(y="n tokens co", x="n tokens ci", w="co ci")
"""The same layer for every token."""


def _described(op: Op) -> tuple[Contraction, Mapping[str, int], Mapping[str, int]]:
    batch, tokens, ci, co = (op.attributes[name] for name in ("batch", "tokens", "ci", "co"))
    sizes = {"n": batch, "co": co, "ci": ci}
    return (SEQUENCE, {**sizes, "tokens": tokens}, {}) if tokens else (LINEAR, sizes, {})


class _Rows(ProductLowering, ContractionStep):
    """One matmul over all rows of x: samples, and tokens of a sequence."""

    def default_kernel(self, op: Op) -> str:
        """Row-parallel naive kernel, but column-parallel where C has fewer rows than columns."""
        ci, co = op.attributes["ci"], op.attributes["co"]
        rows = self.space(op).macs // (ci * co)
        if op.step == "IG":
            return "mm_M" if rows == 1 or rows < ci else "mm"
        return "mm_M" if op.step == "FW" and 1 < rows < co else "mm"

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """The output gradient of WG."""
        return {_TURNED: (("co",), form.axes("dy")[:-1])} if self.result == "dw" else {}

    def kernels(self, form: Form) -> Sequence[Each]:
        """The matmul, and the bias."""
        rows = tuple(name for name in form.sizes if name not in ("co", "ci"))
        if self.result == "dw":
            product, added = Product("dy", "x", "dw", ("co",), rows, ("ci",), turned=_TURNED), BIAS_GRADIENT
        elif self.result == "dx":
            product, added = Product("dy", "w", "dx", rows, ("co",), ("ci",)), ""
        elif prod(form.sizes[name] for name in rows) == 1:
            product, added = Product("w", "x", "y", ("co",), ("ci",), rows), BIAS
        else:
            product, added = Product("x", "w", "y", rows, ("ci",), ("co",), trans_b=True), BIAS
        calls: list[Call] = [product]
        if added in form.op:
            bias = Added("y", BIAS) if added == BIAS else column_sum("dy", BIAS_GRADIENT, rows, ("co",))
            calls.append(Each((), [bias], ("ci",)))
        return (Each((), calls),)


def _forward(op: Op, values: Values) -> Values:
    """y = x · wᵀ + b."""
    result = np.einsum("...i,oi->...o", values["x"], values["w"], optimize=True)
    return {"y": result + values["b"] if "b" in values else result}


def _weight_gradient(op: Op, values: Values) -> Values:
    """dw = dyᵀ · x, db = sum of dy over the rows."""
    rows = tuple(range(values["x"].ndim - 1))
    return {
        "dw": np.tensordot(values["dy"], values["x"], axes=(rows, rows)),
        "db": values["dy"].sum(axis=rows),
    }


def _input_gradient(op: Op, values: Values) -> Values:
    """dx = dy · w."""
    return {"dx": np.einsum("...o,oi->...i", values["dy"], values["w"], optimize=True)}


def _step(result: str) -> ContractionStep:
    return _Rows(Description(_described), result)


PRIMITIVE = LayerPrimitive(
    name="linear",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w b? -> y", _forward, _step("y")),
        Step.of("WG", "x dy -> dw db?", _weight_gradient, _step("dw")),
        Step.of("IG", "dy w -> dx", _input_gradient, _step("dx")),
    ),
    examples=(
        Example({"out_features": 5}, ((9,),), kernels=("mm", "mm_M", "mm_unroll_2x2")),
        Example({"out_features": 3, "bias": True}, ((4,),), batches=(1, 2, 5)),
        Example({"out_features": 1, "bias": True}, ((1,),)),
        Example({"out_features": 3, "bias": True}, ((5, 4),)),
        Example({"out_features": 6}, ((1, 2),), batches=(2,)),
    ),
)
