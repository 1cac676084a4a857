# SPDX-License-Identifier: Apache-2.0
"""Log-softmax over the last axis: y = x - max - log(sum(exp(x - max))); dx = dy - exp(y) · sum(dy).

No logarithm is taken of a probability, which may have become 0. PULP-TrainLib has none: its nests are
estimates, and the exponential is exact. Passes as in softmax, rows over the cores. As in the cross-entropy
(`trainlib.primitives.losses.cross_entropy`) sums are float64, rounded once: of a confident network the
logarithm, and dy - exp(y) · sum(dy), cancel almost entirely.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from configs.model_file import LayerSchema
from trainlib.ir.graph import Op
from trainlib.ir.steps import Array
from trainlib.primitives.attention.softmax import MAXIMA, SUMS, RowPasses, Rows, row_maxima
from trainlib.primitives.definition import DrawnInput, Example, LayerPlan, LayerPrimitive, Step
from trainlib.primitives.lowering.boxes import rows_of


def _forward_passes(rows: RowPasses, op: Op) -> None:
    """Row maxima; logarithms of the sums of exponentials; both taken off."""

    def logarithms(x: Array, highest: Array) -> Any:
        below = np.exp(x.astype(np.float64) - highest[:, None])
        return np.log(below.sum(axis=1))

    def shifted(x: Array, highest: Array, logs: Array) -> Any:
        return x.astype(np.float64) - highest[:, None] - logs[:, None]

    row_maxima(rows)
    arrays = f"X:x R:{MAXIMA} Z:{SUMS}"
    rows.over_rows("log_sum", arrays, f"x {MAXIMA} -> {SUMS}", logarithms)
    rows.over_rows("log_shift", f"{arrays} Y:y", f"x {MAXIMA} {SUMS} -> y", shifted)


def _gradient_passes(rows: RowPasses, op: Op) -> None:
    """Row sums of dy; then dy - exp(y) · sum."""

    def sums(dy: Array) -> Any:
        return dy.astype(np.float64).sum(axis=1)

    def taken_off(y: Array, dy: Array, totals: Array) -> Any:
        share = np.exp(y.astype(np.float64)) * totals[:, None]
        return dy.astype(np.float64) - share

    rows.vector(SUMS)
    rows.over_rows("row_total", f"X:dy Z:{SUMS}", f"dy -> {SUMS}", sums)
    rows.over_rows("log_softmax_bw", f"X:y G:dy Z:{SUMS} Y:dx", f"y dy {SUMS} -> dx", taken_off)


_FORWARD, _BACKWARD = Rows(_forward_passes), Rows(_gradient_passes)

PRIMITIVE = LayerPrimitive(
    name="log_softmax",
    schema=LayerSchema,
    plan=lambda _, inputs, where: LayerPlan(rows_of(inputs[0], "log_softmax", where)),
    steps=(
        Step.of("FW", "x -> y", _FORWARD.reference, _FORWARD, formula=True),
        Step.of("IG", "y dy -> dx", _BACKWARD.reference, _BACKWARD, formula=True),
    ),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=(DrawnInput((3, 4, 5), low=-9, high=9),)),
        Example(inputs=(DrawnInput((2, 9), low=-4, high=4),)),
    ),
)
