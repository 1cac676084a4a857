# SPDX-License-Identifier: Apache-2.0
"""Log-softmax over the last axis: y = x - max - log(sum(exp(x - max))); dx = dy - exp(y) · sum(dy).

No logarithm is taken of a probability, which may have become 0. PULP-TrainLib has none: its nests are
estimates, and the exponential is exact. Passes as in softmax, rows over the cores. As in the cross-entropy
(`trainlib.primitives.losses.cross_entropy`) sums are float64, rounded once: of a confident network the
logarithm, and dy - exp(y) · sum(dy), cancel almost entirely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from configs.dtypes import DType
from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.attention.softmax import MAXIMA, SUMS, Rows, row_call, row_maxima
from trainlib.primitives.definition import (
    Example,
    InputCase,
    LayerPlan,
    LayerPrimitive,
    Refused,
    Step,
    Values,
)
from trainlib.steps import Array, KernelCall, KernelChoice, Scratch


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    if len(shape) < 2:
        raise ShapeError("log_softmax needs a last axis behind the batch", where=where)
    return LayerPlan(shape)


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1]).astype(np.float64)


class _Forward(Rows):
    def passes(
        self, op: Op, shape: tuple[int, ...], dtype: DType, choice: KernelChoice
    ) -> tuple[tuple[Scratch, ...], tuple[KernelCall, ...]]:
        """Row maxima; logarithms of the sums of exponentials; both taken off."""

        def logarithms(x: Array, highest: Array) -> tuple[Array, ...]:
            below = np.exp(_rows(x) - highest[:, None])
            return (np.log(below.sum(axis=1)).astype(np.float32),)

        def shifted(x: Array, highest: Array, logs: Array) -> tuple[Array, ...]:
            below = _rows(x) - highest[:, None] - logs[:, None]
            return (below.astype(np.float32).reshape(shape),)

        rows = (prod(shape[:-1]),)
        vectors = {"R": 1, "Z": 1}
        places = ("x", MAXIMA, SUMS)
        calls = (
            row_maxima(choice, shape, dtype),
            row_call(
                choice,
                "log_sum",
                {"X": 2, **vectors},
                places,
                shape,
                dtype,
                ("x", MAXIMA),
                (SUMS,),
                logarithms,
            ),
            row_call(
                choice,
                "log_shift",
                {"X": 2, **vectors, "Y": 2},
                (*places, "y"),
                shape,
                dtype,
                places,
                ("y",),
                shifted,
            ),
        )
        return (Scratch(MAXIMA, rows), Scratch(SUMS, rows)), calls


class _InputGradient(Rows):
    def passes(
        self, op: Op, shape: tuple[int, ...], dtype: DType, choice: KernelChoice
    ) -> tuple[tuple[Scratch, ...], tuple[KernelCall, ...]]:
        """Row sums of dy; then dy - exp(y) · sum."""

        def sums(dy: Array) -> tuple[Array, ...]:
            return (_rows(dy).sum(axis=1).astype(np.float32),)

        def taken_off(y: Array, dy: Array, totals: Array) -> tuple[Array, ...]:
            left = _rows(dy) - np.exp(_rows(y)) * totals[:, None]
            return (left.astype(np.float32).reshape(shape),)

        places = ("y", "dy", SUMS)
        calls = (
            row_call(
                choice, "row_total", {"X": 2, "Z": 1}, ("dy", SUMS), shape, dtype, ("dy",), (SUMS,), sums
            ),
            row_call(
                choice,
                "log_softmax_bw",
                {"X": 2, "G": 2, "Z": 1, "Y": 2},
                (*places, "dx"),
                shape,
                dtype,
                places,
                ("dx",),
                taken_off,
            ),
        )
        return (Scratch(SUMS, (prod(shape[:-1]),)),), calls


def _forward(op: Op, values: Values) -> Values:
    x = values["x"].astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)  # beside large x the logarithm of the sum would be lost
    return {"y": x - np.logaddexp.reduce(x, axis=-1, keepdims=True)}


def _backward(op: Op, values: Values) -> Values:
    dy = values["dy"].astype(np.float64)
    return {"dx": dy - np.exp(values["y"].astype(np.float64)) * np.sum(dy, axis=-1, keepdims=True)}


PRIMITIVE = LayerPrimitive(
    name="log_softmax",
    schema=LayerSchema,
    plan=_plan,
    steps=(
        Step("FW", ("x",), ("y",), _forward, _Forward()),
        Step("IG", ("y", "dy"), ("dx",), _backward, _InputGradient()),
    ),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=(InputCase((3, 4, 5), low=-9, high=9),)),
        Example(inputs=(InputCase((2, 9), low=-4, high=4),)),
    ),
    refused=(Refused({"exponential": "taylor"}, ((3,),), "exponential"),),
)
