# SPDX-License-Identifier: Apache-2.0
"""Heads of attention as kernel calls: scores, their softmax, weighted sums, and the gradients of these.

Sequences are kept as [batch, F, L], a head is H = F / heads rows of that; scores as [batch, heads, queries,
keys]. One step does one product (or one softmax), so that every dimension of it may be cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Extent, KernelCall, KernelChoice, Operand, Scratch, TileTask, part
from trainlib.primitives.attention.attention_calls import scale_call, softmax_calls, softmax_gradient_calls
from trainlib.primitives.lowering.calls import NoMatmul, batch_extent, batch_range, box
from trainlib.primitives.lowering.pieces import Piece, piece_matmul_call, transpose_piece_call

Tensors = Mapping[str, Tensor]
Ranges = Mapping[str, Extent]


def length_of(extent: Extent) -> int:
    """Elements of an interval."""
    return extent[1] - extent[0]


class AttentionLowering(NoMatmul):
    """What the steps of attention share."""

    def default_kernel(self, op: Op) -> str:
        """The naive row-parallel kernel."""
        return "mm"

    @staticmethod
    def scale(op: Op) -> float:
        """1 / sqrt(H)."""
        return float((op.attributes["features"] // op.attributes["heads"]) ** -0.5)


@dataclass(frozen=True, slots=True)
class _HeadTile:
    """Samples, heads, queries and keys of a tile; what `ranges` does not name is whole."""

    op: Op
    samples: Extent
    heads: Extent
    queries: Extent
    keys: Extent

    @classmethod
    def of(cls, op: Op, ranges: Ranges) -> _HeadTile:
        """From the ranges of a tile."""
        numbers = op.attributes
        whole = (0, numbers["length"])
        return cls(
            op,
            batch_range(ranges, numbers["batch"]),
            ranges.get("heads", (0, numbers["heads"])),
            ranges.get("queries", whole),
            ranges.get("keys", whole),
        )

    @property
    def head(self) -> int:
        """H: rows of one head."""
        return int(self.op.attributes["features"] // self.op.attributes["heads"])

    def sequence(self, role: str, columns: Extent) -> Operand:
        """The rows of the heads of a sequence, some of its columns."""
        rows = (self.heads[0] * self.head, self.heads[1] * self.head)
        return box(self.op, role, self.samples, rows, columns)

    def matrix(self, role: str) -> Operand:
        """The box of scores, probabilities or their gradients."""
        return box(self.op, role, self.samples, self.heads, self.queries, self.keys)

    def whole_matrix(self, role: str) -> Piece:
        """All rows of that box as one matrix."""
        rows = length_of(self.samples) * length_of(self.heads) * length_of(self.queries)
        return Piece(role, (rows, length_of(self.keys)), 0)

    def each(self) -> Iterator[tuple[int, int]]:
        """Sample and head, counted from 0 in the tile."""
        for sample in range(length_of(self.samples)):
            for head in range(length_of(self.heads)):
                yield sample, head

    def rows_of(self, role: str, columns: Extent, sample: int, head: int) -> Piece:
        """One head of the box of a sequence."""
        count = length_of(columns)
        return Piece(part(role, sample), (self.head, count), head * self.head * count)

    def matrix_of(self, role: str, sample: int, head: int) -> Piece:
        """One head of the box of scores."""
        shape = (length_of(self.queries), length_of(self.keys))
        return Piece(part(role, sample), shape, head * prod(shape))


def _head_extents(op: Op, *names: str) -> dict[str, int]:
    """Samples, heads and these of queries and keys."""
    numbers = op.attributes
    return {
        **batch_extent(numbers["batch"]),
        "heads": numbers["heads"],
        **dict.fromkeys(names, numbers["length"]),
    }


def _head_macs(op: Op) -> int:
    """One product of L x L per head."""
    numbers = op.attributes
    return int(numbers["batch"] * numbers["features"] * numbers["length"] ** 2)


@dataclass(frozen=True, slots=True)
class HeadScores(AttentionLowering):
    """result[q, k] = leftᵀ[q, H] · right[H, k] of every head, times 1 / sqrt(H) if `scaled`.

    (queries, H, keys), the left one transposed first. Nothing of it is a sum that is cut: H is short.
    """

    left: str
    right: str
    result: str
    scaled: bool

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, heads, queries, keys."""
        return _head_extents(op, "queries", "keys")

    def macs(self, op: Op, tensors: Tensors) -> int:
        """One product per head."""
        return _head_macs(op)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some queries and keys of some heads."""
        tile, dtype = _HeadTile.of(op, ranges), tensors[op[self.result]].dtype
        n, m = length_of(tile.queries), length_of(tile.keys)
        turned = Piece("turned", (n, tile.head))
        calls: list[KernelCall] = []
        for sample, head in tile.each():
            left = tile.rows_of(self.left, tile.queries, sample, head)
            calls += [
                transpose_piece_call(choice, left, turned, dtype),
                piece_matmul_call(
                    choice,
                    a=turned,
                    b=tile.rows_of(self.right, tile.keys, sample, head),
                    c=tile.matrix_of(self.result, sample, head),
                    n=n,
                    k=tile.head,
                    m=m,
                    trans_b=False,
                    dtype=dtype,
                ),
            ]
        if self.scaled:
            calls.append(scale_call(choice, tile.whole_matrix(self.result), self.scale(op), dtype))
        return TileTask(
            (tile.sequence(self.left, tile.queries), tile.sequence(self.right, tile.keys)),
            (tile.matrix(self.result),),
            (Scratch("turned", turned.shape, dtype),),
            tuple(calls),
        )


@dataclass(frozen=True, slots=True)
class HeadSum(AttentionLowering):
    """A sum of columns of `source`, weighted by the matrix `weights`, of every head.

    `over` keys: result[H, q] = source[H, k] · weights[q, k]ᵀ, the matmul with B transposed; over queries:
    result[H, k] = source[H, q] · weights[q, k].
    """

    source: str
    weights: str
    result: str
    over: str

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, heads, and the one of queries and keys that is not summed."""
        return _head_extents(op, "queries" if self.over == "keys" else "keys")

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The other one."""
        return {self.over: op.attributes["length"]}

    def macs(self, op: Op, tensors: Tensors) -> int:
        """One product per head."""
        return _head_macs(op)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some columns of some heads of the result, or what a part of their sums gives to them."""
        tile, dtype = _HeadTile.of(op, ranges), tensors[op[self.result]].dtype
        by_keys = self.over == "keys"
        summed, kept = (tile.keys, tile.queries) if by_keys else (tile.queries, tile.keys)
        calls = [
            piece_matmul_call(
                choice,
                a=tile.rows_of(self.source, summed, sample, head),
                b=tile.matrix_of(self.weights, sample, head),
                c=tile.rows_of(self.result, kept, sample, head),
                n=tile.head,
                k=length_of(summed),
                m=length_of(kept),
                trans_b=by_keys,
                dtype=dtype,
            )
            for sample, head in tile.each()
        ]
        return TileTask(
            (tile.sequence(self.source, summed), tile.matrix(self.weights)),
            (tile.sequence(self.result, kept),),
            (),
            tuple(calls),
        )


class _Rows(NoMatmul):
    """A step on whole rows of scores."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, heads, queries."""
        return _head_extents(op, "queries")


class Probabilities(_Rows):
    """p = softmax of every row of the scores s."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some rows, in the three passes of softmax."""
        tile, dtype = _HeadTile.of(op, ranges), tensors[op["p"]].dtype
        source, target = tile.whole_matrix("s"), tile.whole_matrix("p")
        rows = source.shape[:1]
        return TileTask(
            (tile.matrix("s"),),
            (tile.matrix("p"),),
            (Scratch("maxima", rows, dtype), Scratch("sums", rows, dtype)),
            softmax_calls(choice, source, target, "maxima", "sums", dtype),
        )


class ProbabilityGradient(_Rows):
    """ds = (dp - sum of the row's dp · p) · p / sqrt(H)."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some rows, in two passes and the scale."""
        tile, dtype = _HeadTile.of(op, ranges), tensors[op["ds"]].dtype
        p, dp, ds = (tile.whole_matrix(role) for role in ("p", "dp", "ds"))
        return TileTask(
            (tile.matrix("p"), tile.matrix("dp")),
            (tile.matrix("ds"),),
            (Scratch("sums", p.shape[:1], dtype),),
            (
                *softmax_gradient_calls(choice, ds, p, dp, "sums", dtype),
                scale_call(choice, ds, AttentionLowering.scale(op), dtype),
            ),
        )
