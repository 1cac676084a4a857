"""Fully connected layer: y[n, co] = x[n, ci] · W[co, ci]ᵀ (+ b[co]).

Matmul extents for a batch of 1 as in PULP-TrainLib: FW (N=co, K=ci, M=1), WG (N=co, K=1, M=ci), IG (N=1,
K=co, M=ci). With N = 1 a kernel that splits N leaves all cores but one idle, so IG defaults to `mm_M`.
For a batch B the matmuls are over the batch: FW (N=B, K=ci, M=co, B transposed), IG (N=B, K=co, M=ci), and WG
(N=co, K=B, M=ci) on the transposed output gradient. The bias is a vector add per row behind the matmul of
FW; its gradient is the sum of dy over the batch, computed in the first column of tiles of WG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arch.isa import TeamWork
from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives import linear_reference as reference
from trainlib.primitives import nests
from trainlib.primitives.calls import (
    batch_extent,
    batch_range,
    box,
    matmul_call,
    transpose_call,
    vector_add_call,
)
from trainlib.primitives.definition import (
    ZEROS,
    Example,
    LayerPlan,
    LayerPrimitive,
    Parameter,
    Positive,
    Refused,
    Step,
    he_uniform,
)
from trainlib.steps import Array, Extent, KernelCall, KernelChoice, Scratch, TileTask, part

TRANSPOSED = "dy_transposed"
"""Name of the scratch buffer of dyᵀ in WG."""


class _Schema(LayerSchema):
    out_features: Positive
    bias: bool = False


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    if len(shape) != 2:
        raise ShapeError(
            f"linear needs a vector, its input has shape {shape[1:]}",
            where=where,
            cure="put a flatten layer before it",
        )
    batch, ci = shape
    co = attributes["out_features"]
    parameters = {"w": Parameter((co, ci), he_uniform((co, ci)))}
    if attributes["bias"]:
        parameters["b"] = Parameter((co,), ZEROS)
    return LayerPlan((batch, co), parameters, attributes={"batch": batch, "ci": ci, "co": co})


class _Linear:
    """What the three steps share."""

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """batch · ci · co in every step."""
        return int(op.attributes["batch"] * op.attributes["ci"] * op.attributes["co"])

    def default_kernel(self, op: Op) -> str:
        """Row-parallel naive kernel, but column-parallel where C has fewer rows than columns (batch rows)."""
        batch, ci, co = (op.attributes[name] for name in ("batch", "ci", "co"))
        if op.step == "IG":
            return "mm_M" if batch == 1 or batch < ci else "mm"
        return "mm_M" if op.step == "FW" and 1 < batch < co else "mm"


class _Forward(_Linear):
    """FW: C = y; batch and output features may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, output features."""
        return {**batch_extent(op.attributes["batch"]), "co": op.attributes["co"]}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some rows of W, all of the samples' x, some features of y."""
        batch, ci = op.attributes["batch"], op.attributes["ci"]
        samples, rows = batch_range(ranges, batch), ranges["co"]
        count, features = samples[1] - samples[0], rows[1] - rows[0]
        dtype = tensors[op["y"]].dtype
        shape = (count, features)
        if batch == 1:
            product = matmul_call(
                choice, a="w", b="x", c="y", n=features, k=ci, m=1, trans_b=False, c_shape=shape, dtype=dtype
            )
        else:
            product = matmul_call(
                choice,
                a="x",
                b="w",
                c="y",
                n=count,
                k=ci,
                m=features,
                trans_b=True,
                c_shape=shape,
                dtype=dtype,
            )
        inputs = [box(op, "x", samples, (0, ci)), box(op, "w", rows, (0, ci))]
        calls = [product]
        if "b" in op:
            inputs.append(box(op, "b", rows))
            calls.append(vector_add_call(choice, total="y", term="b", elements=count * features, dtype=dtype))
        return TileTask(tuple(inputs), (box(op, "y", samples, rows),), (), tuple(calls))


class _WeightGradient(_Linear):
    """WG: C = dW [co x ci], A = dyᵀ [co x batch], B = x [batch x ci]; dW may be cut in both dimensions."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output and input features."""
        return {"co": op.attributes["co"], "ci": op.attributes["ci"]}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """A part of dy, a part of x, a box of dW; db with the tiles that begin a row of dW."""
        batch = op.attributes["batch"]
        rows, columns = ranges["co"], ranges["ci"]
        n, m = rows[1] - rows[0], columns[1] - columns[0]
        dtype = tensors[op["dw"]].dtype
        calls: list[KernelCall] = []
        scratch: tuple[Scratch, ...] = ()
        left = "dy"
        if batch > 1:
            left, scratch = TRANSPOSED, (Scratch(TRANSPOSED, (n, batch), dtype),)
            calls.append(transpose_call(choice, source="dy", target=left, rows=batch, columns=n, dtype=dtype))
        calls.append(
            matmul_call(
                choice, a=left, b="x", c="dw", n=n, k=batch, m=m, trans_b=False, c_shape=(n, m), dtype=dtype
            )
        )
        outputs = [box(op, "dw", rows, columns)]
        if "db" in op and columns[0] == 0:
            outputs.append(box(op, "db", rows))
            calls.extend(row_sum_calls(choice, source="dy", target="db", rows=batch, columns=n, dtype=dtype))
        return TileTask(
            (box(op, "x", (0, batch), columns), box(op, "dy", (0, batch), rows)),
            tuple(outputs),
            scratch,
            tuple(calls),
        )


def row_sum_calls(
    choice: KernelChoice, *, source: str, target: str, rows: int, columns: int, dtype: str
) -> list[KernelCall]:
    """target[columns] = sum of the rows of source[rows, columns]: a copy, then a vector add per further row.

    The copy is priced as the copying ReLU loop.
    """

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        places = (addresses[part(source, 0)], addresses[target])
        return nests.elementwise(choice.codegen, "relu_fw", columns, cores, places, dtype)

    def copy(arrays: Sequence[Array]) -> tuple[Array, ...]:
        return (arrays[0].copy(),)

    calls = [KernelCall("copy", (part(source, 0),), (target,), work, copy)]
    calls.extend(
        vector_add_call(choice, total=target, term=part(source, row), elements=columns, dtype=dtype)
        for row in range(1, rows)
    )
    return calls


class _InputGradient(_Linear):
    """IG: C = dx [batch x ci], A = dy [batch x co], B = W [co x ci]; batch and input features may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, input features."""
        return {**batch_extent(op.attributes["batch"]), "ci": op.attributes["ci"]}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """All of the samples' dy, some columns of W, some features of dx."""
        co, columns = op.attributes["co"], ranges["ci"]
        samples = batch_range(ranges, op.attributes["batch"])
        count, m = samples[1] - samples[0], columns[1] - columns[0]
        product = matmul_call(
            choice,
            a="dy",
            b="w",
            c="dx",
            n=count,
            k=co,
            m=m,
            trans_b=False,
            c_shape=(count, m),
            dtype=tensors[op["dx"]].dtype,
        )
        return TileTask(
            (box(op, "dy", samples, (0, co)), box(op, "w", (0, co), columns)),
            (box(op, "dx", samples, columns),),
            (),
            (product,),
        )


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    return torch.nn.functional.linear(tensors["x"], tensors["w"], tensors.get("b"))


PRIMITIVE = LayerPrimitive(
    name="linear",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step("FW", ("x", "w", "b?"), ("y",), reference.forward, _Forward()),
        Step("WG", ("x", "dy"), ("dw", "db?"), reference.weight_gradient, _WeightGradient()),
        Step("IG", ("dy", "w"), ("dx",), reference.input_gradient, _InputGradient()),
    ),
    torch_forward=_torch_forward,
    examples=(
        Example({"out_features": 5}, ((9,),), kernels=("mm", "mm_M", "mm_unroll_2x2")),
        Example({"out_features": 3, "bias": True}, ((4,),), batches=(1, 2, 5)),
        Example({"out_features": 1, "bias": True}, ((1,),)),
    ),
    refused=(
        Refused({"out_features": 3}, ((2, 3),), "linear needs a vector"),
        Refused({"out_features": 0}, ((3,),), "out_features"),
        Refused({"out_feature": 3}, ((3,),), "unknown key 'out_feature'"),
    ),
)
