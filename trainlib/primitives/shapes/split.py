# SPDX-License-Identifier: Apache-2.0
"""Split along an axis of the sample into pieces of given sizes: outputs ``name``, ``name.1``, ``name.2`` ...

dx is the gradients of the pieces side by side; zeros where a piece has no gradient. For one piece alone
there is the layer ``slice``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Tensor
from trainlib.primitives.definition import (
    Example,
    LayerPlan,
    LayerPrimitive,
    NotNegative,
    Positive,
)
from trainlib.primitives.lowering.boxes import sample_axis
from trainlib.primitives.shapes.box_copies import check_rank
from trainlib.primitives.shapes.joining import join, split


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


PRIMITIVE = LayerPrimitive(
    name="split",
    schema=_Schema,
    plan=_plan,
    steps=(split("FW", "x -> y*"), join("IG", "dy* -> dx")),
    examples=(
        Example({"sizes": [3, 4]}, ((7,),)),
        Example({"axis": 1, "sizes": [1, 2, 1]}, ((2, 4, 3),)),
        Example({"axis": 2, "sizes": [2, 3]}, ((2, 3, 5),)),
    ),
)
