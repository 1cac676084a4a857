# SPDX-License-Identifier: Apache-2.0
"""Embedding: y[..., :] = w[x[...], :] for integer numbers x; dw sums the gradients of equal numbers.

Numbers outside [0, vocabulary) are refused when they are met. FW copies rows, tokens over the cores; samples,
tokens and columns may be cut, and the table by rows: a tile then gives zeros for numbers that are in another
part, as if y were a sum over the rows of the table. WG zeroes its box of dw and adds token by token, columns
over the cores, so that equal numbers cannot race; all dimensions may be cut.
PULP-TrainLib has FW only (a transfer per token, with an uninitialised command handle). Which rows are touched
is not known before the data: the price is that of rows spread evenly over the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from configs.dtypes import INT32
from configs.errors import InputError, ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Initial, Op, Tensor
from trainlib.ir.numerics import details_of_sums, rounded, widened
from trainlib.ir.steps import Array, Function, Tensors
from trainlib.primitives.definition import (
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    NotNegative,
    Parameter,
    Positive,
    Shape,
    Step,
    Values,
)
from trainlib.primitives.lowering.axes import LEADING, Area, Axes, AxesLowering, Form, Kernel
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.lowering.placed import Fill, Placed


class _Schema(LayerSchema):
    vocabulary: Positive
    """Rows of the table; token ids are 0 to vocabulary - 1."""
    features: Positive
    """Columns of the table."""
    padding_id: NotNegative | None = None
    """A token id whose row gets no gradient."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    vocabulary, features = attributes["vocabulary"], attributes["features"]
    source, padding = inputs[0], attributes["padding_id"]
    if source.dtype.is_float:
        raise ShapeError(
            f"embedding needs an integer input, but its input is {source.dtype}",
            where=where,
            cure="connect the embedding directly to a model input, and add 'classes' to that input",
        )
    if padding is not None and padding >= vocabulary:
        cure = f"use padding_id: 0 to {vocabulary - 1}"
        raise ShapeError(f"padding_id {padding} is outside the vocabulary", where=where, cure=cure)
    numbers = {
        "batch": source.shape[0],
        "vocabulary": vocabulary,
        "features": features,
        "padding_id": padding,
    }
    parameters = {"w": Parameter((vocabulary, features), Initial("normal", 1.0))}
    return LayerPlan((*source.shape, features), parameters, attributes=numbers)


def _check(op: Op, numbers: Array) -> None:
    """InputError for a number that is not in the table."""
    vocabulary = op.attributes["vocabulary"]
    wrong = numbers[(numbers < 0) | (numbers >= vocabulary)]
    if wrong.size:
        raise InputError(
            f"the input holds the number {int(wrong.flat[0])}, but the vocabulary has {vocabulary} entries",
            where=op.name,
            cure=f"use numbers from 0 to {vocabulary - 1}, or a larger vocabulary",
        )


class _OfTokens(AxesLowering):
    """What the steps share: which of the tokens have a row of a tile depends on where the rows lie."""

    placed = True
    table: str
    vectors: str

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Samples, tokens and further dimensions of the numbers; rows and columns of the table."""
        rank = len(tensors[op["x"]].shape)
        numbers = (BATCH, "tokens", *LEADING[2:rank])
        table = ("vocabulary", "features")
        return numbers if role == "x" else table if role.endswith("w") else (*numbers, "features")

    def loop(self, form: Form, nest: str, moves: str = "") -> Placed:
        """Over tokens, between the table and vectors; rows are taken as spread evenly over the table."""
        buffers, sizes = f"W:{self.table} Y:{self.vectors} T:x", {"N": form.axes("x"), "M": ("features",)}

        def spread(area: Area) -> Shape:
            height, columns = area.sizes(self.table)
            return height // prod(area.sizes("x")) * columns, 1

        strides = {"W": spread, "Y": lambda area: (area.shape("features")[0], 1)}
        return Placed(nest, buffers, self.formula, self.known, sizes, strides=strides, moves=moves)

    def formula(self, area: Area, build: TileBuilder) -> Function:
        """What is done with the rows of the tile."""
        raise NotImplementedError

    def known(self, area: Area, build: TileBuilder) -> Mapping[str, Any]:
        """Which rows these are."""
        return {"first_row": area.extents["vocabulary"][0], "rows": area.shape("vocabulary")[0]}


class _Forward(_OfTokens):
    """FW: copies of rows; zeros for numbers whose row is elsewhere."""

    kept, summed, table, vectors = (BATCH, "tokens", "features"), ("vocabulary",), "w", "y"

    def kernels(self, form: Form) -> Sequence[Placed]:
        return (self.loop(form, "embedding_fw"),)

    def formula(self, area: Area, build: TileBuilder) -> Function:
        """Rows by number."""
        op, rows = area.op, area.extents["vocabulary"]

        def rows_of(arrays: Sequence[Array]) -> tuple[Array, ...]:
            numbers, table = arrays
            _check(op, numbers)
            here = (rows[0] <= numbers) & (numbers < rows[1])
            return (np.where(here[..., None], table[np.where(here, numbers - rows[0], 0)], np.float32(0)),)

        return rows_of


class _WeightGradient(_OfTokens):
    """WG: some numbers, some columns of their gradients; tokens of other rows are passed over."""

    kept, summed, table, vectors = ("vocabulary", "features"), (BATCH, "tokens"), "dw", "dy"

    def kernels(self, form: Form) -> Sequence[Kernel]:
        """Zeros, and additions."""
        return (Fill("dw"), self.loop(form, "embedding_bw", "x dy dw -> dw"))

    def formula(self, area: Area, build: TileBuilder) -> Function:
        """One token after the other."""
        op, rows, padding = area.op, area.extents["vocabulary"], area.op.attributes["padding_id"]

        def added(arrays: Sequence[Array]) -> tuple[Array, ...]:
            x, dy, dw = arrays
            _check(op, x)
            total, gradients = dw.copy(), dy.reshape(-1, dy.shape[-1])
            for place, number in enumerate(x.reshape(-1)):
                if rows[0] <= number < rows[1] and number != padding:
                    row = total[number - rows[0]] + gradients[place]
                    total[number - rows[0]] = (
                        widened(rounded(row, build.dtype)) if build.choice.accumulation == "kernel" else row
                    )
            return (total,)

        return added

    def known(self, area: Area, build: TileBuilder) -> Mapping[str, Any]:
        """With the number that gets no gradient, and how sums are rounded."""
        padding, rounding = (
            area.op.attributes["padding_id"],
            details_of_sums(build.choice.accumulation, build.dtype),
        )
        return {**super().known(area, build), "padding": -1 if padding is None else padding, **rounding}


def _reference_forward(op: Op, values: Values) -> Values:
    _check(op, values["x"])
    return {"y": np.take(values["w"], values["x"], axis=0)}


def _reference_weight_gradient(op: Op, values: Values) -> Values:
    _check(op, values["x"])
    dy = values["dy"]
    dw = np.zeros((op.attributes["vocabulary"], dy.shape[-1]), dy.dtype)
    np.add.at(dw, values["x"], dy)
    if op.attributes["padding_id"] is not None:
        dw[op.attributes["padding_id"]] = 0
    return {"dw": dw}


PRIMITIVE = LayerPrimitive(
    name="embedding",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w -> y", _reference_forward, _Forward()),
        Step.of("WG", "x dy -> dw", _reference_weight_gradient, _WeightGradient()),
    ),
    examples=(
        Example({"vocabulary": 5, "features": 4}, (DrawnInput((6,), INT32, 0, 5),)),
        Example(
            {"vocabulary": 9, "features": 3, "padding_id": 2}, (DrawnInput((2, 4), INT32, 0, 4),), roundings=4
        ),
        Example({"vocabulary": 1, "features": 1}, (DrawnInput((1,), INT32, 0, 1),)),
    ),
    layouts=None,
)
