"""Adam and AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019): moments with bias correction.

m = beta1·m + (1 - beta1)·g, v = beta2·v + (1 - beta2)·g², t = t + 1, and
w -= learning_rate · m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps). Adam adds weight_decay · w to the
gradient g, AdamW takes learning_rate · weight_decay · w off the weight. Moments are kept in fp32 whatever the
dtype of the weight (in bf16 an increment of 1 - beta2 = 0.001 would be lost); the step count t is an int32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.model_file import OptimizerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import ZEROS, Buffer, Example, OptimizerPrimitive, Step, Values
from trainlib.primitives.lowering.loops import ElementwiseLoop
from trainlib.primitives.optimizers.sgd import Decay

_Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamSchema(OptimizerSchema):
    """Options of both, with the defaults of the paper."""

    beta1: _Beta = 0.9
    beta2: _Beta = 0.999
    eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-8
    weight_decay: Decay = 0.0


def _states(attributes: Mapping[str, Any], weight: Tensor) -> Mapping[str, Buffer]:
    return {
        "m": Buffer(weight.shape, ZEROS),
        "v": Buffer(weight.shape, ZEROS),
        "t": Buffer((1,), ZEROS, "int32"),
    }


def _tile(op: Op, values: Values, decoupled: bool) -> Values:
    names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay")
    rate, beta1, beta2, eps, decay = (op.attributes[name] for name in names)
    t = values["t"] + np.int32(1)
    w, g = values["w"], values["dw"]
    if decoupled:
        w = w * np.float32(1 - rate * decay)
    else:
        g = g + np.float32(decay) * w
    m = np.float32(beta1) * values["m"] + np.float32(1 - beta1) * g
    v = np.float32(beta2) * values["v"] + np.float32(1 - beta2) * np.square(g)
    first, second = (1 - beta ** int(t[0]) for beta in (beta1, beta2))
    root = np.sqrt(v) * np.float32(second**-0.5) + np.float32(eps)
    return {
        "w_updated": w - np.float32(rate / first) * m / root,
        "m_updated": m,
        "v_updated": v,
        "t_updated": t,
    }


def _reference(op: Op, values: Values, decoupled: bool) -> Values:
    a = op.attributes
    w, g, m, v = (values[role].astype(np.float64) for role in ("w", "dw", "m", "v"))
    t = int(values["t"][0]) + 1
    if not decoupled:
        g = g + a["weight_decay"] * w
    m = m + (1 - a["beta1"]) * (g - m)
    v = v + (1 - a["beta2"]) * (g * g - v)
    direction = (m / (1 - a["beta1"] ** t)) / (np.sqrt(v / (1 - a["beta2"] ** t)) + a["eps"])
    if decoupled:
        direction = direction + a["weight_decay"] * w
    return {
        "w_updated": w - a["learning_rate"] * direction,
        "m_updated": m,
        "v_updated": v,
        "t_updated": np.array([t], np.int32),
    }


def adam_primitive(name: str, *, decoupled: bool) -> OptimizerPrimitive:
    """Adam, or AdamW if the decay is `decoupled` from the gradient."""
    class_name = "AdamW" if decoupled else "Adam"

    def torch_optimizer(torch: Any, parameters: Any, attributes: Mapping[str, Any]) -> Any:
        return getattr(torch.optim, class_name)(
            parameters,
            lr=attributes["learning_rate"],
            betas=(attributes["beta1"], attributes["beta2"]),
            eps=attributes["eps"],
            weight_decay=attributes["weight_decay"],
        )

    return OptimizerPrimitive(
        name=name,
        schema=AdamSchema,
        step=Step(
            "UPD",
            ("w", "dw", "m", "v", "t"),
            ("w_updated", "m_updated", "v_updated", "t_updated"),
            lambda op, values: _reference(op, values, decoupled),
            ElementwiseLoop(
                lambda op: "adam",
                {"W": "w", "G": "dw", "M": "m", "V": "v", "T": "t"},
                lambda op, values: _tile(op, values, decoupled),
                numbers=("t", "t_updated"),
            ),
        ),
        torch_optimizer=torch_optimizer,
        states=_states,
        examples=(
            Example({"learning_rate": 0.01}, ((4, 3),)),
            Example({"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 0.001}, ((5,),)),
            Example({"learning_rate": 0.1, "weight_decay": 0.1}, ((2, 3, 3, 2),)),
        ),
    )


PRIMITIVE = adam_primitive("adam", decoupled=False)
