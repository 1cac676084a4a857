# SPDX-License-Identifier: Apache-2.0
"""The steps of the norms; a norm without mean, bias or running statistics lacks those roles."""

from __future__ import annotations

from trainlib.primitives.definition import Step
from trainlib.primitives.norms import norm_reference as reference
from trainlib.primitives.norms import norm_stepwise as stepwise
from trainlib.primitives.norms.norm_lowering import NormForward, NormInputGradient, NormWeightGradient

_RUNNING = ("running_mean", "running_var")
_GIVEN = ("x", "dy", "mean?", "inv_std")

_FORWARD = (
    Step(
        "FW",
        ("x", "w?", "b?", *(f"{role}?" for role in _RUNNING)),
        ("y", "mean?", "inv_std", *(f"{role}_updated?" for role in _RUNNING)),
        reference.forward,
        NormForward(),
    ),
    Step("FW_MEAN", ("x", "running_mean?"), ("mean",), reference.mean, stepwise.MEAN),
    Step("FW_VAR", ("x", "mean?"), ("var",), reference.variance, stepwise.VARIANCE),
    Step(
        "FW_INV",
        ("var", "mean?", *(f"{role}?" for role in _RUNNING)),
        ("inv_std", *(f"{role}_updated?" for role in _RUNNING)),
        reference.inverse_deviation,
        stepwise.InverseDeviation(),
    ),
    Step(
        "FW_KNOWN",
        _RUNNING,
        ("mean", "inv_std", *(f"{role}_updated" for role in _RUNNING)),
        reference.known_statistics,
        stepwise.KnownStatistics(),
    ),
    Step("FW_APPLY", ("x", "mean?", "inv_std", "w?", "b?"), ("y",), reference.normalised, stepwise.APPLY),
)

_INPUT_GRADIENT = (
    Step("IG", (*_GIVEN, "w?"), ("dx",), reference.input_gradient, NormInputGradient()),
    Step(
        "IG_APPLY",
        (*_GIVEN, "w?", "mean_g?", "mean_gx"),
        ("dx",),
        reference.input_gradient_from_means,
        stepwise.INPUT_GRADIENT,
    ),
    Step("IG_SCALE", ("dy", "inv_std", "w?"), ("dx",), reference.scaled_gradient, stepwise.SCALE),
)

NORM_STEPS = (
    *_FORWARD,
    Step("WG", _GIVEN, ("dw?", "db?"), reference.weight_gradient, NormWeightGradient()),
    Step(
        "IG_SUMS",
        (*_GIVEN, "w?"),
        ("mean_g?", "mean_gx"),
        reference.gradient_means,
        stepwise.GRADIENT_MEANS,
    ),
    *_INPUT_GRADIENT,
)
"""Steps of a norm whose parameters vary within a group, or belong to several: sums of its own for dx."""

BATCH_STEPS = (
    *_FORWARD,
    Step(
        "WG",
        _GIVEN,
        ("dw?", "db?", "mean_g?", "mean_gx?"),
        reference.weight_gradient_and_means,
        NormWeightGradient(),
    ),
    *_INPUT_GRADIENT,
)
"""Steps of batch norm: dw and db are the sums that dx needs."""
