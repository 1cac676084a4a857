"""Backward steps of attention as kernel calls: dmap, then dq, dk, dv per head, then weights and input."""

from __future__ import annotations

from collections.abc import Mapping

from trainlib.graph import Op, Tensor
from trainlib.primitives.attention_calls import row_sum_call, scale_call, softmax_gradient_calls
from trainlib.primitives.calls import NoMatmul, batch_extent, batch_range, box
from trainlib.primitives.pieces import (
    Piece,
    add_call,
    added_matmul_calls,
    column_sum_call,
    piece_matmul_call,
    transpose_piece_call,
)
from trainlib.steps import Extent, KernelCall, KernelChoice, Scratch, TileTask, part


class AttentionLowering(NoMatmul):
    """What the steps of attention share."""

    def default_kernel(self, op: Op) -> str:
        """The naive row-parallel kernel."""
        return "mm"

    @staticmethod
    def sizes(op: Op) -> tuple[int, int, int]:
        """L, E, F."""
        return op.attributes["length"], op.attributes["width"], op.attributes["features"]

    @staticmethod
    def projection_macs(op: Op, count: int) -> int:
        """Multiply-accumulates of `count` products of sizes F, E and L."""
        numbers = op.attributes
        return int(numbers["batch"] * numbers["length"] * numbers["width"] * numbers["features"] * count)


class HeadGradient(AttentionLowering):
    """ATT: dq, dk, dv from dmap, head by head; samples and heads may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, heads."""
        return {**batch_extent(op.attributes["batch"]), "heads": op.attributes["heads"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """Four products of L x L per head."""
        numbers = op.attributes
        return int(4 * numbers["batch"] * numbers["features"] * numbers["length"] ** 2)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """The rows of q, k, v, dmap that belong to some heads, and their probabilities."""
        numbers, dtype = op.attributes, tensors[op["dq"]].dtype
        length, head = numbers["length"], numbers["features"] // numbers["heads"]
        samples, heads = batch_range(ranges, numbers["batch"]), ranges["heads"]
        rows, sequence = (heads[0] * head, heads[1] * head), (0, length)
        inputs = [box(op, role, samples, rows, sequence) for role in ("dmap", "q", "k", "v")]
        inputs.append(box(op, "p", samples, heads, sequence, sequence))
        outputs = tuple(box(op, role, samples, rows, sequence) for role in ("dq", "dk", "dv"))
        scratch = (
            Scratch("turned", (length, head), dtype),
            Scratch("by_key", (length, length), dtype),
            Scratch("by_query", (length, length), dtype),
            Scratch("dk_turned", (length, head), dtype),
            Scratch("sums", (length,), dtype),
        )
        calls: list[KernelCall] = []
        for sample in range(samples[1] - samples[0]):
            for index in range(heads[1] - heads[0]):
                calls += self._head(choice, sample, index, head, length, dtype)
        return TileTask(tuple(inputs), outputs, scratch, tuple(calls))

    def _head(
        self, choice: KernelChoice, sample: int, index: int, head: int, length: int, dtype: str
    ) -> list[KernelCall]:
        dmap, q, k, v, dq, dk, dv = (
            Piece(part(role, sample), (head, length), index * head * length)
            for role in ("dmap", "q", "k", "v", "dq", "dk", "dv")
        )
        p = Piece(part("p", sample), (length, length), index * length * length)
        turned, dk_turned = Piece("turned", (length, head)), Piece("dk_turned", (length, head))
        by_key, by_query = Piece("by_key", (length, length)), Piece("by_query", (length, length))

        def product(a: Piece, b: Piece, c: Piece, n: int, inner: int, m: int) -> KernelCall:
            return piece_matmul_call(choice, a=a, b=b, c=c, n=n, k=inner, m=m, trans_b=False, dtype=dtype)

        return [
            product(dmap, p, dv, head, length, length),
            transpose_piece_call(choice, v, turned, dtype),
            product(turned, dmap, by_key, length, head, length),
            transpose_piece_call(choice, by_key, by_query, dtype),
            *softmax_gradient_calls(choice, by_query, p, by_query, "sums", dtype),
            transpose_piece_call(choice, by_query, by_key, dtype),
            scale_call(choice, by_key, float(head**-0.5), dtype),
            transpose_piece_call(choice, q, turned, dtype),
            product(by_key, turned, dk_turned, length, length, head),
            transpose_piece_call(choice, dk_turned, dk, dtype),
            product(k, by_key, dq, head, length, length),
        ]


class OutputGradient(AttentionLowering):
    """OUT: dmap = Woᵀ·dyᵀ; samples and inner features may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, inner features."""
        return {**batch_extent(op.attributes["batch"]), "features": op.attributes["features"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """One projection."""
        return self.projection_macs(op, 1)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some columns of Wo, transposed once."""
        length, width, _ = self.sizes(op)
        dtype, wanted = tensors[op["dmap"]].dtype, ranges["features"]
        samples, count = batch_range(ranges, op.attributes["batch"]), wanted[1] - wanted[0]
        turned = Piece("wo_transposed", (count, width))
        calls = [transpose_piece_call(choice, Piece("wo", (width, count)), turned, dtype)]
        for sample in range(samples[1] - samples[0]):
            calls.append(
                piece_matmul_call(
                    choice,
                    a=turned,
                    b=Piece(part("dy", sample), (length, width)),
                    c=Piece(part("dmap", sample), (count, length)),
                    n=count,
                    k=width,
                    m=length,
                    trans_b=True,
                    dtype=dtype,
                )
            )
        return TileTask(
            (box(op, "dy", samples, (0, length), (0, width)), box(op, "wo", (0, width), wanted)),
            (box(op, "dmap", samples, wanted, (0, length)),),
            (Scratch("wo_transposed", (count, width), dtype),),
            tuple(calls),
        )


class WeightGradient(AttentionLowering):
    """WG: dW = sum over the batch of d·x for q, k, v, dWo = dyᵀ·mapᵀ, and biases; F may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Inner features."""
        return {"features": op.attributes["features"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """Four projections."""
        return self.projection_macs(op, 4)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some rows of dWq, dWk, dWv and columns of dWo; the output's bias with the first of them."""
        length, width, _ = self.sizes(op)
        dtype, wanted, batch = tensors[op["dwo"]].dtype, ranges["features"], op.attributes["batch"]
        count, samples = wanted[1] - wanted[0], (0, batch)
        sequence = (0, length)
        inputs = [box(op, role, samples, sequence, (0, width)) for role in ("x", "dy")]
        inputs += [box(op, role, samples, wanted, sequence) for role in ("dq", "dk", "dv", "map")]
        outputs = [box(op, f"dw{name}", wanted, (0, width)) for name in "qkv"]
        outputs.append(box(op, "dwo", (0, width), wanted))
        scratch = [
            Scratch("dy_transposed", (width, length), dtype),
            Scratch("map_transposed", (length, count), dtype),
        ]
        if batch > 1:
            scratch.append(Scratch("dw_of_sample", (count, width), dtype))
        calls: list[KernelCall] = []
        for sample in range(batch):
            dy = Piece(part("dy", sample), (length, width))
            attended = Piece(part("map", sample), (count, length))
            turned, right = Piece("dy_transposed", (width, length)), Piece("map_transposed", (length, count))
            calls += [
                transpose_piece_call(choice, dy, turned, dtype),
                transpose_piece_call(choice, attended, right, dtype),
                *added_matmul_calls(
                    choice,
                    a=turned,
                    b=right,
                    c=Piece("dwo", (width, count)),
                    n=width,
                    k=length,
                    m=count,
                    trans_b=False,
                    dtype=dtype,
                    scratch=Piece("dw_of_sample", (width, count), 0) if sample else None,
                ),
            ]
            for name in "qkv":
                calls += added_matmul_calls(
                    choice,
                    a=Piece(part(f"d{name}", sample), (count, length)),
                    b=Piece(part("x", sample), (length, width)),
                    c=Piece(f"dw{name}", (count, width)),
                    n=count,
                    k=length,
                    m=width,
                    trans_b=False,
                    dtype=dtype,
                    scratch=Piece("dw_of_sample", (count, width), 0) if sample else None,
                )
        for name in "qv":
            if f"db{name}" in op:
                outputs.append(box(op, f"db{name}", wanted))
                gradient = Piece(f"d{name}", (batch, count, length))
                calls.append(row_sum_call(choice, gradient, Piece(f"db{name}", (count,)), dtype))
        if "dbo" in op and wanted[0] == 0:
            outputs.append(box(op, "dbo", (0, width)))
            whole = Piece("dy", (batch, length, width))
            calls.append(column_sum_call(choice, whole, Piece("dbo", (width,)), dtype))
        return TileTask(tuple(inputs), tuple(outputs), tuple(scratch), tuple(calls))


class InputGradient(AttentionLowering):
    """IG: dx = sum of Wᵀ·d over q, k, v, transposed; samples and features of x may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, features of x."""
        return {**batch_extent(op.attributes["batch"]), "width": op.attributes["width"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """Three projections."""
        return self.projection_macs(op, 3)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some columns of the weights; per sample three products, added up and transposed."""
        length, _, features = self.sizes(op)
        dtype, wanted = tensors[op["dx"]].dtype, ranges["width"]
        samples, count = batch_range(ranges, op.attributes["batch"]), wanted[1] - wanted[0]
        inputs = [box(op, f"d{name}", samples, (0, features), (0, length)) for name in "qkv"]
        inputs += [box(op, f"w{name}", (0, features), wanted) for name in "qkv"]
        turned, total = Piece("w_transposed", (count, features)), Piece("dx_transposed", (count, length))
        term = Piece("dx_of_one", (count, length))
        calls: list[KernelCall] = []
        for sample in range(samples[1] - samples[0]):
            for name in "qkv":
                target = total if name == "q" else term
                calls.append(
                    transpose_piece_call(choice, Piece(f"w{name}", (features, count)), turned, dtype)
                )
                calls.append(
                    piece_matmul_call(
                        choice,
                        a=turned,
                        b=Piece(part(f"d{name}", sample), (features, length)),
                        c=target,
                        n=count,
                        k=features,
                        m=length,
                        trans_b=False,
                        dtype=dtype,
                    )
                )
                if name != "q":
                    calls.append(add_call(choice, total, term, dtype))
            calls.append(
                transpose_piece_call(choice, total, Piece(part("dx", sample), (length, count)), dtype)
            )
        return TileTask(
            tuple(inputs),
            (box(op, "dx", samples, (0, length), wanted),),
            tuple(Scratch(piece.name, piece.shape, dtype) for piece in (turned, total, term)),
            tuple(calls),
        )
