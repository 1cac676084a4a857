# SPDX-License-Identifier: Apache-2.0
"""What a loss says about itself, and the primitive that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from configs.model_file import LossSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.primitives.definition import Example, LabelPlan, LossPrimitive, Reference, Refused, Step, Values
from trainlib.primitives.derivative import derivative
from trainlib.primitives.formulas import Formula, arguments, by_name, parameters, wide
from trainlib.primitives.lowering.elementwise import LossLowering

LabelRule = Callable[[Mapping[str, Any], Tensor, str], LabelPlan]


def loss(
    name: str,
    *,
    value: Formula,
    gradient: Formula,
    reference: Reference,
    nests: tuple[str, str],
    examples: tuple[Example, ...],
    options: type[LossSchema] = LossSchema,
    refused: tuple[Refused, ...] = (),
    labels: LabelRule | None = None,
    per_sample: bool = False,
) -> LossPrimitive:
    """The loss `name`: `value` and `gradient` of y and label are what the two nests compute of the batch.

    Both are of the mean over the batch; `per_sample` as in `LossLowering`. `labels` is the plan of
    the labels (default: fp32 of the shape of the output).
    """
    lowering = LossLowering(nests, by_name(value), by_name(gradient), per_sample)
    return LossPrimitive(
        name=name,
        schema=options,
        step=Step("LOSS", ("y", "label"), ("loss", "dy"), reference, lowering),
        plan=labels or _like_output,
        examples=examples,
        refused=refused,
    )


def mean_of(terms: Formula) -> Reference:
    """The truth of a loss that is the mean of `terms` over all elements: that, and what it is derived to."""
    names = parameters(terms)

    def reference(op: Op, values: Values) -> Values:
        given = arguments(names, op, wide(values))
        slope = derivative(terms, given, "y")
        return {"loss": np.array([np.mean(terms(**given))]), "dy": slope / given["y"].size}

    return reference


def _like_output(attributes: Mapping[str, Any], output: Tensor, where: str) -> LabelPlan:
    return LabelPlan(output.shape)
