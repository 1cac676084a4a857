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

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Tensors
from trainlib.primitives.contractions import matmul_reference as reference
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Step
from trainlib.primitives.lowering.axes import ONE, Axes, Form, Groups
from trainlib.primitives.lowering.calls import BATCH, batch_extent
from trainlib.primitives.lowering.products import Each, Product, ProductLowering, turning

TURNED, TERM = "turned", "term"
"""Scratch: a transposed matrix, and one further term of a sum over broadcast dimensions."""


class _Schema(LayerSchema):
    transpose_b: bool = False
    """Whether the second input is transposed before the product."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    (batch, *left), (_, *right) = inputs[0].shape, inputs[1].shape
    if not left or not right:
        raise ShapeError(
            f"the inputs of matmul have shapes {left} and {right} without the batch",
            where=where,
            cure="use vectors or matrices",
        )
    turned = attributes["transpose_b"] and len(right) > 1
    rows = left[-2] if len(left) > 1 else 1
    columns = (right[-2] if turned else right[-1]) if len(right) > 1 else 1
    inner = right[-1] if turned or len(right) == 1 else right[-2]
    if left[-1] != inner:
        raise ShapeError(
            f"cannot multiply {tuple(left)} by {tuple(right)}: the first has {left[-1]} columns, the "
            f"second {inner} rows",
            where=where,
            cure=f"use a second input of {left[-1]} rows (with transpose_b: true: of {left[-1]} columns)",
        )
    try:
        leading = np.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2]))
    except ValueError as error:
        raise ShapeError(
            f"cannot broadcast the leading dimensions {tuple(left[:-2])} and {tuple(right[:-2])}",
            where=where,
            cure="use leading dimensions that are equal or 1",
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


DIMENSIONS = {"rows": "n", "inner": "k", "columns": "m"}
"""Dimensions of the product that may be cut, with the attribute that holds their size."""


def _axes(op: Op) -> Mapping[str, tuple[str, str]]:
    """The dimensions of every matrix as it is stored, a vector's with one of 1."""
    right = ("columns", "inner") if op.attributes["transpose_b"] else ("inner", "columns")
    return {"x": ("rows", "inner"), "x1": right, "y": ("rows", "columns")}


def _keeps_leading(op: Op, kind: str) -> bool:
    """Whether a tensor has the first leading dimension of y, and was not broadcast over it."""
    leading, whole = op.attributes["leading"][kind], op.attributes["leading"]["y"]
    return bool(leading) and len(leading) == len(whole) and leading[0] == whole[0]


class _Product(ProductLowering):
    """A product of two of x, x1 and y (or gradients) that gives the third, whose role is `result`.

    Output matrices that were broadcast are terms of a sum: the first is written, further ones are added.
    Tensors are named by role; a gradient has the dimensions of what it is of.
    """

    def __init__(self, result: str) -> None:
        self.result = result

    def leading(self, op: Op, kind: str) -> Axes:
        """Those before the matrix, by their places in y; one that is broadcast over it is none."""
        own, whole = op.attributes["leading"][kind], op.attributes["leading"]["y"]
        names = ["leading", *(f"{place} of y" for place in range(1, len(whole)))]
        pairs = [*zip(names, whole, strict=False)][len(whole) - len(own) :]
        return tuple(name if size == of_y else ONE for size, (name, of_y) in zip(own, pairs, strict=True))

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Samples, leading dimensions, and those of the stored matrix that are no vector's."""
        kind, vectors = role.removeprefix("d"), op.attributes["vectors"]
        axes: tuple[str, ...] = _axes(op)[kind]
        if kind == "y":
            owners = zip(axes, ("x", "x1"), strict=True)
            axes = tuple(axis for axis, owner in owners if owner not in vectors)
        elif kind in vectors:
            axes = ("inner",)
        leading = self.leading(op, kind)
        return (BATCH, *leading, *(axes if axes or op.attributes["leading"]["y"] else (ONE,)))

    def dimensions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """With the rows or columns of a vector, and the leading dimensions of all."""
        sizes = dict(zip(self.leading(op, "y"), op.attributes["leading"]["y"], strict=True))
        matrix = {name: op.attributes[size] for name, size in DIMENSIONS.items()}
        return {**super().dimensions(op, tensors), **sizes, **matrix}

    def _summed(self, op: Op) -> str:
        """The dimension that is multiplied away."""
        return next(name for name in DIMENSIONS if name not in _axes(op)[self.result])

    def default_kernel(self, op: Op) -> str:
        """The naive kernel, split over the rows of its result, or over columns if there are more of them."""
        rows, columns = (op.attributes[DIMENSIONS[axis]] for axis in _axes(op)[self.result])
        return "mm" if rows >= columns else "mm_M"

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, first leading dimension, two of rows, columns and inner dimension."""
        numbers = op.attributes
        sizes = dict(batch_extent(numbers["batch"]))
        if _keeps_leading(op, self.result) and numbers["leading"]["y"][0] > 1:
            sizes["leading"] = numbers["leading"]["y"][0]
        kept = (name for name in DIMENSIONS if name != self._summed(op))
        return {**sizes, **{name: numbers[DIMENSIONS[name]] for name in kept}}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The dimension that is multiplied away, and a first leading dimension that is summed."""
        summed, whole = self._summed(op), op.attributes["leading"]["y"]
        sizes = {summed: op.attributes[DIMENSIONS[summed]]}
        if whole and whole[0] > 1 and not _keeps_leading(op, self.result):
            sizes["leading"] = whole[0]
        return sizes

    def macs(self, op: Op, tensors: Tensors) -> int:
        """n · k · m per output matrix, in every step."""
        numbers = op.attributes
        matrices = numbers["batch"] * prod(numbers["leading"]["y"])
        return int(matrices * numbers["n"] * numbers["k"] * numbers["m"])

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """The left matrix, and a term."""
        rows, columns = _axes(form.op)[self.result]
        return {TURNED: ((rows,), (self._summed(form.op),)), TERM: ((rows,), (columns,))}

    def kernels(self, form: Form) -> Sequence[Each]:
        """A left operand that lies the other way is transposed first."""
        op, stored = form.op, _axes(form.op)
        (rows, columns), summed = stored[self.result], self._summed(op)
        left, right = op.reads if rows in stored[op.reads[0].removeprefix("d")] else reversed(op.reads)
        trans_b = stored[right.removeprefix("d")] != (summed, columns)
        turned = (
            [] if stored[left.removeprefix("d")] == (rows, summed) else [turning(left, TURNED, summed, rows)]
        )
        loops, kept = self.leading(op, "y"), self.leading(op, self.result)
        a, over = TURNED if turned else left, tuple(loop for loop in loops if loop not in kept)
        (target,), dimensions = op.writes, ((rows,), (summed,), (columns,))
        product = Product(a, right, target, *dimensions, trans_b, TERM, over)
        return (Each((BATCH, *loops), [*turned, product]),)


PRIMITIVE = LayerPrimitive(
    name="matmul",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x x1 -> y", reference.forward, _Product("y")),
        Step.of("IG", "dy x1 -> dx", reference.left_gradient, _Product("x")),
        Step.of("IG1", "x dy -> dx1", reference.right_gradient, _Product("x1")),
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
    inputs=(2, 2),
    layouts=None,
)
