# SPDX-License-Identifier: Apache-2.0
"""Split along an axis of the sample into pieces of given sizes: outputs ``name``, ``name.1``, ``name.2`` ...

dx is the gradients of the pieces side by side; zeros where a piece has no gradient. For one piece alone
there is the layer ``slice``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.primitives.definition import (
    Example,
    LayerPlan,
    LayerPrimitive,
    NotNegative,
    Positive,
    Step,
    Values,
)
from trainlib.primitives.lowering.boxes import sample_axis
from trainlib.primitives.shapes.box_copies import check_rank
from trainlib.primitives.shapes.joining import Join, Split, piece_number, piece_offsets


class _Schema(LayerSchema):
    axis: NotNegative = 0
    """Axis of a sample that is cut."""
    sizes: Annotated[list[Positive], Field(min_length=2)]
    """Sizes of the outputs along it; the second output is `NAME.1`."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
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


def _forward(op: Op, values: Values) -> Values:
    sizes, axis = op.attributes["sizes"], 1 + op.attributes["axis"]
    pieces = np.split(values["x"], piece_offsets(sizes)[1:], axis=axis)
    return {f"y{number or ''}": piece for number, piece in enumerate(pieces)}


def _backward(op: Op, values: Values) -> Values:
    sizes, axis = op.attributes["sizes"], 1 + op.attributes["axis"]
    parts = {piece_number(role): values[role] for role in op.reads}
    like = next(iter(parts.values()))
    pieces = []
    for number, size in enumerate(sizes):
        shape = (*like.shape[:axis], size, *like.shape[axis + 1 :])
        pieces.append(parts.get(number, np.zeros(shape, np.float32)))
    return {"dx": np.concatenate(pieces, axis=axis)}


PRIMITIVE = LayerPrimitive(
    name="split",
    schema=_Schema,
    plan=_plan,
    steps=(Step.of("FW", "x -> y*", _forward, Split()), Step.of("IG", "dy* -> dx", _backward, Join())),
    examples=(
        Example({"sizes": [3, 4]}, ((7,),)),
        Example({"axis": 1, "sizes": [1, 2, 1]}, ((2, 4, 3),)),
        Example({"axis": 2, "sizes": [2, 3]}, ((2, 3, 5),)),
    ),
)
