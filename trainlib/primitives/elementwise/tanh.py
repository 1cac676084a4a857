"""Tanh; dx = dy · (1 - y²) from the stored output, whatever the form.

Forms: ``exact``, and ``pulp_fastexp``, the approximation of PULP-TrainLib's RNN. (Its other one, the
rational tanh, is an option of GELU, where it is used.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from configs.model_file import LayerSchema
from trainlib.graph import Op
from trainlib.primitives.definition import Example, InputCase, LayerPrimitive, Refused, Step, Values
from trainlib.primitives.elementwise.activations import LOG2_E, Numbers, fastexp_tanh, lowering, same_shape


class _Schema(LayerSchema):
    form: Literal["exact", "pulp_fastexp"] = "exact"


def _fast(op: Op) -> bool:
    return bool(op.attributes["form"] == "pulp_fastexp")


def _by_exponential(x: Any) -> Any:
    """sign(x) · (1 - e) / (1 + e) with e = exp(-2|x|), by expm1 so that small x keep their digits."""
    less = np.expm1(-2 * np.abs(x))
    return np.sign(x) * -less / (2 + less)


def _tile_forward(op: Op) -> Numbers:
    return fastexp_tanh if _fast(op) else _by_exponential


def _tile_backward(op: Op) -> Numbers:
    return lambda y, dy: dy * (1 - y * y)


def _forward(op: Op, values: Values) -> Values:
    x = values["x"]
    return {"y": fastexp_tanh(x) if _fast(op) else np.tanh(x)}


def _backward(op: Op, values: Values) -> Values:
    y = values["y"]
    return {"dx": values["dy"] * (1 + y) * (1 - y)}


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    x = tensors["x"]
    if attributes["form"] == "exact":
        return torch.tanh(x)
    with torch.no_grad():
        power = torch.clamp(LOG2_E * -2 * x.float(), min=-126)
        fraction = power - power.trunc() + (power < 0)
        exponent = power + 121.2740575 + 27.7280233 / (4.84252568 - fraction) - 1.49012907 * fraction
        bits = (exponent * (1 << 23)).clamp(max=2139095040).to(torch.int64).to(torch.int32)
        y = (2 / (1 + bits.view(torch.float32)) - 1).to(x.dtype)
    slope = 1 - y * y
    return y + slope * (x - x.detach())


PRIMITIVE = LayerPrimitive(
    name="tanh",
    schema=_Schema,
    plan=same_shape,
    steps=(
        Step(
            "FW",
            ("x",),
            ("y",),
            _forward,
            lowering(lambda op: "tanh_fastexp_fw" if _fast(op) else "tanh_fw", ("x",), "y", _tile_forward),
        ),
        Step(
            "IG",
            ("y", "dy"),
            ("dx",),
            _backward,
            lowering(lambda op: "tanh_bw", ("y", "dy"), "dx", _tile_backward),
        ),
    ),
    torch_forward=_torch_forward,
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=(InputCase((3, 4, 5), low=-4, high=4),)),
        Example(inputs=(InputCase((4, 16), low=-12, high=12),)),
        Example({"form": "pulp_fastexp"}, (InputCase((4, 8), low=-4, high=4),)),
    ),
    refused=(Refused({"form": "fast"}, ((3,),), "form"),),
    layouts=None,
)
