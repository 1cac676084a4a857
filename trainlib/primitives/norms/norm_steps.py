# SPDX-License-Identifier: Apache-2.0
"""The steps of the norms; a norm without mean, bias or running statistics lacks those roles."""

from __future__ import annotations

from trainlib.primitives.definition import Step
from trainlib.primitives.norms import norm_stepwise as stepwise
from trainlib.primitives.norms.norm_lowering import (
    NormForward,
    NormInputGradient,
    NormLowering,
    NormWeightGradient,
)

_RUNNING, _UPDATED = "running_mean? running_var?", "running_mean_updated? running_var_updated?"
_GIVEN = "x dy mean? inv_std"


def _step(name: str, signature: str, lowering: NormLowering) -> Step:
    """The formula of its tiles is the untiled reference as well."""
    return Step.of(name, signature, lowering.reference, lowering, formula=True)


_FORWARD = (
    _step("FW", f"x w? b? {_RUNNING} -> y mean? inv_std {_UPDATED}", NormForward()),
    _step("FW_MEAN", "x running_mean? -> mean", stepwise.MEAN),
    _step("FW_VAR", "x mean? -> var", stepwise.VARIANCE),
    _step("FW_INV", f"var mean? {_RUNNING} -> inv_std {_UPDATED}", stepwise.INVERSE_DEVIATION),
    _step(
        "FW_KNOWN",
        f"{_RUNNING} -> mean inv_std {_UPDATED}".replace("?", ""),
        stepwise.KNOWN_STATISTICS,
    ),
    _step("FW_APPLY", "x mean? inv_std w? b? -> y", stepwise.APPLY),
)

_INPUT_GRADIENT = (
    _step("IG", f"{_GIVEN} w? -> dx", NormInputGradient()),
    _step("IG_APPLY", f"{_GIVEN} w? mean_g? mean_gx -> dx", stepwise.INPUT_GRADIENT),
    _step("IG_SCALE", "dy inv_std w? -> dx", stepwise.SCALE),
)

NORM_STEPS = (
    *_FORWARD,
    _step("WG", f"{_GIVEN} -> dw? db?", NormWeightGradient()),
    _step("IG_SUMS", f"{_GIVEN} w? -> mean_g? mean_gx", stepwise.GRADIENT_MEANS),
    *_INPUT_GRADIENT,
)
"""Steps of a norm whose parameters vary within a group, or belong to several: sums of its own for dx."""

BATCH_STEPS = (
    *_FORWARD,
    _step("WG", f"{_GIVEN} -> dw? db? mean_g? mean_gx?", NormWeightGradient()),
    *_INPUT_GRADIENT,
)
"""Steps of batch norm: dw and db are the sums that dx needs."""
