# SPDX-License-Identifier: Apache-2.0
"""The steps of the norms; a norm without mean, bias or running statistics lacks those roles."""

from __future__ import annotations

from trainlib.primitives.definition import Step
from trainlib.primitives.norms import norm_reference as reference
from trainlib.primitives.norms import norm_stepwise as stepwise
from trainlib.primitives.norms.norm_lowering import NormForward, NormInputGradient, NormWeightGradient

_RUNNING, _UPDATED = "running_mean? running_var?", "running_mean_updated? running_var_updated?"
_GIVEN = "x dy mean? inv_std"

_FORWARD = (
    Step.of("FW", f"x w? b? {_RUNNING} -> y mean? inv_std {_UPDATED}", reference.forward, NormForward()),
    Step.of("FW_MEAN", "x running_mean? -> mean", reference.mean, stepwise.MEAN),
    Step.of("FW_VAR", "x mean? -> var", reference.variance, stepwise.VARIANCE),
    Step.of(
        "FW_INV",
        f"var mean? {_RUNNING} -> inv_std {_UPDATED}",
        reference.inverse_deviation,
        stepwise.InverseDeviation(),
    ),
    Step.of(
        "FW_KNOWN",
        f"{_RUNNING} -> mean inv_std {_UPDATED}".replace("?", ""),
        reference.known_statistics,
        stepwise.KnownStatistics(),
    ),
    Step.of("FW_APPLY", "x mean? inv_std w? b? -> y", reference.normalised, stepwise.APPLY),
)

_INPUT_GRADIENT = (
    Step.of("IG", f"{_GIVEN} w? -> dx", reference.input_gradient, NormInputGradient()),
    Step.of(
        "IG_APPLY",
        f"{_GIVEN} w? mean_g? mean_gx -> dx",
        reference.input_gradient_from_means,
        stepwise.INPUT_GRADIENT,
    ),
    Step.of("IG_SCALE", "dy inv_std w? -> dx", reference.scaled_gradient, stepwise.SCALE),
)

NORM_STEPS = (
    *_FORWARD,
    Step.of("WG", f"{_GIVEN} -> dw? db?", reference.weight_gradient, NormWeightGradient()),
    Step.of("IG_SUMS", f"{_GIVEN} w? -> mean_g? mean_gx", reference.gradient_means, stepwise.GRADIENT_MEANS),
    *_INPUT_GRADIENT,
)
"""Steps of a norm whose parameters vary within a group, or belong to several: sums of its own for dx."""

BATCH_STEPS = (
    *_FORWARD,
    Step.of(
        "WG",
        f"{_GIVEN} -> dw? db? mean_g? mean_gx?",
        reference.weight_gradient_and_means,
        NormWeightGradient(),
    ),
    *_INPUT_GRADIENT,
)
"""Steps of batch norm: dw and db are the sums that dx needs."""
