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
from typing import Any

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.contractions import linear_reference as reference
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
from trainlib.primitives.lowering.calls import (
    batch_extent,
    batch_range,
    box,
    matmul_call,
    region_elements,
    transpose_call,
    vector_add_call,
)
from trainlib.primitives.lowering.pieces import Piece, column_sum_call
from trainlib.steps import Extent, KernelCall, KernelChoice, Region, Scratch, TileTask

TRANSPOSED = "dy_transposed"
"""Name of the scratch buffer of dyᵀ in WG."""


class _Schema(LayerSchema):
    out_features: Positive
    bias: bool = False


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    if len(shape) not in (2, 3):
        raise ShapeError(
            f"linear needs a vector or a sequence of vectors, its input has shape {shape[1:]}",
            where=where,
            cure="put a flatten layer before it",
        )
    batch, *tokens, ci = shape
    co = attributes["out_features"]
    parameters = {"w": Parameter((co, ci), he_uniform((co, ci)))}
    if attributes["bias"]:
        parameters["b"] = Parameter((co,), ZEROS)
    numbers = {"batch": batch, "tokens": tokens[0] if tokens else None, "ci": ci, "co": co}
    return LayerPlan((batch, *tokens, co), parameters, attributes=numbers)


class _Linear:
    """What the three steps share."""

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """rows · ci · co in every step."""
        return int(self.all_rows(op) * op.attributes["ci"] * op.attributes["co"])

    def default_kernel(self, op: Op) -> str:
        """Row-parallel naive kernel, but column-parallel where C has fewer rows than columns."""
        rows, ci, co = self.all_rows(op), op.attributes["ci"], op.attributes["co"]
        if op.step == "IG":
            return "mm_M" if rows == 1 or rows < ci else "mm"
        return "mm_M" if op.step == "FW" and 1 < rows < co else "mm"

    @staticmethod
    def all_rows(op: Op) -> int:
        """Samples, times tokens of a sequence."""
        return int(op.attributes["batch"] * (op.attributes["tokens"] or 1))

    @staticmethod
    def row_dimensions(op: Op) -> dict[str, int]:
        """Samples, and tokens of a sequence."""
        tokens = op.attributes["tokens"]
        return {**batch_extent(op.attributes["batch"]), **({"tokens": tokens} if tokens else {})}

    @staticmethod
    def row_region(op: Op, ranges: Mapping[str, Extent]) -> Region:
        """The samples, and the tokens of a sequence, of a tile."""
        samples, tokens = batch_range(ranges, op.attributes["batch"]), op.attributes["tokens"]
        return (samples, ranges.get("tokens", (0, tokens))) if tokens else (samples,)


class _Forward(_Linear):
    """FW: C = y; rows and output features may be cut, and the sum over input features."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, tokens, output features."""
        return {**self.row_dimensions(op), "co": op.attributes["co"]}

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Input features."""
        return {"ci": op.attributes["ci"]}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """A box of W, some rows of x, some features of y; the bias with the first input features."""
        lines, wanted = self.row_region(op, ranges), ranges["co"]
        summed = ranges.get("ci", (0, op.attributes["ci"]))
        count, features, ci = region_elements(lines), wanted[1] - wanted[0], summed[1] - summed[0]
        dtype = tensors[op["y"]].dtype
        shape = tuple(stop - start for start, stop in (*lines, wanted))
        if self.all_rows(op) == 1:
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
        inputs = [box(op, "x", *lines, summed), box(op, "w", wanted, summed)]
        calls = [product]
        if "b" in op and summed[0] == 0:
            inputs.append(box(op, "b", wanted))
            calls.append(vector_add_call(choice, total="y", term="b", elements=count * features, dtype=dtype))
        return TileTask(tuple(inputs), (box(op, "y", *lines, wanted),), (), tuple(calls))


class _WeightGradient(_Linear):
    """WG: C = dW [co x ci], A = dyᵀ [co x rows], B = x [rows x ci]; all of which may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output and input features."""
        return {"co": op.attributes["co"], "ci": op.attributes["ci"]}

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, tokens."""
        return self.row_dimensions(op)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """A part of dy, a part of x, a box of dW; db with the tiles that begin a row of dW."""
        lines = self.row_region(op, ranges)
        batch = region_elements(lines)
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
            calls.append(column_sum_call(choice, Piece("dy", (batch, n)), Piece("db", (n,)), dtype))
        return TileTask(
            (box(op, "x", *lines, columns), box(op, "dy", *lines, rows)),
            tuple(outputs),
            scratch,
            tuple(calls),
        )


class _InputGradient(_Linear):
    """IG: C = dx [rows x ci], A = dy [rows x co], B = W [co x ci]; all of which may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, tokens, input features."""
        return {**self.row_dimensions(op), "ci": op.attributes["ci"]}

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Output features."""
        return {"co": op.attributes["co"]}

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some rows of dy, a box of W, some features of dx."""
        summed, columns = ranges.get("co", (0, op.attributes["co"])), ranges["ci"]
        lines = self.row_region(op, ranges)
        count, m = region_elements(lines), columns[1] - columns[0]
        product = matmul_call(
            choice,
            a="dy",
            b="w",
            c="dx",
            n=count,
            k=summed[1] - summed[0],
            m=m,
            trans_b=False,
            c_shape=tuple(stop - start for start, stop in (*lines, columns)),
            dtype=tensors[op["dx"]].dtype,
        )
        return TileTask(
            (box(op, "dy", *lines, summed), box(op, "w", summed, columns)),
            (box(op, "dx", *lines, columns),),
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
        Example({"out_features": 3, "bias": True}, ((5, 4),)),
        Example({"out_features": 6}, ((1, 2),), batches=(2,)),
    ),
    refused=(
        Refused({"out_features": 3}, ((2, 3, 4),), "linear needs a vector"),
        Refused({"out_features": 0}, ((3,),), "out_features"),
        Refused({"out_feature": 3}, ((3,),), "unknown key 'out_feature'"),
    ),
)
