"""Dropout: y = x · mask / (1 - p), mask 0 with probability p and 1 otherwise; dx = dy · mask / (1 - p).

The mask is a tensor of the graph, drawn anew in every iteration from the seed of the run, and read again by
IG. (PULP-TrainLib seeds its generator anew for every element, and has no backward pass.) In prediction
nothing is dropped and nothing scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import (
    Example,
    LayerPlan,
    LayerPrimitive,
    Random,
    Refused,
    Shape,
    Share,
    Step,
    Values,
)
from trainlib.primitives.elementwise.activations import Numbers, lowering
from trainlib.steps import Array


class _Schema(LayerSchema):
    p: Share = 0.5


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    share = attributes["p"]

    def draw(generator: Any, shape: Shape) -> Array:
        kept: Array = generator.random(shape) >= share
        return kept.astype(np.float32)

    # The mask is exact in any format; the scale would not be, so it is applied by the step.
    shape = inputs[0].shape
    return LayerPlan(shape, randoms={"mask": Random(shape, draw)}, attributes={"p": share})


def _scaled(op: Op) -> Numbers:
    scale = np.float32(1 / (1 - op.attributes["p"]))
    return lambda values, mask: values * mask * scale


def _forward(op: Op, values: Values) -> Values:
    if op.attributes.get("inference"):
        return {"y": values["x"]}
    return {"y": np.where(values["mask"] > 0, values["x"] / np.float32(1 - op.attributes["p"]), 0)}


def _backward(op: Op, values: Values) -> Values:
    return {"dx": np.where(values["mask"] > 0, values["dy"] / np.float32(1 - op.attributes["p"]), 0)}


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    return tensors["x"] * tensors["mask"].detach() / (1 - attributes["p"])


PRIMITIVE = LayerPrimitive(
    name="dropout",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step(
            "FW", ("x", "mask"), ("y",), _forward, lowering(lambda op: "dropout", ("x", "mask"), "y", _scaled)
        ),
        Step(
            "IG",
            ("dy", "mask"),
            ("dx",),
            _backward,
            lowering(lambda op: "dropout", ("dy", "mask"), "dx", _scaled),
        ),
    ),
    torch_forward=_torch_forward,
    examples=(
        Example(inputs=((20,),)),
        Example({"p": 0.23}, ((3, 4, 5),)),
        Example({"p": 0.0}, ((6,),)),
    ),
    refused=(Refused({"p": 1.0}, ((3,),), "p"), Refused({"p": -0.5}, ((3,),), "p")),
    layouts=None,
)
