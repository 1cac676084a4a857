# SPDX-License-Identifier: Apache-2.0
"""Log-softmax over the last axis: y = x - max - log(sum(exp(x - max))); dx = dy - exp(y) · sum(dy).

No logarithm is taken of a probability, which may have become 0. PULP-TrainLib has none: its nests are
estimates, and the exponential is exact. Passes as in softmax, rows over the cores. As in the cross-entropy
(`trainlib.primitives.losses.cross_entropy`) sums are float64, rounded once: of a confident network the
logarithm, and dy - exp(y) · sum(dy), cancel almost entirely. C in fp32 keeps their digits as well: the 1 that
a largest element gives to the sum of exponentials is left out of it, and so is that of exp(y) near y = 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from configs.model_file import LayerSchema
from trainlib.ir.steps import Array
from trainlib.primitives.attention.softmax import MAXIMA, SUMS, Rows, over_rows, row_maxima
from trainlib.primitives.definition import DrawnInput, Example, LayerPlan, LayerPrimitive
from trainlib.primitives.elementwise.functions import first
from trainlib.primitives.lowering.axes import Form
from trainlib.primitives.lowering.boxes import rows_of
from trainlib.primitives.lowering.forks import Fork

NEAR = -0.7
"""Where exp(y) is about half, so that less than a bit of dy - exp(y) · sum(dy) is lost."""


def _logarithms(x: Array, highest: Array) -> Any:
    below = np.exp(x.astype(np.float64) - highest)
    rest = np.where(first(x == highest), 0, below)
    return np.log1p(rest.sum(axis=1))


def _shifted(x: Array, highest: Array, logs: Array) -> Any:
    return x.astype(np.float64) - highest - logs


def _sums(dy: Array) -> Any:
    return dy.astype(np.float64).sum(axis=1)


def _taken_off(y: Array, dy: Array, totals: Array) -> Any:
    y, dy = y.astype(np.float64), dy.astype(np.float64)
    near = (dy - totals) - np.expm1(y) * totals
    return np.where(y > NEAR, near, dy - np.exp(y) * totals)


def _forward(form: Form) -> list[Fork]:
    """Row maxima; logarithms of the sums of exponentials; both taken off."""
    arrays = f"X:x R:{MAXIMA} Z:{SUMS}"
    return [
        row_maxima(form, "x"),
        over_rows(form, "log_sum", arrays, f"x {MAXIMA} -> {SUMS}", _logarithms),
        over_rows(form, "log_shift", f"{arrays} Y:y", f"x {MAXIMA} {SUMS} -> y", _shifted),
    ]


def _backward(form: Form) -> list[Fork]:
    """Row sums of dy; then dy - exp(y) · sum."""
    return [
        over_rows(form, "row_total", f"X:dy Z:{SUMS}", f"dy -> {SUMS}", _sums),
        over_rows(form, "log_softmax_bw", f"X:y G:dy Z:{SUMS} Y:dx", f"y dy {SUMS} -> dx", _taken_off),
    ]


PRIMITIVE = LayerPrimitive(
    name="log_softmax",
    schema=LayerSchema,
    plan=lambda _, inputs, where: LayerPlan(rows_of(inputs[0], "log_softmax", where)),
    steps=(
        Rows(_forward).step("FW", "x -> y"),
        Rows(_backward, (SUMS,)).step("IG", "y dy -> dx"),
    ),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=(DrawnInput((3, 4, 5), low=-9, high=9),)),
        Example(inputs=(DrawnInput((2, 9), low=-4, high=4),)),
    ),
)
