"""Reversed Huber loss (Laina et al. 2016): mean of |e| up to c, of (e² + c²) / 2c beyond, e = y - t.

c = alpha · max |e| over the batch, a constant for the gradient: sign(e) / n up to c, e / (c·n) beyond.
PULP-TrainLib subtracts c² instead of adding it, which drops to 0 at |e| = c; the loss of the paper is
continuous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.model_file import LossSchema
from trainlib.graph import Op
from trainlib.primitives.definition import Example, LossPrimitive, Step, Values
from trainlib.primitives.losses.regression_loss import RegressionLowering, label_like_output
from trainlib.steps import Array, Function


class _Schema(LossSchema):
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.2


def _value(op: Op) -> Function:
    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        size = np.abs(arrays[0].astype(np.float64) - arrays[1])
        limit = op.attributes["alpha"] * size.max()
        beyond = size > limit
        size[beyond] = np.square(size[beyond]) / (2 * limit) + limit / 2
        return (np.array([size.mean()], np.float32),)

    return function


def _gradient(op: Op) -> Function:
    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        error = arrays[0].astype(np.float64) - arrays[1]
        limit = op.attributes["alpha"] * np.abs(error).max()
        slope = np.sign(error)
        beyond = np.abs(error) > limit
        slope[beyond] = error[beyond] / limit
        return ((slope / error.size).astype(np.float32),)

    return function


def _reference(op: Op, values: Values) -> Values:
    error = (values["y"].astype(np.float64) - values["label"]).ravel()
    limit = op.attributes["alpha"] * max(error.max(), -error.min())
    loss, gradient = 0.0, np.zeros_like(error)
    for index, e in enumerate(error):
        if abs(e) <= limit:
            loss += abs(e)
            gradient[index] = (e > 0) - int(e < 0)
        else:
            loss += (e * e + limit * limit) / (2 * limit)
            gradient[index] = e / limit
    return {
        "loss": np.array([loss / error.size]),
        "dy": (gradient / error.size).reshape(values["y"].shape),
    }


def _torch_loss(torch: Any, attributes: Mapping[str, Any], y: Any, label: Any) -> Any:
    size = (y - label).abs()
    limit = (attributes["alpha"] * size.max()).detach()
    return torch.where(size <= limit, size, (size**2 + limit**2) / (2 * limit)).mean()


PRIMITIVE = LossPrimitive(
    name="berhu",
    schema=_Schema,
    step=Step(
        "LOSS",
        ("y", "label"),
        ("loss", "dy"),
        _reference,
        RegressionLowering("berhu_fw", "berhu_bw", _value, _gradient),
    ),
    plan=label_like_output,
    torch_loss=_torch_loss,
    examples=(Example(inputs=((10,),)), Example({"alpha": 0.5}, ((2, 3, 4),))),
)
