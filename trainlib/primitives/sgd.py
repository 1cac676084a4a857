"""SGD without momentum or decay: w_updated = w - learning_rate · dw."""

from __future__ import annotations

import numpy as np

from configs.model_file import OptimizerSchema
from trainlib.graph import Op
from trainlib.primitives.calls import ElementwiseLowering, Function
from trainlib.primitives.definition import Example, OptimizerPrimitive, Step, Values


def _tile(op: Op) -> Function:
    rate = np.float32(op.attributes["learning_rate"])
    return lambda arrays: (arrays[0] - rate * arrays[1],)


def _reference(op: Op, values: Values) -> Values:
    step = np.multiply(values["dw"], -op.attributes["learning_rate"], dtype=np.float64)
    return {"w_updated": np.add(values["w"], step).astype(np.float32)}


PRIMITIVE = OptimizerPrimitive(
    name="sgd",
    schema=OptimizerSchema,
    step=Step(
        "UPD",
        ("w", "dw"),
        ("w_updated",),
        _reference,
        ElementwiseLowering("sgd", _tile, in_place=True, batched=False),
    ),
    torch_optimizer=lambda torch, parameters, attributes: torch.optim.SGD(
        parameters, lr=attributes["learning_rate"]
    ),
    examples=(Example({"learning_rate": 0.1}, ((4, 3),)), Example({"learning_rate": 0.01}, ((5,),))),
)
