# SPDX-License-Identifier: Apache-2.0
"""Largest or smallest element over neighbouring axes of a sample; dx is dy where that element is.

``ties: shared`` gives each of several equal elements the same share of dy (PyTorch's amax and amin),
``first`` all of it to the first one (its max and min of a dimension). What is reduced is in one tile, as that
takes a look at all of it. PULP-TrainLib has none: nests are estimates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from configs.values import replace
from trainlib.ir.graph import Tensor
from trainlib.ir.steps import Array
from trainlib.primitives.definition import DrawnInput, Example, LayerPlan, LayerPrimitive
from trainlib.primitives.elementwise.functions import first
from trainlib.primitives.pooling.reduce_mean import AxesSchema, Reduction, reduced_plan

SAME = 2.0**-30
"""Relative difference of equal elements at most: finer than any format, coarser than nudges of the check."""


class _Schema(AxesSchema):
    ties: Literal["shared", "first"] = "shared"
    """Which of several equal elements get the gradient: all of them a share, or the first one."""


def _plan(largest: bool) -> Any:
    def plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
        reduced = reduced_plan(attributes, inputs, where)
        options = {"largest": largest, "first_only": attributes["ties"] == "first"}
        return replace(reduced, attributes={**reduced.attributes, **options})

    return plan


def _picked(x: Array, largest: bool) -> Any:
    return x.max(axis=1, keepdims=True) if largest else x.min(axis=1, keepdims=True)


def _shared(x: Array, y: Array, dy: Array, first_only: bool) -> Any:
    chosen = np.isclose(x, y, rtol=SAME, atol=0)
    if first_only:
        return np.where(first(chosen), dy, 0)
    return np.where(chosen, dy / np.maximum(chosen.sum(axis=1, keepdims=True), 1).astype(dy.dtype), 0)


_FORWARD = Reduction(lambda op: "reduce_max_fw", "X:x Y:y", _picked)
_BACKWARD = Reduction(
    lambda op: "reduce_max_bw_first" if op.attributes["first_only"] else "reduce_max_bw",
    "X:x M:y G:dy Y:dx",
    _shared,
)


def _examples() -> tuple[Example, ...]:
    return tuple(
        Example({"ties": ties, **axes}, (DrawnInput(shape, distinct=True),))
        for ties, axes, shape in (
            ("shared", {"axes": [0]}, (12, 2)),
            ("first", {"axes": [1, 2]}, (3, 4, 5)),
            ("shared", {"axes": [1], "keep_dims": True}, (2, 6, 3)),
            ("first", {"axes": [0], "keep_dims": True}, (9,)),
        )
    )


MAX = LayerPrimitive(
    name="reduce_max",
    schema=_Schema,
    plan=_plan(True),
    steps=(
        _FORWARD.step("FW", "x -> y"),
        _BACKWARD.step("IG", "x y dy -> dx"),
    ),
    examples=_examples(),
)

MIN = replace(MAX, name="reduce_min", plan=_plan(False))

PRIMITIVES = (MAX, MIN)
