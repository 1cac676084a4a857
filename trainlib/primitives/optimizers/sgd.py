"""Stochastic gradient descent, with momentum if asked for: v = momentum · v + g, w -= learning_rate · v.

g = dw + weight_decay · w. Nesterov: w -= learning_rate · (g + momentum · v). The velocity v starts at 0, is
kept in fp32 whatever the dtype of the weight, and is there only where momentum is not 0. PULP-TrainLib has no
momentum, and its decay changes the stored gradient as well; here dw stays what it is. `sgd_momentum` is the
same optimizer with a momentum of 0.9 unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from configs.model_file import OptimizerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import ZEROS, Buffer, Example, OptimizerPrimitive, Step, Values
from trainlib.primitives.lowering.loops import ElementwiseLoop

Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Factor of the weight that is added to its gradient."""


class _Schema(OptimizerSchema):
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    nesterov: bool = False
    weight_decay: Decay = 0.0

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> _Schema:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class _MomentumSchema(_Schema):
    momentum: Annotated[float, Field(gt=0, lt=1)] = 0.9


def _states(attributes: Mapping[str, Any], weight: Tensor) -> Mapping[str, Buffer]:
    return {"velocity": Buffer(weight.shape, ZEROS)} if attributes["momentum"] else {}


def _tile(op: Op, values: Values) -> Values:
    names = ("learning_rate", "momentum", "weight_decay")
    rate, momentum, decay = (np.float32(op.attributes[name]) for name in names)
    gradient = values["dw"] + decay * values["w"] if decay else values["dw"]
    if not momentum:
        return {"w_updated": values["w"] - rate * gradient}
    velocity = momentum * values["velocity"] + gradient
    step = gradient + momentum * velocity if op.attributes["nesterov"] else velocity
    return {"w_updated": values["w"] - rate * step, "velocity_updated": velocity}


def _reference(op: Op, values: Values) -> Values:
    attributes = op.attributes
    w, dw = (values[role].astype(np.float64) for role in ("w", "dw"))
    old = values["velocity"].astype(np.float64) if "velocity" in values else 0.0
    decayed = attributes["weight_decay"] * w + dw
    velocity = attributes["momentum"] * old + decayed
    ahead = attributes["momentum"] * velocity + decayed
    w = w - attributes["learning_rate"] * (ahead if attributes["nesterov"] else velocity)
    return {"w_updated": w, "velocity_updated": velocity}


def _nest(op: Op) -> str:
    if op.attributes["momentum"]:
        return "sgd_momentum"
    return "sgd_wd" if op.attributes["weight_decay"] else "sgd"


def _torch_optimizer(torch: Any, parameters: Any, attributes: Mapping[str, Any]) -> Any:
    names = ("momentum", "nesterov", "weight_decay")
    return torch.optim.SGD(
        parameters, lr=attributes["learning_rate"], **{name: attributes[name] for name in names}
    )


_STEP = Step(
    "UPD",
    ("w", "dw", "velocity?"),
    ("w_updated", "velocity_updated?"),
    _reference,
    ElementwiseLoop(_nest, {"W": "w", "G": "dw", "V": "velocity"}, _tile),
)

PRIMITIVE = OptimizerPrimitive(
    name="sgd",
    schema=_Schema,
    step=_STEP,
    torch_optimizer=_torch_optimizer,
    states=_states,
    examples=(
        Example({"learning_rate": 0.1}, ((4, 3),)),
        Example({"learning_rate": 0.01}, ((5,),)),
        Example({"learning_rate": 0.1, "weight_decay": 0.05}, ((2, 3, 3, 2),)),
        Example({"learning_rate": 0.1, "momentum": 0.5, "weight_decay": 0.1}, ((4, 3),)),
        Example({"learning_rate": 0.05, "momentum": 0.9, "nesterov": True}, ((5,),)),
    ),
)

WITH_MOMENTUM = OptimizerPrimitive(
    name="sgd_momentum",
    schema=_MomentumSchema,
    step=_STEP,
    torch_optimizer=_torch_optimizer,
    states=_states,
    examples=(
        Example({"learning_rate": 0.1}, ((4, 3),)),
        Example({"learning_rate": 0.1, "nesterov": True, "weight_decay": 0.1}, ((2, 3, 3, 2),)),
    ),
)
"""The name that models written before `sgd` had a momentum use."""
