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
from typing import Any

import numpy as np

from configs.dtypes import INT32
from configs.errors import InputError, ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Initial, Op, Tensor
from trainlib.ir.numerics import rounded, widened
from trainlib.ir.steps import Array, KernelChoice, Ranges, Region, Tensors, TileTask
from trainlib.primitives.definition import (
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    NotNegative,
    Parameter,
    Positive,
    Step,
    Values,
)
from trainlib.primitives.lowering.calls import NoMatmul, batch_extent, batch_range, box, region_elements
from trainlib.primitives.lowering.pieces import Piece, TileBuilder


class _Schema(LayerSchema):
    vocabulary: Positive
    """Rows of the table: word numbers lie in [0, vocabulary)."""
    features: Positive
    """Columns of the table."""
    padding_id: NotNegative | None = None
    """A word number whose row gets no gradient."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    vocabulary, features = attributes["vocabulary"], attributes["features"]
    source, padding = inputs[0], attributes["padding_id"]
    if source.dtype.is_float:
        raise ShapeError(
            f"embedding needs an integer input, but its input is {source.dtype}",
            where=where,
            cure="connect it directly to an input with the key 'classes'",
        )
    if padding is not None and padding >= vocabulary:
        raise ShapeError(f"padding_id {padding} must be below the vocabulary size, {vocabulary}", where=where)
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


def _arrays(table: str, rows: int, vectors: str, tokens: int, columns: int) -> dict[str, Piece]:
    """Of a nest over tokens between a table of `rows` and vectors."""
    return {
        "W": Piece(table, strides=(rows // tokens * columns, 1)),
        "Y": Piece(vectors, strides=(columns, 1)),
        "T": Piece("x", dtype=INT32),
    }


def _token_extents(op: Op, tensors: Tensors) -> dict[str, int]:
    """Samples, and the first dimension of a sample's numbers."""
    return {**batch_extent(op.attributes["batch"]), "tokens": tensors[op["x"]].shape[1]}


def _token_region(op: Op, tensors: Tensors, ranges: Ranges) -> Region:
    """The numbers of a tile."""
    batch, first, *rest = tensors[op["x"]].shape
    inner = tuple((0, size) for size in rest)
    return (batch_range(ranges, batch), ranges.get("tokens", (0, first)), *inner)


class _Forward(NoMatmul):
    """FW."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        return {**_token_extents(op, tensors), "features": op.attributes["features"]}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        return {"vocabulary": op.attributes["vocabulary"]}

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        wanted, build = ranges["features"], TileBuilder(choice, tensors[op["y"]].dtype)
        rows = ranges.get("vocabulary", (0, op.attributes["vocabulary"]))
        region = _token_region(op, tensors, ranges)
        tokens, columns, height = region_elements(region), wanted[1] - wanted[0], rows[1] - rows[0]

        def rows_of(numbers: Array, table: Array) -> Array:
            _check(op, numbers)
            here = (rows[0] <= numbers) & (numbers < rows[1])
            return np.where(here[..., None], table[np.where(here, numbers - rows[0], 0)], np.float32(0))

        arrays = _arrays("w", height, "y", tokens, columns)
        build.run("embedding_fw", arrays, ("x", "w"), ("y",), rows_of, N=tokens, M=columns)
        build.known(first_row=rows[0], rows=height)
        return build.task(
            (box(op, "x", *region), box(op, "w", rows, wanted)), (box(op, "y", *region, wanted),)
        )


class _WeightGradient(NoMatmul):
    """WG."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        return {"vocabulary": op.attributes["vocabulary"], "features": op.attributes["features"]}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        return _token_extents(op, tensors)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some numbers, some columns of their gradients; tokens of other rows are passed over."""
        numbers, rows, wanted = op.attributes, ranges["vocabulary"], ranges["features"]
        build, region = TileBuilder(choice, tensors[op["dw"]].dtype), _token_region(op, tensors, ranges)
        height, columns = rows[1] - rows[0], wanted[1] - wanted[0]

        def added(x: Array, dy: Array, dw: Array) -> Array:
            _check(op, x)
            total = dw.copy()
            gradients = dy.reshape(-1, columns)
            for place, number in enumerate(x.reshape(-1)):
                if rows[0] <= number < rows[1] and number != numbers["padding_id"]:
                    row = total[number - rows[0]] + gradients[place]
                    total[number - rows[0]] = (
                        widened(rounded(row, build.dtype)) if choice.accumulation == "kernel" else row
                    )
            return total

        tokens = region_elements(region)
        build.zero(Piece("dw", (height, columns)))
        arrays = _arrays("dw", height, "dy", tokens, columns)
        build.run("embedding_bw", arrays, ("x", "dy", "dw"), ("dw",), added, N=tokens, M=columns)
        padding = numbers["padding_id"]
        build.known(first_row=rows[0], rows=height, padding=-1 if padding is None else padding)
        return build.task(
            (box(op, "x", *region), box(op, "dy", *region, wanted)), (box(op, "dw", rows, wanted),)
        )


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
