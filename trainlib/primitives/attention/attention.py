# SPDX-License-Identifier: Apache-2.0
"""Heads of attention as kernel calls: scores, their softmax, weighted sums, and the gradients of these.

Sequences are kept as [batch, F, L], a head is H = F / heads rows of that; scores as [batch, heads, queries,
keys]. One step does one product (or one softmax), so that every dimension of it may be cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from trainlib.graph import Op
from trainlib.primitives.attention.softmax import RowPasses, softmax_gradient_passes, softmax_passes
from trainlib.primitives.lowering.calls import BATCH, NoMatmul, box
from trainlib.primitives.lowering.pieces import Piece, TileBuilder
from trainlib.steps import KernelChoice, Operand, Ranges, Tensors, TileTask, part

_SIZES = {
    BATCH: "batch",
    "heads": "heads",
    "queries": "length",
    "keys": "length",
    "tokens": "length",
    "width": "width",
    "features": "features",
}
"""Dimensions of steps, and the attributes that hold their sizes."""

SCORES = (BATCH, "heads", "queries", "keys")


class Area:
    """What a tile covers of every dimension; what `ranges` does not name is whole."""

    def __init__(self, op: Op, ranges: Ranges) -> None:
        self.op = op
        self.extents = {name: (0, op.attributes[size]) for name, size in _SIZES.items()} | dict(ranges)
        self.head = op.attributes["features"] // op.attributes["heads"]
        first, last = self.extents["heads"]
        self.extents["rows"] = first * self.head, last * self.head

    def box(self, role: str, axes: tuple[str, ...]) -> Operand:
        """The box of a tensor with these axes."""
        return box(self.op, role, *(self.extents[axis] for axis in axes))

    def shape(self, *axes: str) -> tuple[int, ...]:
        """Elements along these axes."""
        return tuple(stop - start for start, stop in (self.extents[axis] for axis in axes))

    @property
    def samples(self) -> range:
        """Counted from 0 in the tile."""
        return range(*self.shape(BATCH))

    def heads(self) -> Iterator[tuple[int, int]]:
        """Every sample and head, counted from 0 in the tile."""
        (count,) = self.shape("heads")
        return ((sample, head) for sample in self.samples for head in range(count))

    def of_head(self, role: str, axes: tuple[str, ...], sample: int, head: int) -> Piece:
        """The matrix of one head of a sequence or of scores."""
        (heads,), (rows, columns) = self.shape("heads"), self.shape(*axes[-2:])
        rows = self.head if axes[-2] == "rows" else rows
        return Piece(part(role, sample), (heads, rows, columns), 0).row(head)


class AttentionLowering(NoMatmul):
    """What the steps of attention share."""

    kept: tuple[str, ...] = ()
    """Dimensions of the result."""
    summed: tuple[str, ...] = ()
    multiplied: tuple[str, ...] = ("batch", "features", "length", "length")
    """What the multiply-accumulates are the product of."""

    def default_kernel(self, op: Op) -> str:
        """The naive row-parallel kernel."""
        return "mm"

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The result's own dimensions."""
        return _sizes(op, self.kept)

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """What is summed."""
        return _sizes(op, self.summed)

    def macs(self, op: Op, tensors: Tensors) -> int:
        """Of all samples."""
        return prod(op.attributes[name] for name in self.multiplied)

    def axes(self, role: str) -> tuple[str, ...]:
        """Dimensions of a tensor, as this step names them."""
        raise NotImplementedError

    def moved(self, area: Area, role: str) -> bool:
        """Whether a tile reads or writes a tensor of the step."""
        return True

    def compute(self, area: Area, build: RowPasses) -> None:
        """The calls of a tile."""
        raise NotImplementedError

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """A box of everything."""
        area, dtype = Area(op, ranges), tensors[op.outputs[0]].dtype
        build = RowPasses(choice, area.shape(*SCORES), dtype, of_rows=dtype)
        self.compute(area, build)
        inputs, outputs = (
            [area.box(role, self.axes(role)) for role in roles if self.moved(area, role)]
            for roles in (op.reads, op.writes)
        )
        return build.task(inputs, outputs)


def _sizes(op: Op, names: tuple[str, ...]) -> dict[str, int]:
    """Sizes of dimensions, without a batch of 1."""
    sizes = {name: op.attributes[_SIZES[name]] for name in names}
    return {name: size for name, size in sizes.items() if name != BATCH or size > 1}


def scale(build: TileBuilder, target: Piece, op: Op) -> None:
    """target *= 1 / sqrt(H)."""
    factor = np.float32((op.attributes["features"] // op.attributes["heads"]) ** -0.5)
    arrays, size = {"X": target, "Y": target}, prod(target.shape)
    build.run("scale_by_number", arrays, (target,), (target,), lambda x: x * factor, elements=size)


def whole_matrix(area: Area, role: str) -> Piece:
    """All rows of a box of scores as one matrix."""
    *rows, columns = area.shape(*SCORES)
    return Piece(role, (prod(rows), columns), 0)


class HeadScores(AttentionLowering):
    """result[q, k] = leftᵀ[q, H] · right[H, k] of every head, times 1 / sqrt(H) if `scaled`.

    (queries, H, keys), the left one transposed first. Nothing of it is a sum that is cut: H is short.
    """

    kept = SCORES

    def __init__(self, left: str, right: str, result: str, *, scaled: bool) -> None:
        self._axes = {left: (BATCH, "rows", "queries"), right: (BATCH, "rows", "keys"), result: SCORES}
        self.left, self.right, self.result, self.scaled = left, right, result, scaled

    def axes(self, role: str) -> tuple[str, ...]:
        """Rows of heads by queries or keys."""
        return self._axes[role]

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some queries and keys of some heads."""
        turned = build.temporary("turned", *area.shape("queries"), area.head)
        for at in area.heads():
            left, right, result = (area.of_head(role, axes, *at) for role, axes in self._axes.items())
            build.transpose(left, turned)
            build.matmul(turned, right, result)
        if self.scaled:
            scale(build, whole_matrix(area, self.result), area.op)


class HeadSum(AttentionLowering):
    """A sum of columns of `source`, weighted by the matrix `weights`, of every head.

    `over` keys: result[H, q] = source[H, k] · weights[q, k]ᵀ, the matmul with B transposed; over queries:
    result[H, k] = source[H, q] · weights[q, k].
    """

    def __init__(self, source: str, weights: str, result: str, over: str) -> None:
        left = "queries" if over == "keys" else "keys"
        self.kept, self.summed = (BATCH, "heads", left), (over,)
        self._axes = {source: (BATCH, "rows", over), weights: SCORES, result: (BATCH, "rows", left)}

    def axes(self, role: str) -> tuple[str, ...]:
        """Rows of heads by queries or keys."""
        return self._axes[role]

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some columns of some heads of the result, or what a part of their sums gives to them."""
        for at in area.heads():
            pieces = (area.of_head(role, axes, *at) for role, axes in self._axes.items())
            build.matmul(*pieces, trans_b=self.summed == ("keys",))


class _Rows(AttentionLowering):
    """A step on whole rows of scores."""

    kept = (BATCH, "heads", "queries")

    def default_kernel(self, op: Op) -> str:
        """No matmul, so no choice."""
        return ""

    def macs(self, op: Op, tensors: Tensors) -> int:
        """No multiply-accumulates are counted."""
        return 0

    def axes(self, role: str) -> tuple[str, ...]:
        """Those of scores."""
        return SCORES


class Probabilities(_Rows):
    """p = softmax of every row of the scores s."""

    def compute(self, area: Area, build: RowPasses) -> None:
        """Some rows, in the three passes of softmax."""
        softmax_passes(build, "s", "p")


class ProbabilityGradient(_Rows):
    """ds = (dp - sum of the row's dp · p) · p / sqrt(H)."""

    def compute(self, area: Area, build: RowPasses) -> None:
        """Some rows, in two passes and the scale."""
        softmax_gradient_passes(build, "p", "dp", "ds")
        scale(build, whole_matrix(area, "ds"), area.op)
