"""SGD with momentum: v = momentum · v + g, w -= learning_rate · v, with g = dw + weight_decay · w.

Nesterov: w -= learning_rate · (g + momentum · v). The velocity v starts at 0 and is kept in fp32 whatever the
dtype of the weight. PULP-TrainLib has no momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.model_file import OptimizerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import ZEROS, Buffer, Example, OptimizerPrimitive, Step, Values
from trainlib.primitives.loops import ElementwiseLoop
from trainlib.primitives.sgd import Decay


class _Schema(OptimizerSchema):
    momentum: Annotated[float, Field(gt=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Decay = 0.0


def _states(attributes: Mapping[str, Any], weight: Tensor) -> Mapping[str, Buffer]:
    return {"velocity": Buffer(weight.shape, ZEROS)}


def _tile(op: Op, values: Values) -> Values:
    names = ("learning_rate", "momentum", "weight_decay")
    rate, momentum, decay = (np.float32(op.attributes[name]) for name in names)
    gradient = values["dw"] + decay * values["w"]
    velocity = momentum * values["velocity"] + gradient
    step = gradient + momentum * velocity if op.attributes["nesterov"] else velocity
    return {"w_updated": values["w"] - rate * step, "velocity_updated": velocity}


def _reference(op: Op, values: Values) -> Values:
    attributes = op.attributes
    w, dw, old = (values[role].astype(np.float64) for role in ("w", "dw", "velocity"))
    decayed = attributes["weight_decay"] * w + dw
    velocity = attributes["momentum"] * old + decayed
    ahead = attributes["momentum"] * velocity + decayed
    w = w - attributes["learning_rate"] * (ahead if attributes["nesterov"] else velocity)
    return {"w_updated": w.astype(np.float32), "velocity_updated": velocity.astype(np.float32)}


PRIMITIVE = OptimizerPrimitive(
    name="sgd_momentum",
    schema=_Schema,
    step=Step(
        "UPD",
        ("w", "dw", "velocity"),
        ("w_updated", "velocity_updated"),
        _reference,
        ElementwiseLoop(lambda op: "sgd_momentum", {"W": "w", "G": "dw", "V": "velocity"}, _tile),
    ),
    torch_optimizer=lambda torch, parameters, attributes: torch.optim.SGD(
        parameters,
        lr=attributes["learning_rate"],
        momentum=attributes["momentum"],
        nesterov=attributes["nesterov"],
        weight_decay=attributes["weight_decay"],
    ),
    states=_states,
    examples=(
        Example({"learning_rate": 0.1}, ((4, 3),)),
        Example({"learning_rate": 0.05, "momentum": 0.5, "nesterov": True}, ((5,),)),
        Example({"learning_rate": 0.1, "nesterov": True, "weight_decay": 0.1}, ((2, 3, 3, 2),)),
    ),
)
