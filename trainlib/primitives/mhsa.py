"""Multi-head self-attention: x [batch, L, E] -> y [batch, L, E], inner width F, heads of H = F / heads.

q, k, v = W·xᵀ + b (kept as [F, L]), p = softmax of each query's scores qᵀk / sqrt(H), map = v·pᵀ,
y = Wo·map + bo. Matmul extents are those of PULP-TrainLib: projections (N=F, K=E, M=L), scores (L, H, L),
values (H, L, L), output (E, F, L), and in the backward steps dmap (F, E, L), dv (H, L, L), dp (L, H, L),
dk (L, L, H), dq (H, L, L), dW (F, L, E), dWo (E, L, F), dx 3 x (E, F, L). Its transposes before and after a
matmul are kept where the layout needs them; weights are stored [F, E], as PyTorch does, so those of FW fall
away. Softmax is the exact one; the scale is the exact root, not the library's one Newton step. On its main
branch the library's MHSA does not compile, and it has neither an output bias nor bias gradients. The bias of
k is a constant here: softmax does not feel it, so its gradient is zero and PyTorch's is rounding noise.

FW is one op and may be cut over batch and queries. The backward steps are OUT (dmap, cut over batch and F),
ATT (dq, dk, dv, cut over batch and heads), WG (cut over F) and IG (cut over batch and E).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Initial, Op, Tensor
from trainlib.primitives import mhsa_reference as reference
from trainlib.primitives.attention_backward import (
    AttentionLowering,
    HeadGradient,
    InputGradient,
    OutputGradient,
    WeightGradient,
)
from trainlib.primitives.attention_calls import (
    row_bias_call,
    scale_call,
    softmax_calls,
)
from trainlib.primitives.calls import batch_extent, batch_range, box
from trainlib.primitives.definition import (
    ZEROS,
    Example,
    LayerPlan,
    LayerPrimitive,
    Parameter,
    Positive,
    Refused,
    Saved,
    Step,
)
from trainlib.primitives.pieces import (
    Piece,
    piece_matmul_call,
    transpose_piece_call,
)
from trainlib.steps import Extent, KernelCall, KernelChoice, Scratch, TileTask, part


class _Schema(LayerSchema):
    heads: Positive
    features: Positive | None = None
    bias: bool = False


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    if len(shape) != 3:
        raise ShapeError(
            f"mhsa needs a sequence (length, features), its input has shape {shape[1:]}", where=where
        )
    batch, length, width = shape
    heads = attributes["heads"]
    features = attributes["features"] or width
    if features % heads:
        raise ShapeError(
            f"{features} features cannot be split over {heads} heads",
            where=where,
            cure=f"features that are a multiple of {heads}",
        )
    start = Initial("uniform", float((6 / (width + features)) ** 0.5))
    parameters = {f"w{name}": Parameter((features, width), start) for name in "qkv"}
    parameters["wo"] = Parameter((width, features), start)
    if attributes["bias"]:
        # The same number added to all scores of a query changes no softmax: the gradient of bk is zero.
        parameters |= {f"b{name}": Parameter((features,), ZEROS, name != "k") for name in "qkv"}
        parameters["bo"] = Parameter((width,), ZEROS)
    sequence = Saved((batch, features, length))
    saved = dict.fromkeys(("q", "k", "v", "map", "dmap", "dq", "dk", "dv"), sequence)
    saved["p"] = Saved((batch, heads, length, length))
    numbers = {"batch": batch, "length": length, "width": width, "features": features, "heads": heads}
    return LayerPlan((batch, length, width), parameters, saved, attributes=numbers)


class _Forward(AttentionLowering):
    """FW; the batch and the queries may be cut.

    Every tile needs all keys and values of its samples. The tiles of the first queries own them as results;
    tiles of later queries compute them again, in scratch.
    """

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, queries."""
        return {**batch_extent(op.attributes["batch"]), "queries": op.attributes["length"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """Four projections, two products of L x L per head; keys and values made again are not counted."""
        numbers = op.attributes
        inner = 2 * numbers["batch"] * numbers["features"] * numbers["length"] ** 2
        return self.projection_macs(op, 4) + int(inner)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some queries of some samples, one sample after the other, head by head; all weights."""
        length, width, features = self.sizes(op)
        heads, dtype = op.attributes["heads"], tensors[op["y"]].dtype
        samples, queries = batch_range(ranges, op.attributes["batch"]), ranges["queries"]
        head, count = features // heads, queries[1] - queries[0]
        inputs = [box(op, "x", samples, (0, length), (0, width))]
        for role in op.reads[1:]:
            inputs.append(box(op, role, *((0, size) for size in tensors[op[role]].shape)))
        outputs = [box(op, "y", samples, queries, (0, width))]
        outputs += [box(op, role, samples, (0, features), queries) for role in ("q", "map")]
        outputs.append(box(op, "p", samples, (0, heads), queries, (0, length)))
        scratch = [
            Scratch("k_transposed", (length, head), dtype),
            Scratch("scores", (length, count), dtype),
            Scratch("maxima", (count,), dtype),
            Scratch("sums", (count,), dtype),
            Scratch("y_transposed", (width, count), dtype),
        ]
        if queries[0] == 0:
            outputs += [box(op, role, samples, (0, features), (0, length)) for role in ("k", "v")]
        else:
            scratch += [Scratch(f"{role}_again", (features, length), dtype) for role in ("k", "v")]
        calls: list[KernelCall] = []
        for sample in range(samples[1] - samples[0]):
            calls += self._sample(op, choice, sample, queries, dtype)
        return TileTask(tuple(inputs), tuple(outputs), tuple(scratch), tuple(calls))

    def _sample(
        self, op: Op, choice: KernelChoice, sample: int, queries: Extent, dtype: str
    ) -> list[KernelCall]:
        length, width, features = self.sizes(op)
        heads, count, again = op.attributes["heads"], queries[1] - queries[0], queries[0] > 0
        head = features // heads
        calls: list[KernelCall] = []
        x = Piece(part("x", sample), (length, width))
        projected = {
            "q": Piece(part("q", sample), (features, count)),
            "k": Piece("k_again" if again else part("k", sample), (features, length)),
            "v": Piece("v_again" if again else part("v", sample), (features, length)),
        }
        for name, target in projected.items():
            calls.append(
                piece_matmul_call(
                    choice,
                    a=Piece(f"w{name}", (features, width)),
                    b=x.rows(*queries) if name == "q" else x,
                    c=target,
                    n=features,
                    k=width,
                    m=target.shape[1],
                    trans_b=True,
                    dtype=dtype,
                    again=again and name != "q",
                )
            )
            if f"b{name}" in op:
                calls.append(row_bias_call(choice, target, Piece(f"b{name}", (features,)), dtype))
        turned, scores = Piece("k_transposed", (length, head)), Piece("scores", (length, count))
        attended = Piece(part("map", sample), (features, count))
        kept = Piece(part("p", sample), (heads, count, length))
        for index in range(heads):
            rows = (index * head, index * head + head)
            q, k, v = (projected[name].rows(*rows) for name in "qkv")
            weights = kept.row(index)
            calls += [
                transpose_piece_call(choice, k, turned, dtype),
                piece_matmul_call(
                    choice, a=turned, b=q, c=scores, n=length, k=head, m=count, trans_b=False, dtype=dtype
                ),
                scale_call(choice, scores, float(head**-0.5), dtype),
                transpose_piece_call(choice, scores, weights, dtype),
                *softmax_calls(choice, weights, "maxima", "sums", dtype),
                transpose_piece_call(choice, weights, scores, dtype),
                piece_matmul_call(
                    choice,
                    a=v,
                    b=scores,
                    c=attended.rows(*rows),
                    n=head,
                    k=length,
                    m=count,
                    trans_b=False,
                    dtype=dtype,
                ),
            ]
        output = Piece("y_transposed", (width, count))
        calls.append(
            piece_matmul_call(
                choice,
                a=Piece("wo", (width, features)),
                b=attended,
                c=output,
                n=width,
                k=features,
                m=count,
                trans_b=False,
                dtype=dtype,
            )
        )
        if "bo" in op:
            calls.append(row_bias_call(choice, output, Piece("bo", (width,)), dtype))
        y = Piece(part("y", sample), (count, width))
        calls.append(transpose_piece_call(choice, output, y, dtype))
        return calls


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    x, heads = tensors["x"], attributes["heads"]
    linear = torch.nn.functional.linear
    projected = [linear(x, tensors[f"w{name}"], tensors.get(f"b{name}")) for name in "qkv"]
    split = [item.unflatten(2, (heads, -1)).transpose(1, 2) for item in projected]
    attended = torch.nn.functional.scaled_dot_product_attention(*split)
    return linear(attended.transpose(1, 2).flatten(2), tensors["wo"], tensors.get("bo"))


def _cases() -> Any:
    from hypothesis import strategies as st

    def example(length: int, width: int, heads: int, head: int, bias: bool) -> Example:
        options = {"heads": heads, "features": heads * head, "bias": bias}
        return Example(options, ((length, width),), roundings=16)

    small = st.integers(1, 5)
    return st.builds(example, small, small, st.integers(1, 3), st.integers(1, 4), st.booleans())


PRIMITIVE = LayerPrimitive(
    name="mhsa",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step(
            "FW",
            ("x", "wq", "wk", "wv", "wo", "bq?", "bk?", "bv?", "bo?"),
            ("y", "q", "k", "v", "p", "map"),
            reference.forward,
            _Forward(),
        ),
        Step("OUT", ("dy", "wo"), ("dmap",), reference.output_gradient, OutputGradient()),
        Step(
            "ATT",
            ("dmap", "q", "k", "v", "p"),
            ("dq", "dk", "dv"),
            reference.attention_gradient,
            HeadGradient(),
        ),
        Step(
            "WG",
            ("x", "dy", "dq", "dk", "dv", "map"),
            ("dwq", "dwk", "dwv", "dwo", "dbq?", "dbv?", "dbo?"),
            reference.weight_gradient,
            WeightGradient(),
        ),
        Step("IG", ("dq", "dk", "dv", "wq", "wk", "wv"), ("dx",), reference.input_gradient, InputGradient()),
    ),
    torch_forward=_torch_forward,
    examples=(
        Example({"heads": 2, "bias": True}, ((5, 6),), roundings=12),
        Example({"heads": 3, "features": 9}, ((4, 5),), roundings=12),
        Example({"heads": 1, "features": 1, "bias": True}, ((1, 2),), roundings=12),
    ),
    refused=(
        Refused({"heads": 4}, ((5, 6),), "6 features cannot be split over 4 heads"),
        Refused({"heads": 0}, ((5, 6),), "heads"),
        Refused({"heads": 2}, ((6,),), "needs a sequence"),
    ),
    cases=_cases,
    layouts=None,
)
