# SPDX-License-Identifier: Apache-2.0
"""Transposition of the dimensions of a sample: dimension i of y is dimension `axes[i]` of x.

A matrix has a nest of its own. PULP-TrainLib has a second function for any number of dimensions, slower on a
matrix, which is the variant as-published of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array, Tensors
from trainlib.primitives.definition import (
    AS_PUBLISHED,
    Example,
    LayerPlan,
    LayerPrimitive,
    NotNegative,
    Step,
    Values,
    Variant,
)
from trainlib.primitives.lowering.axes import Axes, Form, LeadingBoxes
from trainlib.primitives.shapes.box_copies import Copy, check_rank


class _Schema(LayerSchema):
    axes: list[NotNegative]
    """The axes of a sample in their new order; [1, 0] transposes a matrix."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape, axes = inputs[0].shape, tuple(attributes["axes"])
    if sorted(axes) != list(range(len(shape) - 1)):
        raise ShapeError(
            f"axes {list(axes)} must be a permutation of the dimensions of {shape[1:]}",
            where=where,
            cure=f"list every axis from 0 to {len(shape) - 2} exactly once",
        )
    check_rank(shape, where)
    return LayerPlan((shape[0], *(shape[1 + axis] for axis in axes)), attributes={"axes": axes})


def _order(op: Op) -> tuple[int, ...]:
    """For each dimension of the result that of the source, batch included."""
    axes = op.attributes["axes"]
    if op.step == "FW":
        return (0, *(1 + axis for axis in axes))
    return (0, *(1 + axes.index(axis) for axis in range(len(axes))))


@dataclass(frozen=True)
class _Lowering(LeadingBoxes):
    """FW and IG alike: a box of the result is a box of the source; one fork, or one per `matrix`."""

    matrix: str = "transpose_matrix"

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """The source has those of the result in its own order."""
        axes = super().axes_of(op, tensors, role)
        return (
            axes if role in op.writes else tuple(axes[_order(op).index(place)] for place in range(len(axes)))
        )

    def kernels(self, form: Form) -> Sequence[Copy]:
        """One permutation, or a matrix per sample, walked as the source lies."""
        (source,), (target,) = form.op.reads, form.op.writes
        return (Copy(target, (source,), loops=form.axes(source), matrix=self.matrix),)


def _permuted(array: Array, order: Sequence[int]) -> Array:
    """The same by einsum, which names dimensions and does not count them."""
    letters = "nabcde"[: array.ndim]
    result: Array = np.einsum(f"{letters}->{''.join(letters[axis] for axis in order)}", array)
    return np.ascontiguousarray(result)


def _forward(op: Op, values: Values) -> Values:
    return {"y": _permuted(values["x"], _order(op))}


def _backward(op: Op, values: Values) -> Values:
    back = np.argsort((0, *(1 + axis for axis in op.attributes["axes"])))
    return {"dx": _permuted(values["dy"], [int(axis) for axis in back])}


_PUBLISHED = {
    AS_PUBLISHED: Variant(_Lowering("transpose_nd"), lambda carried: carried["axes"] == (1, 0), "axes [1, 0]")
}

PRIMITIVE = LayerPrimitive(
    name="transpose",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x -> y", _forward, _Lowering(), _PUBLISHED),
        Step.of("IG", "dy -> dx", _backward, _Lowering(), _PUBLISHED),
    ),
    examples=(
        Example({"axes": [1, 0]}, ((4, 5),)),
        Example({"axes": [1, 0], "variant": AS_PUBLISHED}, ((4, 5),)),
        Example({"axes": [2, 0, 1]}, ((3, 4, 5),)),
        Example({"axes": [3, 1, 0, 2]}, ((2, 3, 4, 5),)),
        Example({"axes": [0]}, ((6,),)),
    ),
)
