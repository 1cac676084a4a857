# SPDX-License-Identifier: Apache-2.0
"""Norms: steps, plans, options. A new one is an entry of `PRIMITIVES`; one without mean, bias or running
statistics lacks those roles.

Batch norm: every channel over batch and space, biased variance; running statistics are kept tensors, their
variance unbiased, as in PyTorch. Prediction uses them. A channel need not fit L1: mean, variance and the sums
of the backward pass are steps of their own. PULP-TrainLib has the forward pass alone, in one step and without
running statistics.

Instance norm: every channel of every sample over its space; with `running`, running statistics are means over
the batch; prediction uses them where there are any. `fixed_statistics` normalises with them in training too
(PULP-TrainLib's `freeze_running_params`), and then there is no sum for `stepwise` to take apart.

Group norm: groups of neighbouring channels of every sample over their space; w and b per channel.

Layer norm: every row of the last `axes` dimensions; w and b per element of a row. PULP-TrainLib has the
forward step alone, with the variance as E[x²] - 2·E[x]·m + m², and writes past the end where the cores do not
divide the rows. RMS norm (Zhang and Sennrich 2019): x / sqrt(mean x² + eps) · w over such rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from configs.errors import ShapeError
from trainlib.ir.graph import Tensor
from trainlib.primitives.definition import DrawnInput, Example, LayerPlan, LayerPrimitive, Positive
from trainlib.primitives.norms import norm_stepwise as stepwise
from trainlib.primitives.norms.norm import RunningSchema, StepwiseSchema, norm_plan
from trainlib.primitives.norms.norm_lowering import (
    NormForward,
    NormInputGradient,
    NormWeightGradient,
)

_RUNNING, _UPDATED = "running_mean? running_var?", "running_mean_updated? running_var_updated?"
_GIVEN = "x dy mean? inv_std"


_FORWARD = (
    NormForward().step("FW", f"x w? b? {_RUNNING} -> y mean? inv_std {_UPDATED}"),
    stepwise.MEAN.step("FW_MEAN", "x running_mean? -> mean"),
    stepwise.VARIANCE.step("FW_VAR", "x mean? -> var"),
    stepwise.INVERSE_DEVIATION.step("FW_INV", f"var mean? {_RUNNING} -> inv_std {_UPDATED}"),
    stepwise.KNOWN_STATISTICS.step("FW_KNOWN", f"{_RUNNING} -> mean inv_std {_UPDATED}".replace("?", "")),
    stepwise.APPLY.step("FW_APPLY", "x mean? inv_std w? b? -> y"),
)

_INPUT_GRADIENT = (
    NormInputGradient().step("IG", f"{_GIVEN} w? -> dx"),
    stepwise.INPUT_GRADIENT.step("IG_APPLY", f"{_GIVEN} w? mean_g? mean_gx -> dx"),
    stepwise.SCALE.step("IG_SCALE", "dy inv_std w? -> dx"),
)

NORM_STEPS = (
    *_FORWARD,
    NormWeightGradient().step("WG", f"{_GIVEN} -> dw? db?"),
    stepwise.GRADIENT_MEANS.step("IG_SUMS", f"{_GIVEN} w? -> mean_g? mean_gx"),
    *_INPUT_GRADIENT,
)
"""Steps of a norm whose parameters vary within a group, or belong to several: sums of its own for dx."""

BATCH_STEPS = (
    *_FORWARD,
    NormWeightGradient().step("WG", f"{_GIVEN} -> dw? db? mean_g? mean_gx?"),
    *_INPUT_GRADIENT,
)
"""Steps of batch norm: dw and db are the sums that dx needs."""


class _InstanceSchema(RunningSchema, StepwiseSchema):
    running: bool = False
    """Keep running statistics, as a batch norm does."""


class _GroupSchema(StepwiseSchema):
    groups: Positive
    """Groups the channels are divided into; each is normalised by its own statistics."""


class _RowSchema(StepwiseSchema):
    axes: Positive = 1
    """How many of the last axes are normalised together."""


class _LayerSchema(_RowSchema):
    bias: bool = True
    """Whether there is an offset b beside the scale w."""


class _RmsSchema(_RowSchema):
    affine: bool = True
    """Whether a scale w is trained."""


def _instance_plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = inputs[0].shape
    if len(shape) < 3:
        raise ShapeError(
            f"instance_norm needs channels of several elements, but its input has shape {shape[1:]}",
            where=where,
            cure="use layer_norm for a vector",
        )
    return norm_plan("group", attributes, inputs, where, groups=shape[1])


PRIMITIVES = (
    LayerPrimitive(
        name="batch_norm",
        schema=RunningSchema,
        plan=partial(norm_plan, "batch"),
        steps=BATCH_STEPS,
        examples=(
            Example({}, ((3, 4, 5),), batches=(1, 2)),
            Example({"momentum": 0.3, "eps": 0.01}, (DrawnInput((5,), low=0.0, high=4.0),), batches=(4, 7)),
            Example({"affine": False}, ((2, 3, 3),)),
            Example({"fixed_statistics": True}, ((3, 4, 2),)),
        ),
    ),
    LayerPrimitive(
        name="instance_norm",
        schema=_InstanceSchema,
        plan=_instance_plan,
        steps=NORM_STEPS,
        examples=(
            Example({}, ((3, 4, 5),)),
            Example({"eps": 0.01}, (DrawnInput((2, 9), low=2.0, high=3.0),)),
            Example({"affine": False}, ((3, 3, 3),)),
            Example({"running": True, "momentum": 0.4}, ((3, 4, 3),)),
            Example({"fixed_statistics": True}, ((3, 4, 2),)),
            Example({"stepwise": True}, ((3, 4, 5),)),
            Example({"stepwise": True, "running": True, "momentum": 0.3, "affine": False}, ((2, 3, 4),)),
        ),
    ),
    LayerPrimitive(
        name="group_norm",
        schema=_GroupSchema,
        plan=partial(norm_plan, "group"),
        steps=NORM_STEPS,
        examples=(
            Example({"groups": 2}, ((4, 3, 3),)),
            Example({"groups": 1, "eps": 0.01}, (DrawnInput((6,), low=-3.0, high=3.0),)),
            Example({"groups": 3, "affine": False}, ((6, 2, 2),)),
            Example({"groups": 4}, ((4, 2, 4),)),
            Example({"groups": 2, "stepwise": True}, ((4, 3, 3),)),
            Example({"groups": 3, "affine": False, "stepwise": True}, ((6, 2, 2),)),
        ),
    ),
    LayerPrimitive(
        name="layer_norm",
        schema=_LayerSchema,
        plan=partial(norm_plan, "row"),
        steps=NORM_STEPS,
        examples=(
            Example({}, ((7, 6),)),
            Example({"bias": False, "eps": 0.001}, (DrawnInput((9,), low=1.0, high=4.0),)),
            Example({"axes": 3}, ((2, 3, 4),)),
            Example({"axes": 2, "affine": False}, ((3, 2, 5),)),
            Example({"stepwise": True}, ((7, 6),)),
            Example({"axes": 2, "bias": False, "stepwise": True}, ((3, 4, 5),)),
        ),
    ),
    LayerPrimitive(
        name="rms_norm",
        schema=_RmsSchema,
        plan=partial(norm_plan, "row", centred=False),
        steps=NORM_STEPS,
        examples=(
            Example({}, ((7, 6),)),
            Example({"eps": 0.001}, (DrawnInput((9,), low=1.0, high=4.0),)),
            Example({"axes": 2}, ((2, 3, 4),)),
            Example({"affine": False}, ((3, 5),)),
            Example({"stepwise": True}, ((7, 6),)),
            Example({"axes": 3, "affine": False, "stepwise": True}, ((2, 3, 4),)),
        ),
    ),
)
"""Every norm; `trainlib.registry` lists them from here."""
