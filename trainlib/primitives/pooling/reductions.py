# SPDX-License-Identifier: Apache-2.0
"""Mean, sum, largest or smallest element over one axis of a sample or over neighbouring ones.

Cores take kept elements, so each is summed by one core. (PULP-TrainLib adds to whatever is in its output, and
where the reduced axis is longer than what is kept every core adds the full sum.) dx is dy, scaled as y is,
spread.

Of a largest or smallest element dx is dy where that element is: ``ties: shared`` gives each of several equal
elements the same share of dy (PyTorch's amax and amin), ``first`` all of it to the first one (its max and min
of a dimension). What is reduced is in one tile, as that takes a look at all of it. PULP-TrainLib has none:
nests are estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from configs.values import replace
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array, Tensors
from trainlib.primitives.definition import (
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    NotNegative,
    Shape,
    Values,
)
from trainlib.primitives.elementwise.functions import first
from trainlib.primitives.formulas import Formula, options_of
from trainlib.primitives.lowering.axes import LEADING, ONE, Axes, Form
from trainlib.primitives.lowering.boxes import leading_extents, sample_axis
from trainlib.primitives.lowering.forks import Fork, ForkLowering


class _Schema(LayerSchema):
    """Which axes are reduced."""

    axes: Annotated[list[NotNegative], Field(min_length=1)]
    """Axes of a sample (0 is the first after the batch) that are reduced."""
    keep_dims: bool = False
    """Leave those axes in the shape, with size 1."""


def _plan_mean(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    plan = _reduced_plan(attributes, inputs, where)
    return replace(plan, attributes={**plan.attributes, "divisor": prod(plan.attributes["reduced"])})


def _reduced_plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    """A plan of a reduction over neighbouring axes. Raises ShapeError for others and for none there are."""
    shape = inputs[0].shape
    axes = sorted(sample_axis(axis, shape, where) for axis in attributes["axes"])
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise ShapeError(
            f"axes {attributes['axes']} must be adjacent",
            where=where,
            cure="use one layer for each group of adjacent axes",
        )
    first, last = 1 + axes[0], 2 + axes[-1]
    middle = (1,) * len(axes) if attributes["keep_dims"] else ()
    return LayerPlan(
        (*shape[:first], *middle, *shape[last:]),
        attributes={
            "first": first,
            "last": last,
            "keep_dims": attributes["keep_dims"],
            "reduced": shape[first:last],
            "divisor": 1,
        },
    )


class _Reduction(ForkLowering):
    """One fork between boxes of what is large (x, dx) and of what is kept of it (y, dy), which are tiled.

    `arrays` are the roles of the arrays of `nest(op)` in the order of op and formula, the result last.
    `formula` makes it, [outer, count, inner], of arrays of such shapes; what is kept has a count of 1.
    """

    def __init__(self, nest: Callable[[Op], str], arrays: str, formula: Formula) -> None:
        self.nest, self.arrays, self.formula = nest, arrays, formula
        *self.read, self.result = (item.partition(":")[2] for item in arrays.split())
        self.large = next(role for role in (*self.read, self.result) if role.endswith("x"))

    def shapes(self, op: Op, values: Values) -> Mapping[str, Shape]:
        """By the reduced axes."""
        shape, (first, last), keeps = values[self.read[0]].shape, _reduced(op), op.attributes["keep_dims"]
        if self.result.endswith("x"):
            tail = shape[last:] if keeps or self.read[0].endswith("x") else shape[first:]
            return {self.result: (*shape[:first], *op.attributes["reduced"], *tail)}
        return {self.result: (*shape[:first], *(1,) * (last - first) * keeps, *shape[last:])}

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Without those that are reduced, or with one element of each, but of what is large."""
        axes, first, last = LEADING[: len(tensors[op[self.large]].shape)], *_reduced(op)
        middle = (ONE,) * (last - first) if op.attributes["keep_dims"] else ()
        return axes if role.endswith("x") else (*axes[:first], *middle, *axes[last:])

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """``n`` and the first two kept dimensions of x."""
        shape, reduced = tensors[op[self.large]].shape, range(*_reduced(op))
        return leading_extents(shape, [axis - 1 for axis in range(1, len(shape)) if axis not in reduced])

    def kernels(self, form: Form) -> Sequence[Fork]:
        """The boxes that belong together; the larger of the kept dimensions goes over the cores."""
        axes, (first, last) = form.axes(self.large), _reduced(form.op)
        options = options_of(self.formula, form.op)
        return (
            Fork(
                self.nest(form.op),
                self.arrays,
                f"{' '.join(self.read)} -> {self.result}",
                self.formula,
                {"outer": axes[:first], "count": axes[first:last], "inner": axes[last:]},
                ("outer", "inner"),
                ("count",),
                options,
                "".join(f"_{name}" for name, value in options.items() if value is True),
                larger="_columns",
            ),
        )


def _reduced(op: Op) -> tuple[int, int]:
    """First of the reduced axes, and the one behind the last."""
    return op.attributes["first"], op.attributes["last"]


class _Sum(_Reduction):
    """FW; the first reduced dimension may be cut too."""

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        return self._sizes(op, tensors, (LEADING[op.attributes["first"]],))


class _Spread(_Reduction):
    """IG: any box of dx."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        return leading_extents(tensors[op["dx"]].shape)


_FORWARD = _Sum(
    lambda op: "reduce_mean_fw",
    "X:x Y:y",
    lambda x, divisor: x.sum(axis=1, keepdims=True, dtype=np.float64) * (1 / divisor),
)
_BACKWARD = _Spread(lambda op: "reduce_mean_bw", "X:dy Y:dx", lambda dy, divisor: dy * (1 / divisor))

MEAN = LayerPrimitive(
    name="reduce_mean",
    schema=_Schema,
    plan=_plan_mean,
    steps=(
        _FORWARD.step("FW", "x -> y"),
        _BACKWARD.step("IG", "dy -> dx"),
    ),
    examples=(
        Example({"axes": [0]}, ((12, 2),)),
        Example({"axes": [1, 2]}, ((3, 4, 5),)),
        Example({"axes": [1], "keep_dims": True}, ((2, 6, 3),)),
        Example({"axes": [0]}, ((9,),)),
    ),
)

SUM = replace(
    MEAN,
    name="reduce_sum",
    plan=_reduced_plan,
    examples=(
        Example({"axes": [0]}, (DrawnInput((12, 2), low=0.5, high=1.5),)),
        Example({"axes": [0, 1], "keep_dims": True}, (DrawnInput((3, 4, 5), low=0.5, high=1.5),)),
    ),
)


SAME = 2.0**-30
"""Relative difference of equal elements at most: finer than any format, coarser than nudges of the check."""


class _TiesSchema(_Schema):
    ties: Literal["shared", "first"] = "shared"
    """If several elements are equal: `shared` gives each of them a share of the gradient, `first` gives all
    of it to the first."""


def _extreme_plan(largest: bool) -> Any:
    def plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
        reduced = _reduced_plan(attributes, inputs, where)
        options = {"largest": largest, "first_only": attributes["ties"] == "first"}
        return replace(reduced, attributes={**reduced.attributes, **options})

    return plan


def _picked(x: Array, largest: bool) -> Any:
    return x.max(axis=1, keepdims=True) if largest else x.min(axis=1, keepdims=True)


def _to_picked(x: Array, y: Array, dy: Array, first_only: bool) -> Any:
    chosen = np.isclose(x, y, rtol=SAME, atol=0)
    if first_only:
        return np.where(first(chosen), dy, 0)
    return np.where(chosen, dy / np.maximum(chosen.sum(axis=1, keepdims=True), 1).astype(dy.dtype), 0)


_PICKED = _Reduction(lambda op: "reduce_max_fw", "X:x Y:y", _picked)
_TO_PICKED = _Reduction(
    lambda op: "reduce_max_bw_first" if op.attributes["first_only"] else "reduce_max_bw",
    "X:x M:y G:dy Y:dx",
    _to_picked,
)


MAX = LayerPrimitive(
    name="reduce_max",
    schema=_TiesSchema,
    plan=_extreme_plan(True),
    steps=(
        _PICKED.step("FW", "x -> y"),
        _TO_PICKED.step("IG", "x y dy -> dx"),
    ),
    examples=tuple(
        Example({"ties": ties, **axes}, (DrawnInput(shape, distinct=True),))
        for ties, axes, shape in (
            ("shared", {"axes": [0]}, (12, 2)),
            ("first", {"axes": [1, 2]}, (3, 4, 5)),
            ("shared", {"axes": [1], "keep_dims": True}, (2, 6, 3)),
            ("first", {"axes": [0], "keep_dims": True}, (9,)),
        )
    ),
)

MIN = replace(MAX, name="reduce_min", plan=_extreme_plan(False))

PRIMITIVES = (MEAN, SUM, MAX, MIN)
