# SPDX-License-Identifier: Apache-2.0
"""Batch norm: every channel over batch and space, biased variance; running statistics are kept tensors.

The running variance is unbiased, as in PyTorch. Prediction uses the running statistics. A channel need not
fit L1: mean, variance and the sums of the backward pass are steps of their own. PULP-TrainLib has the forward
pass alone, in one step and without running statistics.
"""

from __future__ import annotations

from functools import partial

from trainlib.primitives.definition import DrawnInput, Example, LayerPrimitive
from trainlib.primitives.norms.norm import RunningSchema, norm_plan
from trainlib.primitives.norms.norm_steps import BATCH_STEPS

PRIMITIVE = LayerPrimitive(
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
)
