"""SGD without momentum: w_updated = w - learning_rate · (dw + weight_decay · w).

PULP-TrainLib's decay changes the stored gradient as well; here dw stays what it is. See `sgd_momentum`.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from configs.model_file import OptimizerSchema
from trainlib.graph import Op
from trainlib.primitives.definition import Example, OptimizerPrimitive, Step, Values
from trainlib.primitives.loops import ElementwiseLoop

Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Factor of the weight that is added to its gradient."""


class _Schema(OptimizerSchema):
    weight_decay: Decay = 0.0


def _tile(op: Op, values: Values) -> Values:
    rate, decay = (np.float32(op.attributes[name]) for name in ("learning_rate", "weight_decay"))
    w, dw = values["w"], values["dw"]
    return {"w_updated": w - rate * (dw + decay * w if decay else dw)}


def _reference(op: Op, values: Values) -> Values:
    rate, decay = op.attributes["learning_rate"], op.attributes["weight_decay"]
    w = values["w"].astype(np.float64) * (1 - rate * decay)
    return {"w_updated": (w - rate * values["dw"].astype(np.float64)).astype(np.float32)}


def _nest(op: Op) -> str:
    return "sgd_wd" if op.attributes["weight_decay"] else "sgd"


PRIMITIVE = OptimizerPrimitive(
    name="sgd",
    schema=_Schema,
    step=Step(
        "UPD",
        ("w", "dw"),
        ("w_updated",),
        _reference,
        ElementwiseLoop(_nest, {"W": "w", "G": "dw"}, _tile),
    ),
    torch_optimizer=lambda torch, parameters, attributes: torch.optim.SGD(
        parameters, lr=attributes["learning_rate"], weight_decay=attributes["weight_decay"]
    ),
    examples=(
        Example({"learning_rate": 0.1}, ((4, 3),)),
        Example({"learning_rate": 0.01}, ((5,),)),
        Example({"learning_rate": 0.1, "weight_decay": 0.05}, ((2, 3, 3, 2),)),
    ),
)
