# SPDX-License-Identifier: Apache-2.0
"""Concat and split: many tensors side by side along an axis of a sample of one, copied either way.

Tiles cut the batch and up to two dimensions other than that axis, so a tile has all pieces of its rows.
The outputs of a split are ``name``, ``name.1``, ``name.2`` ...; for one piece alone there is the layer
``slice``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.access import Index, Term
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Tensors
from trainlib.primitives.definition import (
    Example,
    LayerPlan,
    LayerPrimitive,
    NotNegative,
    Positive,
    Step,
    Values,
)
from trainlib.primitives.lowering.axes import Axes, Form, LeadingBoxes
from trainlib.primitives.lowering.boxes import leading_extents, sample_axis
from trainlib.primitives.shapes.box_copies import Copy, check_rank


def piece_number(role: str) -> int:
    """Number of a piece by its role: x is 0, x1 is 1, dy2 is 2."""
    return int(role.lstrip("dxy") or 0)


def piece_offsets(sizes: Sequence[int]) -> list[int]:
    """Where each piece begins along the axis."""
    return [0, *accumulate(sizes)][:-1]


class _Joining(LeadingBoxes):
    """Both directions; ops carry ``axis`` (of a sample) and ``sizes`` of the pieces."""

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Of a piece that axis is its own."""
        axes, joined = super().axes_of(op, tensors, role), 1 + op.attributes["axis"]
        return (*axes[:joined], f"of {role}", *axes[joined + 1 :])

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """``n`` and dimensions other than the axis."""
        shape = tensors[op.outputs[0]].shape
        return leading_extents(
            shape, [axis for axis in range(len(shape) - 1) if axis != op.attributes["axis"]]
        )

    def kernels(self, form: Form) -> Sequence[Copy]:
        """Rows of the whole, the same rows of every piece: a copy for each."""
        op, offsets = form.op, piece_offsets(form.op.attributes["sizes"])

        def copy(target: str) -> Copy:
            begin = offsets[piece_number(target)]
            shifts = {role: begin - offsets[piece_number(role)] for role in op.reads}  # the whole begins at 0
            loop = (Term(f"of {target}"),)
            maps = {f"of {role}": Index("", 0, loop, shift) for role, shift in shifts.items()}
            return Copy(target, op.reads, maps=maps)

        return [copy(target) for target in op.writes]


def join(name: str, moves: str) -> Step:
    """Pieces into one; pieces that do not exist (a gradient nobody has) are zeros."""

    def reference(op: Op, values: Values) -> Values:
        sizes, axis = op.attributes["sizes"], 1 + op.attributes["axis"]
        parts = {piece_number(role): values[role] for role in op.reads}
        like = next(iter(parts.values()))
        pieces = []
        for number, size in enumerate(sizes):
            shape = (*like.shape[:axis], size, *like.shape[axis + 1 :])
            pieces.append(parts.get(number, np.zeros(shape, np.float32)))
        return {op.writes[0]: np.concatenate(pieces, axis=axis)}

    return Step.of(name, moves, reference, _Joining())


def split(name: str, moves: str) -> Step:
    """One into pieces, those that are needed."""

    def reference(op: Op, values: Values) -> Values:
        cuts = piece_offsets(op.attributes["sizes"])[1:]
        pieces = np.split(values[op.reads[0]], cuts, axis=1 + op.attributes["axis"])
        return {role: pieces[piece_number(role)] for role in op.writes}

    return Step.of(name, moves, reference, _Joining())


MOST_INPUTS = 64
"""How many tensors one layer may join."""


class _ConcatSchema(LayerSchema):
    axis: NotNegative = 0
    """Axis of a sample along which the inputs are joined."""


def _concat_plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shapes = [tensor.shape for tensor in inputs]
    axis = sample_axis(attributes["axis"], shapes[0], where)
    check_rank(shapes[0], where)
    rests = [shape[: 1 + axis] + shape[2 + axis :] for shape in shapes]
    for shape, rest in zip(shapes, rests, strict=True):
        if len(shape) != len(shapes[0]) or rest != rests[0]:
            raise ShapeError(
                f"cannot join {shape[1:]} to {shapes[0][1:]} along axis {axis}",
                where=where,
                cure=f"use shapes that differ along axis {axis} only",
            )
    sizes = tuple(shape[1 + axis] for shape in shapes)
    output = (*shapes[0][: 1 + axis], sum(sizes), *shapes[0][2 + axis :])
    return LayerPlan(output, attributes={"axis": axis, "sizes": sizes})


CONCAT = LayerPrimitive(
    name="concat",
    schema=_ConcatSchema,
    plan=_concat_plan,
    steps=(join("FW", "x* -> y"), split("IG", "dy -> dx*")),
    examples=(
        Example(inputs=((3,), (5,))),
        Example(inputs=((2, 4, 3), (1, 4, 3), (3, 4, 3))),
        Example({"axis": 2}, ((2, 3, 4), (2, 3, 1))),
    ),
    inputs=(2, MOST_INPUTS),
)


class _SplitSchema(LayerSchema):
    axis: NotNegative = 0
    """Axis of a sample that is cut."""
    sizes: Annotated[list[Positive], Field(min_length=2)]
    """Sizes of the outputs along `axis`; the second output is `NAME.1`."""


def _split_plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    axis, sizes = sample_axis(attributes["axis"], shape, where), tuple(attributes["sizes"])
    check_rank(shape, where)
    if sum(sizes) != shape[1 + axis]:
        raise ShapeError(
            f"sizes {list(sizes)} add up to {sum(sizes)}, but axis {axis} has {shape[1 + axis]} elements",
            where=where,
            cure=f"use sizes that add up to {shape[1 + axis]}",
        )
    outputs = [(*shape[: 1 + axis], size, *shape[2 + axis :]) for size in sizes]
    return LayerPlan(
        outputs[0],
        outputs={f"y{number}": output for number, output in enumerate(outputs) if number},
        attributes={"axis": axis, "sizes": sizes},
    )


SPLIT = LayerPrimitive(
    name="split",
    schema=_SplitSchema,
    plan=_split_plan,
    steps=(split("FW", "x -> y*"), join("IG", "dy* -> dx")),
    examples=(
        Example({"sizes": [3, 4]}, ((7,),)),
        Example({"axis": 1, "sizes": [1, 2, 1]}, ((2, 4, 3),)),
        Example({"axis": 2, "sizes": [2, 3]}, ((2, 3, 5),)),
    ),
)

PRIMITIVES = (CONCAT, SPLIT)
