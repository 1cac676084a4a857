# SPDX-License-Identifier: Apache-2.0
"""Projections of attention as kernel calls: q, k, v and y from their weights, and the gradients of these.

Sequences inside are [batch, F, L], x and y are [batch, L, E]: matmul extents are those of PULP-TrainLib, with
its transposes where a layout needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainlib.ir.graph import Op
from trainlib.ir.steps import Extent, KernelCall, KernelChoice, Scratch, TileTask, part
from trainlib.primitives.attention.attention import AttentionLowering, Ranges, Tensors, length_of
from trainlib.primitives.attention.attention_calls import row_bias_call, row_sum_call
from trainlib.primitives.lowering.calls import batch_extent, batch_range, box
from trainlib.primitives.lowering.pieces import (
    Piece,
    add_call,
    added_matmul_calls,
    column_sum_call,
    piece_matmul_call,
    transpose_piece_call,
)

_SIZES = {"tokens": "length", "width": "width", "features": "features"}
"""Dimensions of a projection (L, E, F) and the attributes that hold their sizes."""


@dataclass(frozen=True, slots=True)
class _Box:
    """What a tile covers of L, E and F and of the batch; what `ranges` does not name is whole."""

    samples: Extent
    tokens: Extent
    width: Extent
    features: Extent

    @classmethod
    def of(cls, op: Op, ranges: Ranges) -> _Box:
        """From the ranges of a tile."""
        whole = {name: (0, op.attributes[size]) for name, size in _SIZES.items()}
        found = {name: ranges.get(name, extent) for name, extent in whole.items()}
        return cls(batch_range(ranges, op.attributes["batch"]), **found)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Samples, L, E, F of the tile."""
        samples, *rest = (length_of(item) for item in (self.samples, self.tokens, self.width, self.features))
        return samples, rest[0], rest[1], rest[2]


class _Projection(AttentionLowering):
    """What the steps share: which dimensions the result has, and which it is a sum over."""

    kept: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()
    over_batch = False
    """Whether the batch is summed."""
    products = 1

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The result's own dimensions, samples first."""
        batch = {} if self.over_batch else batch_extent(op.attributes["batch"])
        return {**batch, **{name: op.attributes[_SIZES[name]] for name in self.kept}}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """What is summed."""
        batch = batch_extent(op.attributes["batch"]) if self.over_batch else {}
        return {**batch, **{name: op.attributes[_SIZES[name]] for name in self.summed}}

    def macs(self, op: Op, tensors: Tensors) -> int:
        """batch · L · E · F per product."""
        numbers = op.attributes
        count = numbers["batch"] * numbers["length"] * numbers["width"] * numbers["features"]
        return int(self.products * count)


class Projection(_Projection):
    """One of q, k, v [F, L] = W[F, E] · xᵀ + b; (F, E, L)."""

    kept, summed = ("features", "tokens"), ("width",)

    def __init__(self, name: str) -> None:
        self.name = name

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some features of some tokens; the bias with the first elements of the tokens."""
        area, dtype = _Box.of(op, ranges), tensors[op[self.name]].dtype
        samples, tokens, width, features = area.counts
        weight, bias = f"w{self.name}", f"b{self.name}"
        inputs = [
            box(op, "x", area.samples, area.tokens, area.width),
            box(op, weight, area.features, area.width),
        ]
        biased = bias in op and area.width[0] == 0
        if biased:
            inputs.append(box(op, bias, area.features))
        calls: list[KernelCall] = []
        for sample in range(samples):
            target = Piece(part(self.name, sample), (features, tokens))
            calls.append(
                piece_matmul_call(
                    choice,
                    a=Piece(weight, (features, width)),
                    b=Piece(part("x", sample), (tokens, width)),
                    c=target,
                    n=features,
                    k=width,
                    m=tokens,
                    trans_b=True,
                    dtype=dtype,
                )
            )
            if biased:
                calls.append(row_bias_call(choice, target, Piece(bias, (features,)), dtype))
        output = box(op, self.name, area.samples, area.features, area.tokens)
        return TileTask(tuple(inputs), (output,), (), tuple(calls))


class OutputProjection(_Projection):
    """y[L, E] = (Wo[E, F] · map[F, L] + bo)ᵀ; (E, F, L)."""

    kept, summed = ("tokens", "width"), ("features",)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some elements of some tokens; the bias with the first features."""
        area, dtype = _Box.of(op, ranges), tensors[op["y"]].dtype
        samples, tokens, width, features = area.counts
        inputs = [
            box(op, "map", area.samples, area.features, area.tokens),
            box(op, "wo", area.width, area.features),
        ]
        biased = "bo" in op and area.features[0] == 0
        if biased:
            inputs.append(box(op, "bo", area.width))
        turned = Piece("y_transposed", (width, tokens))
        calls: list[KernelCall] = []
        for sample in range(samples):
            calls.append(
                piece_matmul_call(
                    choice,
                    a=Piece("wo", (width, features)),
                    b=Piece(part("map", sample), (features, tokens)),
                    c=turned,
                    n=width,
                    k=features,
                    m=tokens,
                    trans_b=False,
                    dtype=dtype,
                )
            )
            if biased:
                calls.append(row_bias_call(choice, turned, Piece("bo", (width,)), dtype))
            y = Piece(part("y", sample), (tokens, width))
            calls.append(transpose_piece_call(choice, turned, y, dtype))
        return TileTask(
            tuple(inputs),
            (box(op, "y", area.samples, area.tokens, area.width),),
            (Scratch("y_transposed", turned.shape, dtype),),
            tuple(calls),
        )


class OutputGradient(_Projection):
    """dmap[F, L] = Woᵀ · dyᵀ; (F, E, L)."""

    kept, summed = ("features", "tokens"), ("width",)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some columns of Wo, transposed once."""
        area, dtype = _Box.of(op, ranges), tensors[op["dmap"]].dtype
        samples, tokens, width, features = area.counts
        turned = Piece("wo_transposed", (features, width))
        calls = [transpose_piece_call(choice, Piece("wo", (width, features)), turned, dtype)]
        calls += [
            piece_matmul_call(
                choice,
                a=turned,
                b=Piece(part("dy", sample), (tokens, width)),
                c=Piece(part("dmap", sample), (features, tokens)),
                n=features,
                k=width,
                m=tokens,
                trans_b=True,
                dtype=dtype,
            )
            for sample in range(samples)
        ]
        return TileTask(
            (
                box(op, "dy", area.samples, area.tokens, area.width),
                box(op, "wo", area.width, area.features),
            ),
            (box(op, "dmap", area.samples, area.features, area.tokens),),
            (Scratch("wo_transposed", turned.shape, dtype),),
            tuple(calls),
        )


class ProjectionWeightGradient(_Projection):
    """dW[F, E] = sum over the batch of d[F, L] · x[L, E] of one of q, k, v, and its bias; (F, L, E)."""

    kept, summed, over_batch = ("features", "width"), ("tokens",), True

    def __init__(self, name: str) -> None:
        self.name = name

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """A box of dW; the bias with the first of its columns."""
        result, bias, source = f"dw{self.name}", f"db{self.name}", f"d{self.name}"
        area, dtype = _Box.of(op, ranges), tensors[op[result]].dtype
        samples, tokens, width, features = area.counts
        outputs = [box(op, result, area.features, area.width)]
        calls: list[KernelCall] = []
        for sample in range(samples):
            calls += added_matmul_calls(
                choice,
                a=Piece(part(source, sample), (features, tokens)),
                b=Piece(part("x", sample), (tokens, width)),
                c=Piece(result, (features, width)),
                n=features,
                k=tokens,
                m=width,
                trans_b=False,
                dtype=dtype,
                scratch=Piece("dw_of_sample", (features, width), 0) if sample else None,
            )
        if bias in op and area.width[0] == 0:
            outputs.append(box(op, bias, area.features))
            whole = Piece(source, (samples, features, tokens))
            calls.append(row_sum_call(choice, whole, Piece(bias, (features,)), dtype))
        return TileTask(
            (
                box(op, source, area.samples, area.features, area.tokens),
                box(op, "x", area.samples, area.tokens, area.width),
            ),
            tuple(outputs),
            (Scratch("dw_of_sample", (features, width), dtype),) if samples > 1 else (),
            tuple(calls),
        )


class OutputWeightGradient(_Projection):
    """dWo[E, F] = sum over the batch of dyᵀ · mapᵀ, and its bias; (E, L, F), both transposed first."""

    kept, summed, over_batch = ("width", "features"), ("tokens",), True

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """A box of dWo; the bias with the first of its columns."""
        area, dtype = _Box.of(op, ranges), tensors[op["dwo"]].dtype
        samples, tokens, width, features = area.counts
        turned, right = Piece("dy_transposed", (width, tokens)), Piece("map_transposed", (tokens, features))
        scratch = [Scratch(piece.name, piece.shape, dtype) for piece in (turned, right)]
        if samples > 1:
            scratch.append(Scratch("dw_of_sample", (width, features), dtype))
        calls: list[KernelCall] = []
        for sample in range(samples):
            dy = Piece(part("dy", sample), (tokens, width))
            attended = Piece(part("map", sample), (features, tokens))
            calls += [
                transpose_piece_call(choice, dy, turned, dtype),
                transpose_piece_call(choice, attended, right, dtype),
                *added_matmul_calls(
                    choice,
                    a=turned,
                    b=right,
                    c=Piece("dwo", (width, features)),
                    n=width,
                    k=tokens,
                    m=features,
                    trans_b=False,
                    dtype=dtype,
                    scratch=Piece("dw_of_sample", (width, features), 0) if sample else None,
                ),
            ]
        outputs = [box(op, "dwo", area.width, area.features)]
        if "dbo" in op and area.features[0] == 0:
            outputs.append(box(op, "dbo", area.width))
            whole = Piece("dy", (samples, tokens, width))
            calls.append(column_sum_call(choice, whole, Piece("dbo", (width,)), dtype))
        return TileTask(
            (
                box(op, "dy", area.samples, area.tokens, area.width),
                box(op, "map", area.samples, area.features, area.tokens),
            ),
            tuple(outputs),
            tuple(scratch),
            tuple(calls),
        )


class InputGradient(_Projection):
    """dx[L, E] = sum over q, k, v of (Wᵀ · d)ᵀ; three times (E, F, L)."""

    kept, summed, products = ("tokens", "width"), ("features",), 3

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """A box of the weights; per sample three products, added up and transposed."""
        area, dtype = _Box.of(op, ranges), tensors[op["dx"]].dtype
        samples, tokens, width, features = area.counts
        inputs = [box(op, f"d{name}", area.samples, area.features, area.tokens) for name in "qkv"]
        inputs += [box(op, f"w{name}", area.features, area.width) for name in "qkv"]
        turned, total = Piece("w_transposed", (width, features)), Piece("dx_transposed", (width, tokens))
        term = Piece("dx_of_one", (width, tokens))
        calls: list[KernelCall] = []
        for sample in range(samples):
            for name in "qkv":
                target = total if name == "q" else term
                calls += [
                    transpose_piece_call(choice, Piece(f"w{name}", (features, width)), turned, dtype),
                    piece_matmul_call(
                        choice,
                        a=turned,
                        b=Piece(part(f"d{name}", sample), (features, tokens)),
                        c=target,
                        n=width,
                        k=features,
                        m=tokens,
                        trans_b=False,
                        dtype=dtype,
                    ),
                ]
                if name != "q":
                    calls.append(add_call(choice, total, term, dtype))
            dx = Piece(part("dx", sample), (tokens, width))
            calls.append(transpose_piece_call(choice, total, dx, dtype))
        return TileTask(
            tuple(inputs),
            (box(op, "dx", area.samples, area.tokens, area.width),),
            tuple(Scratch(piece.name, piece.shape, dtype) for piece in (turned, total, term)),
            tuple(calls),
        )
