# SPDX-License-Identifier: Apache-2.0
"""Matrix product of two activations by NumPy's rules: y = x @ x1 per sample, leading dimensions broadcast.

The batch comes first in both and is not broadcast against the rest: the rules hold for shapes of a sample.
A vector is a row on the left and a column on the right, and its dimension is dropped from the result. With
`transpose_b` the last two dimensions of x1 are exchanged first, which matmul kernels do for nothing.

One kernel call per output matrix, as in PULP-TrainLib's broadcast matmul, which has FW only and reads an
uninitialised kernel number. IG gives dx and IG1 gives dx1, each summed over the dimensions it was broadcast
over. Samples, the first leading dimension, rows and columns of the result of a step may be cut, and its sum:
over the inner dimension in FW, over columns in IG, over rows in IG1, and over a first leading dimension that
the result was broadcast over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.contractions import matmul_reference as reference
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Refused, Shape, Step
from trainlib.primitives.lowering.calls import NoMatmul, batch_extent, batch_range, box
from trainlib.primitives.lowering.pieces import Piece, TileBuilder
from trainlib.steps import Extent, KernelChoice, Operand, Ranges, Tensors, TileTask

TURNED, TERM = "turned", "term"
"""Scratch: a transposed matrix, and one further term of a sum over broadcast dimensions."""

ROLES = ("x", "x1", "y")


class _Schema(LayerSchema):
    transpose_b: bool = False
    """Whether the second input is transposed before the product."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    (batch, *left), (_, *right) = inputs[0].shape, inputs[1].shape
    if not left or not right:
        raise ShapeError("matmul needs vectors or matrices", where=where)
    turned = attributes["transpose_b"] and len(right) > 1
    rows = left[-2] if len(left) > 1 else 1
    columns = (right[-2] if turned else right[-1]) if len(right) > 1 else 1
    inner = right[-1] if turned or len(right) == 1 else right[-2]
    if left[-1] != inner:
        raise ShapeError(
            f"cannot multiply {tuple(left)} by {tuple(right)}: {left[-1]} columns meet {inner} rows",
            where=where,
            cure="transpose_b if the second is stored transposed",
        )
    try:
        leading = np.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2]))
    except ValueError as error:
        raise ShapeError(
            f"leading dimensions {tuple(left[:-2])} and {tuple(right[:-2])} cannot be broadcast", where=where
        ) from error
    output = [*leading, *([rows] if len(left) > 1 else []), *([columns] if len(right) > 1 else [])]
    if not output:
        output = [1]
    numbers = {
        "batch": batch,
        "n": rows,
        "k": inner,
        "m": columns,
        "leading": {"x": tuple(left[:-2]), "x1": tuple(right[:-2]), "y": tuple(leading)},
        "vectors": tuple(role for role, shape in (("x", left), ("x1", right)) if len(shape) == 1),
        "transpose_b": turned,
    }
    return LayerPlan((batch, *output), attributes=numbers)


@dataclass(frozen=True, slots=True)
class _Tile:
    """Which samples, which part of the first leading dimension, rows, columns and of the inner dimension."""

    op: Op
    samples: Extent
    first: Extent
    rows: Extent
    columns: Extent
    inner: Extent

    @property
    def counts(self) -> tuple[int, int, int]:
        """Rows, inner dimension, columns."""
        n, k, m = (stop - start for start, stop in (self.rows, self.inner, self.columns))
        return n, k, m

    @property
    def leading(self) -> Shape:
        """Leading dimensions of y in this tile."""
        whole: Shape = self.op.attributes["leading"]["y"]
        return (self.first[1] - self.first[0], *whole[1:]) if whole else ()

    def leading_region(self, role: str) -> tuple[Extent, ...]:
        """The box of the leading dimensions of a tensor."""
        own: Shape = self.op.attributes["leading"][role]
        whole: Shape = self.op.attributes["leading"]["y"]
        region = [(0, size) for size in own]
        if own and len(own) == len(whole) and own[0] == whole[0]:
            region[0] = self.first
        return tuple(region)

    def matrix(self, role: str) -> tuple[Extent, ...]:
        """The box of the stored matrix of a tensor."""
        numbers, inner = self.op.attributes, self.inner
        if role == "x":
            return (inner,) if "x" in numbers["vectors"] else (self.rows, inner)
        if role == "x1":
            if "x1" in numbers["vectors"]:
                return (inner,)
            return (self.columns, inner) if numbers["transpose_b"] else (inner, self.columns)
        kept = [("x", self.rows), ("x1", self.columns)]
        region = tuple(extent for owner, extent in kept if owner not in numbers["vectors"])
        return region if region or numbers["leading"]["y"] else ((0, 1),)

    def operand(self, name: str, role: str) -> Operand:
        """The box of the tensor (or gradient) `name`, which has the shape of `role`."""
        return box(self.op, name, self.samples, *self.leading_region(role), *self.matrix(role))

    def piece(self, name: str, role: str, at: tuple[int, Shape], *matrix: int) -> Piece:
        """What belongs to an output matrix of `matrices`, as a `matrix` of so many rows and columns."""
        region = self.leading_region(role)
        sizes = [stop - start for start, stop in region]
        shape = tuple(stop - start for start, stop in self.matrix(role))
        place, index = at
        for size, here in zip(sizes, index[len(index) - len(sizes) :], strict=True):
            place = place * size + (here if size > 1 else 0)
        return Piece(name, matrix or shape, place * prod(shape))

    def matrices(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Every sample and every output matrix."""
        for sample in range(self.samples[1] - self.samples[0]):
            for index in product(*(range(size) for size in self.leading)):
                yield sample, index


DIMENSIONS = {"rows": "n", "inner": "k", "columns": "m"}
"""Dimensions of the product that may be cut, with the attribute that holds their size."""


class _Product(NoMatmul):
    """What the three steps share: `result` is the role whose shape the result has, `summed` what it sums."""

    result = "y"
    summed = "inner"

    def default_kernel(self, op: Op) -> str:
        """The naive kernel, split over the rows of its result, or over columns if there are more of them."""
        n, _, m = self.sizes(op)
        return "mm" if n >= m else "mm_M"

    def sizes(self, op: Op) -> tuple[int, int, int]:
        """Extents of the kernel."""
        return op.attributes["n"], op.attributes["k"], op.attributes["m"]

    def _keeps_leading(self, op: Op) -> bool:
        """Whether the result has the first leading dimension of y, and was not broadcast over it."""
        own, whole = op.attributes["leading"][self.result], op.attributes["leading"]["y"]
        return bool(own) and len(own) == len(whole) and own[0] == whole[0]

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, first leading dimension, two of rows, columns and inner dimension."""
        numbers = op.attributes
        sizes = dict(batch_extent(numbers["batch"]))
        if self._keeps_leading(op) and numbers["leading"]["y"][0] > 1:
            sizes["leading"] = numbers["leading"]["y"][0]
        for name, attribute in DIMENSIONS.items():
            if name != self.summed:
                sizes[name] = numbers[attribute]
        return sizes

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The dimension that is multiplied away, and a first leading dimension that is summed."""
        numbers = op.attributes
        sizes = {self.summed: numbers[DIMENSIONS[self.summed]]}
        whole = numbers["leading"]["y"]
        if whole and whole[0] > 1 and not self._keeps_leading(op):
            sizes["leading"] = whole[0]
        return sizes

    def macs(self, op: Op, tensors: Tensors) -> int:
        """n · k · m per output matrix, in every step."""
        numbers = op.attributes
        matrices = numbers["batch"] * prod(numbers["leading"]["y"])
        return int(matrices * numbers["n"] * numbers["k"] * numbers["m"])

    def ranges(self, op: Op, ranges: Ranges) -> _Tile:
        """What a tile covers; dimensions that are not cut are whole."""
        numbers = op.attributes
        whole = numbers["leading"]["y"]
        first = ranges.get("leading", (0, whole[0] if whole else 1))
        rows, inner, columns = (
            ranges.get(name, (0, numbers[attribute])) for name, attribute in DIMENSIONS.items()
        )
        return _Tile(op, batch_range(ranges, numbers["batch"]), first, rows, columns, inner)


class _Forward(_Product):
    """FW: one matmul per output matrix."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """A box of the left matrices, one of the right ones."""
        tile, build = self.ranges(op, ranges), TileBuilder(choice, tensors[op["y"]].dtype)
        n, k, m = tile.counts
        for at in tile.matrices():
            x, y = tile.piece("x", "x", at, n, k), tile.piece("y", "y", at, n, m)
            build.matmul(x, tile.piece("x1", "x1", at), y, trans_b=op.attributes["transpose_b"])
        return build.task((tile.operand("x", "x"), tile.operand("x1", "x1")), (tile.operand("y", "y"),))


class _LeftGradient(_Product):
    """IG: dx = sum of dy · x1ᵀ, which is B transposed for the kernel unless x1 is stored transposed."""

    result = "x"
    summed = "columns"

    def sizes(self, op: Op) -> tuple[int, int, int]:
        """Extents of the kernel."""
        return op.attributes["n"], op.attributes["m"], op.attributes["k"]

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """A box of dy; the first term of a sum is written, further ones are added."""
        tile, build = self.ranges(op, ranges), TileBuilder(choice, tensors[op["dx"]].dtype)
        n, k, m = tile.counts
        term = build.temporary(TERM, n, k) if _sums(op, "x") else None
        seen: set[int | None] = set()
        for at in tile.matrices():
            dy, dx = tile.piece("dy", "y", at, n, m), tile.piece("dx", "x", at, n, k)
            further, turned = term if dx.first in seen else None, not op.attributes["transpose_b"]
            build.added_matmul(dy, tile.piece("x1", "x1", at), dx, further, trans_b=turned)
            seen.add(dx.first)
        return build.task((tile.operand("dy", "y"), tile.operand("x1", "x1")), (tile.operand("dx", "x"),))


class _RightGradient(_Product):
    """IG1: dx1 = sum of xᵀ · dy, or dyᵀ · x if x1 is stored transposed; the left one is transposed first."""

    result = "x1"
    summed = "rows"

    def sizes(self, op: Op) -> tuple[int, int, int]:
        """Extents of the kernel."""
        numbers = op.attributes
        n, k, m = numbers["n"], numbers["k"], numbers["m"]
        return (m, n, k) if numbers["transpose_b"] else (k, n, m)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """A box of dy; the first term of a sum is written, further ones are added."""
        tile, build = self.ranges(op, ranges), TileBuilder(choice, tensors[op["dx1"]].dtype)
        n, k, m = tile.counts
        stored = op.attributes["transpose_b"]
        height, width = (m, k) if stored else (k, m)
        turned = build.temporary(TURNED, height, n)
        term = build.temporary(TERM, height, width) if _sums(op, "x1") else None
        seen: set[int | None] = set()
        for at in tile.matrices():
            x, dy = tile.piece("x", "x", at, n, k), tile.piece("dy", "y", at, n, m)
            left, right = (dy, x) if stored else (x, dy)
            dx1 = tile.piece("dx1", "x1", at, height, width)
            build.transpose(left, turned)
            build.added_matmul(turned, right, dx1, term if dx1.first in seen else None)
            seen.add(dx1.first)
        return build.task((tile.operand("x", "x"), tile.operand("dy", "y")), (tile.operand("dx1", "x1"),))


def _sums(op: Op, role: str) -> bool:
    leading = op.attributes["leading"]
    return bool(prod(leading[role]) != prod(leading["y"]))


def _cases() -> Any:
    from hypothesis import strategies as st

    @st.composite
    def examples(draw: Any) -> Example:
        n, k, m = (draw(st.integers(1, 4)) for _ in range(3))
        turned = draw(st.booleans())
        leading = draw(st.lists(st.integers(1, 3), max_size=3))
        shapes: list[Shape] = []
        for matrix in ((n, k), (m, k) if turned else (k, m)):
            if draw(st.integers(0, 4)) == 0:
                shapes.append((k,))
                continue
            own = [size if draw(st.booleans()) else 1 for size in leading]
            shapes.append((*own[draw(st.integers(0, len(own))) :], *matrix))
        return Example({"transpose_b": turned}, tuple(shapes))

    return examples()


PRIMITIVE = LayerPrimitive(
    name="matmul",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step("FW", ("x", "x1"), ("y",), reference.forward, _Forward()),
        Step("IG", ("dy", "x1"), ("dx",), reference.left_gradient, _LeftGradient()),
        Step("IG1", ("x", "dy"), ("dx1",), reference.right_gradient, _RightGradient()),
    ),
    examples=(
        Example(inputs=((2, 1, 3, 4), (5, 4, 2)), kernels=("mm", "mm_M")),
        Example({"transpose_b": True}, ((3, 2, 4), (3, 5, 4))),
        Example({"transpose_b": True}, ((2, 4), (3, 5, 4)), batches=(2,)),
        Example(inputs=((1, 4, 3), (6, 3, 2))),
        Example(inputs=((4,), (2, 4, 3))),
        Example(inputs=((2, 3, 4), (4,))),
        Example(inputs=((5,), (5,))),
    ),
    refused=(
        Refused({}, ((2, 3), (4, 5)), "3 columns meet 4 rows"),
        Refused({}, ((2, 4, 3), (3, 3, 5)), "cannot be broadcast"),
        Refused({"transpose_b": True}, ((2, 3), (3, 5)), "3 columns meet 5 rows"),
        Refused({}, ((2, 3),), "2 inputs"),
    ),
    inputs=(2, 2),
    cases=_cases,
    layouts=None,
)
